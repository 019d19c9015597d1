"""The page: one file of HTML with everything in it, made from a `Report` by a template of Jinja2."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from pytest_cutile.platforms.occupancy import Occupancy
from pytest_cutile.quantities import counted, format_change, format_share, format_time
from pytest_cutile.reports.document import Tone, printable
from pytest_cutile.reports.history import step_text
from pytest_cutile.reports.html.plots import (
    Dot,
    PlottedLine,
    finite,
    histogram,
    history_plot,
    lines_plot,
    roofline,
)
from pytest_cutile.reports.report import Figures, Report, ReportedCase, identifier
from pytest_cutile.results import CorrectResult, SpeedResult, StaticResult
from pytest_cutile.static.facts import CaseFacts, LaunchFacts
from pytest_cutile.static.rules import occupancy_of
from pytest_cutile.verdicts import UNDECIDED, Verdict

PAGE_BYTES = 1_900_000
"""Size up to which cases are shown in detail, failures and changes first; each has its row in the table."""
_RUNGS = 3
"""Sizes from which cases are a ladder."""


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """A kernel's plots and the details of its cases."""

    name: str
    id: str
    plots: Sequence[tuple[str, Markup]]
    gpus: Sequence[str]
    """GPUs with figures; two or more stand side by side."""
    side_by_side: Sequence[tuple[str, Sequence[Figures | None]]]
    details: Sequence[Markup]


def render_html(report: Report) -> str:
    """Return the page; where it would be too long, details of cases are left out, and the page says so."""
    environment = _environment()
    groups: dict[str, dict[str, list[ReportedCase]]] = defaultdict(lambda: defaultdict(list))
    for case in report.cases:
        groups[case.kernel][case.key].append(case)
    anchors = {key: f"d-{cases[0].id}" for own in groups.values() for key, cases in own.items()}
    kernels = {kernel: _plots(kernel, cases, report) for kernel, cases in groups.items()}
    known = {
        "report": report,
        "failures": _failures(report),
        "verdicts": _verdicts(report),
        "choices": _choices(report),
        "title": _title(report),
        "style": Markup(_text("page.css")),  # noqa: S704 - ours
        "script": Markup(_text("page.js")),  # noqa: S704 - ours
    }
    page = environment.get_template("page.html.jinja")
    without = page.render(**known, anchors=anchors, kernels=kernels.values(), left_out=1)
    details = _details(groups, anchors, report, environment, room=PAGE_BYTES - len(without.encode()))
    shown = [
        replace(kernels[name], details=[details[key] for key in own if key in details])
        for name, own in groups.items()
    ]
    anchors = {key: anchor for key, anchor in anchors.items() if key in details}
    left_out = sum(map(len, groups.values())) - len(details)
    return page.render(**known, anchors=anchors, kernels=shown, left_out=left_out)


def _details(
    groups: Mapping[str, Mapping[str, Sequence[ReportedCase]]],
    anchors: Mapping[str, str],
    report: Report,
    environment: jinja2.Environment,
    *,
    room: int,
) -> dict[str, Markup]:
    """Return the details of cases by key, the most urgent ones first, as many as fit into `room` bytes."""
    template = environment.get_template("case.html.jinja")
    order = sorted(
        ((key, cases) for own in groups.values() for key, cases in own.items()),
        key=lambda item: min(map(_urgency, item[1])),
    )
    details: dict[str, Markup] = {}
    for key, cases in order:
        is_open = min(map(_urgency, cases)) == 0
        shown = _detail(cases, report)
        text = template.render(cases=cases, key=key, anchor=anchors[key], is_open=is_open, shown=shown)
        room -= len(text.encode())
        if room < 0:
            break
        details[key] = Markup(text)  # noqa: S704 - the template has escaped it
    return details


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # What is no text in a page: characters that control a terminal, or turn the direction of text.
        finalize=lambda value: value if isinstance(value, Markup) else _clean(value),
    )
    environment.filters |= {
        "time": _time,
        "number": lambda value: f"{value:.6g}" if finite([value]) else "",
        "change": lambda value: format_change(value) if finite([value]) else "",
        "share": lambda value: format_share(value) if finite([value]) else "",
        "rate": lambda figures: f"{figures.rate:.4g} {figures.unit}" if finite([figures.rate]) else "",
        "data_url": lambda svg: "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(),
        "counted": counted,
    }
    return environment


