"""Latent attention of one token: argument checks, work counts, reference, and what an 8-bit cache rounds."""

import itertools
import math

import pytest

from kernels import mla_decoding as module
from kernels._launch import ARCHITECTURES
from kernels._split_kv import merge_parts
from kernels.mla_decoding import SPEC, MlaDecodingConfig, choose_config, mla_decoding
from pytest_cutile import Work
from pytest_cutile.interpreter import interpret

torch = pytest.importorskip("torch")

F16, BF16, E4M3, E5M2 = torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2


def ones(*shape, dtype=F16, **kwargs):
    return torch.ones(shape, **kwargs).to(dtype)


def make(b, h, n, d, *, dtype=F16, cache_dtype=None):
    torch.manual_seed(0)
    queries = [torch.randn(b, h, each).to(dtype) for each in (d, 64)]
    return *queries, *(torch.randn(b, n, each).to(cache_dtype or dtype) for each in (d, 64))


def case_of(name):
    return next(case for case in SPEC.cases if case.name == name)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"q": None}, TypeError, "q must be a torch.Tensor, got NoneType"),
        ({"kpe": [1.0]}, TypeError, "kpe must be a torch.Tensor, got list"),
        ({"q": ones(2, 3, 128, dtype=torch.float32)}, TypeError, "q has dtype .*; supported are float16"),
        ({"qpe": ones(2, 3, 64, dtype=BF16)}, TypeError, "qpe has dtype torch.bfloat16, but q has"),
        ({"kpe": ones(2, 5, 64, dtype=E4M3)}, TypeError, "kpe has dtype torch.float8_e4m3fn, but kv has"),
        (
            {"kv": ones(2, 5, 128, dtype=BF16), "kpe": ones(2, 5, 64, dtype=BF16)},
            TypeError,
            r"kv has dtype torch.bfloat16, but q has torch.float16; .*only an 8-bit cache may",
        ),
        (
            {"q": ones(2, 3, 128, dtype=E4M3), "qpe": ones(2, 3, 64, dtype=E4M3)},
            TypeError,
            r"kv has dtype torch.float16, but q has torch.float8_e4m3fn; .*only an 8-bit cache may",
        ),
        (
            {"kv": ones(2, 5, 128, device="meta"), "kpe": ones(2, 5, 64, device="meta")},
            ValueError,
            "kv is on meta, but q is on cpu",
        ),
        ({"q": ones(3, 128)}, ValueError, r"q must be \[batch, heads, latent_dim\], got shape \[3, 128\]"),
        ({"kv": ones(2, 1, 5, 128)}, ValueError, r"kv must be \[batch, length, latent_dim\], got shape"),
        ({"q": ones(2, 3, 96)}, ValueError, "with D = 96; supported are 128, 256, 512"),
        ({"qpe": ones(2, 3, 32)}, ValueError, r"qpe must be \[2, 3, 64\], but is \[2, 3, 32\]"),
        ({"kv": ones(2, 5, 256)}, ValueError, r"kv must be \[2, 5, 128\], but is \[2, 5, 256\]"),
        ({"kpe": ones(2, 6, 64)}, ValueError, r"kv has 5 keys, so kpe must be \[2, 5, 64\], but is"),
        ({"scale": 0.0}, ValueError, "scale must be a positive number, got 0.0"),
        ({"scale": 1e-46}, ValueError, "scale must be 8.15e-39 to .* got 1e-46"),
        ({"scale": None}, TypeError, "scale must be a number, got NoneType"),
        ({"scale": math.nan}, ValueError, "scale must be a positive number, got nan"),
    ],
)
def test_says_what_is_wrong(changed, error, message):
    right = {"q": ones(2, 3, 128), "qpe": ones(2, 3, 64), "kv": ones(2, 5, 128), "kpe": ones(2, 5, 64)}
    with pytest.raises(error, match="^mla_decoding: .*" + message):
        mla_decoding(**{**right, "scale": 0.1, **changed})


