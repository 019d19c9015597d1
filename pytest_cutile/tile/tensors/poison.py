"""Poison: what memory holds that nobody wrote, so that what a kernel misses, or should not touch, is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_cutile.tile.compiler.trace.tensors import backward_under
from pytest_cutile.tile.tensors.dtypes import FLOATS, bits_of, format_of, name_of


class Pattern(Enum):
    """What fills memory: a NaN of its own for floats, repeated bytes for integers and bool.

    The NaNs have payloads that no conversion or arithmetic makes; but float8_e4m3fn has only two NaNs.
    """

    UNWRITTEN = (0xA5, 0x7E5A, 0x7FDA, 0x7FC5A5A5, 0x7FF8A5A5A5A5A5A5, 0xFF, 0x7D)
    """What was allocated and not written yet."""
    UNWRITTEN_AGAIN = (0x5A, *UNWRITTEN[1:5], 0x7F, 0x7D)
    """What another launch finds there: either pattern may be a value, but not first one, then the other."""
    BESIDE_INPUT = (0xB4, 0x7E4B, 0x7FCB, 0x7FC4B4B4, 0x7FF8B4B4B4B4B4B4, 0xFF, 0xFD)
    """What lies before, between and behind the elements of inputs."""
    BESIDE_OUTPUT = (0xC3, 0x7E3C, 0x7FEC, 0x7FC3C3C3, 0x7FF8C3C3C3C3C3C3, 0xC3, 0xC3)
    """What lies beside outputs. No NaN for 8-bit floats, lest a kernel writes the same one there."""

    BESIDE_INPUT_AGAIN = (0x7F, 0x7C00, 0x7F80, 0x7F800000, 0x7FF0 << 48, 0x7E, 0x7C)
    """What lies beside inputs when a launcher runs again: Inf, and large integers, which a maximum or a
    comparison does not swallow as it does NaN. float8_e4m3fn has no Inf: its largest number."""
    ZERO = (0,) * 7
    """What lies beside an input, to see whether that matters."""

    def of(self, dtype: torch.dtype) -> int:
        """Return the pattern for a dtype (not a complex one) as a value of `carrier_of(dtype)`."""
        byte, *nans = self.value
        name = name_of(dtype)
        if name in FLOATS:
            return nans[FLOATS.index(name)]
        # the carrier of one byte is unsigned
        return int.from_bytes([byte] * dtype.itemsize, "little", signed=dtype.itemsize > 1)


def poison(tensor: torch.Tensor, pattern: Pattern = Pattern.UNWRITTEN) -> torch.Tensor:
    if tensor.device.type == "meta" or tensor.layout != torch.strided or tensor.is_quantized:
        return tensor
    with torch.no_grad():
        real = _parts_of(tensor)
        bits_of(real).fill_(pattern.of(real.dtype))
    return tensor


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the elements of `tensor`, with those once that a stride of 0 repeats."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def laid_out(
    tensor: torch.Tensor, strides: Sequence[int], offset: int, pattern: Pattern = Pattern.UNWRITTEN
) -> torch.Tensor:
    """Return a copy with other strides, behind `offset` elements; these and the gaps hold the pattern."""
    once = distinct(tensor)
    reach = sum((size - 1) * step for size, step in zip(once.shape, strides, strict=True))
    memory = torch.empty(
        offset + (1 + reach if once.numel() else 0), dtype=tensor.dtype, device=tensor.device
    )
    poison(memory, pattern)
    bits_of(memory.as_strided(once.shape, strides, offset)).copy_(bits_of(once))
    return memory.as_strided(tensor.shape, strides, offset)


def poisoned(tensor: torch.Tensor, pattern: Pattern = Pattern.UNWRITTEN) -> torch.Tensor:
    """Return a bool tensor: which elements, or parts of complex numbers, still hold the pattern."""
    real = _parts_of(tensor)
    return bits_of(real) == pattern.of(real.dtype)


def _parts_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as their parts, in another dimension; others as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def may_be_value(dtype: torch.dtype) -> bool:
    """Return whether a kernel may write the pattern of a dtype, too: an integer, or float8_e4m3fn's NaN."""
    target = format_of(dtype)
    return not dtype.is_floating_point or (target is not None and not target.has_infinity)


@contextmanager
def poisoned_allocations(
    enclose: Callable[[torch.Tensor, bool], torch.Tensor] | None = None,
    pattern: Pattern = Pattern.UNWRITTEN,
) -> Iterator[None]:
    """Make torch.empty and its relatives return poisoned memory in this thread.

    What escapes: `torch.Tensor(40)`, which torch lets nobody see, and what torch's own operators allocate,
    which they write wholly. `enclose` is called with a tensor just made (also by torch.zeros, ones, full and
    their relatives) and whether it has values; it returns one of the same layout elsewhere.
    """
    own = torch.Tensor
    uninitialized = {
        *(torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted),
        *(own.new_empty, own.new_empty_strided, own.new),
    }
    filled = {
        *(torch.zeros, torch.ones, torch.full, torch.zeros_like, torch.ones_like, torch.full_like),
        *(own.new_zeros, own.new_ones, own.new_full),
    }

    class _Poisoner(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            kwargs = kwargs or {}
            if func in (own.resize_, own.resize_as_):
                return _resize(enclose, pattern, func, *args, **kwargs)
            result = func(*args, **kwargs)
            # `x.new([1, 2])` has values
            empty = func in uninitialized and (func is not own.new or _is_shape(args[1:]))
            if enclose is not None and (empty or func in filled) and kwargs.get("out") is None:
                result = enclose(result, not empty)
            return poison(result, pattern) if empty else result

    poisoner = _Poisoner()
    owner, name, replacement = backward_under(poisoner)
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        with poisoner:
            yield
    finally:
        setattr(owner, name, original)


def _is_shape(args: tuple[Any, ...]) -> bool:
    return all(isinstance(argument, (int, torch.Size)) for argument in args)


def _resize(
    enclose: Callable[[torch.Tensor, bool], torch.Tensor] | None,
    pattern: Pattern,
    func: Callable[..., torch.Tensor],
    tensor: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    kept = tensor.numel()
    result = func(tensor, *args, **kwargs)
    if result.numel() <= kept or result.layout != torch.strided or not result.is_contiguous():
        return result
    if enclose is not None:
        with torch.no_grad():
            fresh = enclose(result, True)  # else it grows into what lies behind it
            result.set_(fresh.untyped_storage(), fresh.storage_offset(), fresh.shape, fresh.stride())
    poison(result.detach().view(-1)[kept:], pattern)
    return result
