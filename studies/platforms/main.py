"""The study: platforms compared as in NVIDIA's playbook, from files of baselines. It needs no GPU.

`pytest_cutile.reports.platforms` compares case by case; here that is summed up by kernel, beside what the
hardware promises, and kept with the published rows.
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

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.store import read_all, read_speed
from pytest_cutile.platforms.published import B300, DOCUMENT, GB10, QWEN2_7B, RATIOS, SPECIFICATIONS
from pytest_cutile.quantities import format_ratio, format_share
from pytest_cutile.reports.html.platforms import render_svg
from pytest_cutile.reports.markdown import render_markdown
from pytest_cutile.reports.platforms import (
    ComparedCase,
    Limit,
    PlatformComparison,
    compare_platforms,
    limits_of,
    platform_document,
)
from research.published_figures import GENERATIONS
from studies.running.files import to_json
from studies.running.study import StoredStudy
from tools.gpu_runs.measure import geometric_mean
from tools.gpu_runs.tables import markdown

BASELINES = Path(__file__).resolve().parents[2] / "baselines"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a kernel scales from the first platform to another one."""

    kernel: str
    metric: str
    platform: str
    cases: int
    ratio: float
    """Geometric mean of the cases' ratios."""
    specified: float | None
    """Likewise of what the hardware promises: bandwidth for GB/s, the peak of its dtype for TFLOPS."""

    @property
    def share(self) -> float | None:
        return self.ratio / self.specified if self.specified else None


def compare(paths: Sequence[Path]) -> PlatformComparison:
    """Compare files of baselines, by default all of this repository; the first one is what ratios are over.

    Raises:
        SystemExit: there are not two, or one cannot be used.
    """
    if paths:
        try:
            files, names = [read_speed(path) for path in paths], [*map(str, paths)]
        except BaselineError as error:
            raise SystemExit(f"{error}") from error
    else:
        files = sorted(read_all(BASELINES)[0], key=lambda file: file.gpu != GB10)
        names = [f"baselines/ ({file.arch})" for file in files]
    if len(files) < 2:
        raise SystemExit("the study platforms compares two files of baselines or more")
    return compare_platforms(files, names)


def pages(paths: Sequence[Path]) -> Mapping[str, str]:
    comparison = compare(paths)
    return {
        "platforms.md": page(comparison),
        "platforms.svg": render_svg(comparison),
        "rows.json": to_json(document(comparison)),
        "rows.csv": rows_csv(comparison),
    }


# -- figures ----------------------------------------------------------------------------------------


def scalings(comparison: PlatformComparison) -> Iterator[Scaling]:
    """Yield the scaling of each kernel to each platform but the first."""
    limits = limits_of(comparison.files)
    for place, name in enumerate(comparison.names[1:]):
        by_kernel: dict[tuple[str, str], list[ComparedCase]] = defaultdict(list)
        for case in comparison.cases:
            if case.ratios[place]:
                by_kernel[case.kernel, case.metric].append(case)
        for (kernel, metric), cases in by_kernel.items():
            promised = [_specified(limits, case, place) for case in cases]
            known = [ratio for ratio in promised if ratio]
            yield Scaling(
                kernel=kernel,
                metric=metric,
                platform=name,
                cases=len(cases),
                ratio=geometric_mean([case.ratios[place] or 1.0 for case in cases]),
                specified=geometric_mean(known) if known and len(known) == len(cases) else None,
            )


def _specified(limits: Sequence[Limit], case: ComparedCase, place: int) -> float | None:
    def bounds(limit: Limit) -> bool:
        return case.dtype in limit.dtypes if case.metric == "TFLOPS" else limit.title == "memory bandwidth"

    return next((limit.ratios[place] for limit in limits if bounds(limit)), None)


# -- files ------------------------------------------------------------------------------------------


def page(comparison: PlatformComparison) -> str:
    first = comparison.names[0]
    lines = [
        (
            scaling.kernel,
            scaling.platform,
            f"{scaling.cases} ({scaling.metric})",
            format_ratio(scaling.ratio),
            format_ratio(scaling.specified) if scaling.specified else "-",
            format_share(scaling.share) if scaling.share else "-",
        )
        for scaling in scalings(comparison)
    ]
    header = ("kernel", "platform", "cases", f"over {first}", "specified", "of specified")
    files = ", ".join(comparison.paths)
    parts = [
        f"# Platforms: {comparison.title}",
        f"Made {datetime.now(UTC):%Y-%m-%d} by `python -m studies platforms` of {files}.",
        "## Scaling by kernel",
        SCALING,
        markdown(header, lines) if lines else "No case is in two files.",
        "![Ratios by kernel, and throughput over sizes](platforms.svg)",
        "## Case by case",
        render_markdown(platform_document(comparison)).strip(),
    ]
    if not comparison.nvidias:  # with both GPUs the document above has these rows
        parts += [
            "## What NVIDIA published",
            f"{DOCUMENT}. research/reports/published-figures.md says where the document contradicts itself.",
            markdown(("", "metric", "GB10", "B300", "B300 over GB10"), [*_published()]),
        ]
    return "\n\n".join(parts) + "\n"


SCALING = """\
Geometric means over the cases of a kernel. Specified is the ratio of the memory bandwidths for GB/s, and of
the peak rates for TFLOPS: with a share below 100 % a kernel scales less than the hardware."""


def _published() -> Iterator[tuple[str, ...]]:
    for ratio in RATIOS:
        yield ratio.title, ratio.metric, "-", "-", format_ratio(ratio.ratio)
    generated = {(each.kernel, each.gpu): each.tokens_per_s for each in GENERATIONS}
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


def document(comparison: PlatformComparison) -> dict[str, Any]:
    """Return everything as plain data."""
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
        "published": {
            "source": DOCUMENT,
            "kernel_scaling": [asdict(ratio) for ratio in RATIOS],
            "end_to_end": [asdict(generation) for generation in GENERATIONS],
            "qwen2_7b": [asdict(pair) | {"ratio": pair.ratio} for pair in QWEN2_7B],
            "specifications": {gpu: asdict(specified) for gpu, specified in SPECIFICATIONS.items()},
        },
    }


def rows_csv(comparison: PlatformComparison) -> str:
    """Return a line for each case and platform that has it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("case", "platform", "metric", "rate", "published", "over_first"))
    for case in comparison.cases:
        ratios = [1.0, *case.ratios]
        for name, rate, is_published, ratio in zip(
            comparison.names, case.rates, case.published, ratios, strict=True
        ):
            if rate is not None:
                writer.writerow((case.key, name, case.metric, rate, is_published, ratio))
    return text.getvalue()


STUDY = StoredStudy(
    name="platforms",
    summary="GPUs side by side from stored baselines, beside NVIDIA's comparison (needs no GPU)",
    pages=pages,
)
