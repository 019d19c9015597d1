"""The matrix product: which configuration, which copies, what is counted, and what the cases do not reach."""

from dataclasses import replace
from typing import Any

import pytest

from kernels import matmul
from kernels._gemm import GemmConfig, choose_tiles, count_blocks, count_tiles
from kernels._launch import ARCHITECTURES
from pytest_cutile import Work
from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.compiler import record_launches

torch = pytest.importorskip("torch")

H200: dict[str, Any] = {"arch": "sm_90", "sms": 132}


def ones(*shape, dtype=torch.float8_e4m3fn, **kwargs):
    return torch.ones(shape, **kwargs).to(dtype)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scale_a": 1.0}, TypeError, "scale_a must be a torch.Tensor, got float"),
        (
            {"scale_b": torch.ones(1).half()},
            TypeError,
            "scale_b has dtype torch.float16; supported are float32",
        ),
        ({"scale_b": torch.ones(2)}, ValueError, r"scale_b must be one number, got shape \[2\]"),
        ({"scale_a": torch.ones(1, device="meta")}, ValueError, "scale_a is on meta, but a is on cpu"),
        (
            {"out_dtype": torch.float8_e5m2},
            TypeError,
            "out_dtype is torch.float8_e5m2; for operands of .*e4m3fn",
        ),
        (
            {"out_dtype": torch.int32},
            TypeError,
            r"out_dtype is torch\.int32; .* supported are torch\.bfloat16",
        ),
        (
            {"out_dtype": "float16"},
            TypeError,
            r"out_dtype must be a torch.dtype, e\.g\. torch\.float16, got str 'float16'",
        ),
        (
            {"config": GemmConfig(tile_m=64, tile_n=64, tile_k=64)},
            TypeError,
            "config must be a MatmulConfig, got GemmConfig",
        ),
    ],
)
def test_says_what_is_wrong_with_options(options, error, message):
    with pytest.raises(error, match="^matmul: .*" + message):
        matmul.matmul(ones(2, 3), ones(3, 4), **options)


def test_dtype_of_the_result():
    assert matmul.matmul(ones(0, 3), ones(3, 4)).dtype == torch.bfloat16
    assert matmul.matmul(ones(2, 0), ones(0, 4), out_dtype=torch.float8_e4m3fn).dtype == torch.float8_e4m3fn
    assert matmul.matmul(ones(0, 3, dtype=torch.half), ones(3, 4, dtype=torch.half)).dtype == torch.half


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "sm_999"])
@pytest.mark.parametrize("size", [64, 1024, 8192])
def test_every_architecture_has_a_configuration(arch, size):
    def choose(itemsize, **options):
        return matmul.choose_config(arch, m=size, n=size, k=size, itemsize=itemsize, sms=132, **options)

    for config in (choose(1), choose(1, use_fast_acc=True), choose(2), choose(4)):
        assert config.tile_m * config.tile_n <= 256 * 256
    if arch != "sm_90":  # where each has its own: a step of as many bytes, whatever the operands are
        assert choose(1).tile_k == 2 * choose(2).tile_k == 4 * choose(4).tile_k


def test_small_products_get_small_tiles():
    def tiles(size):
        config = matmul.choose_config(**H200, m=size, n=size, k=size, itemsize=2)
        return count_tiles(size, size, config)

    # Tiles of 128 x 128 would be 64 for 132 multiprocessors.
    assert tiles(1024) == 128
    # Those of 128 x 256 would be 128: not two for each block that is to take several.
    assert tiles(2048) == 256
    assert tiles(4096) == 256
    # Where no tiles are enough, the smallest.
    assert matmul.choose_config(**H200, m=1, n=1, k=1, itemsize=2) == replace(
        matmul.CONFIGS["sm_90"][-1], copy_tile=None
    )


def test_two_thread_blocks_of_a_tile_count_as_two():
    pair = GemmConfig(tile_m=256, tile_n=256, tile_k=64, num_ctas=2)
    single = GemmConfig(tile_m=128, tile_n=128, tile_k=64)
    assert choose_tiles((pair, single), 2048, 2048, 1, sms=132) == pair
    assert choose_tiles((pair, single), 2048, 1024, 1, sms=132) == single
    assert choose_tiles((pair, single), 2048, 1024, 1, batch=2, sms=132) == pair
    assert choose_tiles((pair,), 1, 1, 1, sms=132) == pair


@pytest.mark.parametrize("hints", [{"occupancy": 2}, {"blocks_per_sm": 1}])
def test_blocks_that_share_a_multiprocessor_or_take_several_tiles_need_more(hints):
    small = GemmConfig(tile_m=64, tile_n=64, tile_k=64)
    large = GemmConfig(tile_m=128, tile_n=128, tile_k=64, **hints)
    # 8 x 16 and 16 x 16 tiles for 132 multiprocessors
    assert choose_tiles((large, small), 1024, 2048, 1, sms=132) == small
    assert choose_tiles((large, small), 2048, 2048, 1, sms=132) == large


def test_some_tiles_need_long_sums():
    short, long = (GemmConfig(tile_m=128, tile_n=128, tile_k=64, min_k=min_k) for min_k in (0, 4096))
    table = (long, replace(short, tile_m=64))
    assert choose_tiles(table, 2048, 2048, 4095, sms=132).tile_m == 64
    # The condition is the table's: what is chosen is a configuration like any other.
    assert choose_tiles(table, 2048, 2048, 4096, sms=132) == short


