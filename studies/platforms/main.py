"""The study: platforms compared as in NVIDIA's playbook, from files of baselines. It needs no GPU.

`pytest_cutile.reports.platforms` compares case by case. This study sums up the ratios by kernel, beside what
the hardware promises, apart for measured and published figures, and keeps NVIDIA's published rows.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_cutile.baselines.entries import SpeedBaselines
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.store import read_all, read_speed
from pytest_cutile.reports.html.platforms import plots_of
from pytest_cutile.reports.markdown import render_markdown
from pytest_cutile.reports.platforms import (
    ComparedCase,
    PlatformComparison,
    compare_platforms,
    limits_of,
    platform_document,
)
from pytest_cutile.words.platforms.data import Platform
from pytest_cutile.words.platforms.lookup import find_platform, gpu_slug
from pytest_cutile.words.platforms.published import B300, DOCUMENT, GB10, QWEN2_7B, RATIOS, SPECIFICATIONS
from pytest_cutile.words.quantities import format_ratio, format_share, natural_order
from pytest_cutile.words.spec import Work
from pytest_cutile.words.timing import bound_of
from research.published_figures import GENERATIONS
from studies.running.files import drawing, to_json
from studies.running.study import StoredStudy
from tools.gpu_runs.measure import geometric_mean
from tools.gpu_runs.tables import markdown

BASELINES = Path(__file__).resolve().parents[2] / "baselines"
MEASURED, PUBLISHED = "Measured", "Published"
MIXED = "Published beside measured"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a kernel scales from the first platform to another one."""

    kernel: str
    metric: str
    first: str
    platform: str
    cases: int
    bounds: Sequence[str]
    """What the cases are limited by on the two platforms: "TFLOPS", "GB/s" or both."""
    ratio: float
    """Geometric mean of the cases' ratios."""
    specified: float | None
    """Likewise of what the hardware promises; None where it promises nothing about one of the cases."""

    @property
    def share(self) -> float | None:
        return self.ratio / self.specified if self.specified else None


def compare(paths: Sequence[Path]) -> Mapping[str, PlatformComparison]:
    """Compare files of baselines, by default all of this repository; ratios are over the first of each group.

    Measured figures are compared with measured ones, and published with published. Where neither kind is in
    two files, all figures are in one group, `MIXED`. Cases of `recorded_with_other_code` are left out.

    Raises:
        SystemExit: As `read`.
    """
    return _compare(*read(paths))


def _compare(files: Sequence[SpeedBaselines], names: Sequence[str]) -> Mapping[str, PlatformComparison]:
    files = [
        replace(file, entries={key: entry for key, entry in file.entries.items() if key not in keys})
        for file, keys in zip(files, recorded_with_other_code(files), strict=True)
    ]
    groups = {}
    for title, is_measured in ((MEASURED, True), (PUBLISHED, False)):
        parts = [
            (_part(file, is_measured=is_measured), name) for file, name in zip(files, names, strict=True)
        ]
        parts = [(part, name) for part, name in parts if part.entries]
        if len(parts) > 1:
            groups[title] = compare_platforms(*zip(*parts, strict=True))
    return groups or {MIXED: compare_platforms(files, names)}


