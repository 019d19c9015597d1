"""What an output that failed would pass: looser contracts, one after the other, and a plain tolerance last.

Nothing is loosened by this: the failure stays one, and says what to declare if the kernel is meant so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cutile.core.tolerance import BFLOAT16, FLOAT16, FLOAT32, Contract

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_cutile.core.tolerance import FloatFormat

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


def would_pass_with(options: str) -> str:
    """Return the line that says so of some options of `check_kernel`."""
    return f"would pass with {options}: say so if the kernel is meant to be no better"


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
