"""The failure of a check: what is wrong with the outputs, and which looser terms they would pass on."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from pytest_cutile.correctness.compare.outputs import OutputsComparison, compare_outputs
from pytest_cutile.correctness.error_model.bounds import accumulation_of, passes_torch
from pytest_cutile.correctness.error_model.parts import Part
from pytest_cutile.correctness.error_model.runs import ReferenceRuns
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.explain.findings import also_wrong, explain, fit
from pytest_cutile.correctness.explain.relaxation import (
    WOULD,
    are_lost,
    looser_policies,
    what_would_pass,
    would_pass_with,
)
from pytest_cutile.tensors.dtypes import format_of
from pytest_cutile.tensors.formats import FLOAT32, TFLOAT32

RELAXATION_SECONDS = 20.0
"""Length of a check from which a failure is reported without looking for what would have passed."""


def explain_mismatch(
    outputs: Any, comparison: OutputsComparison, runs: ReferenceRuns, *, title: str, started: float
) -> KernelMismatch:
    """Return the failure of wrong outputs of a check that began at `started` (time.perf_counter)."""
    name, *others = comparison.failed
    out, result = comparison.outputs[name], comparison.results[name]
    explanation = explain(
        name,
        out,
        comparison.expected(name),
        result,
        basis=comparison.bounds[name],
        reduction=runs.terms.reduction,
    )
    mismatch = KernelMismatch()
    mismatch.picture = explanation.picture
    if result.outside is not None and result.worst is not None:
        mismatch.output, mismatch.index = out, result.worst.index
    lines = explanation.lines
    if len(runs.parts) > 1:
        lines.append(f"  compared in {len(runs.parts)} parts, which independent=... says may be")
    if runs.is_fixed:
        lines.append("  the reference does not follow its arguments: it has to compute from them")
    elif runs.terms.tolerance is None and not any(each.pattern for each in comparison.results.values()):
        lines += _relax(outputs, comparison, runs, title, started)
    mismatch.args = (f"{fit([title, *lines])}{also_wrong(others)}",)
    return mismatch


def _relax(
    outputs: Any, comparison: OutputsComparison, runs: ReferenceRuns, title: str, started: float
) -> list[str]:
    terms = runs.terms
    formats = [target for out in comparison.outputs.values() if (target := format_of(out.dtype)) is not None]
    if not formats:
        return []
    if (seconds := time.perf_counter() - started) > RELAXATION_SECONDS:
        return [f"  looser numerics policies were not tried: this check took {seconds:.0f} s without them"]

    def passes(policy: NumericsPolicy) -> bool:
        return not compare_outputs(outputs, runs, title=title, policy=policy, exact=comparison.exact).failed

    def passes_with(**changes: Any) -> bool:
        other = ReferenceRuns(runs.call, runs.parts, replace(terms, **changes))
        return not compare_outputs(outputs, other, title=title, exact=comparison.exact).failed

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
        exact = comparison.exact
        pairs = [(out, name) for name, out in comparison.outputs.items()]
        advice = what_would_pass(
            policies, passes, lambda: all(passes_torch(out, exact()[name]) for out, name in pairs)
        )
    if policies and advice.startswith(WOULD) and _is_any_lost(comparison, runs, policies[-1]):
        advice = "elements are off by more than half of their value, which no looser numerics policy explains"
    return [f"  {advice}"]


def _is_any_lost(comparison: OutputsComparison, runs: ReferenceRuns, policy: NumericsPolicy) -> bool:
    """Return whether elements pass under a policy that does not explain them; not known of parts."""
    if not runs.keeps_the_whole:
        return False
    truth = runs.estimate(Part(), policy)
    return any(
        are_lost(comparison.outputs[name], comparison.expected(name), result.outside, truth.policy[name])
        for name, result in comparison.results.items()
        if result.outside is not None and name in truth.policy
    )
