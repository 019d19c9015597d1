"""What `check_kernel` sees besides values: unwritten elements, changed inputs, failing references."""

import math

import numpy as np
import pytest
import torch

from pytest_cutile.correctness.check import (
    KernelMismatch,
    ReferenceFailed,
    UncheckableOutput,
    check_kernel,
)
from pytest_cutile.tile.tensors.dtypes import DTYPE_NAMES
from pytest_cutile.tile.tensors.poison import poisoned, poisoned_allocations
from tests.correctness.checking import copy, failure, identity, story, tensor


@pytest.mark.parametrize(
    "allocate",
    [
        lambda x: torch.empty(x.shape, dtype=x.dtype),
        torch.empty_like,
        lambda x: torch.empty_strided(x.shape, (1, x.shape[0]), dtype=x.dtype),
        lambda x: torch.empty_permuted(x.shape, (1, 0), dtype=x.dtype),
        lambda x: x.new_empty(x.shape),
        lambda x: x.new_empty_strided(x.shape, (1, x.shape[0])),
    ],
    ids=["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"],
)
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_writing_nothing_is_seen_in_every_dtype_and_allocator(allocate, dtype):
    x = tensor(4, 6, dtype=dtype)
    text = failure(allocate, x, reference=identity)
    if dtype in ("int8", "uint8", "float8_e4m3fn"):
        assert "24 elements of output hold what was there before, twice: never written" in text
    else:
        assert "24 elements still hold the poison: never written" in text or dtype == "bool"
    assert "outside the bound" in text


def test_a_missed_tail_is_seen_and_located():
    def kernel(x):
        out = torch.empty_like(x)
        out[:, :96] = x[:, :96]
        return out

    text = failure(kernel, tensor(8, 100), reference=identity)
    assert "32 elements still hold the poison: never written" in text
    assert "where: dim 1: only the last 4 of 100" in text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
def test_what_is_never_written_is_seen_where_nan_is_right(dtype):
    x = tensor(4, 8, dtype=dtype)
    x[2] = torch.nan

    def kernel(x):
        out = torch.empty_like(x)
        out[:2], out[3:] = x[:2], x[3:]
        return out

    text = failure(kernel, x, reference=identity)
    assert "8 elements still hold the poison: never written" in text
    assert "where: dim 0: only index 2 of 4" in text
    assert check_kernel(copy, x, reference=identity).elements == 32


def negated(x):
    return (-x.float()).to(x.dtype)


def negated_but_for_the_last_row(x):
    out = torch.empty_like(x)
    out[:-1] = negated(x[:-1])
    return out


def test_either_nan_of_float8_e4m3fn_may_be_right_and_what_is_never_written_is_seen_by_another_launch():
    x = tensor(4, 8, dtype="float8_e4m3fn")
    x[3] = torch.nan
    assert bool(poisoned(negated(x))[3].all())
    assert check_kernel(negated, x, reference=torch.neg).elements == 32
    assert check_kernel(negated, negated(x), reference=torch.neg).elements == 32
    text = failure(negated_but_for_the_last_row, x, reference=torch.neg)
    assert story(text).endswith("8 elements of output hold what was there before, twice: never written")


def test_a_wrong_nan_of_float8_e4m3fn_is_told_from_what_is_never_written():
    x = tensor(4, 8, dtype="float8_e4m3fn")
    text = failure(lambda x: negated(torch.full_like(x, torch.nan)), x, reference=identity)
    assert "32 elements hold the poison, which may be a value: perhaps never written" in text
    assert story(text).endswith("launched again over other bytes: all elements are written")


def test_what_is_never_written_is_seen_in_complex_numbers():
    x = torch.complex(tensor(4, 8, dtype="float32"), tensor(4, 8, dtype="float32", seed=2))
    x[2] = torch.nan

    def kernel(x):
        out = torch.empty_like(x)
        out[:2], out[3:] = x[:2], x[3:]
        return torch.view_as_real(out)

    text = failure(kernel, x, reference=torch.view_as_real)
    assert "16 elements still hold the poison: never written" in text


def test_a_computed_nan_is_not_taken_for_poison():
    text = failure(lambda x: x * torch.nan, tensor(4, 4), reference=identity)
    assert "never written" not in text
    assert "16 elements are NaN where the reference is not" in text


def test_poisoning_ends_with_the_launch_and_reaches_no_other_allocator():
    with poisoned_allocations():
        assert bool(poisoned(torch.empty(3)).all())
        assert torch.zeros(3).tolist() == [0, 0, 0]
        assert torch.full((2,), 4.0).tolist() == [4, 4]
        assert torch.empty(3, device="meta").is_meta
        assert torch.empty(2, dtype=torch.complex64).isnan().all()
    assert check_kernel(copy, tensor(4, 4), reference=identity).elements == 16


