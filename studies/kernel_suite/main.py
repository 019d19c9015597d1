"""The study: every case of TileGym's benchmarks by our kernel, TileGym's and PyTorch, each beside ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_cutile.reports.html.plots import Dot, ratio_plot
from pytest_cutile.words.quantities import format_ratio
from pytest_cutile.words.spec import Case
from pytest_cutile.words.timing import Regime
from studies.kernel_suite.contenders import OURS, TILEGYM, TORCH, own, peers_of
from studies.kernel_suite.tilegym_tables import BENCHMARKS, tables_text
from studies.running.files import drawing, origin
from studies.running.study import Record, Row, Study, TimedRow, Timing
from tools.gpu_runs.measure import geometric_mean
from tools.gpu_runs.suites import Suite, load_suite
from tools.gpu_runs.tables import markdown

if TYPE_CHECKING:
    from markupsafe import Markup

SUITES: Sequence[str] = tuple(BENCHMARKS)
PEERS = {TILEGYM: "TileGym", TORCH: "PyTorch"}
"""Whose ratios are summed up: of TileGym's variants the fastest in each case."""
LARGEST_ERROR = 0.1
"""Standard error up to which a ratio counts in means and plots."""
SHOWN_ERROR = 0.02
"""Standard error above which it stands beside the ratio."""


def rows(quick: bool) -> Sequence[Row]:
    return [
        row
        for name in SUITES
        for case in cases_of(load_suite(name), quick=quick)
        for row in _rows(name, case)
    ]


def cases_of(suite: Suite, *, quick: bool) -> Sequence[Case]:
    """Return the cases of TileGym's benchmark, or the one of median work without 8-bit floats."""
    cases = [case for case in suite.cases if case.name in suite.of_tilegym]
    if not quick:
        return cases

    def work(case: Case) -> tuple[float, float]:
        counted = suite.spec.work_of(case)
        return counted.flops, counted.bytes

    wide = [case for case in cases if not case.params["dtype"].startswith("float8")]
    return sorted(wide, key=work)[len(wide) // 2 :][:1]


def _rows(suite_name: str, case: Case) -> Iterator[Row]:
    suite = load_suite(suite_name)
    ours = own(suite)
    yield Row(case=case, contender=ours, spec=suite.spec)
    for peer in peers_of(suite, case):
        yield Row(case=case, contender=peer, beside=ours, spec=suite.spec)


def pages(record: Record) -> Mapping[str, str]:
    return {
        "kernel_suite.md": page(record),
        "kernel_suite.svg": drawing("TileGym's benchmarks", plots(record)),
        "tilegym_tables.txt": tables_text(record),
    }


# -- figures ----------------------------------------------------------------------------------------


def ratios(record: Record, kernel: str, peer: str, regime: Regime) -> dict[str, float]:
    """Return the time of a peer over ours by case, interleaved; of several variants that of the fastest.

    Ratios that scatter too much are left out.
    """
    by_case: dict[str, float] = {}
    for row in record.rows:
        timing = row.timing(regime)
        if row.kernel != kernel or not row.contender.startswith(peer) or timing is None:
            continue
        if timing.speedup and error_of(timing) <= LARGEST_ERROR:
            by_case[row.case] = min(1 / timing.speedup, by_case.get(row.case, float("inf")))
    return by_case


def error_of(timing: Timing) -> float:
    """Return the standard error of a ratio, as a share of it."""
    return timing.speedup_error or 0.0


def page(record: Record) -> str:
    parts = [
        "# TileGym's benchmarks",
        INTRODUCTION,
        origin(record),
        "## Geometric means of a peer's time over ours",
        markdown(
            ("kernel", *(f"{peer}, {regime}" for regime in Regime for peer in PEERS.values())),
            [*_means(record)],
        ),
        "![Time of each peer over ours, by kernel](kernel_suite.svg)",
    ]
    for kernel in SUITES:
        if lines := [*_lines(record, kernel)]:
            parts += [f"## {kernel}", markdown(HEADER, lines)]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """\
The cases of the benchmark scripts that TileGym's `run_all.sh` runs, and of its decoding test. A ratio is a
peer's time over that of `kernels/`, the two interleaved: above 1 ours is faster. Of several variants of
TileGym's kernel the means take the fastest one in each case; the number of cases is in brackets. A standard
error above 2 % stands beside its ratio; ratios with one above 10 % are left out of means and plots. Rates
follow from the work that each case counts. `tilegym_tables.txt` has the same times in the form of TileGym's
own output, by its counts of work."""
HEADER = ("case", "", "burst, us", "rate", "ratio", "sustained, us", "rate", "ratio")


def _means(record: Record) -> Iterator[tuple[str, ...]]:
    together: dict[tuple[Regime, str], list[float]] = defaultdict(list)
    for kernel in SUITES:
        cells = []
        for regime in Regime:
            for peer in PEERS:
                values = [*ratios(record, kernel, peer, regime).values()]
                together[regime, peer] += values
                cells.append(_mean(values))
        if any(cell != "-" for cell in cells):
            yield (kernel, *cells)
    yield ("all", *(_mean(values) for values in together.values()))


def _mean(values: Sequence[float]) -> str:
    return f"{geometric_mean(values):.3f} ({len(values)})" if values else "-"


def _lines(record: Record, kernel: str) -> Iterator[tuple[str, ...]]:
    for row in record.rows:
        if row.kernel == kernel:
            name = row.case if row.contender == OURS else ""
            yield name, row.contender, *(cell for regime in Regime for cell in _cells(row, regime))


def _cells(row: TimedRow, regime: Regime) -> tuple[str, str, str]:
    timing = row.timing(regime)
    if timing is None:
        return ("-", "-", "-")
    rate = timing.tflops if row.bound == "TFLOPS" else timing.gb_per_s
    ratio = f"{1 / timing.speedup:.3f}" if timing.speedup else ""
    if error_of(timing) > SHOWN_ERROR:
        ratio += f" ±{100 * error_of(timing):.0f} %"
    return f"{timing.us:.2f}", f"{rate:.4g} {row.bound}" if rate else "-", ratio


# -- plots ------------------------------------------------------------------------------------------


def plots(record: Record) -> dict[str, Markup]:
    return {f"{PEERS[peer]}, {regime}": plot(record, peer, regime) for regime in Regime for peer in PEERS}


def plot(record: Record, peer: str, regime: Regime) -> Markup:
    dots = {
        kernel: [
            Dot(x=ratio, y=0, title=f"{kernel}[{case}]: {format_ratio(ratio)}")
            for case, ratio in ratios(record, kernel, peer, regime).items()
        ]
        for kernel in SUITES
    }
    what = f"{PEERS[peer]}'s time over ours"
    known = {kernel: own for kernel, own in dots.items() if own}
    return ratio_plot(known, {"as fast": 1.0}, x_title=what, label=f"{what} by kernel, {regime}")


STUDY = Study(
    name="kernel_suite",
    summary="TileGym's benchmarks, all kernels and sizes, beside TileGym and PyTorch",
    rows=rows,
    pages=pages,
)
