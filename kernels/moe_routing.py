"""Routing of a mixture of experts: which experts a token goes to, and the order in which experts take them.

`route` picks the experts, from the logits of E experts:

    P[t, :]       = softmax(L[t, :])
    ids[t, k]     = index of the k-th largest of L[t, :], the first of equal ones
    weights[t, k] = P[t, ids[t, k]], divided by the sum over k if renormalized

L is `[T, E]` in float16, bfloat16 or float32; weights are float32 and ids int32, both `[T, K]`.
DeepSeek-V2-Lite does not renormalize (the softmax case of `Gate` in DeepSeek-AI's own inference code,
https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/model.py), Mixtral does.

`align` makes a table for expert products from the ids. A pair is one token at one expert, number t * K + k.
Every expert's pairs get slots in a row, in the order of their numbers, and the slots of an expert are padded
to a multiple of `tile_m`: then each tile of `tile_m` slots needs the weights of one expert only.

    ids = [[1, 2], [1, 0]], E = 3, tile_m = 2        slots     3 .   0 2   1 .       (. is padding)
                                                     expert    0     1     2         of tile 0, 1, 2

How it works: `route` keeps a few tokens' logits in registers and takes their maximum K times. `align` is a
counting sort in two launches, without the host in between. In the first, one or more blocks per expert count
the expert's pairs, each block in its part of all pairs. In the second, the same blocks, which now know where
their slots begin, read the ids again and hand out slots by a running sum. Both are deterministic.

Sources: Shazeer et al., "Outrageously large neural networks", 2017 (https://arxiv.org/abs/1701.06538), for
the top-k softmax; the table is what vLLM calls `moe_align_block_size` (https://github.com/vllm-project/vllm).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._configs import check_fields
from kernels._dtypes import ITEMSIZE, SHORT
from kernels._gemm import TMA_ALIGNMENT
from kernels._launch import (
    ARCHITECTURES,
    check_bool,
    check_config,
    check_grid,
    check_integer,
    check_power_of_2,
    check_tensors,
    choose_by_width,
    find_arch,
    next_power_of_2,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import reciprocal
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

MAX_EXPERTS = 4096
"""Logits of a token, or counts of all experts, that are kept in registers."""
MAX_SLOTS = 2**31 - 1
"""Slots and pairs are numbered with 32 bits."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """How tokens are shared out among blocks."""

    route_elements: int = 1024
    """Logits per block: as many tokens as that makes, at least one."""
    align_pairs: int = 1024
    """Pairs that a block looks at in one step while it counts and places them."""
    align_blocks: int = 1024
    """Blocks that may share this work, 4096 at most; one per expert if there are more experts or one step."""
    num_worker_warps: int | None = 4
    """Warps per block; None lets the compiler choose."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("route_elements", "align_pairs"))


# By experts, and then by logits of all tokens: (most, configuration). H200, 2026-11-23, cold L2, interleaved,
# the best of 15; in parentheses 1024 logits a block and 4 warps:
#
#     65536x64   44.3 us (46.4)      64x64  6.5 us (7.5)      65536x128  119.9 us (169.7)
#      4096x64    9.0 us (9.1)        1x64  6.0 us (7.1)       4096x128   12.2 us (15.7)
#
# Of 64x128 1024 logits are the best, 7.2 us: 256 take 8.1 us, 2048 8.2 us.
#
# `align` of 6 of 64 experts with up to 1024 blocks, in parentheses with 64, one per expert: 64 tokens 7.1 us
# (7.2), 2048 11.6 us (19.7), 65536 112 us (412); 2 of 8 experts, 65536 tokens, 17.4 us (152). Steps of 2048
# pairs are faster there (93 us) and slower below: 256 tokens 19 us (8.6).
_MEASURED = (
    (
        64,
        (
            (2**14 - 1, RoutingConfig(route_elements=256)),
            (math.inf, RoutingConfig(route_elements=2048)),
        ),
    ),
    (
        math.inf,
        (
            (2**18 - 1, RoutingConfig()),
            (math.inf, RoutingConfig(route_elements=2048, num_worker_warps=8)),
        ),
    ),
)
# Not measured, except on sm_90.
CONFIGS = dict.fromkeys(ARCHITECTURES, _MEASURED)
DEFAULT_CONFIGS = _MEASURED
"""For architectures that are not in the table."""


