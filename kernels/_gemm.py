"""What every matrix product here shares: the walk along K, the walk over tiles of the output, the knobs.

A tiled product is three nested pieces. A block takes one tile of C after another (`for_each_tile`), in an
order in which blocks that run together share operands in the L2 (`_tiles.swizzle`); for each it walks along
K and sums products of tiles (`multiply_along_k`); then it stores. Kernels differ in where the tiles of A
and B come from (a matrix, one matrix of a batch, rows gathered by a list of tokens) and in what happens to
the sum, so the loads and the body are functions that they hand over. All of it is inlined: a function costs
nothing at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import cuda.tile as ct

from kernels._configs import check_fields, vary
from kernels._dtypes import choose_out_dtype, generation
from kernels._launch import check_grid, check_tiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

ConstInt: TypeAlias = ct.Constant[int]

TMA_ALIGNMENT = 16
"""Bytes: where a row has to start for TMA (CUDA driver API, cuTensorMapEncodeTiled)."""

# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GemmConfig:
    """How a product is cut into tiles, and the compiler's hints."""

    tile_m: int
    """Rows of C per tile."""
    tile_n: int
    """Columns of C per tile."""
    tile_k: int
    """Depth of one step along K."""
    group_m: int = 8
    """Height of a band of blocks in tiles: see `_tiles.swizzle`."""
    latency: int | None = None
    """How far ahead loads are issued, 1 to 10; None lets the compiler choose."""
    store_tma: bool = True
    """Whether C may be stored through TMA, which takes it from shared memory."""
    blocks_per_sm: int | None = None
    """Blocks to start per multiprocessor, each of which takes tiles in turn; None starts one per tile."""
    occupancy: int | None = None
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    num_ctas: int | None = None
    """Thread blocks that compute one tile together (sm_90 and newer); None lets the compiler choose."""
    num_worker_warps: int | None = None
    """Warps that hold the accumulator; None lets the compiler choose."""
    min_k: int = 0
    """In a table: the length of the sums from which `choose_tiles` takes it. Otherwise without meaning."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_m", "tile_n", "tile_k"), limits=("min_k",))


Config = TypeVar("Config", bound=GemmConfig)

COPY_FROM = 512
"""Rows and columns of C from which copying an operand first pays: K is as long for the copy as for the
product, so what counts is how often each element of the copy is used.

H200, 2026-11-21: e5m2 with a row-major B takes 12.2 us with the copy and 13.3 us without at 1024^3, 25.9 and
39.0 us at 2048^3, 129 and 254 us at 4096^3; nothing smaller was measured. With tiles of 128 instead of 64 the
copy is no faster at 4096^3, and 1 us slower at 2048^3.
"""
FULL = 0.9
"""Share of a GPU's places for blocks that tiles have to fill: where more are empty, smaller tiles are faster.

H200, 2026-11-21: of 132 multiprocessors with two places each, 256 tiles of 128x128 (fp16 2048^3) fill 97 %,
and are within 0.5 % of the fastest; 128 of them (2 x 1024^3) fill 48 %, and 64x128 is 14 % faster.
"""


def choose_product_dtype(kernel: str, dtype: torch.dtype, out_dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of a product of operands of `dtype`: `out_dtype`, by default theirs or bfloat16.

    Raises:
        TypeError: `out_dtype` is no dtype, or not supported for these operands.
    """
    import torch

    return choose_out_dtype(
        kernel,
        dtype,
        out_dtype,
        default=torch.bfloat16 if dtype.itemsize == 1 else dtype,
        others=(torch.float16, torch.bfloat16, torch.float32),
    )


def may_store_tma(c: torch.Tensor) -> bool:
    """Return whether TMA may store tiles of C `[m, n]`, contiguous.

    It needs rows that start at multiples of 16 bytes. A single row or column has no second row of memory that
    could start elsewhere, so tileiras 13.4.92 lets TMA store it, and what arrives at its end is whole pieces
    of 16 bytes: of 300 bfloat16 values four more behind the last (H200, 2026-11-22).
    """
    return c.shape[-1] * c.element_size() % TMA_ALIGNMENT == 0


