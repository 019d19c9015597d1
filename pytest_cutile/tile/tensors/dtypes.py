"""Dtypes by name, and the float format of each."""

from __future__ import annotations

import torch

from pytest_cutile.words.formats import FORMATS, FloatFormat

_ALIASES = {alias: target.name for target in FORMATS.values() for alias in target.aliases}
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
_SIGNED = ("int8", "int16", "int32", "int64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
DTYPE_NAMES = ("bool", *_SIGNED, *_UNSIGNED, *FLOATS)
"""Every dtype that a cuTile array can have and torch knows."""


def resolve_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Return the torch dtype of a dtype or its name: "float16", "torch.float16" or "fp16".

    Raises:
        TypeError: neither a dtype nor a string.
        ValueError: not a dtype that a cuTile array can have, or one that this torch lacks.
    """
    if isinstance(dtype, torch.dtype):
        name = name_of(dtype)
    elif isinstance(dtype, str):
        name = dtype.removeprefix("torch.").lower()
        name = _ALIASES.get(name, name)
    else:
        raise TypeError(
            f"dtype must be a torch.dtype or its name, such as 'float16'; got {type(dtype).__name__}"
        )
    if name not in DTYPE_NAMES:
        raise ValueError(f"{dtype!r} is no dtype of a cuTile array; those are {', '.join(DTYPE_NAMES)}")
    resolved = getattr(torch, name, None)
    if not isinstance(resolved, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name}")  # noqa: TRY004 - a missing feature
    return resolved


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def format_of(dtype: torch.dtype) -> FloatFormat | None:
    """Return the float format of `dtype`; None for integers, bool and formats that are not checked."""
    return FORMATS.get(name_of(dtype))


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor`, seen as integers of the same width; complex128 as two of them in another dimension."""
    bits = tensor.detach().resolve_conj()
    if bits.dtype == torch.complex128:
        bits = torch.view_as_real(bits)
    return bits.view(carrier_of(bits.dtype))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one dtype hold the same, NaN and signs of zero included."""
    return torch.equal(bits_of(one), bits_of(other))


def carrier_of(dtype: torch.dtype) -> torch.dtype:
    """Return the integer dtype whose elements are as wide as those of `dtype`, to see its bits."""
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
