"""Attention: every way to order and overlap its tiles, and 8-bit floats, interpreted on the CPU."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from kernels import _attention, fmha
from kernels._attention import AttentionConfig
from pytest_cutile.interpreter import interpret
from pytest_cutile.words.formats import FORMATS

torch = pytest.importorskip("torch")

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121", "sm_999")


def randn(*shape, dtype=torch.float16):
    return torch.randn(shape).to(dtype)


def assert_attends(q, k, v, config, **kwargs):
    with interpret("sm_90"):
        o = fmha.fmha(q, k, v, config=config, **kwargs)
    expected = fmha.reference(q.double(), k.double(), v.double(), causal=kwargs.get("causal", False))
    torch.testing.assert_close(o.double(), expected, rtol=4e-3, atol=4e-3)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile", [(32, 16), (16, 32)], ids=str)
@pytest.mark.parametrize(("m", "n"), [(50, 50), (48, 20), (20, 48)])
def test_any_overlap_of_any_tiles(overlap, causal, tile, m, n):
    """Several tiles on the diagonal, one, and part of one; the keys' end in a tile and at its edge."""
    torch.manual_seed(0)
    q, k, v = randn(1, 1, m, 64), randn(1, 1, n, 64), randn(1, 1, n, 64)
    assert_attends(q, k, v, AttentionConfig(tile_m=tile[0], tile_n=tile[1], overlap=overlap), causal=causal)


@pytest.mark.parametrize("heads_together", [1, 3, 100])
@pytest.mark.parametrize("sms", [None, 5, 1000])
def test_every_tile_is_computed_in_any_order(monkeypatch, heads_together, sms):
    monkeypatch.setattr(_attention, "count_sms", lambda: sms)
    torch.manual_seed(0)
    q, k, v = (randn(2, 2, 40, 64) for _ in range(3))
    config = AttentionConfig(tile_m=16, tile_n=16, heads_together=heads_together, persistent=sms is not None)
    assert_attends(q, k, v, config, causal=True)


def test_persistent_blocks_fill_the_gpu(monkeypatch):
    monkeypatch.setattr(_attention, "count_sms", lambda: 132)
    config = AttentionConfig(tile_m=128, tile_n=128)
    assert _attention.count_blocks(4096, config) == 4096
    assert _attention.count_blocks(4096, replace(config, persistent=True)) == 132
    assert _attention.count_blocks(4096, replace(config, persistent=True, occupancy=2)) == 264
    assert _attention.count_blocks(7, replace(config, persistent=True)) == 7


# -- 8-bit floats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_values_are_transposed_unless_they_come_that_way(dtype):
    v = randn(2, 3, 133, 64, dtype=dtype)
    with interpret("sm_90"):
        contiguous = _attention.make_keys_contiguous("fmha", v)
    assert contiguous.stride(2) == 1
    assert contiguous.shape == v.shape
    # TMA wants strides in multiples of 16 bytes.
    assert [stride % 16 for stride in contiguous.stride()] == [0, 0, 1, 0]
    assert torch.equal(contiguous.float(), v.float())
    assert _attention.make_keys_contiguous("fmha", contiguous) is contiguous
    # Keys beside each other, but in rows of 133 bytes.
    with interpret("sm_90"):
        aligned = _attention.make_keys_contiguous("fmha", v.transpose(2, 3).contiguous().transpose(2, 3))
    assert aligned.stride() == contiguous.stride()
    assert torch.equal(aligned.float(), v.float())


def test_headroom_is_as_far_as_the_formats_go():
    for dtype, headroom in _attention.HEADROOM.items():
        assert math.log2(FORMATS[dtype].max_finite) - 1 < headroom <= math.log2(FORMATS[dtype].max_finite)


@pytest.mark.parametrize("overlap", [False, True])
def test_small_probabilities_survive_8_bits(overlap):
    """One key weighs 1 and 500 others 2^-10 each: a third of all, which e4m3 alone would flush to zero."""
    keys, weight = 501, 2.0**-10
    q, k = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, keys, 64)
    q[..., 0], k[0, 0, 0, 0] = 1.0, 1.0
    v = torch.ones(1, 1, keys, 64)
    v[0, 0, 0] = 0.0
    q, k, v = (each.to(torch.float8_e4m3fn) for each in (q, k, v))
    config = AttentionConfig(tile_m=16, tile_n=64, overlap=overlap)
    with interpret("sm_90"):
        o = fmha.fmha(q, k, v, scale=-math.log(weight), out_dtype=torch.bfloat16, config=config)
    expected = 500 * weight / (1 + 500 * weight)
    torch.testing.assert_close(o.double(), torch.full_like(o, expected).double(), rtol=0.07, atol=0)


