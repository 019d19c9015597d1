"""What the page shows of a kernel: rooflines or bandwidth, throughput over size, and GPUs side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_cutile.quantities import counted, format_share
from pytest_cutile.reports.document import shorten
from pytest_cutile.reports.html.plots import Dot, PlottedLine, bandwidth, finite, lines_plot, roofline
from pytest_cutile.reports.html.templates import NAME_CHARACTERS
from pytest_cutile.reports.report import Figures, Report, ReportedCase

if TYPE_CHECKING:
    from markupsafe import Markup

_Key = TypeVar("_Key")
SIZES = 3
"""Sizes from which cases are a ladder."""


@dataclass(frozen=True, kw_only=True)
class ShownKernel:
    """What stands above the details of a kernel's cases."""

    plots: Sequence[tuple[str, Markup]]
    gpus: Sequence[str]
    """GPUs with figures; two or more stand side by side."""
    side_by_side: Sequence[tuple[str, str, Sequence[Figures | None]]]
    """Name, unit, and figures by GPU."""


def shown_kernel(by_key: Mapping[str, Sequence[ReportedCase]], report: Report) -> ShownKernel:
    known = _figures_by_gpu(by_key, report)
    figures = {gpu: _in_one_regime(own) for gpu, own in known.items()}
    cases = [case for own in by_key.values() for case in own]
    of = cases, figures, report
    plots = [*_rooflines(*of), *_bandwidths(*of), *_ladders(cases, figures)]
    gpus = sorted(figures)
    keys = [key for key in by_key if sum(key in figures[gpu] for gpu in gpus) > 1]
    side_by_side = []
    for key in keys:
        own = _in_one_regime({gpu: known[gpu][key] for gpu in gpus if key in known[gpu]})
        unit, name = _common_unit(own.values()), shorten(by_key[key][0].name, NAME_CHARACTERS)
        side_by_side.append((name, unit, [own.get(gpu) for gpu in gpus]))
    return ShownKernel(plots=plots, gpus=gpus, side_by_side=side_by_side)


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


def _in_one_regime(figures: Mapping[_Key, Figures]) -> dict[_Key, Figures]:
    """Return sustained figures where one of them has no others: bursts do not compare with those."""
    is_sustained = any(one.is_sustained for one in figures.values())
    return {key: one.sustained() if is_sustained else one for key, one in figures.items()}


def _addresses(cases: Sequence[ReportedCase]) -> dict[tuple[str, str], str]:
    """Return where the rows of cases are, by GPU and key; "" for a GPU without a row of its own."""
    own = {(case.gpu, case.key): f"#{case.id}" for case in reversed(cases)}
    return own | {("", case.key): f"#{case.id}" for case in reversed(cases)}


def _rooflines(
    cases: Sequence[ReportedCase], figures: Mapping[str, Mapping[str, Figures]], report: Report
) -> Iterator[tuple[str, Markup]]:
    """Yield a roofline for each GPU, of cases that count operations and bytes."""
    addresses = _addresses(cases)
    names = {case.key: shorten(case.name, NAME_CHARACTERS) for case in cases}
    for gpu, by_key in sorted(figures.items()):
        platform = report.platforms.get(gpu)
        if platform is None:
            continue
        dots: dict[str, list[Dot]] = defaultdict(list)
        for key, one in by_key.items():
            tflops = one.in_unit("TFLOPS")
            if one.intensity and tflops and finite([tflops]) and one.dtype in platform.dense_tflops:
                share = format_share(one.share_of_limit) if one.share_of_limit else ""
                title = f"{names[key]}: {tflops:.4g} TFLOPS, {share} of the limit ({one.source})"
                target = addresses.get((gpu, key)) or addresses["", key]
                dots[one.dtype].append(Dot(x=one.intensity, y=tflops, title=title, href=target))
        if dots:
            peaks = {short_dtype(dtype): platform.dense_tflops[dtype] for dtype in dots}
            limits = ", ".join(f"{peak:g} TFLOPS of {dtype}" for dtype, peak in peaks.items())
            gb_per_s = platform.memory_bandwidth_gb_s
            short = {short_dtype(dtype): own for dtype, own in dots.items()}
            count = counted(sum(map(len, dots.values())), "case")
            label = f"Roofline of {gpu}: {count}; limits {limits}, {gb_per_s:g} GB/s"
            yield f"Roofline, {gpu}", roofline(short, gb_per_s=gb_per_s, peaks=peaks, label=label)


