"""How launches are interpreted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which faults are checked, which blocks run in which order, and what is recorded."""

    check_races: bool = True
    """Whether two blocks that touch one element without atomics, one of them writing, are a fault; so are one
    scatter that names an index twice, and a read of what was written through another parameter."""
    check_uninitialized: bool = True
    """Whether a result that depends on what nothing has written is a fault."""
    check_tiles: bool = True
    """Whether a tile that is wholly outside of its array is a fault: cuTile leaves its effect undefined.

    A load with a padding_mode is no fault: the whole tile is padding."""
    poison_padding: bool = True
    """Whether a result that depends on undetermined padding (a load beyond an array with no padding_mode) is
    a fault; else that padding is zero, as it happens to be on many GPUs."""
    reverse: bool = False
    """Whether the last block runs first: a result that depends on the order of the blocks differs."""
    one_by_one: bool = False
    """Whether each block runs to its end before the next; else many run together, operation by operation."""
    only_block: tuple[int, int, int] | None = None
    """The only block to run; None: all."""
    watch: tuple[str, ...] = ()
    """Lines of source, "kernels/softmax.py:98", whose values are recorded."""
    watch_blocks: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)
    """Blocks whose values are recorded; `only_block` takes precedence."""
    find_nonfinite: bool = False
    """Whether to record where each NaN and Inf comes from."""
    trace_writes: bool = False
    """Whether to record who wrote each element and the tiles that it came from."""
