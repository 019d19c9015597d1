"""Run the mutants of a check: mutate a right result in ways that bugs do, and compare the mutant.

Mutants of an *output* are made of the exact values, rounded once: a tile missing, two heads exchanged, a
truncating cast. (A bug of the kernel may have removed what is to be mutated.) They show how much the bound
lets through, and inputs of which too much is alike. Mutants of an *input* are what the kernel would have
computed without the last indices of one dimension, by the reference. They show inputs that hide a part of a
sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_cutile.correctness.compare.elements import compare
from pytest_cutile.correctness.compare.outputs import ComparedOutput
from pytest_cutile.correctness.mutation.outputs import TILE, mutate_output, rounded_like
from pytest_cutile.correctness.mutation.report import Mutant, MutationReport, Outcome, Weakness
from pytest_cutile.tensors.dtypes import bits_of, same_bits
from pytest_cutile.tensors.trees import map_tensors, named_tensors

MOST_RUNS = 32
"""Runs of the reference that mutated inputs may cost."""
_ROUNDING = 1e-12
"""Of float64, relative: what sums in another order may differ by."""
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
    mutants = [
        _run_mutant(output, mutant, mutated) for output in right for mutant, mutated in mutate_output(output)
    ]
    shortened = [*_shortened_inputs(inputs)]
    of_inputs = (_run_shortened(outputs, inputs, reference, *each) for each in shortened[:most_runs])
    mutants += [mutant for mutant in of_inputs if mutant is not None]
    return MutationReport(mutants=tuple(mutants), skipped=max(0, len(shortened) - most_runs))


def _run_mutant(output: ComparedOutput, mutant: Mutant, mutated: torch.Tensor) -> Mutant:
    """Return the mutant of an output with its outcome."""
    equivalent = replace(mutant, outcome=Outcome.EQUIVALENT)
    if not output.out.numel():
        return replace(equivalent, detail="no elements: nothing is compared")
    if same_bits(mutated, output.out):
        if mutant.mutation in _SAME:
            return replace(equivalent, detail=_SAME[mutant.mutation])
        # Values that need no rounding (copies, sums of small integers) are no fault of the inputs.
        weakness = Weakness.KERNEL if mutant.weakness == Weakness.CASE else mutant.weakness
        return replace(equivalent, weakness=weakness, detail="the right values need no rounding")
    result = compare(mutated, output.exact, output.bound)
    if result.failed:
        return mutant
    most = "" if result.worst is None else f", the largest error {result.worst.error:.2g} of it"
    return replace(mutant, outcome=Outcome.SURVIVED, detail=f"within the bound{most}")


def _shortened_inputs(inputs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor, int, int]]:
    """Yield every floating input, dimension and count of last indices that a kernel could ignore."""
    for count in (1, TILE):
        for label, value in inputs.items():
            for name, tensor in named_tensors(value, label):
                if tensor.dtype.is_floating_point and tensor.numel():
                    sizes = enumerate(tensor.shape)
                    yield from ((name, tensor, dim, count) for dim, size in sizes if size >= count)


def _run_shortened(
    outputs: Sequence[ComparedOutput],
    inputs: Mapping[str, Any],
    reference: Callable[[Mapping[str, Any]], Any],
    name: str,
    target: torch.Tensor,
    dim: int,
    count: int,
) -> Mutant | None:
    """Compare what a kernel would compute that takes the last `count` indices of an input for zeros.

    What a case makes of them may be nothing, and its bound may hide one of many: another case shows it then.
    No case may hide a tile, nor have inputs that are zero there anyway. None: no output shows it.
    """
    last = "last index" if count == 1 else f"last {count}"
    mutant = Mutant(mutation=f"an input's {last} ignored", where=f"{name}, dim {dim}", of_input=True)
    shortened = target.clone()
    part = bits_of(shortened).narrow(dim, target.shape[dim] - count, count)
    if not bool(part.any()):
        return replace(mutant, outcome=Outcome.EQUIVALENT, detail="they are zero")
    part.zero_()
    changed = map_tensors(lambda tensor: shortened if tensor is target else tensor, dict(inputs))
    try:
        results = dict(named_tensors(reference(changed), "output"))
    except Exception:  # noqa: BLE001 - zeros may be no valid input: then no kernel can take them for it
        return None
    outcomes = [
        _outcome_of(output, results[output.name].to(output.out.device), size=target.shape[dim], count=count)
        for output in outputs
        if output.name in results
    ]
    if not outcomes:
        return None
    # an input need not show in every output, but in one of them
    outcome, detail = min(outcomes, key=lambda pair: [*Outcome].index(pair[0]))
    hidden = outcome is Outcome.SURVIVED and count == TILE
    weakness = Weakness.CASE if hidden else Weakness.KERNEL
    return replace(mutant, outcome=outcome, detail=detail, weakness=weakness)


def _outcome_of(output: ComparedOutput, moved: torch.Tensor, *, size: int, count: int) -> tuple[Outcome, str]:
    """Compare an output that was computed without a part of an input, at the end of a dimension of `size`.

    Where that part also counts for elements at other indices (a sum over them), the check has to see it
    there: at its own indices it is seen anyway, as in y = x / sum(x).
    """
    exact = output.exact
    if moved.shape != exact.shape:
        return Outcome.KILLED, ""
    differs = moved != exact
    if exact.dtype.is_floating_point:
        differs = ~moved.isclose(exact, rtol=_ROUNDING, atol=0.0, equal_nan=True)
    if not bool(differs.any()):
        return Outcome.EQUIVALENT, "the exact output is the same without them"
    elsewhere = differs.clone()
    for dim, length in enumerate(exact.shape):
        if length == size:
            elsewhere.narrow(dim, size - count, count).fill_(False)
    if bool(elsewhere.any()):
        moved = torch.where(elsewhere, moved, exact)
    if compare(rounded_like(output.out, moved), exact, output.bound).failed:
        return Outcome.KILLED, ""
    return Outcome.SURVIVED, "the exact output moves by less than the bound allows"
