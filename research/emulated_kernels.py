"""Kernels emulated on a CPU: honest implementations that have to pass the check, and bugs that must not.

Each workload computes in float32 what a GPU kernel would, in several orders and with several approximations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pytest_cutile.tile.tensors.dtypes import name_of
from pytest_cutile.tile.tensors.make_tensor import make_tensor
from pytest_cutile.tile.tensors.rounding import round_to
from pytest_cutile.words.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor
LOG2E = math.log2(math.e)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kernel with its inputs, reference, honest implementations and bugs."""

    name: str
    """For the table: "matmul fp16 K=8192"."""
    inputs: Callable[[int], tuple[Any, ...]]
    """Arguments from a seed."""
    reference: Callable[..., Tensor]
    """The exact result."""
    reduction: int
    """Length of the longest sum."""
    honest: dict[str, Callable[..., Tensor]]
    """Implementations that must pass."""
    bugs: dict[str, Callable[..., Tensor]]
    """Implementations that must fail."""
    precision: str | None = None
    """Declared precision of the operands of matrix products."""


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `values` rounded to nearest even in `dtype`; fp8 saturates."""
    fmt = FORMATS[name_of(dtype)]
    return round_to(values.double(), fmt, saturate=fmt.saturates).to(dtype)


def truncate(values: Tensor, precision: int) -> Tensor:
    """Return `values` with the significand cut off after `precision` bits, as float64."""
    mantissa, exponent = torch.frexp(values.double())
    return torch.ldexp(torch.trunc(mantissa * 2.0**precision), exponent - precision)


def truncating_cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `values` cast to `dtype` by dropping bits (normal numbers only)."""
    fmt = FORMATS[name_of(dtype)]
    return cast(truncate(values, fmt.precision).clamp(-fmt.max_finite, fmt.max_finite), dtype)


def jitter(values: Tensor, ulps: float) -> Tensor:
    """Return float32 `values` with a relative error of up to `ulps`, as an approximate instruction has."""
    noise = torch.rand(values.shape, generator=torch.Generator().manual_seed(values.numel()))
    return values * (1 + (2 * noise - 1) * ulps * 2.0**-23)


# --- matrix product: C[M, N] = A[M, K] @ B[K, N] ------------------------------


def product(a: Tensor, b: Tensor, *, tile: int = 64, splits: int = 1, reverse: bool = False) -> Tensor:
    """Return A @ B in float32, accumulated over tiles of K, in `splits` parts that are added last."""
    length = a.shape[1]
    parts = []
    for part in range(splits):
        first, last = part * length // splits, (part + 1) * length // splits
        acc = torch.zeros(a.shape[0], b.shape[1])
        starts = range(first, last, tile)
        for k in reversed(starts) if reverse else starts:
            end = min(k + tile, last)
            acc += a[:, k:end].float() @ b[k:end].float()
        parts.append(acc)
    return torch.stack(parts).sum(0)


def truncating_product(a: Tensor, b: Tensor, *, tile: int = 16) -> Tensor:
    """Return A @ B where each instruction's sum is cut off to float32, as tensor cores do."""
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for k in range(0, a.shape[1], tile):
        acc = truncate(acc + a[:, k : k + tile].double() @ b[k : k + tile].double(), 24)
    return acc.float()


def half_product(a: Tensor, b: Tensor, *, tile: int = 16) -> Tensor:
    """Return A @ B accumulated in float16: a bug."""
    acc = torch.zeros(a.shape[0], b.shape[1]).half()
    for k in range(0, a.shape[1], tile):
        acc = (acc.float() + a[:, k : k + tile].float() @ b[k : k + tile].float()).half()
    return acc.float()


def tf32(values: Tensor) -> Tensor:
    """Return `values` rounded to tf32."""
    return round_to(values.double(), FORMATS["tfloat32"]).float()


