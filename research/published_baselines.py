"""Write the baselines that NVIDIA published into `baselines/`; what was measured since stays.

    python -m research.published_baselines

The figures are in `research/published_figures.py`, as printed. The time per launch comes from the
TFLOPS, which have more digits than the printed times, by NVIDIA's own count of the operations; the work is
counted as this project does.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from msgspec.structs import replace

from pytest_cutile.baselines.entries import Entry, Published, SpeedBaselines
from pytest_cutile.baselines.store import BaselineStore
from pytest_cutile.words.platforms.published import B300, DOCUMENT, GB10, SPECIFICATIONS
from research.published_figures import (
    FMHA_B300,
    FMHA_GB10,
    GENERATIONS,
    LADDER_GB10,
    MARGIN,
    Figure,
    Generation,
    fmha_work,
)

_TABLES = (
    (GB10, FMHA_GB10, "sample output of bench_fused_attention.py"),
    (GB10, LADDER_GB10, "performance results, DGX Spark, sequence length 2048"),
    (B300, FMHA_B300, "performance results, B300"),
)


def published_files() -> list[SpeedBaselines]:
    """Return the published baselines, one file per platform."""
    entries: dict[str, dict[str, Entry]] = {}
    for gpu, figures, table in _TABLES:
        entries.setdefault(gpu, {}).update({figure.key: _entry(figure, table) for figure in figures})
    for figure in GENERATIONS:
        entries[figure.gpu][figure.key] = _generation_entry(figure)
    return [
        SpeedBaselines(arch=SPECIFICATIONS[gpu].arch, gpu=gpu, entries=of_gpu)
        for gpu, of_gpu in entries.items()
    ]


def _entry(figure: Figure, table: str) -> Entry:
    printed = f"{figure.tflops:g} TFLOPS" + (f", {figure.latency_ms:g} ms" if figure.latency_ms else "")
    return Entry(
        published=Published(
            work=fmha_work(figure.length),
            median_us=round(figure.time_us, 3),
            margin=MARGIN,
            source=f"{DOCUMENT}: {table}",
            printed=f"{printed}, counted as half of 4 x 4 x 32 x N x N x 128",
            environment={"cuda": "13.1"},
        )
    )


def _generation_entry(figure: Generation) -> Entry:
    return Entry(
        published=Published(
            work=figure.work,
            median_us=round(figure.time_us, 3),
            margin=MARGIN,
            source=f"{DOCUMENT}: end-to-end inference, {figure.title}",
            printed=figure.printed,
            environment={"cuda": "13.1"},
        )
    )


def with_published(existing: SpeedBaselines, file: SpeedBaselines) -> SpeedBaselines:
    """Return `existing` with the published figures of `file` for the cases that nobody measured."""
    measured = {key: entry for key, entry in existing.entries.items() if entry.records}
    return replace(existing, entries={**existing.entries, **file.entries, **measured})


def main() -> None:
    """Write the files."""
    for file in published_files():
        store = BaselineStore(Path("baselines").resolve(), Path.cwd())
        store.record_speed(file.arch, file.gpu, partial(with_published, file=file))
        print(f"{store.speed_name(file.arch, file.gpu)}: {len(file.entries)} published figures")


if __name__ == "__main__":
    main()
