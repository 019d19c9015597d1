"""Attention of one new token per sequence to a cache of keys and values, as in every step of decoding.

    S[h, j] = scale * sum over d of Q[h, d] * K[h', j, d]         h' = floor(h / G)
    P[h, j] = exp(S[h, j] - max(S[h, :])) / sum over l of exp(S[h, l] - max(S[h, :]))
    O[h, d] = sum over j of P[h, j] * V[h', j, d]

for every sequence of the batch. Q and O are `[B, H, D]`, K and V are `[B, H_kv, N, D]`, all in float16 or
bfloat16; G = H / H_kv query heads in a row share one head of K and V (grouped-query attention). D is 64, 128
or 256, and N is anything. Scores, sums and accumulator are float32; the unnormalised P is rounded to the
dtype of V before the second product, because that is what tensor cores take.

With `bounds`, keys before the first and from the last on are hidden, sequence by sequence: of a cache that is
allocated for more tokens than there are, and of prompts that are padded on the left.

How it works: only G queries use a key or value, so the time is that of reading the cache, and the aim is to
keep all of the memory busy. The queries of a group are the rows of one tile, so that their head of K and V is
read once. A group has 4 or 8 queries, but a tensor core needs 64 rows on Hopper and 16 elsewhere; 8 columns
are enough. So by default everything is computed transposed: scores are `[keys, queries]`, and the accumulator
is `[D, queries]`. With a small batch, B * H_kv tiles of queries are too few for a GPU: `_split_kv` splits the
keys among several blocks and merges their results.

Sources: Dao et al., "Flash-Decoding for long-context inference", 2023
(https://pytorch.org/blog/flash-decoding/); Ainslie et al., "GQA", 2023 (https://arxiv.org/abs/2305.13245).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import SPECIAL, UNDEFINED, laid_out
from kernels._configs import check_fields
from kernels._dtypes import SHORT
from kernels._launch import (
    check_config,
    check_tensors,
    choose_by_width,
    count_sms,
    find_arch,
    next_power_of_2,
    on_its_gpu,
    with_hints,
)
from kernels._online_softmax import add_scores, check_scale, finish_softmax, start_softmax
from kernels._split_kv import (
    block_of_part,
    bounded_part,
    check_bounds,
    choose_part,
    hide_keys,
    make_grid,
    mask_bounds,
    merge_parts,
)
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

HEAD_DIMS = (64, 128, 256)
MIN_ROWS = {True: 8, False: 16}
"""Fewest queries that tensor cores take, by whether the keys come first: N and M of `mma.m16n8k16`."""
MAX_ROWS = 64
"""Most rows of queries in a block: M of Hopper's `wgmma`."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttentionDecodeConfig:
    """How the keys of a head are cut into tiles and parts, and the compiler's hints."""

    tile_n: int = 64
    """Keys per step."""
    keys_first: bool = True
    """Whether scores are computed as `[keys, queries]` instead of `[queries, keys]`."""
    blocks_per_sm: int = 2
    """Blocks for every multiprocessor, into which the keys are cut if the rows are fewer."""
    occupancy: int = 2
    """Blocks that have room on a multiprocessor: more than `blocks_per_sm` leave some for the merge."""
    part_cost: float = 0.01
    """What one part more takes to write and merge, in the time of a tile of keys: more makes fewer parts."""
    num_worker_warps: int | None = 4
    """Warps that hold scores and accumulator; None lets the compiler choose."""
    latency: int | None = 4
    """How far ahead tiles of K and V are loaded, 1 to 10; None lets the compiler choose."""
    small_tma: bool = True
    """Whether queries and output, a few KiB a block, may go by TMA, which has to fetch descriptors first."""
    dependent_merge: bool = True
    """Whether the merge is a programmatic dependent launch, which sm_80 to sm_89 do not have."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_n",))


# By the keys that each multiprocessor takes in, all sequences and heads together.
# sm_90: H200, 2026-11-22, driver 580.159.04, tileiras 13.4.92, cold L2, interleaved: how much faster than the
# table of 2026-11-21: tiles of 64 keys and 4 blocks up to 128 keys, of 128 and 3 up to 4096, of 128 and 4.
# The others are not measured: nothing spills (tileiras 13.4.92), but where a head of keys has more than 32
# queries, up to 104 bytes a thread.
CONFIGS: dict[str, tuple[tuple[float, AttentionDecodeConfig], ...]] = {
    "sm_80": ((math.inf, AttentionDecodeConfig(dependent_merge=False)),),
    "sm_86": ((math.inf, AttentionDecodeConfig(dependent_merge=False)),),
    "sm_89": ((math.inf, AttentionDecodeConfig(dependent_merge=False)),),
    "sm_90": (
        # 8 heads of 512 keys 2 %, of 1024 keys 7 %; 4 heads of 512, 1024, 2048 keys 1.5, 1, 4 %.
        (96, AttentionDecodeConfig(tile_n=128, occupancy=3, small_tma=False)),
        # Few parts, of few large tiles. 4 heads of 4096 keys 7 % (11.78 us), 8 of 2048 7 %, 32 of 512 5 %.
        (192, AttentionDecodeConfig(tile_n=256, blocks_per_sm=3, occupancy=3)),
        # Without TMA for the small tensors: 3 to 4 % at 248 keys (8 heads of 4096 keys 14.75 us), 1 % from
        # 4096 on (8 heads of 131072 keys 133.5 us), and within 2 % of nothing between.
        (math.inf, AttentionDecodeConfig(tile_n=128, occupancy=3, small_tma=False)),
    ),
    "sm_100": ((math.inf, AttentionDecodeConfig()),),
    "sm_103": ((math.inf, AttentionDecodeConfig()),),
    "sm_110": ((math.inf, AttentionDecodeConfig()),),
    "sm_120": ((math.inf, AttentionDecodeConfig()),),
    "sm_121": ((math.inf, AttentionDecodeConfig()),),
}
DEFAULT_CONFIGS = ((math.inf, AttentionDecodeConfig(dependent_merge=False)),)
"""For architectures that are not in the table."""
NEARLY_ALL = 0.9
LONG = 1024
WHOLE_CONFIGS = {
    # H200, 2026-11-22, bf16, 16 * 8 heads of 128 dimensions, 128 blocks for 132 multiprocessors: of 2048
    # keys, 32 queries 44.4 us (53.8 in two parts, and 46 to 47 as they are merged now), 64 queries 44.4 us
    # (52.0); of 8192 keys, 32 queries 131.5 us (137.3). Here a block alone on its multiprocessor reads as
    # fast as two.
    "sm_90": AttentionDecodeConfig(tile_n=128, blocks_per_sm=1, occupancy=3),
}
"""For heads of at least `LONG` keys that by themselves occupy at least `NEARLY_ALL` of the multiprocessors,
and each of which no more than one: none is cut into parts, and nothing is merged."""
MANY_CONFIGS = {
    # Many blocks hide what each of them waits for. H200, 2026-11-22, 64 * 8 heads of 2048 keys 131.5 us, of
    # 1024 keys 74.3 us; three blocks on a multiprocessor in place of four 2.4 and 3 % slower.
    "sm_90": AttentionDecodeConfig(tile_n=128, occupancy=4),
}
"""For more heads than multiprocessors."""
WIDE_CONFIGS = {
    # H200, 2026-11-22, bf16, 8 * 8 heads of 8192 keys of 256 dimensions 133 us; in tiles of 128 keys 136 us.
    "sm_90": AttentionDecodeConfig(occupancy=3),
}
"""For heads of more than 128 dimensions."""


def choose_config(arch: str, *, keys: int, heads_per_sm: float, head_dim: int) -> AttentionDecodeConfig:
    """Return the configuration for `arch`.

    Args:
        arch: As in "sm_90".
        keys: Keys of a head.
        heads_per_sm: Heads of keys of all sequences, for every multiprocessor.
        head_dim: Their dimensions.
    """
    if head_dim > 128 and arch in WIDE_CONFIGS:  # noqa: PLR2004
        return WIDE_CONFIGS[arch]
    if heads_per_sm > 1 and arch in MANY_CONFIGS:
        return MANY_CONFIGS[arch]
    if heads_per_sm >= NEARLY_ALL and keys >= LONG and arch in WHOLE_CONFIGS:
        return WHOLE_CONFIGS[arch]
    return choose_by_width(CONFIGS.get(arch, DEFAULT_CONFIGS), keys * heads_per_sm)


# -- kernel -----------------------------------------------------------------------------------------


def take_part(
    Q: ct.Array,
    K: ct.Array,
    V: ct.Array,
    PARTS: ct.Array,
    LSE: ct.Array,
    place: tuple[int, int, int, int],
    tiles: tuple[int, int],
    keys: tuple[int, int],
    scale_log2: float,
    ROWS: ConstInt,
    D: ConstInt,
    TILE_N: ConstInt,
    LATENCY: ConstInt,
    KEYS_FIRST: ConstBool,
    SMALL_TMA: ConstBool,
    SPLIT: ConstBool,
    BOUNDED: ConstBool,
) -> None:
    """Take in tiles of keys for `ROWS` of the queries that share them, and write what they add up to.

    `place` is the batch, the head of keys, the tile of queries and the part. `tiles` are the first tile of
    keys and the one behind the last; of their keys those from `keys[0]`, if `BOUNDED`, up to `keys[1]` are
    visible.
    """
    batch, kv_head, row, part = place
    latency = ct.static_eval(LATENCY or None)

    # The rows beyond the group are zeros; the stores drop them.
    q = ct.load(
        Q,
        (batch, kv_head, row, 0),
        (1, 1, ROWS, D),
        padding_mode=ct.PaddingMode.ZERO,
        allow_tma=SMALL_TMA,
    ).reshape((ROWS, D))
    q = ct.transpose(q) if KEYS_FIRST else q
    KEY_AXIS = 0 if KEYS_FIRST else 1
    row_max, row_sum, acc = start_softmax(ROWS, D, KEY_AXIS)
    for j in range(tiles[0], tiles[1]):
        k = ct.load(
            K, (batch, kv_head, j, 0), (1, 1, TILE_N, D), padding_mode=ct.PaddingMode.ZERO, latency=latency
        ).reshape((TILE_N, D))
        # Masked in every tile: that is few instructions beside the loads, and a loop of its own for the last
        # tile would start to load only when the one before has ended.
        key = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)
        if KEYS_FIRST:
            s = ct.mma(k, q, ct.zeros((TILE_N, ROWS), dtype=ct.float32))  # [TILE_N, ROWS]
            s = hide_keys(s, key[:, None], keys, BOUNDED)
        else:
            s = ct.mma(q, ct.transpose(k), ct.zeros((ROWS, TILE_N), dtype=ct.float32))  # [ROWS, TILE_N]
            s = hide_keys(s, key[None, :], keys, BOUNDED)
        p, row_max, row_sum, acc = add_scores(s, row_max, row_sum, acc, scale_log2, KEY_AXIS)
        v = ct.load(
            V,
            (batch, kv_head, j, 0),
            (1, 1, TILE_N, D),
            # Zeros, because 0 * P is 0, and whatever lies there may be NaN.
            padding_mode=ct.PaddingMode.ZERO,
            latency=latency,
        ).reshape((TILE_N, D))
        if KEYS_FIRST:
            acc = ct.mma(ct.transpose(v), p.astype(V.dtype), acc)  # [D, ROWS]
        else:
            acc = ct.mma(p.astype(V.dtype), v, acc)  # [ROWS, D]
    o, lse = finish_softmax(row_max, row_sum, acc)
    o = ct.transpose(o) if KEYS_FIRST else o
    o = o.astype(PARTS.dtype).reshape((1, 1, ROWS, 1, D))
    ct.store(PARTS, (batch, kv_head, row, part, 0), o, allow_tma=SMALL_TMA)
    if SPLIT:
        ct.store(LSE, (batch, kv_head, row, part), lse.reshape((1, 1, ROWS, 1)), allow_tma=SMALL_TMA)


@ct.kernel
def attention_decode_kernel(
    Q: ct.Array,
    K: ct.Array,
    V: ct.Array,
    PARTS: ct.Array,
    LSE: ct.Array,
    tiles_per_part: int,
    scale_log2: float,
    ROWS: ConstInt,
    D: ConstInt,
    TILE_N: ConstInt,
    LATENCY: ConstInt,
    KEYS_FIRST: ConstBool,
    SMALL_TMA: ConstBool,
    SPLIT: ConstBool,
    DEPENDENT: ConstBool,
    ROW_TILES: ConstInt,
    HEAD_TILES: ConstInt,
) -> None:
    """Take in one part of the keys for `ROWS` of the queries that share them.

    Q is `[B, H_kv, G, D]`, PARTS is `[B, H_kv, G, splits, D]` and LSE `[B, H_kv, G, splits]`. Without `SPLIT`
    there is one part, PARTS is the output, and LSE is not written. A latency of 0 leaves it to the compiler.
    `ROW_TILES` blocks share the G queries of a head of keys; of all heads there are `HEAD_TILES`.
    """
    if DEPENDENT:
        # All that the merge may do before it waits is to take its place.
        ct.grid_dependency_control_launch_dependents()
    part, tile, batch = block_of_part(HEAD_TILES)
    keys = K.shape[2]
    first = part * tiles_per_part
    take_part(
        Q, K, V, PARTS, LSE, (batch, tile // ROW_TILES, tile % ROW_TILES, part),
        (first, min(first + tiles_per_part, ct.cdiv(keys, TILE_N))), (0, keys),
        scale_log2, ROWS, D, TILE_N, LATENCY, KEYS_FIRST, SMALL_TMA, SPLIT, False,
    )  # fmt: skip


@ct.kernel
def bounded_attention_decode_kernel(
    Q: ct.Array,
    K: ct.Array,
    V: ct.Array,
    BOUNDS: ct.Array,
    PARTS: ct.Array,
    LSE: ct.Array,
    splits: int,
    scale_log2: float,
    ROWS: ConstInt,
    D: ConstInt,
    TILE_N: ConstInt,
    LATENCY: ConstInt,
    KEYS_FIRST: ConstBool,
    SMALL_TMA: ConstBool,
    SPLIT: ConstBool,
    DEPENDENT: ConstBool,
    ROW_TILES: ConstInt,
    HEAD_TILES: ConstInt,
) -> None:
    """Do the same where BOUNDS, `[B, 2]`, says which keys of a sequence are visible: `bounded_part`."""
    if DEPENDENT:
        ct.grid_dependency_control_launch_dependents()
    part, tile, batch = block_of_part(HEAD_TILES)
    tiles, keys = bounded_part(BOUNDS, batch, part, splits, K.shape[2], TILE_N)
    take_part(
        Q, K, V, PARTS, LSE, (batch, tile // ROW_TILES, tile % ROW_TILES, part), tiles, keys,
        scale_log2, ROWS, D, TILE_N, LATENCY, KEYS_FIRST, SMALL_TMA, SPLIT, True,
    )  # fmt: skip


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
def attention_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    bounds: torch.Tensor | None = None,
    config: AttentionDecodeConfig | None = None,
) -> torch.Tensor:
    """Attend from one query per head to all keys of its head, or to those within `bounds`.

    Forward only: no gradient flows through it.

    Inputs are finite, and scaled scores at most 2^11 to be as precise as float16, or 2^19 to mean anything:
    `_online_softmax` says why. A row that meets NaN or the score inf becomes NaN.

    Args:
        q: `[B, H, D]` or `[B, H, 1, D]`, float16 or bfloat16, any strides.
        k: `[B, H_kv, N, D]`, same dtype and device, any strides: a view of the filled part of a cache will
            do. H is a multiple of H_kv.
        v: `[B, H_kv, N, D]`, likewise.
        scale: Factor of the scores, greater than 0; by default 1 / sqrt(D).
        bounds: `[B, 2]`, int32, contiguous: the first key that a sequence sees, and the one behind the last;
            at least one. They stay on the GPU: a launch in a CUDA graph follows them.
        config: Instead of the one chosen for this GPU.

    Returns:
        In the shape of `q`, same dtype and device, contiguous. Zeros where there are no keys.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, a scale that is not a number,
            another kernel's configuration.
        ValueError: Shapes or devices that do not fit together, a head dimension that is not supported, a
            scale that is not positive or that float32 does not hold, more batches or heads than one launch
            takes.
    """
    import torch

    check_tensors("attention_decode", {"q": q, "k": k, "v": v}, dtypes=("float16", "bfloat16"))
    check_config("attention_decode", config, AttentionDecodeConfig)
    if q.ndim != 3 and (q.ndim != 4 or q.shape[2] != 1):  # noqa: PLR2004
        raise ValueError(
            "attention_decode: q must be [batch, heads, head_dim] or [batch, heads, 1, head_dim], "
            f"got shape {list(q.shape)}; several queries are for fmha"
        )
    for name, operand in (("k", k), ("v", v)):
        if operand.ndim != 4:  # noqa: PLR2004
            raise ValueError(
                f"attention_decode: {name} must be [batch, heads, length, head_dim], "
                f"got shape {list(operand.shape)}"
            )
    b, h, d = q.shape[0], q.shape[1], q.shape[-1]
    h_kv, n = k.shape[1:3]
    if d not in HEAD_DIMS:
        raise ValueError(
            f"attention_decode: q is {list(q.shape)} with D = {d}; "
            f"supported are {', '.join(map(str, HEAD_DIMS))}: pad q, k and v with zeros, and give the scale"
        )
    if k.shape[0] != b or k.shape[3] != d:
        raise ValueError(
            f"attention_decode: q is {list(q.shape)}, so k must be [{b}, H_kv, N, {d}], "
            f"but is {list(k.shape)}"
        )
    if v.shape != k.shape:
        raise ValueError(f"attention_decode: v must have k's shape {list(k.shape)}, but is {list(v.shape)}")
    if h and (h_kv == 0 or h % h_kv):
        raise ValueError(
            f"attention_decode: q has {h} heads, which is no multiple of the {h_kv} heads of k and v"
        )
    check_bounds("attention_decode", bounds, b, q.device)
    scale_log2 = check_scale("attention_decode", 1.0 / math.sqrt(d) if scale is None else scale)
    if 0 in (b, h, n):
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device)

    arch = find_arch("attention_decode", q, CONFIGS)
    sms = count_sms()
    config = config or choose_config(arch, keys=n, heads_per_sm=b * h_kv / sms, head_dim=d)
    group = h // h_kv
    rows = min(max(next_power_of_2(group), MIN_ROWS[config.keys_first]), MAX_ROWS)
    row_tiles = ct.cdiv(group, rows)
    tiles = ct.cdiv(n, config.tile_n)
    part = choose_part(b * h_kv * row_tiles, tiles, sms, config.blocks_per_sm, config.part_cost)
    splits = ct.cdiv(tiles, part)
    head_tiles = h_kv * row_tiles
    grid = make_grid("attention_decode", splits, head_tiles, b)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    parts = torch.empty((b, h, splits, d), dtype=torch.float32, device=q.device) if splits > 1 else o
    lse = torch.empty((b, h, splits), dtype=torch.float32, device=q.device)
    dependent = splits > 1 and config.dependent_merge
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        with_hints(attention_decode_kernel if bounds is None else bounded_attention_decode_kernel, config),
        (
            q.reshape(b, h_kv, group, d),  # always a view
            *((k, v) if bounds is None else (k, v, bounds)),
            *(parts.view(b, h_kv, group, splits, d), lse.view(b, h_kv, group, splits)),
            *(part if bounds is None else splits, scale_log2, rows, d, config.tile_n, config.latency or 0),
            *(config.keys_first, config.small_tma, splits > 1, dependent, row_tiles, head_tiles),
        ),
    )
    if splits > 1:
        merge_parts(parts, lse, o, dependent=dependent)
    return o


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    bounds: torch.Tensor | None = None,
) -> torch.Tensor:
    """Follow the formula in float64: scores are `[B, H_kv, G, N]`."""
    import torch

    if not q.numel():
        return torch.zeros_like(q)  # without heads, none has a group
    b, h, d = q.shape[0], q.shape[1], q.shape[-1]
    h_kv = k.shape[1]
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    grouped = q.reshape(b, h_kv, h // h_kv, d)
    s = grouped @ k.mT * scale
    if bounds is not None:
        s = s.masked_fill(~mask_bounds(bounds, k.shape[2])[:, None, None], -math.inf)
    return (torch.softmax(s, -1) @ v).reshape(q.shape)


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    b: int,
    h: int,
    h_kv: int,
    n: int,
    d: int,
    dtype: str,
    layout: str = "heads_outside",
    bounds: tuple[tuple[int, int], ...] | None = None,
) -> dict[str, Any]:
    """Make q, k and v, and `bounds` as they are given.

    `layout` is that of k and v: "heads_outside" as `[B, H_kv, N, D]`; "heads_inside" as views of
    `[B, N, H_kv, D]`; "cache" as the first N keys of a longer cache, and q has four axes.
    """
    import torch

    if layout == "cache":
        k, v = (make_tensor((b, h_kv, n + 50, d), dtype)[:, :, :n] for _ in range(2))
        return {"q": make_tensor((b, h, 1, d), dtype), "k": k, "v": v}
    if bounds is not None:
        k, v = (make_tensor((b, h_kv, n, d), dtype) for _ in range(2))
        q = make_tensor((b, h, d), dtype)
        return {"q": q, "k": k, "v": v, "bounds": torch.tensor(bounds, dtype=torch.int32, device=q.device)}
    if layout == "heads_inside":
        k, v = (make_tensor((b, n, h_kv, d), dtype).transpose(1, 2) for _ in range(2))
    else:
        k, v = (make_tensor((b, h_kv, n, d), dtype) for _ in range(2))
    return {"q": make_tensor((b, h, d), dtype), "k": k, "v": v}


def work(
    *,
    b: int,
    h: int,
    h_kv: int,
    n: int,
    d: int,
    dtype: str,
    layout: str = "heads_outside",
    bounds: tuple[tuple[int, int], ...] | None = None,
) -> Work:
    """Count a multiply and an add per score and dimension, twice: Q @ K^T and P @ V.

    K, V and Q are read once, and O is written once. Exponentials and the traffic of parts are not counted.
    Keys outside of bounds are not needed.
    """
    del layout
    keys = b * n if bounds is None else sum(end - begin for begin, end in bounds)
    return Work(flops=4.0 * h * keys * d, bytes=2.0 * d * (2 * h_kv * keys + 2 * b * h), dtype=dtype)


def longest_sum(*, n: int, d: int, **_: object) -> int:
    """Return the longer of two sums: over a head's dimensions, and over the keys."""
    return max(d, n)


