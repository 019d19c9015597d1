"""What each operation of Tile IR does."""

from pytest_cutile.tile.interpreter.ops import (
    access,
    arithmetic,
    atomics,
    conversions,
    matmul,
    reductions,
    shapes,
    sundry,
)

__all__ = ["access", "arithmetic", "atomics", "conversions", "matmul", "reductions", "shapes", "sundry"]
