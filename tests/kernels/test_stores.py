"""What is stored by TMA, which writes whole pieces of 16 bytes: what tileiras makes of it, with no GPU."""

import pytest

from kernels import attention_decode, bmm, group_gemm, matmul, moe_routing
from pytest_cutile.tile.compiler import Compiler, export, record_launches
from pytest_cutile.tile.static.inspection import inspect

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")


def gpu(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda")


def decode(keys):
    """One head, with the small tensors by TMA: its logarithms are one row of as many as there are parts."""
    config = attention_decode.AttentionDecodeConfig(small_tma=True)
    kv = gpu(1, 1, keys, 64)
    attention_decode.attention_decode(gpu(1, 1, 64), kv, kv, config=config)


def tma_stores(launch, arch):
    """Return how many stores by TMA the first kernel of a launch has, and how many others."""
    with Compiler(cache_dir=None, jobs=1, timeout_s=120) as compiler:
        facts, _ = inspect(compiler.submit(export(record_launches(launch, arch)[0], arch)).result())
    assert facts.instructions is not None
    count = {kind: sum(facts.instructions.get(kind, {}).values()) for kind in ("tma_store", "global_store")}
    return count["tma_store"], count["global_store"]


@pytest.mark.parametrize(
    ("arch", "launch"),
    [
        ("sm_90", lambda: moe_routing.route(gpu(1, 64), 6)),
        ("sm_100", lambda: moe_routing.route(gpu(1, 64), 6)),
        ("sm_90", lambda: moe_routing.route(gpu(1, 64), 1)),
        ("sm_90", lambda: moe_routing.route(gpu(5, 64), 1)),
        ("sm_90", lambda: matmul.matmul(gpu(1, 64), gpu(64, 300))),
        ("sm_100", lambda: matmul.matmul(gpu(1, 64), gpu(64, 300))),
        ("sm_90", lambda: matmul.matmul(gpu(300, 64), gpu(64, 1))),
        ("sm_90", lambda: bmm.bmm(gpu(1, 1, 64), gpu(1, 64, 300))),
        ("sm_90", lambda: group_gemm.group_gemm([gpu(1, 64)], [gpu(64, 300)])),
    ],
    ids=[
        "route-1x6",
        "route-1x6-sm_100",
        "route-1x1",
        "route-5x1",
        "matmul-1x300",
        "matmul-1x300-sm_100",
        "matmul-300x1",
        "bmm-1x300",
        "group_gemm-1x300",
    ],
)
def test_a_row_that_is_no_whole_pieces_is_not_stored_by_tma(launch, arch):
    by_tma, others = tma_stores(launch, arch)
    assert by_tma == 0
    assert others > 0


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    "launch", [lambda: moe_routing.route(gpu(1, 64), 8), lambda: matmul.matmul(gpu(1, 64), gpu(64, 304))]
)
def test_one_of_whole_pieces_is(launch, arch):
    assert tma_stores(launch, arch)[0] > 0


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_logarithms_of_parts_are_not_stored_by_tma(arch):
    by_tma, others = tma_stores(lambda: decode(4096), arch)
    assert by_tma > 0
    assert others > 0