def _case(
    dtype: str,
    b: int,
    h: int,
    h_kv: int,
    n: int,
    d: int,
    *,
    layout: str = "heads_outside",
    bounds: tuple[tuple[int, int], ...] | None = None,
    speed: bool = False,
) -> Case:
    short = SHORT[dtype]
    params: dict[str, Any] = {"b": b, "h": h, "h_kv": h_kv, "n": n, "d": d, "dtype": dtype, "layout": layout}
    suffix = "" if layout == "heads_outside" else f"-{layout}"
    if bounds is not None:
        params["bounds"] = bounds
        suffix = "-bounded"
    return Case(name=f"{short}-{b}x{h}_{h_kv}x{n}x{d}{suffix}", params=params, speed=speed)


SPEC = KernelSpec(
    name="attention_decode",
    launch=attention_decode,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    special_inputs=SPECIAL,
    undefined_inputs=UNDEFINED,
    independent={**dict.fromkeys(("q", "k", "v", "output"), ("batch", "heads")), "bounds": ("batch",)},
    cases=[
        # Llama 3 8B: a batch that needs few parts, and one that needs none. 537 MB, several times any L2.
        _case("bfloat16", 16, 32, 8, 8192, 128, speed=True),
        _case("float16", 64, 32, 8, 2048, 128, speed=True),
        # Llama 3 70B, one sequence that fills its context.
        _case("bfloat16", 1, 64, 8, 131072, 128, speed=True),
        # One short sequence: what a user alone at a chat waits for, token by token. It is all latency.
        _case("float16", 1, 32, 8, 4096, 128, speed=True),
        # Every head dimension; lengths to each side of a tile's edge and of a part's; groups that
        # fill their rows, that do not, and that need two tiles of rows.
        _case("float16", 1, 8, 2, 256, 64),
        _case("bfloat16", 2, 4, 2, 257, 64),
        _case("bfloat16", 3, 3, 1, 191, 128),
        _case("float16", 1, 8, 1, 449, 128),
        _case("float16", 2, 5, 1, 129, 256),
        _case("bfloat16", 1, 32, 2, 127, 256),
        _case("float16", 1, 71, 1, 200, 64),
        _case("bfloat16", 1, 12, 1, 1000, 64),
        # As many keys for each multiprocessor as want larger tiles.
        _case("float16", 2, 8, 4, 2111, 64),
        # No groups: one query a head.
        _case("bfloat16", 2, 3, 3, 333, 64),
        # One key, fewer than a tile, exactly one tile.
        _case("float16", 2, 4, 2, 1, 128),
        _case("bfloat16", 1, 8, 2, 31, 128),
        _case("float16", 1, 4, 1, 64, 64),
        # Heads beside each other in memory, and the filled part of a cache.
        _case("float16", 2, 8, 2, 190, 128, layout="heads_inside"),
        _case("bfloat16", 2, 4, 2, 321, 64, layout="cache"),
        # Rows that lie apart.
        laid_out(_case("float16", 2, 8, 2, 97, 64), "padded"),
        # Of a cache, keys that the GPU alone knows: all, one, some that begin and end within a tile, and none
        # in most parts.
        _case("bfloat16", 4, 8, 2, 600, 64, bounds=((0, 600), (0, 1), (70, 411), (599, 600))),
        _case("float16", 2, 4, 1, 257, 128, bounds=((0, 129), (130, 257))),
    ],
)
