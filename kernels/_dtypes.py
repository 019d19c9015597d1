"""Names and sizes of dtypes, and the dtypes that a result may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch

FP8 = ("float8_e4m3fn", "float8_e5m2")
SHORT = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
"""What the cases' names call them."""
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Bytes of an element."""
SMALLEST_FLOAT32, LARGEST_FLOAT32 = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""The smallest positive float32 that is not a denormal number, and the largest that is finite."""
FP8_ARCH = "sm_90"
"""The oldest architecture that 8-bit floats are compiled for.

Ada (sm_89) has them, but cuda-tile 1.7.0 refuses them there: `_passes/check_dtype_support.py`.
"""
MIN_ARCH = dict.fromkeys(FP8, FP8_ARCH)
"""The oldest architecture that a dtype is compiled for, where that is not all of them."""


def generation(arch: str) -> int:
    """Return the number by which architectures are ordered: that of "sm_90" is 90."""
    return int(arch.removeprefix("sm_"))


def choose_out_dtype(
    kernel: str,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None,
    *,
    default: torch.dtype,
    others: Collection[torch.dtype],
) -> torch.dtype:
    """Return the dtype of a result of operands of `dtype`.

    Args:
        kernel: The kernel's name, for the message.
        dtype: Of the operands.
        out_dtype: What the kernel's user asks for, or None.
        default: What it is if nothing was asked for.
        others: What it may be besides the operands'.

    Raises:
        TypeError: `out_dtype` is no dtype, or not supported for these operands.
    """
    import torch

    if out_dtype is None:
        return default
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(
            f"{kernel}: out_dtype must be a torch.dtype, e.g. torch.float16, "
            f"got {type(out_dtype).__name__} {out_dtype!r}"
        )
    if out_dtype != dtype and out_dtype not in others:
        raise TypeError(
            f"{kernel}: out_dtype is {out_dtype}; for operands of {dtype} supported are "
            f"{', '.join(sorted({str(name) for name in (dtype, *others)}))}"
        )
    return out_dtype
