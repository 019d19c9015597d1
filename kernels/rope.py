"""Rotary position embedding of queries and keys: pairs of dimensions turn by angles that tell the position.

    y[..., s, first(i)]  = x[..., s, first(i)] * cos[o + s, i] - x[..., s, second(i)] * sin[o + s, i]
    y[..., s, second(i)] = x[..., s, second(i)] * cos[o + s, i] + x[..., s, first(i)] * sin[o + s, i]
    y[..., s, d] = x[..., s, d]   for d >= R

for i in [0, R / 2), with o the position of the first token. There are two conventions for a pair's
dimensions:

    half-split (GPT-NeoX, Llama):  first(i) = i,      second(i) = i + R / 2
    interleaved (GPT-J, RoFormer): first(i) = 2 i,    second(i) = 2 i + 1

q is `[B, H, S, D]`, k is `[B, H_kv, S, D]`, both float16 or both bfloat16; H_kv may differ from H (with
grouped queries it is smaller). cos and sin are `[P, R / 2]`, in the dtype of q or in float32, with P >= o + S
and R <= D. Everything between load and store is float32. Nothing is changed in place: q and k are read and
written once, the dimensions from R on are copied.

How it works: a block owns `TILE_H` heads of `TILE_S` tokens, of q or of k, so that one load of the angles
serves several heads. Neighbouring blocks own neighbouring tokens of the same heads; where heads lie inside
tokens in memory, as projections leave them, neighbouring blocks own other heads of the same tokens. With the
half-split convention each half of a head is a tile of its own, and no data moves between threads. Interleaved
pairs are adjacent, so a tile holds both dimensions of a pair and is split in registers. Along a head, a
tile's length is the largest power of two that divides the dimensions it cuts, so no tile needs padding.

Sources: Su et al., "RoFormer", 2021 (https://arxiv.org/abs/2104.09864); the half-split convention: GPT-NeoX
(https://github.com/EleutherAI/gpt-neox) and Llama in transformers
(https://github.com/huggingface/transformers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._configs import check_fields
from kernels._dtypes import ITEMSIZE, SHORT
from kernels._launch import (
    ARCHITECTURES,
    MAX_GRID,
    check_bool,
    check_config,
    check_grid,
    check_integer,
    check_tensors,
    find_arch,
    next_power_of_2,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import is_full, load_tile
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """How heads and tokens are cut into tiles, and the compiler's hints."""

    tile_elements: int = 2048
    """Elements to aim at of a tile as wide as what turns of a head (R)."""
    tile_h: int = 1
    """Heads per tile, a power of two: as many share one load of the angles. Tokens make up the rest."""
    occupancy: int | None = 8
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    num_worker_warps: int | None = 4
    """Warps per block; None lets the compiler choose."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_elements", "tile_h"))


# H200, 2026-11-21, driver 580.159.04, cold L2, interleaved; in parentheses tiles of 4096 elements of 2 heads
# (4 if pairs are interleaved), in 8 blocks an SM of 4 warps:
#
#     fp16  1x16x4096x64                                 15.3 us (15.8)
#     fp16  1x16x32768x64                                72.8 us (73.9)
#     bf16  2x32_8x8192x128, heads inside                92.7 us (94.4)
#     fp16  8x16x2048x256, 64 turn, interleaved           140 us (143)
#     bf16  4x16_2x4096x256, 64 turn, float32 tables     84.1 us (107)
#
# Half-split pairs with tables of 16 bits want small tiles of one head, the others larger tiles of two.
#
# With heads inside tokens, blocks of neighbouring heads first: the third takes 86.4 us, for 91.1 with blocks
# of neighbouring tokens first; with interleaved pairs 0.96 of the time, where 64 of 256 dimensions turn 0.95,
# with tables of float32 0.98. Tiles of 2 to 16 heads and 2048 to 8192 elements take 1 to 13 % more, of 8
# heads and 1024 elements from 1 % less to 5 % more (2026-11-23, h200-2026-11-23-variants.jsonl).
_SMALL = RopeConfig()
_LARGE = RopeConfig(tile_elements=4096, tile_h=2, occupancy=4, num_worker_warps=8)
_MEASURED = {
    # Whether pairs are interleaved, itemsize of the tables.
    (False, 2): _SMALL,
    (False, 4): _LARGE,
    (True, 2): _LARGE,
    (True, 4): _LARGE,
}
# Not measured, except on sm_90 and where an entry says so.
CONFIGS = dict.fromkeys(ARCHITECTURES, _MEASURED)
DEFAULT_CONFIGS = _MEASURED
"""For architectures that are not in the table."""


def choose_config(arch: str, *, interleaved: bool, table_itemsize: int) -> RopeConfig:
    """Return the configuration for `arch`, the convention, and cosines of `table_itemsize` bytes."""
    return CONFIGS.get(arch, DEFAULT_CONFIGS)[interleaved, table_itemsize]


# -- kernel -----------------------------------------------------------------------------------------


MAX_PIECES = 8


def cut_part(n: int) -> int:
    """Return how wide the tiles are that hold `n` dimensions beside each other.

    As wide as the largest power of two that divides `n`, so that none sticks out (`load_tile` says what
    checks cost); one for all, where that would be more than `MAX_PIECES`: the code grows with each.
    """
    divisor = n & -n
    return divisor if n // divisor <= MAX_PIECES else next_power_of_2(n)


def turn(first: ct.Tile, second: ct.Tile, cos: ct.Tile, sin: ct.Tile) -> tuple[ct.Tile, ct.Tile]:
    """Turn the points (first, second) by the angles with this cosine and sine."""
    return first * cos - second * sin, second * cos + first * sin


def embed_tile(
    X: ct.Array,
    Y: ct.Array,
    COS: ct.Array,
    SIN: ct.Array,
    batch: int,
    heads: int,
    tokens: int,
    TILE_H: ConstInt,
    TILE_S: ConstInt,
    HALF: ConstInt,
    REST: ConstInt,
    INTERLEAVED: ConstBool,
    INSIDE: ConstBool,
) -> None:
    """Embed the `heads`-th group of heads at the `tokens`-th group of positions.

    `HALF` is R / 2, `REST` is D - R, and `INSIDE` says that no head or token of the tile is outside X.
    """
    TILE_D = ct.static_eval(cut_part(HALF))
    SHAPE = (1, TILE_H, TILE_S, TILE_D)
    FULL = INSIDE and HALF % TILE_D == 0
    for j in ct.static_iter(range(ct.cdiv(HALF, TILE_D))):
        cos = load_tile(COS, (tokens, j), (TILE_S, TILE_D), INSIDE=FULL).astype(ct.float32)
        sin = load_tile(SIN, (tokens, j), (TILE_S, TILE_D), INSIDE=FULL).astype(ct.float32)
        at = (batch, heads, tokens, j)
        if INTERLEAVED:
            X_pairs, Y_pairs = X, Y
            if HALF % TILE_D:
                X_pairs, Y_pairs = X.slice(3, 0, 2 * HALF), Y.slice(3, 0, 2 * HALF)
            x = load_tile(X_pairs, at, (1, TILE_H, TILE_S, 2 * TILE_D), INSIDE=FULL)
            x = x.reshape((*SHAPE, 2)).astype(ct.float32)  # [1, TILE_H, TILE_S, TILE_D, 2]
            first = ct.extract(x, (0, 0, 0, 0, 0), (*SHAPE, 1))
            second = ct.extract(x, (0, 0, 0, 0, 1), (*SHAPE, 1))
            pair = turn(
                first,
                second,
                cos.reshape((1, 1, TILE_S, TILE_D, 1)),
                sin.reshape((1, 1, TILE_S, TILE_D, 1)),
            )
            y = ct.cat(pair, 4).reshape((1, TILE_H, TILE_S, 2 * TILE_D))
            ct.store(Y_pairs, at, y.astype(Y.dtype), check_bounds=not FULL, allow_tma=False)
        else:
            first = load_tile(X.slice(3, 0, HALF), at, SHAPE, INSIDE=FULL)
            second = load_tile(X.slice(3, HALF, 2 * HALF), at, SHAPE, INSIDE=FULL)
            first, second = turn(
                first.astype(ct.float32),  # [1, TILE_H, TILE_S, TILE_D]
                second.astype(ct.float32),
                cos.reshape((1, 1, TILE_S, TILE_D)),
                sin.reshape((1, 1, TILE_S, TILE_D)),
            )
            Y1, Y2 = Y.slice(3, 0, HALF), Y.slice(3, HALF, 2 * HALF)
            ct.store(Y1, at, first.astype(Y.dtype), check_bounds=not FULL, allow_tma=False)
            ct.store(Y2, at, second.astype(Y.dtype), check_bounds=not FULL, allow_tma=False)
    if REST:
        TILE_REST = ct.static_eval(cut_part(REST))
        FULL_REST = INSIDE and REST % TILE_REST == 0
        X_rest, Y_rest = X.slice(3, 2 * HALF, 2 * HALF + REST), Y.slice(3, 2 * HALF, 2 * HALF + REST)
        for j in ct.static_iter(range(ct.cdiv(REST, TILE_REST))):
            at = (batch, heads, tokens, j)
            x = load_tile(X_rest, at, (1, TILE_H, TILE_S, TILE_REST), INSIDE=FULL_REST)
            ct.store(Y_rest, at, x, check_bounds=not FULL_REST, allow_tma=False)


def embed(
    X: ct.Array,
    Y: ct.Array,
    COS: ct.Array,
    SIN: ct.Array,
    heads: int,
    tokens: int,
    TILE_H: ConstInt,
    TILE_S: ConstInt,
    HALF: ConstInt,
    REST: ConstInt,
    INTERLEAVED: ConstBool,
) -> None:
    """Embed the `heads`-th group of heads of X at the `tokens`-th of positions, in this block's batch."""
    batch = ct.bid(2)
    if is_full(heads, X.shape[1], TILE_H) and is_full(tokens, X.shape[2], TILE_S):
        embed_tile(X, Y, COS, SIN, batch, heads, tokens, TILE_H, TILE_S, HALF, REST, INTERLEAVED, True)
    else:
        embed_tile(X, Y, COS, SIN, batch, heads, tokens, TILE_H, TILE_S, HALF, REST, INTERLEAVED, False)


