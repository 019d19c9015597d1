"""How kernels should be timed that power limits: estimators on what an H200 measured. Needs no GPU.

    python -m research.speed_regimes

`data/h200-2026-11-25-regimes.json` holds thirteen kernels of `kernels/`, twice each, that ran launch after
launch for some 4 s, and attention with a planted slowdown in every other segment. Where a kernel is compared
with itself, labels are free: every design of segments can be tried on the same series, from every start.
Printed: the tables of `reports/speed-regimes.md`.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pytest_cutile.words.statistics import trimmed_mean

DATA = Path(__file__).parent / "data" / "h200-2026-11-25-regimes.json"
STEP_SECONDS = 0.04
"""Between the starts that a design is tried from."""
SETTLE = 0.2


@dataclass(frozen=True)
class Series:
    """Successive replays of one kernel."""

    case: str
    ends: list[float]
    """Seconds from the beginning of the load to the end of each replay."""
    us: list[float]

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Series:
        """Read a series from the data."""
        ends = list(itertools.accumulate(us * plain["launches"] * 1e-6 for us in plain["us"]))
        return cls(plain["case"], ends, plain["us"])

    def within(self, begin: float, end: float) -> list[float]:
        """Return the replays that lie between two times, at least one."""
        first, last = bisect.bisect_left(self.ends, begin - 1e-9), bisect.bisect_right(self.ends, end + 1e-9)
        return self.us[first + 1 : last] or self.us[first : last + 1]


Design: TypeAlias = Callable[[Series, float], float]
"""The log ratio of two lanes of a series, from a start in seconds."""


# -- designs ------------------------------------------------------------------------------------------


def alternating(length: float, order: str, dropped: float) -> Design:
    """Segments in this order, without a share of each one's beginning; each segment is a sample."""

    def design(series: Series, start: float) -> float:
        logs: dict[str, list[float]] = defaultdict(list)
        for index, lane in enumerate(order):
            begin = start + index * length
            mean = statistics.fmean(series.within(begin + dropped * length, begin + length))
            logs[lane].append(math.log(mean))
        return statistics.fmean(logs["A"]) - statistics.fmean(logs["B"])

    return design


def joined(length: float, order: str) -> Design:
    """Segments in this order; what follows a change of the lane is dropped for `SETTLE` seconds."""

    def design(series: Series, start: float) -> float:
        times: dict[str, list[float]] = defaultdict(list)
        at = start
        for lane, run in itertools.groupby(order):
            end = at + length * len(list(run))
            times[lane] += series.within(at + SETTLE, end)
            at = end
        return math.log(statistics.fmean(times["A"]) / statistics.fmean(times["B"]))

    return design


def whole_periods(length: float, order: str) -> Design:
    """Segments that settle for `SETTLE` seconds and then count for `length` seconds each."""

    def design(series: Series, start: float) -> float:
        logs: dict[str, list[float]] = defaultdict(list)
        for index, lane in enumerate(order):
            begin = start + index * (length + SETTLE)
            logs[lane].append(math.log(statistics.fmean(series.within(begin, begin + length))))
        return statistics.fmean(logs["A"]) - statistics.fmean(logs["B"])

    return design


def scatter(
    series: list[Series], design: Design, seconds: float, starts: list[float]
) -> tuple[float, float, float]:
    """Return the root mean square over kernels, the worst kernel's, and the mean, in percent."""
    by_case: dict[str, list[float]] = defaultdict(list)
    for one in series:
        by_case[one.case] += [
            100 * design(one, start) for start in starts if start + seconds <= one.ends[-1] + 1e-6
        ]
    every = {case: values for case, values in by_case.items() if values}
    squares = [statistics.fmean(value**2 for value in values) for values in every.values()]
    mean = statistics.fmean(value for values in every.values() for value in values)
    return math.sqrt(statistics.fmean(squares)), math.sqrt(max(squares)), mean


# -- tables -------------------------------------------------------------------------------------------


