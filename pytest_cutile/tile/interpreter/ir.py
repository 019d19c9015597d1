"""Tile IR as data: types, operations, blocks, functions, and the places in the source that they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

DYNAMIC = -(2**63)
"""Stands for a length or stride that is known at run time only."""


@dataclass(frozen=True)
class Scalar:
    """An element type by its name in Tile IR: "i1" to "i64", "f16", "tf32", "f8E4M3FN", "token" ..."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pointer:
    """An address of elements of a type."""

    pointee: Scalar

    def __str__(self) -> str:
        return f"ptr<{self.pointee}>"


@dataclass(frozen=True)
class Tile:
    """A tile; one with no axes is a scalar."""

    element: Scalar | Pointer
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tile<{'x'.join(str(part) for part in (*self.shape, self.element))}>"


@dataclass(frozen=True)
class TensorView:
    """An array in memory; `DYNAMIC` lengths and strides come as operands."""

    element: Scalar
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class TiledView:
    """What loads and stores of tiles go through: an array cut into tiles."""

    kind: str
    """"partition": tile by tile; "strided": with overlaps or gaps; "gather_scatter": one axis listed."""
    tile_shape: tuple[int, ...]
    array: TensorView
    axes: tuple[int, ...]
    """The axis of the array that each axis of the tile runs along."""
    padding: str | None
    """What a load has for elements outside of the array; None: anything."""
    traversal: tuple[int, ...] = ()
    """Elements from one tile to the next, by axis; only of "strided"."""
    sparse_axis: int = -1
    """Axis of the array whose positions are listed; only of "gather_scatter"."""


@dataclass(frozen=True)
class Function:
    """Types of what a function takes and returns."""

    parameters: tuple[Type, ...]
    results: tuple[Type, ...]


Type: TypeAlias = Scalar | Pointer | Tile | TensorView | TiledView | Function


@dataclass(frozen=True)
class Location:
    """A place in the user's source; `caller` is where the function that holds it was called from."""

    file: str
    line: int
    """Counted from 1."""
    column: int
    """Counted from 1."""
    function: str = ""
    caller: Location | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(kw_only=True, eq=False)
class Op:
    """One operation. Values are numbers; what a block defines is visible in the blocks inside it."""

    name: str
    """Name in Tile IR: "addf", "load_view_tko"."""
    operands: dict[str, Any]
    """Number of the value, None for one that was left out, a tuple of numbers for a list, by name."""
    attributes: dict[str, Any]
    results: tuple[int, ...]
    result_types: tuple[Type, ...]
    regions: tuple[Block, ...] = ()
    location: Location | None = None


@dataclass(kw_only=True, eq=False)
class Block:
    """Operations in order; the last one says where to go on."""

    parameters: tuple[int, ...]
    parameter_types: tuple[Type, ...]
    ops: list[Op] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class EntryPoint:
    """A kernel."""

    name: str
    body: Block
    location: Location | None


@dataclass(kw_only=True, eq=False)
class Global:
    """A constant array that a kernel reads through its address."""

    name: str
    type: Type
    data: bytes


@dataclass(kw_only=True, eq=False)
class Module:
    """What one file of bytecode holds."""

    version: tuple[int, int]
    entries: dict[str, EntryPoint]
    globals: dict[str, Global]
