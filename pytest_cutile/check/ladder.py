"""What an output that failed would pass: looser contracts, one after the other, and a plain tolerance last.

Nothing is loosened by this: the failure stays one, and says what to declare if the kernel is meant so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cutile.core.tolerance import BFLOAT16, FLOAT16, FLOAT32, Contract
from pytest_cutile.gpu.dtypes import format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from pytest_cutile.check.noise import Spread
    from pytest_cutile.core.tolerance import FloatFormat

WOULD = "would pass with"
EXP_ERROR = 2.0**-10
"""Relative error of exponentials on the ladder: that of one computed in float16 to an ulp."""


def rungs(
    contract: Contract, accumulation: FloatFormat, *, exponentials: bool, short_sums: bool
) -> list[Contract]:
    """Return looser contracts than `contract`, the least loose first; the last allows what all others do.

    Args:
        contract: what was allowed.
        accumulation: format of the accumulation: float32, or float64.
        exponentials: whether there are any, whose error could matter.
        short_sums: whether the device may sum in fewer bits, `Contract.fast_acc`.
    """
    finest = (contract.mid or accumulation).precision
    mids = [each for each in (FLOAT32, FLOAT16, BFLOAT16) if each.precision < finest]
    looser = [replace(contract, mid=mid) for mid in mids]
    if exponentials and contract.exp_error < EXP_ERROR:
        looser += [replace(contract, mid=mid, exp_error=EXP_ERROR) for mid in (contract.mid, *mids)]
    if short_sums and not contract.fast_acc:
        fast = [replace(each, fast_acc=True) for each in (contract, *looser[-1:])]
        looser = [fast[0], *looser, *fast[1:]]
    return looser


def are_lost(out: torch.Tensor, exact: torch.Tensor, outside: torch.Tensor, spread: Spread) -> bool:
    """Say whether most of the elements that are off by more than half of their value are no roundings.

    Noise of others in their row may widen the bound until they pass; only where their own is as large (sums
    that cancel) is it what made them.

    Args:
        out: what the kernel wrote.
        exact: what the reference computed.
        outside: which elements are wrong, as bool.
        spread: how far a looser contract moves each.
    """
    target = format_of(out.dtype)
    if target is None:
        return False
    got, y = out.detach()[outside].double(), exact[outside].abs()
    off = ((got - exact[outside]).abs() > y / 2) & (y >= 2.0**target.min_exponent)
    own = spread.elements.reshape(out.shape)[outside].sqrt()
    return 2 * int((off & (own < y / 8)).sum()) > int(off.sum())


def would_pass_with(options: str) -> str:
    """Return the line that says so of some options of `check_kernel`."""
    return f"{WOULD} {options}: say so if the kernel is meant to be no better"


def what_would_pass(
    contracts: Sequence[Contract], passes: Callable[[Contract], bool], passes_torch: Callable[[], bool]
) -> str:
    """Return a line that says under which looser contract the outputs would pass.

    Args:
        contracts: the rungs.
        passes: whether the outputs pass under one of them.
        passes_torch: whether they pass with the tolerances of `torch.testing.assert_close`.
    """
    if contracts and passes(contracts[-1]):  # else none passes: most bugs are told by one attempt
        found = next(each for each in contracts if each is contracts[-1] or passes(each))
        return would_pass_with(f"{found}")
    if passes_torch():
        return "no looser contract explains it, but torch.testing.assert_close's defaults would let it pass"
    return "neither a looser contract nor torch.testing.assert_close's defaults would let it pass"