@ct.kernel
def rope_kernel(
    Q: ct.Array,
    K: ct.Array,
    Q_OUT: ct.Array,
    K_OUT: ct.Array,
    COS: ct.Array,
    SIN: ct.Array,
    TILE_H: ConstInt,
    TILE_S: ConstInt,
    HALF: ConstInt,
    REST: ConstInt,
    INTERLEAVED: ConstBool,
    HEADS_FIRST: ConstBool,
) -> None:
    """Embed one tile of Q or, after its heads, of K; row 0 of COS is token 0.

    `HEADS_FIRST` says that heads are on the grid's first axis and tokens on its second, not the other way.
    """
    heads, tokens = ct.bid(0 if HEADS_FIRST else 1), ct.bid(1 if HEADS_FIRST else 0)
    q_tiles = ct.cdiv(Q.shape[1], TILE_H)
    if heads < q_tiles:
        embed(Q, Q_OUT, COS, SIN, heads, tokens, TILE_H, TILE_S, HALF, REST, INTERLEAVED)
    else:
        embed(K, K_OUT, COS, SIN, heads - q_tiles, tokens, TILE_H, TILE_S, HALF, REST, INTERLEAVED)


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    offset: int = 0,
    interleaved: bool = False,
    config: RopeConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn the first `2 * cos.shape[1]` dimensions of each query and key by the angles of its position.

    Forward only: no gradient flows through it.

    Tables in the style of transformers, which hold each angle twice, are passed as `cos[:, : R // 2]`.

    Args:
        q: `[B, H, S, D]`, float16 or bfloat16, any strides: `[B, S, H, D]` transposed is not copied.
        k: `[B, H_kv, S, D]`, same dtype and device.
        cos: Cosines of the angles, `[P, R / 2]`, one row per position, in the dtype of q or float32.
        sin: Sines, same shape and dtype.
        offset: Position of the first token: its angles are those of row `offset`.
        interleaved: Whether neighbours make a pair (GPT-J), instead of dimensions R / 2 apart (Llama).
        config: Instead of the one chosen for this GPU.

    Returns:
        q and k embedded, with the shape, dtype, device and (if they are dense) strides of q and k.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, an offset that is no integer, an
            `interleaved` that is not a bool, another kernel's configuration.
        ValueError: Shapes that do not fit, too few positions, a negative offset, devices that differ, more
            batches, heads or tokens than one launch takes.
    """
    import torch

    check_tensors("rope", {"q": q, "k": k}, dtypes=("float16", "bfloat16"))
    check_tensors("rope", {"cos": cos, "sin": sin}, dtypes=("float16", "bfloat16", "float32"))
    check_config("rope", config, RopeConfig)
    offset = check_integer("rope", "offset", offset)
    interleaved = check_bool("rope", "interleaved", interleaved)
    if cos.dtype not in (q.dtype, torch.float32):
        raise TypeError(f"rope: cos has dtype {cos.dtype}, but q has {q.dtype}; use that or torch.float32")
    if cos.device != q.device:
        raise ValueError(f"rope: cos is on {cos.device}, but q is on {q.device}; move one")
    for name, tensor in {"q": q, "k": k}.items():
        if tensor.ndim != 4:  # noqa: PLR2004
            raise ValueError(
                f"rope: {name} must be [batch, heads, tokens, D], got shape {list(tensor.shape)}"
            )
    batch, heads, tokens, width = q.shape
    if (k.shape[0], *k.shape[2:]) != (batch, tokens, width):
        raise ValueError(f"rope: k must be [{batch}, H_kv, {tokens}, {width}], but is {list(k.shape)}")
    if cos.ndim != 2 or sin.shape != cos.shape:  # noqa: PLR2004
        raise ValueError(
            "rope: cos and sin must be matrices [positions, R / 2] of one shape, "
            f"got {list(cos.shape)} and {list(sin.shape)}"
        )
    half = cos.shape[1]
    if not 0 < 2 * half <= width:
        raise ValueError(
            f"rope: cos has {half} angles per position, which turn {2 * half} dimensions of {width}; "
            f"pass 1 to {width // 2} (of a table that holds each angle twice, the first half)"
        )
    if offset < 0:
        raise ValueError(f"rope: offset must not be negative, got {offset}")
    if offset + tokens > cos.shape[0]:
        raise ValueError(
            f"rope: {tokens} tokens from position {offset} on need {offset + tokens} rows of cos, "
            f"but it has {cos.shape[0]}"
        )
    if q.numel() + k.numel() == 0:
        return torch.empty_like(q), torch.empty_like(k)

    arch = find_arch("rope", q, CONFIGS)
    config = config or choose_config(arch, interleaved=interleaved, table_itemsize=cos.element_size())
    # With few heads, and of course few tokens, tiles are no larger than what there is.
    tile_h = min(config.tile_h, next_power_of_2(max(heads, k.shape[1])))
    tile_s = max(1, config.tile_elements // (tile_h * next_power_of_2(2 * half)))
    tile_s = min(tile_s, next_power_of_2(tokens))
    grid = check_grid(
        "rope",
        (ct.cdiv(tokens, tile_s), ct.cdiv(heads, tile_h) + ct.cdiv(k.shape[1], tile_h), batch),
        ("groups of tokens", "split the tokens"),
        ("groups of heads, of q and k,", "split the heads"),
        ("batches", "split the batch"),
    )
    # Blocks that run together take what lies together.
    heads_first = q.stride(1) < q.stride(2) and grid[0] <= MAX_GRID[1]
    if heads_first:
        grid = (grid[1], grid[0], grid[2])
    outs = torch.empty_like(q), torch.empty_like(k)
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        with_hints(rope_kernel, config),
        (
            q,
            k,
            *outs,
            cos[offset : offset + tokens],
            sin[offset : offset + tokens],
            tile_h,
            tile_s,
            half,
            width - 2 * half,
            interleaved,
            heads_first,
        ),
    )
    return outs


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    offset: int,
    interleaved: bool,
) -> tuple[torch.Tensor, ...]:
    """Follow the formula in float64."""
    half = cos.shape[1]
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(half), slice(half, 2 * half))
    )
    cos, sin = (table[offset : offset + q.shape[2]] for table in (cos, sin))  # [S, R / 2]
    outs = []
    for x in (q, k):
        y = x.clone()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        outs.append(y)
    return tuple(outs)


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    batch: int,
    heads: int,
    heads_kv: int,
    tokens: int,
    width: int,
    rotary: int,
    dtype: str,
    offset: int = 0,
    interleaved: bool = False,
    table_dtype: str | None = None,
    heads_inside: bool = False,
) -> dict[str, Any]:
    """Make q, k and the tables, which have a few rows more than are needed where there is an offset.

    `heads_inside` makes q and k views of `[B, S, H, D]`, as projections leave them. The tables hold cosines
    and sines of random angles, so that rows and columns that are mixed up show.
    """
    import torch

    def make(count: int) -> torch.Tensor:
        if heads_inside:
            return make_tensor((batch, tokens, count, width), dtype).transpose(1, 2)
        return make_tensor((batch, count, tokens, width), dtype)

    positions = offset + tokens + (3 if offset else 0)
    angles = make_tensor((positions, rotary // 2), "float32", dist="uniform", low=-math.pi, high=math.pi)
    cast = getattr(torch, table_dtype or dtype)
    return {
        "q": make(heads),
        "k": make(heads_kv),
        "cos": angles.cos().to(cast),
        "sin": angles.sin().to(cast),
        "offset": offset,
        "interleaved": interleaved,
    }


def work(
    *,
    batch: int,
    heads: int,
    heads_kv: int,
    tokens: int,
    width: int,
    rotary: int,
    dtype: str,
    table_dtype: str | None = None,
    **_same_work: Any,
) -> Work:
    """Count bytes only: q and k read and written once, and one row of cos and of sin per token read once."""
    table_itemsize = ITEMSIZE[table_dtype or dtype]
    q_and_k = batch * (heads + heads_kv) * tokens * width * 2
    return Work(bytes=float(2 * q_and_k + tokens * rotary * table_itemsize), dtype=dtype)


def _case(
    dtype: str,
    batch: int,
    heads: int,
    tokens: int,
    width: int,
    *,
    heads_kv: int | None = None,
    rotary: int | None = None,
    offset: int = 0,
    interleaved: bool = False,
    table_dtype: str | None = None,
    heads_inside: bool = False,
    speed: bool = False,
) -> Case:
    short = SHORT[dtype]
    name = (
        f"{short}-{batch}x{heads}" + (f"_{heads_kv}" if heads_kv is not None else "") + f"x{tokens}x{width}"
    )
    if rotary is not None:
        name += f"-r{rotary}"
    if offset:
        name += f"-o{offset}"
    name += "-interleaved" * interleaved + "-fp32_tables" * (table_dtype is not None)
    name += "-heads_inside" * heads_inside
    params = {
        "batch": batch,
        "heads": heads,
        "heads_kv": heads if heads_kv is None else heads_kv,
        "tokens": tokens,
        "width": width,
        "rotary": width if rotary is None else rotary,
        "dtype": dtype,
        "offset": offset,
        "interleaved": interleaved,
        "table_dtype": table_dtype,
        "heads_inside": heads_inside,
    }
    return Case(name=name, params=params, speed=speed)


SPEC = KernelSpec(
    name="rope",
    launch=rope,
    reference=reference,
    inputs=inputs,
    work=work,
    # Each element is a sum of two products.
    reduction=2,
    independent={"q": ("batch", "heads"), "k": ("batch", "heads"), "output": ("batch", "heads")},
    cases=[
        # 270 to 540 MB: TileGym's longest; Llama 3 8B; GPT-J 6B and Qwen3-Next, where 64 of 256 turn.
        _case("float16", 1, 16, 32768, 64, speed=True),
        _case("bfloat16", 2, 32, 8192, 128, heads_kv=8, heads_inside=True, speed=True),
        _case("float16", 8, 16, 2048, 256, rotary=64, interleaved=True, speed=True),
        _case("bfloat16", 4, 16, 4096, 256, heads_kv=2, rotary=64, table_dtype="float32", speed=True),
        # To each side of a tile of tokens; heads that are no multiple of a tile; one token, one head.
        _case("float16", 2, 2, 32, 64),
        _case("bfloat16", 1, 4, 33, 64),
        _case("float16", 1, 3, 31, 128),
        _case("bfloat16", 2, 1, 1, 64, offset=77),
        _case("float16", 1, 2, 100, 32),
        # Grouped heads, offsets, tables of float32.
        _case("bfloat16", 2, 8, 19, 64, heads_kv=2, offset=5),
        _case("float16", 1, 6, 37, 128, heads_kv=1, table_dtype="float32"),
        _case("float16", 1, 2, 9, 64, offset=3),
        _case("bfloat16", 3, 2, 7, 32, heads_kv=5, offset=1000, table_dtype="float32"),
        # Partial, also where neither part is a power of two; a rest of one.
        _case("float16", 2, 3, 21, 128, rotary=32),
        _case("bfloat16", 1, 2, 5, 96, heads_kv=1, rotary=24),
        _case("float16", 1, 1, 5, 80, rotary=80),
        _case("float16", 1, 1, 5, 7, rotary=6),
        _case("bfloat16", 2, 3, 17, 138, heads_kv=1, rotary=90),
        # Interleaved, whole and partial.
        _case("float16", 2, 3, 33, 64, interleaved=True),
        _case("bfloat16", 1, 4, 21, 128, heads_kv=2, rotary=32, offset=9, interleaved=True),
        _case("float16", 1, 2, 9, 28, rotary=12, interleaved=True, table_dtype="float32"),
        _case("float16", 1, 3, 11, 100, rotary=62, interleaved=True),
        # Heads inside tokens, as projections leave them.
        _case("bfloat16", 2, 4, 19, 64, heads_kv=2, heads_inside=True),
        _case("float16", 2, 3, 33, 64, interleaved=True, heads_inside=True),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("float16", 2, 4, 19, 64, heads_kv=2), "padded"),
        laid_out(_case("bfloat16", 3, 2, 13, 64, offset=3), "shifted"),
    ],
)
