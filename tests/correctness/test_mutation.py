"""What a check would have caught is what it does catch, and inputs that hide a bug are called weak."""

import msgspec
import pytest
import torch

from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.correctness.mutation.report import MutationReport, Outcome, Weakness
from pytest_cutile.correctness.mutation.run import run_mutants
from pytest_cutile.tile.tensors.dtypes import DTYPE_NAMES
from tests.correctness.checking import tensor


def mutation_report(kernel, *args, **options):
    report = check_kernel(kernel, *args, mutation_test=True, **options).mutation
    assert report is not None
    assert msgspec.convert(report.to_dict(), MutationReport) == report
    return report


def copying(*args):
    return mutation_report(
        lambda *given: tuple(x.clone() for x in given), *args, reference=lambda *given: given
    )


def weaknesses(found):
    return {(mutant.mutation, mutant.where): mutant.detail for mutant in found.weaknesses}


def product(a, b):
    return (a.float() @ b.float()).to(a.dtype)


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def exact_softmax(x):
    return torch.softmax(x, -1)


def test_a_product_under_the_derived_bound_is_strong():
    a, b = tensor(37, 130), tensor(130, 50, seed=2)
    report = mutation_report(product, a, b, reference=lambda a, b: a @ b, reduction=130)
    assert not report.survivors
    assert report.killed == len(report.mutants)
    places = {mutant.where for mutant in report.mutants if mutant.of_input}
    assert places == {"a, dim 0", "a, dim 1", "b, dim 0", "b, dim 1"}
    assert {mutant.mutation for mutant in report.mutants} == {
        *("all zero", "one element lost", "the smallest tenth lost", "a tile missing"),
        *("two indices exchanged", "shifted by one"),
        *("the last tile missing", "the last tile stale", "dimensions exchanged", "truncated"),
        *("one ulp off everywhere", "1 % too large", "rounded to bfloat16"),
        *("an input's last index ignored", "an input's last 16 ignored"),
    }


def test_a_plain_tolerance_lets_zeros_through():
    x = tensor(8, 8192)
    report = mutation_report(softmax, x, reference=exact_softmax, rtol=1e-2, atol=1e-2)
    passed = {mutant.mutation for mutant in report.weaknesses}
    assert passed >= {"all zero", "a tile missing", "two indices exchanged", "truncated", "1 % too large"}
    strong = mutation_report(softmax, x, reference=exact_softmax, reduction=8192)
    assert not strong.weaknesses


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_every_dtype_can_be_altered(dtype):
    x = tensor(2, 3, 20, 33, dtype=dtype, dist="integers")
    report = copying(x)
    assert {mutant.mutation for mutant in report.mutants} >= {"all zero", "dimensions exchanged"}
    assert not report.weaknesses


def test_equal_heads_hide_exchanged_ones():
    x = tensor(2, 1, 20, 33).expand(2, 4, 20, 33)
    assert weaknesses(copying(x)) == {
        ("two indices exchanged", "output[0], dim 1"): "all indices hold the same values",
        ("shifted by one", "output[0], dim 1"): "neighbours hold the same values",
    }


def test_a_symmetric_output_hides_transposition():
    x = tensor(20, 20)
    reasons = weaknesses(copying(x + x.T))
    assert reasons == {("dimensions exchanged", "output[0], dims 0 and 1"): "the output is symmetric"}


def test_zero_outputs_hide_everything():
    reasons = weaknesses(copying(tensor(20, 30, dist="zeros")))
    assert reasons["all zero", "output[0]"] == "the right output is zero everywhere"
    assert reasons["a tile missing", "output[0]"] == "the right output is zero there"
    assert reasons["an input's last 16 ignored", "argument 0, dim 1"] == "they are zero"


