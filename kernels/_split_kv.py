"""Attention of few queries to many keys: keys cut into parts for several blocks, and the parts merged again.

With one query token per sequence there are only `batch * heads` rows of scores, often fewer tiles of them
than a GPU has multiprocessors, and all of a cache to read. So the keys are cut into parts, a block takes in
one of them, and writes for every row what `_online_softmax.finish_softmax` returns: the part's normalised
output, and its lse, the base-2 logarithm of its sum of exponentials. A second kernel weighs the parts by what
they hold of the whole sum, with `top` the largest lse of a row:

    O = sum over parts of 2^(lse - top) * part / sum over parts of 2^(lse - top)

Parts and lse are float32: parts of 16 bits would put a second rounding of that size into the output. They are
small and were written a moment ago, so they come from the L2.

A kernel's blocks are launched when the last block of the kernel before has ended, and a short cache is read
in few microseconds: then that gap counts. So on GPUs that can (sm_90 and newer) the merge is a programmatic
dependent launch: its blocks take their places as soon as all blocks of the first kernel have theirs, and
wait there until those have ended. For that they need registers beside those of the first kernel. Where it
takes them all, as with `occupancy=1` and 128 parts of 16384 keys, 16 latent heads of 128 dimensions took an
H200 18.0 us, and 15.6 us without the dependent launch: presumably early blocks crowd on the four idle
multiprocessors. With `occupancy=2`, which leaves room on all, it took 15.5 us (2026-11-21).

One launch would do if the last block of a row merged its parts. But then one multiprocessor would read what
here a hundred do, 32 KiB a part for 16 heads of 512 dimensions, and blocks would have to be counted in memory
that is zero before every launch: by a launch more, or by whoever used it last, which goes wrong as soon as
two streams use it at a time.

Sources: Dao et al., "Flash-Decoding for long-context inference", 2023
(https://pytorch.org/blog/flash-decoding/); CUDA C++ Programming Guide, "Programmatic Dependent Launch and
Synchronization".
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import cuda.tile as ct

from kernels._launch import check_grid, check_tensors, next_power_of_2, replace_hints
from kernels._tiles import reciprocal

if TYPE_CHECKING:
    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]


def make_grid(kernel: str, splits: int, head_tiles: int, b: int) -> tuple[int, ...]:
    """Return the grid for `b` batches of `head_tiles` tiles of heads, each of `splits` parts of the keys.

    Raises:
        ValueError: They are too many for one launch.
    """
    return check_grid(
        kernel,
        (1, splits * head_tiles, b),
        ("", ""),  # one block is never too many
        ("tiles of heads and parts of their keys", "split the heads"),
        ("batches", "split the batch"),
    )


def block_of_part(HEAD_TILES: int) -> tuple[int, int, int]:
    """Return which part of the keys, tile of heads and batch this block of the grid of `make_grid` is for.

    Compiled for `HEAD_TILES`, of which a model has one. No block is counted on the grid's first axis, for the
    reason that `_launch.line_grid` has: H200, 2026-11-23, that saves up to 3 % of 10 us.
    """
    return ct.bid(1) // HEAD_TILES, ct.bid(1) % HEAD_TILES, ct.bid(2)


# -- keys within bounds -----------------------------------------------------------------------------


def check_bounds(kernel: str, bounds: torch.Tensor | None, b: int, device: torch.device) -> None:
    """Check the type, shape and place of `bounds`, whose values nobody but the GPU knows.

    Raises:
        TypeError: Not a tensor of int32.
        ValueError: Not `[b, 2]`, contiguous and on `device`.
    """
    if bounds is None:
        return
    check_tensors(kernel, {"bounds": bounds}, dtypes=("int32",))
    if tuple(bounds.shape) != (b, 2) or not bounds.is_contiguous():
        raise ValueError(f"{kernel}: bounds must be [{b}, 2], contiguous, but is {list(bounds.shape)}")
    if bounds.device != device:
        raise ValueError(f"{kernel}: bounds is on {bounds.device}, but q is on {device}; move one")


def bounded_part(
    BOUNDS: ct.Array, batch: int, part: int, splits: int, keys: int, TILE_N: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the tiles of keys that make a part of those within a sequence's bounds, and the bounds.

    The launcher knows only how many keys there may be. So a part is an equal share of what the GPU finds to
    be visible: all blocks stay equally busy however little of a cache is filled. Later parts may be empty.
    """
    begin, end = ct.gather(BOUNDS, (batch, 0)), min(ct.gather(BOUNDS, (batch, 1)), keys)
    first_tile, tiles = begin // TILE_N, ct.cdiv(end, TILE_N)
    share = ct.cdiv(tiles - first_tile, splits)
    first = first_tile + part * share
    return (first, min(first + share, tiles)), (begin, end)


