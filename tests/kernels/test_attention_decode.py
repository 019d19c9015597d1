"""Attention of one token: argument checks, work counts, reference, and parts of every length."""

import itertools

import pytest

from kernels import attention_decode as module
from kernels._launch import ARCHITECTURES
from kernels._split_kv import merge_parts
from kernels.attention_decode import SPEC, AttentionDecodeConfig, attention_decode, choose_config
from pytest_cutile import Work
from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.compiler import record_launches

torch = pytest.importorskip("torch")


def half(*shape, **kwargs):
    return torch.ones(shape, dtype=torch.float16, **kwargs)


def case_of(name):
    return next(case for case in SPEC.cases if case.name == name)


@pytest.mark.parametrize(
    ("q", "k", "v", "scale", "error", "message"),
    [
        (half(1, 2, 64), None, half(1, 2, 3, 64), None, TypeError, "k must be a torch.Tensor, got None"),
        (torch.ones(1, 2, 64), *[torch.ones(1, 2, 3, 64)] * 2, None, TypeError, "supported are float16, bf"),
        (half(1, 2, 64), *[half(1, 2, 3, 64).bfloat16()] * 2, None, TypeError, "k has dtype .* but q has"),
        (half(1, 2, 64), *[half(1, 2, 3, 64, device="meta")] * 2, None, ValueError, "k is on meta, but q"),
        (half(2, 64), *[half(1, 2, 3, 64)] * 2, None, ValueError, r"q must be .* got shape \[2, 64\]"),
        (half(1, 2, 2, 64), *[half(1, 2, 3, 64)] * 2, None, ValueError, "several queries are for fmha"),
        (half(1, 2, 64), half(1, 2, 3, 64), half(3, 64), None, ValueError, r"v must be .* shape \[3, 64\]"),
        (half(1, 2, 80), *[half(1, 2, 3, 80)] * 2, None, ValueError, "D = 80; supported are 64, 128, 256"),
        (half(2, 2, 64), *[half(1, 2, 3, 64)] * 2, None, ValueError, r"k must be \[2, H_kv, N, 64\]"),
        (half(1, 2, 64), *[half(1, 2, 3, 128)] * 2, None, ValueError, r"k must be \[1, H_kv, N, 64\]"),
        (half(1, 2, 64), half(1, 2, 3, 64), half(1, 2, 4, 64), None, ValueError, r"v must have k's shape"),
        (
            half(1, 3, 64),
            *[half(1, 2, 3, 64)] * 2,
            None,
            ValueError,
            "3 heads, which is no multiple of the 2",
        ),
        (half(1, 3, 64), *[half(1, 0, 3, 64)] * 2, None, ValueError, "no multiple of the 0 heads of k and v"),
        (half(1, 2, 64), *[half(1, 2, 3, 64)] * 2, 0.0, ValueError, "scale must be .* number, got 0.0"),
        (half(1, 2, 64), *[half(1, 2, 3, 64)] * 2, 1e-46, ValueError, "scale must be 8.15e-39 to .* 1e-46"),
        (half(1, 2, 64), *[half(1, 2, 3, 64)] * 2, True, TypeError, "scale must be a number, got bool"),
        (half(1, 2, 64), *[half(1, 2, 3, 64)] * 2, float("nan"), ValueError, "scale must be .* got nan"),
    ],
)
def test_says_what_is_wrong(q, k, v, scale, error, message):
    with pytest.raises(error, match="^attention_decode: .*" + message):
        attention_decode(q, k, v, scale=scale)


def test_nothing_is_launched_for_nothing():
    assert attention_decode(half(0, 4, 64), *[half(0, 2, 5, 64)] * 2).shape == (0, 4, 64)
    empty = attention_decode(half(2, 4, 1, 64), *[half(2, 2, 0, 64)] * 2)
    assert torch.equal(empty, half(2, 4, 1, 64) * 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 4 * 16*32*8192*128; (2 * 16*8*8192 + 2 * 16*32) * 128 * 2
        ("bf16-16x32_8x8192x128", Work(flops=2147483648, bytes=537133056, dtype="bfloat16")),
        # 4 * 1*8*449*128; (2 * 449 + 2 * 8) * 128 * 2
        ("fp16-1x8_1x449x128", Work(flops=1839104, bytes=233984, dtype="float16")),
        # The rest of a cache is not read: 4 * 2*4*321*64; (2 * 2*2*321 + 2 * 2*4) * 64 * 2
        ("bf16-2x4_2x321x64-cache", Work(flops=657408, bytes=330752, dtype="bfloat16")),
    ],
)
def test_work_equals_what_a_hand_computes(name, expected):
    assert SPEC.work_of(case_of(name)) == expected