def count_tiles(m: int, n: int, config: GemmConfig) -> int:
    """Return how many tiles an `[m, n]` output is cut into."""
    return -(-m // config.tile_m) * -(-n // config.tile_n)


def in_steps_of(
    itemsize: int, table: Mapping[str, tuple[Config, ...]], *, since: str = ""
) -> dict[str, tuple[Config, ...]]:
    """Return a table of 16 bits for operands of `itemsize` bytes: steps along K are as many bytes.

    Args:
        itemsize: Bytes per element.
        table: Configurations by architecture.
        since: The oldest architecture to keep; by default all are kept.
    """
    return {
        arch: tuple(vary(config, tile_k=config.tile_k * 2 // itemsize) for config in candidates)
        for arch, candidates in table.items()
        if not since or generation(arch) >= generation(since)
    }


def choose_tiles(candidates: Sequence[Config], m: int, n: int, k: int, *, batch: int = 1, sms: int) -> Config:
    """Return the first of `candidates` that cuts `batch` products into enough tiles, of long enough sums.

    Larger tiles reuse more of what they load, but only as long as there is one for every block that the
    multiprocessors have room for, and two for one that is to take several: so they come largest first, and
    the last is for what is too small for any. What is returned has no `min_k` any more.
    """
    return choose_fit(candidates, lambda config: batch * count_tiles(m, n, config), k, sms=sms)


def choose_fit(candidates: Sequence[Config], count: Callable[[Config], int], k: int, *, sms: int) -> Config:
    """Do what `choose_tiles` does for anything of which `count` says how many tiles a configuration makes."""
    chosen = candidates[-1]
    for config in candidates:
        blocks = count(config) * (config.num_ctas or 1)
        places = sms * (config.occupancy or 1)
        rounds = 1 if config.blocks_per_sm is None else 2
        if blocks >= FULL * places * rounds and k >= config.min_k:
            chosen = config
            break
    return vary(chosen, min_k=0)


def count_blocks(tiles: int, config: GemmConfig, *, sms: int) -> int:
    """Return how many blocks to start for `tiles` tiles on a GPU of `sms` multiprocessors."""
    if config.blocks_per_sm is None:
        return tiles
    return min(tiles, max(1, sms * config.blocks_per_sm // (config.num_ctas or 1)))


def make_grid(
    kernel: str,
    tiles: int,
    config: GemmConfig,
    *,
    sms: int,
    counted: str = "tiles of the result",
    remedy: str,
) -> tuple[int, ...]:
    """Return the grid for `tiles` tiles on a GPU of `sms` multiprocessors.

    Args:
        kernel: The kernel's name, for a message.
        tiles: How many there are, of all products of the launch.
        config: How they are cut.
        sms: Multiprocessors of the GPU.
        counted: What the tiles are to the kernel's user.
        remedy: What to do where there are too many.

    Raises:
        ValueError: There are too many for one launch.
    """
    return check_tiles(kernel, tiles, count_blocks(tiles, config, sms=sms), counted, remedy)


# -- tile code --------------------------------------------------------------------------------------


def for_each_tile(compute: Callable[[int], None], tiles: int, PERSISTENT: bool) -> None:
    """Call `compute(tile)` for each tile that is this block's: every n-th of n blocks, else just its own."""
    if PERSISTENT:
        for tile in range(ct.bid(0), tiles, ct.num_blocks(0)):
            compute(tile)
    else:
        compute(ct.bid(0))


def multiply_along_k(
    load_a: Callable[[int], ct.Tile],
    load_b: Callable[[int], ct.Tile],
    steps: int,
    TILE_M: int,
    TILE_N: int,
    FAST_ACC: bool = False,
) -> ct.Tile:
    """Sum the products of `steps` tiles of A and B.

    Args:
        load_a: Returns the tile of A of a step, `[TILE_M, TILE_K]`, zeros where it sticks out of A.
        load_b: Returns the tile of B of a step, `[TILE_K, TILE_N]`, likewise.
        steps: How many there are.
        TILE_M: Rows of the result.
        TILE_N: Columns of the result.
        FAST_ACC: Whether 8-bit operands may be summed in Hopper's tensor cores, in fewer bits than float32.

    Returns:
        `[TILE_M, TILE_N]`, float32.
    """
    acc = ct.zeros((TILE_M, TILE_N), dtype=ct.float32)
    for k in range(steps):
        a = load_a(k)  # [TILE_M, TILE_K]
        b = load_b(k)  # [TILE_K, TILE_N]
        # Tensor cores take smaller operands as they are, and float32 only as tfloat32.
        dtype = ct.tfloat32 if a.dtype == ct.float32 else a.dtype
        acc = ct.mma(a.astype(dtype), b.astype(dtype), acc, use_fast_acc=FAST_ACC)
    return acc


# -- copies in the right layout ---------------------------------------------------------------------


@ct.kernel
def copy_kernel(Xs: tuple[ct.Array, ...], Y: ct.Array, ends: tuple[int, ...], TILE: ConstInt) -> None:
    """Copy a tile of any X to Y per block.

    Each X is `[rows, K]`. In Y their tiles lie one below the other, those of the i-th X end before row
    `ends[i]`, and K is contiguous: the compiler turns the tile around.
    """
    row, col = ct.bid(0), ct.bid(1)
    tile = ct.zeros((TILE, TILE), dtype=Y.dtype)
    first = 0
    # Only the load is unrolled: what turns a tile around takes shared memory for each copy of the code.
    for i in ct.static_iter(range(len(Xs))):
        if row >= first and row < ends[i]:
            tile = ct.load(Xs[i], (row - first, col), (TILE, TILE), padding_mode=ct.PaddingMode.ZERO)
        first = ends[i]
    ct.store(Y, (row, col), tile)


AS_IT_IS = "pass matrices that need no copy: with K contiguous, in rows of whole 16 bytes"


def copy_k_major(kernel: str, operands: Sequence[torch.Tensor], tile: int) -> list[torch.Tensor]:
    """Copy operands, each `[rows, K]`, in one launch, to where K is contiguous and TMA can fetch every row.

    Args:
        kernel: The name of the kernel that is to multiply them, for a message.
        operands: At least one, of one dtype and any strides.
        tile: Side of the tiles in which they are copied.

    Returns:
        The copies, in the same order: parts of one tensor, as wide as the widest.

    Raises:
        ValueError: They have too many tiles for one launch.
    """
    import torch

    ends = tuple(accumulate(ct.cdiv(operand.shape[0], tile) for operand in operands))
    k = max(operand.shape[1] for operand in operands)
    grid = check_grid(
        kernel,
        (ends[-1], ct.cdiv(k, tile)),
        ("rows of tiles to copy", f"split the matrices, or {AS_IT_IS}"),
        ("columns of tiles to copy", f"split K, or {AS_IT_IS}"),
    )
    # Rows of whole 16 bytes, whatever K is.
    pitch = ct.cdiv(k, TMA_ALIGNMENT) * TMA_ALIGNMENT
    y = torch.empty((ends[-1] * tile, pitch), dtype=operands[0].dtype, device=operands[0].device)
    ct.launch(torch.cuda.current_stream(), grid, copy_kernel, (tuple(operands), y, ends, tile))
    return [
        y[first * tile :][: operand.shape[0], : operand.shape[1]]
        for first, operand in zip((0, *ends), operands, strict=False)
    ]