def choose_config(arch: str, *, tokens: int = 1, experts: int = 1) -> RoutingConfig:
    """Return the configuration for `arch`, and for `tokens` that `route` sends to some of `experts`."""
    by_logits = choose_by_width(CONFIGS.get(arch, DEFAULT_CONFIGS), experts)
    return choose_by_width(by_logits, tokens * experts)


# -- kernels ----------------------------------------------------------------------------------------


@ct.kernel
def route_kernel(
    L: ct.Array,
    Weights: ct.Array,
    Ids: ct.Array,
    TILE_T: ConstInt,
    TILE_E: ConstInt,
    TOP_K: ConstInt,
    TILE_K: ConstInt,
    RENORMALIZE: ConstBool,
) -> None:
    """Choose the experts of `TILE_T` tokens per block; `TILE_E` and `TILE_K` hold all experts and choices."""
    expert = ct.arange(TILE_E, dtype=ct.int32)[None, :]  # [1, TILE_E]
    choice = ct.arange(TILE_K, dtype=ct.int32)[None, :]  # [1, TILE_K]
    left = ct.load(L, (ct.bid(0), 0), (TILE_T, TILE_E), padding_mode=ct.PaddingMode.NEG_INF).astype(
        ct.float32
    )  # [TILE_T, TILE_E]
    largest = ct.max(left, 1, keepdims=True)  # [TILE_T, 1]
    total = ct.sum(ct.exp(left - largest), 1, keepdims=True)

    weights = ct.zeros((TILE_T, TILE_K), dtype=ct.float32)
    ids = ct.zeros((TILE_T, TILE_K), dtype=ct.int32)
    for k in range(TOP_K):
        best = ct.max(left, 1, keepdims=True)
        index = ct.argmax(left, 1, keepdims=True)  # the first of equal ones
        weights = ct.where(choice == k, ct.exp(best - largest), weights)
        ids = ct.where(choice == k, index, ids)
        left = ct.where(expert == index, -math.inf, left)
    weights *= reciprocal(ct.sum(weights, 1, keepdims=True) if RENORMALIZE else total)
    # The stores drop the columns from K on, and the rows past T. Of a single row or column TMA would drop
    # only whole pieces of 16 bytes (`_gemm.may_store_tma`): of six experts of one token it wrote two more
    # (H200, 2026-11-23).
    ROWS_OF_16_BYTES = ct.static_eval(TOP_K * 4 % TMA_ALIGNMENT == 0)
    ct.store(Weights, (ct.bid(0), 0), weights, allow_tma=ROWS_OF_16_BYTES)
    ct.store(Ids, (ct.bid(0), 0), ids, allow_tma=ROWS_OF_16_BYTES)


@ct.kernel
def count_kernel(Ids: ct.Array, Counts: ct.Array, steps: int, TILE: ConstInt) -> None:
    """Count the pairs of one expert in one part of all pairs, of `steps` tiles: Counts is `[E, parts]`."""
    expert, part = ct.bid(0), ct.bid(1)
    hits = ct.zeros((TILE,), dtype=ct.int32)
    for i in range(part * steps, (part + 1) * steps):
        pair = i * TILE + ct.arange(TILE, dtype=ct.int32)
        hits += (ct.gather(Ids, pair, padding_value=-1) == expert).astype(ct.int32)
    ct.store(Counts, (expert, part), ct.sum(hits))


