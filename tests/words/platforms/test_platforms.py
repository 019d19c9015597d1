"""The table of platforms: its inner consistency, look-ups and the names made from it."""

import dataclasses
import math
import re
from collections import Counter

import pytest

from pytest_cutile.words.platforms.data import Platform, hardware
from pytest_cutile.words.platforms.lookup import find_platform, gpu_slug, representative

PLATFORMS = hardware().platforms

DTYPES = {
    "float16",
    "bfloat16",
    "tfloat32",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "float32",
    "float64",
}
ARCHITECTURES = [
    "sm_80",
    "sm_86",
    "sm_87",
    "sm_89",
    "sm_90",
    "sm_100",
    "sm_103",
    "sm_110",
    "sm_120",
    "sm_121",
]

each_platform = pytest.mark.parametrize("platform", PLATFORMS, ids=lambda p: gpu_slug(p.names[0]))


def platform_of(gpu_name: str) -> Platform:
    platform = find_platform(gpu_name)
    assert platform is not None
    return platform


@each_platform
def test_says_where_its_figures_come_from(platform: Platform) -> None:
    assert re.search(r"[A-Z].*, https://\S+$", platform.source), platform.source


@each_platform
def test_figures_are_plausible_quantities(platform: Platform) -> None:
    assert re.fullmatch(r"sm_\d{2,3}", platform.arch)
    assert 1 <= platform.sm_count <= 256
    assert 50 < platform.memory_bandwidth_gb_s < 20_000
    assert set(platform.dense_tflops) <= DTYPES
    assert all(0 < rate < 20_000 for rate in platform.dense_tflops.values())


@each_platform
def test_narrower_operands_are_never_slower(platform: Platform) -> None:
    rate = platform.dense_tflops
    fp8 = rate.get("float8_e4m3fn", math.inf)
    assert fp8 == rate.get("float8_e5m2", math.inf)
    assert fp8 >= rate["float16"] >= rate["bfloat16"] >= rate["tfloat32"] >= rate["float32"]


@each_platform
def test_rates_at_the_boost_clock_are_whole_tensor_cores(platform: Platform) -> None:
    # An SM multiplies a power of two of fp16 values per clock: a mistyped rate, SM count or clock misses it.
    if platform.boost_clock_mhz is None:
        pytest.skip("no published clock")
    flops_per_clock_per_sm = (
        platform.dense_tflops["float16"] * 1e6 / (platform.sm_count * platform.boost_clock_mhz)
    )
    nearest = 2 ** round(math.log2(flops_per_clock_per_sm))
    assert flops_per_clock_per_sm == pytest.approx(nearest, rel=0.01)


@each_platform
def test_cannot_be_changed(platform: Platform) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        platform.sm_count = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        platform.dense_tflops["float16"] = 1.0  # type: ignore[index]


def test_no_name_is_ambiguous() -> None:
    names = Counter(name.casefold() for platform in PLATFORMS for name in platform.names)
    assert [name for name, count in names.items() if count > 1] == []
    slugs = Counter(gpu_slug(name) for platform in PLATFORMS for name in platform.names)
    assert [slug for slug, count in slugs.items() if count > 1] == []


@each_platform
def test_is_found_by_each_of_its_names(platform: Platform) -> None:
    for name in platform.names:
        assert find_platform(name) is platform
        assert find_platform(f" {name.upper()} ") is platform


@pytest.mark.parametrize(
    "gpu_name",
    [
        "",
        "NVIDIA",
        "NVIDIA H20",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM-64GB",
        "AMD Instinct MI300X",
    ],
)
def test_does_not_take_one_gpu_for_another(gpu_name: str) -> None:
    assert find_platform(gpu_name) is None


def test_knows_the_limits_of_the_gpus_that_the_anchors_were_measured_on() -> None:
    h200 = platform_of("NVIDIA H200")
    assert (h200.arch, h200.sm_count, h200.memory_bandwidth_gb_s) == ("sm_90", 132, 4800)
    assert round(h200.dense_tflops["float16"]) == 989
    assert round(h200.dense_tflops["float8_e4m3fn"]) == 1979
    gb10 = platform_of("NVIDIA GB10")
    assert (gb10.arch, gb10.sm_count, gb10.memory_bandwidth_gb_s) == ("sm_121", 48, 273)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_architecture_has_a_representative(arch: str) -> None:
    platform = representative(arch)
    assert platform is not None
    assert platform.arch == arch
    assert platform.sm_count > 0


def test_an_unknown_architecture_has_none() -> None:
    assert representative("sm_75") is None


def test_limit_grows_with_the_clock_and_never_shrinks() -> None:
    h200 = platform_of("NVIDIA H200")
    rated = h200.dense_tflops["float16"]
    assert h200.tflops_limit("float16") == rated
    assert h200.tflops_limit("float16", max_sm_clock_mhz=1200) == rated
    assert h200.tflops_limit("float16", max_sm_clock_mhz=1980) == pytest.approx(rated * 1980 / 1830)


def test_limit_is_unknown_for_a_dtype_without_a_figure() -> None:
    assert platform_of("NVIDIA H200").tflops_limit("float4_e2m1fn") is None
    assert platform_of("NVIDIA A100-SXM4-80GB").tflops_limit("float8_e5m2", max_sm_clock_mhz=1410) is None


def test_limit_stays_as_published_where_no_clock_is() -> None:
    assert platform_of("NVIDIA GB10").tflops_limit("float16", max_sm_clock_mhz=3003) == 250


@pytest.mark.parametrize(
    ("gpu_name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ("Orin (nvgpu)", "orin-nvgpu"),
        ("  NVIDIA   GB10 ", "nvidia-gb10"),
    ],
)
def test_slug(gpu_name: str, slug: str) -> None:
    assert gpu_slug(gpu_name) == slug
    assert gpu_slug(slug) == slug


def test_slug_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="'--'"):
        gpu_slug("--")
