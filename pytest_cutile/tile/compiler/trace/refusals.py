"""What `cuda.tile.launch` refuses on a GPU: tensors on the CPU, and streams that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pytest_cutile.tile.compiler.trace.cuda_api import PretendedStream

_STREAM_NAMES = {"Stream", "ExternalStream", "CUstream"}
_STREAM_PACKAGES = {"torch", "cupy", "numba", "cuda"}
"""Packages whose streams `cuda.tile.launch` takes, besides the address of one as an int."""


def check_stream(stream: Any) -> None:
    """Raise what `cuda.tile.launch` raises of something that is no stream."""
    if stream is None:
        raise TypeError("Stream is required, got None: give torch.cuda.current_stream()")
    if isinstance(stream, (int, PretendedStream)):
        return
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(stream).__mro__}
    on_cpu = type(stream).__module__.startswith("torch.cpu")
    if on_cpu or not any(package in _STREAM_PACKAGES and name in _STREAM_NAMES for package, name in names):
        raise TypeError(f"Unsupported stream type '{type(stream).__name__}'.")


def check_on_gpu(
    arguments: tuple[Any, ...], on_gpu: Callable[[torch.Tensor], bool], *, takes_cpu: bool
) -> None:
    """Raise what `cuda.tile.launch` raises of a kernel's argument on the CPU.

    With `takes_cpu` all of them may be there, but not some.
    """
    tensors = [*_numbered_tensors(arguments)]
    there = [on_gpu(tensor) for _, tensor in tensors]
    if all(there) or (takes_cpu and not any(there)):
        return
    position, tensor = tensors[there.index(False)]
    raise TypeError(
        f"kernel argument #{position}: Input array is not on a CUDA device: "
        f"a tensor of shape {list(tensor.shape)} is on the CPU; make it with device=..., or move it"
    )


def _numbered_tensors(arguments: tuple[Any, ...]) -> Iterable[tuple[int, torch.Tensor]]:
    for position, argument in enumerate(arguments):
        for value in argument if isinstance(argument, (tuple, list)) else (argument,):
            if isinstance(value, torch.Tensor):
                yield position, value
