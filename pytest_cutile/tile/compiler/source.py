"""A digest of a kernel as its author wrote it, for the arguments of one launch.

It says whose doing a worse kernel is: if the digest is the stored one, the toolchain made the difference.
Digested are:

- the kernel's function and all that it reaches (`reach.py`);
- hints as they are resolved for the architecture, but for those at cuda-tile's default: later versions may
  bring more of them. The text of `@ct.kernel(...)` is left out, since a launch may replace what it says;
- what a launch specializes for: dtypes, ranks and layouts of arrays, types of scalars, values of constants.
  The grid is not compiled in.

Nothing in it names a version, a file's place or an address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.fingerprint import settled_strides
from pytest_cutile.tile.compiler.reach import describe, describe_kernel
from pytest_cutile.tile.compiler.signature import derive_signature
from pytest_cutile.tile.compiler.trace.launches import Launch

DIGEST_RULES = 3
"""Counts changes of the rules: digests made by different rules cannot be compared."""

SPEED_RULES = 2
"""Counts changes of the rules of `declaration_digest`."""
FINGERPRINT_RULES = 3
"""Counts changes of the rules for the fingerprint of a case that is timed."""

_DIGITS = 16
_ARRAY_FACTS = (
    "shape_constant",
    "shape_divisible_by",
    "stride_constant",
    "stride_divisible_by",
    "base_addr_divisible_by",
    "may_alias_internally",
)


def source_digest(launch: Launch, arch: str) -> str:
    """Return 16 hexadecimal digits that change with the kernel's source and with what it is compiled for."""
    return digest_text(source_text(launch, arch))


def declaration_digest(functions: Iterable[Callable[..., Any]], params: Mapping[str, Any]) -> str:
    """Return a digest of a launcher, and of what makes its inputs, as their authors wrote them.

    It holds the kernels that the launcher reaches, and depends on no compiler and no driver. What a run keeps
    in an object changes it, too, but not what it keeps in a module's container that begins empty.
    """
    return versioned_digest(describe([*functions, dict(params)]))


def versioned_digest(lines: Iterable[str], rules: int = SPEED_RULES) -> str:
    """Return a digest for speed baselines, with the number of the rules in front."""
    return f"{rules}-{digest_text(chr(10).join(lines))}"


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def source_text(launch: Launch, arch: str) -> str:
    """Return what `source_digest` digests, to see what two launches differ in."""
    lines = [f"rules {DIGEST_RULES}"]
    for name, value in cutile.compiler_hints(launch.kernel, arch).items():
        lines.append(f"hint {name} = {value!r}")
    signature = derive_signature(launch.kernel, [_with_settled_strides(value) for value in launch.args])
    for index, constraint in enumerate(signature.parameters):
        lines.append(f"argument {index} = {_constraint_text(constraint)}")
    return "\n".join([*lines, *describe_kernel(cutile.kernel_function(launch.kernel))])


def _with_settled_strides(value: Any) -> Any:
    import torch

    if type(value) in {tuple, list}:
        return type(value)(_with_settled_strides(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().as_strided(value.shape, settled_strides(value), value.storage_offset())


def _constraint_text(constraint: Any) -> str:
    """Return what a launch assumes of one argument, in words that no version of cuda-tile changes."""
    from cuda.tile.compilation import (
        ArrayConstraint,
        ConstantConstraint,
        ListConstraint,
        ScalarConstraint,
        TupleConstraint,
    )

    if isinstance(constraint, ConstantConstraint):
        return f"constant {'; '.join(describe([constraint.value]))}"
    if isinstance(constraint, ScalarConstraint):
        return f"scalar {constraint.dtype}"
    if isinstance(constraint, TupleConstraint):
        return f"tuple({', '.join(_constraint_text(item) for item in constraint.items)})"
    if isinstance(constraint, ListConstraint):
        return f"list of {_constraint_text(constraint.element)}"
    if isinstance(constraint, ArrayConstraint):
        listed = ", ".join(f"{fact} {_plainly(getattr(constraint, fact))}" for fact in _ARRAY_FACTS)
        return f"array of {constraint.dtype} indexed with {constraint.index_dtype}: {listed}"
    return type(constraint).__name__


def _plainly(fact: Any) -> str:
    return str(list(fact)) if isinstance(fact, tuple | list) else str(fact)
