"""What reports are built from: the results of a run, and one verdict for each case and architecture."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from pytest_cutile.quantities import counted, format_change, format_share, format_time
from pytest_cutile.reports.document import Tone
from pytest_cutile.results import CorrectResult, Result, SpeedResult
from pytest_cutile.verdicts import ERRORS, UNDECIDED, Reason, Verdict

FIGURES = ("time/launch", "rate", "limit", "change")
"""Titles of what `figures` returns."""
_FAILED = {"correct": "wrong result", "compile": "does not compile"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known when a run ends: every report format gets it."""

    results: Sequence[Result]
    """Of all gates that ran."""
    failed: Sequence[Result] = ()
    """Those that failed their tests. A verdict alone does not say: a regression may be accepted, and
    `--perf-strict` fails what is undecided."""
    other_failures: int = 0
    """Failures that no result explains: a fixture, a module, a lost process."""
    left_out: int = 0
    """Tests that `--changed-only` left out."""
    unfinished: bool = False
    """Whether the run was stopped before its end."""
    remarks: Sequence[str] = ()
    """Lines about baselines without a case, and about what the session did to all cases."""


@dataclass(frozen=True, kw_only=True)
class CaseRow:
    """The results of all gates for one case on one architecture."""

    kernel: str
    name: str
    arch: str
    """The architecture; with the GPU, where GPUs of several models share it."""
    results: Mapping[str, Result]
    """By gate."""
    verdict: str
    """The verdict of the case in words: the worst of its gates'."""
    tone: Tone
    """Whether the case is fine, failed, or undecided."""

    @property
    def figures(self) -> tuple[str, ...]:
        return figures(self.results.get("speed"))


def cases_of(results: Iterable[Result]) -> list[CaseRow]:
    """Return the cases, sorted. Of several workers' results for the same gate and case the worst one counts.

    Such a result keeps the GPU's id only where the workers' verdicts differ.
    """
    results = list(results)
    gpus: dict[str, set[str]] = defaultdict(set)
    for result in results:
        gpus[result.arch].update({result.gpu} - {""})
    alike: dict[tuple[str, str, str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        arch = f"{result.arch} {result.gpu}".strip() if len(gpus[result.arch]) > 1 else result.arch
        alike[result.kernel, result.case, arch, result.key][result.gate].append(result)
    cases = []
    for (kernel, name, arch, _), by_gate in sorted(alike.items(), key=lambda item: item[0]):
        worst = {gate: _worst(workers) for gate, workers in by_gate.items()}
        verdict, tone = _verdict(worst)
        cases.append(CaseRow(kernel=kernel, name=name, arch=arch, results=worst, verdict=verdict, tone=tone))
    return cases


def _worst(results: Sequence[Result]) -> Result:
    worst = max(reversed(results), key=lambda result: (_badness(result), result.verdict in UNDECIDED))
    if isinstance(worst, SpeedResult) and len({result.verdict for result in results}) == 1:
        return msgspec.structs.replace(worst, gpu_id="")
    return worst


def _badness(result: Result) -> int:
    return {Verdict.FAIL: 2, Verdict.REGRESSION: 1}.get(result.verdict, 0)


def _verdict(results: Mapping[str, Result]) -> tuple[str, Tone]:
    """Return the verdict on a case in words: of what failed, else of its speed, else of all gates."""

    def importance(result: Result) -> tuple[int, int]:
        # A kernel that does not compile explains other failures; a slower one matters more than its code.
        failures, regressions = ("compile", "static", "correct", "speed"), ("speed", "static")
        order = failures if result.verdict is Verdict.FAIL else regressions
        return -_badness(result), order.index(result.gate) if result.gate in order else len(order)

    wrong = sorted(filter(_badness, results.values()), key=importance)
    if wrong:
        return verdict_word(wrong[0]), Tone.BAD
    speed = results.get("speed")
    if speed is not None and speed.verdict is not Verdict.NOT_MEASURED:
        return verdict_word(speed), Tone.PLAIN if speed.verdict in UNDECIDED else Tone.GOOD
    words = [_brief(result) for result in sorted(results.values(), key=gate_position)]
    tone = Tone.GOOD
    if any(result.verdict is Verdict.NOT_MEASURED and result.gate != "static" for result in results.values()):
        words.append(Verdict.NOT_MEASURED)
        worker_died = speed is not None and speed.reason in ERRORS
        tone = Tone.BAD if worker_died else Tone.PLAIN
    return ", ".join(filter(None, words)), tone


def gate_position(result: Result) -> int:
    """Return where a gate's results are listed among those of other gates."""
    order = ("correct", "compile", "static", "speed")
    return order.index(result.gate) if result.gate in order else len(order)


def _brief(result: Result) -> str:
    """Return what a gate that did not fail adds to the verdict of a case."""
    if result.verdict is Verdict.NOT_MEASURED:
        return ""
    if result.gate == "static":
        return result.reason or result.verdict
    words = {"correct": "correct", "compile": "compiles"}
    on_cpu = isinstance(result, CorrectResult) and result.on
    return words.get(result.gate, f"{result.gate}: {result.verdict}") + (" (cpu)" if on_cpu else "")


def verdict_word(result: Result) -> str:
    """Return one result's verdict in words: "wrong result", "regression (worse-code)", "no-baseline"."""
    where = f" on {result.gpu_id}" if isinstance(result, SpeedResult) and result.gpu_id else ""
    if result.verdict is Verdict.FAIL:
        if result.reason == Reason.NOT_COMPILED:
            return _FAILED["compile"]
        reasons = {"raised": f"{result.gate}: raised", "no-compiler": "no compiler"}
        # What the interpreter found has a name: "out-of-bounds", "race".
        fault = result.reason if isinstance(result, CorrectResult) and result.on else ""
        words = fault or _FAILED.get(result.gate, f"{result.gate} failed")
        return reasons.get(result.reason, words) + where
    if result.verdict is Verdict.REGRESSION and result.gate == "static":
        return f"{result.verdict} ({result.reason})"
    return f"{result.verdict}{where}"


def figures(result: Result | None) -> tuple[str, ...]:
    """Return time, rate, share of the limit and change as text, empty where there is none."""
    if not isinstance(result, SpeedResult) or result.median_us is None:
        return ("",) * len(FIGURES)
    return (
        format_time(result.median_us),
        f"{result.rate:.4g} {result.unit}" if result.rate is not None else "",
        format_share(result.share_of_limit) if result.share_of_limit is not None else "",
        format_change(result.change) if result.change is not None else "",
    )


def passed_with(result: Result) -> str:
    """Return what -v shows of a result that passed: "38.8 us, 3459 GB/s, 72 %, +0.3 %, pass"."""
    if isinstance(result, CorrectResult) and result.on:
        return "on the CPU, interpreted"
    return ", ".join([*shown, result.verdict]) if (shown := [*filter(None, figures(result))]) else ""


def not_measured(results: Iterable[Result]) -> list[tuple[str, str]]:
    """Return what was not measured: counts by gate ("3 correct, 3 speed") and the reason in words."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        if result.verdict == Verdict.NOT_MEASURED:
            counts[result.detail or result.reason][result.gate] += 1
    return [
        (", ".join(f"{count} {gate}" for gate, count in sorted(by_gate.items())), why)
        for why, by_gate in sorted(counts.items())
    ]


def interpreted_line(results: Iterable[Result]) -> str:
    """Say how many cases no GPU has run; "" if none."""
    count = sum(isinstance(result, CorrectResult) and bool(result.on) for result in results)
    return f"correct was checked by interpretation on the CPU: {counted(count, 'case')}" if count else ""
