"""What configurations refuse when they are made, instead of what a kernel would make of it."""

import dataclasses
import importlib
import itertools
import math
import pkgutil
from typing import Any

import pytest

import kernels
from kernels._attention import AttentionConfig
from kernels._configs import vary
from kernels._gemm import GemmConfig
from kernels.attention_decode import AttentionDecodeConfig
from kernels.dropout import DropoutConfig
from kernels.group_gemm import GroupGemmConfig
from kernels.matmul import MatmulConfig
from kernels.mla_decoding import MlaDecodingConfig
from kernels.moe import DEFAULT_CONFIG as MOE
from kernels.moe import MoeConfig
from kernels.moe_routing import RoutingConfig
from kernels.rms_norm import RmsNormConfig
from kernels.rms_norm_backward import RmsNormBackwardConfig
from kernels.rope import RopeConfig
from kernels.softmax import SoftmaxConfig
from kernels.swiglu import SwigluConfig

TILES: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "tile_k": 64}
SOUND: list[Any] = [
    GemmConfig(**TILES),
    MatmulConfig(**TILES, copy_tile=64),
    GroupGemmConfig(**TILES, copy_tile=64, tails=(GemmConfig(**TILES),)),
    AttentionConfig(tile_m=64, tile_n=64),
    AttentionDecodeConfig(),
    MlaDecodingConfig(),
    MOE,
    RoutingConfig(),
    SoftmaxConfig(),
    RmsNormConfig(),
    RmsNormBackwardConfig(),
    SwigluConfig(),
    DropoutConfig(),
    RopeConfig(),
]
LIMITS = {"min_k", "max_row"}
"""Fields that are compared with a size, and nothing else."""


def fields_of(config, *kinds):
    return [field.name for field in dataclasses.fields(config) if field.type in kinds]


def is_tile(name):
    others = {"chunk", "copy_tile", "align_pairs", "route_elements", "row_columns"}
    return name.startswith("tile_") or name in others


def numbers_of(config):
    return fields_of(config, "int", "int | None")


by_config = pytest.mark.parametrize("config", SOUND, ids=[type(config).__name__ for config in SOUND])


def test_all_configurations_are_tested():
    classes = set()
    for module in pkgutil.iter_modules(kernels.__path__):
        for name, value in vars(importlib.import_module(f"kernels.{module.name}")).items():
            if name.endswith("Config") and isinstance(value, type):
                classes.add(value)
    assert {type(config) for config in SOUND} == classes
    assert {field.type for config in SOUND for field in dataclasses.fields(config)} == {
        "int",
        "int | None",
        "bool",
        "float",
        "GemmConfig",
        "tuple[GemmConfig, ...]",
    }


@by_config
def test_numbers_are_positive(config):
    for name, value in itertools.product(numbers_of(config), [0, -16]):
        if name in LIMITS and value == 0:
            dataclasses.replace(config, **{name: value})
            continue
        what = "a power of two" if is_tile(name) else f"at least {0 if name in LIMITS else 1}"
        message = rf"^{type(config).__name__}: {name} must be {what}.*, got {value}$"
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(config, **{name: value})


@by_config
def test_numbers_are_integers(config):
    for name, value in itertools.product(numbers_of(config), [64.0, "64", True]):
        message = rf"^{type(config).__name__}: {name} must be an integer, got {type(value).__name__}$"
        with pytest.raises(TypeError, match=message):
            dataclasses.replace(config, **{name: value})


@by_config
def test_sides_of_tiles_are_powers_of_two(config):
    for name in numbers_of(config):
        if not is_tile(name):
            dataclasses.replace(config, **{name: 3})
            continue
        message = rf"^{type(config).__name__}: {name} must be a power of two, got 48$"
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(config, **{name: 48})


@by_config
def test_what_may_be_none_may_be_none(config):
    optional = fields_of(config, "int | None")
    for name in optional:
        dataclasses.replace(config, **{name: None})
    for name in {*numbers_of(config)} - {*optional}:
        with pytest.raises(TypeError, match=f": {name} must be an integer, got NoneType$"):
            dataclasses.replace(config, **{name: None})


OTHERS = [(config, name) for config in SOUND for name in fields_of(config, "bool", "float")]