def test_sums_are_over_keys_or_over_dimensions():
    assert SPEC.reduction_of(case_of("bf16-1x12_1x1000x64")) == 1000
    assert SPEC.reduction_of(case_of("fp16-2x4_2x1x128")) == 128


@pytest.mark.parametrize("scale", [None, 0.7])
def test_reference_is_torchs_attention(scale):
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 6, 1, 8), *[(2, 2, 9, 8)] * 2))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
    torch.testing.assert_close(SPEC.reference(q, k, v, scale=scale), expected)
    torch.testing.assert_close(SPEC.reference(q[:, :, 0], k, v, scale=scale), expected[:, :, 0])


@pytest.mark.parametrize(
    ("config", "splits"),
    [
        # All keys in one block, whose loop then does not begin and end with the same tile.
        (AttentionDecodeConfig(tile_n=32, part_cost=1e9), 1),
        # Five tiles in parts of two: the last one is shorter, and its only tile is not full.
        (AttentionDecodeConfig(tile_n=32, part_cost=0.5), 3),
        (AttentionDecodeConfig(tile_n=32, part_cost=0.5, dependent_merge=False), 3),
        (AttentionDecodeConfig(tile_n=32, keys_first=False), 5),
        (AttentionDecodeConfig(tile_n=32, small_tma=False), 5),
        (AttentionDecodeConfig(tile_n=128, keys_first=False, latency=None, num_worker_warps=None), 2),
    ],
)
def test_any_configuration_gives_the_same(monkeypatch, config, splits):
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape).half() for shape in ((1, 8, 64), *[(1, 2, 150, 64)] * 2))
    merged: list[int] = []

    def merge(parts, lse, o, **options):
        merged.append(parts.shape[2])
        merge_parts(parts, lse, o, **options)

    monkeypatch.setattr(module, "merge_parts", merge)
    with interpret("sm_90"):
        o = attention_decode(q, k, v, config=config)
    assert merged == ([splits] if splits > 1 else [])
    expected = SPEC.reference(q.double(), k.double(), v.double())
    torch.testing.assert_close(o.double(), expected, atol=2e-3, rtol=2e-3)


def test_keys_beyond_the_last_are_never_seen():
    """The tile of the last key reaches into the unused part of a cache, whatever lies there."""
    torch.manual_seed(0)
    q, cache = torch.randn(1, 4, 64).half(), torch.randn(2, 1, 1, 128, 64).half()
    cache[..., 70:, :] = float("nan")
    k, v = cache[..., :70, :]
    with interpret("sm_90"):
        o = attention_decode(q, k, v)
    torch.testing.assert_close(
        o.double(), SPEC.reference(q.double(), k.double(), v.double()), atol=2e-3, rtol=2e-3
    )


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "sm_999"])
def test_every_architecture_has_a_configuration(arch):
    asked = itertools.product([1, 128, 4096, 1_000_000], [0.01, 0.95, 10], [64, 256])
    for keys, heads_per_sm, head_dim in asked:
        config = choose_config(arch, keys=keys, heads_per_sm=heads_per_sm, head_dim=head_dim)
        assert config.tile_n > 0
        # Programmatic dependent launches came with sm_90.
        assert config.dependent_merge == (arch not in {"sm_80", "sm_86", "sm_89", "sm_999"})


@pytest.mark.parametrize(
    ("b", "n", "splits"),
    [
        (16, 2048, 1),  # 128 blocks for 132 multiprocessors
        (16, 8192, 1),
        (16, 512, 2),  # not measured
        (8, 2048, 4),
        (17, 2048, 4),
    ],
)
def test_heads_that_fill_the_gpu_once_are_not_cut(b, n, splits):
    def launch():
        q = torch.empty(b, 32, 128, device="cuda", dtype=torch.float16)
        k, v = (torch.empty(b, 8, n, 128, device="cuda", dtype=torch.float16) for _ in range(2))
        attention_decode(q, k, v)

    first, *merge = record_launches(launch, "sm_90")
    assert first.grid == (1, splits * 8, b)
    assert len(merge) == (splits > 1)
