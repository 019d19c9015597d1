"""Edges that no document settles, as an H200 has them.

Measured with `python -m research.interpreter_against_gpu` (cuda-tile 1.7.0, tileiras 13.4.92, driver
580.159.04, 2026-11-21).
"""

import math
import operator
import os
import subprocess
import sys

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import interpret
from tests.tile.interpreter.kernels_arithmetic import OPERATORS, binary, cast, product, run, unary

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("source", "target", "number", "expected"),
    [
        # To 8 bits through 16 saturated ones.
        ("bfloat16", "int8", 128.0, -128),
        ("bfloat16", "int8", 129.0, -127),
        ("float16", "int8", 128.125, -128),
        ("float32", "int8", INF, -1),
        ("float32", "int8", -INF, 0),
        ("float64", "uint8", NAN, 0),
        ("float32", "uint8", 65504.0, 224),
        ("float16", "uint8", 256.25, 0),
        ("float8_e5m2", "uint8", 320.0, 64),
        # Wider ones saturate.
        ("float32", "int16", 65504.0, 32767),
        ("float32", "int32", INF, 2147483647),
        ("float32", "int32", NAN, 0),
        # Through float16, which rounds first.
        ("int16", "float8_e5m2", 2305, 2048.0),
        ("uint16", "float8_e5m2", 2815, 3072.0),
    ],
)
def test_conversions(source, target, number, expected):
    given = torch.full((8,), number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
    with interpret("sm_90"):
        results = run(cast(getattr(ct, target)), [given.to(getattr(torch, source))], getattr(torch, target))
    assert results.double().tolist() == [expected] * 8


@pytest.mark.parametrize(
    ("name", "dtype", "lhs", "rhs", "expected"),
    [
        ("cdiv", "int32", 1, 0, 0),
        ("cdiv", "uint16", 0, 0, 0),
        ("floordiv", "int32", -1, 0, -2),
        ("mod", "int32", 0, 0, -1),
        ("mod", "uint8", 0, 0, 255),
        # A count has 32 bits.
        ("shl", "int64", 1, -(2**63), 1),
        ("shl", "int64", 1, -(2**63) + 1, 2),
        ("shr", "int64", 2, -(2**63), 2),
        # The quotient overflows, the rest does not.
        ("mod", "bfloat16", 2.5, 2.0**-127, 0.0),
        ("mod", "float32", 1.0, 2.0**-149, 0.0),
        ("mod", "float64", -8.876732601417982e307, -0.03062875854300201, -0.024284154008266334),
    ],
)
def test_division_by_zero_and_by_little(name, dtype, lhs, rhs, expected):
    function = ct.cdiv if name == "cdiv" else OPERATORS[name]
    left, right = (torch.tensor([value] * 16, dtype=getattr(torch, dtype)) for value in (lhs, rhs))
    with interpret("sm_90"):
        results = run(binary(function), [left, right])
    assert results.tolist() == [expected] * 16


@pytest.mark.parametrize("function", [ct.maximum, ct.minimum], ids=["maximum", "minimum"])
@pytest.mark.parametrize(
    ("dtype", "bits", "word"), [("bfloat16", 0x7F81, "int16"), ("float32", 0x7F800001, "int32")]
)
def test_of_a_signalling_nan_and_a_number_the_number_is_kept(function, dtype, bits, word):
    nans = torch.full((8,), bits, dtype=getattr(torch, word)).view(getattr(torch, dtype))
    with interpret("sm_90"):
        assert run(binary(function), [nans, torch.full_like(nans, -0.5)]).tolist() == [-0.5] * 8
        assert run(binary(function), [torch.full_like(nans, -0.5), nans]).tolist() == [-0.5] * 8


@pytest.mark.parametrize("function", [ct.add, ct.sub, ct.mul, ct.truediv, ct.maximum, ct.log, ct.sqrt])
@pytest.mark.parametrize(
    ("dtype", "word", "canonical"),
    [("float16", "int16", 0x7FFF), ("bfloat16", "int16", 0x7FFF), ("float32", "int32", 0x7FFFFFFF)],
)
def test_a_nan_that_arithmetic_makes_is_canonical_in_every_lane(function, dtype, word, canonical):
    # On a CPU its sign is the processor's, and of bfloat16 its bits are those of the vector lane.
    nans = torch.full((32,), -NAN, dtype=getattr(torch, dtype))
    with interpret("sm_90"):
        one_operand = function in {ct.log, ct.sqrt}
        result = run(unary(function), [nans]) if one_operand else run(binary(function), [nans, nans])
    assert set(result.view(getattr(torch, word)).tolist()) == {canonical}


FUNCTIONS = (
    *(ct.exp, ct.exp2, ct.log, ct.log2, ct.rsqrt, ct.sqrt, ct.sin, ct.cos, ct.tan, ct.tanh, ct.sinh, ct.cosh),
)
AVX_OF_NUMPY = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
OPERATIONS = (operator.add, operator.mul, operator.truediv, operator.mod, operator.pow, ct.atan2, ct.maximum)
OF_ALL = """
import hashlib
import torch
from pytest_cutile.interpreter import interpret
from tests.tile.interpreter.test_measured_edges import FUNCTIONS, OPERATIONS, binary, in_products, run, unary

def show(result):
    print(hashlib.md5(result.view(torch.uint8).numpy().tobytes()).hexdigest())

x = (torch.arange(4096) * 7919 % 4096 - 1024) / 256
x[:2] = torch.tensor([float("inf"), float("-inf")])
with interpret("sm_90"):
    for function in FUNCTIONS:
        show(run(unary(function), [x]))
    for dtype, operations in (torch.float32, OPERATIONS), (torch.bfloat16, OPERATIONS[:3]):
        values = [x.to(dtype), x.flip(0).to(dtype)]
        for operation in operations:
            show(run(binary(operation), values))
    show(run(unary(FUNCTIONS[2]), values[:1]))  # the logarithm of negative bfloat16
    show(in_products())
"""


def in_products() -> torch.Tensor:
    out = torch.empty(128, 128)
    x = torch.sin(torch.arange(128.0 * 128).double()).float().reshape(128, 128)
    ct.launch(0, (1,), product, (x, out, 128))
    return out


@pytest.mark.slow
def test_results_do_not_depend_on_the_processor():
    """torch, numpy and MKL have code for several processors, which differ in the last bits."""
    results = set()
    for torch_has, mkl_has, numpy_lacks in (
        ("default", "SSE4_2", AVX_OF_NUMPY),
        ("avx2", "AVX2", AVX_OF_NUMPY),
        ("", "", ""),
    ):
        host = {
            "ATEN_CPU_CAPABILITY": torch_has,
            "MKL_ENABLE_INSTRUCTIONS": mkl_has,
            "NPY_DISABLE_CPU_FEATURES": numpy_lacks,
        }
        env = {**os.environ, **{name: value for name, value in host.items() if value}}
        done = subprocess.run(
            [sys.executable, "-c", OF_ALL], env=env, capture_output=True, text=True, check=True
        )
        results.add(done.stdout)
    assert len(results) == 1


@pytest.mark.parametrize(("dtype", "number"), [("bfloat16", 89.0), ("float32", 89.25), ("float64", 710.25)])
def test_hyperbolic_functions_reach_the_largest_numbers(dtype, number):
    x = torch.full((64,), number, dtype=getattr(torch, dtype))
    with interpret("sm_90"):
        for function, scalar in ((ct.cosh, math.cosh), (ct.sinh, math.sinh)):
            results = run(unary(function), [x])
            assert results.tolist() == pytest.approx([scalar(number)] * 64, rel=1e-2)
