"""Whether a baseline kernel computes what the current one does."""

from typing import Any

import pytest
import torch

from pytest_cutile.timing.measure.call import Call
from pytest_cutile.timing.measure.results import computes_otherwise


def double(x):
    return x * 2


def in_place(x):
    x.copy_(torch.arange(x.numel()))


def half_in_place(x):
    x.copy_(torch.arange(x.numel()))
    x[x.numel() // 2 :] = 0


def rounded(x):
    return (x * 2).half().float()


def off_at_one(x):
    result = x * 2
    result[0] = torch.nan
    return result


def zeros(x):
    return torch.zeros_like(x)


def nans(x):
    return x * torch.nan


def indices(x):
    return x.argsort()


def with_other_outputs(x):
    return x * 0, x


CASES: dict[str, tuple[Any, Any, bool]] = {
    "rounding": (double, rounded, False),
    "nothing": (double, zeros, True),
    "unchanged": (double, lambda x: x, True),
    "NaN": (double, nans, True),
    "of NaN": (nans, double, False),
    "one number": (double, off_at_one, False),
    "in place": (in_place, half_in_place, True),
    "the same in place": (in_place, in_place, False),
    "random": (torch.randn_like, zeros, False),
    "no numbers": (indices, lambda x: x.argsort().flip(0), False),
    "other outputs": (double, with_other_outputs, True),
    "a part": (double, lambda x: (x * 2)[:100], True),
    "no tensor": (int, float, False),
}


@pytest.mark.parametrize("what", CASES)
def test_a_launcher_that_computes_something_else_is_noticed(what):
    current, baseline, otherwise = CASES[what]
    argument = 3 if what == "no tensor" else torch.linspace(-2, 3, 200_000)
    assert computes_otherwise(Call(current, (argument,)), baseline) is otherwise


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float64])
def test_all_float_dtypes_are_compared(dtype):
    tensor = torch.ones(1, dtype=dtype)
    assert computes_otherwise(Call(lambda x: x, (tensor,)), lambda x: (x.float() * 2).to(dtype))
    assert not computes_otherwise(Call(lambda x: x, (tensor,)), lambda x: x.clone())