def test_a_changed_input_is_named():
    def kernel(x, rows):
        out = copy(x)
        rows[1][0, 2] = 7
        return out

    x = tensor(4, 4)
    rows = [tensor(2, 2), tensor(3, 3)]
    text = failure(kernel, x, rows, reference=lambda x, _: x)
    assert "changed its input rows[1] (float16 [3, 3]): 1 of 9 elements" in text
    assert "mutates=['rows']" in text


def test_a_change_of_bits_alone_is_a_change():
    def kernel(x):
        x[0] = -0.0
        return copy(x)

    assert "changed its input x" in failure(kernel, torch.zeros(4), reference=identity)


@pytest.mark.parametrize("mutates", [["out"], [1]])
def test_an_argument_that_may_change(mutates):
    def kernel(x, out):
        out += x
        return out

    x, out = tensor(4, 4, dtype="float32"), tensor(4, 4, dtype="float32", seed=2)
    check_kernel(kernel, x, out, reference=lambda x, out: x + out, mutates=mutates)
    text = failure(copy, tensor(4), reference=identity, mutates=["y"], error=ValueError)
    assert text == "mutates names ['y'], but the arguments are ['x']"


def test_the_reference_sees_the_inputs_from_before_the_launch_as_float64():
    seen = []

    def reference(pair, index, *, scale):
        seen.append((pair[0].dtype, pair[1]["b"].dtype, index.dtype, scale.dtype))
        return pair[0][index] * scale

    def kernel(pair, index, *, scale):
        return pair[0][index] * scale

    pair = (tensor(8, dtype="float32"), {"b": tensor(2, dtype="bfloat16")})
    index = torch.tensor([3, 1])
    report = check_kernel(kernel, pair, index, scale=torch.tensor(3.0), reference=reference)
    assert set(seen) == {(torch.float64, torch.float64, torch.int64, torch.float64)}
    assert report.elements == 2
    assert report.reference_runs == len(seen) == 13


def test_outputs_may_be_tuples_lists_and_dicts():
    def kernel(x):
        return x.clone(), [x * 2, {"positive": x > 0}]

    assert check_kernel(kernel, tensor(4, 4), reference=kernel).elements == 48
    text = failure(lambda x: (x.clone(), [x * 3, {"positive": x > 2}]), tensor(4, 4), reference=kernel)
    assert "output[1][0] (float16 [4, 4]): 16 of 16 elements" in text
    assert "wrong, too: output[1][1]['positive']" in text


@pytest.mark.parametrize(
    ("kernel", "got"),
    [
        (lambda x: copy(x[:2]), "float16 [2, 4]"),
        (lambda x: (copy(x), copy(x)), "(float16 [4, 4], float16 [4, 4])"),
        (lambda x: x.sum(), "float16 []"),
    ],
)
def test_another_shape_or_structure_shows_both(kernel, got):
    text = failure(kernel, tensor(4, 4), reference=identity)
    assert f"in structure or shape: {got} instead of float64 [4, 4]" in text


@pytest.mark.parametrize("reduction", [np.int64(3), np.int32(1)])
def test_a_length_is_any_integer(reduction):
    assert check_kernel(copy, tensor(4), reference=identity, reduction=reduction).elements == 4


@pytest.mark.parametrize("reduction", [True, 0, -1, 2.0, None, "3"])
def test_a_length_is_an_integer_of_at_least_1(reduction):
    text = failure(copy, tensor(4), reference=identity, reduction=reduction, error=ValueError)
    assert text == f"reduction is the length of a sum, an int of at least 1; got {reduction!r}"


def test_returning_nothing_says_what_to_do():
    def kernel(_): ...

    text = failure(kernel, tensor(4), reference=identity, error=TypeError)
    assert "kernel returned None: return the output tensor" in text


def test_an_unsupported_output_dtype():
    text = failure(
        lambda x: torch.complex(x, x), tensor(4, dtype="float32"), reference=identity, error=TypeError
    )
    assert "returned a tensor of complex64" in text
    assert "torch.view_as_real" in text


def test_a_failing_reference_is_named_and_chained():
    def broken(_):
        raise KeyError("no such thing")

    with pytest.raises(ReferenceFailed, match="broken of copy raised KeyError: 'no such thing'") as caught:
        check_kernel(copy, tensor(4), reference=broken)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_reference_that_rounds_is_refused():
    text = failure(copy, tensor(4), reference=lambda x: x.half(), error=ReferenceFailed)
    assert "returned output as float16: it has to compute and return float64" in text
    check_kernel(copy, tensor(4), reference=lambda x: x.half(), rtol=1e-3)


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: torch.softmax(x.float(), -1).to(x.dtype),
        lambda x: torch.softmax(x, -1, dtype=torch.float32),
        lambda x: torch.softmax(x.to(torch.float32), -1),
        lambda x: x.float().exp() / x.exp().sum(-1, keepdim=True, dtype=torch.float32),
    ],
)
def test_a_reference_that_asks_for_float32_gets_float64(reference):
    """Else it would be as inexact as a float32 kernel, and equal to one that makes the same error."""
    x = tensor(8, 512, dtype="float32")

    def softmax(x):
        return torch.softmax(x, -1)

    exact = check_kernel(softmax, x, reference=softmax, reduction=512)
    report = check_kernel(softmax, x, reference=reference, reduction=512)
    assert report.worst_ulps == pytest.approx(exact.worst_ulps, rel=1e-6)
    assert report.worst_error == pytest.approx(exact.worst_error, rel=0.5)
    assert report.worst_error > 0