def hide_keys(s: ct.Tile, key: ct.Tile, keys: tuple[int, int], BOUNDED: bool) -> ct.Tile:
    """Return scores that are -inf where `key`, their keys' numbers, is not visible.

    Those up to `keys[1]` are, with `BOUNDED` from `keys[0]` on.
    """
    visible = key < keys[1]
    if BOUNDED:
        visible = visible & (key >= keys[0])
    return ct.where(visible, s, -math.inf)


def mask_bounds(bounds: torch.Tensor, keys: int) -> torch.Tensor:
    """Return `[B, keys]`, true where a key is within the bounds of its sequence; for references."""
    import torch

    key = torch.arange(keys, device=bounds.device)
    visible: torch.Tensor = (key >= bounds[:, :1]) & (key < bounds[:, 1:])
    return visible


# -- how many parts ---------------------------------------------------------------------------------


MAX_WAVES = 4
"""Waves of blocks beyond which shorter parts no longer level out how busy the multiprocessors are."""
ALONE = 1.2
"""How long a block alone on its multiprocessor takes over a tile, if two take 2 and so on.

One block nearly uses up what its multiprocessor gets of the memory: on an H200 (2026-11-21), 64 sequences of
4096 tokens with 16 latent heads took 111 us in 128 blocks, one each, and 99 us in 256 blocks of half as much.
That is 1.13; a little more, because a short part has no time to get up to speed. (These were blocks of four
warps; blocks of eight, one each, took 92 us on 2026-11-22.)
"""