def rms_norm(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize(("tail", "weak"), [(1.0, False), (1e-3, True)])
def test_inputs_that_hide_the_end_of_a_sum_are_weak(tail, weak):
    x = tensor(8, 100)
    x[:, -16:] *= tail
    # At their own indices the last elements are seen in either case: the sum over them is what counts.
    report = mutation_report(lambda x: rms_norm(x.float()).half(), x, reference=rms_norm, reduction=100)
    hidden = {
        ("an input's last 16 ignored", "x, dim 1"): "the exact output moves by less than the bound allows"
    }
    assert weaknesses(report) == (hidden if weak else {})


@pytest.mark.parametrize(("given", "weak"), [({}, False), ({"atol": 1e-2, "rtol": 1e-2}, True)])
def test_bounds_that_let_small_values_be_anything_are_weak(given, weak):
    x = (10.0 * tensor(64, 300, dtype="float32")).bfloat16()
    report = mutation_report(lambda x: x.float().exp().bfloat16(), x, reference=lambda x: x.exp(), **given)
    assert (("the smallest tenth lost", "output") in weaknesses(report)) is weak


def test_what_no_output_depends_on_is_no_weakness_of_a_case():
    report = mutation_report(
        lambda *given: given[0].clone(), tensor(20, 30), tensor(20), reference=lambda x, _: x
    )
    assert not report.weaknesses
    unused = [mutant for mutant in report.survivors if mutant.where == "argument 1, dim 0"]
    assert {(mutant.outcome, mutant.weakness) for mutant in unused} == {(Outcome.EQUIVALENT, Weakness.KERNEL)}


def test_an_input_need_not_show_in_every_output():
    x, y = tensor(20, 30), tensor(20, 30, seed=2)
    assert not [mutant for mutant in copying(x, y).survivors if mutant.of_input]


def test_a_truncated_output_is_caught_only_where_the_bound_is_tight():
    x = tensor(20, 30, dtype="float32")
    wide = mutation_report(lambda x: x.exp(), x, reference=lambda x: x.exp(), reduction=10_000)
    missed = {mutant.mutation for mutant in wide.survivors}
    assert missed == {"truncated", "one ulp off everywhere"}
    assert not wide.weaknesses  # float32 sums are honestly off by as much


def test_values_that_need_no_rounding_are_no_weakness():
    report = copying(tensor(20, 30, dist="integers"))
    unchanged = {mutant.mutation for mutant in report.survivors if mutant.outcome == Outcome.EQUIVALENT}
    assert "truncated" in unchanged
    assert not report.weaknesses


def test_infinities_have_to_stay():
    x = tensor(20, 30)
    x[3, 4] = torch.inf
    [mutant] = [mutant for mutant in copying(x).mutants if mutant.mutation == "NaN instead of Inf"]
    assert mutant.outcome == Outcome.KILLED


def test_runs_of_the_reference_are_bounded(monkeypatch):
    monkeypatch.setattr("pytest_cutile.correctness.mutation.run.MOST_RUNS", 5)
    runs = []

    def reference(inputs):
        runs.append(inputs)
        return inputs["x"].double()

    report = run_mutants([], {"x": tensor(20, 20, 20, 20)}, reference)
    assert len(runs) == 5
    assert report.skipped == 3


def test_zeros_that_a_reference_refuses_are_left_out():
    def reference(x):
        if not bool(x[-1].any()):
            raise ValueError("a row of zeros")
        return x

    report = mutation_report(lambda x: x.clone(), tensor(20, 30), reference=reference)
    assert {mutant.where for mutant in report.mutants if mutant.of_input} == {"x, dim 1"}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2,), (1, 5)])
def test_small_outputs(shape):
    report = copying(tensor(*shape))
    assert not report.weaknesses


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_a_case_without_elements_is_weak(dtype):
    reasons = weaknesses(copying(tensor(0, 4, dtype=dtype)))
    assert reasons == {("all zero", "output[0]"): "no elements: nothing is compared"}


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_right_values_are_altered_and_not_what_a_bug_has_left(dtype):
    x = tensor(20, 30, dtype=dtype, dist="integers")
    reasons = weaknesses(mutation_report(torch.zeros_like, x, reference=lambda x: x, rtol=0, atol=100))
    assert reasons["all zero", "output"].startswith("within the bound")
    assert reasons["two indices exchanged", "output, dim 1"].startswith("within the bound")


def test_nothing_is_tried_unasked():
    assert check_kernel(lambda x: x.clone(), tensor(4), reference=lambda x: x).mutation is None