def _clean(value: Any) -> Any:
    return "\n".join(map(printable, value.split("\n"))) if isinstance(value, str) else value


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _time(us: float | None) -> str:
    return format_time(us) if us is not None and finite([us]) else ""


# -- overview -----------------------------------------------------------------------------------------


def _title(report: Report) -> str:
    if report.of == "baselines":
        kernels = len({case.kernel for case in report.cases})
        return f"{counted(len(report.cases), 'stored case')} of {counted(kernels, 'kernel')}"
    if not report.cases:
        return "no case was run"
    failed = sum(case.failed for case in report.cases)
    return f"{failed or 'none'} of {counted(len(report.cases), 'case')} failed"


def _failures(report: Report) -> list[tuple[Any, list[ReportedCase], list[str]]]:
    """Return the failed tests with their cases and pictures."""
    by_result = {
        (result.gate, result.key, result.arch): case for case in report.cases for result in case.results
    }
    failures = []
    for story in report.failures:
        found = {(result.gate, result.key, result.arch) for result in story.results}
        cases = {by_result[each].id: by_result[each] for each in sorted(found) if each in by_result}
        pictures = [one.picture for one in story.results if isinstance(one, CorrectResult) and one.picture]
        failures.append((story, list(cases.values()), pictures))
    return failures


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


# -- one kernel ---------------------------------------------------------------------------------------


def _plots(name: str, by_key: Mapping[str, Sequence[ReportedCase]], report: Report) -> _Kernel:
    figures = _figures_by_gpu(by_key, report)
    cases = [case for own in by_key.values() for case in own]
    plots = [*_rooflines(cases, figures, report), *_ladders(cases, figures)]
    gpus = sorted(figures)
    keys = [key for key in by_key if sum(key in figures[gpu] for gpu in gpus) > 1]
    side_by_side = [(by_key[key][0].name, [figures[gpu].get(key) for gpu in gpus]) for key in keys]
    return _Kernel(
        name=name,
        id=identifier("kernel", name),
        plots=plots,
        gpus=gpus,
        side_by_side=side_by_side,
        details=(),
    )


def _figures_by_gpu(
    by_key: Mapping[str, Sequence[ReportedCase]], report: Report
) -> dict[str, dict[str, Figures]]:
    """Return the figures of cases by GPU and key: measured ones before stored ones."""
    figures: dict[str, dict[str, Figures]] = defaultdict(dict)
    for key, cases in by_key.items():
        for one in report.history.get(key, ()):
            if one.figures is not None:
                figures[one.gpu][key] = one.figures
        for case in cases:
            if case.figures is not None and case.figures.origin == "measured":
                figures[case.gpu][key] = case.figures
    return figures


def _rooflines(
    cases: Sequence[ReportedCase], figures: Mapping[str, Mapping[str, Figures]], report: Report
) -> Iterator[tuple[str, Markup]]:
    ids = {(case.gpu, case.key): case.id for case in reversed(cases)}
    ids |= {("", case.key): case.id for case in reversed(cases)}
    names = {case.key: case.name for case in cases}
    for gpu, by_key in sorted(figures.items()):
        platform = report.platforms.get(gpu)
        if platform is None:
            continue
        dots: dict[str, list[Dot]] = defaultdict(list)
        for key, one in by_key.items():
            tflops = one.in_unit("TFLOPS")
            if one.intensity and tflops and finite([tflops]) and one.dtype in platform.dense_tflops:
                share = format_share(one.share_of_limit) if one.share_of_limit else ""
                title = f"{names[key]}: {tflops:.4g} TFLOPS, {share} of the limit ({one.origin})"
                target = f"#{ids.get((gpu, key)) or ids['', key]}"
                dots[one.dtype].append(Dot(x=one.intensity, y=tflops, title=title, href=target))
        if dots:
            peaks = {_short(dtype): platform.dense_tflops[dtype] for dtype in dots}
            limits = ", ".join(f"{peak:g} TFLOPS of {dtype}" for dtype, peak in peaks.items())
            gb_per_s = platform.memory_bandwidth_gb_s
            short = {_short(dtype): own for dtype, own in dots.items()}
            count = counted(sum(map(len, dots.values())), "case")
            label = f"Roofline of {gpu}: {count}; limits {limits}, {gb_per_s:g} GB/s"
            yield f"Roofline, {gpu}", roofline(short, gb_per_s=gb_per_s, peaks=peaks, label=label)


