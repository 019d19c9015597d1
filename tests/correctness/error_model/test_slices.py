"""Arguments of which a reference takes one slice at a time."""

import pytest
import torch

from pytest_cutile.correctness.check import ReferenceFailed, check_kernel
from pytest_cutile.correctness.error_model.injection import Injector
from pytest_cutile.correctness.error_model.operators import base_name
from pytest_cutile.correctness.error_model.running import Slices, run_with
from tests.correctness.checking import failure, tensor


def project(x, weights):
    return torch.stack([x.float() @ each.float() for each in weights]).to(x.dtype)


def projected(x, weights):
    return torch.stack([x @ each for each in weights])


X, WEIGHTS = tensor(16, 32), tensor(5, 32, 24, seed=2)


def check(fn=project, *, reference=projected, **options):
    return check_kernel(fn, X, WEIGHTS, reference=reference, reduction=32, **options)


def test_the_bound_is_that_of_whole_arguments():
    sliced, whole = check(sliced=["weights"]), check()
    assert sliced.reference_runs == whole.reference_runs == 4
    assert sliced.worst_error == pytest.approx(whole.worst_error, rel=0.2)
    assert sliced.energy == pytest.approx(whole.energy, rel=0.2)


def test_a_wrong_slice_is_found():
    def forgets_one(x, weights):
        out = project(x, weights)
        out[3] = out[2]
        return out

    text = failure(forgets_one, X, WEIGHTS, reference=projected, reduction=32, sliced=["weights"])
    assert "forgets_one differs from its reference" in text


def test_no_operator_that_moves_a_slice_is_seen():
    seen, moved = [], []

    class Seeing(Injector):
        def on_input(self, tensor):
            moved.append(tensor.shape)
            return tensor + 1  # an operator, too

        def call(self, func, args, kwargs):
            seen.append(base_name(func))
            return super().call(func, args, kwargs)

    out = run_with(lambda weights: weights[1] * weights[2], (Slices(torch.ones(4, 3)),), {}, Seeing())
    assert out.tolist() == [4.0, 4.0, 4.0]
    assert seen == ["select", "select", "mul"]
    assert moved == [(3,), (3,)]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lambda x, weights: x @ weights, "unsupported operand"),
        (lambda x, weights: weights.sum() * x, "there is no x.sum"),
        (lambda x, weights: projected(x, weights[1:]), "where i is one number; got slice(1, None, None)"),
    ],
)
def test_a_reference_that_wants_the_whole_is_told_what_it_gets(reference, said):
    assert said in failure(
        project, X, WEIGHTS, reference=reference, reduction=32, sliced=["weights"], error=ReferenceFailed
    )


def test_names_are_those_of_arguments_that_do_not_change():
    with pytest.raises(ValueError, match="sliced names \\['w'\\], but the arguments are"):
        check(sliced=["w"])
    with pytest.raises(TypeError, match="sliced is a list of arguments"):
        check(sliced="weights")
    with pytest.raises(ValueError, match="sliced names \\['weights'\\], of which the reference would change"):
        check(sliced=["weights"], mutates=["weights"])


def test_what_a_reference_gets():
    seen = []

    def reference(x, weights):
        seen.append((len(weights), weights.shape, weights.device, weights[torch.tensor(1)].dtype))
        return x

    run_with(reference, (X, Slices(WEIGHTS)), {})
    assert seen == [(5, (5, 32, 24), torch.device("cpu"), torch.float64)]


def test_mutants_are_run_with_the_whole():
    assert check(sliced=["weights"], mutation_test=True).mutation is not None
