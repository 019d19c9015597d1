"""Two platforms compared by their speed baselines, case by case, with what NVIDIA published about the two."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_cutile.baselines.entries import SpeedBaselines
from pytest_cutile.baselines.published import B300, DOCUMENT, GB10, QWEN2_7B, RATIOS, SPECIFICATIONS, Ratio
from pytest_cutile.baselines.select import stored_us, work_of
from pytest_cutile.platforms.lookup import find_platform
from pytest_cutile.quantities import counted, format_ratio
from pytest_cutile.reports.document import (
    Block,
    Column,
    Document,
    Overflow,
    Paragraph,
    Row,
    Table,
    shorten,
)
from pytest_cutile.results import names_of_test

_NAME_WIDTH = 20


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A case that both platforms have, with the same work."""

    key: str
    kernel: str
    name: str
    metric: str
    """TFLOPS if the case counts operations, else GB/s, or launches/s without work. The limit that a kernel
    is nearest to may differ between the platforms; the metric may not."""
    rates: tuple[float, float]
    """Of the two platforms, in `metric`."""
    published: tuple[bool, bool]
    """Whether the rates were published rather than measured."""

    @property
    def ratio(self) -> float:
        """How much faster the second platform is."""
        return self.rates[1] / self.rates[0]


def platform_document(first: SpeedBaselines, second: SpeedBaselines, labels: tuple[str, str]) -> Document:
    """Compare two platforms; ratios are the second over the first."""
    files = (first, second)
    names = _short_names(first, second)
    common = sorted(first.entries.keys() & second.entries.keys(), key=_natural_order)
    other_work = [key for key in common if work_of(first.entries[key]) != work_of(second.entries[key])]
    untimed = [key for key in common if None in (_time_us(first, key), _time_us(second, key))]
    cases = [_case(key, first, second) for key in common if key not in {*other_work, *untimed}]
    by_nvidia = {first.gpu, second.gpu} == {GB10, B300}
    ratios, unmatched = _published_ratios(cases) if by_nvidia else ({}, [])
    blocks: list[Block] = [
        Paragraph(f"{name}: {file.gpu} ({file.arch}), {_contents(file)}, {label}", overflow=Overflow.CLIP)
        for name, file, label in zip(names, files, labels, strict=True)
    ]
    blocks.append(_specifications(first, second, names))
    if cases:
        blocks.append(_case_table(cases, names, ratios, backwards=first.gpu == B300))
    else:
        blocks.append(Paragraph("No case with the same work is in both files: nothing to compare."))
    only = [
        f"{count} only of {name}"
        for name, file in zip(names, files, strict=True)
        if (count := len(file.entries) - len(common))
    ]
    if only:
        blocks.append(Paragraph(f"cases not compared: {', '.join(only)}"))
    if other_work:
        blocks.append(Paragraph(f"not compared, other work: {', '.join(other_work)}", overflow=Overflow.CLIP))
    if untimed:
        blocks.append(Paragraph(f"not compared, no times: {', '.join(untimed)}", overflow=Overflow.CLIP))
    blocks.append(Paragraph(f"ratio: {names[1]} over {names[0]}, so above 1x {names[1]} is faster"))
    if by_nvidia or any(any(case.published) for case in cases):
        blocks.append(Paragraph("p: a published figure, not a measured one"))
    if ratios:
        other_shape = "; ~ of another shape" if not all(exact for _, exact in ratios.values()) else ""
        blocks.append(Paragraph(f"published: the ratio in {DOCUMENT}{other_shape}"))
    if by_nvidia:
        blocks += _nvidias_figures(unmatched, names, backwards=first.gpu == B300)
    return Document("", blocks)


def _short_names(first: SpeedBaselines, second: SpeedBaselines) -> tuple[str, str]:
    """Return names for columns: short, and not the same."""
    one, other = (shorten(file.gpu.removeprefix("NVIDIA "), _NAME_WIDTH) for file in (first, second))
    return (one, other) if one != other else (f"{one}, A", f"{other}, B")


def _contents(file: SpeedBaselines) -> str:
    published = sum(not entry.records for entry in file.entries.values())
    counts = {"measured": len(file.entries) - published, "published": published}
    return " and ".join(f"{count} {origin}" for origin, count in counts.items() if count) or "no cases"


def _natural_order(key: str) -> list[tuple[int, str]]:
    """Sort 8192 before 16384."""
    words = "".join(c if c.isdigit() else f" {c} " for c in key).split()
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def _case(key: str, first: SpeedBaselines, second: SpeedBaselines) -> _Case:
    work = work_of(first.entries[key])
    metric = "TFLOPS" if work.flops else "GB/s" if work.bytes else "launches/s"
    per_launch = {"TFLOPS": work.flops * 1e-12, "GB/s": work.bytes * 1e-9, "launches/s": 1.0}[metric]
    if "::" in key.partition("[")[0]:
        kernel, name = names_of_test(key)
    else:
        kernel, _, name = key.removesuffix("]").partition("[")
    one, other = (_time_us(file, key) or math.nan for file in (first, second))
    rates = (per_launch / (one * 1e-6), per_launch / (other * 1e-6))
    published = (not first.entries[key].records, not second.entries[key].records)
    return _Case(key=key, kernel=kernel, name=name, metric=metric, rates=rates, published=published)


