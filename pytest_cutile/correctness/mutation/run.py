"""Run the mutants of a check: mutate a right result in ways that bugs do, and compare the mutant.

Mutants of an *output* are made of the exact values, rounded once: a tile missing, two heads exchanged, a
truncating cast. (A bug of the kernel may have removed what is to be mutated.) They show how much the bound
lets through, and inputs of which too much is alike. Mutants of an *input* are what the kernel would have
computed without the last indices of one dimension, by the reference. They show inputs that hide a part of a
sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.compare.elements import compare
from pytest_cutile.correctness.compare.outputs import ComparedOutput
from pytest_cutile.correctness.mutation.inputs import run_input_mutant, shortened_inputs
from pytest_cutile.correctness.mutation.outputs import MutatedOutput, mutate_output, rounded_like
from pytest_cutile.correctness.mutation.report import Mutant, MutationReport, Outcome
from pytest_cutile.tensors.dtypes import same_bits

if TYPE_CHECKING:
    import torch

MOST_RUNS = 32
"""Runs of the reference that mutated inputs may cost."""
_SAME = {
    "all zero": "the right output is zero everywhere",
    "a tile missing": "the right output is zero there",
    "the last tile missing": "the right output is zero there",
    "the last tile stale": "the tile before it holds the same values",
    "two indices exchanged": "all indices hold the same values",
    "dimensions exchanged": "the output is symmetric",
    "shifted by one": "neighbours hold the same values",
    "one element lost": "the right output is zero everywhere",
    "the smallest tenth lost": "the right output is zero everywhere",
}


def run_mutants(
    outputs: Sequence[ComparedOutput],
    inputs: Mapping[str, Any],
    reference: Callable[[Mapping[str, Any]], Any],
    *,
    most_runs: int = MOST_RUNS,
) -> MutationReport:
    """Return which mutants the check of these outputs, which passed, kills.

    `inputs` are the arguments before the launch; `reference` computes exact outputs from such arguments, at
    most `most_runs` times.

    Memory: that of the largest output twice, and what a comparison and the reference take.
    """
    right = (replace(output, out=rounded_like(output.out, output.exact)) for output in outputs)
    mutants = [_run_mutant(output, mutated) for output in right for mutated in mutate_output(output)]
    runs = list(shortened_inputs(inputs))
    mutants += [
        mutant
        for name, target, dim, count in runs[:most_runs]
        for mutant in run_input_mutant(outputs, inputs, reference, name, target, dim, count)
    ]
    return MutationReport(mutants=tuple(mutants), skipped=max(0, len(runs) - most_runs))


def _run_mutant(output: ComparedOutput, mutated: MutatedOutput) -> Mutant:
    outcome, detail = _judge(output, mutated.out, mutated.mutation, base=output.out)
    return Mutant(
        mutation=mutated.mutation,
        where=f"{output.name}{mutated.where}",
        outcome=outcome,
        weakness=mutated.weakness_if_equivalent if outcome is Outcome.EQUIVALENT else mutated.weakness,
        detail=detail,
    )


def _judge(
    output: ComparedOutput, mutated: torch.Tensor, mutation: str, *, base: torch.Tensor
) -> tuple[Outcome, str]:
    if not base.numel():
        return Outcome.EQUIVALENT, "no elements: nothing is compared"
    if same_bits(mutated, base):
        return Outcome.EQUIVALENT, _SAME.get(mutation, "the right values need no rounding")
    result = compare(mutated, output.exact, output.bound)
    if result.failed:
        return Outcome.KILLED, ""
    most = f", the largest error {result.worst.error:.2g} of it" if result.worst is not None else ""
    return Outcome.SURVIVED, f"within the bound{most}"
