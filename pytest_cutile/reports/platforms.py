"""Platforms compared by their speed baselines, case by case, with what NVIDIA published about two of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from statistics import geometric_mean

from pytest_cutile.baselines.entries import SpeedBaselines
from pytest_cutile.baselines.select import stored_us, work_of
from pytest_cutile.words.document import (
    Column,
    Document,
    DocumentBlock,
    Overflow,
    Paragraph,
    Row,
    Section,
    Table,
    shorten,
)
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.platforms.published import B300, DOCUMENT, GB10, QWEN2_7B, RATIOS
from pytest_cutile.words.quantities import format_ratio, natural_order
from pytest_cutile.words.results import names_of_test
from pytest_cutile.words.spec import Work

_NAME_WIDTH = 20


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """A case that several platforms have, with the same work."""

    key: str
    kernel: str
    name: str
    metric: str
    """tokens/s of a language model, TFLOPS if the case counts operations, else GB/s, or launches/s without
    work. The limit that a kernel is nearest to may differ between the platforms; the metric may not."""
    work: Work
    regime: str
    """Which times are compared, "burst" or "sustained": times of the two do not compare."""
    rates: Sequence[float | None]
    """Rate on each platform, in `metric`; None where a platform has no time of that work."""
    published: Sequence[bool]
    """Whether the rates were published rather than measured."""

    @property
    def ratios(self) -> list[float | None]:
        """How much faster the other platforms are than the first one."""
        return _over_first(self.rates)


def _over_first(values: Sequence[float | None]) -> list[float | None]:
    first, *others = values
    return [other / first if first and other else None for other in others]


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """What NVIDIA published besides the cases here, of its two platforms."""

    title: str
    metric: str
    ratio: float
    """The second one over the first one."""
    figures: Sequence[float] = ()
    """Empty where only the ratio was published."""
    calls: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlatformComparison:
    """Platforms side by side; ratios are over the first one."""

    files: Sequence[SpeedBaselines]
    paths: Sequence[str]
    """Where the files are, for the reader."""
    names: Sequence[str]
    """Short names of the GPUs, no two the same."""
    cases: Sequence[ComparedCase]
    only: Sequence[int]
    """Number of cases, for each platform, that no other platform has."""
    other_work: Sequence[str]
    """Keys of cases whose work is not the same everywhere."""
    untimed: Sequence[str]
    """Keys of cases without a time somewhere."""
    nvidias: Sequence[int]
    """Places of the two platforms that NVIDIA compared, the first one first; nothing unless both are here."""
    ratios: Mapping[str, tuple[float, bool]]
    """NVIDIA's ratios of these two by key of a case, with whether they are of that very shape."""
    others: Sequence[PublishedRow]
    """What else NVIDIA published of the two."""

    @property
    def title(self) -> str:
        return f"{self.names[0]} beside {', '.join(self.names[1:])}"


def compare_platforms(files: Sequence[SpeedBaselines], paths: Sequence[str]) -> PlatformComparison:
    cases: list[ComparedCase] = []
    only = [0] * len(files)
    other_work, untimed = [], []
    for key in sorted({key for file in files for key in file.entries}, key=natural_order):
        having = [place for place, file in enumerate(files) if key in file.entries]
        if len(having) == 1:
            only[having[0]] += 1
            continue
        works = [work_of(files[place].entries[key]) for place in having]
        alike = [place for place, work in zip(having, works, strict=True) if work == works[0]]
        regime, times = _times_us(key, files, alike)
        if len(alike) < len(having):
            other_work.append(key)
        if any(times[place] is None for place in alike):
            untimed.append(key)
        if sum(time is not None for time in times) > 1:
            cases.append(_case(key, files, times, regime, having[0]))
    gpus = [file.gpu for file in files]
    nvidias = [gpus.index(gpu) for gpu in (GB10, B300) if gpu in gpus]
    nvidias = nvidias if len(nvidias) > 1 else []
    ratios, others = _published(cases, is_turned=nvidias != sorted(nvidias)) if nvidias else ({}, [])
    return PlatformComparison(
        files=files,
        paths=paths,
        names=_short_names(files),
        cases=cases,
        only=only,
        other_work=other_work,
        untimed=untimed,
        nvidias=sorted(nvidias),
        ratios=ratios,
        others=others,
    )


def _short_names(files: Sequence[SpeedBaselines]) -> list[str]:
    """Return names for columns: short, and no two the same."""
    names = [shorten(file.gpu.removeprefix("NVIDIA "), _NAME_WIDTH) for file in files]
    return [
        f"{name} #{number}" if names.count(name) > 1 else name for number, name in enumerate(names, start=1)
    ]


