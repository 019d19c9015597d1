import subprocess
import sys

import pytest
import torch

from pytest_cutile.gpu.dtypes import DTYPE_NAMES, resolve_dtype
from pytest_cutile.gpu.tensors import make_tensor, seed_from


def make(shape, dtype, **options):
    return make_tensor(shape, dtype, **{"device": "cpu", "seed": 7, **options})


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("dist", ["normal", "uniform", "integers", "zeros", "ones"])
def test_every_dtype_and_distribution(dtype, dist):
    x = make((33, 20), dtype, dist=dist)
    assert x.dtype == getattr(torch, dtype)
    assert x.shape == (33, 20)
    assert x.is_contiguous()
    values = x.double()
    assert bool(values.isfinite().all())
    if dist in ("zeros", "ones"):
        assert bool((values == (dist == "ones")).all())
    else:
        assert values.std() > 0.3
    again = make((33, 20), dtype, dist=dist)
    assert torch.equal(again.double(), values)


def test_another_seed_gives_other_values():
    assert not torch.equal(make(100, "float32"), make(100, "float32", seed=8))


def test_normal_and_uniform_have_the_documented_moments():
    normal = make(100_000, "float32")
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    uniform = make(100_000, "float32", dist="uniform")
    assert uniform.min() >= -1
    assert uniform.max() < 1
    assert abs(uniform.std() - 3**-0.5) < 0.01
    ranged = make(100_000, "float32", dist="uniform", low=2, high=5)
    assert ranged.min() >= 2
    assert ranged.max() < 5


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_integers_are_exact_and_reach_both_ends(dtype):
    x = make(2000, dtype, dist="integers").double()
    assert sorted(x.unique().tolist()) == list(range(-8, 9))


def test_integers_follow_low_and_high():
    assert make(1000, "int32", low=3, high=6).unique().tolist() == [3, 4, 5]
    assert make(1000, "uint8").unique().tolist() == list(range(9))
    assert make(1000, "bool").unique().tolist() == [False, True]


def test_fp8_saturates():
    x = make(1000, "float8_e4m3fn", dist="uniform", low=-1e4, high=1e4).double()
    assert x.min() == -448
    assert x.max() == 448


@pytest.mark.parametrize(
    ("alias", "dtype"),
    [
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
        ("torch.float32", torch.float32),
        ("half", torch.float16),
    ],
)
def test_names_of_dtypes(alias, dtype):
    assert resolve_dtype(alias) == dtype
    assert make(3, alias).dtype == dtype


def test_strides_lay_the_tensor_out_in_a_poisoned_buffer():
    x = make((4, 3), "float16", strides=(1, 8))
    assert x.stride() == (1, 8)
    assert torch.equal(x, make((4, 3), "float16"))
    buffer = x.as_strided((20,), (1,))
    assert buffer.isnan().sum() == 8
    repeated = make((4, 3), "float16", strides=(0, 1))
    assert torch.equal(repeated[0], repeated[3])
    assert repeated.untyped_storage().nbytes() == 6


@pytest.mark.parametrize("strides", [None, (1, 8)])
def test_meta_tensors_have_a_layout_and_no_values(strides):
    x = make_tensor((4, 3), "bf16", device="meta", seed=0, strides=strides)
    assert x.is_meta
    assert x.shape == (4, 3)
    assert x.stride() == (strides or (3, 1))
    assert x.dtype == torch.bfloat16


def test_scalars_empty_and_grad():
    assert make((), "float32").shape == ()
    assert make((0, 4), "float32", strides=(4, 1)).numel() == 0
    assert make(4, "float32", requires_grad=True).requires_grad


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("4", "float32"), {}, TypeError, "shape must be an int or a sequence of ints, got '4'"),
        (((4, 2.0), "float32"), {}, TypeError, "shape must hold ints"),
        (((4, -1), "float32"), {}, ValueError, "must not be negative"),
        ((4, "float33"), {}, ValueError, "'float33' is no dtype of a cuTile array"),
        ((4, torch.complex64), {}, ValueError, "is no dtype of a cuTile array"),
        ((4, 32), {}, TypeError, "dtype must be a torch.dtype or its name"),
        ((4, "float32"), {"dist": "cauchy"}, ValueError, "dist must be one of normal"),
        ((4, "float32"), {"low": 0.0}, ValueError, 'low and high go with dist="uniform"'),
        ((4, "float32"), {"dist": "uniform", "low": 2.0}, ValueError, "low must be below high"),
        ((4, "int32"), {"low": 0.5}, ValueError, "whole numbers"),
        ((4, "uint8"), {"low": -1}, ValueError, "uint8 does not hold every integer"),
        ((4, "float8_e5m2"), {"dist": "integers", "high": 20}, ValueError, "exactly: keep them in [-8, 8]"),
        (((4, 4), "float32"), {"strides": (4,)}, ValueError, "different lengths"),
        (((4, 4), "float32"), {"strides": (2, 1)}, ValueError, "overlap"),
        (((4, 4), "float32"), {"strides": (-4, 1)}, ValueError, "must not be negative"),
        ((4, "int32"), {"requires_grad": True}, ValueError, "requires_grad needs a floating-point dtype"),
    ],
)
def test_errors_name_what_is_wrong(arguments, options, error, message):
    with pytest.raises(error) as caught:
        make(*arguments, **options)
    assert message in str(caught.value)


def test_seeds_are_the_same_in_every_process():
    assert seed_from("tests/test_x.py::test[a]") == 387854461058118373
    assert seed_from("a") != seed_from("b")
    assert 0 <= seed_from("") < 2**63


def test_importing_the_check_does_not_import_torch():
    code = "import sys, pytest_cutile.gpu.check, pytest_cutile.gpu.tensors; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