@lru_cache(maxsize=1024)
def choose_part(rows: int, tiles: int, sms: int, blocks_per_sm: int, part_cost: float) -> int:
    """Return how many tiles of keys make a part, so that all is done soonest.

    Blocks run in waves of `sms * blocks_per_sm`. Shorter parts fill more of those places, and the last wave
    better; but every part has to be written, read and merged. A wave with fewer blocks on the busiest
    multiprocessor is faster, down to `ALONE`. No part is empty, and only the last one is shorter.

    Args:
        rows: Tiles of queries, each of which needs all keys: batch times heads, or times tiles of heads.
        tiles: Tiles of keys, at least one.
        sms: Multiprocessors.
        blocks_per_sm: Blocks that each of them runs at a time.
        part_cost: What one part more costs a row, in the time that a block needs for a tile of keys when all
            places are taken.
    """
    best, best_cost = tiles, math.inf
    for splits in range(1, max(1, min(tiles, MAX_WAVES * sms * blocks_per_sm // rows)) + 1):
        part = ct.cdiv(tiles, splits)
        # Several numbers of splits round to the same part, the first of which is the real one.
        waves, rest = divmod(rows * ct.cdiv(tiles, part), sms * blocks_per_sm)
        last_wave = max(ALONE, ct.cdiv(rest, sms)) / blocks_per_sm if rest else 0.0
        cost = (waves + min(1.0, last_wave)) * part + part_cost * splits
        if cost < best_cost:
            best, best_cost = part, cost
    return best


# -- the merge --------------------------------------------------------------------------------------

MERGED_PARTS = 128
"""Parts that a block of the merge loads at a time, at most: each time more is a wait for the L2."""
MERGED_ROWS, MANY_ROWS = 4, 512
"""Rows that a block of the merge computes, where there are many; else it is one."""
MERGED_ELEMENTS, MERGED_COLUMNS, MERGED_BLOCKS = 1024, 32, 128
"""Elements of the parts that a block of the merge should have, columns that it has at least, and blocks below
which they are not made larger: two loads a thread, in a block for every multiprocessor.

H200, 2026-11-23, whole calls of `attention_decode` and `mla_decoding`, 1 to 8 rows and 16 to 256 columns a
block, cold L2, interleaved: over 75 cases these take 0.6 % longer than each one's best in the mean, 3.3 % in
the worst. 16 rows of 128 columns in 64 parts are 4 % faster in 32 columns a block than in 64, and 2048 rows
of two parts 9 % faster in 4 rows of 128 columns than of 64.
"""


def weigh_parts(parts: ct.Tile, weights: ct.Tile) -> ct.Tile:
    """Return `[TILE_R, TILE_S, TILE_D]` times `[TILE_R, TILE_S]`."""
    return parts * weights[:, :, None]


@ct.kernel
def merge_kernel(
    PARTS: ct.Array,
    LSE: ct.Array,
    O: ct.Array,  # noqa: E741 - the name of the formula
    SPLITS: ConstInt,
    TILE_R: ConstInt,
    TILE_S: ConstInt,
    TILE_D: ConstInt,
    DEPENDENT: ConstBool,
) -> None:
    """Merge `TILE_D` columns of `TILE_R` rows: PARTS is `[rows, splits, D]`, LSE `[rows, splits]`.

    O is `[rows, D]`. `SPLITS` is the number of splits rounded up to a power of two; `TILE_S` of them are
    loaded at a time.
    """
    splits = PARTS.shape[1]
    row = ct.bid(0) * TILE_R + ct.arange(TILE_R, dtype=ct.int32)
    column = ct.bid(1) * TILE_D + ct.arange(TILE_D, dtype=ct.int32)
    if DEPENDENT:
        ct.grid_dependency_control_wait()

    # No load is checked, else each would sit in a branch and wait for the one before (`_tiles.load_tile`):
    # beyond the last part, that one is loaded again, and has no weight. Rows and columns fill their tiles.
    # H200, 2026-11-23, whole calls: up to 12 % faster, 2 to 4 % in the mean of 30 and of 46 cases.
    def load_parts(i: int) -> ct.Tile:  # [TILE_R, TILE_S, TILE_D]
        part = ct.minimum(i * TILE_S + ct.arange(TILE_S, dtype=ct.int32), splits - 1)
        at = (row[:, None, None], part[None, :, None], column[None, None, :])
        return ct.gather(PARTS, at, check_bounds=False)

    def load_lse(i: int, TILE: int) -> ct.Tile:  # [TILE_R, TILE]
        part = i * TILE + ct.arange(TILE, dtype=ct.int32)
        lse = ct.gather(LSE, (row[:, None], ct.minimum(part, splits - 1)[None, :]), check_bounds=False)
        return ct.where((part < splits)[None, :], lse, -math.inf)

    # Under way before the first reduction, at which all threads of the block wait for each other.
    parts = load_parts(0)
    # Every row sees a key: within the range of `_online_softmax`, some part's lse is finite, and so is the
    # largest.
    lse = load_lse(0, SPLITS)
    top = ct.max(lse, 1, keepdims=True)  # [TILE_R, 1]
    weights = ct.exp2(lse - top)
    total = ct.sum(weights, 1)  # [TILE_R]

    if TILE_S == SPLITS:
        acc = weigh_parts(parts, weights)
    else:
        # Loaded once more, because no part of a tile can be taken at a variable place; it comes from the L1.
        acc = weigh_parts(parts, ct.exp2(load_lse(0, TILE_S) - top))
        for i in range(1, ct.cdiv(splits, TILE_S)):
            acc += weigh_parts(load_parts(i), ct.exp2(load_lse(i, TILE_S) - top))
    o = ct.sum(acc, 1) * reciprocal(total)[:, None]  # [TILE_R, TILE_D]
    # Not `ct.store`, which is one store for each element here (tileiras 13.4.92).
    ct.scatter(O, (row[:, None], column[None, :]), o.astype(O.dtype), check_bounds=False)


def merge_parts(parts: torch.Tensor, lse: torch.Tensor, o: torch.Tensor, *, dependent: bool) -> None:
    """Merge what the kernel before this launch writes.

    Args:
        parts: `[..., splits, D]`, float32, contiguous: normalised outputs.
        lse: `[..., splits]`, float32, contiguous: base-2 logarithms of the sums of the exponentials.
        o: `[..., D]`, contiguous; written. D is a power of two.
        dependent: The kernel before has called `grid_dependency_control_launch_dependents`, and this one
            may start before it has ended.

    Raises:
        ValueError: There are too many rows for one launch.
    """
    import torch

    splits, d = parts.shape[-2:]
    pow2 = next_power_of_2(splits)
    rows = lse.numel() // splits
    # No block has rows beyond the last.
    tile_r = math.gcd(rows, MERGED_ROWS) if rows >= MANY_ROWS else 1
    tile_s = min(pow2, MERGED_PARTS)
    tile_d = min(d, MERGED_COLUMNS)
    while (
        tile_d < d
        and tile_r * tile_s * tile_d < MERGED_ELEMENTS
        and rows // tile_r * (d // (2 * tile_d)) >= MERGED_BLOCKS
    ):
        tile_d *= 2
    ct.launch(
        torch.cuda.current_stream(),
        check_grid(
            "merge_parts",
            (rows // tile_r, d // tile_d),
            ("groups of rows", "split the batch"),
            ("groups of columns", "split the dimensions"),
        ),
        # Small blocks find a place beside those that still run.
        replace_hints(merge_kernel, num_worker_warps=4, occupancy=8),
        (
            *(parts.view(rows, splits, d), lse.view(rows, splits), o.view(rows, d)),
            *(pow2, tile_r, tile_s, tile_d, dependent),
        ),
        programmatic_dependent_launch=dependent,
    )
