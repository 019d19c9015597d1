"""Rounding as Tile IR asks for it: modes, flushed denormals, saturation, formats that torch lacks."""

from __future__ import annotations

import math

import torch

_F32_LARGEST_DENORMAL = 2.0**-126 - 2.0**-149


def flush(value: torch.Tensor, *, ftz: bool) -> torch.Tensor:
    """Replace denormal float32 by zero of the same sign if `ftz`."""
    if not ftz or value.dtype != torch.float32:
        return value
    return torch.copysign(torch.nn.functional.hardshrink(value, _F32_LARGEST_DENORMAL), value)


def round_from_f64(
    value: torch.Tensor, error: torch.Tensor | None, dtype: torch.dtype, mode: str
) -> torch.Tensor:
    """Round float64 to `dtype` in a direction; `error`, if given, is what `value` itself lacks of the truth."""
    nearest = value.to(dtype)
    if mode in {"nearest_even", "approx", "full"} or dtype == torch.float64:
        return nearest
    difference = value - nearest.double()
    if error is not None:
        difference = torch.where(difference == 0, error, difference)
    up = torch.full_like(nearest, math.inf)
    above, below = torch.nextafter(nearest, up), torch.nextafter(nearest, -up)
    if mode == "positive_inf":
        return torch.where(difference > 0, above, nearest)
    if mode == "negative_inf":
        return torch.where(difference < 0, below, nearest)
    assert mode == "zero", mode
    smaller = torch.where(nearest > 0, below, above)
    beyond = ((nearest > 0) & (difference < 0)) | ((nearest < 0) & (difference > 0))
    return torch.where(beyond, smaller, nearest)


def round_to_tf32(value: torch.Tensor) -> torch.Tensor:
    """Round float32 to the 10 bits of fraction that tf32 has, ties to even."""
    bits = value.view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(value.isfinite(), rounded.view(torch.float32), value)
