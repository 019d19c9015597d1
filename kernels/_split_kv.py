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

from kernels._launch import check_grid, next_power_of_2, replace_hints

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
        (splits, head_tiles, b),
        ("parts of the keys", "take fewer blocks per multiprocessor"),
        ("tiles of heads", "split the heads"),
        ("batches", "split the batch"),
    )


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

MERGED_COLUMNS = 64
"""Columns of the output that a block of the merge computes: few, so that few rows keep many blocks busy."""
MERGED_PARTS, MERGED_ELEMENTS = 128, 4096
"""Parts that a block of the merge loads at a time, and elements of them, at most.

Each time more is a wait for the L2. H200, 2026-11-22, 16 rows of 128 columns in 128 parts, with the kernel
before: all at once, of 32 columns a block, 12.7 us, in four times 32 of 64 columns, 15.6 us. But of 64
columns, 64 elements a thread, it was 14.9 us.
"""
MERGED_ROWS, MANY_ROWS = 4, 512
"""Rows that a block of the merge computes, where there are many.

Otherwise there are blocks for several waves, each of which does little: 1024 and 2048 rows of 512 columns are
8192 and 16384 blocks. H200, 2026-11-22, whole calls of `mla_decoding`: with 4 rows up to 1.5 % faster than
with 8, which were 3 to 4 % faster than 16 for the 1024, and 1 % slower for the 2048. For 512 and 1024 rows
of 128 columns, 4 were as fast as 1 (median of five configurations within 1 %), 16 were 1 to 4 % slower.
"""


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
    row, column = ct.bid(0), ct.bid(1)
    if DEPENDENT:
        ct.grid_dependency_control_wait()
    # Every row sees key 0: within the range of `_online_softmax`, the first part's lse is finite, and so is
    # the largest.
    lse = ct.load(
        LSE, (row, 0), (TILE_R, SPLITS), padding_mode=ct.PaddingMode.NEG_INF, allow_tma=False
    )  # [TILE_R, SPLITS]
    top = ct.max(lse, 1, keepdims=True)  # [TILE_R, 1]
    weights = ct.exp2(lse - top)
    total = ct.sum(weights, 1, keepdims=True)  # [TILE_R, 1]

    def weigh_parts(i: int, weights: ct.Tile) -> ct.Tile:  # [TILE_R, TILE_S, TILE_D]
        # No TMA: its descriptors and barriers take longer than these few bytes.
        parts = ct.load(
            PARTS,
            (row, i, column),
            (TILE_R, TILE_S, TILE_D),
            padding_mode=ct.PaddingMode.ZERO,
            allow_tma=False,
        )
        return parts * weights.reshape((TILE_R, TILE_S, 1))

    if TILE_S == SPLITS:
        # No loop of one step: H200, 2026-11-22, whole calls are as fast without it or up to 12 % faster.
        acc = weigh_parts(0, weights)
    else:
        acc = ct.zeros((TILE_R, TILE_S, TILE_D), dtype=ct.float32)
        for i in range(ct.cdiv(PARTS.shape[1], TILE_S)):
            # Loaded once more, because no part of a tile can be taken at a variable place; it comes from the
            # L1.
            some_lse = ct.load(
                LSE, (row, i), (TILE_R, TILE_S), padding_mode=ct.PaddingMode.NEG_INF, allow_tma=False
            )  # [TILE_R, TILE_S]
            acc += weigh_parts(i, ct.exp2(some_lse - top))
    o = ct.sum(acc, 1) / total  # [TILE_R, TILE_D]
    ct.store(O, (row, column), o.astype(O.dtype), allow_tma=False)


def merge_parts(parts: torch.Tensor, lse: torch.Tensor, o: torch.Tensor, *, dependent: bool) -> None:
    """Merge what the kernel before this launch writes.

    Args:
        parts: `[..., splits, D]`, float32, contiguous: normalised outputs.
        lse: `[..., splits]`, float32, contiguous: base-2 logarithms of the sums of the exponentials.
        o: `[..., D]`, contiguous; written.
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
    tile_d = min(d, MERGED_COLUMNS, MERGED_ELEMENTS // (tile_r * tile_s))
    ct.launch(
        torch.cuda.current_stream(),
        check_grid(
            "merge_parts",
            (rows // tile_r, ct.cdiv(d, tile_d)),
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
