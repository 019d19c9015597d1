"""Variants of kernels, each one change that an author might make, for `research.static_prediction`."""

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
    "gelu": "fp16-134217728",
    "softmax_chunks": "bf16-2048x32768",
}
"""The case of each kernel that is changed."""
MODULES = {"gelu": "research.gelu", "softmax_chunks": "kernels.softmax"}
"""The module of a kernel that is not in the module of `kernels` of its name."""
CONFIGS: dict[str, dict[str, Any]] = {"softmax_chunks": {"max_row": 4096, "chunk": 2048}}
"""Fields of a kernel's configuration that differ from what it chooses, with every variant."""


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


_GELU = "y = 0.5 * x * (1.0 + ct.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))"

# Written before the gate predicted times.
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

_SUM_BMM = "multiply_along_k(load_a, load_b, ct.cdiv(A.shape[2], TILE_K), TILE_M, TILE_N)"
_SUM = "multiply_along_k(load_a, load_b, ct.cdiv(A.shape[1], TILE_K), TILE_M, TILE_N, FAST_ACC)"
_TURN = "return first * cos - second * sin, second * cos + first * sin"
_SILU = "return x * ct.where(x < 0.0, t, 1.0) * reciprocal(1.0 + t)"
_LOADED = "INSIDE=INSIDE).astype(ct.float32)"
_EXP2 = "ct.exp2((x[j] - row_max) * LOG2_E)"
_P = "p = ct.exp2(s * scale_log2 - new_max, flush_to_zero=True)"
_K_LOOP = """\
    for k in range(steps):
        a = load_a(k)  # [TILE_M, TILE_K]
        b = load_b(k)  # [TILE_K, TILE_N]
        # Tensor cores take smaller operands as they are, and float32 only as tfloat32.
        dtype = ct.tfloat32 if a.dtype == ct.float32 else a.dtype
        acc = ct.mma(a.astype(dtype), b.astype(dtype), acc, use_fast_acc=FAST_ACC)
"""
_K_LOOP_UNROLLED = """\
    for pair in range(ct.cdiv(steps, 2)):
        for half in ct.static_iter(range(2)):
            a = load_a(2 * pair + half)
            b = load_b(2 * pair + half)
            dtype = ct.tfloat32 if a.dtype == ct.float32 else a.dtype
            acc = ct.mma(a.astype(dtype), b.astype(dtype), acc, use_fast_acc=FAST_ACC)
"""
_ROW_LOOP = """\
    for j in range(chunks):
        row_max, row_sum = take_in(X, j, row_max, row_sum, TILE_N, True)
"""
_ROW_LOOP_UNROLLED = """\
    for pair in range(chunks // 2):
        for half in ct.static_iter(range(2)):
            row_max, row_sum = take_in(X, 2 * pair + half, row_max, row_sum, TILE_N, True)
"""