def _short(dtype: str) -> str:
    """Return a dtype as names of cases have it: "bf16", "tf32", "e4m3fn"."""
    return dtype.replace("float8_", "").replace("bfloat", "bf").replace("tfloat", "tf").replace("float", "fp")


def _ladders(
    cases: Sequence[ReportedCase], figures: Mapping[str, Mapping[str, Figures]]
) -> Iterator[tuple[str, Markup]]:
    """Yield throughput over size, where names of cases differ by one number alone."""
    ladders: dict[str, dict[int, ReportedCase]] = defaultdict(dict)
    for case in cases:
        for number in re.finditer(r"(?:(?<![A-Za-z0-9])|(?<=x))\d{1,12}(?!\d)", case.name):
            pattern = f"{case.name[: number.start()]}N{case.name[number.end() :]}"
            ladders[pattern][int(number[0])] = case
    for pattern, sizes in ladders.items():
        rungs = {size: case for size, case in sorted(sizes.items()) if size}
        counted_work = {
            bool(own[case.key].flops)
            for own in figures.values()
            for case in rungs.values()
            if case.key in own
        }
        unit = "TFLOPS" if counted_work == {True} else "GB/s"
        lines = []
        for gpu, own in sorted(figures.items()):
            rates = [
                (size, case, own[case.key].in_unit(unit)) for size, case in rungs.items() if case.key in own
            ]
            dots = [
                Dot(
                    x=size,
                    y=rate or 0.0,
                    title=f"{case.name}: {rate:.4g} {unit} ({own[case.key].origin})",
                    href=f"#{case.id}",
                )
                for size, case, rate in rates
                if finite([rate])
            ]
            if len(dots) >= _RUNGS:
                lines.append(PlottedLine(name=gpu.removeprefix("NVIDIA "), dots=dots))
        if lines:
            label = f"{unit} over N for {pattern} on {', '.join(line.name for line in lines)}"
            plot = lines_plot(lines, x_title="N", y_title=unit, label=label)
            yield f"{pattern}: throughput over N", plot


# -- one case -----------------------------------------------------------------------------------------


def _detail(cases: Sequence[ReportedCase], report: Report) -> dict[str, Any]:
    """Return what the details of a case show: plots and tables, over its architectures and GPUs."""
    plots: list[tuple[str, Markup]] = []
    steps: list[str] = []
    measured: dict[str, float] = {}
    for case in cases:
        for result in case.results:
            if not isinstance(result, SpeedResult) or result.measured is None:
                continue
            measured[case.gpu] = result.us_per_launch or 0.0
            for regime in dict.fromkeys(block.regime for block in result.measured.blocks):
                blocks = [block for block in result.measured.blocks if block.regime == regime]
                current = [us for block in blocks for us in block.current_us]
                baseline = [us for block in blocks for us in block.baseline_us]
                paired = ", beside the baseline kernel" if baseline else ""
                plots.append((f"Samples, {regime}{paired}, {case.gpu}", histogram(current, baseline)))
    for one in report.history.get(cases[0].key, ()):
        plots.append((f"History, {one.gpu}", history_plot(one.points, measured.get(one.gpu))))
        steps += [f"{one.gpu}: {step_text(point)}" for point in one.points if point.is_step]
    return {
        "measured": [text for case in cases if (text := _measured(case))],
        "changes": dict.fromkeys(
            f"{case.arch}: {change}"
            for case in cases
            for result in case.results
            if isinstance(result, StaticResult)
            for change in result.changes
        ),
        "plots": [(title, plot) for title, plot in plots if plot],
        "steps": steps,
        "published": [one for one in report.history.get(cases[0].key, ()) if one.published_us is not None],
        "compiled": [*_compiled(cases)],
        "sites": _sites(cases),
        "pictures": [
            one.picture
            for case in cases
            for one in case.results
            if isinstance(one, CorrectResult) and one.picture
        ],
    }


