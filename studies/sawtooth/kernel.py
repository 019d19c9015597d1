"""Attention whose persistent blocks turn around: each walks K and V backward, then forward, then backward.

All blocks that run together, a wave, walk over the same keys side by side. Where K and V are larger than the
L2, a wave leaves there the keys that it read last. Walked in the same order, the next wave asks for the
others first, and evicts them: it finds nothing. Walked in the opposite order, it starts with what is there.

The kernel is the one of `kernels/fmha.py`, in float16 or bfloat16 for H query heads on H heads of keys, with
persistent blocks, without the overlap, and with a direction. `turning` is all that the study compares.

Source of the idea: "Sawtooth Wavefront Reordering", 2026 (https://arxiv.org/abs/2601.16032).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import cuda.tile as ct

from kernels._attention import AttentionConfig, attend, constants_of, order_tiles
from kernels._division import Divisor
from kernels._gemm import for_each_tile
from kernels._launch import check_tiles, count_sms, find_arch, on_its_gpu, with_hints
from kernels._tiles import LOG2_E
from studies.running.attention import case, declare

if TYPE_CHECKING:
    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]
ConstFloat: TypeAlias = ct.Constant[float]


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SawtoothConfig(AttentionConfig):
    """How attention is cut and walked. `overlap` is off, and blocks are persistent: waves need that."""

    persistent: bool = True
    turning: bool = True
    """Whether a block walks every second of its tiles forward."""
    sms: int | None = None
    """As many blocks as so many multiprocessors hold; None: all of the GPU's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap or not self.persistent:
            raise ValueError("SawtoothConfig: blocks are persistent, and do not overlap")


# The tiles of `kernels/fmha.py`; of its data-center Blackwells half as many queries, because persistent
# blocks of 256 spill 800 bytes a thread (tileiras 13.4.92, sm_103). None was measured with this kernel.
_SMALL = SawtoothConfig(tile_m=64, tile_n=64, occupancy=2)
_WORKSTATION = SawtoothConfig(tile_m=64, tile_n=64, occupancy=2, latency_k=2, latency_v=4)
_DATA_CENTER = SawtoothConfig(tile_m=128, tile_n=128, occupancy=1, latency_k=2, latency_v=4)
CONFIGS = {
    "sm_80": _SMALL,
    "sm_90": SawtoothConfig(tile_m=64, tile_n=128, occupancy=2, num_worker_warps=4),
    "sm_100": _DATA_CENTER,
    "sm_120": _WORKSTATION,
}


def choose_config(arch: str) -> SawtoothConfig:
    """Return the configuration for `arch`."""
    return CONFIGS.get(arch, _SMALL)


# -- kernel -----------------------------------------------------------------------------------------


@ct.kernel
def sawtooth_kernel(
    Q: ct.Array,
    K: ct.Array,
    V: ct.Array,
    O: ct.Array,  # noqa: E741 - the name of the formula
    scale_log2: float,
    D: ConstInt,
    TURNING: ConstBool,
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
    """Compute every n-th tile of `TILE_M` rows of O, by n blocks. Constants are those of `fmha_kernel`."""
    tiles = ct.cdiv(Q.shape[2], TILE_M)
    any_heads = HEADS * Q.shape[0]

    def compute(block: int) -> None:
        any_head, tile = order_tiles(block, tiles, any_heads, HEADS_TOGETHER, band_size)
        batch, head = any_head // HEADS, any_head % HEADS
        q = ct.load(Q, (batch, head, tile, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO)
        # The whole wave turns: blocks that run together share what they load.
        forward = block // ct.num_blocks(0) % 2 == 1
        o = attend(
            (q.reshape((TILE_M, D)),), (K,), V, batch, (head,), head, tile * TILE_M, scale_log2,
            TILE_N, D, LATENCY_K, LATENCY_V, CAUSAL, RAGGED, OVERLAP, HEADROOM, TURNING, forward,
        )  # fmt: skip
        ct.store(O, (batch, head, tile, 0), o.astype(O.dtype).reshape((1, 1, TILE_M, D)))

    for_each_tile(compute, tiles * any_heads, PERSISTENT)


@on_its_gpu
def sawtooth(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    config: SawtoothConfig | None = None,
) -> torch.Tensor:
    """Attend as `kernels.fmha` does.

    Args:
        q: `[B, H, N, D]`, float16 or bfloat16, D 64, 128 or 256.
        k: Likewise.
        v: Likewise.
        causal: Query i sees the keys j <= i.
        config: Instead of the one chosen for this GPU.

    Returns:
        `[B, H, N, D]`, the dtype of q.

    Raises:
        ValueError: There are more tiles than one launch takes.
    """
    import torch

    b, h, n, d = q.shape
    config = config or choose_config(find_arch("sawtooth", q, CONFIGS))
    tiles = b * h * ct.cdiv(n, config.tile_m)
    blocks = min(tiles, (config.sms or count_sms()) * (config.occupancy or 1))
    grid = check_tiles("sawtooth", tiles, blocks, "tiles of queries, of all heads,", "split the batch")
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    constants = constants_of(config, q, n, causal=causal)
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        with_hints(sawtooth_kernel, config),
        (q, k, v, o, LOG2_E / math.sqrt(d), d, config.turning, *constants),
    )
    return o


# -- what it is gated with --------------------------------------------------------------------------


SPEC = declare(
    "sawtooth",
    sawtooth,
    [
        # Interpreted without a GPU. More tiles than blocks, so that blocks turn, are in tests/studies.
        case(150, h=2),
        case(333, b=2, causal=True),
        case(130, h=2, d=64, dtype="bfloat16"),
    ],
)
