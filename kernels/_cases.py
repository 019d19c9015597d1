"""Variants of declared cases."""

from __future__ import annotations

from dataclasses import replace

from pytest_cutile import Case


def laid_out(case: Case, layout: str) -> Case:
    """Return `case` with tensors that lie in memory as `layout` says: "padded", "transposed" or "shifted"."""
    return replace(case, name=f"{case.name}-{layout}", layout=layout)
