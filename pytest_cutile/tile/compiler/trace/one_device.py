"""Torch operations that a GPU refuses where some of their tensors are on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

_ONE_DEVICE = (
    *("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "truediv"),
    *("floordiv", "remainder", "mod", "fmod", "pow", "float_power", "maximum", "minimum", "fmax", "fmin"),
    *("atan2", "hypot", "copysign", "logaddexp", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("where", "lerp", "addcmul", "addcdiv", "clamp", "isclose", "allclose", "equal", "masked_fill"),
    *("matmul", "mm", "bmm", "mv", "dot", "outer", "addmm", "addmv", "baddbmm", "einsum", "tensordot"),
    *("cat", "concat", "stack", "hstack", "vstack", "gather", "scatter", "scatter_add", "index_select"),
    *("index_add", "take_along_dim", "bucketize", "searchsorted"),
    *("linear", "embedding", "cross_entropy", "nll_loss", "mse_loss", "layer_norm", "rms_norm"),
    *("scaled_dot_product_attention", "conv1d", "conv2d"),
)
"""Operations that want all tensors on one device; others take some on the CPU (an index, what is copied)."""


def _functions() -> Iterable[Callable[..., Any]]:
    for owner in (torch, torch.Tensor, torch.nn.functional):
        for name in _ONE_DEVICE:
            for spelled in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__"):
                if callable(function := getattr(owner, spelled, None)):
                    yield function


WANT_ONE_DEVICE = frozenset(_functions())


def refuse_two_devices(
    func: Callable[..., Any], on_gpu: Sequence[bool], tensors: Sequence[torch.Tensor]
) -> None:
    """Raise what torch raises on a GPU if some of the tensors are on the CPU; one of 0 dimensions may be."""
    if not any(on_gpu):
        return
    for tensor, is_there in zip(tensors, on_gpu, strict=True):
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            if is_there or not tensor.dim() or not tensor.numel():
                continue
            shape = list(tensor.shape)
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({getattr(func, '__name__', 'torch')}: the tensor of shape {shape} is on the CPU)"
        )
