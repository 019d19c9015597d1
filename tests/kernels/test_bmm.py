"""The batched product's host side: argument checks, shared matrices, configurations, work."""

from dataclasses import replace
from typing import Any

import pytest

from kernels import bmm
from kernels._gemm import count_tiles
from pytest_cutile import Work
from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.compiler import record_launches

torch = pytest.importorskip("torch")


def half(*shape, **kwargs):
    return torch.ones(shape, dtype=torch.half, **kwargs)


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        (None, half(1, 3, 2), TypeError, "a must be a torch.Tensor, got NoneType"),
        (half(1, 2, 3), half(1, 3, 2).bfloat16(), TypeError, r"b has dtype torch\.bfloat16, but a has"),
        (half(1, 2, 3).float(), half(1, 3, 2).float(), TypeError, "supported are float16, bfloat16"),
        (half(2, 3), half(1, 3, 2), ValueError, r"a must be a batch of matrices, got shape \[2, 3\]"),
        (half(1, 2, 3), half(3, 2), ValueError, r"b must be a batch of matrices, got shape \[3, 2\]"),
        (half(4, 2, 3), half(4, 2, 3), ValueError, r"so b must be \[batch, 3, N\], but is \[4, 2, 3\]"),
        (
            half(4, 2, 3),
            half(3, 3, 2),
            ValueError,
            r"a is a batch of 4, so b must be one of 4 or 1, but is \[3",
        ),
        (half(1, 2, 3), half(1, 3, 2, device="meta"), ValueError, "b is on meta, but a is on cpu"),
    ],
)
def test_says_what_is_wrong(a, b, error, message):
    with pytest.raises(error, match="^bmm: .*" + message):
        bmm.bmm(a, b)


def test_nothing_is_launched_for_nothing():
    assert bmm.bmm(half(0, 2, 3), half(0, 3, 4)).shape == (0, 2, 4)
    assert bmm.bmm(half(1, 2, 3), half(0, 3, 4)).shape == (0, 2, 4)
    assert bmm.bmm(half(5, 0, 3), half(1, 3, 4)).shape == (5, 0, 4)
    # An empty sum is zero, not undefined.
    assert torch.equal(bmm.bmm(half(5, 2, 0), half(5, 0, 4)), torch.zeros(5, 2, 4).half())


def test_an_expanded_matrix_is_read_as_one():
    def launch():
        a = half(1, 16, 32, device="cuda").expand(6, 16, 32)
        return bmm.bmm(a, half(6, 32, 8, device="cuda"))

    (launched,) = record_launches(launch, "sm_90")
    assert [tuple(array.shape) for array in launched.args[:3]] == [(1, 16, 32), (6, 32, 8), (6, 16, 8)]


def test_persistent_blocks_compute_every_tile(monkeypatch):
    monkeypatch.setattr(bmm, "count_sms", lambda: 4)
    config = replace(bmm.DEFAULT_CONFIG, tile_m=32, tile_n=32, group_m=2, blocks_per_sm=1, store_tma=False)
    torch.manual_seed(0)
    with interpret("sm_90"):
        a, b = (torch.randn(shape, device="cuda").half() for shape in ((3, 70, 40), (1, 40, 50)))
        out = bmm.bmm(a, b, config=config)
    torch.testing.assert_close(out.cpu().double(), a.cpu().double() @ b.cpu().double(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    "arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_121", "x"]
)
def test_every_architecture_has_a_configuration(arch):
    for batch in (1, 128):
        config = bmm.choose_config(arch, batch=batch, m=512, n=512, k=512, sms=132)
        assert config.tile_k in (32, 64)


def test_the_batch_fills_the_gpu_too():
    def tiles(batch):
        config = bmm.choose_config("sm_90", batch=batch, m=1024, n=1024, k=1024, sms=132)
        return count_tiles(1024, 1024, config)

    assert [tiles(batch) for batch in (1, 2, 4, 8)] == [128, 128, 64, 32]


def test_long_sums_get_larger_tiles():
    def tile(k):
        config = bmm.choose_config("sm_90", batch=2, m=4096, n=4096, k=k, sms=132)
        return config.tile_m, config.tile_n

    assert (tile(2048), tile(4096)) == ((128, 256), (256, 256))


def test_loads_look_no_further_ahead_than_short_sums_go():
    def latency(k):
        return bmm.choose_config("sm_90", batch=128, m=1024, n=512, k=k, sms=132).latency

    assert [latency(k) for k in (128, 256, 257, 1024, 2048)] == [3, 3, 6, 6, 6]


def test_work_equals_what_a_hand_computes():
    sizes: dict[str, Any] = {"batch": 3, "m": 5, "n": 7, "k": 11, "dtype": "float16"}
    # 2 * 3 * 5*7*11; 3 * (5*11 + 11*7 + 5*7) * 2, of B one matrix
    assert bmm.work(**sizes, transposed="ab") == Work(flops=2310, bytes=1002, dtype="float16")
    assert bmm.work(**sizes, shared="b") == Work(flops=2310, bytes=694, dtype="float16")
    assert bmm.longest_sum(**sizes) == 11


@pytest.mark.parametrize(("a", "b"), [(3, 3), (1, 3), (3, 1)])
def test_reference_agrees_with_torch(a, b):
    left, right = torch.randn(a, 5, 9).double(), torch.randn(b, 9, 7).double()
    torch.testing.assert_close(bmm.reference(left, right), torch.matmul(left, right))


def test_transposed_cases_are_views():
    a, b = bmm.inputs(
        lambda shape, dtype: torch.zeros(shape, dtype=getattr(torch, dtype)),
        batch=2,
        m=3,
        n=5,
        k=7,
        dtype="float16",
        transposed="b",
        shared="a",
    )
    assert (a.shape, a.stride()) == ((1, 3, 7), (21, 7, 1))
    assert (b.shape, b.stride()) == ((2, 7, 5), (35, 1, 7))
