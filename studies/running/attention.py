"""Self-attention of `[B, H, N, D]` as the studies declare it: inputs, work and names of cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernels import fmha
from kernels._cases import UNDEFINED
from kernels._dtypes import SHORT
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    import torch

LEAST_TIMED = 8192
"""Keys beyond which a case is one to time."""


def case(
    n: int, *, b: int = 1, h: int = 1, d: int = 128, dtype: str = "float16", causal: bool = False
) -> Case:
    """Return the case of `n` queries and keys."""
    return Case(
        name=f"{SHORT[dtype]}{'-causal' * causal}-{b}x{h}x{n}x{d}",
        params={"b": b, "h": h, "n": n, "d": d, "dtype": dtype, "causal": causal},
        speed=n > LEAST_TIMED,
    )


def inputs(
    make_tensor: Callable[..., torch.Tensor], *, b: int, h: int, n: int, d: int, dtype: str, causal: bool
) -> dict[str, Any]:
    return {**{name: make_tensor((b, h, n, d), dtype) for name in ("q", "k", "v")}, "causal": causal}


def work(*, b: int, h: int, n: int, d: int, dtype: str, causal: bool) -> Work:
    return fmha.work(b=b, h=h, h_kv=h, m=n, n=n, d=d, dtype=dtype, causal=causal)


def independent(*, causal: bool, **_: object) -> dict[str, tuple[str, ...]]:
    """Name what can be checked in parts: with a mask it matters which query a row is."""
    heads = ("batch", "heads")
    queries = heads if causal else (*heads, "queries")
    return {"q": queries, "k": heads, "v": heads, "output": queries}


def declare(
    name: str,
    launch: Callable[..., Any],
    cases: list[Case],
    *,
    reference: Callable[..., Any] = fmha.reference,
    **check: Any,
) -> KernelSpec:
    """Return the declaration of a launcher of q, k, v and `causal`; `check` is the spec's."""
    return KernelSpec(
        name=name,
        launch=launch,
        reference=reference,
        inputs=inputs,
        work=work,
        reduction=lambda n, d, **_: max(d, n),
        check=check,
        undefined_inputs=UNDEFINED,
        independent=independent,
        cases=cases,
    )
