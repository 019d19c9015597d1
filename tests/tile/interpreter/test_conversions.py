"""Conversions between element types against exact rounding and Python's integers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import cuda.tile as ct
import numpy as np
import pytest
import torch

from pytest_cutile.interpreter import interpret
from tests.tile.interpreter import exact
from tests.tile.interpreter.kernels_arithmetic import bitcast, cast, run, unary

SOURCES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
TARGETS: dict[str, tuple[Any, exact.Format, str]] = {
    "float64": (ct.float64, exact.F64, "RN RZ RM RP RA"),
    "float32": (ct.float32, exact.F32, "RN RZ RM RP RA"),
    "tfloat32": (ct.tfloat32, exact.TF32, "RN RZ RA"),
    "float16": (ct.float16, exact.F16, "RN RZ RM RP RA"),
    "bfloat16": (ct.bfloat16, exact.BF16, "RN RZ"),
    "float8_e4m3fn": (ct.float8_e4m3fn, exact.E4M3, "RN"),
    "float8_e5m2": (ct.float8_e5m2, exact.E5M2, "RN"),
}
NOT_ALLOWED = {("RA", "float32", torch.float64), ("RA", "tfloat32", torch.float64)} | {
    (mode, "float16", source) for mode in ("RM", "RP", "RA") for source in (torch.float64, torch.float32)
}
"""Modes that cuda-tile 1.7 rejects for a pair of types."""
CASES = [
    pytest.param(source, name, mode, id=f"{source}-{name}-{mode}".removeprefix("torch."))
    for name, (_, _, modes) in TARGETS.items()
    for mode in modes.split()
    for source in SOURCES
    if (mode, name, source) not in NOT_ALLOWED
]


def numbers_for(to: exact.Format) -> list[float]:
    """Return numbers around the representable ones: them, halfway between them, and just beside that."""
    results = [
        5e-324,
        1e308,
        3.5e38,
        1e5,
        448.0,
        464.0,
        464.1,
        480.0,
        57344.0,
        61439.0,
        61440.0,
        7e4,
        65519.9,
        65520.0,
    ]
    for exponent in (to.least_exponent - to.fraction_bits, to.least_exponent - 1, to.least_exponent, 0, 1, 5):
        quantum = 2.0 ** (max(exponent, to.least_exponent) - to.fraction_bits)
        for steps in (1, 2, 3, 5):
            parts = (0, 0.25, 0.5, 0.5 + 2.0**-20, 0.75)
            results += [2.0**exponent + (steps + part) * quantum for part in parts]
        results += [quantum / 2, quantum * 0.5000001, quantum / 4]
    return [*results, *(-x for x in results)]


@pytest.mark.parametrize(("source", "name", "mode"), CASES)
def test_floats_are_rounded_once(source: torch.dtype, name: str, mode: str) -> None:
    dtype, to, _ = TARGETS[name]
    x = torch.tensor(numbers_for(to), dtype=torch.float64).to(source)
    x = x[x.isfinite() & (x != 0)]
    with interpret("sm_100"):
        results = run(cast(dtype, getattr(ct.RoundingMode, mode)), [x], torch.float64)
    for got, value in zip(results.tolist(), x.double().tolist(), strict=True):
        want = exact.rounded(Fraction(value), to, mode)
        assert (got, math.copysign(1, got)) == (want, math.copysign(1, want)), value


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "tfloat32"])
def test_specials_stay_what_they_are(name: str) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=torch.float64)
    with interpret("sm_100"):
        results = run(cast(TARGETS[name][0]), [x], torch.float64)
    assert results[0].isnan()
    assert results[1:].tolist() == [math.inf, -math.inf, 0.0, 0.0]
    assert results.signbit().tolist()[3:] == [False, True]


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)], ids=str
)
def test_one_byte_floats_saturate_and_keep_nan(dtype: torch.dtype, largest: float) -> None:
    x = torch.tensor([math.inf, -math.inf, 1e9, -1e9, math.nan, -0.0])
    with interpret("sm_100"):
        results = run(cast(getattr(ct, str(dtype).removeprefix("torch."))), [x], dtype).float()
    assert results[:4].tolist() == [largest, -largest, largest, -largest]
    assert results[4].isnan()
    assert (results[5].item(), results[5].signbit().item()) == (0.0, True)


def test_four_bit_floats_are_the_nearest_of_their_sixteen() -> None:
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    x = torch.tensor([sign * step / 16 for step in range(130) for sign in (1, -1)])

    def nearest(value: float) -> float:
        # Of two that are equally near, the one with an even code.
        best = min(range(8), key=lambda code: (abs(values[code] - abs(value)), code % 2))
        return math.copysign(values[best], value)

    with interpret("sm_100"):
        results = run(cast(ct.float4_e2m1fn), [x], torch.float32)
    assert results.tolist() == [nearest(value) for value in x.tolist()]


@pytest.mark.parametrize("mode", ["RZ", "RP"])
def test_scales_are_powers_of_two(mode: str) -> None:
    x = torch.tensor([1.0, 1.5, 2.0**-127, 2.0**-130, 3e38, 2.0**127, 1.0000001, 0.3])

    def power(value: float) -> float:
        mantissa, exponent = math.frexp(value)
        exponent += mantissa > 0.5 and mode == "RP"
        return 2.0 ** max(-127, min(127, exponent - 1))

    with interpret("sm_100"):
        results = run(cast(ct.float8_e8m0fnu, getattr(ct.RoundingMode, mode)), [x], torch.float64)
    assert results.tolist() == [power(value) for value in x.tolist()]


INTEGERS = [getattr(torch, f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u")]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("target", INTEGERS, ids=name_of)
def test_floats_are_cut_off_to_integers(source: torch.dtype, target: torch.dtype) -> None:
    info = torch.iinfo(target)
    candidates = [
        0.0,
        -0.0,
        0.99,
        -0.99,
        1.5,
        -1.5,
        2.5,
        100.7,
        -100.7,
        float(info.max // 3),
        float(info.min // 3),
    ]
    x = torch.tensor(candidates, dtype=torch.float64).to(source)
    x = x[(x.double() > max(info.min, -(2.0**62)) - 1) & (x.double() < min(info.max, 2.0**63))]
    with interpret("sm_90"):
        results = run(cast(getattr(ct, name_of(target))), [x], target)
    assert results.tolist() == [int(value) for value in x.double().tolist()]


@pytest.mark.parametrize("target", [dtype for dtype in INTEGERS if dtype.itemsize >= 4], ids=name_of)
def test_floats_beyond_an_integer_type_become_its_ends(target: torch.dtype) -> None:
    info = torch.iinfo(target)
    x = torch.tensor([1e30, -1e30, math.inf, -math.inf])
    with interpret("sm_90"):
        results = run(cast(getattr(ct, name_of(target))), [x], target)
    assert results.tolist() == [info.max, info.min, info.max, info.min]


@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=name_of)
@pytest.mark.parametrize("target", [torch.int32, torch.uint32, torch.int64, torch.uint64], ids=name_of)
def test_nan_becomes_what_ptx_says(source: torch.dtype, target: torch.dtype) -> None:
    # PTX, `cvt`: zero, but 1 << (bits - 1) if either type is of 64 bits.
    bits = torch.iinfo(target).bits
    expected = 0 if source == torch.float32 and bits == 32 else 1 << (bits - 1)
    with interpret("sm_90"):
        results = run(cast(getattr(ct, name_of(target))), [torch.tensor([math.nan], dtype=source)], target)
    assert results.item() % 2**bits == expected


@pytest.mark.parametrize("source", INTEGERS, ids=name_of)
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_integers_are_rounded_once_to_floats(source: torch.dtype, name: str) -> None:
    info = torch.iinfo(source)
    numbers = {0, 1, 5, info.max, info.min, info.max - 1, info.max // 3, info.min + 1, info.min // 3}
    for bits in (8, 11, 24, 53):  # halfway between two floats, and beside it
        for shift in (1, 8, 10, 39):
            middle = (1 << bits + shift) + (1 << shift - 1)
            numbers |= {sign * (middle + beside) for sign in (1, -1) for beside in (-1, 0, 1)}
    rows = sorted(number for number in numbers if info.min <= number <= info.max)
    dtype, to, _ = TARGETS[name]
    with interpret("sm_90"):
        results = run(cast(dtype), [torch.tensor(rows, dtype=source)], getattr(torch, name))
    assert results.double().tolist() == [exact.rounded(Fraction(n), to, "RN") if n else 0.0 for n in rows]


@pytest.mark.parametrize("source", INTEGERS, ids=name_of)
@pytest.mark.parametrize("target", INTEGERS, ids=name_of)
def test_integers_are_widened_by_their_sign_and_cut_off(source: torch.dtype, target: torch.dtype) -> None:
    info = torch.iinfo(source)
    rows = [0, 1, info.max, info.min, info.max // 2, info.max - 100]
    bits = torch.iinfo(target).bits
    with interpret("sm_90"):
        results = run(cast(getattr(ct, name_of(target))), [torch.tensor(rows, dtype=source)], target)
    assert [number % 2**bits for number in results.tolist()] == [number % 2**bits for number in rows]


@pytest.mark.parametrize("source", [torch.float32, torch.int8, torch.uint64], ids=name_of)
def test_whatever_is_not_zero_is_true(source: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 100]).to(source)
    if source.is_floating_point:
        x = torch.tensor([0.0, -0.0, 0.25, 2.0**-149, -3.0, math.inf])
    with interpret("sm_90"):
        results = run(cast(ct.bool_), [x], torch.bool)
    assert results.tolist() == [bool(value) for value in x.tolist()]


def test_true_is_one_in_every_type() -> None:
    x = torch.tensor([True, False])
    for target in (*INTEGERS, torch.float32):
        with interpret("sm_90"):
            results = run(cast(getattr(ct, name_of(target))), [x], target)
        assert results.tolist() == [1, 0]


def test_bits_stay_when_they_are_read_as_another_type() -> None:
    x = torch.tensor([1.5, -0.0, math.inf, 2.0**-149])
    with interpret("sm_90"):
        results = run(bitcast(ct.int32), [x], torch.int32)
    assert results.tolist() == np.frombuffer(x.numpy().tobytes(), dtype=np.int32).tolist()


def test_bytes_hold_two_four_bit_floats_each_the_lower_first() -> None:
    codes = {0.0: 0, 0.5: 1, 1.0: 2, 1.5: 3, 2.0: 4, 3.0: 5, 4.0: 6, 6.0: 7}
    data = torch.arange(256, dtype=torch.int16).to(torch.uint8)

    def unpacked(x):
        return ct.astype(ct.unpack_from_bytes(x, ct.float4_e2m1fn), ct.float32)

    def both(x):
        return ct.pack_to_bytes(ct.unpack_from_bytes(x, ct.float4_e2m1fn))

    @ct.kernel
    def kernel(x, out):
        ct.store(out, (0,), unpacked(ct.load(x, (0,), (256,))))

    with interpret("sm_100"):
        values = torch.empty(512, device="cuda")
        ct.launch(torch.cuda.current_stream(), (1,), kernel, (data.cuda(), values))
        again = run(unary(both), [data])
    results = [codes[abs(v)] + (8 if math.copysign(1, v) < 0 else 0) for v in values.tolist()]
    assert [low + 16 * high for low, high in zip(results[0::2], results[1::2], strict=True)] == list(
        range(256)
    )
    assert again.tolist() == data.tolist()
