"""How rows that no power of two holds are loaded: what tileiras makes of it, with no GPU."""

import pytest

from kernels import rms_norm, softmax
from pytest_cutile.tile.compiler import Compiler, export, record_launches
from pytest_cutile.tile.static.inspection import inspect

torch = pytest.importorskip("torch")

CONFIG = {"tile_elements": 4096, "num_worker_warps": 4}


def call_softmax(m, n):
    config = softmax.SoftmaxConfig(**CONFIG)
    return softmax.softmax(torch.empty((m, n), dtype=torch.bfloat16, device="cuda"), config=config)


def call_rms_norm(m, n):
    x, weight = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in ((m, n), (n,)))
    return rms_norm.rms_norm(x, weight, config=rms_norm.RmsNormConfig(**CONFIG))


@pytest.mark.parametrize(("call", "weights"), [(call_softmax, 0), (call_rms_norm, 1)])
def test_rows_that_start_at_16_bytes_are_loaded_by_16_bytes(call, weights):
    (launch,) = record_launches(lambda: call(8193, 1000), "sm_90")
    with Compiler(cache_dir=None, jobs=1, timeout_s=120) as compiler:
        facts, _ = inspect(compiler.submit(export(launch, "sm_90")).result())
    assert facts.instructions is not None
    # Four rows of 1024 elements, of which each of 128 threads has 8 at a time: 16 bytes.
    assert facts.instructions["global_load"]["LDG"] == 4 + weights
    assert facts.instructions["global_store"]["STG"] == 4
