"""The page: one file of HTML with everything in it, made from a `Report` by a template of Jinja2."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pytest_cutile.reports.cases import FailedTest
from pytest_cutile.reports.html.case import details as case_details
from pytest_cutile.reports.html.case import error_maps
from pytest_cutile.reports.html.kernel import shown_kernel
from pytest_cutile.reports.html.templates import pages, text_of
from pytest_cutile.reports.report import Report, ReportedCase, identifier
from pytest_cutile.words.document import Tone
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.verdicts import UNDECIDED, Verdict

if TYPE_CHECKING:
    import jinja2

PAGE_BYTES = 1_900_000
"""Size up to which cases are shown in detail, failures and changes first; each has its row in the table."""
PLOTS_URGENCY = 1.5
"""Urgency of a kernel's plots, on the scale of `_urgency`: behind details of what failed or changed."""
FAILURES_BYTES = 600_000
"""Size up to which failures are shown; each has its row in the table."""


def render_html(report: Report) -> str:
    """Return the page; where it would be too large, details and plots are left out, and the page says so."""
    environment = pages()
    groups: dict[str, dict[str, list[ReportedCase]]] = defaultdict(lambda: defaultdict(list))
    for case in report.cases:
        groups[case.kernel][case.key].append(case)
    failures, untold = _failures(report)
    page = partial(
        environment.get_template("page.html.jinja").render,
        report=report,
        failures=failures,
        untold=untold,
        verdicts=_verdicts(report),
        choices=_choices(report),
        title=_title(report),
        script=Markup(text_of("page.js")),  # noqa: S704 - ours
    )

    def kernels(shown: Mapping[str, Markup]) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "id": _kernel_id(name),
                "head": shown.get(_kernel_id(name), ""),
                "details": [shown[_case_id(key)] for key in own if _case_id(key) in shown],
            }
            for name, own in groups.items()
        ]

    anchors = {case.key: _case_id(case.key) for case in report.cases}
    room = PAGE_BYTES - len(page(anchors=anchors, kernels=kernels({}), left_out="some").encode())
    shown: dict[str, Markup] = {}
    for _, part_id, text in sorted(_parts(groups, report, environment), key=itemgetter(0)):
        if (size := len(text.encode())) <= room:
            room -= size
            shown[part_id] = Markup(text)  # noqa: S704 - a template has escaped it
    detailed = {key: anchor for key, anchor in anchors.items() if anchor in shown}
    left_out = []
    if missing := len(anchors) - len(detailed):
        left_out.append(f"{counted(missing, 'case')} without details")
    if missing := sum(_kernel_id(name) not in shown for name in groups):
        left_out.append(f"{counted(missing, 'kernel')} without plots")
    filled = [kernel for kernel in kernels(shown) if kernel["head"] or kernel["details"]]
    return page(anchors=detailed, kernels=filled, left_out=" and ".join(left_out))


def _case_id(key: str) -> str:
    """Return the address of a case's details: the same in each report."""
    return f"d-{identifier(key)}"


def _kernel_id(name: str) -> str:
    return identifier("kernel", name)


def _parts(
    groups: Mapping[str, Mapping[str, Sequence[ReportedCase]]],
    report: Report,
    environment: jinja2.Environment,
) -> Iterator[tuple[float, str, str]]:
    """Yield what is left out where there is no room, with its urgency and id: details, and kernels' plots."""
    of_case = environment.get_template("case.html.jinja")
    of_kernel = environment.get_template("kernel.html.jinja")
    for kernel, own in groups.items():
        plots = of_kernel.render(name=kernel, kernel=shown_kernel(own, report))
        yield PLOTS_URGENCY, _kernel_id(kernel), plots
        for key, cases in own.items():
            urgency, anchor = min(map(_urgency, cases)), _case_id(key)
            shown = case_details(cases, report)
            text = of_case.render(cases=cases, key=key, anchor=anchor, is_open=urgency == 0, shown=shown)
            yield urgency, anchor, text


# -- overview -----------------------------------------------------------------------------------------


def _title(report: Report) -> str:
    if report.of == "baselines":
        kernels = len({case.kernel for case in report.cases})
        return f"{counted(len(report.cases), 'stored case')} of {counted(kernels, 'kernel')}"
    if not report.cases:
        return "no case was run"
    failed = sum(case.failed for case in report.cases)
    return f"{failed or 'none'} of {counted(len(report.cases), 'case')} failed"


@dataclass(frozen=True, kw_only=True)
class ShownFailure:
    """Failed tests of one root cause: the one that tells most, and the cases of all."""

    test: FailedTest
    cases: Sequence[ReportedCase]
    """Cases of the test."""
    others: Sequence[ReportedCase]
    """Other failed cases of the kernel, of one root cause as far as the gate can tell."""
    errors: Sequence[tuple[str, Markup, str]]


def _failures(report: Report) -> tuple[list[ShownFailure], int]:
    """Return the failures, each root cause once, as many as fit; and how many do not."""
    by_result = {
        (result.gate, result.key, result.arch): case for case in report.cases for result in case.results
    }
    causes: dict[tuple[str, ...], list[FailedTest]] = defaultdict(list)
    for test in report.failures:
        causes[test.results[0].cause if test.results else (test.nodeid,)].append(test)

    def cases_of(failed_tests: Iterable[FailedTest]) -> dict[str, ReportedCase]:
        names = {(one.gate, one.key, one.arch) for test in failed_tests for one in test.results}
        return {case.id: case for name in sorted(names) if (case := by_result.get(name)) is not None}

    failures: list[ShownFailure] = []
    room = FAILURES_BYTES
    for alike in causes.values():
        test = max(alike, key=lambda test: max((one.rank for one in test.results), default=()))
        own, every = cases_of([test]), cases_of(alike)
        errors = [*error_maps(test.results)]
        room -= len(test.text.encode(errors="replace")) + sum(len(plot) for _, plot, _ in errors)
        if room < 0:
            break
        others = [case for name, case in every.items() if name not in own]
        failures.append(ShownFailure(test=test, cases=[*own.values()], others=others, errors=errors))
    return failures, len(causes) - len(failures)


def _verdicts(report: Report) -> list[tuple[str, str, list[tuple[str, int, str]]]]:
    """Return a row for each gate and architecture: verdicts with their counts and tones."""
    return [
        (gate, arch, [(verdict, count, _tone(verdict)) for verdict, count in sorted(counts.items())])
        for gate, by_arch in report.verdicts.items()
        for arch, counts in sorted(by_arch.items())
    ]


def _tone(verdict: str) -> Tone:
    if verdict in (Verdict.FAIL, Verdict.REGRESSION):
        return Tone.BAD
    return Tone.PLAIN if verdict in UNDECIDED else Tone.GOOD


def _choices(report: Report) -> dict[str, list[str]]:
    """Return what the table can be filtered by."""
    return {
        field: values
        for field in ("kernel", "dtype", "arch", "verdict")
        if len(values := sorted({getattr(case, field) for case in report.cases} - {""})) > 1
    }


def _urgency(case: ReportedCase) -> int:
    """Return 0 of what failed, 1 of what changed or is undecided, 2 of what has figures, else 3."""
    if case.failed or case.tone is Tone.BAD:
        return 0
    verdicts = {result.verdict for result in case.results} - {Verdict.NOT_MEASURED}
    if verdicts & (UNDECIDED | {Verdict.IMPROVEMENT, Verdict.REGRESSION}):
        return 1
    return 2 if case.figures is not None else 3