def _case(
    key: str, files: Sequence[SpeedBaselines], times: Sequence[float | None], regime: str, first: int
) -> ComparedCase:
    work = work_of(files[first].entries[key])
    metric, per_launch = next(iter(work.amounts.items()), ("launches/s", 1.0))
    if "::" in key.partition("[")[0]:
        kernel, name = names_of_test(key)
    else:
        kernel, _, name = key.removesuffix("]").partition("[")
    return ComparedCase(
        key=key,
        kernel=kernel,
        name=name,
        metric=metric,
        work=work,
        regime=regime,
        rates=[per_launch / (time * 1e-6) if time else None for time in times],
        published=[key in file.entries and not file.entries[key].records for file in files],
    )


def _times_us(
    key: str, files: Sequence[SpeedBaselines], having: Sequence[int]
) -> tuple[str, list[float | None]]:
    """Return the regime of which most files have times, in doubt bursts, and the times per launch."""
    times = {
        regime: [_time_us(file, key, regime) if place in having else None for place, file in enumerate(files)]
        for regime in ("burst", "sustained")
    }
    regime = max(times, key=lambda regime: sum(time is not None for time in times[regime]))
    return regime, times[regime]


def _time_us(file: SpeedBaselines, key: str, regime: str) -> float | None:
    """Return the time per launch in a regime; a published one is of either."""
    entry = file.entries[key]
    if not entry.records and entry.published is not None:
        return entry.published.median_us
    stored = stored_us(file, entry, regime, "")
    return stored.us if stored is not None else None


def _published(
    cases: Sequence[ComparedCase], *, is_turned: bool
) -> tuple[dict[str, tuple[float, bool]], list[PublishedRow]]:
    """Return `PlatformComparison.ratios` and `others`; turned they are of GB10 over B300."""
    turn = -1 if is_turned else 1
    keys = {case.key for case in cases}
    ratios: dict[str, tuple[float, bool]] = {}
    others = []
    for one in RATIOS:
        exact = one.key in keys
        alike = [one.key] if exact else [case.key for case in cases if one.is_about(case.kernel, case.name)]
        ratios.update(dict.fromkeys(alike, (one.ratio**turn, exact)))
        if not alike:
            others.append(PublishedRow(title=one.title, metric=one.metric, ratio=one.ratio**turn))
    for pair in QWEN2_7B:
        title, figures = f"Qwen2-7B, {pair.title}", (pair.gb10, pair.b300)[::turn]
        ratio, calls = pair.ratio**turn, pair.calls
        others.append(PublishedRow(title=title, metric="ms", ratio=ratio, figures=figures, calls=calls))
    return ratios, others


# -- what they can do ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A row of the specifications."""

    title: str
    values: Sequence[float | None]
    """One value for each platform."""
    unit: str = ""
    texts: Sequence[str] = ()
    """The values in words; empty: as numbers with their unit."""
    dtypes: Sequence[str] = ()
    """Whose peak rate it is; empty for what is no peak rate."""

    @property
    def ratios(self) -> list[float | None]:
        """The other platforms over the first one."""
        return _over_first(self.values)


def limits_of(files: Sequence[SpeedBaselines]) -> list[Limit]:
    """Return what is specified of the platforms, as far as it is known of one of them."""
    platforms = [find_platform(file.gpu) for file in files]
    memories = [platform.memory if platform else None for platform in platforms]
    sizes = [float(memory.split()[0]) if memory else None for memory in memories]
    bandwidths = [platform.memory_bandwidth_gb_s if platform else None for platform in platforms]
    limits = [
        Limit(title="SMs", values=[platform.sm_count if platform else None for platform in platforms]),
        Limit(title="memory", values=sizes, texts=[memory or "-" for memory in memories]),
        Limit(title="memory bandwidth", values=bandwidths, unit=" GB/s"),
    ]
    rates = [platform.dense_tflops if platform else {} for platform in platforms]
    peaks: dict[tuple[float | None, ...], list[str]] = defaultdict(list)
    for dtype in dict.fromkeys(chain.from_iterable(rates)):
        peaks[tuple(own.get(dtype) for own in rates)].append(dtype)
    for values, dtypes in peaks.items():
        unit = " TFLOPS" if "float" in dtypes[0] else " TOPS"
        limits.append(Limit(title=f"peak {', '.join(dtypes)}", values=values, unit=unit, dtypes=dtypes))
    return [limit for limit in limits if any(value is not None for value in limit.values)]


# -- in words -----------------------------------------------------------------------------------------


def platform_document(comparison: PlatformComparison) -> Document:
    """Return specifications, cases with ratios, and what NVIDIA published besides."""
    files, names = comparison.files, comparison.names
    blocks: list[DocumentBlock] = [
        Paragraph(f"{name}: {file.gpu} ({file.arch}), {_contents(file)}, {path}", overflow=Overflow.CLIP)
        for name, file, path in zip(names, files, comparison.paths, strict=True)
    ]
    blocks.append(Section("Specifications", [_specifications(comparison)]))
    blocks.append(Section("Kernels", [*_kernels(comparison)]))
    if comparison.nvidias:
        blocks.append(Section(f"Also in {DOCUMENT}", [*_nvidias_figures(comparison)]))
    return Document("", blocks)


