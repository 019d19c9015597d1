"""Write the baselines that NVIDIA published into `baselines/`; what was measured since stays.

    python -m benchmarks.published_baselines

The figures are in `pytest_cutile/core/published.py`, as printed. The time per launch comes from the TFLOPS,
which have more digits than the printed times, by NVIDIA's own count of the operations; the work is counted as
this project does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pytest_cutile.core.baselines import (
    BaselineFile,
    Entry,
    Published,
    baseline_path,
    record_entries,
)
from pytest_cutile.core.published import (
    B300,
    DOCUMENT,
    FMHA_B300,
    FMHA_GB10,
    GB10,
    LADDER_GB10,
    MARGIN,
    SPECIFICATIONS,
    Figure,
    fmha_work,
)

_TABLES = (
    (GB10, FMHA_GB10, "sample output of bench_fused_attention.py"),
    (GB10, LADDER_GB10, "performance results, DGX Spark, sequence length 2048"),
    (B300, FMHA_B300, "performance results, B300"),
)


def published_files() -> list[BaselineFile]:
    """Return the published baselines, one file per platform."""
    entries: dict[str, dict[str, Entry]] = {}
    for gpu, figures, table in _TABLES:
        entries.setdefault(gpu, {}).update({figure.key: _entry(figure, table) for figure in figures})
    return [
        BaselineFile(arch=SPECIFICATIONS[gpu].arch, gpu=gpu, entries=found) for gpu, found in entries.items()
    ]


def _entry(figure: Figure, table: str) -> Entry:
    printed = f"{figure.tflops:g} TFLOPS" + (f", {figure.latency_ms:g} ms" if figure.latency_ms else "")
    return Entry(
        work=fmha_work(figure.length),
        published=Published(median_us=round(figure.time_us, 3), margin=MARGIN, source=f"{DOCUMENT}: {table}"),
        environment={"cuda": "13.1"},
        provenance={
            "by": "benchmarks/published_baselines.py",
            "printed": f"{printed}, counted as half of 4 x 4 x 32 x N x N x 128",
            "margin": "why: pytest_cutile/core/published.py",
        },
    )


def missing(file: BaselineFile, existing: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of `file` for which `existing` has no measurements."""
    return {
        key: entry for key, entry in file.entries.items() if key not in existing or not existing[key].runs
    }


def main() -> None:
    """Write the files."""
    for file in published_files():
        path = baseline_path(Path("baselines"), file.arch, file.gpu)
        record_entries(path, arch=file.arch, gpu=file.gpu, renew=partial(missing, file))
        print(f"{path}: {len(file.entries)} published figures")


if __name__ == "__main__":
    main()
