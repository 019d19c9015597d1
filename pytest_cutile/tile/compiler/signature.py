"""The signature that a launch would compile a kernel for, derived from its arguments with no driver.

A launch specializes a kernel for its arguments: element type and rank, which strides are 1 or divisible by
16 bytes, which lengths are 1 or divisible by 16, whether the base address is aligned to 16 bytes, whether
elements may overlap. cuda-tile derives that in C++ and needs libcuda for it
(`KernelSignature.from_kernel_args`). The rules are followed here one by one, because code compiled under
other assumptions is other code; tests/tile/compiler compares the two derivations.

Tensors stand for CUDA tensors: whatever device holds them, their storage counts as a CUDA allocation, which
is aligned to 256 bytes. So alignment comes from the storage offset, never from an address.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.fingerprint import settled_strides
from pytest_cutile.tile.compiler.toolchain import toolchain_versions

_ALIGNMENT_BYTES = 16
_SHAPE_DIVISOR = 16
_MAX_SPECIALIZED_NDIM = 5  # TMA's: a launch assumes nothing about the shape and strides of larger ranks
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_CONSTANT_INT = range(-(2**63), 2**64)
_Sizes: TypeAlias = tuple[int, ...]
"""Lengths, strides or axes of a tensor."""

# The element types that a launch accepts, by torch's name.
_ARRAY_DTYPES = {
    "bool": "bool_",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: name for name in ("float16", "bfloat16", "float32", "float64")},
    **{name: name for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")},
}


def derive_signature(kernel: Any, args: Sequence[Any]) -> Any:
    """Return the `cuda.tile.compilation.KernelSignature` of launching `kernel` with `args`.

    Raises:
        TypeError: wrong number of arguments, or one that no launch accepts.
        OverflowError: a number, length or stride that does not fit the annotated width.
        ValueError: a static axis that is out of range, given twice, or not the same for all arrays of a list.
        CompilerMissing: cuda-tile is not installed.
    """
    from cuda.tile.compilation import CallingConvention, KernelSignature

    function = cutile.kernel_function(kernel)
    annotations = cutile.parameter_annotations(kernel)
    names = function.__code__.co_varnames[: len(annotations)]
    if len(args) != len(annotations):
        raise TypeError(
            f"kernel {function.__name__} takes {len(annotations)} arguments ({', '.join(names)}), "
            f"but the launch passes {len(args)}"
        )
    constraints = [
        _constraint(value, annotation, f"argument {index} ({name!r}) of kernel {function.__name__}")
        for index, (value, annotation, name) in enumerate(zip(args, annotations, names, strict=True))
    ]
    # A launch takes the oldest convention that can express its arguments.
    convention = (
        CallingConvention.cutile_python_v2()
        if any(_needs_second_convention(constraint) for constraint in constraints)
        else CallingConvention.cutile_python_v1()
    )
    return KernelSignature(constraints, convention).with_mangled_symbol(function.__name__)


def _needs_second_convention(constraint: Any) -> bool:
    from cuda.tile.compilation import ArrayConstraint, ListConstraint, TupleConstraint

    if isinstance(constraint, ListConstraint):
        constraint = constraint.element
    if isinstance(constraint, ArrayConstraint):
        return any(length is not None for length in constraint.shape_constant)
    return isinstance(constraint, TupleConstraint)


def _constraint(value: Any, annotation: cutile.Annotation, where: str) -> Any:
    if type(value) is tuple:
        return _tuple_constraint(value, annotation, where)
    if annotation.is_tuple:
        raise TypeError(f"{where}: annotated as a tuple, got {_describe(value)}")
    if annotation.constant:
        return _constant_constraint(value, where)
    if isinstance(value, bool | int | float):
        return _scalar_constraint(value, annotation, where)
    if isinstance(value, list):
        return _list_constraint(value, annotation, where)
    if _is_tensor(value):
        return _array_constraint([value], annotation.array, where)
    if isinstance(value, tuple):
        raise TypeError(
            f"{where}: {_describe(value)} is a subclass of tuple; a launch takes plain tuples only"
        )
    raise TypeError(
        f"{where}: a launch takes tensors, lists of tensors, tuples, bool, int and float, "
        f"and what is annotated ct.Constant; got {_describe(value)}"
    )


def _tuple_constraint(value: tuple[Any, ...], annotation: cutile.Annotation, where: str) -> Any:
    from cuda.tile.compilation import TupleConstraint

    if annotation.items is not None and len(annotation.items) != len(value):
        raise TypeError(f"{where}: annotated as a tuple of {len(annotation.items)} items, got {len(value)}")
    return TupleConstraint(
        [
            _constraint(item, of_item, f"item {index} of {where}")
            for index, (item, of_item) in enumerate(annotation.of_items(value))
        ]
    )


def _constant_constraint(value: Any, where: str) -> Any:
    from cuda.tile.compilation import ConstantConstraint

    if isinstance(value, int) and value not in _CONSTANT_INT:
        raise OverflowError(f"{where}: the constant {value} does not fit 64 bits")
    if isinstance(value, int | float):
        # Without what a subclass (IntEnum, numpy.float64) adds: a launch keeps only the number.
        plain = next(number for number in (bool, int, float) if isinstance(value, number))
        return ConstantConstraint(plain(value))
    try:
        native = cutile.native_dtype(value)
    except TypeError:  # unhashable, so no dtype
        native = None
    try:
        return ConstantConstraint(value if native is None else native)
    except TypeError:
        version = toolchain_versions()["cuda-tile"]
        raise TypeError(f"{where}: cuda-tile {version} takes no {_describe(value)} as a constant") from None


def _scalar_constraint(value: float, annotation: cutile.Annotation, where: str) -> Any:
    import cuda.tile as ct
    from cuda.tile.compilation import ScalarConstraint

    if isinstance(value, bool):
        return ScalarConstraint(ct.bool_)
    if isinstance(value, float):
        return ScalarConstraint(ct.float32)
    wide = annotation.wide
    if value not in (_INT64 if wide else _INT32):
        hint = "" if wide else "; annotate it ct.ScalarInt64"
        raise OverflowError(f"{where}: {value} does not fit {'int64' if wide else 'int32'}{hint}")
    return ScalarConstraint(ct.int64 if wide else ct.int32)


def _list_constraint(value: list[Any], annotation: cutile.Annotation, where: str) -> Any:
    from cuda.tile.compilation import ListConstraint

    if not value:
        raise TypeError(f"{where}: a launch takes no empty list")
    for index, item in enumerate(value):
        if not _is_tensor(item):
            raise TypeError(f"item {index} of {where}: a list may hold tensors only, got {_describe(item)}")
    element = _array_constraint(value, annotation.element, where)
    return ListConstraint(element, alias_groups=(), elements_may_alias=True)


def _array_constraint(tensors: Sequence[Any], options: cutile.ArrayOptions, where: str) -> Any:
    """Return the one constraint that holds for all `tensors` (several only for a list argument)."""
    import cuda.tile as ct
    from cuda.tile.compilation import ArrayConstraint

    first = tensors[0]
    if any(tensor.dtype != first.dtype or tensor.dim() != first.dim() for tensor in tensors):
        raise TypeError(f"{where}: the tensors of a list must have one dtype and one rank")
    shapes = [tuple(tensor.shape) for tensor in tensors]
    strides = [_exported_strides(tensor) for tensor in tensors]
    if not options.wide:
        for sizes in itertools.chain(*zip(shapes, strides, strict=True)):
            if any(size not in _INT32 for size in sizes):
                raise OverflowError(
                    f"{where}: shape or strides {sizes} exceed int32; annotate it ct.IndexedWithInt64"
                )
    shape_constant = _constants(shapes, options.static_shape_dims, "shape", where)
    stride_constant = _constants(strides, options.static_stride_dims, "stride", where)
    elements_of_alignment = _ALIGNMENT_BYTES // first.element_size()
    aligned = all(tensor.storage_offset() % elements_of_alignment == 0 for tensor in tensors)
    return ArrayConstraint(
        _array_dtype(first, where),
        first.dim(),
        index_dtype=ct.int64 if options.wide else ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=not all(map(_elements_are_disjoint, shapes, strides)),
        stride_constant=stride_constant,
        shape_constant=shape_constant,
        stride_divisible_by=_divisors(strides, elements_of_alignment),
        shape_divisible_by=_divisors(shapes, _SHAPE_DIVISOR),
        base_addr_divisible_by=_ALIGNMENT_BYTES if aligned else 1,
    )


def _constants(sizes: Sequence[_Sizes], axes: _Sizes, what: str, where: str) -> list[int | None]:
    """Return the lengths or strides that are compiled in: on static axes if any is annotated, else ones."""
    if axes:
        return _static(sizes, axes, what, where)
    is_specialized = len(sizes[0]) <= _MAX_SPECIALIZED_NDIM
    return [1 if is_specialized and set(axis) == {1} else None for axis in zip(*sizes, strict=True)]


def _divisors(sizes: Sequence[_Sizes], divisor: int) -> list[int]:
    """Return `divisor` for each axis on which it divides the lengths or strides of all tensors, else 1."""
    is_specialized = len(sizes[0]) <= _MAX_SPECIALIZED_NDIM
    return [
        divisor if is_specialized and all(size % divisor == 0 for size in axis) else 1
        for axis in zip(*sizes, strict=True)
    ]


def _static(sizes: Sequence[_Sizes], axes: _Sizes, what: str, where: str) -> list[int | None]:
    """Return the length or stride of every axis that is annotated as static, on which all tensors agree."""
    ndim = len(sizes[0])
    constants: list[int | None] = [None] * ndim
    for axis in axes:
        if not -ndim <= axis < ndim:
            raise ValueError(f"{where}: static_{what}_dims names axis {axis}, but the tensor has {ndim}")
        if constants[axis] is not None:
            raise ValueError(f"{where}: static_{what}_dims names an axis twice: {axes}")
        lengths = sorted({size[axis] for size in sizes})
        if len(lengths) > 1:
            raise ValueError(f"{where}: the list's tensors differ in static {what} at axis {axis}: {lengths}")
        constants[axis] = lengths[0]
    return constants


def _elements_are_disjoint(shape: _Sizes, strides: _Sizes) -> bool:
    """Return whether a launch takes it that no two elements share memory: each stride spans the one below."""
    by_stride = sorted(zip(strides, shape, strict=True))
    if by_stride and by_stride[0][0] <= 0:
        return False
    pairs = itertools.pairwise(by_stride)
    return all(outer >= inner * length for (inner, length), (outer, _) in pairs)


def _array_dtype(tensor: Any, where: str) -> Any:
    import cuda.tile as ct

    name = _ARRAY_DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if name is None:
        raise TypeError(f"{where}: a launch takes no tensor of {tensor.dtype}")
    return getattr(ct, name)


def _exported_strides(tensor: Any) -> tuple[int, ...]:
    """Return the strides that a launch sees: it reads tensors through DLPack, where torch may change them."""
    strides = tuple(tensor.stride())
    rewrites_vectors, rewrites_all = _dlpack_rewrites_singletons()
    if rewrites_all or (rewrites_vectors and len(strides) == 1):
        return settled_strides(tensor)
    return strides


@cache
def _dlpack_rewrites_singletons() -> tuple[bool, bool]:
    """Return whether this torch exports the stride of a length of 1 as 1, for vectors and for all tensors."""
    import torch
    from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

    vector = torch.empty_strided((1,), (3,), device="cpu")
    matrix = torch.empty_strided((1, 2), (5, 1), device="cpu")
    exported = [from_dlpack(to_dlpack(probe)).stride() for probe in (vector, matrix)]
    return exported[0] != vector.stride(), exported[1] != matrix.stride()


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _describe(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