@ct.kernel
def place_kernel(
    Ids: ct.Array,
    Counts: ct.Array,
    PairOfSlot: ct.Array,
    SlotOfPair: ct.Array,
    ExpertOfTile: ct.Array,
    TileCount: ct.Array,
    steps: int,
    TILE: ConstInt,
    TILE_E: ConstInt,
    TILE_M: ConstInt,
    PARTS: ConstInt,
) -> None:
    """Give slots to the pairs that `count_kernel`'s block has counted; `TILE_E` holds all experts."""
    expert, part = ct.bid(0), ct.bid(1)
    pairs = Ids.shape[0]

    counts = ct.load(Counts, (0, 0), (TILE_E, PARTS), padding_mode=ct.PaddingMode.ZERO, allow_tma=False)
    index = ct.arange(TILE_E, dtype=ct.int32)
    own = ct.where((index == expert)[:, None], counts, 0)  # [TILE_E, PARTS]
    own_pairs = ct.sum(own)
    before = ct.sum(ct.where(ct.arange(PARTS, dtype=ct.int32)[None, :] < part, own, 0))
    tiles = ct.cdiv(ct.sum(counts, 1), TILE_M)  # [TILE_E]
    first_tile = ct.sum(ct.where(index < expert, tiles, 0))
    own_tiles = ct.cdiv(own_pairs, TILE_M)
    first_slot = first_tile * TILE_M

    if part == 0:
        if expert == ct.num_blocks(0) - 1:
            ct.store(TileCount, (0,), first_tile + own_tiles)
        for i in range(ct.cdiv(own_tiles, TILE)):
            tile = i * TILE + ct.arange(TILE, dtype=ct.int32)
            ct.scatter(ExpertOfTile, first_tile + tile, expert, mask=tile < own_tiles)
        # Padding names a pair that does not exist, whose token does not exist either.
        padding = own_pairs + ct.arange(TILE_M, dtype=ct.int32)
        ct.scatter(PairOfSlot, first_slot + padding, pairs, mask=padding < own_tiles * TILE_M)

    slot = first_slot + before
    for i in range(part * steps, (part + 1) * steps):
        pair = i * TILE + ct.arange(TILE, dtype=ct.int32)
        hit = ct.gather(Ids, pair, padding_value=-1) == expert
        rank = ct.cumsum(hit.astype(ct.int32), 0)  # from 1
        ct.scatter(PairOfSlot, slot + rank - 1, pair, mask=hit)
        ct.scatter(SlotOfPair, pair, slot + rank - 1, mask=hit)
        slot += ct.sum(hit.astype(ct.int32))


# -- launchers --------------------------------------------------------------------------------------