def test_nothing_is_launched_for_nothing():
    assert mla_decoding(*make(0, 3, 5, 128), scale=0.1).shape == (0, 3, 128)
    assert torch.equal(mla_decoding(*make(2, 3, 0, 128), scale=0.1), ones(2, 3, 128) * 0)
    none = mla_decoding(*make(2, 3, 0, 128, dtype=E4M3), scale=0.1)
    assert torch.equal(none, ones(2, 3, 128, dtype=BF16) * 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 2 * 64*128*4096 * (512 + 64 + 512); 64 * (4096*576 + 128*(512 + 64 + 512)) * 2
        (
            "bf16-64x128x4096x512",
            Work(flops=73014444032, bytes=319815680, dtype="bfloat16"),
        ),
        # Half the cache, and queries and output as before: 64 * (8192*576 + 16*1088 * 2)
        (
            "e4m3-bf16-64x16x8192x512",
            Work(flops=18253611008, bytes=304218112, dtype="bfloat16"),
        ),
        # Queries of 8 bits, and an output of 16: 2 * 2*16*65 * 1088; 2 * ((65 + 16)*576 + 16*512 * 2)
        ("e4m3-2x16x65x512", Work(flops=4526080, bytes=126080, dtype="float8_e4m3fn")),
        # 2 * 2*5*129 * (256 + 64 + 256); 2 * (129*320 + 5*576) * 2
        ("bf16-2x5x129x256", Work(flops=1486080, bytes=176640, dtype="bfloat16")),
    ],
)
def test_work_equals_what_a_hand_computes(name, expected):
    assert SPEC.work_of(case_of(name)) == expected


def test_sums_are_over_keys_or_over_dimensions():
    assert SPEC.reduction_of(case_of("fp16-1x16x11043x512")) == 11043
    assert SPEC.reduction_of(case_of("fp16-1x16x128x512")) == 576


def test_reference_is_torchs_attention_with_one_head_of_keys():
    q, qpe, kv, kpe = (each.double() for each in make(2, 6, 9, 128))
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.cat([q, qpe], -1)[:, None], torch.cat([kv, kpe], -1)[:, None], kv[:, None], scale=0.07
    )
    torch.testing.assert_close(SPEC.reference(q, qpe, kv, kpe, scale=0.07), expected[:, 0])


