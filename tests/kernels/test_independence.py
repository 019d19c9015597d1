"""What kernels declare `independent` is: the reference of a part is that part of the reference."""

import importlib
import inspect
import pkgutil
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

import kernels
from kernels import dropout
from pytest_cutile.correctness.error_model import parts
from pytest_cutile.correctness.error_model.parts import OUTPUT, cut
from pytest_cutile.correctness.error_model.running import ReferenceCall, check_independence
from pytest_cutile.correctness.guards import launch as guarded
from pytest_cutile.correctness.guards.launching import ON_GPU
from pytest_cutile.gates.declared import check_inputs
from pytest_cutile.tile.tensors.trees import named_tensors
from pytest_cutile.words.settings import Settings
from pytest_cutile.words.spec import Case, KernelSpec
from tools.gpu_runs.inputs import as_arguments, make_inputs

WHOLE = {"moe", "rms_norm_backward"}
"""Kernels that declare nothing: of moe almost all is weights that each part would need, and the gradient of a
weight is a sum over all rows."""


def find_specs() -> list[KernelSpec]:
    names = [each.name for each in pkgutil.iter_modules(kernels.__path__) if not each.name.startswith("_")]
    return [importlib.import_module(f"kernels.{name}").SPEC for name in names]


SPECS = find_specs()
LARGEST_FLOPS = 5e9
"""Operations of a case whose reference does not take long on a CPU."""
CASES = [
    (spec, case)
    for spec in SPECS
    if spec.independent
    for case in spec.cases
    if not case.speed and spec.work_of(case).flops <= LARGEST_FLOPS
]


def call_of(spec: KernelSpec, case: Case) -> ReferenceCall:
    args, kwargs = as_arguments(make_inputs(spec, case, device="cpu", seed_text=case.name))
    names = [*inspect.signature(spec.launch).parameters]
    return ReferenceCall(
        reference=spec.reference, name=spec.name, args=dict(zip(names, args, strict=False)), kwargs=kwargs
    )


def test_all_kernels_declare_it_but_those_of_which_it_is_known():
    assert {spec.name for spec in SPECS if spec.independent is None} == WHOLE


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "case"), CASES, ids=[f"{spec.name}-{case.name}" for spec, case in CASES])
def test_parts_of_a_reference_are_the_references_of_parts(monkeypatch, spec, case):
    monkeypatch.setattr(parts, "PART_ELEMENTS", 1)
    monkeypatch.setattr(parts, "MOST_PARTS", 16)
    call = call_of(spec, case)
    together = call.run()
    check_independence(call, spec.independent_of(case), together)
    for part in cut(spec.independent_of(case), call.arguments, together):
        expected, found = part.of(OUTPUT, together), call.of(part).run()
        pairs = zip(named_tensors(expected, OUTPUT), named_tensors(found, OUTPUT), strict=True)
        for (_, one), (_, other) in pairs:
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.independent], ids=lambda spec: spec.name)
def test_a_case_of_each_kernel_can_be_cut(monkeypatch, spec):
    """Else the test above would show nothing."""
    monkeypatch.setattr(parts, "PART_ELEMENTS", 1)
    for _, case in (pair for pair in CASES if pair[0] is spec):
        call = call_of(spec, case)
        if len(cut(spec.independent_of(case) or {}, call.arguments, call.run())) > 1:
            return
    pytest.fail(f"{spec.name}: none can be")


def test_the_gate_checks_a_kernel_whose_reference_depends_on_the_place_in_parts(monkeypatch):
    """Dropout names its arguments, as a dict; the names have to reach the parts."""
    monkeypatch.setattr(guarded, "SMALL_BYTES", 0)
    monkeypatch.setattr(parts, "PART_ELEMENTS", 256)
    spec = replace(dropout.SPEC, launch=as_reference)
    case = next(case for case in spec.cases if case.name == "bf16-4095-p0.5")
    inputs = make_inputs(spec, case, device="cpu", seed_text=case.name)
    settings = cast("Settings", SimpleNamespace(sanitized=(), check_layouts=False, mutation_test=False))
    report = check_inputs(spec, case, inputs, launching=ON_GPU, name="normal", settings=settings)
    assert report.parts == 16


def as_reference(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """Return what dropout computes, rounded."""
    return dropout.reference(x.double(), p, seed).to(x.dtype)
