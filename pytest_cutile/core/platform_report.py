"""The comparison of two platforms as text of at most 100 columns, or as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_cutile.core.baselines import BaselineFile
from pytest_cutile.core.platform_comparison import PlatformComparison, PlatformRow
from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.published import DOCUMENT, QWEN2_7B, SPECIFICATIONS
from pytest_cutile.core.report import WIDTH, align, fit, shorten

_NAME_WIDTH = 20
_OTHER_WORK_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A table; its first row is the header."""

    rows: Sequence[tuple[str, ...]]
    text_columns: int = 1
    """Columns on the left that are no figures."""
    has_cases: bool = False
    """Whether the first two are kernels and cases, whose names may be shortened."""


def platform_report(
    comparison: PlatformComparison, labels: tuple[str, str], *, markdown: bool = False
) -> list[str]:
    """Return the comparison as lines.

    Args:
        comparison: What to show.
        labels: Where the two files are.
        markdown: Whether to write tables of Markdown, in full, instead of aligned ones.
    """
    lines: list[str] = []
    for block in _blocks(comparison, labels, markdown=markdown):
        lines += ["", *_rendered(block, markdown=markdown)] if lines else _rendered(block, markdown=markdown)
    return lines


def _rendered(block: _Table | Sequence[str], *, markdown: bool) -> list[str]:
    if not isinstance(block, _Table):
        return [*block] if not markdown else [f"- {line}" for line in block]
    if markdown:
        lines = [
            f"| {' | '.join(cell.strip().replace('|', '&#124;') for cell in row)} |" for row in block.rows
        ]
        texts = block.text_columns
        rule = ["---"] * texts + ["---:"] * (len(block.rows[0]) - texts)
        return [lines[0], f"| {' | '.join(rule)} |", *lines[1:]]
    figures = set(block.rows[0][block.text_columns :])
    return align(fit([*block.rows]) if block.has_cases else block.rows, rule=True, right=figures)


def _blocks(
    comparison: PlatformComparison, labels: tuple[str, str], *, markdown: bool
) -> Iterable[_Table | Sequence[str]]:
    first, second = comparison.first, comparison.second
    names = _names(first, second)
    yield [
        _clipped(f"{name}: {file.gpu} ({file.arch}), {_contents(file)}, {label}", markdown=markdown)
        for name, file, label in zip(names, (first, second), labels, strict=True)
    ]
    yield _specifications(first, second, names)
    if comparison.rows:
        yield _cases(comparison, names)
    yield _counts(comparison, names, markdown=markdown)
    if comparison.is_nvidias:
        yield from _nvidias(comparison, names, markdown=markdown)


def _names(first: BaselineFile, second: BaselineFile) -> tuple[str, str]:
    """Return names for columns: as short as can be, and not the same."""
    one, other = (shorten(file.gpu.removeprefix("NVIDIA "), _NAME_WIDTH) for file in (first, second))
    return (one, other) if one != other else (f"{one}, A", f"{other}, B")


def _contents(file: BaselineFile) -> str:
    published = sum(entry.published is not None for entry in file.entries.values())
    kinds = {"measured": len(file.entries) - published, "published": published}
    return " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count) or "no cases"


def _memory(file: BaselineFile) -> str | None:
    """Return size and kind of a GPU's memory: as NVIDIA's comparison gives them, else its documents."""
    if (specified := SPECIFICATIONS.get(file.gpu)) is not None:
        return f"{specified.memory_gb} GB {specified.memory} p"
    platform = find_platform(file.gpu)
    return platform.memory if platform is not None else None


def _specifications(first: BaselineFile, second: BaselineFile, names: tuple[str, str]) -> _Table:
    rows: list[tuple[str, ...]] = [("", *names, "ratio"), ("architecture", first.arch, second.arch, "")]
    one, other = find_platform(first.gpu), find_platform(second.gpu)
    counts = [platform.sm_count if platform else None for platform in (one, other)]
    rows += _specified("SMs", counts, "")
    memories = [_memory(file) for file in (first, second)]
    if any(memories):
        sizes = [float(memory.split()[0]) if memory else None for memory in memories]
        rows.append(("memory", *(memory or "-" for memory in memories), _ratio(*sizes)))
    bandwidths = [platform.memory_bandwidth_gb_s if platform else None for platform in (one, other)]
    rows += _specified("memory bandwidth", bandwidths, " GB/s")
    peaks: dict[tuple[float | None, float | None], list[str]] = {}
    rates = [platform.dense_tflops if platform else {} for platform in (one, other)]
    for dtype in dict.fromkeys([*rates[0], *rates[1]]):
        peaks.setdefault((rates[0].get(dtype), rates[1].get(dtype)), []).append(dtype)
    for values, dtypes in peaks.items():
        rows += _specified(
            f"peak {', '.join(dtypes)}", values, " TFLOPS" if "float" in dtypes[0] else " TOPS"
        )
    return _Table(rows=rows)