def read(paths: Sequence[Path]) -> tuple[Sequence[SpeedBaselines], Sequence[str]]:
    """Return files of baselines, by default all of this repository, and their names.

    Raises:
        SystemExit: There are not two files, one is given twice, or one cannot be used.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise SystemExit("the study platforms compares different files: one is given twice")
    if paths:
        try:
            files, names = [read_speed(path) for path in paths], [*map(str, paths)]
        except BaselineError as error:
            raise SystemExit(f"{error}") from error
    else:
        files = sorted(read_all(BASELINES)[0], key=lambda file: file.gpu != GB10)
        names = [f"baselines/{file.arch}-{gpu_slug(file.gpu)}.json" for file in files]
    if len(files) < 2:
        raise SystemExit("the study platforms compares two files of baselines or more")
    return files, names


def recorded_with_other_code(files: Sequence[SpeedBaselines]) -> Sequence[Sequence[str]]:
    """Return of each file the cases that the first file of its architecture recorded with other code.

    Their ratio is of the code as much as of the hardware. Between architectures code always differs.
    """
    first: dict[tuple[str, str], str] = {}
    return [
        [
            key
            for key, entry in file.entries.items()
            if entry.records
            and (fingerprint := entry.records[-1].fingerprint)
            and first.setdefault((file.arch, key), fingerprint) != fingerprint
        ]
        for file in files
    ]


def _part(file: SpeedBaselines, *, is_measured: bool) -> SpeedBaselines:
    entries = {key: entry for key, entry in file.entries.items() if bool(entry.records) is is_measured}
    return replace(file, entries=entries)


def pages(paths: Sequence[Path]) -> Mapping[str, str]:
    files, names = read(paths)
    groups = _compare(files, names)
    other_code = [key for keys in recorded_with_other_code(files) for key in keys]
    plots = {
        f"{group}: {title}": plot
        for group, comparison in groups.items()
        for title, plot in plots_of(comparison)
    }
    return {
        "platforms.md": page(groups, other_code),
        "platforms.svg": drawing("Platforms side by side", plots),
        "rows.json": to_json(document(groups)),
        "rows.csv": rows_csv(groups),
    }


# -- figures ----------------------------------------------------------------------------------------


def scalings(comparison: PlatformComparison) -> Iterator[Scaling]:
    """Yield the scaling of each kernel to each platform but the first."""
    first, *others = [find_platform(file.gpu) for file in comparison.files]
    for place, (name, other) in enumerate(zip(comparison.names[1:], others, strict=True)):
        by_kernel: dict[tuple[str, str], list[ComparedCase]] = defaultdict(list)
        for case in comparison.cases:
            if case.ratios[place]:
                by_kernel[case.kernel, case.metric].append(case)
        for (kernel, metric), cases in by_kernel.items():
            promised = [specified(case.work, first, other) for case in cases]
            known = [ratio for ratio in promised if ratio]
            counted = [case.work for case in cases if case.work.flops or case.work.bytes]
            yield Scaling(
                kernel=kernel,
                metric=metric,
                first=comparison.names[0],
                platform=name,
                cases=len(cases),
                bounds=sorted({bound_of(work, gpu) for work in counted for gpu in (first, other)}),
                ratio=geometric_mean([case.ratios[place] or 1.0 for case in cases]),
                specified=geometric_mean(known) if known and len(known) == len(cases) else None,
            )


def specified(work: Work, first: Platform | None, other: Platform | None) -> float | None:
    """Return how much faster the limit of `other` is for `work`; None where a limit is not known."""
    slow, fast = (_shortest_s(work, gpu) for gpu in (first, other))
    return slow / fast if slow and fast else None


def _shortest_s(work: Work, gpu: Platform | None) -> float | None:
    """Return the time that the limit nearest to `work` allows."""
    if gpu is None:
        return None
    if bound_of(work, gpu) == "GB/s":
        return work.bytes / (gpu.memory_bandwidth_gb_s * 1e9)
    peak = gpu.tflops_limit(work.dtype or "")
    return work.flops / (peak * 1e12) if peak else None


# -- files ------------------------------------------------------------------------------------------


def page(groups: Mapping[str, PlatformComparison], other_code: Sequence[str]) -> str:
    lines = [
        (
            scaling.kernel,
            group.lower(),
            f"{scaling.platform} over {scaling.first}",
            f"{scaling.cases} ({scaling.metric})",
            format_ratio(scaling.ratio),
            ", ".join(scaling.bounds) or "-",
            format_ratio(scaling.specified) if scaling.specified else "-",
            format_share(scaling.share) if scaling.share else "-",
        )
        for group, comparison in groups.items()
        if group != MIXED
        for scaling in scalings(comparison)
    ]
    header = ("kernel", "figures", "ratio of", "cases", "ratio", "limit", "specified", "of specified")
    paths = dict.fromkeys(path for comparison in groups.values() for path in comparison.paths)
    parts = [
        f"# Platforms: {'; '.join(comparison.title for comparison in groups.values())}",
        f"Made {datetime.now(UTC):%Y-%m-%d} by `python -m studies platforms` of {', '.join(paths)}.",
        "## Scaling by kernel",
        SCALING,
        markdown(header, lines) if lines else "No case is measured in two files, or published in two.",
        *[f"{OTHER_CODE} {', '.join(sorted(dict.fromkeys(other_code), key=natural_order))}."]
        * bool(other_code),
        "![Ratios by kernel, and throughput over sizes](platforms.svg)",
    ]
    for group, comparison in groups.items():
        text = render_markdown(platform_document(comparison)).strip()
        parts += [f"## {group}, case by case", *[MIXED_RATIOS] * (group == MIXED), text]
    # With both GPUs a document above has these rows.
    if not any(comparison.nvidias for comparison in groups.values()):
        parts += [
            "## What NVIDIA published",
            f"{DOCUMENT}. research/reports/published-figures.md says where the document contradicts itself.",
            markdown(("", "metric", "GB10", "B300", "B300 over GB10"), [*_published()]),
        ]
    return "\n\n".join(parts) + "\n"


SCALING = """\
Geometric means over the cases of a kernel. Limit is what bounds the work of the cases on the two GPUs: peak
rate of the dtype (TFLOPS) or memory bandwidth (GB/s). Specified is the ratio of these limits. Below 100 % a
kernel scales less than its limit, as a kernel does that is bounded by latency. Published figures are not
compared with measured ones: kernels, timers and L2 states differ."""
OTHER_CODE = """\
Left out, because files of one architecture recorded these cases with different code, and their ratio would be
of the code as much as of the hardware:"""
MIXED_RATIOS = """\
No two files have figures of one kind. The ratios below are of published and measured figures: they include
the difference of kernels, timers and L2 states, and are no scaling of the hardware."""


def _published() -> Iterator[tuple[str, ...]]:
    for ratio in RATIOS:
        yield ratio.title, ratio.metric, "-", "-", format_ratio(ratio.ratio)
    generated = {(generation.kernel, generation.gpu): generation.tokens_per_s for generation in GENERATIONS}
    for kernel, title in (("qwen2-7b", "cuTile"), ("qwen2-7b_naive", "PyTorch")):
        one, other = generated[kernel, GB10], generated.get((kernel, B300))
        figures = (f"{one}", f"{other}", format_ratio(other / one)) if other else (f"{one}", "-", "-")
        yield f"Qwen2-7B, end to end, {title}", "tokens/s", *figures
    for pair in QWEN2_7B:
        figures = (f"{pair.gb10:.5g}", f"{pair.b300:.5g}", format_ratio(pair.ratio))
        calls = f", {pair.calls} calls" if pair.calls else ""
        yield f"Qwen2-7B, {pair.title}{calls}", "ms", *figures
    spark, b300 = SPECIFICATIONS[GB10], SPECIFICATIONS[B300]
    for title, unit, its, larger in (
        ("SMs", "", spark.sm_count, b300.sm_count),
        ("memory", "GB", spark.memory_gb, b300.memory_gb),
        ("memory bandwidth", "GB/s", spark.bandwidth_gb_s, b300.bandwidth_gb_s),
    ):
        yield title, unit, f"{its}", f"{larger}", format_ratio(larger / its)


def document(groups: Mapping[str, PlatformComparison]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "comparisons": [
            {"figures": group.lower(), **_comparison_document(comparison)}
            for group, comparison in groups.items()
        ],
        "published": {
            "source": DOCUMENT,
            "kernel_scaling": [asdict(ratio) for ratio in RATIOS],
            "end_to_end": [asdict(generation) for generation in GENERATIONS],
            "qwen2_7b": [asdict(pair) | {"ratio": pair.ratio} for pair in QWEN2_7B],
            "specifications": {gpu: asdict(specified) for gpu, specified in SPECIFICATIONS.items()},
        },
    }


def _comparison_document(comparison: PlatformComparison) -> dict[str, Any]:
    return {
        "platforms": [
            {"name": name, "gpu": file.gpu, "arch": file.arch, "file": path}
            for name, file, path in zip(comparison.names, comparison.files, comparison.paths, strict=True)
        ],
        "specifications": [
            {"title": limit.title, "unit": limit.unit.strip(), "values": [*limit.values]}
            for limit in limits_of(comparison.files)
        ],
        "scaling": [asdict(scaling) | {"share": scaling.share} for scaling in scalings(comparison)],
        "cases": [
            {
                "case": case.key,
                "metric": case.metric,
                "rates": [*case.rates],
                "ratios": case.ratios,
                "published": [*case.published],
            }
            for case in comparison.cases
        ],
    }


def rows_csv(groups: Mapping[str, PlatformComparison]) -> str:
    """Return a line for each case and platform that has it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("case", "platform", "metric", "rate", "published", "over_first"))
    for comparison in groups.values():
        for case in comparison.cases:
            for name, rate, is_published, ratio in zip(
                comparison.names, case.rates, case.published, [1.0, *case.ratios], strict=True
            ):
                if rate is not None:
                    writer.writerow((case.key, name, case.metric, rate, is_published, ratio))
    return text.getvalue()


STUDY = StoredStudy(
    name="platforms",
    summary="GPUs side by side from stored baselines, beside NVIDIA's comparison (needs no GPU)",
    pages=pages,
)
