"""Altered arguments go to a reference on the CPU: an index beyond an end is an exception there.

On a GPU it is a device-side assert, which ends the context and every test after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pytest_cutile.correctness.error_model.injection import Injector
from pytest_cutile.correctness.error_model.running import ReferenceCall
from pytest_cutile.correctness.errors import ReferenceFailed
from pytest_cutile.tile.tensors.trees import is_on_gpu, map_tensors, tensors_in

LARGEST_BYTES = 8 << 20
"""Size of a call's arguments on a GPU up to which they are copied to the CPU, where references are slow."""
SECONDS = 10.0
"""How long a reference may run on altered arguments, for one explanation or report."""


class OnCpu(Injector):
    """Keeps a reference from the GPU: it may move its arguments there by itself."""

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        asked = kwargs.get("device")
        if asked is not None and torch.device(asked).type == "cuda":
            raise ReferenceFailed("the reference computes on the GPU, whatever device its arguments are on")
        if any(is_on_gpu(tensor) for tensor in tensors_in((args, kwargs))):
            raise ReferenceFailed("the reference uses a tensor on the GPU that is none of its arguments")
        return func(*args, **kwargs)


def to_cpu(value: Any) -> Any:
    """Return `value` with its tensors in the CPU's memory."""
    return map_tensors(lambda tensor: tensor.cpu() if is_on_gpu(tensor) else tensor, value)


def on_cpu(call: ReferenceCall) -> ReferenceCall | None:
    """Return a call with its arguments in the CPU's memory; None: on a GPU they are too large for that."""
    on_gpu = [tensor for tensor in tensors_in(call.arguments) if is_on_gpu(tensor)]
    if sum(tensor.nbytes for tensor in on_gpu) > LARGEST_BYTES:
        return None
    return replace(call, args=to_cpu(dict(call.args)), kwargs=to_cpu(dict(call.kwargs)))
