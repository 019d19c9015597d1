"""The arguments of a declared case, with normal values or others that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pytest_cutile.tile.tensors.seeded import MakeTensor, seed_from
from pytest_cutile.words.input_names import NORMAL
from pytest_cutile.words.spec import Case, KernelSpec


def input_names(spec: KernelSpec) -> tuple[str, ...]:
    """Return the names of the inputs for which a kernel defines a result, normal ones first."""
    return (NORMAL, *spec.defined_inputs)


def make_inputs(spec: KernelSpec, case: Case, *, device: str, seed_text: str, name: str = NORMAL) -> Any:
    """Return what a spec's `inputs` makes for a case.

    Args:
        spec: the kernel.
        case: which of its cases.
        device: where the tensors lie.
        seed_text: what seeds are derived from; a test's id makes that test's inputs.
        name: of `input_names`.
    """
    return spec.make_inputs(partial(MakeTensor, device=device, seed=seed_from(seed_text)), case, name)


def as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a spec's `inputs` returned as positional and keyword arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def make_arguments(
    spec: KernelSpec, case: Case, *, device: str, seed_text: str, name: str = NORMAL
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of a case's launch; see `make_inputs`."""
    return as_arguments(make_inputs(spec, case, device=device, seed_text=seed_text, name=name))
