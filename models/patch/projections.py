"""Projections of the same input as one product: their weights lie one behind another in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

Project: TypeAlias = "Callable[[Tensor], Sequence[Tensor]]"


def project_together(layers: Sequence[Any], *, fuse: bool) -> Project:
    """Return a function from `[..., K]` to the output of each layer, `[..., N]`, by one product if `fuse`.

    Layers that are more than an `nn.Linear`, such as adapters or those with hooks, keep their own products.
    """
    if not (fuse and all(_is_plain(layer) for layer in layers)):
        return lambda x: [layer(x) for layer in layers]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if len(biases) not in (0, len(layers)):
        return lambda x: [layer(x) for layer in layers]
    weight, bias = join([layer.weight for layer in layers]), join(biases) if biases else None
    sizes = [len(layer.weight) for layer in layers]
    return lambda x: functional.linear(x, weight, bias).split(sizes, -1)


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks)  # noqa: SLF001


def join(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return one tensor with the rows of all parameters, which become views of it.

    The parameters stay the same objects with the same values, and no memory is held twice. Joined parameters
    stay so: joining them again copies nothing, and CUDA graphs keep their addresses.

    Args:
        parameters: `[N, ...]` each, of one dtype and device, alike but for N.
    """
    if not all(_follows(second, first) for first, second in pairwise(parameters)):
        joined = torch.cat([parameter.data for parameter in parameters])
        for parameter, part in zip(parameters, joined.split([*map(len, parameters)]), strict=True):
            parameter.data = part
    first = parameters[0].data
    return first.as_strided((sum(map(len, parameters)), *first.shape[1:]), first.stride())


def _follows(second: Tensor, first: Tensor) -> bool:
    """Return whether the second tensor lies right behind the first, both row by row."""
    return (
        first.is_contiguous()
        and second.is_contiguous()
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and first.storage_offset() + first.numel() == second.storage_offset()
    )