def test_an_integer_output_needs_an_integer_reference():
    text = failure(lambda x: x.int(), tensor(4), reference=identity, error=ReferenceFailed)
    assert "as float64, the kernel as int32" in text


@pytest.mark.parametrize(
    ("kernel", "reference", "said"),
    [
        (lambda x: x.float(), lambda x: x.long(), "as int64, the kernel as float32"),
        (lambda x: x > 0, lambda x: (x > 0).long(), "as int64, the kernel as bool"),
        (lambda x: x.int(), lambda x: x > 0, "as bool, the kernel as int32"),
        (lambda x: x.float(), lambda x: torch.complex(x, x), "as complex128, the kernel as float32"),
    ],
)
def test_a_reference_of_another_kind_of_dtype_is_an_error(kernel, reference, said):
    assert said in failure(kernel, tensor(4), reference=reference, error=ReferenceFailed)


def test_a_reference_on_another_device_is_an_error():
    text = failure(copy, tensor(4), reference=lambda x: x.to("meta"), error=ReferenceFailed)
    assert "returned output on meta, the kernel on cpu: return it on the device of the arguments" in text


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_64_bits_are_compared_in_full(dtype):
    """The two differ beyond the 53 bits of a float64, or by its last bit."""
    one = torch.tensor([2**60], dtype=torch.int64) if dtype != "float64" else torch.ones(1).double()
    given = one.view(torch.uint64) if dtype == "uint64" else one

    def wrong(x):
        return (x.view(torch.int64) + (1 if dtype != "float64" else 2**9)).view(x.dtype)

    check_kernel(torch.clone, given, reference=torch.clone)
    assert "interval" in failure(wrong, given, reference=torch.clone)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "int32", "bool"])
def test_empty_outputs_pass(shape, dtype):
    assert check_kernel(torch.clone, tensor(*shape, dtype=dtype), reference=torch.clone).elements == 0


def test_an_exception_of_the_kernel_is_its_own():
    def kernel(_):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        check_kernel(kernel, tensor(4), reference=identity)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": 0}, "reduction is the length of a sum"),
        ({"rtol": -1.0}, "rtol must be finite and not negative"),
        ({"atol": float("nan")}, "atol must be finite"),
        ({"precision": "int8"}, "precision must be a floating-point dtype"),
        ({"precision": "float7"}, "'float7' is no dtype"),
    ],
)
def test_options_out_of_range(options, message):
    assert message in failure(copy, tensor(4), reference=identity, **options, error=ValueError)


def test_a_numpy_reference_and_an_empty_output():
    def reference(a, b):
        return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))

    a, b = tensor(32, 64), tensor(64, 32, seed=2)
    check_kernel(lambda a, b: (a.float() @ b.float()).half(), a, b, reference=reference, reduction=64)
    assert check_kernel(copy, tensor(0, 4), reference=identity).elements == 0


def test_the_message_is_short():
    def kernel_with_a_name_that_is_much_longer_than_any_line_of_a_continuous_integration_log_should_be(x):
        return tuple(x * 1.5 for _ in range(40))

    kernel = kernel_with_a_name_that_is_much_longer_than_any_line_of_a_continuous_integration_log_should_be
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(kernel, tensor(8, 8), reference=lambda x: (x,) * 40)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 33
    assert max(map(len, lines[1:])) <= 100
    assert lines[2] == "  wrong, too: output[1], output[2], output[3], output[4] and 35 more"
    assert any("a constant factor: got / exact is about 1.5" in line for line in lines)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_inputs_are_compared_by_their_bits(dtype):
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0] = math.nan
    x[0, 1] = 0.0

    def double(x):
        return torch.view_as_real(x * 2)

    def changing(x):
        torch.view_as_real(x)[0, 1, 1] = -0.0
        return double(x)

    check_kernel(double, x, reference=double)
    check_kernel(double, x.conj(), reference=double)
    assert f"changed its input x ({str(dtype)[6:]} [8, 8]): 1 of 64" in failure(changing, x, reference=double)


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, lambda x: x.to("meta")])
def test_tensors_without_memory_are_refused(make):
    kind = "sparse_coo" if make is torch.Tensor.to_sparse else "meta"
    text = failure(copy, make(tensor(4, 4)), reference=identity, error=TypeError)
    assert text.startswith(f"argument x is a {kind} tensor, which cannot be checked: let copy take")
    text = failure(make, tensor(4, 4), reference=identity, error=UncheckableOutput)
    assert f"returned a {kind} tensor" in text
