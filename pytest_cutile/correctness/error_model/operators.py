"""Families of aten operators, by what rounding does in them."""

from __future__ import annotations

from typing import Any

import torch

from pytest_cutile.tile.tensors.dtypes import format_of
from pytest_cutile.tile.tensors.trees import named_tensors
from pytest_cutile.words.formats import FLOAT16

PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution"})
# Functions amplify a rounding of their argument, and round their result, which may cancel afterwards.
FUNCTIONS = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh", "cosh", "pow"),
        *("tanh", "sigmoid", "log_sigmoid_forward", "silu", "gelu", "erf", "erfc", "softplus", "mish", "elu"),
        *("logaddexp", "logaddexp2"),
    }
)
COMPOSED = frozenset({"sigmoid", "silu", "gelu", "mish", "softplus", "elu", "log_sigmoid_forward"})
"""Functions that a kernel writes as several operations."""
SUMS = frozenset({"sum", "mean", "var", "std", "linalg_vector_norm", "norm", "logsumexp"})
# Of sums, the operands measure the partial sums.
SENSITIVE = (
    PRODUCTS
    | FUNCTIONS
    | SUMS
    | {
        *("cumsum", "prod", "cumprod", "logcumsumexp", "var_mean", "std_mean"),
        *("_softmax", "_safe_softmax", "_log_softmax"),
        *("native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm"),
    }
)
# A relative error of what they take the logarithm of is an absolute one of theirs.
LOGARITHMIC = frozenset(
    {
        *("logsumexp", "_log_softmax", "log_sigmoid_forward", "softplus", "logaddexp", "logaddexp2"),
        "logcumsumexp",
    }
)
_EXPONENTIAL = LOGARITHMIC | {
    *("exp", "exp2", "expm1", "_softmax", "_safe_softmax", "sigmoid", "silu", "tanh", "sinh", "cosh"),
    *("gelu", "erf", "erfc", "mish", "elu"),
}
# A value that was rounded once is not rounded again when it is moved.
MOVES = frozenset(
    {
        *("clone", "_to_copy", "copy", "cat", "stack", "index", "index_select", "gather", "where", "repeat"),
        *("_unsafe_view", "masked_fill", "tril", "triu", "flip", "roll", "lift_fresh", "constant_pad_nd"),
        *("maximum", "minimum", "max", "min", "amax", "amin", "relu", "neg", "abs", "sort", "topk"),
    }
)
# What is not continuous in its operands.
DISCONTINUOUS = frozenset(
    {
        *("round", "floor", "ceil", "trunc", "fix", "frac", "sign", "sgn", "heaviside", "fmod", "remainder"),
        *("floor_divide", "gt", "ge", "lt", "le", "eq", "ne", "argmax", "argmin", "argsort", "searchsorted"),
        *("bucketize", "signbit"),
    }
)
SELECTIONS = frozenset({"max", "min", "topk", "sort", "kthvalue", "median"})
"""Their values are continuous, and only their indices jump."""
COMPARES = SELECTIONS | {"argmax", "argmin", "argsort"}
"""What finds values by comparing them with each other."""
CONVERSIONS = frozenset({"_to_copy", "to", "copy"})
_MAY_BE_DISCONTINUOUS = DISCONTINUOUS | SELECTIONS | CONVERSIONS
_NEW = frozenset(
    {
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_empty"),
        *("new_empty_strided", "new_zeros", "new_ones", "new_full"),
    }
)
_SEEN_THROUGH = SENSITIVE | MOVES | _MAY_BE_DISCONTINUOUS | _NEW


def is_float64(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def base_name(func: Any) -> str:
    """Return "exp" for aten::exp_.default."""
    name: str = func._schema.name.partition("::")[2]  # noqa: SLF001 - the schema has no public name
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def writes_in_place(func: Any) -> bool:
    return bool(func._schema.name.endswith("_") and func._schema.is_mutable)  # noqa: SLF001


def is_view(func: Any) -> bool:
    infos = [returned.alias_info for returned in func._schema.returns]  # noqa: SLF001
    return any(info is not None and not info.is_write for info in infos)


def jumping(func: Any, args: tuple[Any, ...], result: Any) -> dict[str, torch.Tensor] | None:
    """Return what of a result may jump when floating operands move, by place; None: nothing of any result."""
    name = base_name(func)
    if name not in _MAY_BE_DISCONTINUOUS or not any(map(is_float64, args)):
        return None
    return {place: tensor for place, tensor in named_tensors(result, "") if _jumps(name, tensor)}


def _jumps(name: str, result: torch.Tensor) -> bool:
    if name in DISCONTINUOUS:
        return True
    if name in SELECTIONS:
        return not is_float64(result)
    # to 16 bits it rounds, which is no jump; fewer, and integers, are quantised values
    target = format_of(result.dtype)
    return not result.is_complex() and (target is None or target.bits < FLOAT16.bits)


def is_wide(value: Any) -> bool:
    """Say whether it is a tensor of float64, or of complex numbers of two."""
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)


def is_opaque(func: Any, args: tuple[Any, ...]) -> bool:
    """Say whether an aten operator rounds inside in ways that are not known here: interpolation, det."""
    if torch.Tag.pointwise in func.tags or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if base_name(func) in _SEEN_THROUGH or is_view(func) or func._schema.is_mutable:  # noqa: SLF001
        return False
    return any(map(is_float64, args))


def is_exponential(func: Any, args: tuple[Any, ...]) -> bool:
    """Say whether an aten operator is made of exponentials, as powers are whose exponent varies."""
    name = base_name(func)
    return name in _EXPONENTIAL or (name == "pow" and is_float64(args[1]))
