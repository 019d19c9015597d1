"""Whether two results can be compared: the same structure, shapes, kinds of dtypes, and what is no tensor."""

from __future__ import annotations

from enum import Enum
from numbers import Number
from typing import Any

import torch

from pytest_cutile.correctness.error_model.parts import OUTPUT
from pytest_cutile.correctness.errors import KernelMismatch, ReferenceFailed, UncheckableOutput
from pytest_cutile.tile.tensors.dtypes import name_of
from pytest_cutile.tile.tensors.trees import describe, named_leaves, named_tensors
from pytest_cutile.words.verdicts import Reason


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def pair_outputs(
    outputs: Any, exact: Any, title: str, *, exact_needed: bool
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return every output with its name and exact value; `exact_needed` demands float64 references.

    Raises:
        KernelMismatch: the structure, a shape or a non-tensor value differs.
        ReferenceFailed: the reference returned incomparable values.
        UncheckableOutput: the kernel returned something that the check cannot look into.
    """
    left, right = dict(named_tensors(outputs, OUTPUT)), dict(named_tensors(exact, OUTPUT))
    if {name: out.shape for name, out in left.items()} != {name: out.shape for name, out in right.items()}:
        got, expected = describe(outputs), describe(exact)
        raise KernelMismatch(
            f"{title} in structure or shape: {got} instead of {expected}", reason=Reason.OTHER_STRUCTURE
        )
    _compare_others(outputs, exact, title)
    for name, out in left.items():
        given = right[name]
        if out.dtype.is_floating_point and given.dtype.is_floating_point:
            if exact_needed and given.dtype.itemsize < 8:  # noqa: PLR2004
                raise ReferenceFailed(
                    f"the reference returned {name} as {name_of(given.dtype)}: it has to compute and return "
                    "float64, without rounding to the kernel's dtype, or rtol and atol have to be given"
                )
        elif _kind(out.dtype) != _kind(given.dtype):
            raise ReferenceFailed(
                f"the reference returned {name} as {name_of(given.dtype)}, the kernel as "
                f"{name_of(out.dtype)}: floating outputs are compared with float64, "
                "integers with integers, bool with bool"
            )
        if given.device != out.device:
            raise ReferenceFailed(
                f"the reference returned {name} on {given.device}, the kernel on {out.device}: "
                "return it on the device of the arguments, which are where the kernel's are"
            )
    return [(name, out, right[name]) for name, out in left.items()]


def _compare_others(outputs: Any, exact: Any, title: str) -> None:
    ours, theirs = _others(outputs, UncheckableOutput), _others(exact, ReferenceFailed)
    for name in dict.fromkeys([*ours, *theirs]):
        got, expected = ours.get(name, _NOTHING), theirs.get(name, _NOTHING)
        if got != expected and not (got != got and expected != expected):  # noqa: PLR0124 - NaN is NaN
            raise KernelMismatch(
                f"{title} in what is no tensor, and has to be equal: "
                f"{name} is {got!r}, expected {expected!r}",
                reason=Reason.OTHER_STRUCTURE,
            )


def _others(result: Any, error: type[Exception]) -> dict[str, Any]:
    plain = (Number, str, bytes, Enum, type(None), torch.dtype, torch.device)
    others = {name: leaf for name, leaf in named_leaves(result, OUTPUT) if not isinstance(leaf, torch.Tensor)}
    for name, value in others.items():
        if not isinstance(value, plain):
            who = "the reference" if error is ReferenceFailed else "the kernel"
            raise error(
                f"{who} returned {name} as {type(value).__name__}, which the check cannot look into: return "
                "tensors in tuples, lists and dicts, with numbers, strings and None beside them if need be"
            )
    return others


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "floating"
    return "complex" if dtype.is_complex else {"bool": "bool"}.get(name_of(dtype), "integer")
