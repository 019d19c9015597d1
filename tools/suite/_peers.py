"""Peers that several kernels have in common."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cuda.tile as ct
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_cutile import Work


COPIES = ("copy", "copy-kernel")


def copies_of(work: Work) -> dict[str, Callable[[], object]]:
    """Return plain copies that move as many bytes as `work`: half of them read, half of them written.

    By CUDA, and by a kernel of PyTorch that changes nothing but signs: of some sizes, from 400 MB on, CUDA
    copies at two thirds of what it reaches with others (H200, driver 580.159.04, 2026-11-22).
    """
    source = torch.zeros(-(-int(work.bytes) // 8), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return {"copy": lambda: target.copy_(source), "copy-kernel": lambda: torch.neg(source, out=target)}


def torch_peers(
    eager: Callable[..., object], args: Sequence[Any], work: Work
) -> dict[str, Callable[[], object]]:
    """Return PyTorch's functions, as they are and compiled, of `args`; and copies of the same bytes."""
    fused = compiled(eager)
    return {"torch": lambda: eager(*args), "compile": lambda: fused(*args), **copies_of(work)}


class InPlace:
    """A peer that writes its result over its arguments: right is what the first call on fresh ones leaves."""

    def __init__(self, call: Callable[..., object], *fresh: torch.Tensor) -> None:
        """Let `call` work on copies of `fresh`."""
        self._call = call
        self._fresh = fresh
        self._taken = [tensor.clone() for tensor in fresh]

    def __call__(self) -> object:
        """Call it once more, on what the last call left."""
        return self._call(*self._taken)

    def once(self) -> object:
        """Call it on fresh arguments."""
        for taken, fresh in zip(self._taken, self._fresh, strict=True):
            taken.copy_(fresh)
        return self()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as torch.compile makes it, given time; it compiles at the first call."""
    result: Callable[..., Any] = torch.compile(function, mode="max-autotune-no-cudagraphs")
    return result


def has_tilegym() -> bool:
    """Import TileGym, which is optional, and say whether it is there.

    What the import does to `cuda.tile.launch` is undone.
    """
    with kept_launch():
        try:
            import tilegym  # noqa: F401
        except ImportError:
            return False
    return True


@contextmanager
def kept_launch() -> Iterator[None]:
    """Put `cuda.tile.launch` back at the end.

    To warn of experimental kernels, TileGym replaces it by a function that takes fewer arguments.
    """
    launch = ct.launch
    try:
        yield
    finally:
        ct.launch = launch
