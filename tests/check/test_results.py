"""What a result may be made of: tensors, and what stands beside them; their dtypes."""

import dataclasses
import math
from typing import NamedTuple

import pytest
import torch

from pytest_cutile.check.run import ReferenceFailed, UncheckableOutput, check_kernel
from tests.check.checking import failure, tensor


class Pair(NamedTuple):
    """A result as some launchers return it."""

    values: torch.Tensor
    scale: float


@dataclasses.dataclass
class Hidden:
    """Nothing in which tensors are looked for."""

    values: torch.Tensor


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (lambda x: (x, 3.0), lambda x: (x, 4.0)),
        (lambda x: {"y": x, "n": 1}, lambda x: {"y": x, "n": 2}),
        (lambda x: {"y": x, "n": 1}, lambda x: {"y": x, "m": 1}),
        (lambda x: (x, [None, "a"]), lambda x: (x, [None, "b"])),
        (lambda x: Pair(x, 1.0), lambda x: Pair(x, math.nan)),
        (lambda x: (x, 1.0), lambda x: (x,)),
        (lambda x: (x,), lambda x: (x, None)),
        (lambda x: (x, x.shape), lambda x: (x, x[1:].shape)),
        (lambda x: (x, 1.0), lambda x: (x, x.sum())),
    ],
)
def test_what_is_no_tensor_has_to_be_equal(got, expected):
    x = tensor(4, 5)

    def returning(function):
        return lambda x: function(x.clone())

    check_kernel(returning(got), x, reference=got)
    assert "differs from its reference" in failure(returning(got), x, reference=expected)


def test_a_number_that_differs_is_named():
    text = failure(lambda x: (x * 1, 3.0), tensor(4), reference=lambda x: (x, 4.0))
    assert "output[1] is 3.0, expected 4.0" in text
    text = failure(lambda x: {"y": x * 1, "n": 1}, tensor(4), reference=lambda x: {"y": x})
    assert "output['n'] is 1, expected nothing" in text


def test_not_a_number_is_not_a_number():
    check_kernel(lambda x: (x * 1, math.nan), tensor(4), reference=lambda x: (x, math.nan))


def test_what_nobody_can_look_into_is_refused():
    def hiding(x):
        return x * 1, Hidden(x * 7)

    x = tensor(4)
    text = failure(hiding, x, reference=hiding, error=UncheckableOutput)
    assert "returned output[1] as Hidden, which the check cannot look into" in text
    text = failure(lambda x: (x * 1, 2), x, reference=hiding, error=ReferenceFailed)
    assert "the reference returned output[1] as Hidden" in text
    failure(lambda x: (x * 1, {x}), x, reference=lambda x: (x, {x}), error=UncheckableOutput)