def matmul(kind: str, out: str, k: int, *, dist: str = "normal", m: int = 96, n: int = 80) -> Workload:
    """Return the workload C = A @ B, with inputs of dtype `kind` and output of dtype `out`."""
    target = getattr(torch, out)
    declared = "tfloat32" if kind == "tfloat32" else None
    stored = "float32" if declared else kind
    scale = 1.0 if target.itemsize > 1 else 1.0 / math.sqrt(k)  # e4m3 ends at 448
    options: dict[str, Any] = (
        {"dist": "uniform", "low": 0.0, "high": 1.0} if dist == "positive" else {"dist": dist}
    )

    def inputs(seed: int) -> tuple[Any, ...]:
        return (
            make_tensor((m, k), stored, device="cpu", seed=seed, **options),
            make_tensor((k, n), stored, device="cpu", seed=seed + 1, **options),
        )

    def made(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
        prepare = tf32 if declared else (lambda x: x)
        return lambda a, b: cast(compute(prepare(a), prepare(b)) * scale, target)

    def zero_tile(a: Tensor, b: Tensor) -> Tensor:
        a = a.clone().float()
        a[:, 64:96] = 0
        return product(a, b)

    def on_result(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return made(lambda a, b: change(product(a, b)))

    def unwritten(a: Tensor, b: Tensor) -> Tensor:
        result = torch.empty(m, n, dtype=target)
        result[: m // 32 * 32 - 1] = made(product)(a, b)[: m // 32 * 32 - 1]
        return result

    honest = {
        "tiles of 64": made(product),
        "tiles of 16": made(lambda a, b: product(a, b, tile=16)),
        "reversed": made(lambda a, b: product(a, b, tile=32, reverse=True)),
        "split-K 4": made(lambda a, b: product(a, b, splits=4)),
        "one product": made(lambda a, b: a.float() @ b.float()),
        "truncating tensor core": made(truncating_product),
    }
    if declared:
        honest["truncated tf32"] = lambda a, b: cast(
            product(truncate(a, 11).float(), truncate(b, 11).float()), target
        )
    bugs: dict[str, Callable[..., Tensor]] = {
        "all zero": on_result(torch.zeros_like),
        "one K tile of 32 dropped": made(zero_tile),
        "last K tile of 16 missing": made(lambda a, b: product(a[:, : k - 16], b[: k - 16])),
        "rows 3 and 4 swapped": on_result(lambda c: c[[0, 1, 2, 4, 3, *range(5, m)]]),
        "scale 1% off": on_result(lambda c: c * 1.01),
        "last row unwritten": unwritten,
        "fp16 accumulation": made(half_product),
    }
    if target != torch.float32:
        bugs["truncating cast"] = lambda a, b: truncating_cast(product(a, b) * scale, target)
    elif kind == "float32" and dist == "normal":
        bugs["tf32 undeclared"] = lambda a, b: product(tf32(a), tf32(b))
    return Workload(
        name=f"matmul {kind}->{out} K={k} {dist}",
        inputs=inputs,
        reference=lambda a, b: a @ b * scale,
        reduction=k,
        honest=honest,
        bugs=bugs,
        precision=declared,
    )


# --- softmax over the last dimension, x[M, N] -------------------------------------------------------------


def online_softmax(x: Tensor, tile: int = 512) -> Tensor:
    """Return softmax(x) in float32 with a running maximum and sum."""
    x = x.float() * LOG2E
    peak = torch.full((x.shape[0], 1), -torch.inf)
    total = torch.zeros(x.shape[0], 1)
    for start in range(0, x.shape[1], tile):
        part = x[:, start : start + tile]
        new = torch.maximum(peak, part.amax(1, keepdim=True))
        total = total * jitter(torch.exp2(peak - new), 2) + jitter(torch.exp2(part - new), 2).sum(
            1, keepdim=True
        )
        peak = new
    return jitter(torch.exp2(x - peak), 2) / total


def softmax(kind: str, n: int, *, m: int = 32, spread: float = 1.0) -> Workload:
    """Return the workload softmax over rows of `n`, for inputs of standard deviation `spread`."""
    target = getattr(torch, kind)

    def inputs(seed: int) -> tuple[Any, ...]:
        x = make_tensor((m, n), "float32", device="cpu", seed=seed)
        return (cast(x * spread, target),)

    def exact32(x: Tensor) -> Tensor:
        return torch.softmax(x.float(), -1)

    def made(compute: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda x: cast(compute(x), target)

    def exp2_reciprocal(x: Tensor) -> Tensor:
        wide = x.float()
        powers = jitter(torch.exp2(wide * LOG2E - wide.amax(-1, keepdim=True) * LOG2E), 2)
        return powers * jitter(1 / powers.sum(-1, keepdim=True), 1)

    def shorter_sum(x: Tensor) -> Tensor:
        powers = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
        return powers / powers[:, :-1].sum(-1, keepdim=True)

    def tail(x: Tensor) -> Tensor:
        result = torch.empty_like(x)
        result[:, : n - 8] = made(exact32)(x)[:, : n - 8]
        return result

    def half_sum(x: Tensor) -> Tensor:
        powers = torch.exp(x.float() - x.float().amax(-1, keepdim=True)).half()
        total = torch.zeros(m, 1).half()
        for start in range(0, n, 64):
            total = (total.float() + powers[:, start : start + 64].float().sum(-1, keepdim=True)).half()
        return powers.float() / total.float()

    bugs = {
        "all zero": made(lambda x: torch.zeros_like(x.float())),
        "sum misses the last column": made(shorter_sum),
        "tail unwritten": tail,
        "last row zero": made(lambda x: exact32(x) * (torch.arange(m) < m - 1)[:, None]),
        "scale 1% off": made(lambda x: exact32(x) * 1.01),
        "rows 3 and 4 swapped": made(lambda x: exact32(x)[[0, 1, 2, 4, 3, *range(5, m)]]),
        "uniform 1/N": made(lambda x: torch.full_like(x.float(), 1.0 / n)),
        "fp16 sum": made(half_sum),
    }
    if target != torch.float32:
        bugs["truncating cast"] = lambda x: truncating_cast(exact32(x), target)
    return Workload(
        name=f"softmax {kind} N={n} std={spread:g}",
        inputs=inputs,
        reference=lambda x: torch.softmax(x, -1),
        reduction=n,
        honest={
            "plain": made(exact32),
            "exp2, reciprocal": made(exp2_reciprocal),
            "online, approximate exp2": made(online_softmax),
            "reciprocal always 2 ulp too small": made(lambda x: exact32(x) * (1 - 2.0**-22)),
        },
        bugs=bugs,
    )


# --- RMSNorm: y = x rsqrt(mean(x^2) + eps) w ---------------------------------------------------------------


def rms_norm(kind: str, n: int, *, m: int = 32, size: float = 1.0) -> Workload:
    """Return the workload RMSNorm over rows of `n`, for inputs of magnitude `size`."""
    target = getattr(torch, kind)

    def inputs(seed: int) -> tuple[Any, ...]:
        x = make_tensor((m, n), "float32", device="cpu", seed=seed) * size
        return cast(x, target), make_tensor(n, kind, device="cpu", seed=seed + 1), 1e-5

    def compute(x: Tensor, w: Tensor, eps: float, *, tile: int = 256, root: float = 0.0) -> Tensor:
        x = x.float()
        total = torch.zeros(x.shape[0], 1)
        for start in range(0, n, tile):
            total = total + x[:, start : start + tile].square().sum(1, keepdim=True)
        return x * jitter(torch.rsqrt(total / n + eps), root) * w.float()

    def made(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, w, eps: cast(function(x, w, eps), target)

    def tail(x: Tensor, w: Tensor, eps: float) -> Tensor:
        result = torch.empty_like(x)
        result[:, : n - 8] = made(compute)(x, w, eps)[:, : n - 8]
        return result

    bugs = {
        "all zero": made(lambda x, w, eps: compute(x, w, eps) * 0),
        "eps ten times too large": made(lambda x, w, eps: compute(x, w, 10 * eps)),
        "no eps": made(lambda x, w, eps: compute(x, w, 0.0 * eps)),
        "weight off by one": made(lambda x, w, eps: compute(x, w.roll(1), eps)),
        "mean over n - 1": made(lambda x, w, eps: compute(x, w, eps) * math.sqrt((n - 1) / n)),
        "tail unwritten": tail,
        "scale 1% off": made(lambda x, w, eps: compute(x, w, eps) * 1.01),
        "rows 3 and 4 swapped": made(lambda x, w, eps: compute(x, w, eps)[[0, 1, 2, 4, 3, *range(5, m)]]),
    }
    if target != torch.float32:
        bugs["truncating cast"] = lambda x, w, eps: truncating_cast(compute(x, w, eps), target)
        bugs["result rounded before the weight"] = made(
            lambda x, w, eps: cast(compute(x, torch.ones(n), eps), target).float() * w.float()
        )
    return Workload(
        name=f"rms_norm {kind} N={n} size={size:g}",
        inputs=inputs,
        reference=lambda x, w, eps: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w,
        reduction=n,
        honest={
            "tiles of 256": made(compute),
            "tiles of 8": made(lambda x, w, eps: compute(x, w, eps, tile=8)),
            "approximate rsqrt": made(lambda x, w, eps: compute(x, w, eps, root=2.0)),
            "rsqrt always 2 ulp too large": made(lambda x, w, eps: compute(x, w, eps) * (1 + 2.0**-22)),
        },
        bugs=bugs,
    )
