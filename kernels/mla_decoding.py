"""Multi-head latent attention of one new token per sequence: DeepSeek's decoding step, in its absorbed form.

    S[h, j] = scale * (sum over d of Q[h, d] * KV[j, d] + sum over r of QPE[h, r] * KPE[j, r])
    P[h, j] = exp(S[h, j] - max(S[h, :])) / sum over l of exp(S[h, l] - max(S[h, :]))
    O[h, d] = sum over j of P[h, j] * KV[j, d]

for every sequence of the batch. The cache has one latent vector per token, which is key and value of all
heads at once, and a shorter one for its rotated position. Q and O are `[B, H, D]`, QPE is `[B, H, R]`, KV is
`[B, N, D]`, and KPE is `[B, N, R]`. D is 128, 256 or 512, R is 64; H and N are anything. "Absorbed": the
projections from the latent vector to each head were multiplied into Q before, and into O after, elsewhere.

With `bounds`, tokens before the first and from the last on are hidden, sequence by sequence.

Dtypes: Q, QPE and O are float16 or bfloat16. KV and KPE have the same dtype, or are both an 8-bit float
(e4m3fn or e5m2), which halves the cache; then Q and QPE may be 8-bit floats, too, and O is bfloat16. Elements
of an 8-bit cache are converted to float16 when they are loaded: one instruction converts two of them, and
bfloat16 would take five. The conversion is exact, because float16 holds every 8-bit value. Queries become
float16, too: 8-bit ones as they are, and each row of bfloat16 ones multiplied by a power of two
(`float16_queries`). (If cache or queries were divided by a factor, multiply `scale` by it, and O by the
cache's.) Scores, sums and accumulator are float32. Two things are rounded to 16 bits: the unnormalised P
before the second product, because tensor cores take operands of one size, and O.

How it works: a tile of KV is loaded once, and is both the keys and the values of its step. With few heads it
takes as long as the cache takes to read. With 128 heads there are 242 operations for every byte of a 16-bit
cache, about as many as an H200 can do while it reads one (989 TFLOPS, 4.8 TB/s), so the products count as
much. The accumulator is wide, `[heads, 512]`, and a block has registers for 64 heads of it, the number of
rows that Hopper's tensor cores need. With 16 heads everything is computed transposed, scores `[keys, heads]`
and accumulator `[512, heads]`, because 8 columns are enough. An 8-bit cache is loaded as words of two
elements: `load_cache` says why. `_split_kv` splits the keys among several blocks and merges their results.

Sources: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1 and appendix C (https://arxiv.org/abs/2405.04434); Dao
et al., "Flash-Decoding for long-context inference", 2023 (https://pytorch.org/blog/flash-decoding/).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import SPECIAL_WITH_ROPE, UNDEFINED, laid_out
from kernels._configs import check_fields, vary
from kernels._dtypes import FP8, ITEMSIZE, MIN_ARCH, SHORT, SMALLEST_FLOAT32
from kernels._launch import (
    check_config,
    check_power_of_2,
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

LATENT_DIMS = (128, 256, 512)
ROPE_DIM = 64
DTYPES = ("float16", "bfloat16", *FP8)
MIN_HEADS = 16
"""Fewest heads in a block; with 8, 8 warps no longer share scores of 64 keys, and the compiler spills."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MlaDecodingConfig:
    """How heads and keys are cut into tiles and parts, and the compiler's hints.

    There is no `num_ctas`, multiprocessors that share a block's work: with 2, tileiras 13.4 compiles code for
    sm_90 that computes something else from an 8-bit cache, most of all from its words, or it crashes, and no
    case was ever faster (H200, 2026-11-22).
    """

    tile_h: int = 16
    """Heads per block, at most, and at least 16; each block reads all of its part of the cache."""
    tile_n: int = 64
    """Keys per step."""
    keys_first: bool = True
    """Whether scores are computed as `[keys, heads]` instead of `[heads, keys]`."""
    late_sum: bool = False
    """Whether sums of exponentials are kept for each key of a tile, and added up at the end."""
    occupancy: int = 1
    """Blocks that have room on a multiprocessor; the keys are cut into parts enough for as many."""
    part_cost: float = 0.01
    """What one part more takes to write and merge, in the time of a tile of keys: more makes fewer parts."""
    num_worker_warps: int | None = 8
    """Warps that hold scores and accumulator; None lets the compiler choose."""
    latency: int | None = 4
    """How far ahead tiles of KV and KPE are loaded, 1 to 10; None lets the compiler choose."""
    small_tma: bool = True
    """Whether queries and output, a few KiB a block, may go by TMA, which has to fetch descriptors first."""
    cache_words: bool = True
    """Whether an 8-bit cache is loaded as words of two elements, if it lies so that it can be."""
    dependent_merge: bool = True
    """Whether the merge is a programmatic dependent launch, which sm_80 to sm_89 do not have."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_h", "tile_n"))
        check_power_of_2("MlaDecodingConfig", "tile_h", self.tile_h, least=MIN_HEADS)


# By the keys that each multiprocessor takes in, all sequences together; each tile of 16 heads counts as one.
# What is not measured is what the compiler fits into registers and shared memory without spilling. Eight
# warps, because the accumulator is wide, and 64 keys, because fewer do not occupy as many warps.
CONFIGS: dict[str, tuple[tuple[float, MlaDecodingConfig], ...]] = {
    "sm_80": ((math.inf, MlaDecodingConfig(dependent_merge=False)),),
    "sm_86": ((math.inf, MlaDecodingConfig(dependent_merge=False)),),
    "sm_89": ((math.inf, MlaDecodingConfig(dependent_merge=False)),),
    # H200, 2026-11-21, driver 580.159.04, cold L2, medians, against MlaDecodingConfig() for all.
    "sm_90": (
        # 16 heads of 1024 keys: D = 128 9.66 us (10.35), D = 512 11.20 us (12.56).
        (48, MlaDecodingConfig(occupancy=2, latency=8)),
        # One tile of 128 keys each for half of the multiprocessors, and the others are free for the merge.
        # 8192 keys: D = 128 11.04 us (16.90), D = 512 16.06 us (21.47).
        (96, MlaDecodingConfig(tile_n=128, num_worker_warps=4, latency=8)),
        # 2026-11-22, before with the line below: fp16, 16384 keys 19.2 us (20.2).
        (192, MlaDecodingConfig(tile_n=32, occupancy=2, num_worker_warps=4, latency=8)),
        # 16384 keys: D = 512 21.52 us (25.14).
        (1024, MlaDecodingConfig(occupancy=2, num_worker_warps=4, latency=8)),
        # Two warp groups share a tile. 2026-11-22, before with the line above: bf16, 64 * 4096 keys 92.1 us
        # (99.0); more keys not measured.
        (math.inf, MlaDecodingConfig(latency=8)),
    ),
    "sm_100": ((math.inf, MlaDecodingConfig()),),
    "sm_103": ((math.inf, MlaDecodingConfig()),),
    "sm_110": ((math.inf, MlaDecodingConfig()),),
    "sm_120": ((math.inf, MlaDecodingConfig()),),
    "sm_121": ((math.inf, MlaDecodingConfig()),),
}
DEFAULT_CONFIGS = ((math.inf, MlaDecodingConfig(dependent_merge=False)),)
"""For architectures that are not in the table."""
NARROW_CONFIGS: dict[str, tuple[tuple[float, MlaDecodingConfig], ...]] = {
    # As for more dimensions, but where 2026-11-22 is: that was measured.
    "sm_90": (
        (24, MlaDecodingConfig(occupancy=2, latency=8)),
        # 2026-11-22: fp16, 4096 keys 9.73 us (10.85 with tiles of 64).
        (48, MlaDecodingConfig(tile_n=128, occupancy=2, num_worker_warps=4, latency=8)),
        (96, MlaDecodingConfig(tile_n=128, num_worker_warps=4, latency=8)),
        # Again a tile each for half of the multiprocessors. 2026-11-22: fp16, 16384 keys 12.0 us (15.6 with
        # tiles of 64, and with the merge before; with that of now, 12.7 us).
        (192, MlaDecodingConfig(tile_n=256, latency=8)),
        (math.inf, MlaDecodingConfig(occupancy=2, num_worker_warps=4, latency=8)),
    ),
}
"""For 128 latent dimensions, where tiles of more keys have room."""
CONFIGS_8BIT: dict[str, tuple[tuple[float, MlaDecodingConfig], ...]] = {
    "sm_90": (
        # H200, 2026-11-21: 64 * 8192 keys of 16 heads 198.6 us (211.3 with occupancy=1), with
        # cache_words=False and products in bfloat16.
        (2048, MlaDecodingConfig(occupancy=2)),
        # Late sums spare the warps that share the keys of a tile an exchange in every tile. H200, 2026-11-22:
        # e4m3 cache, 64 * 8192 keys 171.5 us (188.3 with occupancy=2, 179.3 without late_sum). Not so with
        # e4m3 queries: 128 * 5000 keys 219.6 us, 204.4 without late_sum.
        (math.inf, MlaDecodingConfig(late_sum=True)),
    ),
    # Not measured. Some registers spill, 200 bytes a thread; nothing else that was tried spills less.
    "sm_120": ((math.inf, MlaDecodingConfig(cache_words=False)),),
    "sm_121": ((math.inf, MlaDecodingConfig(cache_words=False)),),
}
"""For a cache of 8 bits, whose converted tiles take registers and shared memory, too."""
MANY_HEADS = 64
MANY_HEADS_CONFIGS: dict[str, tuple[tuple[float, MlaDecodingConfig], ...]] = {
    # H200, 2026-11-23, driver 580.159.04, cold L2, interleaved, 128 heads in bfloat16; in parentheses what
    # all of them had before: the line in the middle.
    "sm_90": (
        # 4096 keys 19.5 us (21.5), 16 * 4096 keys 83.2 us (86.2).
        (5600, MlaDecodingConfig(tile_h=32, latency=2)),
        # 131072 keys 128.4 us (with the line below 131.0). With keys first, 64 * 4096 keys took 258.6 us.
        (11200, MlaDecodingConfig(tile_h=64, tile_n=64, keys_first=False)),
        # 64 * 4096 keys 223.1 us (231.5), 128 * 5000 keys 533.4 us (556.5).
        (math.inf, MlaDecodingConfig(tile_h=64, tile_n=64, keys_first=False, small_tma=False)),
    ),
    "sm_100": ((math.inf, MlaDecodingConfig(tile_h=64, tile_n=64, keys_first=False)),),
    "sm_103": ((math.inf, MlaDecodingConfig(tile_h=64, tile_n=64, keys_first=False)),),
    "sm_110": ((math.inf, MlaDecodingConfig(tile_h=64, tile_n=64, keys_first=False)),),
}
"""For at least `MANY_HEADS` heads, where tensor cores take as many rows. Only sm_90 is measured."""
MANY_HEADS_8BIT_CONFIGS: dict[str, tuple[tuple[float, MlaDecodingConfig], ...]] = {
    # H200, 2026-11-22: 64 * 4096 keys of 128 heads, e4m3 queries and cache 378 us (400 with tile_h=64, 658
    # with 16, 607 with tile_h=64, tile_n=32 and heads first); bfloat16 queries 386 us (519, 653, 612).
    "sm_90": ((math.inf, MlaDecodingConfig(tile_h=32)),),
}
"""The same for a cache of 8 bits: each tile of heads converts it, and more heads spill.

