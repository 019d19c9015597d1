"""Poison for memory that was allocated and not yet written, so that what a kernel misses is seen."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_cutile.gpu.dtypes import carrier_of, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

# NaNs with a payload that no conversion or arithmetic makes, so that a NaN which was computed is not
# taken for one that was never overwritten.
_NANS = {
    "float16": 0x7E5A,
    "bfloat16": 0x7FDA,
    "float32": 0x7FC5A5A5,
    "float64": 0x7FF8A5A5A5A5A5A5,
    "float8_e4m3fn": 0xFF,  # the only NaN besides 0x7F, which conversions make
    "float8_e5m2": 0x7D,
}
_BYTE = 0xA5  # in integers and bool


def _pattern(dtype: torch.dtype) -> int:
    if (nan := _NANS.get(name_of(dtype))) is not None:
        return nan
    unsigned = int.from_bytes([_BYTE] * dtype.itemsize, "little")
    wide = dtype.itemsize > 1  # the carrier of one byte is unsigned
    return unsigned - (1 << 8 * dtype.itemsize) if wide else unsigned


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Overwrite `tensor` in place: NaN for floats, bytes of 0xA5 for integers and bool; return it."""
    import torch

    if tensor.device.type == "meta" or tensor.layout != torch.strided or tensor.is_quantized:
        return tensor
    with torch.no_grad():
        if tensor.is_complex():
            tensor.fill_(complex(torch.nan, torch.nan))
        else:
            tensor.detach().view(carrier_of(tensor.dtype)).fill_(_pattern(tensor.dtype))
    return tensor


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a bool tensor: which elements still hold the poison."""
    return tensor.detach().view(carrier_of(tensor.dtype)) == _pattern(tensor.dtype)


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Make torch.empty and its relatives return poisoned memory in this thread."""
    import torch
    from torch.overrides import TorchFunctionMode

    allocators = {
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.empty_permuted,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    }

    class _Poisoner(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            result = func(*args, **(kwargs or {}))
            return poison(result) if func in allocators else result

    with _Poisoner():
        yield
