"""What reports are built from: the results of a run, and one verdict for each case and architecture."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from pytest_cutile.words.document import Column, Tone
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.results import CorrectResult, Result
from pytest_cutile.words.verdicts import UNCHECKED_AFTER, UNDECIDED, Reason, Verdict

if TYPE_CHECKING:
    AnyResult: TypeAlias = Result
else:  # the union of all gates' results: msgspec reads the one that is tagged with the gate's name
    AnyResult = functools.reduce(operator.or_, Result.__subclasses__())


class FailedTest(msgspec.Struct, frozen=True, kw_only=True):
    """A failed test as a person reads it."""

    nodeid: str
    headline: str
    place: str
    """File and line of the user's test or declaration; empty where it is not known."""
    text: str
    command: str
    """Shell command that repeats the test."""
    results: Sequence[AnyResult]


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What is known when a run ends: every report format gets it."""

    results: Sequence[Result]
    failed: Sequence[Result] = ()
    """The results that failed their tests. A verdict alone does not say: a regression may be accepted, and
    `--perf-strict` fails what is undecided."""
    other_failures: int = 0
    """Failures that no result explains: a fixture, a module, a lost process."""
    left_out: Sequence[str] = ()
    """The case of each test that was left out because its code is the baseline's."""
    unfinished: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What the tests of each kernel took, in all processes together."""
    remarks: Sequence[str] = ()
    """Lines about baselines without a case, and about what the session did to all cases."""
    failed_tests: Sequence[FailedTest] = ()
    """The failed tests that have results, in the order of their failures."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions, commit and command line."""
    baselines: Path | None = None
    """Folder or file of the stored baselines; None where nothing stored was compared."""

    @functools.cached_property
    def _failed_cases(self) -> set[tuple[str, ...]]:
        return {result.case_id for result in self.failed}

    def has_failed(self, result: Result) -> bool:
        """Say whether a test of its gate and case failed, with whatever inputs."""
        return result.case_id in self._failed_cases


@dataclass(frozen=True, kw_only=True)
class CaseRow:
    """The results of all gates for one case on one architecture."""

    kernel: str
    name: str
    key: str
    """The case as baselines name it: "softmax[bf16-4096x8192]"."""
    arch: str
    gpu: str
    """The GPU's model, where results of several models of this architecture were collected; else empty."""
    results: Sequence[Result]
    """A result of each gate that ran: the worst one of each."""
    of_all_inputs: Sequence[Result]
    verdict: str
    """The verdict of the case in words: the worst of its gates'."""
    tone: Tone

    @property
    def platform(self) -> str:
        """The architecture, and the GPU's model where that tells rows apart."""
        return f"{self.arch} {self.gpu}".strip()

    @property
    def figures(self) -> dict[str, str]:
        """The figures of all gates, by title."""
        return {title: text for result in self.results for title, text in result.figures.items()}


def cases_of(results: Iterable[Result]) -> list[CaseRow]:
    """Return the cases, sorted. Of several results for the same gate and case the worst one counts.

    They are of several inputs, or of several workers. A result keeps the GPU's id only where verdicts differ.
    """
    results = list(results)
    gpus: dict[str, set[str]] = defaultdict(set)
    for result in results:
        gpus[result.arch].update({result.gpu} - {""})
    by_case: dict[tuple[str, ...], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        gpu = result.gpu if len(gpus[result.arch]) > 1 else ""
        name, key = result.of_case
        by_case[result.kernel, name, result.arch, gpu, key][result.gate].append(result)
    return [_row(names, by_gate) for names, by_gate in sorted(by_case.items(), key=itemgetter(0))]


def _row(names: tuple[str, ...], by_gate: Mapping[str, Sequence[Result]]) -> CaseRow:
    kernel, name, arch, gpu, key = names
    worst = sorted(map(_worst, by_gate.values()), key=gate_position)
    verdict, tone = _verdict(worst)
    return CaseRow(
        kernel=kernel,
        name=name,
        key=key,
        arch=arch,
        gpu=gpu,
        results=worst,
        of_all_inputs=[result for own in by_gate.values() for result in own],
        verdict=verdict,
        tone=tone,
    )


def _worst(results: Sequence[Result]) -> Result:
    def rank(result: Result) -> tuple[int, bool, bool, int]:
        has_own_name = result.of_case[0] == result.case
        return _badness(result), result.verdict in UNDECIDED, has_own_name, result.clarity

    worst = max(results, key=rank)
    agree = len({result.verdict for result in results}) == 1
    return msgspec.structs.replace(worst, gpu_id="") if agree else worst


def _badness(result: Result) -> int:
    return {Verdict.FAIL: 2, Verdict.REGRESSION: 1}.get(result.verdict, 0)


def _verdict(results: Sequence[Result]) -> tuple[str, Tone]:
    """Return the verdict on a case in words: of what failed, else of its speed, else of all gates."""
    worst = max(results, key=lambda result: (_badness(result), result.precedence))
    if _badness(worst):
        return verdict_of(worst), Tone.BAD
    measured = [result for result in results if result.verdict is not Verdict.NOT_MEASURED]
    alone = next((result for result in measured if result.stands_alone), None)
    if alone is not None:
        is_undecided = alone.verdict in UNDECIDED and not alone.is_recorded
        return verdict_of(alone), Tone.PLAIN if is_undecided else Tone.GOOD
    words = [result.words for result in measured]
    if len(measured) == len(results):
        return ", ".join(words), Tone.GOOD
    is_lost = any(result.reason is Reason.LOST for result in results)
    return ", ".join([*words, Verdict.NOT_MEASURED]), Tone.BAD if is_lost else Tone.PLAIN


def verdict_of(result: Result) -> str:
    """Return a result's verdict in words, and the GPU where results of several were collected."""
    return f"{result.words} on {result.gpu_id}" if result.gpu_id else result.words


def gate_position(result: Result) -> int:
    """Return where a gate's results are listed among those of other gates: as their types are declared."""
    return Result.__subclasses__().index(type(result))


def figure_cells(rows: Iterable[CaseRow | Result]) -> tuple[list[Column], list[list[str]]]:
    """Return a column for each title of the rows' figures, and their cells for each row."""
    figures = [row.figures for row in rows]
    titles = dict.fromkeys(title for own in figures for title in own)
    cells = [[own.get(title, "") for title in titles] for own in figures]
    return [Column(title, right=True) for title in titles], cells


def not_measured(results: Iterable[Result]) -> list[tuple[str, str]]:
    """Return what was not measured: counts by gate ("3 correct, 3 speed") and the reason in words."""
    cases: dict[str, dict[str, set[tuple[str, ...]]]] = defaultdict(lambda: defaultdict(set))
    for result in results:
        if result.verdict == Verdict.NOT_MEASURED:
            cases[result.detail or f"{result.reason}"][result.gate].add(result.case_id)
    return [
        (", ".join(f"{len(keys)} {gate}" for gate, keys in sorted(by_gate.items())), why)
        for why, by_gate in sorted(cases.items())
    ]


def interpreted_line(results: Iterable[Result]) -> str:
    """Return how many cases were checked and no GPU has run; "" if none."""
    checked = {
        result.case_id
        for result in results
        if isinstance(result, CorrectResult) and result.on and result.reason not in UNCHECKED_AFTER
    }
    count = counted(len(checked), "case")
    return f"correct was checked by interpretation on the CPU: {count}" if checked else ""
