"""Fused multi-head attention, forward: O = softmax(scale * Q @ K^T) @ V, head by head.

    S[i, j] = scale * sum over d of Q[i, d] * K[j, d]
    P[i, j] = exp(S[i, j] - max(S[i, :])) / sum over l of exp(S[i, l] - max(S[i, :]))
    O[i, d] = sum over j of P[i, j] * V[j, d]

Q and O are `[B, H, M, D]`, K and V are `[B, H_kv, N, D]`, all in float16, bfloat16, float8_e4m3fn or
float8_e5m2; H is a multiple of H_kv, and H / H_kv query heads in a row share one head of K and V
(grouped-query attention). D is 64, 128 or 256; M and N are anything.

Precision: scores, sums and the accumulator are float32. The unnormalised P is rounded to the dtype of V
before the second product, because tensor cores take operands of one size. P is at most 1 in 16 bits, and in 8
bits at most 2^8 (e4m3) or 2^15 (e5m2), so that little of it is flushed to zero. The final division is by the
sum of P before rounding. Scales of 8-bit Q, K and V are applied by the caller: those of Q and K go into
`scale`, and V's multiplies O. O has the dtype of Q unless `out_dtype` is given.

Causal: query i sees the keys j <= i, both counted from the start. This is PyTorch's `is_causal`: with M != N
the mask's diagonal starts at the top left. With M > N the last queries see every key; with M < N no query
sees the keys from M on. (Decoding with a cache of past keys needs a mask aligned to the bottom right: another
kernel.)

How it works: S would be `[M, N]` for each head, so it is never written to memory. A block owns `TILE_M` rows
of one head, keeps them on chip, and loops over K and V, `TILE_N` keys at a time, with the online softmax of
`_online_softmax`. The loop runs from the last visible keys to the first. The tiles that need a mask, on the
diagonal and at the end of the keys, come first; the remaining tiles run in a loop without a mask.

What bounds it: at D = 128 the exponentials of a step take about half as long as its two products, and with 8
bits equally long. So the tensor cores must not wait for the exponentials. Either another warp group or block
multiplies meanwhile, or a warp group starts P @ V of one tile and computes the exponentials of the next tile
while that runs (`overlap`). Blocks of causal attention differ in length, by up to M / TILE_M times: see
`heads_together`.

8-bit floats on Hopper: its tensor cores take 8-bit operands only with the summed axis contiguous, and in P @
V that is the axis of keys. A V that is `[B, H_kv, D, N]` in memory, N in steps of 16, is used as it is. Any
other V is first copied to that layout by a separate kernel, instead of being transposed tile by tile in every
block.

Sources: Dao, "FlashAttention-2", 2023 (https://arxiv.org/abs/2307.08691); Shah et al., "FlashAttention-3",
2024 (https://arxiv.org/abs/2407.08608), for the overlap within a warp group and the headroom of 8-bit floats;
Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018 (https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._attention import (
    AttentionConfig,
    attend,
    choose_attention_dtype,
    constants_of,
    make_grid,
    make_keys_contiguous,
    make_output,
    order_tiles,
)
from kernels._cases import SPECIAL, UNDEFINED, laid_out
from kernels._division import Divisor
from kernels._dtypes import FP8, ITEMSIZE, MIN_ARCH, SHORT
from kernels._gemm import for_each_tile
from kernels._launch import (
    check_bool,
    check_config,
    check_tensors,
    count_sms,
    find_arch,
    on_its_gpu,
    with_hints,
)
from kernels._online_softmax import check_scale
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]
ConstFloat: TypeAlias = ct.Constant[float]

DTYPES = ("float16", "bfloat16", *FP8)
HEAD_DIMS = (64, 128, 256)


# -- configuration ----------------------------------------------------------------------------------


# For heads of 64 and 128 dimensions. Not measured, all of it: sm_103 and sm_121, latencies included, are what
# NVIDIA publishes for this kernel on B300 and DGX Spark (DGX Spark playbooks, cuTile kernels), and the other
# Blackwells follow the nearer of the two.
_DATA_CENTER = AttentionConfig(tile_m=256, tile_n=128, occupancy=1, latency_k=2, latency_v=4)
_WORKSTATION = AttentionConfig(tile_m=64, tile_n=64, occupancy=2, latency_k=2, latency_v=4)
CONFIGS = {
    # No TMA: small tiles, and two blocks to hide each other's latency.
    "sm_80": AttentionConfig(tile_m=64, tile_n=64, occupancy=2),
    "sm_86": AttentionConfig(tile_m=64, tile_n=64, occupancy=2),
    "sm_89": AttentionConfig(tile_m=64, tile_n=64, occupancy=2),
    # Accumulators live in tensor memory, which leaves room for large tiles.
    "sm_100": _DATA_CENTER,
    "sm_103": _DATA_CENTER,
    "sm_110": _DATA_CENTER,
    "sm_120": _WORKSTATION,
    "sm_121": _WORKSTATION,
}
_DATA_CENTER_8BIT = replace(_DATA_CENTER, tile_m=128, num_worker_warps=8)
CONFIGS_8BIT = {
    # Not measured. What is published is for 16 bits: of 8, tiles of 256 queries spill 160 to 1000 bytes a
    # thread, and these nothing, with heads of 64 to 256 dimensions (tileiras 13.4.92). By four warps they
    # spill 64, and 650 with 256 dimensions.
    "sm_100": _DATA_CENTER_8BIT,
    "sm_103": _DATA_CENTER_8BIT,
    "sm_110": _DATA_CENTER_8BIT,
}
"""For numbers of 8 bits; for other architectures those of 16 do."""
WIDE_CONFIGS = {
    # Tiles of Q, K and V and the accumulator are twice as wide: smaller tiles make room for them.
    # What tileiras 13.4.92 fits into registers and tensor memory without spilling. Not measured. Twice as
    # many queries spill 70 to 150 bytes a thread, on sm_103 with tiles of 256x64 6 KiB.
    "sm_80": AttentionConfig(tile_m=32, tile_n=32, occupancy=2),
    "sm_86": AttentionConfig(tile_m=32, tile_n=32, occupancy=2),
    "sm_89": AttentionConfig(tile_m=32, tile_n=32, occupancy=2),
    "sm_100": replace(_DATA_CENTER, tile_m=128),
    "sm_103": replace(_DATA_CENTER, tile_m=128),
    "sm_110": replace(_DATA_CENTER, tile_m=128),
    "sm_120": replace(_WORKSTATION, tile_m=32, tile_n=32, occupancy=1, num_worker_warps=8),
    "sm_121": replace(_WORKSTATION, tile_m=32, tile_n=32, occupancy=1, num_worker_warps=8),
}
"""For heads of 256 dimensions."""
# Two warp groups of 64 rows each: in two blocks, of which one can start or end while the other computes, or
# in one, which loads K and V once for both.
TWO_BLOCKS = AttentionConfig(tile_m=64, tile_n=128, occupancy=2, num_worker_warps=4)
TWO_GROUPS = AttentionConfig(tile_m=128, tile_n=128, occupancy=1, num_worker_warps=8)
# For 4x32xNx128. Speeds are cuDNN's time over ours, interleaved on an H100 (2026-11-26): burst (cold L2, full
# clock) / sustained (launch after launch, at the power limit). No latency was faster by 1 % than those that
# the compiler chooses.
MASK_CONFIGS = {
    "sm_90": {
        # fp16, N = 4096, 8192: 0.98 / 0.98, 0.99 / 0.99; 16384 about the same. TWO_BLOCKS with the overlap
        # and persistent: 0.93 / 0.95, 0.91 / 0.91; these tiles, persistent: 0.96 / 0.96, 0.96 / 0.95.
        (2, False): replace(TWO_GROUPS, overlap=True),
        # fp16, N = 1024 to 8192: 0.95 / 0.96, 1.00 / 0.99, 1.02 / 1.04, 1.01 / 1.02. Before, TWO_BLOCKS with
        # 16 heads together: 0.92 / 0.93, 0.90 / 0.99, 0.89 / 0.94, 0.87 / 0.91. K and V of 32 are more than
        # the L2 holds: 0.97 / 0.96 at 4096.
        # On H200s (2026-11-28) these over those: 0.98 / 1.02, 1.04 / 1.06, 1.06 / 1.07, 1.09 / 1.09.
        (2, True): replace(TWO_GROUPS, overlap=True, heads_together=8),
        # e4m3 with keys_inside, N = 1024 to 16384, over the same without the overlap, persistent up to 4096:
        # 0.99 / 1.00, 1.03 / 1.01, -, 1.03 / 1.01, 1.04 / 1.01. TWO_GROUPS at 4096: 0.88 / 0.96.
        (1, False): replace(TWO_BLOCKS, transpose_v=True, overlap=True),
        # e5m2, N = 1024 to 8192: 86.0, 236.3, 768, 2938 us (400 to 749 TFLOPS; H200, 2026-11-21). With the
        # overlap the same; TWO_GROUPS at 4096 0.93 / 0.94 of its speed.
        (1, True): replace(TWO_BLOCKS, transpose_v=True, heads_together=16),
    },
}
"""For heads of 64 and 128 dimensions, by bytes per number, and mask: where both were measured."""
SHORT_KEYS = 2048
SHORT_MASK_CONFIGS = {
    "sm_90": {
        # fp16, N = 1024, 2048: 0.92 / 0.99, 0.95 / 0.93; TWO_GROUPS with the overlap 0.90 / 0.96,
        # 0.95 / 0.93.
        (2, False): replace(TWO_BLOCKS, overlap=True, persistent=True),
    },
}
"""Instead, for heads of 128 dimensions and at most `SHORT_KEYS` keys: the shorter a tile's walk, the more its
beginning and end matter."""
NARROW_MASK_CONFIGS = {
    "sm_90": {
        # fp16, 4x32xNx64, N = 1024 to 8192: 0.96 / 0.95, 0.99 / 0.95, -, 1.01 / 0.97.
        (2, False): replace(TWO_GROUPS, tile_n=64, occupancy=2),
        # Likewise: 0.93 / 0.95, 1.00 / 1.03, 1.04 / 1.00, 1.04 / 1.00. Before, TWO_BLOCKS: 0.94 / 0.98,
        # 0.97 / 1.01, 0.97 / 1.01, 0.96 / 0.96.
        (2, True): replace(TWO_GROUPS, tile_n=64, occupancy=2, heads_together=16),
    },
}
"""Instead, for heads of 64 dimensions. The others are not measured."""
WIDE_MASK_CONFIGS = {
    "sm_90": {
        # fp16, 4x16xNx256, N = 1024 to 8192: steps of 64 keys 0.93 / 0.92, -, 0.91 / 0.90, 0.91 / 0.93. Over
        # these (2026-11-28): 1.08 / 1.06, 1.08 / 1.07, 1.09 / 1.09, - / 1.09; 1x32x1024 1.07 / 1.06.
        # Persistent: 1.06 / 1.05, 1.06 / 1.06, 1.07 / 1.07, - / 1.07.
        (2, False): TWO_GROUPS,
        # fp16, 4x16x4096x256: 1.02 / 1.02; 16 heads together 0.96 / 0.92, without the overlap 0.96 / 0.97.
        # K and V of 16 such heads are 64 MiB, more than the L2 holds, those of 4 are 16.
        (2, True): replace(TWO_GROUPS, tile_n=64, overlap=True, heads_together=4),
        # Two sums, of the tile and of all, are as many registers as two warp groups have for 64 rows.
        (1, False): replace(TWO_GROUPS, tile_m=64, transpose_v=True),
        (1, True): replace(TWO_GROUPS, tile_m=64, transpose_v=True, heads_together=16),
    },
}
"""For heads of 256 dimensions. Measured only where it says so."""
# Times of the tables above over those below, bursts, fp16, interleaved on H100s (2026-11-27), B x H x N.
AT_ONCE_ROWS = 64
"""Queries of a tile in `AT_ONCE_CONFIGS`."""
_AT_ONCE = replace(TWO_BLOCKS, overlap=True, heads_together=64)
AT_ONCE_CONFIGS = {
    "sm_90": {
        # 1x8x512, 1x8x1024, 1x16x1024, 1x8x2048: 1.30, 1.45, 1.22, 1.30.
        (64, False, 2): _AT_ONCE,
        # The same: 1.30, 1.38, 1.27, 1.34.
        (64, True, 2): _AT_ONCE,
        # 1x8x512, 1x4x1024, 1x8x1024: 1.11, 1.11, 1.12. Two blocks: 1.03, 1.06, 1.03.
        (128, False, 1): replace(TWO_BLOCKS, occupancy=1),
        # 1x16x1024, 1x8x2048: 1.03, 1.02.
        (128, False, 2): replace(TWO_BLOCKS, overlap=True),
        # 1x8x512, 1x8x1024, 1x16x1024, 1x8x2048: 1.24, 1.25, 1.07, 1.08.
        (128, True, 2): _AT_ONCE,
        # 1x8x1024, 1x4x2048: 1.41, 1.49. One tile more than multiprocessors: 0.87.
        (256, False, 1): replace(TWO_BLOCKS, occupancy=1),
        # The same: 1.39, 1.47. With all heads together 1.26 at 1x8x1024.
        (256, True, 1): replace(TWO_BLOCKS, overlap=True, occupancy=1),
        # 1x16x1024, 1x8x2048: 1.21, 1.15; 16 heads together 1.13, 1.16.
        (256, True, 2): replace(TWO_BLOCKS, tile_n=64, overlap=True, heads_together=8),
    },
}
"""By head dimension, mask, and blocks for a multiprocessor, for 16 bits, where so many blocks are all: larger
tiles would leave multiprocessors idle."""
FEW_ROWS = 448
"""Three and a half tiles of 128 queries for a multiprocessor."""
FEW_CONFIGS = {
    "sm_90": {
        # 1x20x1024, 1x32x1024, 1x16x2048, 1x24x2048, 1x12x4096: 1.54, 1.31, 1.23, 1.08, 1.05.
        64: _AT_ONCE,
        # 1x20x1024, 1x32x1024, 1x48x1024, 1x20x2048, 1x12x4096: 1.10, 1.10, 1.02, 1.17, 1.12; 1x16x2048 0.98.
        # Of more rows, 1x16x4096 0.99, 1x32x2048 0.98, 1x64x1024 1.01.
        128: replace(TWO_GROUPS, overlap=True, heads_together=64),
        # 1x24x1024, 1x16x2048, 1x12x2048: 1.18, 1.21, 1.03. Of more rows, 1x16x4096 0.93.
        256: replace(TWO_GROUPS, tile_n=64, overlap=True, heads_together=64),
    },
}
"""By head dimension, for 16 bits and causal attention of at most `FEW_ROWS` for a multiprocessor: the long
tiles of all heads come first, since the last ones to start decide when all are done."""
DEFAULT_CONFIG = AttentionConfig(tile_m=64, tile_n=64)
"""For architectures that are not in the tables."""
WIDE_DEFAULT_CONFIG = replace(DEFAULT_CONFIG, tile_n=32)
"""The same for heads of 256 dimensions."""


def choose_config(
    arch: str,
    *,
    head_dim: int,
    causal: bool,
    itemsize: int,
    keys: int,
    rows_per_sm: float = math.inf,
) -> AttentionConfig:
    """Return the configuration for heads of `head_dim` numbers of `itemsize` bytes.

    Args:
        arch: As in "sm_90".
        head_dim: Dimensions of a head.
        causal: Whether there is a mask.
        itemsize: Bytes of a number.
        keys: Keys of a head.
        rows_per_sm: Queries of all heads, each head's filled up to tiles of `AT_ONCE_ROWS`, for every
            multiprocessor.
    """
    if itemsize == 2:  # noqa: PLR2004
        for blocks in (1, 2):
            at_once = AT_ONCE_CONFIGS.get(arch, {}).get((head_dim, causal, blocks))
            if at_once is not None and rows_per_sm <= AT_ONCE_ROWS * blocks:
                return at_once
        few = FEW_CONFIGS.get(arch, {}).get(head_dim)
        if few is not None and causal and rows_per_sm <= FEW_ROWS:
            return few
    wide = head_dim > 128  # noqa: PLR2004
    tables = [WIDE_MASK_CONFIGS if wide else MASK_CONFIGS]
    if head_dim <= 64:  # noqa: PLR2004
        tables.insert(0, NARROW_MASK_CONFIGS)
    elif not wide and keys <= SHORT_KEYS:
        tables.insert(0, SHORT_MASK_CONFIGS)
    for table in tables:
        if (config := table.get(arch, {}).get((itemsize, causal))) is not None:
            return config
    if itemsize == 1 and arch in CONFIGS_8BIT:
        return CONFIGS_8BIT[arch]
    return WIDE_CONFIGS.get(arch, WIDE_DEFAULT_CONFIG) if wide else CONFIGS.get(arch, DEFAULT_CONFIG)


def config_for(q: torch.Tensor, k: torch.Tensor, *, causal: bool) -> AttentionConfig:
    """Return the configuration for q, `[B, H, M, D]`, and k, `[B, H_kv, N, D]`, on their GPU."""
    b, h, m, d = q.shape
    tiles: int = b * h * ct.cdiv(m, AT_ONCE_ROWS)
    return choose_config(
        find_arch("fmha", q, CONFIGS, MASK_CONFIGS),
        head_dim=d,
        causal=causal,
        itemsize=q.dtype.itemsize,
        keys=k.shape[2],
        rows_per_sm=tiles * AT_ONCE_ROWS / count_sms(),
    )


# -- kernel -----------------------------------------------------------------------------------------


@ct.kernel
def fmha_kernel(
    Q: ct.Array,
    K: ct.Array,
    V: ct.Array,
    O: ct.Array,  # noqa: E741 - the name of the formula
    scale_log2: float,
    D: ConstInt,
    GROUP: ConstInt,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    LATENCY_K: ConstInt,
    LATENCY_V: ConstInt,
    CAUSAL: ConstBool,
    RAGGED: ConstBool,
    OVERLAP: ConstBool,
    HEADS_TOGETHER: ConstInt,
    PERSISTENT: ConstBool,
    HEADROOM: ConstFloat,
    HEADS: ConstInt,
    band_size: Divisor,
) -> None:
    """Compute `TILE_M` rows of one head of O per block, or with `PERSISTENT` of every n-th of n blocks.

    `GROUP` query heads share a head of K and V. The rest is as in `attend` and in the configuration.
    """
    tiles = ct.cdiv(Q.shape[2], TILE_M)
    any_heads = HEADS * Q.shape[0]

    def compute(block: int) -> None:
        any_head, tile = order_tiles(block, tiles, any_heads, HEADS_TOGETHER, band_size)
        batch, head = any_head // HEADS, any_head % HEADS
        kv_head = head // GROUP
        q = ct.load(Q, (batch, head, tile, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO)
        o = attend(
            (q.reshape((TILE_M, D)),), (K,), V, batch, (kv_head,), kv_head, tile * TILE_M, scale_log2,
            TILE_N, D, LATENCY_K, LATENCY_V, CAUSAL, RAGGED, OVERLAP, HEADROOM,
        )  # fmt: skip
        # Drops the rows past M.
        ct.store(O, (batch, head, tile, 0), o.astype(O.dtype).reshape((1, 1, TILE_M, D)))

    for_each_tile(compute, tiles * any_heads, PERSISTENT)


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
def fmha(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    out_dtype: torch.dtype | None = None,
    config: AttentionConfig | None = None,
) -> torch.Tensor:
    """Attend from every query to all keys of its head, or with `causal` to those up to its own position.

    Forward only: no gradient flows through it.

    Inputs are finite, and scaled scores at most 2^11 to be as precise as float16, or 2^19 to mean anything:
    `_online_softmax` says why. A row that meets NaN or the score inf becomes NaN.

    Args:
        q: `[B, H, M, D]`, float16, bfloat16, float8_e4m3fn or float8_e5m2 (8 bits from sm_90 on), any
            strides: `[B, M, H, D]` transposed is as good.
        k: `[B, H_kv, N, D]`, same dtype and device; H is a multiple of H_kv.
        v: `[B, H_kv, N, D]`, likewise. On Hopper 8-bit floats are best `[B, H_kv, D, N]` transposed.
        causal: Query i sees the keys j <= i, as `is_causal` of PyTorch's attention means it, M != N included.
        scale: Factor of the scores, greater than 0; by default 1 / sqrt(D).
        out_dtype: Of the result; by default that of q. Of 8-bit inputs float16 and bfloat16 keep more.
        config: Instead of the one chosen for this GPU, head dimension, dtype, mask and number of keys.

    Returns:
        `[B, H, M, D]`, same device, in the layout of q, as PyTorch's attention: contiguous, or
        `[B, M, H, D]` transposed. Zeros where there are no keys.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, a scale that is not a number, a
            `causal` that is not a bool, another kernel's configuration.
        ValueError: Shapes or devices that do not fit together, a head dimension that is not supported, a
            scale that is not positive or that float32 does not hold, more heads or queries than one launch
            takes.
    """
    import torch

    check_tensors("fmha", {"q": q, "k": k, "v": v}, dtypes=DTYPES)
    check_config("fmha", config, AttentionConfig)
    for name, operand in (("q", q), ("k", k), ("v", v)):
        if operand.ndim != 4:  # noqa: PLR2004
            raise ValueError(
                f"fmha: {name} must be [batch, heads, length, head_dim], got shape {list(operand.shape)}"
            )
    b, h, m, d = q.shape
    h_kv, n = k.shape[1:3]
    if d not in HEAD_DIMS:
        raise ValueError(
            f"fmha: q is [B, H, M, D] = {list(q.shape)} with D = {d}; "
            f"supported are {', '.join(map(str, HEAD_DIMS))}: pad q, k and v with zeros, and give the scale"
        )
    if k.shape[0] != b or k.shape[3] != d:
        raise ValueError(
            f"fmha: q is [B, H, M, D] = {list(q.shape)}, so k must be [{b}, H_kv, N, {d}], "
            f"but is {list(k.shape)}"
        )
    if v.shape != k.shape:
        raise ValueError(f"fmha: v must have k's shape {list(k.shape)}, but is {list(v.shape)}")
    if h and (h_kv == 0 or h % h_kv):
        raise ValueError(f"fmha: q has {h} heads, which is no multiple of the {h_kv} heads of k and v")
    scale_log2 = check_scale("fmha", 1.0 / math.sqrt(d) if scale is None else scale)
    causal = check_bool("fmha", "causal", causal)
    out_dtype = choose_attention_dtype("fmha", q, out_dtype)
    if 0 in (b, h, m, n):
        return torch.zeros((b, h, m, d), dtype=out_dtype, device=q.device)

    config = config or config_for(q, k, causal=causal)
    grid = make_grid("fmha", b, h, m, config)
    if q.dtype.itemsize == 1 and config.transpose_v:
        v = make_keys_contiguous("fmha", v)
    o = make_output(q, out_dtype)
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        with_hints(fmha_kernel, config),
        (q, k, v, o, scale_log2, d, h // h_kv, *constants_of(config, q, n, causal=causal)),
    )
    return o


# -- what it is gated with --------------------------------------------------------------------------

REFERENCE_SCORES = 1 << 22
"""Scores that the reference holds at a time: 32 MiB of float64, of which the check has about ten copies."""


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Follow the formula in float64, some rows of one head of K at a time.

    All scores at once would be 69 GB for 4x32x8192x8192. In pieces the memory is bounded, and what is left is
    time: four times as much for twice the length. That is why no case of the spec has 16384 queries: it would
    take minutes on a GPU with slow memory or little float64.
    """
    import torch

    del out_dtype  # what the result is rounded to is the check's business
    b, h, m, d = q.shape
    h_kv, n = k.shape[1:3]
    if not (q.numel() and k.numel()):
        return q.new_zeros((b, h, m, v.shape[3]))
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    # [B, H_kv, H / H_kv, M, D]: the queries of a group beside each other.
    grouped = q.reshape(b, h_kv, h // h_kv, m, d)
    step = max(1, REFERENCE_SCORES // (n * (h // h_kv)))
    heads = []
    for batch in range(b):
        for kv_head in range(h_kv):
            rows = []
            for first in range(0, m, step):
                last = min(first + step, m)
                # No row up to here sees a later key.
                seen = min(last, n) if causal else n
                s = grouped[batch, kv_head, :, first:last] @ k[batch, kv_head, :seen].T * scale
                if causal:
                    hidden = torch.ones(last - first, seen, dtype=torch.bool, device=q.device).triu(first + 1)
                    s = s.masked_fill(hidden, -math.inf)
                rows.append(torch.softmax(s, -1) @ v[batch, kv_head, :seen])
            heads.append(torch.cat(rows, 1))
    return torch.stack(heads).reshape(b, h, m, v.shape[3])


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    b: int,
    h: int,
    h_kv: int,
    m: int,
    n: int,
    d: int,
    dtype: str,
    causal: bool,
    heads_inside: bool = False,
    keys_inside: bool = False,
    out_dtype: str | None = None,
) -> dict[str, Any]:
    """Make q, k and v.

    With `heads_inside` they are views of `[B, length, heads, D]`, with `keys_inside` v is one of
    `[B, H_kv, D, N]`.
    """
    import torch

    def make(heads: int, length: int) -> torch.Tensor:
        if heads_inside:
            return make_tensor((b, length, heads, d), dtype).transpose(1, 2)
        return make_tensor((b, heads, length, d), dtype)

    return {
        "q": make(h, m),
        "k": make(h_kv, n),
        "v": make_tensor((b, h_kv, d, n), dtype).transpose(2, 3) if keys_inside else make(h_kv, n),
        "causal": causal,
        "out_dtype": None if out_dtype is None else getattr(torch, out_dtype),
    }


def count_visible(m: int, n: int, *, causal: bool) -> int:
    """Return how many pairs of a query and a key are not masked."""
    if not causal:
        return m * n
    rows = min(m, n)  # row i sees i + 1 keys, and rows from N on see all of them
    return rows * (rows + 1) // 2 + (m - rows) * n


def work(
    *,
    b: int,
    h: int,
    h_kv: int,
    m: int,
    n: int,
    d: int,
    dtype: str,
    causal: bool,
    heads_inside: bool = False,
    keys_inside: bool = False,
    out_dtype: str | None = None,
) -> Work:
    """Count a multiply and an add per visible score and dimension, twice: Q @ K^T and P @ V.

    The exponentials are not counted, nor is a transposed copy of V. Keys and values that no query sees need
    not be read.
    """
    del heads_inside, keys_inside  # the same work, whatever the layout
    seen = min(m, n) if causal else n
    itemsize, out_itemsize = ITEMSIZE[dtype], ITEMSIZE[out_dtype or dtype]
    return Work(
        flops=4.0 * b * h * count_visible(m, n, causal=causal) * d,
        bytes=float(b * d * (itemsize * (h * m + 2 * h_kv * seen) + out_itemsize * h * m)),
        dtype=dtype,
    )


def longest_sum(
    *,
    b: int,
    h: int,
    h_kv: int,
    m: int,
    n: int,
    d: int,
    dtype: str,
    causal: bool,
    heads_inside: bool = False,
    keys_inside: bool = False,
    out_dtype: str | None = None,
) -> int:
    """Return the longer of two sums: over a head's dimensions, and over the keys that a row sees."""
    del b, h, h_kv, dtype, heads_inside, keys_inside, out_dtype
    return max(d, min(m, n) if causal else n)


def _case(
    dtype: str,
    b: int,
    h: int,
    m: int,
    d: int,
    *,
    n: int | None = None,
    h_kv: int | None = None,
    causal: bool = False,
    heads_inside: bool = False,
    keys_inside: bool = False,
    out_dtype: str | None = None,
    speed: bool = False,
) -> Case:
    params: dict[str, Any] = {"b": b, "h": h, "h_kv": h_kv or h, "m": m, "n": n or m, "d": d}
    lengths = f"{m}" if n is None else f"{m}_{n}"
    heads = f"{h}" if h_kv is None else f"{h}_{h_kv}"
    options = "-heads_inside" * heads_inside + "-keys_inside" * keys_inside
    if out_dtype is not None:
        options += f"-{SHORT[out_dtype]}_out"
        params["out_dtype"] = out_dtype
    if keys_inside:
        params["keys_inside"] = True
    return Case(
        name=f"{SHORT[dtype]}{'-causal' * causal}-{b}x{heads}x{lengths}x{d}{options}",
        params={**params, "dtype": dtype, "causal": causal, "heads_inside": heads_inside},
        speed=speed,
        min_arch=MIN_ARCH.get(dtype),
    )


# More tiles than an H100 has multiprocessors, or runs at once, or takes for few: each has a configuration.
MANY_TILES = [
    replace(case, named_inputs=())
    for case in (
        _case("float16", 1, 134, 2, 128, n=100, h_kv=2),
        _case("float16", 2, 134, 2, 64, n=100, h_kv=2),
        _case("float16", 2, 134, 2, 128, n=100, h_kv=2),
        _case("float16", 1, 136, 2, 256, n=100, h_kv=2),
        _case("float16", 2, 134, 130, 64, h_kv=1, causal=True),
        _case("float16", 2, 134, 3, 128, n=100, h_kv=2, causal=True),
        _case("float16", 1, 136, 3, 256, n=100, h_kv=2, causal=True),
        _case("float16", 2, 134, 3, 256, n=100, h_kv=2, causal=True),
        _case("float16", 4, 250, 2, 64, n=70, h_kv=2, causal=True),
        _case("float16", 4, 250, 2, 256, n=70, h_kv=2, causal=True),
    )
]

SPEC = KernelSpec(
    name="fmha",
    launch=fmha,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    special_inputs=SPECIAL,
    undefined_inputs=UNDEFINED,
    independent=dict.fromkeys(("q", "k", "v", "output"), ("batch", "heads")),
    cases=[
        # The workload that NVIDIA publishes figures for, so that ours stand beside them.
        _case("float16", 4, 32, 1024, 128, causal=True, speed=True),
        _case("float16", 4, 32, 2048, 128, causal=True, speed=True),
        _case("float16", 4, 32, 4096, 128, causal=True, speed=True),
        _case("float16", 4, 32, 8192, 128, causal=True, speed=True),
        _case("float16", 4, 32, 8192, 128, speed=True),
        _case("float8_e5m2", 4, 32, 4096, 128, causal=True, speed=True),
        _case("float8_e4m3fn", 4, 32, 4096, 128, keys_inside=True, speed=True),
        # One prompt, of an 8B model on one GPU and on four: too few tiles to fill an H100.
        _case("float16", 1, 32, 1024, 128, h_kv=8, causal=True, speed=True),
        _case("float16", 1, 8, 1024, 128, h_kv=2, causal=True, speed=True),
        # Every head dimension, with and without a mask; lengths to each side of a tile's edge; groups of
        # queries, down to one head of K and V for all.
        _case("float16", 2, 4, 130, 128, n=333, h_kv=2),
        _case("float16", 2, 3, 257, 128, h_kv=1, causal=True),
        _case("float16", 1, 2, 65, 256, n=128),
        _case("bfloat16", 1, 2, 150, 128, causal=True),
        _case("float8_e4m3fn", 1, 2, 70, 256, n=130),
        _case("float8_e5m2", 1, 2, 257, 64, causal=True),
        _case("float8_e4m3fn", 1, 2, 130, 128),
        # Equal weights of many keys: the dtype of the probabilities shows.
        replace(
            _case("float8_e4m3fn", 1, 4, 130, 64, h_kv=2, causal=True), named_inputs=("zero_queries", "small")
        ),
        _case("float8_e5m2", 1, 4, 70, 128, n=130, h_kv=2),
        # Fewer queries than keys, more, one query, one key. The last two are compiled as the first case is.
        _case("bfloat16", 2, 3, 77, 64, n=300, causal=True),
        _case("bfloat16", 1, 2, 150, 256, n=77, causal=True),
        _case("float16", 2, 4, 1, 128, n=300, h_kv=2),
        _case("float16", 2, 4, 70, 128, n=1, h_kv=2),
        # Heads, or a head's values, beside each other in memory.
        _case("bfloat16", 2, 4, 70, 64, n=140, h_kv=2, heads_inside=True),
        # Less rounded at the end, so that more is seen of what is lost before.
        _case("float8_e4m3fn", 1, 2, 70, 128, n=135, keys_inside=True, out_dtype="float16"),
        _case("float8_e5m2", 1, 2, 130, 256, n=70, causal=True, heads_inside=True, out_dtype="bfloat16"),
        *MANY_TILES,
        # Rows that lie apart.
        laid_out(_case("float16", 2, 4, 70, 64, n=140, h_kv=2, causal=True), "padded"),
    ],
)
