"""Platforms side by side as a page, and its plots as one picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_cutile.reports.html.kernel import ladder_plot, ladders, short_dtype
from pytest_cutile.reports.html.plots import Dot, picture, ratio_plot
from pytest_cutile.reports.html.templates import pages, text_of
from pytest_cutile.reports.platforms import ComparedCase, PlatformComparison, limits_of, platform_document
from pytest_cutile.words.quantities import counted, format_ratio

if TYPE_CHECKING:
    from markupsafe import Markup


def render_page(comparison: PlatformComparison) -> str:
    """Return the page: plots, and the tables of `platform_document`."""
    template = pages().get_template("platforms.html.jinja")
    blocks = platform_document(comparison).blocks
    return template.render(title=comparison.title, plots=[*plots_of(comparison)], blocks=blocks)


def render_svg(comparison: PlatformComparison) -> str:
    """Return the plots of the page as one file of SVG, in the colours that the reader's system prefers."""
    return picture(comparison.title, [*plots_of(comparison)], text_of("page.css"))


def plots_of(comparison: PlatformComparison) -> Iterator[tuple[str, Markup]]:
    """Yield plots with their titles: ratios to each other platform, and throughput over sizes."""
    for place in range(1, len(comparison.names)):
        first, other = comparison.names[0], comparison.names[place]
        rows = _ratios(comparison, place)
        limits = _limits(comparison, place)
        count = counted(sum(map(len, rows.values())), "ratio")
        label = f"{count} of {other} over {first} by kernel; specified are {', '.join(limits) or 'none'}"
        plot = ratio_plot(
            rows,
            limits,
            solid="of both files",
            hollow="NVIDIA's ratios",
            x_title=f"{other} over {first}",
            label=label,
        )
        if plot:
            yield f"How much faster {other} is than {first}", plot
    kernels: dict[tuple[str, str], dict[str, ComparedCase]] = defaultdict(dict)
    for case in comparison.cases:
        kernels[case.kernel, case.metric][case.name] = case
    for (kernel, metric), by_name in kernels.items():
        for pattern, sizes in ladders(by_name).items():
            dots = {
                gpu: [
                    Dot(x=size, y=rate, title=f"{name} on {gpu}: {rate:.4g} {metric}")
                    for size, name in sizes.items()
                    if (rate := by_name[name].rates[place]) is not None
                ]
                for place, gpu in enumerate(comparison.names)
            }
            if plot := ladder_plot(dots, metric, f"{pattern} of {kernel}", least_gpus=2):
                yield f"{kernel}, {pattern}: throughput over N", plot


def _ratios(comparison: PlatformComparison, place: int) -> dict[str, list[Dot]]:
    """Return how much faster a platform is than the first one by kernel, NVIDIA's ratios hollow."""
    rows: dict[str, list[Dot]] = defaultdict(list)
    for case in comparison.cases:
        ratio = case.ratios[place - 1]
        if ratio:
            rows[case.kernel].append(Dot(x=ratio, y=0, title=f"{case.name}: {format_ratio(ratio)}"))
    if comparison.nvidias == [0, place]:
        for one in comparison.others:
            title = f"{one.title}, published: {format_ratio(one.ratio)}"
            rows[one.title].append(Dot(x=one.ratio, y=0, title=title, is_hollow=True))
    return rows


def _limits(comparison: PlatformComparison, place: int) -> dict[str, float]:
    """Return what is specified: ratios of memory bandwidth, and of peak rates that the cases can reach."""
    dtypes = {case.work.dtype for case in comparison.cases if case.metric == "TFLOPS"} or {"float16"}
    limits: dict[str, float] = {}
    for limit in limits_of(comparison.files):
        ratio = limit.ratios[place - 1]
        reached = ", ".join(short_dtype(dtype) for dtype in limit.dtypes if dtype in dtypes)
        name = f"peak {reached}" if reached else "memory" if limit.title == "memory bandwidth" else ""
        if ratio and name:
            limits[f"{name} {format_ratio(ratio)}"] = ratio
    return limits
