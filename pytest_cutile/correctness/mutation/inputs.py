"""Mutants of an input: what a kernel would compute that ignores the last indices of one dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_cutile.correctness.compare.elements import compare
from pytest_cutile.correctness.compare.outputs import ComparedOutput
from pytest_cutile.correctness.mutation.outputs import TILE, rounded_like
from pytest_cutile.correctness.mutation.report import Mutant, Outcome, Weakness
from pytest_cutile.tensors.dtypes import bits_of
from pytest_cutile.tensors.trees import map_tensors, named_tensors

_ROUNDING = 1e-12


def shortened_inputs(inputs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor, int, int]]:
    """Yield every floating input, dimension and count of last indices that a kernel could ignore."""
    for count in (1, TILE):
        for label, value in inputs.items():
            for name, tensor in named_tensors(value, label):
                if tensor.dtype.is_floating_point and tensor.numel():
                    sizes = enumerate(tensor.shape)
                    yield from ((name, tensor, dim, count) for dim, size in sizes if size >= count)


def run_input_mutant(
    outputs: Sequence[ComparedOutput],
    inputs: Mapping[str, Any],
    reference: Callable[[Mapping[str, Any]], Any],
    name: str,
    target: torch.Tensor,
    dim: int,
    count: int,
) -> Iterator[Mutant]:
    """Judge what a kernel would compute that takes the last `count` indices of an input for zeros.

    What a case makes of them may be nothing, and its bound may hide one of many: another case shows it then.
    No case may hide a tile, nor have inputs that are zero there anyway.
    """
    mutation = "an input's last index ignored" if count == 1 else f"an input's last {count} ignored"

    def shorten(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is not target:
            return tensor
        shortened = tensor.clone()
        bits = bits_of(shortened)
        bits.narrow(dim, bits.shape[dim] - count, count).zero_()
        return shortened

    part = target.narrow(dim, target.shape[dim] - count, count)
    if not bool(bits_of(part).any()):
        yield Mutant(
            mutation=mutation,
            where=f"{name}, dim {dim}",
            of_input=True,
            outcome=Outcome.EQUIVALENT,
            detail="they are zero",
        )
        return
    try:
        results = dict(named_tensors(reference(map_tensors(shorten, dict(inputs))), "output"))
    except Exception:  # noqa: BLE001 - zeros may be no valid input: then no kernel can take them for it
        return
    outcomes = [
        _judge_input(output, results[output.name].to(output.out.device), size=target.shape[dim], count=count)
        for output in outputs
        if output.name in results
    ]
    # An input need not show in every output, but in one of them.
    best = min(outcomes, key=lambda each: [*Outcome].index(each[0]), default=None)
    if best is not None:
        hidden = best[0] is Outcome.SURVIVED and count == TILE
        yield Mutant(
            mutation=mutation,
            where=f"{name}, dim {dim}",
            of_input=True,
            outcome=best[0],
            weakness=Weakness.CASE if hidden else Weakness.KERNEL,
            detail=best[1],
        )


def _judge_input(
    output: ComparedOutput, moved: torch.Tensor, *, size: int, count: int
) -> tuple[Outcome, str]:
    """Judge an output that was computed without a part of an input, at the end of a dimension of `size`.

    Where that part also counts for elements at other indices (a sum over them), the check has to see it
    there: at its own indices it is seen anyway, as in y = x / sum(x).
    """
    exact = output.exact
    if moved.shape != exact.shape:
        return Outcome.KILLED, ""
    differs = _differs(moved, exact)
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


def _differs(moved: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return where two results of the reference differ by more than the rounding of float64."""
    if not exact.dtype.is_floating_point:
        return moved != exact
    return ~moved.isclose(exact, rtol=_ROUNDING, atol=0.0, equal_nan=True)