def _specified(title: str, values: Sequence[float | None], unit: str) -> list[tuple[str, ...]]:
    if all(value is None for value in values):
        return []
    cells = [f"{value:g}{unit}" if value is not None else "-" for value in values]
    return [(title, *cells, _ratio(*values))]


def _ratio(first: float | None, second: float | None) -> str:
    return format_ratio(second / first) if first and second else ""


def format_ratio(ratio: float) -> str:
    """Return a ratio with three digits: "13.7x", "0.0731x"."""
    return f"{ratio:#.3g}x"


def _cases(comparison: PlatformComparison, names: tuple[str, str]) -> _Table:
    shows_published = any(row.published for row in comparison.rows)
    header = ("kernel", "case", "metric", *names, "ratio", *(["published"] if shows_published else []))
    rows: list[tuple[str, ...]] = [header]
    for row in comparison.rows:
        cells = (
            *(row.kernel, row.case, row.metric),
            *(_figure(row.first, row.first_published), _figure(row.second, row.second_published)),
            format_ratio(row.ratio),
        )
        rows.append((*cells, _published(comparison, row)) if shows_published else cells)
    for metric, (mean, count) in comparison.means().items():
        cells = (
            "geometric mean",
            f"{count} case{'s' if count > 1 else ''}",
            metric,
            "",
            "",
            format_ratio(mean),
        )
        rows.append((*cells, "") if shows_published else cells)
    return _Table(rows=rows, text_columns=3, has_cases=True)


def _figure(rate: float, published: bool) -> str:
    return f"{rate:.4g}{'p' if published else ' '}"


def _published(comparison: PlatformComparison, row: PlatformRow) -> str:
    if row.published is None:
        return ""
    return ("" if row.same_shape else "~") + format_ratio(comparison.oriented(row.published.ratio))


def _counts(comparison: PlatformComparison, names: tuple[str, str], *, markdown: bool) -> list[str]:
    lines = [] if comparison.rows else ["No case with the same work is in both files: nothing to compare."]
    only = [
        f"{count} only of {name}"
        for name, count in zip(
            names, map(comparison.only_in, (comparison.first, comparison.second)), strict=True
        )
        if count
    ]
    if only:
        lines.append(f"cases not compared: {', '.join(only)}")
    other = comparison.other_work
    if other:
        shown = other if markdown else other[:_OTHER_WORK_SHOWN]
        more = f" and {len(other) - len(shown)} more" if len(other) > len(shown) else ""
        lines.append(_clipped(f"not compared, other work: {', '.join(shown)}{more}", markdown=markdown))
    lines.append(f"ratio: {names[1]} over {names[0]}, so above 1x {names[1]} is faster")
    legend = Counter(
        published for row in comparison.rows for published in (row.first_published, row.second_published)
    )
    if legend[True] or comparison.is_nvidias:
        lines.append("p: a published figure, not a measured one")
    if any(row.published for row in comparison.rows):
        approximate = any(row.published and not row.same_shape for row in comparison.rows)
        lines.append(f"published: the ratio in {DOCUMENT}" + ("; ~ of another shape" if approximate else ""))
    return [line for text in lines for line in _lines(text, markdown=markdown)]


def _nvidias(
    comparison: PlatformComparison, names: tuple[str, str], *, markdown: bool
) -> Iterable[_Table | Sequence[str]]:
    yield _lines(
        f"Also published, in {DOCUMENT}; docs/baselines.md says what it contradicts:", markdown=markdown
    )
    rows: list[tuple[str, ...]] = [("published", "metric", *names, "ratio")]
    rows += [
        (ratio.title, ratio.metric, "", "", format_ratio(comparison.oriented(ratio.ratio)))
        for ratio in comparison.unmatched
    ]
    for pair in QWEN2_7B:
        figures = [f"{pair.gb10:.5g}p", f"{pair.b300:.5g}p"]
        ordered = reversed(figures) if comparison.backwards else figures
        rows.append(
            (f"Qwen2-7B, {pair.title}", pair.unit, *ordered, format_ratio(comparison.oriented(pair.ratio)))
        )
    yield _Table(rows=rows, text_columns=2)


def _clipped(text: str, *, markdown: bool) -> str:
    return text if markdown else shorten(text, WIDTH)


def _lines(text: str, *, markdown: bool) -> list[str]:
    import textwrap

    return [text] if markdown else textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
