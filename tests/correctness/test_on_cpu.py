"""References see altered arguments on the CPU alone, and a wrong index of theirs is an exception."""

from types import SimpleNamespace

import pytest
import torch

from pytest_cutile.correctness import on_cpu as on_cpu_module
from pytest_cutile.correctness.check import KernelMismatch, check_kernel
from pytest_cutile.correctness.error_model import indices
from pytest_cutile.correctness.error_model.running import ReferenceCall, run_with
from pytest_cutile.correctness.errors import ReferenceFailed
from pytest_cutile.correctness.explain import reduced
from pytest_cutile.correctness.on_cpu import OnCpu, on_cpu


def cross_entropy(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def forgets_the_last_tile(logits, targets):
    """A fused cross-entropy over 64 of 80 terms: the reference of 64 terms has targets beyond them."""
    summed = torch.logsumexp(logits[:, :64], 1)
    return summed - logits.gather(1, targets[:, None])[:, 0]


def inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(40, 80, generator=generator), torch.randint(0, 80, (40,), generator=generator)


def check(**options):
    check_kernel(forgets_the_last_tile, *inputs(), reference=cross_entropy, reduction=80, **options)


def call_of(reference, *args):
    named = {f"argument {at}": value for at, value in enumerate(args)}
    return ReferenceCall(reference=reference, name="the reference", args=named, kwargs={})


def test_shortened_arguments_are_given_to_the_reference_on_the_cpu(monkeypatch):
    injectors, run = [], ReferenceCall.run

    def watched(call, injector=None):
        if any(value.shape == (40, 64) for value in call.args.values()):
            injectors.append(injector)
        return run(call, injector)

    monkeypatch.setattr(ReferenceCall, "run", watched)
    with pytest.raises(KernelMismatch):
        check()
    assert injectors
    assert all(isinstance(injector, OnCpu) for injector in injectors)


def test_large_arguments_on_a_gpu_are_not_explained(monkeypatch):
    monkeypatch.setattr(on_cpu_module, "is_on_gpu", lambda _: True)
    call = call_of(cross_entropy, *inputs())
    moved = on_cpu(call)
    assert moved is not None
    assert {tensor.device.type for tensor in moved.args.values()} == {"cpu"}
    monkeypatch.setattr(on_cpu_module, "LARGEST_BYTES", 1000)
    assert on_cpu(call) is None
    assert not reduced.find_reduced(SimpleNamespace(), call, 80)  # type: ignore[arg-type]


def test_an_explanation_takes_no_longer_than_that(monkeypatch):
    def sums_a_part(x):
        return x[:, :64].sum(1)

    x = torch.randn(40, 80, generator=torch.Generator().manual_seed(1))
    said = []
    for seconds in (10.0, -1.0):
        monkeypatch.setattr(reduced, "SECONDS", seconds)
        with pytest.raises(KernelMismatch) as caught:
            check_kernel(sums_a_part, x, reference=lambda x: x.sum(1), reduction=80)
        said.append("the last 16 of the 80 terms of each sum are missing" in str(caught.value))
    assert said == [True, False]


@pytest.mark.parametrize(
    "reference", [lambda x: x.to("cuda"), lambda x: x + torch.ones(3, device="cuda"), lambda x: x.cuda()]
)
def test_a_reference_does_not_go_to_the_gpu_by_itself(reference, monkeypatch):
    asked = []

    def call(self, func, args, kwargs):
        if kwargs.get("device") is not None:
            asked.append(torch.device(kwargs["device"]).type)
        return original(self, func, args, kwargs)

    original = OnCpu.call
    monkeypatch.setattr(OnCpu, "call", call)
    with pytest.raises((ReferenceFailed, AssertionError, RuntimeError)) as caught:
        run_with(reference, (torch.ones(3),), {}, OnCpu())
    assert not asked or isinstance(caught.value, ReferenceFailed)


def test_the_gpu_is_refused_whoever_asks_for_it(monkeypatch):
    ran = []
    with pytest.raises(ReferenceFailed, match="computes on the GPU"):
        OnCpu().call(lambda **_: ran.append(1), (), {"device": "cuda"})
    monkeypatch.setattr(on_cpu_module, "is_on_gpu", lambda _: True)
    with pytest.raises(ReferenceFailed, match="none of its arguments"):
        OnCpu().call(lambda *_: ran.append(1), (torch.ones(3),), {})
    assert not ran


def test_mutants_of_large_inputs_on_a_gpu_are_skipped(monkeypatch):
    def report():
        x = torch.randn(40, 80, generator=torch.Generator().manual_seed(1))
        return check_kernel(
            lambda x: x.sum(1), x, reference=lambda x: x.sum(1), reduction=80, mutation_test=True
        ).mutation

    assert report().skipped == 0
    monkeypatch.setattr("pytest_cutile.correctness.check.on_cpu", lambda _: None)
    skipped = report()
    assert skipped.skipped == 4
    assert not any(mutant.of_input for mutant in skipped.mutants)


@pytest.mark.parametrize(("lowest", "launches"), [(0, 1), (-100, 2)])
def test_inputs_around_zero_are_tried_on_the_reference_first(lowest, launches, monkeypatch):
    """A launcher that takes an index from a value runs out of bounds where the reference raises."""
    places = torch.full((64,), 60.0) + torch.randn(64, generator=torch.Generator().manual_seed(1)) / 2
    launched = []

    def launch(values, at):
        launched.append(float(at.mean()))
        return values[at.long().clamp(0, 63)] * 2

    def reference(values, at):
        if float(at.mean()) < 1 and lowest == 0:
            raise IndexError("index -1 is out of range")
        return values[at.long().clamp(0, 63)]

    def explain(*_, is_right_around_zero, **__):
        is_right_around_zero()
        return KernelMismatch("wrong")

    monkeypatch.setattr("pytest_cutile.correctness.check.explain_mismatch", explain)
    monkeypatch.setattr("pytest_cutile.correctness.guards.launch.GuardedLauncher.cause", lambda *_: "")
    with pytest.raises(KernelMismatch):
        check_kernel(launch, torch.arange(64.0), places, reference=reference, vary_layout=False)
    assert len(launched) == launches


INDEXED = [
    (lambda x, i: x[i], -9),
    (lambda x, i: x.index_select(0, i), -1),
    (lambda x, i: x.gather(0, i), -1),
    (lambda x, i: torch.nn.functional.embedding(i, x[:, None]), -1),
    (lambda x, i: x.clone().scatter_(0, i, x[:2]), -1),
    (lambda x, i: torch.nn.functional.cross_entropy(x.expand(2, 8), i), -1),
    (lambda x, i: x.clone().index_put_((i,), x[:2]), -9),
]


@pytest.mark.parametrize(("compute", "lowest"), INDEXED)
def test_an_index_beyond_the_end_is_an_exception_before_it_is_used(compute, lowest, monkeypatch):
    monkeypatch.setattr(indices, "is_on_gpu", lambda _: True)
    for wrong in (8, lowest):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range for 8 elements, in "):
            run_with(compute, (torch.arange(8.0), torch.tensor([0, wrong])), {})
    run_with(compute, (torch.arange(8.0), torch.tensor([0, 7])), {})


def test_targets_that_are_ignored_are_no_indices(monkeypatch):
    monkeypatch.setattr(indices, "is_on_gpu", lambda _: True)
    run_with(torch.nn.functional.cross_entropy, (torch.randn(2, 8), torch.tensor([-100, 7])), {})
