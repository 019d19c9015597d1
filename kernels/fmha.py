"""Fused multi-head attention, forward: O = softmax(scale * Q @ K^T) @ V, head by head.

    S[i, j] = scale * sum over d of Q[i, d] * K[j, d]
    P[i, j] = exp(S[i, j] - max(S[i, :])) / sum over l of exp(S[i, l] - max(S[i, :]))
    O[i, d] = sum over j of P[i, j] * V[j, d]

Q and O are `[B, H, M, D]`, K and V are `[B, H_kv, N, D]`, all in float16 or bfloat16; H is a multiple of
H_kv, and H / H_kv query heads in a row share one head of K and V (grouped-query attention). D is 64, 128 or
256; M and N are anything. Scores, sums and the accumulator are float32; the unnormalised P is rounded to the
dtype of V before the second product, because that is what tensor cores take.

Causal: query i sees the keys j <= i, both counted from the start. That is PyTorch's `is_causal`: with M != N
the mask's diagonal starts at the top left. With M > N the last queries see every key; with M < N nobody sees
the keys from M on. (A cache of past keys wants it aligned to the bottom right; that is another kernel.)

How it works: S would be `[M, N]` for each head, so it is never written to memory. A block owns `TILE_M` rows
of one head, keeps them on chip, and walks along K and V, `TILE_N` keys at a time. A running maximum and a sum
that is rescaled whenever the maximum grows make the softmax work in one pass; the accumulator is rescaled
likewise. Most tiles are all visible and need no mask: they have a loop of their own, and only the
tiles on the diagonal and at the end of the keys go through a second one that masks.

Sources: Dao, "FlashAttention-2", 2023 (https://arxiv.org/abs/2307.08691); Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018 (https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._launch import check_tensors, device_arch
from kernels._online_softmax import LOG2_E, add_scores, finish_softmax, start_softmax
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

HEAD_DIMS = (64, 128, 256)
# Blocks along the second and the third axis of a grid: CUDA C++ Programming Guide, technical specifications.
MAX_GRID = 65535


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FmhaConfig:
    """How a head is cut into tiles, and what the compiler is told."""

    tile_m: int
    """Queries per block."""
    tile_n: int
    """Keys per step."""
    occupancy: int | None = None
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    num_worker_warps: int | None = None
    """Warps that hold scores and accumulator; None lets the compiler choose."""
    latency_k: int | None = 2
    """How far ahead tiles of K are loaded, 1 to 10; None lets the compiler choose."""
    latency_v: int | None = 4
    """The same for V, which is needed later in a step."""


# For heads of 64 and 128 dimensions. Not measured, all of it: sm_103 and sm_121, latencies included, are what
# NVIDIA publishes for this kernel on B300 and DGX Spark (DGX Spark playbooks, cuTile kernels), and the other
# Blackwells follow the nearer of the two.
CONFIGS = {
    # No TMA: small tiles, and two blocks to hide each other's latency.
    "sm_80": FmhaConfig(tile_m=64, tile_n=64, occupancy=2),
    "sm_86": FmhaConfig(tile_m=64, tile_n=64, occupancy=2),
    "sm_89": FmhaConfig(tile_m=64, tile_n=64, occupancy=2),
    # Two blocks, of which one multiplies while the other takes exponentials.
    "sm_90": FmhaConfig(tile_m=64, tile_n=128, occupancy=2, num_worker_warps=4),
    # Accumulators live in tensor memory, which leaves room for large tiles.
    "sm_100": FmhaConfig(tile_m=256, tile_n=128, occupancy=1),
    "sm_103": FmhaConfig(tile_m=256, tile_n=128, occupancy=1),
    "sm_110": FmhaConfig(tile_m=256, tile_n=128, occupancy=1),
    "sm_120": FmhaConfig(tile_m=64, tile_n=64, occupancy=2),
    "sm_121": FmhaConfig(tile_m=64, tile_n=64, occupancy=2),
}
CAUSAL_CONFIGS = {
    "sm_90": FmhaConfig(tile_m=128, tile_n=128, occupancy=1, num_worker_warps=8),
}
"""For causal attention, where it wants other tiles. Not measured."""
WIDE_CONFIGS = {
    # What the compiler fits into registers and tensor memory (256x64 spills 6 KiB on sm_103). Not measured.
    "sm_90": FmhaConfig(tile_m=128, tile_n=64, occupancy=1, num_worker_warps=8),
    "sm_100": FmhaConfig(tile_m=128, tile_n=128, occupancy=1),
    "sm_103": FmhaConfig(tile_m=128, tile_n=128, occupancy=1),
    "sm_110": FmhaConfig(tile_m=128, tile_n=128, occupancy=1),
    "sm_120": FmhaConfig(tile_m=64, tile_n=32, occupancy=1, num_worker_warps=8),
    "sm_121": FmhaConfig(tile_m=64, tile_n=32, occupancy=1, num_worker_warps=8),
}
"""For heads of 256 dimensions."""
DEFAULT_CONFIG = FmhaConfig(tile_m=64, tile_n=64)
"""For architectures that are not in the tables."""


def choose_config(arch: str, *, head_dim: int, causal: bool) -> FmhaConfig:
    """Return the configuration for heads of `head_dim` on `arch`."""
    config = CONFIGS.get(arch, DEFAULT_CONFIG)
    if causal:
        config = CAUSAL_CONFIGS.get(arch, config)
    if head_dim <= 128:  # noqa: PLR2004
        return config
    # Tiles of Q, K and V and the accumulator are twice as wide: half as many keys a step make room for them.
    return WIDE_CONFIGS.get(arch) or replace(config, tile_n=config.tile_n // 2)


# -- kernel -----------------------------------------------------------------------------------------


def add_keys(
    q: ct.Tile,
    K: ct.Array,
    V: ct.Array,
    batch: int,
    kv_head: int,
    j: int,
    first_row: int,
    row_max: ct.Tile,
    row_sum: ct.Tile,
    acc: ct.Tile,
    scale_log2: float,
    TILE_N: int,
    LATENCY_K: int,
    LATENCY_V: int,
    MASK_CAUSAL: bool,
    MASK_END: bool,
) -> tuple[ct.Tile, ct.Tile, ct.Tile]:
    """Take in the `j`-th tile of keys and values.

    `row_max` and `row_sum` are `[TILE_M, 1]`, `acc` is `[TILE_M, D]`; the maximum is that of the scores in
    powers of two. What is masked: with `MASK_CAUSAL` the keys after each query, with `MASK_END` those after
    the last. Returns the new `row_max`, `row_sum` and `acc`.
    """
    TILE_M, D = q.shape
    # Transposed on the way in: no tile has to be permuted on the chip.
    k = ct.load(
        K,
        (batch, kv_head, 0, j),
        (1, 1, D, TILE_N),
        order=(0, 1, 3, 2),
        padding_mode=ct.PaddingMode.ZERO,
        latency=ct.static_eval(LATENCY_K or None),
    ).reshape((D, TILE_N))
    s = ct.mma(q, k, ct.zeros((TILE_M, TILE_N), dtype=ct.float32))  # [TILE_M, TILE_N]

    if MASK_CAUSAL or MASK_END:
        column = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]  # [1, TILE_N]
        if MASK_CAUSAL:
            # Both counted from the block's first row, which costs fewer registers than from row 0.
            row = ct.arange(TILE_M, dtype=ct.int32)[:, None]  # [TILE_M, 1]
            s = ct.where(column - first_row <= row, s, -math.inf)
        if MASK_END:
            s = ct.where(column < K.shape[2], s, -math.inf)

    p, row_max, row_sum, acc = add_scores(s, row_max, row_sum, acc, scale_log2)
    v = ct.load(
        V,
        (batch, kv_head, j, 0),
        (1, 1, TILE_N, D),
        # Zeros, because 0 * P is 0, and whatever lies there may be NaN.
        padding_mode=ct.PaddingMode.ZERO,
        latency=ct.static_eval(LATENCY_V or None),
    ).reshape((TILE_N, D))
    return row_max, row_sum, ct.mma(p.astype(V.dtype), v, acc)


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
) -> None:
    """Compute `TILE_M` rows of one head of O per block.

    `GROUP` query heads share a head of K and V. A latency of 0 leaves it to the compiler. `RAGGED` says that
    the last tile of keys sticks out past their end.
    """
    # Blocks run roughly in order: all of a head, then the next of its group. They share K and V in the L2.
    # Later rows see more keys: longest first, so that the short ones fill the gaps at the end.
    tile = ct.num_blocks(0) - 1 - ct.bid(0)
    head, batch = ct.bid(1), ct.bid(2)
    kv_head = head // GROUP
    first_row = tile * TILE_M

    keys = K.shape[2]
    whole = keys // TILE_N
    if CAUSAL:
        # Tiles whose last key the first row sees, and tiles of which the last row sees any.
        whole = min(whole, (first_row + 1) // TILE_N)

    q = ct.load(Q, (batch, head, tile, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO).reshape(
        (TILE_M, D)
    )
    row_max, row_sum, acc = start_softmax(TILE_M, D)
    for j in range(whole):
        row_max, row_sum, acc = add_keys(
            q, K, V, batch, kv_head, j, first_row, row_max, row_sum, acc, scale_log2,
            TILE_N, LATENCY_K, LATENCY_V, False, False,
        )  # fmt: skip
    if CAUSAL or RAGGED:
        end = min(keys, first_row + TILE_M) if CAUSAL else keys
        for j in range(whole, ct.cdiv(end, TILE_N)):
            row_max, row_sum, acc = add_keys(
                q, K, V, batch, kv_head, j, first_row, row_max, row_sum, acc, scale_log2,
                TILE_N, LATENCY_K, LATENCY_V, CAUSAL, RAGGED,
            )  # fmt: skip
    o, _ = finish_softmax(row_max, row_sum, acc)
    # The store drops the rows past M.
    ct.store(O, (batch, head, tile, 0), o.astype(O.dtype).reshape((1, 1, TILE_M, D)))


# -- launcher ---------------------------------------------------------------------------------------


@cache
def _kernel_for(config: FmhaConfig) -> Any:
    """Return the kernel with `config`'s compiler hints; cached, because each object has its own JIT cache."""
    return fmha_kernel.replace_hints(
        occupancy=config.occupancy,
        num_worker_warps=config.num_worker_warps,
    )


