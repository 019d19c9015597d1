"""The arguments of a declared case, with normal values or others that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pytest_cutile.core.inputs import NORMAL
from pytest_cutile.core.spec import Case, KernelSpec
from pytest_cutile.gates.tensors import MakeTensor
from pytest_cutile.gpu.tensors import seed_from


def input_names(spec: KernelSpec) -> tuple[str, ...]:
    """Return the names of the inputs for which a kernel defines a result, normal ones first."""
    return (NORMAL, *spec.defined_inputs)


def make_arguments(
    spec: KernelSpec, case: Case, *, device: str, seed_text: str, name: str = NORMAL
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of a case's launch.

    Args:
        spec: the kernel.
        case: which of its cases.
        device: where the tensors lie.
        seed_text: what seeds are derived from; a test's id makes that test's inputs.
        name: of `input_names`.
    """
    make = partial(MakeTensor, device=device, seed=seed_from(seed_text))
    made = spec.make_inputs(make, case, name)
    if isinstance(made, Mapping):
        return (), dict(made)
    return (tuple(made) if isinstance(made, tuple | list) else (made,)), {}