def _time_us(file: SpeedBaselines, key: str) -> float | None:
    """Return the time per launch: in bursts, or sustained where a launch is too long for bursts."""
    entry = file.entries[key]
    if not entry.records and entry.published is not None:
        return entry.published.median_us
    stored = stored_us(file, entry, "burst", "") or stored_us(file, entry, "sustained", "")
    return stored.us if stored is not None else None


def _published_ratios(cases: Sequence[_Case]) -> tuple[dict[str, tuple[Ratio, bool]], list[Ratio]]:
    """Return NVIDIA's ratios by key, with whether they are of that very shape, and those of no case here."""
    keys = {case.key for case in cases}
    published: dict[str, tuple[Ratio, bool]] = {}
    unmatched = []
    for ratio in RATIOS:
        exact = ratio.key in keys
        alike = [ratio.key] if exact else [c.key for c in cases if ratio.is_about(c.kernel, c.name)]
        published.update(dict.fromkeys(alike, (ratio, exact)))
        if not alike:
            unmatched.append(ratio)
    return published, unmatched


def _specifications(first: SpeedBaselines, second: SpeedBaselines, names: tuple[str, str]) -> Table:
    platforms = [find_platform(file.gpu) for file in (first, second)]
    rows = [Row(("architecture", first.arch, second.arch, ""))]

    def add(title: str, values: Sequence[float | None], unit: str = "", texts: Sequence[str] = ()) -> None:
        if any(value is not None for value in values):
            cells = texts or [f"{value:g}{unit}" if value is not None else "-" for value in values]
            one, other = values
            rows.append(Row((title, *cells, format_ratio(other / one) if one and other else "")))

    counts = [platform.sm_count if platform else None for platform in platforms]
    add("SMs", counts)
    memories = [_memory(file) for file in (first, second)]
    sizes = [float(memory.split()[0]) if memory else None for memory in memories]
    add("memory", sizes, texts=[memory or "-" for memory in memories])
    add("memory bandwidth", [p.memory_bandwidth_gb_s if p else None for p in platforms], " GB/s")
    rates = [platform.dense_tflops if platform else {} for platform in platforms]
    peaks: dict[tuple[float | None, float | None], list[str]] = defaultdict(list)
    for dtype in dict.fromkeys([*rates[0], *rates[1]]):
        peaks[rates[0].get(dtype), rates[1].get(dtype)].append(dtype)
    for values, dtypes in peaks.items():
        add(f"peak {', '.join(dtypes)}", values, " TFLOPS" if "float" in dtypes[0] else " TOPS")
    return Table([Column(""), *_figure_columns(*names, "ratio")], rows)


def _memory(file: SpeedBaselines) -> str | None:
    """Return size and kind of a GPU's memory: as NVIDIA's comparison gives them, else its documents."""
    if (specified := SPECIFICATIONS.get(file.gpu)) is not None:
        return f"{specified.memory_gb} GB {specified.memory} p"
    platform = find_platform(file.gpu)
    return platform.memory if platform is not None else None


def _figure_columns(*titles: str) -> list[Column]:
    return [Column(title, right=True) for title in titles]


def _case_table(
    cases: Sequence[_Case],
    names: tuple[str, str],
    ratios: dict[str, tuple[Ratio, bool]],
    *,
    backwards: bool,
) -> Table:
    columns = [Column("kernel", shrinks=True), Column("case", shrinks=True), Column("metric")]
    rows = []
    logs: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        ratio, exact = ratios.get(case.key, (None, True))
        published = "" if ratio is None else "~" * (not exact) + _oriented(ratio.ratio, backwards=backwards)
        rates = [
            f"{rate:.4g}{'p' if is_published else ' '}"
            for rate, is_published in zip(case.rates, case.published, strict=True)
        ]
        rows.append(Row((case.kernel, case.name, case.metric, *rates, format_ratio(case.ratio), published)))
        logs[case.metric].append(math.log(case.ratio))
    for metric, values in sorted(logs.items()):
        mean = format_ratio(math.exp(sum(values) / len(values)))
        rows.append(Row(("geometric mean", counted(len(values), "case"), metric, "", "", mean, "")))
    return Table([*columns, *_figure_columns(*names, "ratio", "published")], rows)


def _oriented(ratio: float, *, backwards: bool) -> str:
    """Return one of NVIDIA's ratios, B300 over GB10, as the second platform over the first."""
    return format_ratio(1 / ratio if backwards else ratio)


def _nvidias_figures(
    unmatched: Sequence[Ratio], names: tuple[str, str], *, backwards: bool
) -> Iterator[Block]:
    yield Paragraph(
        f"Also published, in {DOCUMENT}; research/reports/published-figures.md says what it contradicts:"
    )
    rows = [Row((r.title, r.metric, "", "", _oriented(r.ratio, backwards=backwards))) for r in unmatched]
    for pair in QWEN2_7B:
        figures = [f"{pair.gb10:.5g}p", f"{pair.b300:.5g}p"][:: -1 if backwards else 1]
        ratio = _oriented(pair.ratio, backwards=backwards)
        rows.append(Row((f"Qwen2-7B, {pair.title}", pair.unit, *figures, ratio)))
    yield Table([Column("published"), Column("metric"), *_figure_columns(*names, "ratio")], rows)