def _bandwidths(
    cases: Sequence[ReportedCase], figures: Mapping[str, Mapping[str, Figures]], report: Report
) -> Iterator[tuple[str, Markup]]:
    """Yield throughput under the limit of memory for each GPU, of cases that count bytes alone."""
    addresses = _addresses(cases)
    names = {case.key: shorten(case.name, NAME_CHARACTERS) for case in cases}
    for gpu, by_key in sorted(figures.items()):
        platform = report.platforms.get(gpu)
        limit = 0.0 if platform is None else platform.memory_bandwidth_gb_s
        dots = []
        for key, one in by_key.items():
            rate = None if one.flops else one.in_unit("GB/s")
            if limit and rate and finite([rate]):
                title = (
                    f"{names[key]}: {rate:.4g} GB/s, {format_share(rate / limit)} of the limit ({one.source})"
                )
                target = addresses.get((gpu, key)) or addresses["", key]
                dots.append(Dot(x=one.bytes / 1e6, y=rate, title=title, href=target))
        if dots:
            label = f"Bandwidth on {gpu}: {counted(len(dots), 'case')}; limit {limit:g} GB/s"
            yield f"Bandwidth, {gpu}", bandwidth(dots, gb_per_s=limit, label=label)


def short_dtype(dtype: str) -> str:
    """Return a dtype as names of cases have it: "bf16", "tf32", "e4m3fn"."""
    return dtype.replace("float8_", "").replace("bfloat", "bf").replace("tfloat", "tf").replace("float", "fp")


def ladders(names: Iterable[str]) -> dict[str, dict[int, str]]:
    """Return names that differ by one number alone: by pattern, by number, the smallest first."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for name in names:
        for number in re.finditer(r"(?:(?<![A-Za-z0-9])|(?<=x))\d{1,12}(?!\d)", name):
            if int(number[0]):
                found[f"{name[: number.start()]}N{name[number.end() :]}"][int(number[0])] = name
    return {pattern: dict(sorted(sizes.items())) for pattern, sizes in found.items()}


def _common_unit(figures: Iterable[Figures]) -> str:
    """Return a unit that all figures have, so that they compare."""
    shown = [*figures]
    return next((unit for unit in ("tokens/s", "TFLOPS") if all(one.in_unit(unit) for one in shown)), "GB/s")


def _ladders(
    cases: Sequence[ReportedCase], figures: Mapping[str, Mapping[str, Figures]]
) -> Iterator[tuple[str, Markup]]:
    """Yield throughput over size."""
    by_name = {case.name: case for case in cases}
    for pattern, sizes in ladders(by_name).items():
        by_size = {size: by_name[name] for size, name in sizes.items()}
        shown = [own[case.key] for own in figures.values() for case in by_size.values() if case.key in own]
        unit = _common_unit(shown)
        lines = []
        for gpu, own in sorted(figures.items()):
            timed = [(size, case, own[case.key]) for size, case in by_size.items() if case.key in own]
            dots = [
                Dot(
                    x=size,
                    y=rate or 0.0,
                    title=f"{shorten(case.name, NAME_CHARACTERS)}: {rate:.4g} {unit} ({one.source})",
                    href=f"#{case.id}",
                )
                for size, case, one in timed
                if finite([rate := one.in_unit(unit)])
            ]
            if len(dots) >= SIZES:
                lines.append(PlottedLine(name=gpu.removeprefix("NVIDIA "), dots=dots))
        if lines:
            label = f"{unit} over N for {pattern} on {', '.join(line.name for line in lines)}"
            plot = lines_plot(lines, x_title="N", y_title=unit, label=label)
            yield f"{pattern}: throughput over N", plot
