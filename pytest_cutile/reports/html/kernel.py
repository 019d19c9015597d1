"""What the page shows of a kernel: rooflines or bandwidth, throughput over size, and GPUs side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_cutile.reports.html.plots import Dot, PlottedLine, bandwidth, is_finite, lines_plot, roofline
from pytest_cutile.reports.html.templates import NAME_CHARACTERS
from pytest_cutile.reports.report import Figures, Report, ReportedCase, ReportedPlatform
from pytest_cutile.words.document import shorten
from pytest_cutile.words.formats import FORMATS
from pytest_cutile.words.quantities import counted, format_share

if TYPE_CHECKING:
    from markupsafe import Markup

_Key = TypeVar("_Key")
_SIZES = 3
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
    kernel = _Kernel(
        cases={key: cases[0] for key, cases in by_key.items()},
        figures={gpu: _in_one_regime(own) for gpu, own in sorted(known.items())},
        platforms=report.platforms,
        addresses={(case.gpu, case.key): f"#{case.id}" for own in by_key.values() for case in reversed(own)},
    )
    gpus = [*kernel.figures]
    side_by_side = []
    for key, case in kernel.cases.items():
        own = _in_one_regime({gpu: known[gpu][key] for gpu in gpus if key in known[gpu]})
        if len(own) > 1:
            side_by_side.append((_short(case), _common_unit(own.values()), [own.get(gpu) for gpu in gpus]))
    plots = [*_rooflines(kernel), *_bandwidths(kernel), *_ladders(kernel)]
    return ShownKernel(plots=plots, gpus=gpus, side_by_side=side_by_side)


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """What the plots of a kernel are made of."""

    cases: Mapping[str, ReportedCase]
    """By key, on one of the architectures."""
    figures: Mapping[str, Mapping[str, Figures]]
    """By GPU and key, those of a GPU in one regime."""
    platforms: Mapping[str, ReportedPlatform]
    """By GPU, as far as they are known."""
    addresses: Mapping[tuple[str, str], str]
    """Where the rows of cases are, by GPU and key."""

    def dot(self, gpu: str, key: str, x: float, rate: float, unit: str, share: float | None = None) -> Dot:
        """Return the dot of a case, which leads to its row: that of another GPU, where this one has none."""
        of_limit = f", {format_share(share)} of the limit" if share else ""
        title = f"{_short(self.cases[key])}: {rate:.4g} {unit}{of_limit} ({self.figures[gpu][key].source})"
        address = self.addresses.get((gpu, key), f"#{self.cases[key].id}")
        return Dot(x=x, y=rate, title=title, href=address)


def _short(case: ReportedCase) -> str:
    return shorten(case.name, NAME_CHARACTERS)


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


def _rooflines(kernel: _Kernel) -> Iterator[tuple[str, Markup]]:
    """Yield a roofline for each GPU, of cases that count operations and bytes."""
    for gpu, platform in kernel.platforms.items():
        dots: dict[str, list[Dot]] = defaultdict(list)
        peaks: dict[str, float] = {}
        for key, one in kernel.figures.get(gpu, {}).items():
            tflops, dtype = one.in_unit("TFLOPS"), short_dtype(one.dtype)
            if one.intensity and is_finite(tflops) and one.dtype in platform.dense_tflops:
                dots[dtype].append(kernel.dot(gpu, key, one.intensity, tflops, "TFLOPS", one.share_of_limit))
                peaks[dtype] = platform.dense_tflops[one.dtype]
        if dots:
            limits = ", ".join(f"{peak:g} TFLOPS of {dtype}" for dtype, peak in peaks.items())
            gb_per_s = platform.memory_bandwidth_gb_s
            count = counted(sum(map(len, dots.values())), "case")
            label = f"Roofline of {gpu}: {count}; limits {limits}, {gb_per_s:g} GB/s"
            yield f"Roofline, {gpu}", roofline(dots, gb_per_s=gb_per_s, peaks=peaks, label=label)


def _bandwidths(kernel: _Kernel) -> Iterator[tuple[str, Markup]]:
    """Yield throughput under the limit of memory for each GPU, of cases that count bytes alone."""
    for gpu, platform in kernel.platforms.items():
        limit = platform.memory_bandwidth_gb_s
        dots = [
            kernel.dot(gpu, key, one.bytes / 1e6, rate, "GB/s", rate / limit)
            for key, one in kernel.figures.get(gpu, {}).items()
            if not one.flops and is_finite(rate := one.in_unit("GB/s"))
        ]
        if dots:
            label = f"Bandwidth on {gpu}: {counted(len(dots), 'case')}; limit {limit:g} GB/s"
            yield f"Bandwidth, {gpu}", bandwidth(dots, gb_per_s=limit, label=label)


def short_dtype(dtype: str) -> str:
    """Return a dtype as names of cases have it: "bf16", "tf32", "e4m3fn"."""
    return FORMATS[dtype].short_name if dtype in FORMATS else dtype


def ladders(names: Iterable[str]) -> dict[str, dict[int, str]]:
    """Return names that differ by one number alone: by pattern, by number, the smallest first."""
    by_pattern: dict[str, dict[int, str]] = defaultdict(dict)
    for name in names:
        for number in re.finditer(r"(?:(?<![A-Za-z0-9])|(?<=x))\d{1,12}(?!\d)", name):
            if int(number[0]):
                by_pattern[f"{name[: number.start()]}N{name[number.end() :]}"][int(number[0])] = name
    return {pattern: dict(sorted(sizes.items())) for pattern, sizes in by_pattern.items()}


def _common_unit(figures: Iterable[Figures]) -> str:
    """Return a unit that all figures have, so that they compare."""
    shown = [*figures]
    return next((unit for unit in ("tokens/s", "TFLOPS") if all(one.in_unit(unit) for one in shown)), "GB/s")


def _ladders(kernel: _Kernel) -> Iterator[tuple[str, Markup]]:
    """Yield throughput over size."""
    keys = {case.name: key for key, case in kernel.cases.items()}
    for pattern, sizes in ladders(keys).items():
        by_size = {size: keys[name] for size, name in sizes.items()}
        unit = _common_unit(
            own[key] for own in kernel.figures.values() for key in by_size.values() if key in own
        )
        dots = {
            gpu.removeprefix("NVIDIA "): [
                kernel.dot(gpu, key, size, rate, unit)
                for size, key in by_size.items()
                if key in own and is_finite(rate := own[key].in_unit(unit))
            ]
            for gpu, own in kernel.figures.items()
        }
        if plot := ladder_plot(dots, unit, pattern):
            yield f"{pattern}: throughput over N", plot


def ladder_plot(dots: Mapping[str, Sequence[Dot]], unit: str, of: str, *, least_gpus: int = 1) -> Markup:
    """Return throughput over N of cases on GPUs by name; a GPU without enough sizes is left out."""
    lines = [PlottedLine(name=gpu, dots=own) for gpu, own in dots.items() if len(own) >= _SIZES]
    label = f"{unit} over N for {of} on {', '.join(line.name for line in lines)}"
    shown = lines if len(lines) >= least_gpus else []
    return lines_plot(shown, x_title="N", y_title=unit, label=label)
