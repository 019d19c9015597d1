"""Variants of ten kernels, each one change that an author might make, for `research.static_prediction`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CASES = {
    "matmul": "fp16-4096x4096x4096",
    "softmax": "bf16-16384x8192",
    "rms_norm": "bf16-32768x4096",
    "bmm": "fp16-8x2048x2048x2048-transposed_b",
    "fmha": "fp16-causal-4x32x4096x128",
    "attention_decode": "bf16-16x32_8x8192x128",
    "rope": "bf16-2x32_8x8192x128-heads_inside",
    "swiglu": "bf16-8192x14336",
    "silu_and_mul": "fp16-32768x4096",
    "dropout": "bf16-32768x4096-p0.1",
}
"""The case of each kernel that is changed."""


@dataclass(frozen=True)
class Variant:
    """One change of a kernel."""

    name: str
    """What it does, in a few words."""
    config: dict[str, Any] = field(default_factory=dict)
    """Fields of the kernel's configuration that are replaced."""
    edits: tuple[tuple[str, str], ...] = ()
    """Texts that are replaced: of the kernel's file, or of a module of `kernels` that it imports from."""
    times: int = 1
    """How often the launcher is called."""


def edit(name: str, *pairs: tuple[str, str]) -> Variant:
    """Return a variant that changes the source."""
    return Variant(name=name, edits=pairs)


_LOAD_A = "(TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency)"
_LOAD_B = "(TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO, latency=latency)"


def _no_tma(load: str) -> tuple[str, str]:
    return load, load.replace("latency=latency", "latency=latency, allow_tma=False")


# Written before the rules of 2026-11-25 (commit 203fca7).
FIRST: dict[str, list[Variant]] = {
    "matmul": [
        Variant("no occupancy hint", {"occupancy": None}),
        Variant("occupancy 1", {"occupancy": 1}),
        Variant("occupancy 3", {"occupancy": 3}),
        Variant("no latency hint", {"latency": None}),
        Variant("latency 1", {"latency": 1}),
        Variant("latency 2", {"latency": 2}),
        Variant("latency 8", {"latency": 8}),
        Variant("tile 64x64x64", {"tile_m": 64, "tile_n": 64}),
        Variant("tile 128x64x64", {"tile_n": 64}),
        Variant("tile 64x128x64", {"tile_m": 64}),
        Variant("tile 128x128x32", {"tile_k": 32}),
        Variant("tile 128x128x128", {"tile_k": 128}),
        Variant("tile 128x256x64, 1 block, 8 warps", {"tile_n": 256, "occupancy": 1, "num_worker_warps": 8}),
        Variant("tile 256x128x64, 1 block, 8 warps", {"tile_m": 256, "occupancy": 1, "num_worker_warps": 8}),
        Variant("tile 128x256x64, 1 block", {"tile_n": 256, "occupancy": 1}),
        Variant("tile 256x256x64, 1 block", {"tile_m": 256, "tile_n": 256, "occupancy": 1}),
        Variant("8 worker warps", {"num_worker_warps": 8}),
        Variant("2 CTAs", {"num_ctas": 2}),
        Variant("group of 1", {"group_m": 1}),
        Variant("group of 4", {"group_m": 4}),
        edit("A without TMA", _no_tma(_LOAD_A)),
        edit("A and B without TMA", _no_tma(_LOAD_A), _no_tma(_LOAD_B)),
        Variant("store without TMA", {"store_tma": False}),
        edit("padding with -inf", (_LOAD_A, _LOAD_A.replace("ZERO", "NEG_INF"))),
        edit("operands as float32", ("ct.float32 else a.dtype", "ct.float32 else ct.float32")),
        edit("operands as tfloat32", ("ct.float32 else a.dtype", "ct.float32 else ct.tfloat32")),
        edit("float16 sums", ("(TILE_M, TILE_N), dtype=ct.float32", "(TILE_M, TILE_N), dtype=ct.float16")),
        edit("sum scaled", ("acc.astype(C.dtype)", "(acc * 0.5).astype(C.dtype)")),
    ],
    "softmax": [
        Variant("no occupancy hint", {"occupancy": None}),
        Variant("occupancy 1", {"occupancy": 1}),
        Variant("occupancy 2", {"occupancy": 2}),
        Variant("occupancy 4", {"occupancy": 4}),
        Variant("occupancy 16", {"occupancy": 16}),
        Variant("8 warps", {"num_worker_warps": 8}),
        Variant("8 warps, no occupancy hint", {"num_worker_warps": 8, "occupancy": None}),
        Variant("in chunks of 8192", {"max_row": 4096}),
        Variant("in chunks of 2048", {"max_row": 4096, "chunk": 2048}),
        edit(
            "exp instead of exp2",
            (
                "ct.exp2((x[j] - row_max) * LOG2_E)",
                "ct.exp(x[j] - row_max)",
            ),
        ),
        edit(
            "a division per element",
            ("(e[j] * scale).astype", "(e[j] / ct.sum(total, 1, keepdims=True)).astype"),
        ),
        edit("exp2 twice", ("(e[j] * scale).astype", "(ct.exp2(e[j]) * scale).astype")),
        edit("tanh as well", ("(e[j] * scale).astype", "(ct.tanh(e[j]) * scale).astype")),
    ],
    "rms_norm": [
        Variant("no occupancy hint", {"occupancy": None}),
        Variant("occupancy 1", {"occupancy": 1}),
        Variant("occupancy 4", {"occupancy": 4}),
        Variant("occupancy 8", {"occupancy": 8}),
        Variant("4 warps", {"num_worker_warps": 4}),
        Variant("tiles of 16384", {"tile_elements": 16384}),
        Variant("tiles of 16384, 4 warps", {"tile_elements": 16384, "num_worker_warps": 4}),
        Variant("tiles of 32768, 4 warps", {"tile_elements": 32768, "num_worker_warps": 4}),
        edit("root and division", ("ct.rsqrt(mean_square + eps)", "(1.0 / ct.sqrt(mean_square + eps))")),
        edit(
            "a root per element",
            ("h[j] * scale * w", "h[j] * ct.rsqrt(mean_square + eps + 0.0 * h[j]) * w"),
        ),
        edit(
            "float64 sums",
            (
                "ct.sum(squares, 1, keepdims=True)",
                "ct.sum(squares.astype(ct.float64), 1, keepdims=True).astype(ct.float32)",
            ),
        ),
        edit("tanh as well", ("y = h[j] * scale", "y = ct.tanh(h[j]) * scale")),
    ],
}

LATER: dict[str, list[Variant]] = {}
