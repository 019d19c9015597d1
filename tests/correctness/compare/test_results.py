"""What a result may be made of: tensors, and what stands beside them; their dtypes."""

import dataclasses
import math
from typing import Any, NamedTuple

import pytest
import torch

from pytest_cutile.correctness.check import ReferenceFailed, UncheckableOutput, check_kernel
from tests.correctness.checking import failure, tensor


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
    assert "differs from its" in failure(returning(got), x, reference=expected)


def test_a_number_that_differs_is_named():
    text = failure(lambda x: (x * 1, 3), tensor(4), reference=lambda x: (x, 4))
    assert "output[1] is 3, expected 4" in text
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


FLOAT64 = torch.linspace(0.1, 3, 100, dtype=torch.float64)


@pytest.mark.parametrize("x", [FLOAT64, FLOAT64.to(torch.complex128)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_64_bits_are_not_silently_narrowed(x, dtype):
    def double(x):
        return torch.view_as_real(x * 2.1) if x.is_complex() else x * 2.1

    def narrowing(x):
        return double(x).to(getattr(torch, dtype))

    text = failure(narrowing, x, reference=double)
    assert f"in dtype: output is {dtype}, floating inputs are 64 bits wide" in text
    assert f'precision="{dtype}"' in text
    options: list[dict[str, Any]] = [{"mid": dtype}, {"precision": dtype}, {"rtol": 1e-2}]
    for stated in options:
        assert check_kernel(narrowing, x, reference=double, **stated).outputs.startswith(f"{dtype} [100")
    check_kernel(double, x, reference=double)


def test_other_outputs_may_be_narrower_than_inputs():
    single = FLOAT64.float()
    report = check_kernel(lambda x, s: (x * s).half(), single, single, reference=lambda x, s: x * s)
    assert report.outputs == "float16 [100]"
    ids = torch.arange(100)
    check_kernel(lambda x: (x.float(), x.int()), ids, reference=lambda x: (x.double(), x))
    check_kernel(lambda x: x > 1, FLOAT64, reference=lambda x: x > 1)


@pytest.mark.parametrize(
    ("got", "expected", "equal"),
    [
        (torch.tensor([2**64 - 1, 5], dtype=torch.uint64), torch.tensor([-1, 5]), False),
        (torch.tensor([-1, 5]), torch.tensor([2**64 - 1, 5], dtype=torch.uint64), False),
        (torch.tensor([2**63 - 1], dtype=torch.uint64), torch.tensor([2**63 - 1]), True),
        (torch.tensor([255], dtype=torch.uint8), torch.tensor([-1], dtype=torch.int8), False),
        (torch.tensor([7], dtype=torch.int32), torch.tensor([7 + 2**32]), False),
    ],
)
def test_integers_are_compared_by_value_whatever_their_width_and_sign(got, expected, equal):
    x = tensor(2)
    if equal:
        check_kernel(lambda _: got.clone(), x, reference=lambda _: expected)
    else:
        text = failure(lambda _: got.clone(), x, reference=lambda _: expected)
        assert f"got {got[0].item()}, expected {expected[0].item()}" in text


def test_floats_are_held_to_what_a_float32_tensor_is():
    x = tensor(64, 1000, dtype="float32")
    check_kernel(
        lambda x: (x * 2, x.sum().item()), x, reference=lambda x: (x * 2, x.sum().item()), reduction=64_000
    )
    text = failure(
        lambda x: (x * 2, x.sum().item() * 1.001),
        x,
        reference=lambda x: (x * 2, float(x.sum())),
        reduction=64_000,
    )
    assert "output[1] (float32 []): 1 of 1 elements" in text


def test_floats_of_float64_have_to_be_equal():
    x = tensor(64, dtype="float64")
    text = failure(lambda x: (x * 2, 1.0), x, reference=lambda x: (x * 2, 1.0 + 2**-52))
    assert "output[1] is 1.0, expected 1.0000000000000002" in text


@pytest.mark.parametrize("scale", [torch.tensor(2.0), torch.tensor([2.0]).half()])
def test_a_single_number_does_not_make_float64_narrow(scale):
    x = tensor(64, 10, dtype="float64")
    text = failure(lambda x, s: (x * s).float(), x, scale, reference=lambda x, s: x * s)
    assert "output is float32, floating inputs are 64 bits wide" in text
    check_kernel(lambda x, s: x * s, x, scale, reference=lambda x, s: x * s)


def test_nor_does_the_output_that_is_written():
    x = tensor(64, 10, dtype="float64")
    text = failure(lambda x, out: out.copy_(x), x, x.float(), reference=lambda x, _: x, writes=["out"])
    assert "output is float32" in text


def test_a_reference_that_draws_random_numbers_is_an_error():
    """They would be its noise, and explain zeros."""
    x = tensor(64, 256, dtype="bfloat16")

    def dropout(x):
        return torch.nn.functional.dropout(x, 0.5)

    text = failure(torch.zeros_like, x, reference=dropout, error=ReferenceFailed)
    assert "draws random numbers, and returns something else when it is called again" in text


def test_a_reference_may_draw_the_same_numbers_each_time():
    def dropout(x):
        generator = torch.Generator(x.device).manual_seed(3)
        return x * torch.bernoulli(torch.full(x.shape, 0.5), generator=generator).to(x.dtype)

    check_kernel(dropout, tensor(64, 256), reference=dropout)


def test_a_reference_that_does_not_follow_its_arguments_is_named():
    a, b = tensor(64, 512, dtype="bfloat16"), tensor(512, 64, dtype="bfloat16", seed=2)
    exact = a.double() @ b.double()
    text = failure(lambda a, b: a.float() @ b.float(), a, b, reference=lambda *_: exact, reduction=512)
    assert "the reference does not follow its arguments: it has to compute from them" in text


def test_one_input_of_64_bits_is_not_narrowed_either():
    a, b = tensor(20, 30, dtype="float64"), tensor(30, 20, dtype="float32")

    def multiply(a, b):
        return a.float() @ b

    def matmul(a, b):
        return a @ b

    assert "floating inputs are 64 bits wide" in failure(multiply, a, b, reference=matmul, reduction=30)
    check_kernel(multiply, a, b, reference=matmul, reduction=30, precision="float32")
    check_kernel(lambda a, b: a @ b.double(), a, b, reference=matmul, reduction=30)