From sm_100 on, tiles of 64 heads whose bfloat16 queries are scaled get no tensor memory from tileiras 13.4,
and spill.
"""


def choose_config(
    arch: str,
    *,
    heads: int,
    latent_dim: int,
    query_itemsize: int,
    cache_itemsize: int,
    keys_per_sm: float,
) -> MlaDecodingConfig:
    """Return the configuration for `arch`.

    Args:
        arch: As in "sm_90".
        heads: Heads of a sequence.
        latent_dim: D.
        query_itemsize: Bytes of an element of Q.
        cache_itemsize: Bytes of an element of KV.
        keys_per_sm: Keys of all sequences, times tiles of 16 heads, for every multiprocessor.
    """
    eight_bit = cache_itemsize == 1
    if heads >= MANY_HEADS:
        many_heads = MANY_HEADS_8BIT_CONFIGS if eight_bit else MANY_HEADS_CONFIGS
        if arch in many_heads:
            return choose_by_width(many_heads[arch], keys_per_sm)
    configs = CONFIGS.get(arch, DEFAULT_CONFIGS)
    if eight_bit:
        configs = CONFIGS_8BIT.get(arch, configs)
    elif latent_dim == min(LATENT_DIMS):
        configs = NARROW_CONFIGS.get(arch, configs)
    config = choose_by_width(configs, keys_per_sm)
    return vary(config, late_sum=False) if query_itemsize == 1 else config


# -- kernel -----------------------------------------------------------------------------------------


P_HEADROOM = 14.0
"""How far up P is pushed in float16 where O is bfloat16, which has more exponents.

