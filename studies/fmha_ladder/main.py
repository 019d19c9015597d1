"""The study: every step timed beside the one that it was made from, and NVIDIA's figures for DGX Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_cutile import Case
from pytest_cutile.reports.html.plots import Dot, PlottedLine, lines_plot
from pytest_cutile.words.platforms.published import DOCUMENT
from pytest_cutile.words.timing import Regime
from research.published_figures import LADDER_GB10
from studies.fmha_ladder._declare import sequence
from studies.fmha_ladder.steps import STEPS, Step, step
from studies.running.files import drawing, origin, timing_cells
from studies.running.study import Record, Row, Study, Timing
from tools.gpu_runs.tables import markdown

if TYPE_CHECKING:
    from markupsafe import Markup

LENGTH, QUICK_LENGTH = 2048, 1024
PUBLISHED = dict(enumerate(LADDER_GB10, 1))
"""Figures by the number of the step."""
SPARK = "DGX Spark"


def rows(quick: bool) -> Sequence[Row]:
    case = case_of(quick)
    return [
        Row(case=case, contender=own.contender, beside=step(own.before).contender if own.before else None)
        for own in STEPS
    ]


def pages(record: Record) -> Mapping[str, str]:
    return {
        "fmha_ladder.md": page(record),
        "fmha_ladder.svg": drawing(
            "FMHA step by step",
            {"TFLOPS": plot(record, relative=False), "Times as fast as step 1": plot(record, relative=True)},
        ),
    }


# -- figures ----------------------------------------------------------------------------------------


HEADER = (
    *("step", "beside"),
    *("burst, ms", "TFLOPS", "gain"),
    *("sustained, ms", "TFLOPS", "gain"),
    *(f"{SPARK} at {LENGTH}, published, ms", "TFLOPS", "gain"),
)


def case_of(quick: bool) -> Case:
    return sequence(QUICK_LENGTH if quick else LENGTH)


def timing_of(record: Record, own: Step, regime: Regime) -> Timing | None:
    row = record.find(own.contender.name, case_of(record.quick).name)
    return row.timing(regime) if row else None


def page(record: Record) -> str:
    lines = [
        (
            own.contender.name,
            f"{own.before}" if own.before else "",
            *timing_cells(timing_of(record, own, Regime.BURST)),
            *timing_cells(timing_of(record, own, Regime.SUSTAINED)),
            *_published_cells(own),
        )
        for own in STEPS
    ]
    return f"""# FMHA step by step

Attention, {case_of(record.quick).name}. A gain is the time of the step named under `beside` over the
step's own, the two interleaved. README.md of this study explains the steps.

{origin(record)}

{markdown(HEADER, lines)}

{SPARK}: {DOCUMENT}, table of the performance results at {LENGTH}; gains follow from its TFLOPS.

![TFLOPS by step, and times as fast as step 1](fmha_ladder.svg)
{_not_relative(record)}"""


def _not_relative(record: Record) -> str:
    """Return a sentence about the regimes that have no line in the plot over step 1."""
    without = [name for name, rates in _rates(record).items() if rates and 1 not in rates]
    names = ", ".join(without)
    return f"\nStep 1 has no {names} time, so the second plot has no {names} line.\n" if without else ""


def _published_cells(own: Step) -> tuple[str, str, str]:
    figure = PUBLISHED.get(own.number)
    if figure is None:
        return ("-", "-", "-")
    gain = f"{figure.tflops / PUBLISHED[own.before].tflops:.3f}" if own.before else "-"
    return f"{figure.latency_ms}", f"{figure.tflops}", gain


# -- plots ------------------------------------------------------------------------------------------


def plot(record: Record, *, relative: bool) -> Markup:
    """Return TFLOPS by step, or with `relative` those of the first step as 1, beside the published ones."""
    lines = [
        # A regime without dots keeps its colour for the others.
        PlottedLine(name=name, dots=list(_dots(rates, relative=relative)))
        for name, rates in _rates(record).items()
        if relative or name != SPARK
    ]
    what = "times as fast as step 1" if relative else "TFLOPS"
    return lines_plot(lines, x_title="step", y_title=what, label=f"{what} by step", is_log=False)


def _rates(record: Record) -> dict[str, dict[int, float]]:
    measured = {
        regime.value: {
            own.number: timing.tflops
            for own in STEPS
            if (timing := timing_of(record, own, regime)) is not None and timing.tflops
        }
        for regime in Regime
    }
    return measured | {SPARK: {number: figure.tflops for number, figure in PUBLISHED.items()}}


def _dots(rates: Mapping[int, float], *, relative: bool) -> Iterator[Dot]:
    for number, rate in rates.items() if 1 in rates or not relative else ():
        y = rate / rates[1] if relative else rate
        yield Dot(x=number, y=y, title=f"{step(number).contender.name}: {y:.4g}")


STUDY = Study(
    name="fmha_ladder",
    summary="attention from the plain algorithm to kernels.fmha, one idea a step, beside NVIDIA's ladder",
    spec=STEPS[0].spec,
    rows=rows,
    pages=pages,
)