def test_blocks_of_a_persistent_launch():
    config = GemmConfig(tile_m=128, tile_n=128, tile_k=64)
    assert count_blocks(1000, config, sms=132) == 1000
    assert count_blocks(1000, replace(config, blocks_per_sm=2), sms=132) == 264
    assert count_blocks(100, replace(config, blocks_per_sm=2), sms=132) == 100
    assert count_blocks(1000, replace(config, blocks_per_sm=1, num_ctas=2), sms=132) == 66
    assert count_blocks(1000, replace(config, blocks_per_sm=1, num_ctas=2), sms=1) == 1


@pytest.mark.parametrize(
    ("dtype", "a", "b", "copies"),
    [
        # Hopper's tensor cores take 16 bits in either layout, and TMA any rows of whole 16 bytes.
        ("float16", (1024, 1), (1024, 1), 0),
        ("float16", (1, 1024), (1, 1024), 0),
        ("float16", (1025, 1), (1024, 1), 1),
        ("float16", (1028, 1), (1, 1020), 2),
        ("float16", (2048, 2), (1024, 1), 1),
        # 8 and 32 bits with K contiguous only: A's second axis, B's first.
        ("float8_e4m3fn", (1024, 1), (1, 1024), 0),
        ("float8_e4m3fn", (1024, 1), (1024, 1), 1),
        ("float8_e4m3fn", (1, 1024), (1024, 1), 2),
        ("float8_e4m3fn", (1032, 1), (1, 1024), 1),
        ("float32", (1024, 1), (1, 1028), 0),
        ("float32", (1024, 1), (1024, 1), 1),
    ],
)
def test_copies_what_tensor_cores_or_tma_do_not_take(dtype, a, b, copies):
    def launch():
        operands = (
            torch.empty_strided((1000, 1000), strides, dtype=getattr(torch, dtype), device="cuda")
            for strides in (a, b)
        )
        return matmul.matmul(*operands)

    launches = record_launches(launch, "sm_90")
    assert [each.kernel._pyfunc.__name__ for each in launches] == ["copy_kernel"] * copies + ["matmul_kernel"]
    for operand in launches[-1].args[:2]:
        assert all(stride == 1 or stride * operand.element_size() % 16 == 0 for stride in operand.stride())


def test_copies_nothing_for_few_rows():
    assert matmul.choose_config(**H200, m=511, n=8192, k=512, itemsize=1).copy_tile is None
    assert matmul.choose_config(**H200, m=512, n=8192, k=512, itemsize=1).copy_tile is not None


@pytest.mark.parametrize("blocks", [1, 3])
def test_persistent_blocks_compute_every_tile(blocks, monkeypatch):
    monkeypatch.setattr(matmul, "count_sms", lambda: blocks)
    config = matmul.MatmulConfig(tile_m=32, tile_n=32, tile_k=32, group_m=2, blocks_per_sm=1, store_tma=False)
    torch.manual_seed(0)
    with interpret("sm_90"):
        a, b = (torch.randn(shape, device="cuda").half() for shape in ((70, 50), (50, 130)))
        out = matmul.matmul(a, b, config=config)
    torch.testing.assert_close(out.cpu().double(), a.cpu().double() @ b.cpu().double(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        # 2 * 4096^2 * 8192; two operands of 4096 * 8192 bytes, a result of 4096^2 * 2
        (
            {"m": 4096, "n": 4096, "k": 8192, "dtype": "float8_e4m3fn", "use_fast_acc": True},
            Work(flops=274877906944, bytes=100663296, dtype="float8_e4m3fn"),
        ),
        # 2 * 3*5*7; 3*7 + 7*5 + 3*5
        (
            {"m": 3, "n": 5, "k": 7, "dtype": "float8_e5m2", "out_dtype": "float8_e5m2", "transposed": "a"},
            Work(flops=210, bytes=71, dtype="float8_e5m2"),
        ),
        # (3*7 + 7*5) * 2 + 3*5 * 4
        (
            {"m": 3, "n": 5, "k": 7, "dtype": "bfloat16", "out_dtype": "float32", "scaled": True},
            Work(flops=210, bytes=172, dtype="bfloat16"),
        ),
    ],
)
def test_work_equals_what_a_hand_computes(params, expected):
    assert matmul.work(**params) == expected


def test_reference_applies_both_scales():
    a, b = torch.randn(3, 5).double(), torch.randn(5, 2).double()
    scale_a, scale_b = torch.tensor(0.5).double(), torch.tensor([3.0]).double()
    expected = 1.5 * torch.matmul(a, b)
    torch.testing.assert_close(matmul.reference(a, b, scale_a=scale_a, scale_b=scale_b), expected)


def test_eight_bit_cases_need_hopper_and_others_do_not():
    for case in matmul.SPEC.cases:
        assert case.min_arch == ("sm_90" if "float8" in case.params["dtype"] else None)


@pytest.mark.parametrize(("columns", "tma"), [(1, False), (8, True), (12, False), (128, True)])
def test_tma_stores_no_column_whose_end_it_would_overwrite(columns, tma):
    def launch():
        matmul.matmul(
            torch.empty(300, 64, dtype=torch.bfloat16, device="cuda"),
            torch.empty(64, columns, dtype=torch.bfloat16, device="cuda"),
        )

    (launched,) = record_launches(launch, "sm_90")
    assert launched.args[-4] is tma