In [0, 1], elements below 2^-25 would be 0, and a long cache has many. Up to 2^14 those that vanish are below
2^-39, and what the maximum may be off by within the range of `_online_softmax` does not yet overflow.
"""


def load_cache(
    X: ct.Array,
    batch: int,
    j: int,
    TILE_N: int,
    D: int,
    LATENCY: int | None,
    WORDS: bool,
    E5M2: bool,
) -> ct.Tile:
    """Load the `j`-th `TILE_N` keys of a sequence: `[TILE_N, D]`, 16 bits; zeros beyond the last.

    With `WORDS`, X is an 8-bit cache as int16 words of two elements each, `[B, N, D / 2]`. It is the same
    memory, and the same bytes in registers. But a row of 512 elements is more than the 256 that a box of TMA
    may have on a side (CUDA driver API, cuTensorMapEncodeTiled), and where such a load has 8-bit elements,
    tileiras 13.4 loads its pieces one after the other, and waits for each before it asks for the next, in
    the loop that also computes. Words are loaded ahead by a warp of their own.
    """
    if WORDS:
        words = ct.load(
            X, (batch, j, 0), (1, TILE_N, D // 2), padding_mode=ct.PaddingMode.ZERO, latency=LATENCY
        )
        CACHE = ct.static_eval(ct.float8_e5m2 if E5M2 else ct.float8_e4m3fn)
        x = ct.unpack_from_bytes(ct.pack_to_bytes(words), CACHE)
    else:
        x = ct.load(X, (batch, j, 0), (1, TILE_N, D), padding_mode=ct.PaddingMode.ZERO, latency=LATENCY)
    EIGHT_BIT = ct.static_eval(x.dtype.bitwidth == 8)  # noqa: PLR2004
    return x.reshape((TILE_N, D)).astype(ct.float16 if EIGHT_BIT else x.dtype)


def float16_queries(q: ct.Tile, qpe: ct.Tile) -> tuple[ct.Tile, ct.Tile, ct.Tile]:
    """Make the rows of `q` and `qpe` float16, and return by what their scores are to be multiplied then.

    A row is multiplied by the power of two that takes its largest magnitude to [2^14, 2^15). That is exact,
    and so is the conversion of bfloat16's 8 significant bits, but for elements that become denormal: they are
    rounded to multiples of 2^-24, so they are off by less than 2^-38 of the row's largest. (A row without
    any element of at least 2^-112 is multiplied by 2^126.)

    Returns the two, and the inverse factors, float32 `[rows, 1]`.
    """
    largest = ct.maximum(
        ct.max(ct.abs(q.astype(ct.float32)), 1, keepdims=True),
        ct.max(ct.abs(qpe.astype(ct.float32)), 1, keepdims=True),
    )  # [rows, 1]
    # The exponent field alone. Infinite ones have the largest, and stay infinite below; NaN stays NaN.
    exponent = ct.maximum(ct.bitcast(largest, ct.int32) >> 23, 15)
    factor = ct.bitcast((127 + 14 + 127 - exponent) << 23, ct.float32)
    inverse = ct.bitcast((exponent - 14) << 23, ct.float32)
    return (
        (q.astype(ct.float32) * factor).astype(ct.float16),
        (qpe.astype(ct.float32) * factor).astype(ct.float16),
        inverse,
    )


def take_part(
    Q: ct.Array,
    QPE: ct.Array,
    KV: ct.Array,
    KPE: ct.Array,
    PARTS: ct.Array,
    LSE: ct.Array,
    place: tuple[int, int, int],
    tiles: tuple[int, int],
    keys: tuple[int, int],
    scale_log2: float,
    D: ConstInt,
    R: ConstInt,
    TILE_H: ConstInt,
    TILE_N: ConstInt,
    LATENCY: ConstInt,
    KEYS_FIRST: ConstBool,
    LATE_SUM: ConstBool,
    SMALL_TMA: ConstBool,
    WORDS: ConstBool,
    E5M2: ConstBool,
    SPLIT: ConstBool,
    BOUNDED: ConstBool,
) -> None:
    """Take in tiles of keys for `TILE_H` heads, and write what they add up to.

    `place` is the batch, the tile of heads and the part. `tiles` are the first tile of keys and the one
    behind the last; of their keys those from `keys[0]`, if `BOUNDED`, up to `keys[1]` are visible.
    """
    batch, tile, part = place
    latency = ct.static_eval(LATENCY or None)

    SCALED = ct.static_eval(Q.dtype == ct.bfloat16 and KV.dtype != Q.dtype)
    EIGHT_BIT_QUERIES = ct.static_eval(Q.dtype.bitwidth == 8)  # noqa: PLR2004
    # Those that are scaled go through registers. From where TMA puts them for tensor cores, transposed, they
    # are fetched element by element: with 16 heads 25000 instructions, and spills (tileiras 13.4, sm_90).
    QUERY_TMA = ct.static_eval(SMALL_TMA and not SCALED)
    # Heads beyond the last are zeros; the stores drop them.
    q = ct.load(
        Q, (batch, tile, 0), (1, TILE_H, D), padding_mode=ct.PaddingMode.ZERO, allow_tma=QUERY_TMA
    ).reshape((TILE_H, D))
    qpe = ct.load(
        QPE, (batch, tile, 0), (1, TILE_H, R), padding_mode=ct.PaddingMode.ZERO, allow_tma=QUERY_TMA
    ).reshape((TILE_H, R))
    HEADROOM = ct.static_eval(P_HEADROOM if SCALED or EIGHT_BIT_QUERIES else 0.0)
    factor = scale_log2
    if SCALED:
        q, qpe, inverse = float16_queries(q, qpe)
        # Not 0, which times the score -inf of a hidden key would be NaN.
        factor = ct.maximum(inverse * scale_log2, SMALLEST_FLOAT32)
    elif EIGHT_BIT_QUERIES:
        q, qpe = q.astype(ct.float16), qpe.astype(ct.float16)
    if KEYS_FIRST:
        q = ct.transpose(q)
        qpe = ct.transpose(qpe)
        if SCALED:
            factor = ct.transpose(factor)
    KEY_AXIS = 0 if KEYS_FIRST else 1
    row_max, row_sum, acc = start_softmax(TILE_H, D, KEY_AXIS, TILE_N if LATE_SUM else 1)
    for j in range(tiles[0], tiles[1]):
        # Zeros beyond the last key: as values they are multiplied by 0, and whatever lies there may be NaN.
        kv = load_cache(KV, batch, j, TILE_N, D, latency, WORDS, E5M2)
        kpe = load_cache(KPE, batch, j, TILE_N, R, latency, WORDS, E5M2)
        # Masked in every tile: that is few instructions beside the rest, and a loop of its own for the last
        # tile would start to load only when the one before has ended.
        key = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)
        if KEYS_FIRST:
            s = ct.mma(kv, q, ct.zeros((TILE_N, TILE_H), dtype=ct.float32))
            s = ct.mma(kpe, qpe, s)  # [TILE_N, TILE_H]
            s = hide_keys(s, key[:, None], keys, BOUNDED)
        else:
            s = ct.mma(q, ct.transpose(kv), ct.zeros((TILE_H, TILE_N), dtype=ct.float32))
            s = ct.mma(qpe, ct.transpose(kpe), s)  # [TILE_H, TILE_N]
            s = hide_keys(s, key[None, :], keys, BOUNDED)
        p, row_max, row_sum, acc = add_scores(s, row_max, row_sum, acc, factor, KEY_AXIS, HEADROOM)
        if KEYS_FIRST:
            acc = ct.mma(ct.transpose(kv), p.astype(q.dtype), acc)  # [D, TILE_H]
        else:
            acc = ct.mma(p.astype(q.dtype), kv, acc)  # [TILE_H, D]
    o, lse = finish_softmax(row_max, row_sum, acc, KEY_AXIS)
    o = ct.transpose(o) if KEYS_FIRST else o
    o = o.astype(PARTS.dtype).reshape((1, TILE_H, 1, D))
    ct.store(PARTS, (batch, tile, part, 0), o, allow_tma=SMALL_TMA)
    if SPLIT:
        ct.store(LSE, (batch, tile, part), lse.reshape((1, TILE_H, 1)), allow_tma=SMALL_TMA)


@ct.kernel
def mla_decoding_kernel(
    Q: ct.Array,
    QPE: ct.Array,
    KV: ct.Array,
    KPE: ct.Array,
    PARTS: ct.Array,
    LSE: ct.Array,
    tiles_per_part: int,
    scale_log2: float,
    D: ConstInt,
    R: ConstInt,
    TILE_H: ConstInt,
    TILE_N: ConstInt,
    LATENCY: ConstInt,
    KEYS_FIRST: ConstBool,
    LATE_SUM: ConstBool,
    SMALL_TMA: ConstBool,
    WORDS: ConstBool,
    E5M2: ConstBool,
    SPLIT: ConstBool,
    DEPENDENT: ConstBool,
    HEAD_TILES: ConstInt,
) -> None:
    """Take in one part of the keys for `TILE_H` heads.

    PARTS is `[B, H, splits, D]` and LSE `[B, H, splits]`. Without `SPLIT` there is one part, PARTS is the
    output, and LSE is not written. A latency of 0 leaves it to the compiler. `load_cache` says what `WORDS`
    and `E5M2` are.
    """
    if DEPENDENT:
        # All that the merge may do before it waits is to take its place.
        ct.grid_dependency_control_launch_dependents()
    part, tile, batch = block_of_part(HEAD_TILES)
    keys = KV.shape[1]
    first = part * tiles_per_part
    tiles = (first, min(first + tiles_per_part, ct.cdiv(keys, TILE_N)))
    take_part(
        Q, QPE, KV, KPE, PARTS, LSE, (batch, tile, part), tiles, (0, keys), scale_log2,
        D, R, TILE_H, TILE_N, LATENCY, KEYS_FIRST, LATE_SUM, SMALL_TMA, WORDS, E5M2, SPLIT, False,
    )  # fmt: skip


@ct.kernel
def bounded_mla_decoding_kernel(
    Q: ct.Array,
    QPE: ct.Array,
    KV: ct.Array,
    KPE: ct.Array,
    BOUNDS: ct.Array,
    PARTS: ct.Array,
    LSE: ct.Array,
    splits: int,
    scale_log2: float,
    D: ConstInt,
    R: ConstInt,
    TILE_H: ConstInt,
    TILE_N: ConstInt,
    LATENCY: ConstInt,
    KEYS_FIRST: ConstBool,
    LATE_SUM: ConstBool,
    SMALL_TMA: ConstBool,
    WORDS: ConstBool,
    E5M2: ConstBool,
    SPLIT: ConstBool,
    DEPENDENT: ConstBool,
    HEAD_TILES: ConstInt,
) -> None:
    """Do the same where BOUNDS, `[B, 2]`, says which keys of a sequence are visible: `bounded_part`."""
    if DEPENDENT:
        ct.grid_dependency_control_launch_dependents()
    part, tile, batch = block_of_part(HEAD_TILES)
    tiles, keys = bounded_part(BOUNDS, batch, part, splits, KV.shape[1], TILE_N)
    take_part(
        Q, QPE, KV, KPE, PARTS, LSE, (batch, tile, part), tiles, keys, scale_log2,
        D, R, TILE_H, TILE_N, LATENCY, KEYS_FIRST, LATE_SUM, SMALL_TMA, WORDS, E5M2, SPLIT, True,
    )  # fmt: skip


# -- launcher ---------------------------------------------------------------------------------------


def _has_words(cache: torch.Tensor) -> bool:
    """Return whether an 8-bit cache can be read two elements at a time: rows are not strided, and aligned."""
    return (
        cache.stride(-1) == 1
        and cache.storage_offset() % 2 == 0
        and all(stride % 2 == 0 for stride in cache.stride()[:-1])
    )


@on_its_gpu
def mla_decoding(
    q: torch.Tensor,
    qpe: torch.Tensor,
    kv: torch.Tensor,
    kpe: torch.Tensor,
    *,
    scale: float,
    bounds: torch.Tensor | None = None,
    config: MlaDecodingConfig | None = None,
) -> torch.Tensor:
    """Attend from one query per head to all tokens of a latent cache, or to those within `bounds`.

    Forward only: no gradient flows through it.

    Inputs are finite, and scaled scores at most 2^11 to be as precise as float16, or 2^19 to mean anything:
    `_online_softmax` says why. A row that meets NaN or the score inf becomes NaN.

    Args:
        q: `[B, H, D]`, float16, bfloat16, float8_e4m3fn or float8_e5m2 (8 bits from sm_90 on), any strides:
            the part of the queries without position, absorbed.
        qpe: `[B, H, 64]`, same dtype and device: their rotated part.
        kv: `[B, N, D]`, same device, any strides; the dtype of `q`, or either of 8 bits.
        kpe: `[B, N, 64]`, the dtype of `kv`.
        scale: Factor of the scores, greater than 0. It has no default, because it follows from the head
            dimension before the absorption, which is not seen here: 1 / sqrt(128 + 64) for DeepSeek-V2.
        bounds: `[B, 2]`, int32, contiguous: the first token that a sequence sees, and the one behind the
            last; at least one. They stay on the GPU: a launch in a CUDA graph follows them.
        config: Instead of the one chosen for this GPU, number of heads and dtype of the cache.

    Returns:
        `[B, H, D]`, dtype and device of `q`, but bfloat16 for 8-bit queries; contiguous. Zeros where there
        are no keys.

    Raises:
        TypeError: Not tensors, dtypes that do not go together or that are not supported, a scale that is not
            a number, another kernel's configuration.
        ValueError: Shapes or devices that do not fit together, dimensions that are not supported, a scale
            that is not positive or that float32 does not hold, more batches or heads than one launch takes.
    """
    import torch

    check_tensors("mla_decoding", {"q": q, "qpe": qpe}, dtypes=DTYPES)
    check_tensors("mla_decoding", {"kv": kv, "kpe": kpe}, dtypes=DTYPES)
    check_config("mla_decoding", config, MlaDecodingConfig)
    if kv.element_size() > 1 and kv.dtype != q.dtype:
        raise TypeError(
            f"mla_decoding: kv has dtype {kv.dtype}, but q has {q.dtype}; "
            "convert one (only an 8-bit cache may have another dtype)"
        )
    if kv.device != q.device:
        raise ValueError(f"mla_decoding: kv is on {kv.device}, but q is on {q.device}; move one")
    for name, operand, axes in (
        ("q", q, "batch, heads, latent_dim"),
        ("kv", kv, "batch, length, latent_dim"),
    ):
        if operand.ndim != 3:  # noqa: PLR2004
            raise ValueError(f"mla_decoding: {name} must be [{axes}], got shape {list(operand.shape)}")
    b, h, d = q.shape
    n = kv.shape[1]
    if d not in LATENT_DIMS:
        raise ValueError(
            f"mla_decoding: q is [B, H, D] = {list(q.shape)} with D = {d}; "
            f"supported are {', '.join(map(str, LATENT_DIMS))}: pad q and kv with zeros"
        )
    for name, operand, expected in (
        ("qpe", qpe, (b, h, ROPE_DIM)),
        ("kv", kv, (b, n, d)),
        ("kpe", kpe, (b, n, ROPE_DIM)),
    ):
        if tuple(operand.shape) != expected:
            raise ValueError(
                f"mla_decoding: q is {list(q.shape)} and kv has {n} keys, "
                f"so {name} must be {list(expected)}, but is {list(operand.shape)}"
            )
    check_bounds("mla_decoding", bounds, b, q.device)
    scale_log2 = check_scale("mla_decoding", scale)
    out_dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
    if 0 in (b, h, n):
        return torch.zeros(q.shape, dtype=out_dtype, device=q.device)

    arch = find_arch("mla_decoding", kv, CONFIGS)
    sms = count_sms()
    config = config or choose_config(
        arch,
        heads=h,
        latent_dim=d,
        query_itemsize=q.element_size(),
        cache_itemsize=kv.element_size(),
        keys_per_sm=b * ct.cdiv(h, MIN_HEADS) * n / sms,
    )
    tile_h = min(max(next_power_of_2(h), MIN_HEADS), config.tile_h)
    head_tiles = ct.cdiv(h, tile_h)
    tiles = ct.cdiv(n, config.tile_n)
    part = choose_part(b * head_tiles, tiles, sms, config.occupancy, config.part_cost)
    splits = ct.cdiv(tiles, part)
    grid = make_grid("mla_decoding", splits, head_tiles, b)
    words = config.cache_words and kv.element_size() == 1 and _has_words(kv) and _has_words(kpe)
    o = torch.empty(q.shape, dtype=out_dtype, device=q.device)
    parts = torch.empty((b, h, splits, d), dtype=torch.float32, device=q.device) if splits > 1 else o
    lse = torch.empty((b, h, splits), dtype=torch.float32, device=q.device)
    dependent = splits > 1 and config.dependent_merge
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        with_hints(mla_decoding_kernel if bounds is None else bounded_mla_decoding_kernel, config),
        (
            *(q, qpe, kv.view(torch.int16) if words else kv, kpe.view(torch.int16) if words else kpe),
            *(() if bounds is None else (bounds,)),
            *(parts.view(b, h, splits, d), lse),
            *(
                part if bounds is None else splits,
                scale_log2,
                d,
                ROPE_DIM,
                tile_h,
                config.tile_n,
                config.latency or 0,
            ),
            *(config.keys_first, config.late_sum, config.small_tma, words, kv.dtype == torch.float8_e5m2),
            *(splits > 1, dependent, head_tiles),
        ),
    )
    if splits > 1:
        merge_parts(parts, lse, o, dependent=dependent)
    return o


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    q: torch.Tensor,
    qpe: torch.Tensor,
    kv: torch.Tensor,
    kpe: torch.Tensor,
    *,
    scale: float,
    bounds: torch.Tensor | None = None,
) -> torch.Tensor:
    """Follow the formula in float64, one sequence at a time: `[H, N]` scores."""
    import torch

    if not q.numel():
        return torch.zeros_like(q)  # no sequences cannot be stacked
    outputs = []
    for i in range(q.shape[0]):
        s = (q[i] @ kv[i].T + qpe[i] @ kpe[i].T) * scale
        if bounds is not None:
            s = s.masked_fill(~mask_bounds(bounds[i : i + 1], kv.shape[1]), -math.inf)
        outputs.append(torch.softmax(s, -1) @ kv[i])
    return torch.stack(outputs)


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    b: int,
    h: int,
    n: int,
    d: int,
    dtype: str,
    cache_dtype: str,
    scale: float,
    layout: str = "apart",
    bounds: tuple[tuple[int, int], ...] | None = None,
) -> dict[str, Any]:
    """Make q, qpe, kv and kpe, and `bounds` as they are given.

    `layout` "apart": each its own tensor. "joined": KV and KPE are columns of one cache `[B, N, D + 64]`
    that is longer than N, and likewise Q and QPE: as DeepSeek's own code has them. "transposed": dimensions
    of the cache are strided. "uneven": like "apart", but rows of Q and QPE are as large as 2^20 or as small
    as 2^-20, in turn, and their first quarter is 2^20 times smaller than the rest.

    Raises:
        ValueError: The scale leaves scores of "uneven" queries beyond what `_online_softmax` has a range for.
    """
    if layout == "uneven" and scale > 2.0**-20:
        raise ValueError(f"uneven queries need a scale of at most 2^-20, got {scale}")
    if layout == "joined":
        queries = make_tensor((b, h, d + ROPE_DIM), dtype)
        cached = make_tensor((b, n + 50, d + ROPE_DIM), cache_dtype)[:, :n]
        q, qpe = queries[..., :d], queries[..., d:]
        kv, kpe = cached[..., :d], cached[..., d:]
    else:
        q, qpe = make_tensor((b, h, d), dtype), make_tensor((b, h, ROPE_DIM), dtype)
        if layout == "transposed":
            kv, kpe = (make_tensor((b, width, n), cache_dtype).mT for width in (d, ROPE_DIM))
        else:
            kv, kpe = (make_tensor((b, n, width), cache_dtype) for width in (d, ROPE_DIM))
        if layout == "uneven":
            q[:, ::2] *= 2.0**20
            qpe[:, ::2] *= 2.0**20
            q[:, 1::2] *= 2.0**-20
            qpe[:, 1::2] *= 2.0**-20
            q[..., : d // 4] *= 2.0**-20
    made = {"q": q, "qpe": qpe, "kv": kv, "kpe": kpe, "scale": scale}
    if bounds is not None:
        import torch

        made["bounds"] = torch.tensor(bounds, dtype=torch.int32, device=q.device)
    return made


def work(
    *,
    b: int,
    h: int,
    n: int,
    d: int,
    dtype: str,
    cache_dtype: str,
    scale: float,
    layout: str = "apart",
    bounds: tuple[tuple[int, int], ...] | None = None,
) -> Work:
    """Count a multiply and an add per head, key and dimension: D + 64 for a score, D for the output.

    The cache, Q and QPE are read once, and O, of 16 bits, is written once. Exponentials and the traffic of
    parts are not counted, nor tokens outside of bounds. Products are of the dtype of Q, whatever the cache's.
    """
    del scale, layout
    itemsize, cache_itemsize = (ITEMSIZE[name] for name in (dtype, cache_dtype))
    keys = b * n if bounds is None else sum(end - begin for begin, end in bounds)
    read = (keys * cache_itemsize + b * h * itemsize) * (d + ROPE_DIM)
    return Work(
        flops=2.0 * h * keys * (2 * d + ROPE_DIM),
        bytes=float(read + b * h * d * 2),
        dtype=dtype,
    )


def longest_sum(*, n: int, d: int, **_: object) -> int:
    """Return the longer of two sums: over the dimensions of a score, and over the keys."""
    return max(d + ROPE_DIM, n)


def _case(
    dtype: str,
    b: int,
    h: int,
    n: int,
    d: int,
    *,
    cache_dtype: str | None = None,
    layout: str = "apart",
    scale: float | None = None,
    bounds: tuple[tuple[int, int], ...] | None = None,
    speed: bool = False,
) -> Case:
    cache_dtype = cache_dtype or dtype
    prefix = SHORT[dtype] if cache_dtype == dtype else f"{SHORT[cache_dtype]}-{SHORT[dtype]}"
    params: dict[str, Any] = {"b": b, "h": h, "n": n, "d": d, "dtype": dtype, "cache_dtype": cache_dtype}
    suffix = "" if layout == "apart" else f"-{layout}"
    if bounds is not None:
        params["bounds"] = bounds
        suffix += "-bounded"
    return Case(
        name=f"{prefix}-{b}x{h}x{n}x{d}{suffix}",
        # As TileGym's benchmark has it: what it is makes no difference to the kernel.
        params={**params, "scale": scale or 1.0 / math.sqrt(d + ROPE_DIM), "layout": layout},
        speed=speed,
        min_arch=MIN_ARCH.get(cache_dtype),
    )


# As many keys for each multiprocessor as want other tiles: each has a configuration.
LONG_CACHES = [
    replace(case, named_inputs=())
    for case in (
        _case("bfloat16", 1, 48, 4250, 512),
        _case("float16", 1, 60, 6400, 512),
        _case("float16", 1, 16, 4099, 128),
        _case("bfloat16", 1, 16, 8200, 128),
        _case("float16", 1, 16, 16301, 128),
        _case("bfloat16", 1, 24, 12701, 128),
        _case("bfloat16", 1, 128, 100003, 512),
    )
]

SPEC = KernelSpec(
    name="mla_decoding",
    launch=mla_decoding,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    special_inputs=SPECIAL_WITH_ROPE,
    undefined_inputs=UNDEFINED,
    independent={
        **dict.fromkeys(("q", "qpe", "output"), ("batch", "heads")),
        **dict.fromkeys(("kv", "kpe", "bounds"), ("batch",)),
    },
    cases=[
        # DeepSeek-V3 on one GPU, where the products take as long as the reading, and one of eight GPUs that
        # share its heads, where the reading is all. 302 MB of cache, several times any L2.
        _case("bfloat16", 64, 128, 4096, 512, speed=True),
        _case("float16", 64, 16, 4096, 512, speed=True),
        _case("bfloat16", 64, 16, 8192, 512, cache_dtype="float8_e4m3fn", speed=True),
        # One sequence: TileGym's benchmark. It is all latency.
        _case("float16", 1, 16, 11043, 512, speed=True),
        # Every latent dimension and dtype; lengths to each side of a tile's edge; numbers of heads that fill
        # their tile, that do not, and that need several.
        _case("float16", 1, 16, 128, 512),
        _case("bfloat16", 1, 16, 129, 512),
        _case("bfloat16", 2, 24, 63, 512),
        _case("float16", 1, 128, 65, 512),
        _case("bfloat16", 1, 70, 70, 512),
        _case("float16", 2, 8, 300, 128),
        _case("bfloat16", 1, 16, 191, 128),
        _case("bfloat16", 2, 5, 129, 256),
        _case("float16", 1, 64, 100, 256),
        _case("float16", 1, 16, 100, 512, cache_dtype="float8_e4m3fn"),
        _case("bfloat16", 2, 7, 65, 512, cache_dtype="float8_e5m2"),
        _case("bfloat16", 1, 128, 40, 512, cache_dtype="float8_e4m3fn"),
        _case("float16", 2, 16, 77, 128, cache_dtype="float8_e5m2"),
        *LONG_CACHES,
        # 8-bit queries: few heads and many, both dtypes, also one each, and keys in several parts.
        _case("float8_e4m3fn", 2, 16, 65, 512),
        _case("float8_e5m2", 1, 20, 300, 128),
        _case("float8_e4m3fn", 1, 128, 40, 512),
        _case("float8_e5m2", 1, 7, 129, 256, cache_dtype="float8_e4m3fn"),
        # One key and one head; queries and cache with both kinds of columns side by side.
        _case("float16", 2, 16, 1, 512),
        _case("bfloat16", 1, 1, 150, 128),
        _case("float16", 1, 16, 90, 512, layout="joined"),
        _case("bfloat16", 2, 8, 50, 128, cache_dtype="float8_e4m3fn", layout="joined"),
        # Rows that lie apart.
        laid_out(_case("float16", 2, 12, 70, 128), "padded"),
        # An 8-bit cache that cannot be read as words; queries that float16 does not hold as they are.
        _case("bfloat16", 1, 8, 70, 128, cache_dtype="float8_e4m3fn", layout="transposed"),
        _case("bfloat16", 1, 10, 70, 128, cache_dtype="float8_e5m2", layout="uneven", scale=2.0**-24),
        # Of a cache, tokens that the GPU alone knows: all, one, some that begin and end within a tile, and
        # none in most parts.
        _case("bfloat16", 4, 16, 300, 128, bounds=((0, 300), (0, 1), (70, 211), (299, 300))),
        _case("float16", 2, 16, 130, 512, bounds=((0, 65), (66, 130))),
    ],
)
