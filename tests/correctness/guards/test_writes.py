"""Arguments that a launcher writes: what it says of them, what it left in them, and what it never wrote."""

from typing import Any

import pytest
import torch

from pytest_cutile.correctness.check import UncheckableOutput, check_kernel
from pytest_cutile.tile.tensors.dtypes import bits_of, resolve_dtype
from pytest_cutile.tile.tensors.poison import Pattern
from tests.correctness.checking import copy, failure, identity, story, tensor


def test_the_caller_sees_what_may_change_and_nothing_else():
    def kernel(x, out):
        out += x
        return out

    x, out = tensor(4, 4, dtype="float32"), tensor(4, 6, dtype="float32", seed=2)[:, 1:5]
    before = out.clone()
    report = check_kernel(kernel, x, out, reference=lambda x, out: x + out, mutates=["out"])
    assert torch.equal(out, before + x)
    assert report.deterministic is True

    x_before, out_before = x.clone(), out.clone()
    assert "changed its input out" in failure(kernel, x, out, reference=lambda x, out: x + out)
    assert torch.equal(x, x_before)
    assert torch.equal(out, out_before)


def test_an_output_that_is_passed_in_and_right_already():
    def kernel(x, out):
        out[:, :3] = x[:, :3]
        return out

    x = tensor(4, 4)
    check_kernel(kernel, x, x.clone(), reference=lambda x, _: x, mutates=["out"])
    text = failure(kernel, x, x.clone(), reference=lambda x, _: x, writes=["out"])
    assert "4 elements still hold the poison: never written" in text


def test_an_output_that_is_passed_in_and_not_declared():
    def kernel(x, out):
        out[:3] = x[:3]
        return out

    x = tensor(4, 4)
    stale = failure(kernel, x, x.clone(), reference=lambda x, _: x, error=UncheckableOutput)
    assert "returned its input out as it was" in stale
    changed = failure(kernel, x, torch.zeros_like(x), reference=lambda x, _: x)
    assert "changed its input out (float16 [4, 4]): 12 of 16 elements" in changed
    for text in (stale, changed):
        assert text.endswith(
            "unless it is meant to, the kernel or its launch writes to the wrong tensor; declare "
            "mutates=['out'] if it is updated in place, or writes=['out'] if it only receives the result"
        )
    [empty] = [check_kernel(lambda x: x[:0], x, reference=lambda x: x[:0])]
    assert empty.elements == 0


def test_an_argument_that_both_change_is_compared():
    def reference(x, state):
        state["sum"][:2] += x
        return 2 * x

    def right(x, state):
        state["sum"][:2] += x
        return 2 * x

    def wrong(x, state):
        state["sum"][:2] += x * 1.01
        return 2 * x

    def launch(kernel):
        return kernel, tensor(2, 8), {"sum": tensor(4, 8, dtype="float32"), "count": torch.zeros(3)}

    report = check_kernel(*launch(right), reference=reference, mutates=["state"])
    assert report.uncompared == ()
    text = failure(*launch(wrong), reference=reference, mutates=["state"])
    assert " ".join(text.split()).startswith(
        "wrong leaves something else in state than its reference only in"
    )
    assert "output['state']['sum'] (float32 [4, 8]): 16 of 32 elements" in text


def test_an_argument_that_only_the_launcher_changes_is_compared_with_nothing():
    def kernel(x, r, out):
        r.zero_()
        out.copy_(x)
        return out

    x = tensor(4)
    report = check_kernel(
        kernel, x, x.clone(), x.clone(), reference=lambda x, *_: x, mutates=["r"], writes=["out"]
    )
    assert report.uncompared == ("r",)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "int8", "int64", "bool", "complex64"])
@pytest.mark.parametrize("guard", [True, False])
def test_an_argument_that_is_said_to_be_overwritten_and_never_is(dtype, guard):
    def kernel(x, outs):
        del outs
        return x * 2

    x, out = tensor(4), torch.zeros(4, 3, dtype=getattr(torch, dtype))
    options: dict[str, Any] = {"reference": lambda x, _: x * 2, "guard": guard}
    said = failure(kernel, x, {"first": out}, **options, writes=["outs"])
    assert said == (
        "kernel never wrote outs['first'], which writes=['outs'] says that it overwrites\n"
        "if it only may change it, say so with mutates=['outs']"
    )
    check_kernel(kernel, x, {"first": out[:0]}, **options, writes=["outs"])
    assert check_kernel(kernel, x, {"first": out}, **options, mutates=["outs"]).uncompared == ("outs",)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float8_e4m3fn"])
