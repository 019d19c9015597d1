"""Mixture of experts: every token goes through K of E small networks, and their outputs are summed.

    G[t, k, :] = X[t] @ W1[ids[t, k], :I].T                 gate
    U[t, k, :] = X[t] @ W1[ids[t, k], I:].T                 up
    Y[t, k, :] = (silu(G[t, k]) * U[t, k]) @ W2[ids[t, k]].T        silu(g) = g / (1 + exp(-g))
    O[t, :]    = sum over k of weights[t, k] * Y[t, k, :]

X and O are `[T, H]`, W1 `[E, 2 I, H]`, W2 `[E, H, I]`, all in float16 or bfloat16; ids are `[T, K]`, int32 or
int64, and weights `[T, K]`, float32 or the dtype of X (`kernels.moe_routing.route` makes both). Sums are
float32; silu(G) * U and Y are rounded to the dtype of X.

How it works, in five launches. Only the GPU knows which token goes where, so the host waits for none of them:

1. two that sort the token-expert pairs into slots, so that a tile of slots needs one expert (`align`);
2. gate and up: a block gathers its slots' rows of X and multiplies them by the same columns of both halves of
   W1 at once; it has both sums in registers then, and stores silu(G) * U in the order of slots;
3. down: rows are in the order of slots now, so this is a plain product that picks W2 by tile;
4. combine: a block per token finds its K rows of Y and sums them. No atomics, so the result is deterministic.

The grid is as large as the worst case needs; blocks that have no tile end at once. With few tokens, reading
the weights takes the time, and many small loads in flight are fast. With many tokens it is a matrix product,
and large tiles are fast.

Source: Shazeer et al., "Outrageously large neural networks", 2017 (https://arxiv.org/abs/1701.06538); gated
experts: Shazeer, "GLU variants improve transformer", 2020 (https://arxiv.org/abs/2002.05202); sorted, padded
slots: vLLM's fused MoE (https://github.com/vllm-project/vllm). The timed shapes, H 2048, I 1408, E 64, K 6,
are those of DeepSeek-V2-Lite, in DeepSeek-AI's own inference code the model of 16B parameters
(https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/configs/config_16B.json).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._configs import check_fields
from kernels._dtypes import ITEMSIZE, SHORT
from kernels._gemm import GemmConfig, for_each_tile, make_grid, multiply_along_k
from kernels._launch import (
    check_config,
    check_grid,
    check_tensors,
    count_sms,
    find_arch,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import swizzle
from kernels.moe_routing import align
from kernels.swiglu import silu
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from kernels.moe_routing import Alignment

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """How both products are cut into tiles, and the compiler's hints."""

    gate_up: GemmConfig
    """Of the first product; its `tile_n` columns are those of silu(G) * U, so it multiplies twice as many."""
    down: GemmConfig
    """Of the second product; `tile_m` has to be the same."""
    row_columns: int = 1024
    """Columns per block of the launch that combines rows."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("row_columns",))
        if self.gate_up.tile_m != self.down.tile_m:
            raise ValueError(
                f"MoeConfig: gate_up has tile_m {self.gate_up.tile_m} and down {self.down.tile_m}, "
                "but both products take tiles of the same slots; make them equal"
            )


def _both(**options: Any) -> MoeConfig:
    """Return a configuration whose products differ in the width that they multiply alone."""
    tile_n = options.pop("tile_n")
    return MoeConfig(
        gate_up=GemmConfig(tile_n=tile_n // 2, **options), down=GemmConfig(tile_n=tile_n, **options)
    )


# Up to how many rows per expert, on average, and what is best there. While there are few, reading weights is
# what takes the time (a row costs one FLOP per byte of weights, and an H200 does 200 while it reads a byte),
# and a tile of more rows than an expert has is filled up with padding. Only sm_90 is measured.
# Others have what tileiras 13.4.92 compiles without spilling registers; before sm_90, where threads compute
# the address of each row that they gather, that is half the step, and fewer blocks or more warps.
_NO_TMA = (
    (32, _both(tile_m=16, tile_n=64, tile_k=32, occupancy=3)),
    (math.inf, _both(tile_m=64, tile_n=128, tile_k=32, occupancy=1, num_worker_warps=8)),
)
_FEW = _both(tile_m=16, tile_n=64, tile_k=64, occupancy=4)
_TENSOR_MEMORY = ((32, _FEW), (math.inf, _both(tile_m=128, tile_n=256, tile_k=64, occupancy=1)))
_CONSUMER = ((32, _FEW), (math.inf, _both(tile_m=64, tile_n=128, tile_k=64, occupancy=1)))
CONFIGS: dict[str, tuple[tuple[float, MoeConfig], ...]] = {
    "sm_80": _NO_TMA,
    "sm_86": _NO_TMA,
    "sm_89": _NO_TMA,
    # H200, 2026-11-21, driver 580.159.04, cold L2, interleaved; DeepSeek-V2-Lite's shapes. To copy X into the
    # order of slots first, so that TMA takes tiles of it, was never faster than to gather: with 512 tokens
    # 3 % slower, with 2048 no difference that is larger than its error.
    "sm_90": (
        # bf16, 8 tokens 160 us, 3771 GB/s, against 164 us with a block for each tile; 64 tokens 285 us,
        # 3870 GB/s, within 0.3 % of the fastest of 20.
        (16, _both(tile_m=16, tile_n=64, tile_k=128, occupancy=4, blocks_per_sm=4)),
        # 2026-11-22, 256 tokens with 24 rows per expert: bf16 303 us, fp16 305 us, the fastest of 52; with
        # tiles of 16 rows 345 and 328 us, of 64 rows 308 and 312 us.
        (32, _both(tile_m=32, tile_n=128, tile_k=64, occupancy=4)),
        # bf16, 512 tokens 319 us, 3482 GB/s, the fastest of 72; half the step 321 us.
        (64, _both(tile_m=64, tile_n=128, tile_k=128, occupancy=2)),
        # 2026-11-22, bf16, 1024 tokens with 96 rows per expert: 386 us, the fastest of 52; the entry before
        # 413 us, the next 406 us.
        (
            128,
            MoeConfig(
                gate_up=GemmConfig(tile_m=128, tile_n=64, tile_k=64, latency=2, occupancy=2),
                down=GemmConfig(tile_m=128, tile_n=128, tile_k=64, latency=4, occupancy=2),
            ),
        ),
        # fp16, 2048 tokens 580 us, 4096 tokens 966 us, 440 TFLOPS, against 591 and 995 us where the second
        # product has tiles of 128x128. Gathering rows takes registers, and time to issue: one large tile a
        # multiprocessor.
        (
            math.inf,
            MoeConfig(
                gate_up=GemmConfig(tile_m=128, tile_n=128, tile_k=64, occupancy=1, num_worker_warps=8),
                down=GemmConfig(
                    tile_m=128, tile_n=256, tile_k=64, occupancy=1, num_worker_warps=8, blocks_per_sm=1
                ),
            ),
        ),
    ),
    "sm_100": _TENSOR_MEMORY,
    "sm_103": _TENSOR_MEMORY,
    "sm_110": _TENSOR_MEMORY,
    "sm_120": _CONSUMER,
    "sm_121": _CONSUMER,
}
DEFAULT_CONFIG = _both(tile_m=64, tile_n=64, tile_k=32)
"""For architectures that are not in the table."""


def choose_config(arch: str, *, rows_per_expert: float) -> MoeConfig:
    """Return the configuration for that many rows per expert, on average, on `arch`."""
    for up_to, config in CONFIGS.get(arch, ()):
        if rows_per_expert <= up_to:
            return config
    return DEFAULT_CONFIG


# -- kernels ----------------------------------------------------------------------------------------


@ct.kernel
def gate_up_kernel(
    X: ct.Array,
    W1: ct.Array,
    Hidden: ct.Array,
    PairOfSlot: ct.Array,
    ExpertOfTile: ct.Array,
    TileCount: ct.Array,
    TOP_K: ConstInt,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    TILE_K: ConstInt,
    GROUP_M: ConstInt,
    LATENCY: ConstInt,
    STORE_TMA: ConstBool,
    PERSISTENT: ConstBool,
) -> None:
    """Compute `[TILE_M, TILE_N]` of silu(G) * U per block, `[slots, I]`; W1 is `[E, 2, I, H]`."""
    tiles_m = ct.gather(TileCount, 0)
    tiles_n = ct.cdiv(Hidden.shape[1], TILE_N)
    latency = ct.static_eval(LATENCY or None)

    def compute(tile: int) -> None:
        row, col = swizzle(tile, tiles_m, tiles_n, GROUP_M)
        expert = ct.gather(ExpertOfTile, row)
        # Padding names a pair past the last, whose token is past the last, too: zeros are gathered.
        token = ct.load(PairOfSlot, (row,), (TILE_M,), allow_tma=False) // TOP_K

        def load_a(k: int) -> ct.Tile:  # [TILE_M, TILE_K]
            column = k * TILE_K + ct.arange(TILE_K, dtype=ct.int32)
            return ct.gather(X, (token[:, None], column[None, :]), latency=latency)

        def load_b(k: int) -> ct.Tile:  # [TILE_K, 2 * TILE_N], gate's columns before up's
            return ct.load(
                W1, (expert, k, 0, col), (1, TILE_K, 2, TILE_N), order=(0, 3, 1, 2),
                padding_mode=ct.PaddingMode.ZERO, latency=latency,
            ).reshape((TILE_K, 2 * TILE_N))  # fmt: skip

        acc = multiply_along_k(load_a, load_b, ct.cdiv(X.shape[1], TILE_K), TILE_M, 2 * TILE_N)
        gate = ct.extract(acc, (0, 0), (TILE_M, TILE_N))
        up = ct.extract(acc, (0, 1), (TILE_M, TILE_N))
        hidden = silu(gate) * up
        ct.store(Hidden, (row, col), hidden.astype(Hidden.dtype), allow_tma=STORE_TMA)

    tiles = tiles_m * tiles_n
    if ct.bid(0) < tiles:
        for_each_tile(compute, tiles, PERSISTENT)


@ct.kernel
def down_kernel(
    Hidden: ct.Array,
    W2: ct.Array,
    Y: ct.Array,
    ExpertOfTile: ct.Array,
    TileCount: ct.Array,
    TILE_M: ConstInt,
    TILE_N: ConstInt,
    TILE_K: ConstInt,
    GROUP_M: ConstInt,
    LATENCY: ConstInt,
    STORE_TMA: ConstBool,
    PERSISTENT: ConstBool,
) -> None:
    """Compute `[TILE_M, TILE_N]` of Y per block; rows of `Hidden` and Y are slots."""
    tiles_m = ct.gather(TileCount, 0)
    tiles_n = ct.cdiv(Y.shape[1], TILE_N)
    latency = ct.static_eval(LATENCY or None)

    def compute(tile: int) -> None:
        row, col = swizzle(tile, tiles_m, tiles_n, GROUP_M)
        expert = ct.gather(ExpertOfTile, row)

        def load_a(k: int) -> ct.Tile:  # [TILE_M, TILE_K]
            return ct.load(
                Hidden, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency
            )

        def load_b(k: int) -> ct.Tile:  # [TILE_K, TILE_N]
            return ct.load(
                W2, (expert, k, col), (1, TILE_K, TILE_N), order=(0, 2, 1),
                padding_mode=ct.PaddingMode.ZERO, latency=latency,
            ).reshape((TILE_K, TILE_N))  # fmt: skip

        acc = multiply_along_k(load_a, load_b, ct.cdiv(Hidden.shape[1], TILE_K), TILE_M, TILE_N)
        ct.store(Y, (row, col), acc.astype(Y.dtype), allow_tma=STORE_TMA)

    tiles = tiles_m * tiles_n
    if ct.bid(0) < tiles:
        for_each_tile(compute, tiles, PERSISTENT)


@ct.kernel
def combine_kernel(
    Y: ct.Array,
    SlotOfPair: ct.Array,
    Weights: ct.Array,
    O: ct.Array,  # noqa: E741 - the name of the formula
    TOP_K: ConstInt,
    TILE: ConstInt,
) -> None:
    """Sum `TILE` columns of one token's K rows of Y per block."""
    token, col = ct.bid(0), ct.bid(1)
    acc = ct.zeros((1, TILE), dtype=ct.float32)
    # Unrolled, so that all K rows are on their way at once.
    for k in ct.static_iter(range(TOP_K)):
        slot = ct.gather(SlotOfPair, token * TOP_K + k)
        weight = ct.gather(Weights, (token, k)).astype(ct.float32)
        y = ct.load(Y, (slot, col), (1, TILE), padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
        acc += weight * y.astype(ct.float32)
    ct.store(O, (token, col), acc.astype(O.dtype), allow_tma=False)


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
def moe(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    config: MoeConfig | None = None,
) -> torch.Tensor:
    """Send every token through its experts, and sum what they return.

    Forward only: no gradient flows through it.

    Args:
        x: `[T, H]`, float16 or bfloat16, any strides.
        w1: `[E, 2 I, H]`, gate before up; same dtype and device, any strides.
        w2: `[E, H, I]`, likewise.
        topk_weights: `[T, K]`, how much each expert counts; float32 or the dtype of `x`.
        topk_ids: `[T, K]`, int32 or int64, each in `[0, E)`: values are on the GPU, so nobody checks them.
        config: Instead of the one chosen for this GPU and number of rows per expert.

    Returns:
        `[T, H]`, same dtype and device as `x`, contiguous.

    Raises:
        TypeError: Not tensors, dtypes that differ or that are not supported, another kernel's configuration.
        ValueError: Shapes that do not fit together, devices that differ, more tokens than one launch takes,
            or more experts or pairs than `moe_routing.align`, whose message it is.
    """
    import torch

    check_config("moe", config, MoeConfig)
    _check(x, w1, w2, topk_weights, topk_ids)
    tokens, top_k = topk_ids.shape
    experts, hidden_size, inner = w2.shape
    if 0 in (*topk_ids.shape, *w2.shape):
        return torch.zeros((tokens, hidden_size), dtype=x.dtype, device=x.device)

    arch = find_arch("moe", x, CONFIGS)
    config = config or choose_config(arch, rows_per_expert=tokens * top_k / experts)
    grid = check_grid(
        "moe",
        (tokens, ct.cdiv(hidden_size, config.row_columns)),
        ("tokens", "split them"),
        ("groups of columns", "take larger row_columns"),
    )
    aligned = align(topk_ids, experts, config.down.tile_m)
    slots = len(aligned.pair_of_slot)
    hidden = torch.empty((slots, inner), dtype=x.dtype, device=x.device)
    _launch(
        gate_up_kernel,
        config.gate_up,
        (x, w1.view(experts, 2, inner, hidden_size), hidden, aligned.pair_of_slot),
        aligned,
        columns=inner,
        constants=(top_k,),
    )
    y = torch.empty((slots, hidden_size), dtype=x.dtype, device=x.device)
    _launch(down_kernel, config.down, (hidden, w2, y), aligned, columns=hidden_size)
    o = torch.empty((tokens, hidden_size), dtype=x.dtype, device=x.device)
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        combine_kernel,
        (y, aligned.slot_of_pair, topk_weights, o, top_k, config.row_columns),
    )
    return o


