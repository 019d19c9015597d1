"""What a check asks for apart from the reference: formats, tolerance and numerics policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy
from pytest_cutile.spec import CheckOptions
from pytest_cutile.tensors.dtypes import format_of, resolve_dtype
from pytest_cutile.tensors.formats import FLOAT32, FORMATS, FloatFormat
from pytest_cutile.tensors.trees import named_tensors

if TYPE_CHECKING:
    import torch

_FLOAT64_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms that outputs are compared on."""

    reduction: int
    """Length of the longest sum behind one output element."""
    operands: FloatFormat
    """Format that operands of matrix products are rounded to."""
    policy: NumericsPolicy
    tolerance: tuple[float, float] | None
    """rtol and atol, given in place of the derived bound."""
    wide: bool
    """Whether floating inputs, but for single numbers, are all 64 bits wide."""
    may_narrow: bool
    """Whether none is, or the options say what operands are rounded to."""

    @classmethod
    def of(cls, options: CheckOptions, inputs: Mapping[str, Any]) -> Terms:
        """Resolve the options of a check; raise ValueError for an impossible `precision` or `mid`."""
        dtypes = _floating_dtypes(inputs)
        mid = _format("mid", options.mid)
        if mid is FORMATS["float64"]:
            raise ValueError("mid is what intermediate results are rounded to, and nothing is to float64")
        given = options.rtol is not None or options.atol is not None
        return cls(
            reduction=options.reduction,
            operands=_format("precision", options.precision) or _operand_format(dtypes),
            policy=NumericsPolicy(mid=mid, exp_error=options.exp_error, fast_acc=options.fast_acc),
            tolerance=(options.rtol or 0.0, options.atol or 0.0) if given else None,
            wide=bool(dtypes) and all(dtype.itemsize == _FLOAT64_BYTES for dtype in dtypes),
            may_narrow=options.precision is not None
            or all(dtype.itemsize < _FLOAT64_BYTES for dtype in dtypes),
        )


def _floating_dtypes(inputs: Mapping[str, Any]) -> set[torch.dtype]:
    """Return the real floating dtypes of inputs; those of single numbers only if there are no others."""
    tensors = [tensor for _, tensor in named_tensors(dict(inputs), "input")]
    tensors = [tensor for tensor in tensors if tensor.dtype.is_floating_point or tensor.is_complex()]
    large = [tensor for tensor in tensors if tensor.numel() > 1]
    return {tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype for tensor in large or tensors}


def _operand_format(dtypes: Iterable[torch.dtype]) -> FloatFormat:
    """Return what tensor cores round operands to: the coarsest floating input dtype."""
    formats = [target for dtype in dtypes if (target := format_of(dtype)) is not None]
    return min(formats, key=lambda target: target.precision, default=FLOAT32)


def _format(option: str, dtype: torch.dtype | str | None) -> FloatFormat | None:
    if dtype is None or dtype in ("tf32", "tfloat32"):
        return None if dtype is None else FORMATS["tfloat32"]
    target = format_of(resolve_dtype(dtype))
    if target is None:
        raise ValueError(f"{option} must be a floating-point dtype or 'tfloat32', got {dtype!r}")
    return target
