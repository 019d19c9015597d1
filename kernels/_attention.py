"""Attention of many queries, shared by `fmha` and `mla`: configuration, the loop over the keys, the launch.

`fmha` says how it works. A kernel loads the queries, calls `attend` and stores the result; its launcher takes
grid, hints and constants from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._configs import check_fields
from kernels._division import Divisor, divisor
from kernels._dtypes import choose_out_dtype
from kernels._gemm import TMA_ALIGNMENT
from kernels._launch import check_grid, check_tiles, count_sms
from kernels._online_softmax import add_scores, exponentiate, finish_softmax, start_softmax
from kernels._tiles import swizzle

if TYPE_CHECKING:
    import torch

ConstInt: TypeAlias = ct.Constant[int]

HEADROOM = {"float8_e4m3fn": 8.0, "float8_e5m2": 15.0}
"""Largest power of two that P reaches, where it is not 0. The formats end at 448 and 57344."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """How a head is cut into tiles, in which order they are computed, and the compiler's hints."""

    tile_m: int
    """Queries per block."""
    tile_n: int
    """Keys per step."""
    overlap: bool = False
    """Whether P @ V of the tile before is computed during the exponentials, by the warps that take them. It
    holds one more P; without it, others have to use the tensor cores meanwhile."""
    heads_together: int = 1
    """Heads whose tiles are interleaved. 1 computes head after head, whose K and V then stay in the L2.
    Causal attention wants the long tiles, of later queries, of several heads before the short ones, which
    then fill the gaps at the end; the K and V of so many heads should fit in the L2."""
    persistent: bool = False
    """As many blocks as the GPU holds, each of which computes tile after tile. The next tile's loads and the
    last one's store then overlap with what is computed. All get as many tiles: for tiles of one length."""
    transpose_v: bool = False
    """Whether 8-bit V is transposed in memory first, unless it comes that way."""
    occupancy: int | None = None
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    num_worker_warps: int | None = None
    """Warps that hold scores and accumulator; None lets the compiler choose."""
    latency_k: int | None = None
    """How far ahead tiles of K are loaded, 1 to 10; None lets the compiler choose."""
    latency_v: int | None = None
    """The same for V, which is needed later in a step."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_m", "tile_n"))


# -- tile code --------------------------------------------------------------------------------------


def attend(  # noqa: PLR0915 - its steps are functions inside it: they share nearly all arguments
    q: tuple[ct.Tile, ...],
    K: tuple[ct.Array, ...],
    V: ct.Array,
    batch: int,
    k_heads: tuple[int, ...],
    v_head: int,
    first_row: int,
    scale_log2: float,
    TILE_N: int,
    D: int,
    LATENCY_K: int,
    LATENCY_V: int,
    CAUSAL: bool,
    RAGGED: bool,
    OVERLAP: bool,
    HEADROOM: float,
    TURNING: bool = False,
    forward: bool = False,
) -> ct.Tile:
    """Return the attention of a tile of queries, `[TILE_M, D]` in float32.

    Q and K may come in parts along the dimension that is summed over: `q` are tiles `[TILE_M, D_part]`, `K`
    arrays `[B, heads, N, D_part]`, of which part `i` takes the head `k_heads[i]`. V is `[B, heads, N, D]`.
    `first_row` is the tile's first query. `RAGGED` says that a query may meet the end of the keys inside a
    tile. A latency of 0 leaves it to the compiler. `TURNING` and `forward`: keys that need no mask are walked
    from the first to the last (not with `OVERLAP`, which needs to know the tile before).
    """
    TILE_M = q[0].shape[0]
    EIGHT_BIT = ct.static_eval(V.dtype.bitwidth == 8)  # noqa: PLR2004
    keys = V.shape[2]

    def multiply_keys(j: int, MASK: bool) -> ct.Tile:
        """Return the raw scores of the `j`-th tile of keys, `[TILE_M, TILE_N]`; -inf if `MASK` hides them."""
        s = ct.zeros((TILE_M, TILE_N), dtype=ct.float32)
        for part in ct.static_iter(range(len(q))):
            D_PART = q[part].shape[1]
            # Transposed on the way in: no tile has to be permuted on the chip.
            k = ct.load(
                K[part],
                (batch, k_heads[part], 0, j),
                (1, 1, D_PART, TILE_N),
                order=(0, 1, 3, 2),
                padding_mode=ct.PaddingMode.ZERO,
                latency=ct.static_eval(LATENCY_K or None),
            ).reshape((D_PART, TILE_N))
            # The sum is too short for what fast accumulation loses to matter: below 2^-12 of a score.
            s = ct.mma(q[part], k, s, use_fast_acc=EIGHT_BIT)
        if MASK:
            column = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]  # [1, TILE_N]
            if CAUSAL:
                # Both counted from the tile's first row, which costs fewer registers than from row 0.
                row = ct.arange(TILE_M, dtype=ct.int32)[:, None]  # [TILE_M, 1]
                s = ct.where(column - first_row <= row, s, -math.inf)
            if RAGGED:
                s = ct.where(column < keys, s, -math.inf)
        return s

    def add_values(p: ct.Tile, j: int, acc: ct.Tile) -> ct.Tile:
        """Return `acc` plus P times the `j`-th tile of values, `[TILE_M, D]`."""
        v = ct.load(
            V,
            (batch, v_head, j, 0),
            (1, 1, TILE_N, D),
            # Zeros, because 0 * P is 0, and whatever lies there may be NaN.
            padding_mode=ct.PaddingMode.ZERO,
            latency=ct.static_eval(LATENCY_V or None),
        ).reshape((TILE_N, D))
        p = p.astype(V.dtype)
        if EIGHT_BIT:
            # Hopper sums 8-bit products in 22 bits: its tensor cores over one tile, float32 over all tiles.
            acc = acc + ct.mma(p, v, ct.zeros((TILE_M, D), dtype=ct.float32), use_fast_acc=True)
        else:
            acc = ct.mma(p, v, acc)
        return acc

    # The state of the walk: what is left to do of the tile before, and the softmax's own.

    def start(j: int) -> tuple[Any, ...]:
        """Return the state to step on from; with `OVERLAP` it has begun with the `j`-th tile."""
        row_max, row_sum, acc = start_softmax(TILE_M, D)
        left: tuple[Any, ...] = ()
        if OVERLAP:
            s = multiply_keys(j, CAUSAL or RAGGED)
            p, row_max, row_sum, shrink = exponentiate(s, row_max, row_sum, scale_log2, 1, HEADROOM)
            left = (p.astype(V.dtype), shrink)
        return left, row_max, row_sum, acc

    def step(j: int, MASK: bool, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Take in the `j`-th tile, with what the one before, `j + 1`, has left."""
        left, row_max, row_sum, acc = state
        s = multiply_keys(j, MASK)
        if OVERLAP:
            acc = add_values(left[0], j + 1, acc * left[1])
            p, row_max, row_sum, shrink = exponentiate(s, row_max, row_sum, scale_log2, 1, HEADROOM)
            left = (p.astype(V.dtype), shrink)
        else:
            p, row_max, row_sum, acc = add_scores(s, row_max, row_sum, acc, scale_log2, 1, HEADROOM)
            acc = add_values(p, j, acc)
        return left, row_max, row_sum, acc

    def finish(state: tuple[Any, ...]) -> ct.Tile:
        """Do what tile 0, the last one, has left."""
        left, row_max, row_sum, acc = state
        if OVERLAP:
            acc = add_values(left[0], 0, acc * left[1])
        o, _ = finish_softmax(row_max, row_sum, acc)
        return o

    # Tiles of which the last row sees any. With `OVERLAP`, the first of them is taken to start with.
    tiles = ct.cdiv(min(keys, first_row + TILE_M) if CAUSAL else keys, TILE_N)
    state = start(tiles - 1)
    STARTED = 1 if OVERLAP else 0
    if CAUSAL and TILE_M > TILE_N:
        # The diagonal crosses several. Those before need no mask: the first row sees their last key.
        masked = tiles - min(min(keys, first_row + 1) // TILE_N, tiles - 1)
    else:
        masked = 1 if CAUSAL or RAGGED else STARTED
    for back in range(STARTED, masked):
        state = step(tiles - 1 - back, True, state)
    for back in range(masked, tiles):
        j = tiles - 1 - back
        if TURNING and forward:
            j = back - masked
        state = step(j, False, state)
    return finish(state)


def order_tiles(
    block: int, tiles: int, heads: int, HEADS_TOGETHER: int, band_size: Divisor
) -> tuple[int, int]:
    """Return the head, counted through all batches, and the tile of rows that are the `block`-th to compute.

    Blocks run roughly in order, and persistent ones take tiles in that order. Later rows of causal attention
    see more keys: the last tile of `HEADS_TOGETHER` heads first, then the one before, and so on.
    `band_size` is `divisor(HEADS_TOGETHER * tiles)`.
    """
    head, tile = swizzle(block, heads, tiles, HEADS_TOGETHER, band_size)
    return head, tiles - 1 - tile


@ct.kernel
def transpose_kernel(V: ct.Array, T: ct.Array, TILE_N: ConstInt, D: ConstInt) -> None:
    """Write V, `[B, heads, N, D]`, to T, `[B, heads, D, N]`: `TILE_N` rows per block."""
    tiles = ct.cdiv(V.shape[2], TILE_N)
    any_head, tile = ct.bid(0) // tiles, ct.bid(0) % tiles
    batch, head = any_head // V.shape[1], any_head % V.shape[1]
    v = ct.load(V, (batch, head, tile, 0), (1, 1, TILE_N, D), padding_mode=ct.PaddingMode.ZERO)
    ct.store(T, (batch, head, 0, tile), ct.permute(v, (0, 1, 3, 2)))


# -- launch -----------------------------------------------------------------------------------------

TRANSPOSED_ROWS = 128
"""Rows per block of the kernel that transposes V. Not measured."""


def count_blocks(tiles: int, config: AttentionConfig) -> int:
    """Return how many blocks compute `tiles` tiles."""
    if not config.persistent:
        return tiles
    return min(tiles, count_sms() * (config.occupancy or 1))


def make_grid(kernel: str, b: int, h: int, m: int, config: AttentionConfig) -> tuple[int, ...]:
    """Return the grid for `b` batches of `h` heads of `m` queries.

    Raises:
        ValueError: They are too many for one launch.
    """
    tiles = b * h * ct.cdiv(m, config.tile_m)
    return check_tiles(
        kernel, tiles, count_blocks(tiles, config), "tiles of queries, of all heads,", "split the batch"
    )


def make_keys_contiguous(kernel: str, v: torch.Tensor) -> torch.Tensor:
    """Return V, `[B, H_kv, N, D]` of 8-bit floats, with an N that is contiguous in memory, ready for TMA.

    Raises:
        ValueError: It has too many tiles for the launch that transposes it.
    """
    import torch

    b, h, n, d = v.shape
    if v.stride(2) == 1 and all(v.stride(axis) % TMA_ALIGNMENT == 0 for axis in (0, 1, 3)):
        return v
    grid = check_grid(
        kernel,
        (b * h * ct.cdiv(n, TRANSPOSED_ROWS),),
        (
            "tiles of v to transpose, of all heads,",
            "split the batch, or pass v as [B, H_kv, D, N] transposed",
        ),
    )
    row = ct.cdiv(n, TMA_ALIGNMENT) * TMA_ALIGNMENT
    transposed = torch.empty((b, h, d, row), dtype=v.dtype, device=v.device)[..., :n]
    ct.launch(torch.cuda.current_stream(), grid, transpose_kernel, (v, transposed, TRANSPOSED_ROWS, d))
    return transposed.transpose(2, 3)


def choose_attention_dtype(kernel: str, q: torch.Tensor, out_dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of the result: `out_dtype`, by default that of `q`.

    Raises:
        TypeError: `out_dtype` is no dtype, or neither that of `q` nor one of 16 bits.
    """
    import torch

    return choose_out_dtype(
        kernel, q.dtype, out_dtype, default=q.dtype, others=(torch.float16, torch.bfloat16)
    )


def make_output(q: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor of q's shape, `[B, H, M, D]`, whose heads lie inside tokens where q's do.

    So what follows a projection, and what goes into the next one, needs no copy.
    """
    import torch

    b, h, m, d = q.shape
    if q.stride(1) < q.stride(2):
        return torch.empty((b, m, h, d), dtype=dtype, device=q.device).transpose(1, 2)
    return torch.empty((b, h, m, d), dtype=dtype, device=q.device)


def constants_of(config: AttentionConfig, q: torch.Tensor, n: int, *, causal: bool) -> tuple[Any, ...]:
    """Return what the kernel takes from `TILE_M` on, for queries `q` and `n` keys.

    Compiled for the number of heads, of which a model has one, the kernel divides by a constant.
    """
    # A causal query only meets the end of the keys if there are more queries than keys.
    ragged = n % config.tile_n != 0 and not (causal and q.shape[2] <= n)
    return (
        *(config.tile_m, config.tile_n, config.latency_k or 0, config.latency_v or 0, causal, ragged),
        *(config.overlap, config.heads_together, config.persistent),
        *(HEADROOM.get(str(q.dtype).removeprefix("torch."), 0.0), q.shape[1]),
        divisor(config.heads_together * ct.cdiv(q.shape[2], config.tile_m)),
    )
