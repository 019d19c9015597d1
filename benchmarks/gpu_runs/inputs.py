"""The arguments of a declared case, with normal values or others that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from pytest_cutile.core.spec import Case, KernelSpec
from pytest_cutile.gates.tensors import MakeTensor
from pytest_cutile.gpu.tensors import Distribution

if TYPE_CHECKING:
    import torch

NORMAL = "normal"


def input_names(spec: KernelSpec) -> tuple[str, ...]:
    """Return the names of the inputs for which a kernel defines a result, normal ones first."""
    del spec
    return (NORMAL, *(name for name in get_args(Distribution) if name != NORMAL))


def make_arguments(
    spec: KernelSpec, case: Case, *, device: str, seed_text: str, name: str = NORMAL
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of a case's launch.

    Args:
        spec: the kernel.
        case: which of its cases.
        device: where the tensors lie.
        seed_text: what seeds are derived from; a test's id makes that test's inputs.
        name: of `input_names`: what tensors hold that are asked for without a distribution.
    """
    made = spec.inputs(_Named(MakeTensor(device=device, seed_text=seed_text), name), **case.params)
    if isinstance(made, Mapping):
        return (), dict(made)
    return (tuple(made) if isinstance(made, tuple | list) else (made,)), {}


class _Named:
    """Makes tensors of another distribution where none is asked for."""

    def __init__(self, make_tensor: MakeTensor, name: str) -> None:
        self._make_tensor = make_tensor
        self._name = name

    def __call__(self, shape: Any, dtype: Any, **options: Any) -> torch.Tensor:
        return self._make_tensor(shape, dtype, **{"dist": self._name, **options})
