"""Tolerance relaxation: which looser numerics policy, or which plain tolerance, an output would pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.compare.outputs import OutputsComparison, compare_outputs
from pytest_cutile.correctness.error_model.bounds import accumulation_of, passes_torch
from pytest_cutile.correctness.error_model.noise import ReferenceRuns
from pytest_cutile.correctness.error_model.spread import Spread
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy
from pytest_cutile.tile.tensors.dtypes import format_of
from pytest_cutile.words.formats import BFLOAT16, FLOAT16, FLOAT32, TFLOAT32, FloatFormat

if TYPE_CHECKING:
    import torch

WOULD = "would pass with"
CANCELS = "right for the same inputs around zero: does their offset cancel, as in E[x^2] - E[x]^2?"
RELAXATION_SECONDS = 20.0
"""Length of a check from which a failure is reported without looking for what would have passed."""
EXP_ERROR = 2.0**-10
"""Relative error of exponentials under a looser policy: that of one computed in float16 to an ulp."""


def advise(
    outputs: Any,
    comparison: OutputsComparison,
    started: float,
    is_right_around_zero: Callable[[], bool],
) -> str:
    """Say under which looser terms wrong outputs would pass; empty for integers.

    A kernel that is right around zero has the precision that `mid` would excuse, and loses it to an offset.
    """
    runs, terms = comparison.runs, comparison.runs.terms
    formats = [target for out in comparison.outputs.values() if (target := format_of(out.dtype)) is not None]
    if not formats:
        return ""
    if (seconds := time.perf_counter() - started) > RELAXATION_SECONDS:
        return f"looser numerics policies were not tried: this check took {seconds:.0f} s without them"

    def passes(others: ReferenceRuns) -> bool:
        return not compare_outputs(outputs, others, may_refine=False).failed

    def passes_with(**changes: Any) -> bool:
        return passes(ReferenceRuns(runs.call, runs.parts, replace(terms, **changes)))

    policies = looser_policies(
        terms.policy,
        min((accumulation_of(target) for target in formats), key=lambda target: target.precision),
        exponentials=runs.has_exponentials,
        short_sums=comparison.has_short_sums,
    )
    on_cuda_cores = runs.has_products and terms.operands is FLOAT32
    if runs.longest_sum > terms.reduction and passes_with(reduction=runs.longest_sum):
        advice = would_pass_with(f"reduction={runs.longest_sum}")
    elif on_cuda_cores and passes_with(operands=TFLOAT32):
        advice = would_pass_with('precision="tfloat32"')
    else:
        advice = what_would_pass(
            policies,
            lambda policy: passes(runs.under(policy)),
            lambda: all(
                passes_torch(out, comparison.exact(name)) for name, out in comparison.outputs.items()
            ),
        )
    if policies and advice.startswith(WOULD) and _is_any_lost(comparison, policies[-1]):
        advice = "elements are off by more than half of their value, which no looser numerics policy explains"
    elif advice.startswith(f"{WOULD} mid=") and is_right_around_zero():
        advice = CANCELS
    return advice


def _is_any_lost(comparison: OutputsComparison, policy: NumericsPolicy) -> bool:
    """Return whether elements pass under a policy that does not explain them; not known of parts."""
    truth = comparison.runs.under(policy).whole
    return truth is not None and any(
        _are_lost(comparison.outputs[name], comparison.expected(name), result.outside, truth.policy[name])
        for name, result in comparison.results.items()
        if result.outside is not None and name in truth.policy
    )


def looser_policies(
    policy: NumericsPolicy, accumulation: FloatFormat, *, exponentials: bool, short_sums: bool
) -> list[NumericsPolicy]:
    """Return looser policies, the least loose first; the last allows what all others do."""
    finest = (policy.mid or accumulation).precision
    mids = [target for target in (FLOAT32, FLOAT16, BFLOAT16) if target.precision < finest]
    looser = [replace(policy, mid=mid) for mid in mids]
    if exponentials and policy.exp_error < EXP_ERROR:
        looser += [replace(policy, mid=mid, exp_error=EXP_ERROR) for mid in (policy.mid, *mids)]
    if short_sums and not policy.fast_acc:
        fast = [replace(slow, fast_acc=True) for slow in (policy, *looser[-1:])]
        looser = [fast[0], *looser, *fast[1:]]
    return looser


def _are_lost(out: torch.Tensor, exact: torch.Tensor, outside: torch.Tensor, spread: Spread) -> bool:
    """Say whether most elements that are off by more than half of their value are no roundings.

    They may pass by the noise of others in their row; roundings make them only where their own `spread` is
    as large (sums that cancel).
    """
    target = format_of(out.dtype)
    if target is None:
        return False
    got, y = out.detach()[outside].double(), exact[outside].abs()
    off = ((got - exact[outside]).abs() > y / 2) & (y >= 2.0**target.min_exponent)
    own = spread.elements.reshape(out.shape)[outside].sqrt()
    return 2 * int((off & (own < y / 8)).sum()) > int(off.sum())


def would_pass_with(options: str) -> str:
    return f"{WOULD} {options}: say so if the kernel is meant to be no better"


def what_would_pass(
    policies: Sequence[NumericsPolicy],
    passes: Callable[[NumericsPolicy], bool],
    passes_torch: Callable[[], bool],
) -> str:
    """Say under which of `policies`, the least loose first, or torch's tolerances, outputs pass."""
    if policies and passes(policies[-1]):  # else none passes: one attempt shows most bugs
        least = next(policy for policy in policies if policy is policies[-1] or passes(policy))
        return would_pass_with(f"{least}")
    if passes_torch():
        defaults = "torch.testing.assert_close's defaults"
        return f"no looser numerics policy explains it, but {defaults} would let it pass"
    return "neither a looser numerics policy nor torch.testing.assert_close's defaults would let it pass"