def test_what_is_overwritten_with_the_very_poison_is_written(dtype):
    def kernel(x, scratch):
        bits_of(scratch).fill_(Pattern.UNWRITTEN.of(x.dtype))
        return copy(x)

    x = tensor(4, dtype=dtype)
    report = check_kernel(kernel, x, torch.zeros_like(x), reference=lambda x, _: x, writes=["scratch"])
    assert report.uncompared == ("scratch",)


def test_an_argument_that_may_change_and_shares_its_memory():
    def kernel(x, out):
        out += x.sum()
        return out

    whole = tensor(8, dtype="float32")
    before = whole.clone()
    report = check_kernel(
        kernel, whole[:4], whole[4:], reference=lambda x, out: out + x.sum(), mutates=["out"], reduction=4
    )
    assert torch.equal(whole[:4], before[:4])
    assert not torch.equal(whole[4:], before[4:])
    assert report.layouts == {}


def into(out, x):
    out.copy_(x * 2)


def returning(out, x):
    del out
    return x * 2


def into_all_but_the_last_row(out, x):
    into(out[:-1], x[:-1])


@pytest.mark.parametrize("reference", [into, returning])
@pytest.mark.parametrize(("writes", "mutates"), [(["out"], []), ([], ["out"])])
def test_what_a_launcher_without_a_result_is_said_to_write_is_its_output(reference, writes, mutates):
    out, x = torch.empty(64, 100).half(), tensor(64, 100)
    report = check_kernel(
        into, out, x, reference=reference, mutation_test=True, writes=writes, mutates=mutates
    )
    assert report.outputs == "float16 [64, 100]"
    assert report.uncompared == ()
    assert report.mutation is not None
    assert not report.mutation.weaknesses
    assert torch.equal(out, x * 2)
    said = failure(into_all_but_the_last_row, out, x, reference=reference, writes=["out"])
    assert "100 elements still hold the poison: never written" in said


def test_several_of_them_are_a_tuple():
    def kernel(x, first, scratch, second):
        into(first, x)
        scratch.zero_()
        into(second, 2 * x)

    x = tensor(64, 100)
    options: dict[str, Any] = {"writes": ["second", "first"], "mutates": ["scratch"]}
    given = [x, *(torch.empty_like(x) for _ in range(3))]
    report = check_kernel(kernel, *given, reference=lambda x, *_: (x * 2, x * 4), **options)
    assert report.outputs == "(float16 [64, 100], float16 [64, 100])"
    assert report.uncompared == ("scratch",)
    failure(kernel, *given, reference=lambda x, *_: (x * 4, x * 2), **options)


def test_one_that_is_said_to_write_nothing_says_how_to():
    said = failure(into, tensor(4), tensor(4), reference=into, error=UncheckableOutput)
    assert "writes=['out']" in said


def test_what_is_written_does_not_tell_the_precision_of_operands():
    a, b = (tensor(64, 64, dtype="float32", seed=seed) for seed in (1, 2))

    def multiply(a, b, out):
        out.copy_(a.half().float() @ b.half().float())

    out = torch.empty(64, 64, dtype=torch.float16)
    failure(multiply, a, b, out, reference=lambda a, b, _: a @ b, reduction=64, writes=["out"])


def upper_half(x):
    out = torch.empty_like(x)
    out[: len(x) // 2] = x[: len(x) // 2]
    return out


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "uint64"])
def test_integers_that_happen_to_be_the_poison_and_were_never_written(dtype):
    x = torch.empty(8, 5, dtype=resolve_dtype(dtype))
    bits_of(x).fill_(Pattern.UNWRITTEN.of(x.dtype))
    said = failure(upper_half, x, reference=identity)
    assert said == "upper_half: 20 elements of output hold what was there before, twice: never written"
    assert check_kernel(copy, x, reference=identity).deterministic is True


def into_upper_half(out, x):
    out[: len(x) // 2] = x[: len(x) // 2]


def test_those_that_are_passed_in():
    x = torch.full((8,), 165, dtype=torch.uint8)
    said = failure(into_upper_half, torch.empty_like(x), x, reference=lambda _, x: x, writes=["out"])
    assert "4 elements of output hold what was there before" in said


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        (upper_half, "20 elements of output hold what was there before, twice: never written"),
        (lambda x: torch.full_like(x, -91), "launched again over other bytes: all elements are written"),
    ],
)
def test_small_integers_that_are_the_poison_may_be_values(kernel, known):
    said = failure(kernel, torch.ones(8, 5, dtype=torch.int8), reference=identity)
    assert "elements hold the poison, which may be a value: perhaps never written" in said
    assert story(said).endswith(f"\n{known}")