@pytest.mark.parametrize(
    ("config", "splits"),
    [
        # All keys in one block.
        (MlaDecodingConfig(tile_n=32, part_cost=1e9), 1),
        # Five tiles in parts of two: the last one is shorter, and its only tile is not full.
        (MlaDecodingConfig(tile_n=32, part_cost=0.9), 3),
        (MlaDecodingConfig(tile_n=32, part_cost=0.9, dependent_merge=False), 3),
        (MlaDecodingConfig(tile_n=32, keys_first=False), 5),
        (MlaDecodingConfig(tile_n=32, late_sum=True), 5),
        (MlaDecodingConfig(tile_n=32, late_sum=True, keys_first=False), 5),
        (MlaDecodingConfig(tile_n=32, small_tma=False), 5),
        (MlaDecodingConfig(tile_h=32, tile_n=64, latency=None, num_worker_warps=None), 3),
    ],
)
def test_any_configuration_gives_the_same(monkeypatch, config, splits):
    q, qpe, kv, kpe = make(1, 20, 150, 128)
    merged: list[int] = []

    def merge(parts, lse, o, **options):
        merged.append(parts.shape[2])
        merge_parts(parts, lse, o, **options)

    monkeypatch.setattr(module, "merge_parts", merge)
    with interpret("sm_90"):
        o = mla_decoding(q, qpe, kv, kpe, scale=0.05, config=config)
    assert merged == ([splits] if splits > 1 else [])
    expected = SPEC.reference(*(each.double() for each in (q, qpe, kv, kpe)), scale=0.05)
    torch.testing.assert_close(o.double(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("cache_dtype", [E4M3, torch.float8_e5m2])
def test_an_8_bit_cache_is_as_good_as_the_same_values_in_16_bits(cache_dtype):
    q, qpe, kv, kpe = make(1, 16, 100, 128, cache_dtype=cache_dtype)
    with interpret("sm_90"):
        narrow = mla_decoding(q, qpe, kv, kpe, scale=0.05)
        wide = mla_decoding(q, qpe, kv.to(F16), kpe.to(F16), scale=0.05)
    assert torch.equal(narrow, wide)


@pytest.mark.parametrize("cache_dtype", [E4M3, torch.float8_e5m2])
def test_an_8_bit_cache_is_better_than_the_same_values_in_bfloat16(cache_dtype):
    q, qpe, kv, kpe = make(1, 16, 100, 128, dtype=BF16, cache_dtype=cache_dtype)
    with interpret("sm_90"):
        narrow = mla_decoding(q, qpe, kv, kpe, scale=0.05)
        wide = mla_decoding(q, qpe, kv.to(BF16), kpe.to(BF16), scale=0.05)
    expected = SPEC.reference(*(each.double() for each in (q, qpe, kv, kpe)), scale=0.05)
    assert narrow.dtype == BF16
    assert (narrow - expected).abs().mean() < (wide - expected).abs().mean()


@pytest.mark.parametrize("keys_first", [False, True])
@pytest.mark.parametrize(("dtype", "cache_dtype"), [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2), (E5M2, E4M3)])
def test_8_bit_queries_are_as_good_as_the_same_values_in_bfloat16(dtype, cache_dtype, keys_first):
    """Down to the last bit: both become float16 without a rounding, and the output has the same dtype."""
    q, qpe, kv, kpe = make(1, 16, 100, 128, dtype=dtype, cache_dtype=cache_dtype)
    config = MlaDecodingConfig(tile_n=32, keys_first=keys_first)
    with interpret("sm_90"):
        narrow = mla_decoding(q, qpe, kv, kpe, scale=0.05, config=config)
        wide = mla_decoding(q.to(BF16), qpe.to(BF16), kv, kpe, scale=0.05, config=config)
    assert narrow.dtype == BF16
    assert torch.equal(narrow, wide)


@pytest.mark.parametrize("keys_first", [False, True])
@pytest.mark.parametrize("exponent", [-100, -18, 0, 18, 120])
def test_bfloat16_queries_of_any_size_meet_an_8_bit_cache(exponent, keys_first):
    q, qpe, kv, kpe = make(1, 16, 40, 128, dtype=BF16, cache_dtype=E4M3)
    config = MlaDecodingConfig(tile_n=32, keys_first=keys_first)
    with interpret("sm_90"):
        expected = mla_decoding(q, qpe, kv, kpe, scale=2.0**-4, config=config)
        size = 2.0**exponent
        o = mla_decoding(q * size, qpe * size, kv, kpe, scale=2.0**-4 / size, config=config)
    assert torch.equal(o, expected)


def test_queries_of_zeros_average_an_8_bit_cache():
    q, qpe, kv, kpe = make(1, 16, 40, 128, dtype=BF16, cache_dtype=E4M3)
    with interpret("sm_90"):
        o = mla_decoding(q * 0, qpe * 0, kv, kpe, scale=1e-38)
    torch.testing.assert_close(o, kv.double().mean(1, keepdim=True).expand(o.shape).to(BF16))


def test_a_query_that_is_not_finite_makes_its_row_nan():
    q, qpe, kv, kpe = make(1, 16, 40, 128, dtype=BF16, cache_dtype=E4M3)
    q[0, 3, 5], qpe[0, 7, 0] = math.nan, math.inf
    with interpret("sm_90"):
        o = mla_decoding(q, qpe, kv, kpe, scale=0.05)
    bad = torch.isin(torch.arange(16), torch.tensor([3, 7]))[:, None].expand(o.shape[1:])
    assert torch.equal(o[0].isnan(), bad)


@pytest.mark.parametrize(
    "change",
    [
        # Rows of an odd length, an odd offset, and strided dimensions: not to be read as words of two.
        lambda cache: torch.cat([cache, cache[..., :1]], -1)[..., :-1],
        lambda cache: torch.cat([cache[..., :1], cache, cache[..., :1]], -1)[..., 1:-1],
        lambda cache: cache.mT.contiguous().mT,
    ],
)
def test_an_8_bit_cache_may_lie_anyhow(change):
    q, qpe, kv, kpe = make(1, 16, 40, 128, dtype=BF16)
    kv, kpe = kv.to(E4M3), kpe.to(E4M3)
    with interpret("sm_90"):
        expected = mla_decoding(q, qpe, kv, kpe, scale=0.05)
        for pair in ((change(kv), kpe), (kv, change(kpe)), (change(kv), change(kpe))):
            assert torch.equal(mla_decoding(q, qpe, *pair, scale=0.05), expected)


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "sm_999"])
def test_every_architecture_has_a_configuration(arch):
    itemsizes = [(2, 2), (2, 1), (1, 1)]
    asked = itertools.product([16, 128], module.LATENT_DIMS, itemsizes, [0.01, 48, 96, 192, 1e6])
    for heads, latent_dim, (query_itemsize, cache_itemsize), keys_per_sm in asked:
        config = choose_config(
            arch,
            heads=heads,
            latent_dim=latent_dim,
            query_itemsize=query_itemsize,
            cache_itemsize=cache_itemsize,
            keys_per_sm=keys_per_sm,
        )
        assert config.tile_h >= 16
        assert not (config.late_sum and query_itemsize == 1)
        # Tiles of 256 keys have room where a key has few elements.
        assert config.tile_n * latent_dim <= 128 * 512
    # Programmatic dependent launches came with sm_90.
    assert config.dependent_merge == (arch not in {"sm_80", "sm_86", "sm_89", "sm_999"})