def _contents(file: SpeedBaselines) -> str:
    published = sum(not entry.records for entry in file.entries.values())
    counts = {"measured": len(file.entries) - published, "published": published}
    return " and ".join(f"{count} {origin}" for origin, count in counts.items() if count) or "no cases"


def _specifications(comparison: PlatformComparison) -> Table:
    rows = [_row(["architecture"], [file.arch for file in comparison.files], [])]
    for limit in limits_of(comparison.files):
        texts = limit.texts or [
            f"{value:g}{limit.unit}" if value is not None else "-" for value in limit.values
        ]
        rows.append(_row([limit.title], texts, limit.ratios))
    return Table([Column(""), *_figure_columns(comparison)], rows)


def _kernels(comparison: PlatformComparison) -> Iterator[DocumentBlock]:
    names, cases = comparison.names, comparison.cases
    if cases:
        yield _case_table(comparison)
    else:
        yield Paragraph("No case with the same work is in several files: nothing to compare.")
    only = [f"{count} only of {name}" for name, count in zip(names, comparison.only, strict=True) if count]
    if only:
        yield Paragraph(f"cases not compared: {', '.join(only)}")
    uncompared = {"other work": comparison.other_work, "no times in one regime": comparison.untimed}
    for why, keys in uncompared.items():
        if keys:
            yield Paragraph(f"not compared, {why}: {', '.join(keys)}", overflow=Overflow.CLIP)
    other = names[1] if len(names) == 2 else "the other platform"  # noqa: PLR2004
    yield Paragraph(f"ratio: {other} over {names[0]}, so above 1x {other} is faster")
    if comparison.nvidias or any(any(case.published) for case in cases):
        yield Paragraph("p: a published figure, not a measured one")
    if comparison.ratios:
        other_shape = "; ~ of another shape" if not all(own for _, own in comparison.ratios.values()) else ""
        earlier, later = (names[place] for place in comparison.nvidias)
        yield Paragraph(f"published: {later} over {earlier} in {DOCUMENT}{other_shape}")


def _case_table(comparison: PlatformComparison) -> Table:
    rows = []
    ratios_by_metric: dict[str, list[list[float | None]]] = defaultdict(list)
    for case in comparison.cases:
        published = ""
        if case.key in comparison.ratios:
            ratio, exact = comparison.ratios[case.key]
            published = "~" * (not exact) + format_ratio(ratio)
        rates = [
            "" if rate is None else f"{rate:.4g}{'p' if is_published else ' '}"
            for rate, is_published in zip(case.rates, case.published, strict=True)
        ]
        metric = case.metric + ", sustained" * (case.regime == "sustained")
        rows.append(_row([case.kernel, case.name, metric], rates, case.ratios, [published]))
        if any(case.ratios):
            ratios_by_metric[case.metric].append(case.ratios)
    for metric, ratios in sorted(ratios_by_metric.items()):
        by_platform = [[*filter(None, own)] for own in zip(*ratios, strict=True)]
        means = [geometric_mean(own) if own else None for own in by_platform]
        counts = "/".join(dict.fromkeys(f"{len(own)}" for own in by_platform))
        title = f"{counts} case{'s' * (counts != '1')}"
        rows.append(_row(["geometric mean", title, metric], [""] * len(comparison.names), means, [""]))
    columns = [Column("kernel", shrinks=True), Column("case", shrinks=True), Column("metric")]
    return Table([*columns, *_figure_columns(comparison), Column("published", right=True)], rows)


def _nvidias_figures(comparison: PlatformComparison) -> Iterator[DocumentBlock]:
    yield Paragraph("research/reports/published-figures.md says where the document contradicts itself.")
    rows = []
    for one in comparison.others:
        title = f"{one.title}, {one.calls} calls" if one.calls else one.title
        figures = [f"{figure:.5g}p" for figure in one.figures] or ["", ""]
        rows.append(Row((title, one.metric, *figures, format_ratio(one.ratio))))
    names = [comparison.names[place] for place in comparison.nvidias]
    titles = [Column(title, right=True) for title in (*names, "ratio")]
    yield Table([Column("published"), Column("metric"), *titles], rows)


def _figure_columns(comparison: PlatformComparison) -> list[Column]:
    """Return a column for each platform, and behind each but the first one that of its ratio."""
    first, *others = comparison.names
    titles = [first, *chain.from_iterable((name, "ratio") for name in others)]
    return [Column(title, right=True) for title in titles]


def _row(
    words: Sequence[str], texts: Sequence[str], ratios: Sequence[float | None], last: Sequence[str] = ()
) -> Row:
    """Return a row with the cells of `_figure_columns` between words and last cells."""
    first, *others = texts
    pairs = zip_longest(
        others, ["" if ratio is None else format_ratio(ratio) for ratio in ratios], fillvalue=""
    )
    return Row((*words, first, *chain.from_iterable(pairs), *last))