# Written after the rules of the predicted time were fixed.
LATER: dict[str, list[Variant]] = {
    "matmul": [
        Variant("launched twice", times=2),
        Variant("tile_k 16", {"tile_k": 16}),
        Variant("one tile per block", {"blocks_per_sm": None}),
        Variant("1 CTA, 128x128x64, 2 blocks", {"num_ctas": 1, "tile_m": 128, "tile_n": 128, "occupancy": 2}),
        edit("the sum run twice", (_SUM, f"{_SUM} * 0.5 + 0.5 * {_SUM}")),
        edit("K loop unrolled by 2", (_K_LOOP, _K_LOOP_UNROLLED)),
    ],
    "softmax": [
        Variant("launched twice", times=2),
        edit(
            "exponentials in float64",
            (_EXP2, "ct.exp2(((x[j] - row_max) * LOG2_E).astype(ct.float64)).astype(ct.float32)"),
        ),
        edit("a sine as well", ("(e[j] * scale).astype", "(ct.sin(e[j]) * scale).astype")),
        edit("products in another order", (_EXP2, "ct.exp2(LOG2_E * (x[j] - row_max))")),
    ],
    "rms_norm": [
        Variant("launched twice", times=2),
        edit("all in float64", (_LOADED, "INSIDE=INSIDE).astype(ct.float64)")),
        edit("weight first", ("h[j] * scale * w[j]", "h[j] * (w[j] * scale)")),
    ],
    "bmm": [
        Variant("launched twice", times=2),
        Variant("tile_k 32", {"tile_k": 32}),
        Variant("tile_k 16", {"tile_k": 16}),
        Variant("latency 1", {"latency": 1}),
        Variant("latency 2", {"latency": 2}),
        Variant("tile 64x64", {"tile_m": 64, "tile_n": 64}),
        Variant("tile 64x128", {"tile_m": 64, "tile_n": 128}),
        Variant("group of 1", {"group_m": 1}),
        Variant("store without TMA", {"store_tma": False}),
        Variant("4 worker warps", {"num_worker_warps": 4}),
        edit("the sum run twice", (_SUM_BMM, f"{_SUM_BMM} * 0.5 + 0.5 * {_SUM_BMM}")),
        edit("scaled", ("c = acc.astype", "c = (acc * 1.5).astype")),
    ],
    "fmha": [
        Variant("launched twice", times=2),
        Variant("64 keys per step", {"tile_n": 64}),
        Variant("32 keys per step", {"tile_n": 32}),
        Variant("64 queries", {"tile_m": 64}),
        Variant("no overlap", {"overlap": False}),
        Variant("latency 1", {"latency_k": 1, "latency_v": 1}),
        Variant("head after head", {"heads_together": 1}),
        edit(
            "hidden keys as well",
            ("ct.cdiv(min(keys, first_row + TILE_M) if CAUSAL else keys, TILE_N)", "ct.cdiv(keys, TILE_N)"),
        ),
        edit(
            "every tile masked",
            ("state = step(tiles - 1 - back, False, state)", "state = step(tiles - 1 - back, True, state)"),
        ),
    ],
    "attention_decode": [
        Variant("launched twice", times=2),
        Variant("32 keys per step", {"tile_n": 32}),
        Variant("16 keys per step", {"tile_n": 16}),
        Variant("128 keys per step", {"tile_n": 128}),
        Variant("latency 1", {"latency": 1}),
        Variant("latency 2", {"latency": 2}),
        Variant("queries first", {"keys_first": False}),
        Variant("8 warps", {"num_worker_warps": 8}),
        Variant("occupancy 1", {"occupancy": 1}),
        Variant("parts for 1 block an SM", {"blocks_per_sm": 1}),
    ],
    "rope": [
        Variant("launched twice", times=2),
        Variant("tiles of 512", {"tile_elements": 512}),
        Variant("tiles of 4096", {"tile_elements": 4096}),
        Variant("tiles of 16384", {"tile_elements": 16384}),
        Variant("4 heads", {"tile_h": 4}),
        Variant("occupancy 2", {"occupancy": 2}),
        Variant("8 warps", {"num_worker_warps": 8}),
        edit(
            "in float64",
            (_TURN, "first, second = first.astype(ct.float64), second.astype(ct.float64)\n    " + _TURN),
        ),
        edit("angles in place of their cosines", (_TURN, _TURN.replace("* cos", "* ct.cos(cos)"))),
        edit("terms exchanged", (_TURN, "return cos * first - sin * second, first * sin + second * cos")),
    ],
    "swiglu": [
        Variant("launched twice", times=2),
        Variant("tiles of 1 KiB", {"tile_bytes": 1024}),
        Variant("tiles of 8 KiB", {"tile_bytes": 8192}),
        Variant("tiles of 32 KiB", {"tile_bytes": 32768}),
        Variant("occupancy 2", {"occupancy": 2}),
        Variant("8 warps", {"num_worker_warps": 8}),
        edit(
            "silu in float64",
            (
                "t = ct.exp2(-ct.abs(x) * LOG2_E)",
                "x = x.astype(ct.float64)\n    t = ct.exp2(-ct.abs(x) * LOG2_E)",
            ),
            (_SILU, "return x * ct.where(x < 0.0, t, 1.0) / (1.0 + t)"),
        ),
        edit("a division", ("reciprocal(1.0 + t)", "(1.0 / (1.0 + t))")),
        edit("tanh as well", (_SILU, _SILU.replace("return x", "return ct.tanh(x)"))),
    ],
    "silu_and_mul": [
        Variant("launched twice", times=2),
        Variant("tiles of 1 KiB", {"tile_bytes": 1024}),
        Variant("tile doubled to 8 KiB", {"tile_bytes": 8192}),
        Variant("tiles of 16 KiB", {"tile_bytes": 16384}),
        Variant("occupancy 1", {"occupancy": 1}),
        Variant("8 warps", {"num_worker_warps": 8}),
    ],
    "dropout": [
        Variant("launched twice", times=2),
        Variant("tiles of 1024", {"tile_elements": 1024}),
        Variant("tiles of 16384", {"tile_elements": 16384}),
        Variant("occupancy 1", {"occupancy": 1}),
        Variant("4 warps", {"num_worker_warps": 4}),
        edit("10 rounds", ("ROUNDS = 7", "ROUNDS = 10")),
        edit("28 rounds", ("ROUNDS = 7", "ROUNDS = 28")),
        edit("scaled in float64", ("x.astype(ct.float32) * scale", "x.astype(ct.float64) * scale")),
        edit("scaled from the left", ("x.astype(ct.float32) * scale", "scale * x.astype(ct.float32)")),
    ],
    "gelu": [
        Variant("tile doubled to 2048", {"tile": 2048}),
        Variant("unrolled by 2", {"tiles_per_block": 2}),
        Variant("tiles of 256", {"tile": 256}),
        Variant("tiles of 512", {"tile": 512}),
        Variant("tiles of 4096", {"tile": 4096}),
        Variant("unrolled by 4", {"tiles_per_block": 4}),
        Variant("tiles of 512, unrolled by 2", {"tile": 512, "tiles_per_block": 2}),
        Variant("tiles of 512, unrolled by 4", {"tile": 512, "tiles_per_block": 4}),
        # Whether what a block computes between its loads and its stores decides how many must be resident.
        edit("relu", (_GELU, "y = ct.maximum(x, 0.0)")),
        Variant("relu, tiles of 2048", {"tile": 2048}, ((_GELU, "y = ct.maximum(x, 0.0)"),)),
        Variant("relu, tiles of 4096", {"tile": 4096}, ((_GELU, "y = ct.maximum(x, 0.0)"),)),
        edit("tanh of it as well", (_GELU, f"{_GELU}\n        y = ct.tanh(y)")),
        Variant(
            "tanh of it as well, tiles of 2048",
            {"tile": 2048},
            ((_GELU, f"{_GELU}\n        y = ct.tanh(y)"),),
        ),
    ],
    "softmax_chunks": [edit("reduction unrolled by 2", (_ROW_LOOP, _ROW_LOOP_UNROLLED))],
}