@on_its_gpu
def route(
    logits: torch.Tensor, top_k: int, *, renormalize: bool = False, config: RoutingConfig | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the `top_k` experts of each token, and how much each counts.

    Forward only: no gradient flows through it.

    Args:
        logits: `[T, E]`, float16, bfloat16 or float32, finite, any strides; E at most 4096. Where -inf hides
            experts, at least `top_k` of a token have to be left: beyond those, an expert is named again.
        top_k: How many experts each token goes to.
        renormalize: Whether the weights of a token sum to 1.
        config: Instead of the one chosen for this GPU.

    Returns:
        weights: `[T, top_k]`, float32, the largest first.
        ids: `[T, top_k]`, int32.

    Raises:
        TypeError: Not a tensor, a dtype that is not supported, a `top_k` that is no integer, a `renormalize`
            that is not a bool, another kernel's configuration.
        ValueError: Not a matrix, no experts or too many, `top_k` not between 1 and E, or more tokens than
            one launch takes.
    """
    import torch

    check_tensors("route", {"logits": logits}, dtypes=("float16", "bfloat16", "float32"))
    check_config("route", config, RoutingConfig)
    top_k = check_integer("route", "top_k", top_k)
    renormalize = check_bool("route", "renormalize", renormalize)
    if logits.ndim != 2:  # noqa: PLR2004
        raise ValueError(f"route: logits must be [T, E], got shape {list(logits.shape)}")
    tokens, experts = logits.shape
    if experts == 0:
        raise ValueError(f"route: logits must be of at least one expert, got shape {list(logits.shape)}")
    if experts > MAX_EXPERTS:
        raise ValueError(f"route: logits are of {experts} experts; at most {MAX_EXPERTS} are supported")
    if not 1 <= top_k <= experts:
        raise ValueError(f"route: top_k must be between 1 and {experts}, the number of experts, got {top_k}")
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((tokens, top_k), dtype=torch.int32, device=logits.device)
    if tokens == 0:
        return weights, ids

    arch = find_arch("route", logits, CONFIGS)
    config = config or choose_config(arch, tokens=tokens, experts=experts)
    tile_e = next_power_of_2(experts)
    tile_t = max(1, config.route_elements // tile_e)
    ct.launch(
        torch.cuda.current_stream(),
        check_grid("route", (ct.cdiv(tokens, tile_t),), ("groups of tokens", "split logits")),
        with_hints(route_kernel, config),
        (logits, weights, ids, tile_t, tile_e, top_k, next_power_of_2(top_k), renormalize),
    )
    return weights, ids


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Who computes what: the result of `align`. Everything is int32 and on the GPU."""

    pair_of_slot: torch.Tensor
    """`[slots]`, the pair in each slot, T * K in padding; not written behind the last expert's padding."""
    slot_of_pair: torch.Tensor
    """`[T * K]`, the other way round."""
    expert_of_tile: torch.Tensor
    """`[slots / tile_m]`, whose pairs a tile of slots holds; not written from `tile_count` on."""
    tile_count: torch.Tensor
    """`[1]`, how many tiles there are. Only the GPU knows it."""


@on_its_gpu
def align(
    topk_ids: torch.Tensor, experts: int, tile_m: int, *, config: RoutingConfig | None = None
) -> Alignment:
    """Sort token-expert pairs by expert, and pad each expert's to a multiple of `tile_m`.

    Args:
        topk_ids: `[T, K]`, int32 or int64, each in `[0, experts)`, which nobody checks; T * K is not 0.
        experts: How many there are, at most 4096.
        tile_m: Slots that one block computes, a power of two.
        config: Instead of the one chosen for this GPU.

    Returns:
        The tables, with room for the worst case: slots are counted from the number of pairs alone.

    Raises:
        TypeError: Not a tensor, ids that are neither int32 nor int64, an `experts` or a `tile_m` that is no
            integer, another kernel's configuration.
        ValueError: No ids or too many, no experts or too many, a `tile_m` that is no power of two.
    """
    import torch

    check_tensors("align", {"topk_ids": topk_ids}, dtypes=("int32", "int64"))
    check_config("align", config, RoutingConfig)
    experts = check_integer("align", "experts", experts)
    tile_m = check_integer("align", "tile_m", tile_m)
    if topk_ids.numel() == 0:
        raise ValueError(f"align: topk_ids must hold at least one id, got shape {list(topk_ids.shape)}")
    if not 1 <= experts <= MAX_EXPERTS:
        raise ValueError(f"align: experts must be between 1 and {MAX_EXPERTS}, got {experts}")
    check_power_of_2("align", "tile_m", tile_m)
    arch = find_arch("align", topk_ids, CONFIGS)
    config = config or choose_config(arch)
    flat = topk_ids.reshape(-1)
    pairs = flat.numel()
    # At most `tile_m - 1` slots of padding for every expert that has a pair.
    tiles = (pairs + min(experts, pairs) * (tile_m - 1)) // tile_m
    step = min(config.align_pairs, next_power_of_2(pairs))
    all_steps = ct.cdiv(pairs, step)
    # A power of two, as every side of a tile.
    most = min(config.align_blocks // experts, all_steps, MAX_EXPERTS // next_power_of_2(experts))
    parts = 1 << (max(1, most).bit_length() - 1)
    steps = ct.cdiv(all_steps, parts)
    # Pairs, also in the steps of all parts, have no larger numbers: parts and steps are powers of two.
    if tiles * tile_m > MAX_SLOTS:
        raise ValueError(
            f"align: {pairs} ids need numbers up to {tiles * tile_m}, and at most {MAX_SLOTS} are supported; "
            "split the tokens, or take a smaller tile_m"
        )

    def empty(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int32, device=flat.device)

    counts = empty(experts * parts).view(experts, parts)
    made = Alignment(
        pair_of_slot=empty(tiles * tile_m),
        slot_of_pair=empty(pairs),
        expert_of_tile=empty(tiles),
        tile_count=empty(1),
    )
    grid = (experts, parts)
    stream = torch.cuda.current_stream()
    ct.launch(stream, grid, with_hints(count_kernel, config), (flat, counts, steps, step))
    ct.launch(
        stream,
        grid,
        with_hints(place_kernel, config),
        (
            flat,
            counts,
            made.pair_of_slot,
            made.slot_of_pair,
            made.expert_of_tile,
            made.tile_count,
            steps,
            step,
            next_power_of_2(experts),
            tile_m,
            parts,
        ),
    )
    return made


# -- what `route` is gated with ---------------------------------------------------------------------


def reference(
    logits: torch.Tensor, top_k: int, *, renormalize: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort all logits in float64."""
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    weights = logits.softmax(dim=1).gather(1, order)
    return weights / weights.sum(1, keepdim=True) if renormalize else weights, order


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    tokens: int,
    experts: int,
    top_k: int,
    dtype: str,
    renormalize: bool = False,
    dist: str | None = None,
) -> dict[str, object]:
    """Make logits `[tokens, experts]`; `dist` "integers" makes many equal ones."""
    logits = make_tensor((tokens, experts), dtype, dist=dist)
    return {"logits": logits, "top_k": top_k, "renormalize": renormalize}


def work(*, tokens: int, experts: int, top_k: int, dtype: str, **_: object) -> Work:
    """Count the logits that are read, and four bytes for each weight and each index."""
    return Work(bytes=float(tokens * (experts * ITEMSIZE[dtype] + 8 * top_k)), dtype=dtype)


def longest_sum(*, experts: int, **_: object) -> int:
    """Return how many exponentials each denominator sums."""
    return experts


def _case(dtype: str, tokens: int, experts: int, top_k: int, *, speed: bool = False, **options: Any) -> Case:
    short = SHORT[dtype]
    words = [f"{short}-{tokens}x{experts}-top{top_k}"]
    if options.get("renormalize"):
        words.append("renormalized")
    if "dist" in options:
        words.append("ties")
    params = {"tokens": tokens, "experts": experts, "top_k": top_k, "dtype": dtype, **options}
    return Case(name="-".join(words), params=params, speed=speed)


SPEC = KernelSpec(
    name="moe_routing",
    launch=route,
    reference=reference,
    inputs=inputs,
    work=work,
    reduction=longest_sum,
    undefined_inputs=dict.fromkeys(("nan", "inf"), "logits are finite"),
    independent={"logits": ("tokens",), "output": ("tokens",)},
    cases=[
        # DeepSeek-V2-Lite's router and one of 128 experts, in a large prefill step. To read the logits is a
        # tenth of the time: each of K choices is a maximum over all experts, after the one before.
        _case("float32", 65536, 64, 6, speed=True),
        _case("bfloat16", 65536, 128, 8, renormalize=True, speed=True),
        # One to each side of a tile, and widths that fill none.
        _case("float32", 33, 64, 6),
        _case("float32", 1, 64, 6),
        _case("float32", 7, 60, 4, renormalize=True),
        _case("float16", 19, 129, 3),
        _case("bfloat16", 5, 8, 2, renormalize=True),
        # All experts, one, one of one, and more than fit into a block's share.
        _case("float32", 6, 5, 5),
        _case("float32", 3, 64, 1, renormalize=True),
        _case("float32", 3, 1, 1),
        _case("float16", 2, 1500, 8),
        # Equal logits: the first of them.
        _case("bfloat16", 21, 64, 8, dist="integers"),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("float32", 13, 60, 4), "padded"),
        laid_out(_case("bfloat16", 11, 72, 3), "shifted"),
    ],
)