def _measured(case: ReportedCase) -> str:
    """Return the figures of a case, and what is known of the GPU meanwhile."""
    figures = case.figures
    if figures is None or not finite([figures.us_per_launch]):
        return ""
    result = next((one for one in case.results if isinstance(one, SpeedResult) and one.measured), None)
    measured = result.measured if result is not None else None
    parts = [f"{case.gpu or case.arch}, {figures.origin}: {format_time(figures.us_per_launch)}"]
    if finite([figures.sustained_us_per_launch]):
        parts.append(f"sustained {_time(figures.sustained_us_per_launch)}")
    if finite([figures.rate]):
        parts.append(f"{figures.rate:.4g} {figures.unit}")
    if finite([figures.share_of_limit]):
        parts.append(f"{format_share(figures.share_of_limit or 0.0)} of the limit")
    if measured is not None:
        quantities = (
            (measured.clock_mhz, "MHz"),
            (measured.sustained_clock_mhz, "MHz sustained"),
            (measured.sustained_watts, "W sustained"),
        )
        parts += [
            f"{value:.0f} {unit}" for value, unit in quantities if value is not None and finite([value])
        ]
        if measured.sustained_skipped:
            parts.append(f"not sustained: {measured.sustained_skipped}")
        parts += measured.problems
    return "; ".join(parts)


def _compiled(cases: Iterable[ReportedCase]) -> Iterator[list[str]]:
    """Yield a row for each launch: current facts, and the baseline's where they differ ("128 (was 96)")."""
    for arch, (current, baseline) in _facts(cases).items():
        before = {} if baseline is None else {launch.kernel: launch for launch in baseline.launches}
        shown = current or baseline
        for launch in shown.launches if shown is not None else ():
            cells = _cells(launch, arch)
            known = _cells(before[launch.kernel], arch) if launch.kernel in before else cells
            yield [
                arch if current is not None else f"{arch}, stored",
                launch.kernel,
                *(
                    cell if cell == old else f"{cell} (was {old})"
                    for cell, old in zip(cells, known, strict=True)
                ),
            ]


def _facts(cases: Iterable[ReportedCase]) -> dict[str, tuple[CaseFacts | None, CaseFacts | None]]:
    """Return what was compiled and what is stored, by architecture."""
    facts: dict[str, tuple[CaseFacts | None, CaseFacts | None]] = {}
    for case in cases:
        compiled = next(
            (one.facts for one in case.results if isinstance(one, StaticResult) and one.facts), None
        )
        current = None if compiled is None else msgspec.convert(compiled, CaseFacts)
        baseline = None if case.baseline is None else case.baseline.facts
        if current is not None or case.arch not in facts:
            facts[case.arch] = current, baseline
    return facts


def _cells(launch: LaunchFacts, arch: str) -> list[str]:
    fits: Occupancy | None = occupancy_of(launch, arch)
    spills, shared, registers = launch.stack_bytes, launch.shared_bytes, launch.registers
    counts = (launch.count(one) for one in ("tensor_core", "tma_load", "tma_store"))
    return [
        "?" if registers is None else f"{registers}",
        "?" if spills is None else f"{spills} B",
        "?" if shared is None else f"{shared / 1024:.1f} KiB",
        "?" if fits is None else f"{fits.blocks}",
        *("?" if count is None else f"{count}" for count in counts),
    ]


def _sites(cases: Iterable[ReportedCase]) -> list[tuple[str, str, str]]:
    """Return lines of source with what became of them: place, source, and outcome by architecture."""
    lines: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for arch, (current, baseline) in _facts(cases).items():
        facts = current or baseline
        for launch in facts.launches if facts is not None else ():
            for site in launch.sites or ():
                outcome = f"{site.operation}: {'; '.join([site.outcome, *site.missed])}"
                lines[site.place, site.text][outcome].append(arch)
            for note in launch.notes:
                lines[note.place, ""][note.text].append(arch)
            for spill in launch.spill_lines:
                lines[spill.place, ""][f"{spill.instructions} local loads and stores near here"].append(arch)
    archs = len(_facts(cases))
    return [
        (place, text, f"{outcome} ({', '.join(own)})" if len(own) < archs else outcome)
        for (place, text), outcomes in sorted(lines.items())
        for outcome, own in outcomes.items()
    ]