def swings(series: list[Series]) -> Iterator[str]:
    """How much each kernel's time swings, and with which period."""
    yield f"{'kernel':62s} {'sd':>5s} {'range':>6s} {'period':>7s}"
    for one in series[: len(series) // 2]:
        begins = [0.8 + 0.02 * index for index in range(int((one.ends[-1] - 0.84) / 0.02))]
        grid = [statistics.fmean(one.within(begin, begin + 0.02)) for begin in begins]
        mean = statistics.fmean(grid)
        values = [value / mean - 1 for value in grid]
        power = statistics.fmean(value**2 for value in values)
        lags = range(1, min(120, len(values) // 2))
        correlation = [
            statistics.fmean(a * b for a, b in zip(values, values[lag:], strict=False)) / power
            for lag in lags
        ]
        dip = next(i for i in range(len(correlation) - 1) if correlation[i] < correlation[i + 1])
        period = max(range(dip, min(dip + 60, len(correlation))), key=correlation.__getitem__)
        width = 100 * (max(values) - min(values))
        yield f"{one.case:62s} {100 * math.sqrt(power):4.1f}% {width:5.1f}% {0.02 * (period + 1):5.2f} s"


def designs(series: list[Series]) -> Iterator[str]:
    """How much a ratio of a kernel to itself scatters, by design, from all starts after 0.6 s."""
    starts = [0.6 + STEP_SECONDS * i for i in range(60)]
    rows: list[tuple[str, Design, float]] = [
        *((f"ABBA x {n}, {s} s, 40 % dropped", alternating(s, "ABBA" * n, 0.4), 4 * n * s) for s, n in
          ((0.05, 8), (0.1, 4), (0.17, 3), (0.2, 4), (0.4, 1), (0.4, 2))),
        ("ABBA x 2, 0.4 s, 20 % dropped", alternating(0.4, "ABBAABBA", 0.2), 3.2),
        *((f"ABBA x {n}, {s} s, 0.2 s dropped after a change", joined(s, "ABBA" * n), 4 * n * s) for s, n in
          ((0.4, 1), (0.4, 2), (0.53, 1), (0.65, 1), (0.8, 1))),
        *((f"{o}, {s} s each after 0.2 s", whole_periods(s, o), len(o) * s + (len(o) - 1) * SETTLE)
          for o in ("ABA", "AB") for s in (0.485, 0.9, 0.97, 1.0, 1.1)),
    ]  # fmt: skip
    yield f"{'design':48s} {'seconds':>7s} {'rms':>6s} {'worst':>6s}"
    for name, design, seconds in rows:
        rms, worst, _ = scatter(series, design, seconds, starts)
        yield f"{name:48s} {seconds:7.2f} {rms:5.2f}% {worst:5.2f}%"


def starts(series: list[Series]) -> Iterator[str]:
    """The same by the time from the beginning of the load to the first segment: root mean square (mean)."""
    rows = [
        ("ABBA x 2, 0.4 s, 40 % dropped", alternating(0.4, "ABBAABBA", 0.4), 3.2),
        ("ABBA, 0.53 s, 0.2 s dropped after a change", joined(0.53, "ABBA"), 2.12),
        ("ABA, 1.0 s each after 0.2 s", whole_periods(1.0, "ABA"), 3.4),
        ("AB, 1.0 s each after 0.2 s", whole_periods(1.0, "AB"), 2.2),
    ]
    after = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    yield f"{'design':44s}" + "".join(f"{f'{start} s':>15s}" for start in after)
    for name, design, seconds in rows:
        cells = [scatter(series, design, seconds, [start]) for start in after]
        yield f"{name:44s}" + "".join(f"{rms:6.2f}% ({mean:+.2f})" for rms, _, mean in cells)


def changes(plain: list[dict[str, Any]]) -> Iterator[str]:
    """The planted slowdown by the part of a segment that counts, after a change of the kernel."""
    windows = ((0.02, 0.06), (0.04, 0.1), (0.08, 0.2), (0.12, 0.24), (0.16, 0.4), (0.2, 0.8))
    yield f"{'kernel':34s} {'burst':>6s}" + "".join(f"{f'{a}-{b} s':>14s}" for a, b in windows)
    for one in plain:
        burst = 100 * trimmed_mean([math.log(b / a) for a, b in one["burst"]])
        cells = [_after_changes(one, *window) for window in windows]
        shown = "".join(f"{value:+6.1f} +-{error:4.1f}" for value, error in cells)
        yield f"{one['case']:34s} {burst:+5.1f}%{shown}"


def _after_changes(one: dict[str, Any], begin: float, end: float) -> tuple[float, float]:
    """Return how much slower lane B is in a window after a change of the lane, and the standard error."""
    logs: dict[str, list[float]] = {"A": [], "B": []}
    times = one["us"][one["lead"] :]
    at = 0
    for index, (lane, run) in enumerate(itertools.groupby(one["order"])):
        length = one["replays"] * len(list(run))
        part = Series.of({**one, "us": times[at : at + length]})
        at += length
        if index:  # the first run follows the lead of the same lane
            logs[lane].append(math.log(statistics.fmean(part.within(begin, end))))
    means = {lane: statistics.fmean(values) for lane, values in logs.items()}
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in logs.values()))
    return 100 * (means["B"] - means["A"]), 100 * error


def probes(plain: list[dict[str, Any]]) -> Iterator[str]:
    """Which kernels a probe of 0.1 s calls limited by power, and what 1.6 s then show."""
    groups = defaultdict(list)
    for one in plain:
        groups["limited" if one["probe"][1]["limited"] > 0.1 else "not limited"].append(one)
    heads = f"{'share at limit':>15s} {'later at limit':>15s} {'sustained/burst':>16s}"
    yield f"{'second probe':12s} {'cases':>6s} {heads}"
    for name, ones in groups.items():
        shares = [one["probe"][1]["limited"] for one in ones]
        later = sum(max(segment["limited"] for segment in one["segments"]) > 0.1 for one in ones)
        ratios = [
            statistics.fmean(s["us"] for s in one["segments"]) / statistics.fmean(b[0] for b in one["burst"])
            - 1
            for one in ones
        ]
        yield (
            f"{name:12s} {len(ones):6d} {min(shares):7.2f} to {max(shares):.2f} {later:10d} "
            f"{100 * min(ratios):+13.0f} to {100 * max(ratios):+.0f}%"
        )


def bursts(plain: list[dict[str, Any]]) -> Iterator[str]:
    """How much the ratio of a kernel to itself scatters in bursts (trimmed mean over placements)."""
    ratios = {one["case"]: 100 * trimmed_mean([math.log(a / b) for a, b in one["burst"]]) for one in plain}
    for name, low, high in (("under 20 us", 0, 20), ("20 us to 1 ms", 20, 1000), ("over 1 ms", 1000, 1e9)):
        values = [ratios[one["case"]] for one in plain if low <= one["burst"][0][0] < high]
        if values:
            rms = math.sqrt(statistics.fmean(value**2 for value in values))
            yield f"{name:14s} {len(values):3d} cases, rms {rms:.2f} %, worst {max(map(abs, values)):.2f} %"


def positions(plain: list[dict[str, Any]]) -> Iterator[str]:
    """Mean time in us by position in a graph; the first launch is the lead."""
    for one in plain:
        means = [statistics.fmean(column) for column in zip(*one["us"], strict=True)]
        yield f"{''.join('AB'[lane] for lane in one['order']):8s}" + " ".join(f"{us:6.1f}" for us in means)


def main() -> None:
    """Print all tables."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    alone = [Series.of(one) for one in data["series"] if not one["planted"]]
    planted = [one for one in data["series"] if one["planted"]]
    tables = [
        ("Swing of a kernel's time under load", swings(alone)),
        ("A against A, sustained, by design", designs(alone)),
        ("A against A, sustained, by the seconds of load before", starts(alone)),
        (
            "Planted slowdown (%) by what counts after a change",
            changes(planted),
        ),
        ("Probe of 0.1 s", probes(data["probes"])),
        ("A against A, bursts", bursts(data["probes"])),
        ("group_gemm by position in the graph of a burst, us", positions(data["positions"])),
    ]
    for title, lines in tables:
        print(f"\n{title}\n", *lines, sep="\n")


if __name__ == "__main__":
    main()