def _launch(
    kernel: Any,
    config: GemmConfig,
    arrays: tuple[torch.Tensor, ...],
    aligned: Alignment,
    *,
    columns: int,
    constants: tuple[int, ...] = (),
) -> None:
    """Launch a product of all tiles of slots with `columns` columns."""
    import torch

    # As many as there can be: how many there are, only the GPU knows.
    tiles = len(aligned.expert_of_tile) * ct.cdiv(columns, config.tile_n)
    ct.launch(
        torch.cuda.current_stream(),
        make_grid("moe", tiles, config, sms=count_sms(), counted="tiles of slots", remedy="split the tokens"),
        with_hints(kernel, config),
        (
            *arrays,
            aligned.expert_of_tile,
            aligned.tile_count,
            *constants,
            config.tile_m,
            config.tile_n,
            config.tile_k,
            config.group_m,
            config.latency or 0,
            config.store_tma,
            config.blocks_per_sm is not None,
        ),
    )


def _check(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> None:
    check_tensors("moe", {"x": x, "w1": w1, "w2": w2}, dtypes=("float16", "bfloat16"))
    dtype = str(x.dtype).removeprefix("torch.")
    check_tensors("moe", {"topk_weights": topk_weights}, dtypes=("float32", dtype))
    check_tensors("moe", {"topk_ids": topk_ids}, dtypes=("int32", "int64"))
    for name, tensor in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        if tensor.device != x.device:
            raise ValueError(f"moe: {name} is on {tensor.device}, but x is on {x.device}; move one")
    if x.ndim != 2:  # noqa: PLR2004
        raise ValueError(f"moe: x must be [T, H], got shape {list(x.shape)}")
    tokens, hidden_size = x.shape
    if w1.ndim != 3 or w1.shape[2] != hidden_size or w1.shape[1] % 2:  # noqa: PLR2004
        raise ValueError(
            f"moe: x is {list(x.shape)}, so w1 must be [E, 2 I, {hidden_size}], but is {list(w1.shape)}"
        )
    expected = [w1.shape[0], hidden_size, w1.shape[1] // 2]
    if list(w2.shape) != expected:
        raise ValueError(f"moe: w1 is {list(w1.shape)}, so w2 must be {expected}, but is {list(w2.shape)}")
    if topk_ids.ndim != 2 or topk_ids.shape[0] != tokens:  # noqa: PLR2004
        raise ValueError(
            f"moe: x is {list(x.shape)}, so topk_ids must be [{tokens}, K], but is {list(topk_ids.shape)}"
        )
    if topk_weights.shape != topk_ids.shape:
        raise ValueError(
            f"moe: topk_weights must have the shape of topk_ids, {list(topk_ids.shape)}, "
            f"but is {list(topk_weights.shape)}"
        )


# -- what it is gated with --------------------------------------------------------------------------


def reference(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> torch.Tensor:
    """Loop over experts in float64, as eager PyTorch code does."""
    import torch

    o = torch.zeros_like(x)
    for expert, (w_gate_up, w_down) in enumerate(zip(w1, w2, strict=True)):
        token, choice = torch.where(topk_ids == expert)
        gate, up = (x[token] @ w_gate_up.T).chunk(2, dim=1)
        y = (torch.nn.functional.silu(gate) * up) @ w_down.T
        o.index_add_(0, token, topk_weights[token, choice][:, None] * y)
    return o


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    tokens: int,
    hidden: int,
    inner: int,
    experts: int,
    top_k: int,
    dtype: str,
    skew: float = 0.0,
    index_dtype: str = "int32",
    weights_dtype: str = "float32",
    transposed: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Make X, W1, W2, weights and ids.

    Experts are drawn by random scores plus `skew` times their number: with a large one, all tokens go to the
    last experts. Weights are such that values keep a variance of about 1. With `transposed`, W1 and W2 lie in
    memory with their last two axes swapped.
    """
    import torch

    def weights(rows: int, columns: int) -> torch.Tensor:
        bound = (3 / columns) ** 0.5  # a uniform distribution in it has the variance 1 / columns
        if not transposed:
            return make_tensor((experts, rows, columns), dtype, dist="uniform", low=-bound, high=bound)
        made = make_tensor((experts, columns, rows), dtype, dist="uniform", low=-bound, high=bound)
        return made.transpose(1, 2)

    x = make_tensor((tokens, hidden), dtype)
    w1, w2 = weights(2 * inner, hidden), weights(hidden, inner)
    scores = make_tensor((tokens, experts), "float32", dist="normal")
    scores = scores + skew * torch.arange(experts, device=scores.device)
    best, ids = scores.topk(top_k, dim=1)
    return (
        x,
        w1,
        w2,
        (best - skew * ids).softmax(dim=1).to(getattr(torch, weights_dtype)),  # skewed, all but one were 0
        ids.to(getattr(torch, index_dtype)),
    )


def count_experts(tokens: int, experts: int, top_k: int) -> float:
    """Return how many experts get a token on average, if all choices of `top_k` are equally likely."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def work(
    *,
    tokens: int,
    hidden: int,
    inner: int,
    experts: int,
    top_k: int,
    dtype: str,
    skew: float = 0.0,
    index_dtype: str = "int32",
    weights_dtype: str = "float32",
    **_: object,
) -> Work:
    """Count three products per pair; X, O, weights and ids are moved once, W1 and W2 of experts with tokens.

    Which experts those are is drawn at random: with no `skew`, their average number counts, and with any
    `top_k`, the fewest that there can be.
    """
    used = top_k if skew else count_experts(tokens, experts, top_k)
    pair_bytes = (8 if index_dtype == "int64" else 4) + ITEMSIZE[weights_dtype]
    return Work(
        flops=2.0 * tokens * top_k * 3 * hidden * inner,
        bytes=2.0 * (used * 3 * hidden * inner + 2 * tokens * hidden) + pair_bytes * tokens * top_k,
        dtype=dtype,
    )


def longest_sum(*, hidden: int, inner: int, top_k: int, **_: object) -> int:
    """Return how many products the longer of both products adds up, and the rows that are combined."""
    return max(hidden, inner) + top_k


def precision(*, dtype: str, **_: object) -> dict[str, Any]:
    """Return what the check has to know: Y is rounded before it is summed, and experts come one by one."""
    return {"mid": dtype, "sliced": ("w1", "w2")}


def _case(
    dtype: str,
    tokens: int,
    hidden: int = 2048,
    inner: int = 1408,
    experts: int = 64,
    top_k: int = 6,
    *,
    speed: bool = False,
    seed: int | None = None,
    word: str = "",
    **options: Any,
) -> Case:
    short = SHORT[dtype]
    size = "deepseek_v2_lite" if hidden == 2048 else f"{hidden}x{inner}-{experts}top{top_k}"  # noqa: PLR2004
    return Case(
        name="-".join([short, f"{tokens}x{size}", *([word] if word else [])]),
        params={
            "tokens": tokens,
            "hidden": hidden,
            "inner": inner,
            "experts": experts,
            "top_k": top_k,
            "dtype": dtype,
            **options,
        },
        speed=speed,
        seed=seed,
    )


SPEC = KernelSpec(
    name="moe",
    launch=moe,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    check=precision,
    cases=[
        # From decoding a small batch, which reads half of the experts, to a prefill step that multiplies. How
        # many of few tokens' experts differ depends on the draw: with this seed 37 of 64, on average 35.
        _case("bfloat16", 8, speed=True, seed=4),
        _case("float16", 64, speed=True),
        _case("bfloat16", 512, speed=True),
        _case("bfloat16", 2048, speed=True),
        # One token at one expert of one. No two sizes equal, and none a multiple of a tile.
        _case("float16", 1, 64, 32, 1, 1),
        _case("float16", 13, 75, 41, 5, 3),
        # As many rows per expert as want larger tiles, step by step, and the largest.
        _case("float16", 37, 72, 56, 3, 2),
        _case("bfloat16", 60, 136, 72, 3, 2),
        _case("float16", 200, 64, 48, 2, 1),
        # More pairs than a block of `align` looks at in one step, so that several share those of an expert.
        _case("bfloat16", 700, 16, 16, 3, 2),
        # All tokens at the same experts, so that most have none; more experts than pairs.
        _case("bfloat16", 40, 64, 48, 16, 2, word="skewed", skew=1e3),
        _case("bfloat16", 5, 64, 48, 35, 3),
        # What others pass: long indices, weights in the dtype of X; every token at every expert, and weights
        # stored the other way round.
        _case(
            "bfloat16",
            21,
            64,
            48,
            6,
            2,
            word="int64-bf16_weights",
            index_dtype="int64",
            weights_dtype="bfloat16",
        ),
        _case("float16", 9, 64, 48, 4, 4, word="transposed", transposed=True),
        # Rows that lie apart.
        laid_out(_case("float16", 13, 72, 40, 5, 3), "padded"),
    ],
)