@pytest.mark.parametrize(
    ("config", "name"), OTHERS, ids=[f"{type(config).__name__}-{name}" for config, name in OTHERS]
)
def test_flags_are_bools_and_costs_are_numbers(config, name):
    flag = name in fields_of(config, "bool")
    what = "a bool" if flag else "a number"
    with pytest.raises(TypeError, match=rf"^{type(config).__name__}: {name} must be {what}, got str$"):
        dataclasses.replace(config, **{name: "no"})
    if flag:
        dataclasses.replace(config, **{name: True})
    for value in () if flag else (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf": {name} must be finite and not negative, got {value}$"):
            dataclasses.replace(config, **{name: value})


def test_latencies_are_as_cuda_tile_takes_them():
    latencies = [
        (config, name) for config in SOUND for name in numbers_of(config) if name.startswith("latency")
    ]
    assert latencies
    for config, name in latencies:
        dataclasses.replace(config, **{name: 10})
        with pytest.raises(ValueError, match=rf": {name} must be at most 10, got 11$"):
            dataclasses.replace(config, **{name: 11})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DropoutConfig(tile_elements=2),
            "DropoutConfig: tile_elements must be .* of at least 4, got 2",
        ),
        (lambda: SwigluConfig(tile_bytes=2), "SwigluConfig: tile_bytes must be .* of at least 4, got 2"),
        (lambda: MlaDecodingConfig(tile_h=8), "MlaDecodingConfig: tile_h must be .* of at least 16, got 8"),
    ],
)
def test_the_smallest_tiles(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


def test_an_integer_of_numpy_is_an_integer():
    numpy = pytest.importorskip("numpy")
    made = GemmConfig(**TILES | {"tile_m": numpy.int64(128)}).tile_m
    assert (made, type(made)) == (128, int)
    with pytest.raises(ValueError, match=r"^GemmConfig: tile_m must be a power of two, got 48$"):
        GemmConfig(**TILES | {"tile_m": numpy.int64(48)})


def test_a_configuration_of_two_checks_both():
    with pytest.raises(ValueError, match=r"^GemmConfig: tile_n must be a power of two, got 24$"):
        MoeConfig(gate_up=dataclasses.replace(MOE.gate_up, tile_n=24), down=MOE.down)


@pytest.mark.parametrize("name", ["gate_up", "down"])
def test_a_configuration_of_two_needs_both(name):
    nothing: dict[str, Any] = {name: None}
    with pytest.raises(TypeError, match=rf"^MoeConfig: {name} must be a GemmConfig, got NoneType$"):
        dataclasses.replace(MOE, **nothing)


def test_a_tensor_is_no_integer():
    """To read one would wait for the GPU."""
    torch = pytest.importorskip("torch")
    for value in (torch.tensor(64), torch.tensor([64, 64]).numpy()):
        with pytest.raises(TypeError, match=r"^GemmConfig: tile_m must be an integer, got (Tensor|ndarray)$"):
            GemmConfig(**TILES | {"tile_m": value})


def test_a_configuration_of_a_user_is_checked_for_what_it_shares():
    """Also where annotations are evaluated, as in this file."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(GemmConfig):
        extra: int = 1
        name: str = ""

    assert Mine(**TILES, extra=2, name="mine").extra == 2
    with pytest.raises(ValueError, match=r"^Mine: extra must be at least 1, got 0$"):
        Mine(**TILES, extra=0)


@pytest.mark.parametrize(
    ("tails", "message"),
    [
        (GemmConfig(**TILES), "tails must be a tuple of GemmConfig, got GemmConfig"),
        ([GemmConfig(**TILES)], "tails must be a tuple of GemmConfig, got list"),
        ((GemmConfig(**TILES), RoutingConfig()), r"tails\[1\] must be a GemmConfig, got RoutingConfig"),
        ((GemmConfig,), r"tails\[0\] must be a GemmConfig, got type"),
    ],
)
def test_tails_are_cut_as_products_are(tails, message):
    with pytest.raises(TypeError, match=f"^GroupGemmConfig: {message}$"):
        GroupGemmConfig(**TILES, tails=tails)
    assert len(GroupGemmConfig(**TILES, tails=(GroupGemmConfig(**TILES), GemmConfig(**TILES))).tails) == 2


def test_variants_are_made_once_and_checked():
    config = AttentionConfig(tile_m=64, tile_n=64)
    assert vary(config, tile_n=32) == AttentionConfig(tile_m=64, tile_n=32)
    assert vary(config, tile_n=32) is vary(AttentionConfig(tile_m=64, tile_n=64), tile_n=32)
    with pytest.raises(ValueError, match=r"^AttentionConfig: tile_n must be a power of two, got 24$"):
        vary(config, tile_n=24)
