"""A kernel for every public operation of cuTile, with inputs that reach its edges.

Used by `research/interpreter_against_gpu.py`, and by the tests of the interpreter for kernels that between
them use most operations of Tile IR.
"""

from __future__ import annotations

from collections.abc import Iterator

from research.operations.elementwise import conversions, floats, integers
from research.operations.example import Example
from research.operations.memory import memory
from research.operations.products import products
from research.operations.reductions import along_an_axis
from research.operations.shapes import shapes

__all__ = ["Example", "all_examples"]


def all_examples() -> Iterator[Example]:
    """Yield every example: conversions last, because they are the most."""
    for part in (shapes, memory, products, along_an_axis, integers, floats, conversions):
        yield from part()