def fmha(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    config: FmhaConfig | None = None,
) -> torch.Tensor:
    """Attend from every query to all keys of its head, or with `causal` to those up to its own position.

    Inputs are finite: a row that meets NaN or an infinite score becomes NaN.

    Args:
        q: `[B, H, M, D]`, float16 or bfloat16, any strides: `[B, M, H, D]` transposed is as good.
        k: `[B, H_kv, N, D]`, same dtype and device; H is a multiple of H_kv.
        v: `[B, H_kv, N, D]`, likewise.
        causal: Query i sees the keys j <= i, as `is_causal` of PyTorch's attention means it, M != N included.
        scale: Factor of the scores, greater than 0; by default 1 / sqrt(D).
        config: Instead of the one chosen for this GPU, head dimension and mask.

    Returns:
        `[B, H, M, D]`, same dtype and device, contiguous. Zeros where there are no keys.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported.
        ValueError: Shapes or devices that do not fit together, a head dimension that is not supported, a
            scale that is not a positive number.
    """
    import torch

    check_tensors("fmha", {"q": q, "k": k, "v": v}, dtypes=("float16", "bfloat16"))
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
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    if not 0 < scale < math.inf:
        raise ValueError(f"fmha: scale must be a positive number, got {scale}")
    if max(b, h) > MAX_GRID:
        raise ValueError(f"fmha: at most {MAX_GRID} batches and heads, got {b} and {h}; split the batch")
    if 0 in (b, h, m, n):
        return torch.zeros((b, h, m, d), dtype=q.dtype, device=q.device)

    config = config or choose_config(device_arch(), head_dim=d, causal=causal)
    o = torch.empty((b, h, m, d), dtype=q.dtype, device=q.device)
    ct.launch(
        torch.cuda.current_stream(),
        (ct.cdiv(m, config.tile_m), h, b),
        _kernel_for(config),
        (
            *(q, k, v, o, scale * LOG2_E, d, h // h_kv, config.tile_m, config.tile_n),
            *(config.latency_k or 0, config.latency_v or 0, causal, n % config.tile_n != 0),
        ),
    )
    return o


# -- what it is gated with --------------------------------------------------------------------------

REFERENCE_SCORES = 1 << 24
"""Scores that the reference holds at a time: 128 MiB of float64, of which the check has about ten copies."""


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Follow the formula in float64, some rows of one head of K at a time.

    All scores at once would be 69 GB for 4x32x8192x8192. In pieces the memory is bounded, and what is left is
    time: to check all 24 cases takes 48 s on an H200 (2026-11-21), most of it in the two largest. That is why
    none has 16384 queries: it would take minutes on a GPU with slow memory or little float64.
    """
    import torch

    b, h, m, d = q.shape
    h_kv, n = k.shape[1:3]
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
    return torch.stack(heads).reshape(b, h, m, d)


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
) -> dict[str, Any]:
    """Make q, k and v; with `heads_inside` as views of `[B, length, heads, D]`."""

    def make(heads: int, length: int) -> torch.Tensor:
        if heads_inside:
            return make_tensor((b, length, heads, d), dtype).transpose(1, 2)
        return make_tensor((b, heads, length, d), dtype)

    return {"q": make(h, m), "k": make(h_kv, n), "v": make(h_kv, n), "causal": causal}


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
) -> Work:
    """Count a multiply and an add per visible score and dimension, twice: Q @ K^T and P @ V.

    The exponentials are not counted. Keys and values that no query sees need not be read.
    """
    del heads_inside  # the same work, whatever the layout
    seen = min(m, n) if causal else n
    return Work(
        flops=4.0 * b * h * count_visible(m, n, causal=causal) * d,
        bytes=2.0 * b * d * (2 * h * m + 2 * h_kv * seen),
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
) -> int:
    """Return the longer of two sums: over a head's dimensions, and over the keys that a row sees."""
    del b, h, h_kv, dtype, heads_inside
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
    speed: bool = False,
) -> Case:
    short = {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    params = {"b": b, "h": h, "h_kv": h_kv or h, "m": m, "n": n or m, "d": d}
    lengths = f"{m}" if n is None else f"{m}_{n}"
    heads = f"{h}" if h_kv is None else f"{h}_{h_kv}"
    return Case(
        name=f"{short}{'-causal' * causal}-{b}x{heads}x{lengths}x{d}{'-heads_inside' * heads_inside}",
        params={**params, "dtype": dtype, "causal": causal, "heads_inside": heads_inside},
        speed=speed,
    )


SPEC = KernelSpec(
    name="fmha",
    launch=fmha,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    cases=[
        # The workload that NVIDIA publishes figures for, so that ours stand beside them.
        _case("float16", 4, 32, 1024, 128, causal=True, speed=True),
        _case("float16", 4, 32, 2048, 128, causal=True, speed=True),
        _case("float16", 4, 32, 4096, 128, causal=True, speed=True),
        _case("float16", 4, 32, 8192, 128, causal=True, speed=True),
        _case("float16", 4, 32, 8192, 128, speed=True),
        # Every head dimension with and without a mask; lengths to each side of a tile's edge.
        _case("float16", 2, 3, 256, 64),
        _case("bfloat16", 2, 3, 257, 64, causal=True),
        _case("bfloat16", 3, 2, 300, 128),
        _case("float16", 3, 2, 383, 128, causal=True),
        _case("float16", 1, 3, 129, 256),
        _case("bfloat16", 1, 2, 300, 256, causal=True),
        # More queries than keys, and fewer.
        _case("float16", 2, 3, 300, 64, n=77),
        _case("bfloat16", 2, 3, 77, 128, n=300),
        _case("float16", 2, 3, 300, 128, n=77, causal=True),
        _case("float16", 2, 3, 300, 64, n=128, causal=True),
        _case("bfloat16", 2, 3, 77, 64, n=300, causal=True),
        # Grouped queries, down to one head of K and V for all.
        _case("float16", 2, 6, 200, 128, n=333, h_kv=2),
        _case("bfloat16", 2, 8, 333, 64, h_kv=4, causal=True),
        _case("float16", 3, 5, 130, 128, h_kv=1, causal=True),
        # One query, one key, both; heads beside each other in memory.
        _case("bfloat16", 2, 4, 1, 128, n=300, h_kv=2),
        _case("float16", 2, 3, 300, 128, n=1),
        _case("float16", 1, 2, 1, 64, causal=True),
        _case("float16", 2, 4, 190, 64, n=260, h_kv=2, heads_inside=True),
        _case("bfloat16", 2, 4, 190, 128, h_kv=2, causal=True, heads_inside=True),
    ],
)
