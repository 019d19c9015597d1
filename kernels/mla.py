"""Multi-head latent attention, prefill, forward: attention whose scores have a part that all heads share.

    S[i, j] = scale * (sum over d of Q[i, d] * K[j, d] + sum over r of Q_pe[i, r] * K_pe[j, r])
    O[i, d] = sum over j of softmax(S[i, :])[j] * V[j, d]

Q and O are `[B, H, M, 128]`, K and V are `[B, H, N, 128]`; the parts that carry positions are Q_pe
`[B, H, M, 64]` and K_pe `[B, 1, N, 64]`: one head of it for all. These are the dimensions of DeepSeek-V2 and
its successors, whose K and V have been expanded from the latent cache before. All are float16, bfloat16,
float8_e4m3fn or float8_e5m2.

Precision, causal mask, 8-bit floats and the kernel are those of `fmha`, except that Q and K come in two
parts. The two products add to the same accumulator, so nothing is concatenated in memory. All heads read K_pe
from the L2.

Source: DeepSeek-AI, "DeepSeek-V2", 2024 (https://arxiv.org/abs/2405.04434), section 2.1 and appendix C.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels import fmha
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
from kernels._cases import SPECIAL_WITH_ROPE, UNDEFINED, laid_out
from kernels._division import Divisor
from kernels._dtypes import ITEMSIZE, MIN_ARCH, SHORT
from kernels._gemm import for_each_tile
from kernels._launch import (
    check_bool,
    check_config,
    check_tensors,
    find_arch,
    on_its_gpu,
    with_hints,
)
from kernels._online_softmax import check_scale
from kernels.fmha import DTYPES, TWO_BLOCKS, TWO_GROUPS
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]
ConstFloat: TypeAlias = ct.Constant[float]

HEAD_DIM = 128
ROPE_DIM = 64


# -- configuration ----------------------------------------------------------------------------------

# Not measured, all of it. Tiles are those that NVIDIA's TileGym tries for this kernel, as far as they fit:
# with a mask, 48 bytes a thread spill on sm_120 and sm_121, and 8 on sm_86 and sm_89 (tileiras 13.4.92).
_DATA_CENTER = AttentionConfig(tile_m=256, tile_n=128, occupancy=1, latency_k=2, latency_v=4)
_WORKSTATION = AttentionConfig(tile_m=64, tile_n=64, occupancy=1, latency_k=2, latency_v=4)
CONFIGS = {
    # No TMA: small tiles. Two blocks on a multiprocessor spill 270 bytes a thread without a mask.
    "sm_80": AttentionConfig(tile_m=64, tile_n=64, occupancy=1),
    "sm_86": AttentionConfig(tile_m=64, tile_n=64, occupancy=1),
    "sm_89": AttentionConfig(tile_m=64, tile_n=64, occupancy=1),
    # Accumulators live in tensor memory, which leaves room for large tiles.
    "sm_100": _DATA_CENTER,
    "sm_103": _DATA_CENTER,
    "sm_110": _DATA_CENTER,
    "sm_120": _WORKSTATION,
    "sm_121": _WORKSTATION,
}
CONFIGS_8BIT = fmha.CONFIGS_8BIT
"""For numbers of 8 bits; not measured, and nothing spills here, either. Others are those of 16."""
# The figures are us, cold L2, interleaved (H200, 2026-11-21, or what they say). 8 bits without a mask are not
# measured.
MASK_CONFIGS = {
    "sm_90": {
        # fp16-4x16x2048 283.4, the best of 8 (2026-11-23): persistent ones 282.
        (2, False): replace(TWO_GROUPS, overlap=True),
        # Q and K are too long for two blocks to load ahead. bf16-causal-4x16x2048: 168.6 (510 TFLOPS),
        # without the overlap 171.6; timed once only, TWO_BLOCKS are 13 % slower, and 1 or 64 heads together
        # 7 %.
        (2, True): replace(TWO_GROUPS, overlap=True, heads_together=16),
        (1, False): replace(TWO_BLOCKS, transpose_v=True),
        # e4m3-causal-4x16x4096: 446.3 (770 TFLOPS); before, in tiles of 128x128, 457.1.
        (1, True): replace(TWO_BLOCKS, transpose_v=True, heads_together=16),
    },
}
"""By bytes per number, and mask: where both were measured."""
DEFAULT_CONFIG = AttentionConfig(tile_m=64, tile_n=64)
"""For architectures that are not in the tables."""


def choose_config(arch: str, *, causal: bool, itemsize: int = 2) -> AttentionConfig:
    """Return the configuration for numbers of `itemsize` bytes on `arch`."""
    if arch in MASK_CONFIGS:
        return MASK_CONFIGS[arch][itemsize, causal]
    if itemsize == 1 and arch in CONFIGS_8BIT:
        return CONFIGS_8BIT[arch]
    return CONFIGS.get(arch, DEFAULT_CONFIG)


# -- kernel -----------------------------------------------------------------------------------------


@ct.kernel
def mla_kernel(
    Q: ct.Array,
    Q_PE: ct.Array,
    K: ct.Array,
    K_PE: ct.Array,
    V: ct.Array,
    O: ct.Array,  # noqa: E741 - the name of the formula
    scale_log2: float,
    D: ConstInt,
    D_PE: ConstInt,
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
    """Compute `TILE_M` rows of a head of O per block, as `fmha_kernel` does."""
    tiles = ct.cdiv(Q.shape[2], TILE_M)
    any_heads = HEADS * Q.shape[0]

    def compute(block: int) -> None:
        any_head, tile = order_tiles(block, tiles, any_heads, HEADS_TOGETHER, band_size)
        batch, head = any_head // HEADS, any_head % HEADS
        q = ct.load(Q, (batch, head, tile, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO)
        q_pe = ct.load(Q_PE, (batch, head, tile, 0), (1, 1, TILE_M, D_PE), padding_mode=ct.PaddingMode.ZERO)
        o = attend(
            (q.reshape((TILE_M, D)), q_pe.reshape((TILE_M, D_PE))), (K, K_PE), V,
            batch, (head, 0), head, tile * TILE_M, scale_log2,
            TILE_N, D, LATENCY_K, LATENCY_V, CAUSAL, RAGGED, OVERLAP, HEADROOM,
        )  # fmt: skip
        # Drops the rows past M.
        ct.store(O, (batch, head, tile, 0), o.astype(O.dtype).reshape((1, 1, TILE_M, D)))

    for_each_tile(compute, tiles * any_heads, PERSISTENT)


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
def mla(
    q: torch.Tensor,
    q_pe: torch.Tensor,
    k: torch.Tensor,
    k_pe: torch.Tensor,
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
        q: `[B, H, M, 128]`, float16, bfloat16, float8_e4m3fn or float8_e5m2 (8 bits from sm_90 on), any
            strides: `[B, M, H, 192]`, transposed and split into q and q_pe, is as good.
        q_pe: `[B, H, M, 64]`, same dtype and device, as all that follow.
        k: `[B, H, N, 128]`.
        k_pe: `[B, 1, N, 64]`.
        v: `[B, H, N, 128]`. On Hopper 8-bit floats are best `[B, H, 128, N]` transposed.
        causal: Query i sees the keys j <= i, as `is_causal` of PyTorch's attention means it, M != N included.
        scale: Factor of the scores, greater than 0; by default 1 / sqrt(128 + 64).
        out_dtype: Of the result; by default that of q. Of 8-bit inputs float16 and bfloat16 keep more.
        config: Instead of the one chosen for this GPU, dtype and mask.

    Returns:
        `[B, H, M, 128]`, same device, in the layout of q, as PyTorch's attention: contiguous, or
        `[B, M, H, 128]` transposed. Zeros where there are no keys.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, a scale that is not a number, a
            `causal` that is not a bool, another kernel's configuration.
        ValueError: Shapes or devices that do not fit together, a scale that is not positive or that
            float32 does not hold, more heads or queries than one launch takes.
    """
    import torch

    operands = {"q": q, "q_pe": q_pe, "k": k, "k_pe": k_pe, "v": v}
    check_tensors("mla", operands, dtypes=DTYPES)
    check_config("mla", config, AttentionConfig)
    for name in ("q", "k"):
        if operands[name].ndim != 4:  # noqa: PLR2004
            raise ValueError(
                f"mla: {name} must be [batch, heads, length, {HEAD_DIM}], "
                f"got shape {list(operands[name].shape)}"
            )
    b, h, m, d = q.shape
    n = k.shape[2]
    if d != HEAD_DIM:
        raise ValueError(f"mla: q must be [B, H, M, {HEAD_DIM}], but is {list(q.shape)}")
    expected = {
        "q_pe": (b, h, m, ROPE_DIM),
        "k": (b, h, n, HEAD_DIM),
        "k_pe": (b, 1, n, ROPE_DIM),
        "v": (b, h, n, HEAD_DIM),
    }
    for name, shape in expected.items():
        if tuple(operands[name].shape) != shape:
            raise ValueError(
                f"mla: q is [B, H, M, {HEAD_DIM}] = {list(q.shape)} and k has N = {n}, so {name} must be "
                f"{list(shape)}, but is {list(operands[name].shape)}"
            )
    scale_log2 = check_scale("mla", 1.0 / math.sqrt(HEAD_DIM + ROPE_DIM) if scale is None else scale)
    causal = check_bool("mla", "causal", causal)
    out_dtype = choose_attention_dtype("mla", q, out_dtype)
    if 0 in (b, h, m, n):
        return torch.zeros((b, h, m, d), dtype=out_dtype, device=q.device)

    arch = find_arch("mla", q, CONFIGS, MASK_CONFIGS)
    config = config or choose_config(arch, causal=causal, itemsize=q.dtype.itemsize)
    grid = make_grid("mla", b, h, m, config)
    if q.dtype.itemsize == 1 and config.transpose_v:
        v = make_keys_contiguous("mla", v)
    o = make_output(q, out_dtype)
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        with_hints(mla_kernel, config),
        (
            *(q, q_pe, k, k_pe, v, o, scale_log2, HEAD_DIM, ROPE_DIM),
            *constants_of(config, q, n, causal=causal),
        ),
    )
    return o


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    q: torch.Tensor,
    q_pe: torch.Tensor,
    k: torch.Tensor,
    k_pe: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Follow the formula in float64: two sums added are the sum over both parts, one behind the other."""
    import torch

    k_pe = k_pe.expand(-1, k.shape[1], -1, -1)
    return fmha.reference(
        torch.cat((q, q_pe), -1),
        torch.cat((k, k_pe), -1),
        v,
        causal=causal,
        scale=scale,
        out_dtype=out_dtype,
    )


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    b: int,
    h: int,
    m: int,
    n: int,
    dtype: str,
    causal: bool,
    heads_inside: bool = False,
    keys_inside: bool = False,
    out_dtype: str | None = None,
) -> dict[str, Any]:
    """Make the operands.

    With `heads_inside` they are views of what a projection returns: `[B, M, H, 128 + 64]` for q and q_pe,
    `[B, N, H, 128 + 128]` for k and v. With `keys_inside` v is one of `[B, H, 128, N]`.
    """
    import torch

    def make(length: int, d: int) -> torch.Tensor:
        if heads_inside:
            return make_tensor((b, length, h, d), dtype).transpose(1, 2)
        return make_tensor((b, h, length, d), dtype)

    if heads_inside:
        queries, keys_values = make(m, HEAD_DIM + ROPE_DIM), make(n, 2 * HEAD_DIM)
        q, q_pe = queries[..., :HEAD_DIM], queries[..., HEAD_DIM:]
        k, v = keys_values[..., :HEAD_DIM], keys_values[..., HEAD_DIM:]
    else:
        q, q_pe, k, v = make(m, HEAD_DIM), make(m, ROPE_DIM), make(n, HEAD_DIM), make(n, HEAD_DIM)
    if keys_inside:
        v = make_tensor((b, h, HEAD_DIM, n), dtype).transpose(2, 3)
    return {
        "q": q,
        "q_pe": q_pe,
        "k": k,
        "k_pe": make_tensor((b, 1, n, ROPE_DIM), dtype),
        "v": v,
        "causal": causal,
        "out_dtype": None if out_dtype is None else getattr(torch, out_dtype),
    }


def work(
    *,
    b: int,
    h: int,
    m: int,
    n: int,
    dtype: str,
    causal: bool,
    heads_inside: bool = False,
    keys_inside: bool = False,
    out_dtype: str | None = None,
) -> Work:
    """Count a multiply and an add per visible score and dimension: 128 + 64 for the scores, 128 for P @ V.

    The exponentials are not counted, nor is a transposed copy of V. Keys and values that no query sees need
    not be read.
    """
    del heads_inside, keys_inside  # the same work, whatever the layout
    seen = min(m, n) if causal else n
    visible = fmha.count_visible(m, n, causal=causal)
    read = h * m * (HEAD_DIM + ROPE_DIM) + seen * (2 * h * HEAD_DIM + ROPE_DIM)
    return Work(
        flops=2.0 * b * h * visible * (2 * HEAD_DIM + ROPE_DIM),
        bytes=float(b * (ITEMSIZE[dtype] * read + ITEMSIZE[out_dtype or dtype] * h * m * HEAD_DIM)),
        dtype=dtype,
    )


def longest_sum(*, m: int, n: int, causal: bool, **others: Any) -> int:
    """Return the longer of two sums: over the dimensions of a score, and over the keys that a row sees."""
    del others
    return max(HEAD_DIM + ROPE_DIM, min(m, n) if causal else n)


def _case(
    dtype: str,
    b: int,
    h: int,
    m: int,
    *,
    n: int | None = None,
    causal: bool = False,
    speed: bool = False,
    **options: Any,
) -> Case:
    lengths = f"{m}" if n is None else f"{m}_{n}"
    flags = "".join(
        f"-{SHORT[value]}_out" if name == "out_dtype" else f"-{name}" for name, value in options.items()
    )
    return Case(
        name=f"{SHORT[dtype]}{'-causal' * causal}-{b}x{h}x{lengths}{flags}",
        params={"b": b, "h": h, "m": m, "n": n or m, "dtype": dtype, "causal": causal, **options},
        speed=speed,
        min_arch=MIN_ARCH.get(dtype),
    )


SPEC = KernelSpec(
    name="mla",
    launch=mla,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    special_inputs=SPECIAL_WITH_ROPE,
    undefined_inputs=UNDEFINED,
    independent={
        **dict.fromkeys(("q", "q_pe", "k", "v", "output"), ("batch", "heads")),
        "k_pe": ("batch",),
    },
    cases=[
        # The workload that TileGym publishes figures for, but for its shortest, which takes under 40 us.
        _case("bfloat16", 4, 16, 2048, causal=True, speed=True),
        _case("bfloat16", 4, 16, 4096, causal=True, speed=True),
        _case("bfloat16", 4, 16, 8192, causal=True, speed=True),
        _case("float16", 4, 16, 2048, speed=True),
        _case("float8_e4m3fn", 4, 16, 4096, causal=True, speed=True),
        # Every dtype; lengths to each side of a tile's edge; more queries than keys, fewer, and one.
        _case("bfloat16", 1, 2, 130, n=256),
        _case("bfloat16", 2, 2, 77, n=200, causal=True),
        _case("float16", 1, 2, 200, n=77, causal=True),
        _case("float16", 2, 2, 1, n=150),
        _case("float8_e5m2", 1, 2, 128, causal=True),
        # As a model's projections leave them, and values that Hopper's tensor cores take as they are.
        _case("bfloat16", 2, 2, 130, n=140, heads_inside=True),
        _case("float8_e4m3fn", 1, 2, 140, causal=True, heads_inside=True, out_dtype="bfloat16"),
        _case("float8_e4m3fn", 1, 2, 130, keys_inside=True, out_dtype="float16"),
        # Rows that lie apart.
        laid_out(_case("float16", 2, 3, 70, n=95, causal=True), "padded"),
    ],
)
