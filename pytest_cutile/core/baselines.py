"""Speed baselines: one JSON file per platform."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_cutile.core.baseline_files import (
    BaselineError,
    bad_entry,
    one_line,
    read_document,
    rewriting,
    write_document,
)
from pytest_cutile.core.platforms import gpu_slug
from pytest_cutile.core.spec import Work
from pytest_cutile.core.statistics import median

SCHEMA = 1
"""Version of the file's form that this release writes and reads."""
MAX_RUNS = 12
"""Runs kept per entry. The first ones stay: a reference that follows every run drifts with them."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One recorded measurement: one process on one GPU."""

    at: str
    """When, ISO 8601 in UTC."""
    median_us: float
    """Median time per launch, in microseconds."""
    spread: float
    """Half interquartile range of the samples over their median."""
    samples: int
    """Number of samples."""
    gpu_uuid: str
    """The board that was measured."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one case is compared with."""

    work: Work
    """What one launch did when it was recorded."""
    runs: tuple[Run, ...]
    """The measurements, oldest first; at least one."""
    environment: Mapping[str, str]
    """Driver, compiler, versions, power limit: the same for all runs of the entry."""
    provenance: Mapping[str, str]
    """Who recorded it, from which commit, and the reason if it was slower than what it replaced."""

    @property
    def median_us(self) -> float:
        """The reference: the median over the runs, in microseconds per launch."""
        return median([run.median_us for run in self.runs])

    def with_run(self, run: Run, *, environment: Mapping[str, str], provenance: Mapping[str, str]) -> Entry:
        """Return this entry with one more run; runs of another environment do not mix, so they go."""
        kept = self.runs if dict(environment) == dict(self.environment) else ()
        return replace(
            self,
            runs=(*kept, run)[:MAX_RUNS],
            environment=dict(environment),
            provenance={**self.provenance, **provenance},
        )


@dataclass(frozen=True, kw_only=True)
class BaselineFile:
    """The recorded entries of one platform."""

    arch: str
    """Architecture the entries were measured on."""
    gpu: str
    """GPU they were measured on, as NVML names it."""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """By case key, e.g. "softmax[bf16-4096x8192]"."""


def baseline_path(base: Path, arch: str, gpu: str) -> Path:
    """Return the file for a platform: `base` itself if it is a JSON file, else <arch>-<gpu>.json in it."""
    return base if base.suffix == ".json" else base / f"{arch}-{gpu_slug(gpu)}.json"


def read_baselines(path: Path) -> BaselineFile | None:
    """Read a baseline file; None when there is none.

    Raises:
        BaselineError: it cannot be read, holds a merge conflict, has a newer schema, or lacks a key.
    """
    data = read_document(path, schema=SCHEMA)
    if data is None:
        return None
    key = "arch"
    try:
        arch, gpu = str(data["arch"]), str(data[key := "gpu"])
        entries: dict[str, Entry] = {}
        raw_entries = data[key := "entries"]
        for name, raw in raw_entries.items():
            key = f"entries / {name}"
            entries[name] = Entry(
                work=Work(**raw["work"]),
                runs=tuple(_parse_run(run) for run in raw["runs"]),
                environment={str(k): str(v) for k, v in raw["environment"].items()},
                provenance={str(k): str(v) for k, v in raw["provenance"].items()},
            )
            if not entries[name].runs:
                raise ValueError("it has no runs")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise bad_entry(path, key, error) from error
    return BaselineFile(arch=arch, gpu=gpu, entries=entries)


def _parse_run(raw: Mapping[str, Any]) -> Run:
    run = Run(**raw)
    numbers = {"median_us": run.median_us, "spread": run.spread, "samples": run.samples}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"{name} is {value!r}, not a number that was measured")
    if not run.median_us > 0:
        raise ValueError(f"median_us is {run.median_us!r}, not a positive number")
    if not isinstance(run.at, str) or not isinstance(run.gpu_uuid, str):
        raise ValueError("at and gpu_uuid must be texts")  # noqa: TRY004 - a bad file, not a bad call
    return run


def record_entry(
    path: Path, key: str, *, arch: str, gpu: str, renew: Callable[[Entry | None], Entry]
) -> Entry:
    """Put `renew(the entry as it is on disk now)` into the file at `path`, under a lock; others stay.

    Raises:
        BaselineError: the existing file cannot be used, belongs to another GPU, or cannot be written.
    """
    with rewriting(path) as path:  # noqa: PLR1704 - the same file, with links resolved
        existing = read_baselines(path) or BaselineFile(arch=arch, gpu=gpu)
        if (existing.arch, existing.gpu) != (arch, gpu):
            raise BaselineError(
                f"{path} belongs to {existing.gpu} ({existing.arch}), not to {gpu} ({arch}): nothing was "
                "written. Give --perf-baseline a directory, and each platform gets its own file."
            )
        entry = renew(existing.entries.get(key))
        merged = {**existing.entries, key: entry}
        write_document(path, render(BaselineFile(arch=arch, gpu=gpu, entries=merged)))
    return entry


def render(file: BaselineFile) -> str:
    """Return the text of a baseline file: sorted, a few lines per case, one line per run."""
    blocks = []
    for name in sorted(file.entries):
        entry = file.entries[name]
        runs = ",\n".join(f"    {one_line(asdict(run))}" for run in entry.runs)
        work = {key: value for key, value in asdict(entry.work).items() if value is not None}
        blocks.append(
            f"  {json.dumps(name)}: {{\n"
            f'   "work": {one_line(work)},\n'
            f'   "environment": {one_line(entry.environment)},\n'
            f'   "provenance": {one_line(entry.provenance)},\n'
            f'   "runs": [\n{runs}\n   ]\n'
            "  }"
        )
    body = ",\n".join(blocks)
    head = f' "schema": {SCHEMA},\n "arch": {json.dumps(file.arch)},\n "gpu": {json.dumps(file.gpu)},\n'
    return f'{{\n{head} "entries": {{\n{body}\n }}\n}}\n'


def environment_changes(then: Mapping[str, str], now: Mapping[str, str]) -> Sequence[str]:
    """Return what differs between two environments, one "name: then -> now" each, sorted."""
    return [
        f"{name}: {then.get(name, 'unknown')} -> {now.get(name, 'unknown')}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