def test_out_dtype_is_checked_and_taken():
    q = torch.zeros(1, 1, 2, 64, dtype=torch.float8_e5m2)
    for wrong in (torch.float32, torch.float8_e4m3fn):
        with pytest.raises(
            TypeError, match=f"^fmha: out_dtype is {wrong}; for operands of torch.float8_e5m2 supported are "
        ):
            fmha.fmha(q, q, q, out_dtype=wrong)
    with pytest.raises(TypeError, match=r"^fmha: out_dtype must be a torch\.dtype, .* got str 'float16'$"):
        fmha.fmha(q, q, q, out_dtype="float16")  # type: ignore[arg-type]
    assert fmha.fmha(q, q[:, :, :0], q[:, :, :0]).dtype == torch.float8_e5m2
    assert fmha.fmha(q, q[:, :, :0], q[:, :, :0], out_dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("causal", [None, 1, torch.tensor(True)])
def test_mask_is_on_or_off(causal):
    q = torch.zeros(1, 1, 2, 64, dtype=torch.float16)
    with pytest.raises(TypeError, match=f"^fmha: causal must be a bool, got {type(causal).__name__}$"):
        fmha.fmha(q, q, q, causal=causal)


def test_work_in_8_bits():
    params: dict[str, Any] = {"b": 2, "h": 4, "h_kv": 2, "m": 100, "n": 50, "d": 128, "causal": False}
    same = fmha.work(**params, dtype="float8_e5m2")
    # 4 * 2*4 * 100*50 * 128 flops; Q and O of 2*4*100*128, K and V of 2*2*50*128, each a byte
    assert (same.flops, same.bytes, same.dtype) == (20480000, 256000, "float8_e5m2")
    assert fmha.work(**params, dtype="float8_e5m2", out_dtype="float16").bytes == 256000 + 102400


# -- configuration ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_has_a_configuration(arch):
    for head_dim, causal, itemsize in itertools.product(fmha.HEAD_DIMS, (False, True), (1, 2)):
        config = fmha.choose_config(arch, head_dim=head_dim, causal=causal, itemsize=itemsize, keys=1024)
        # Only Hopper's tensor cores care where V's keys are.
        assert config.transpose_v == (arch == "sm_90" and itemsize == 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", fmha.HEAD_DIMS)
def test_tiles_for_large_problems_attend(head_dim, causal):
    """Cases that are interpreted are small, and get other tiles."""
    torch.manual_seed(0)
    q, k, v = (randn(1, 2, 150, head_dim) for _ in range(3))
    for config in {
        fmha.choose_config("sm_90", head_dim=head_dim, causal=causal, itemsize=2, keys=keys, rows_per_sm=rows)
        for keys in (1024, 4096)
        for rows in (300, math.inf)
    }:
        assert_attends(q, k, v, config, causal=causal)


def test_short_walks_are_persistent_on_hopper():
    chosen = [
        fmha.choose_config("sm_90", head_dim=head_dim, causal=False, itemsize=itemsize, keys=keys)
        for head_dim, itemsize, keys in [(128, 2, 2048), (128, 2, 2049), (128, 1, 2048), (64, 2, 1024)]
    ]
    assert [config.persistent for config in chosen] == [True, False, False, False]


def test_hopper_has_tiles_for_each_head_dimension():
    def tiles(head_dim, *, causal):
        config = fmha.choose_config("sm_90", head_dim=head_dim, causal=causal, itemsize=2, keys=2048)
        return config.tile_m, config.tile_n, config.occupancy

    assert [tiles(d, causal=False) for d in (64, 128, 256)] == [(128, 64, 2), (64, 128, 2), (128, 128, 1)]
    assert [tiles(d, causal=True) for d in (64, 128, 256)] == [(128, 64, 2), (128, 128, 1), (128, 64, 1)]


def test_tiles_are_smaller_where_all_run_at_once(monkeypatch):
    def tile_m(**size):
        return fmha.choose_config("sm_90", causal=False, itemsize=2, keys=1024, **size).tile_m

    # Two blocks of 64 rows share a multiprocessor, of heads of 256 dimensions one block has it alone.
    assert [tile_m(head_dim=64, rows_per_sm=rows) for rows in (128, 129)] == [64, 128]
    assert [tile_m(head_dim=256, rows_per_sm=rows) for rows in (64, 65)] == [64, 128]
    # Three heads of 65 queries are six tiles.
    monkeypatch.setattr(fmha, "count_sms", lambda: 3)
    monkeypatch.setattr(fmha, "find_arch", lambda *_: "sm_90")
    q = torch.empty(1, 3, 65, 64, dtype=torch.float16)
    assert fmha.config_for(q, q, causal=False).tile_m == 64
    q = torch.empty(1, 3, 129, 64, dtype=torch.float16)
    assert fmha.config_for(q, q, causal=False).tile_m == 128


def test_the_long_tiles_of_all_heads_come_first_where_there_are_few():
    def heads_together(rows, **changed):
        size = {"head_dim": 128, "causal": True, "itemsize": 2, "keys": 1024, **changed}
        return fmha.choose_config("sm_90", rows_per_sm=rows, **size).heads_together

    assert [heads_together(rows) for rows in (fmha.FEW_ROWS, fmha.FEW_ROWS + 1)] == [64, 8]
    # Not measured: other architectures, and 8 bits.
    assert heads_together(1, itemsize=1) == 16
    small = fmha.choose_config("sm_121", head_dim=128, causal=True, itemsize=2, keys=1024, rows_per_sm=1)
    assert small == fmha.CONFIGS["sm_121"]
