"""Test the cache model with hardware counters: `python -m studies.sawtooth.counters [--output DIR]`.

Counts what the study times, launch by launch. Needs Nsight Compute (`ncu`), and a GPU whose counters may be
read; without either it says what helps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cutile.reports.html.plots import Dot, PlottedLine, lines_plot
from pytest_cutile.tile.tensors.seeded import MakeTensor
from pytest_cutile.timing.gpu.lock import GpuLock
from pytest_cutile.timing.profiling.counters import KernelCounters
from pytest_cutile.timing.profiling.ncu import NO_PERMISSION, ProfilingError, collect, find_ncu
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.quantities import counted
from studies.running.files import drawing, read_record, store_record, write_texts
from studies.running.run import (
    add_outcomes,
    add_run_options,
    environment_here,
    failing_in_words,
    folder_of_today,
    gpu_timer,
    print_now,
    refuse_problems,
)
from studies.running.study import BaseRecord, Row
from studies.sawtooth.cache import SECTOR_BYTES
from studies.sawtooth.kernel import SPEC
from studies.sawtooth.main import IN_ORDER, TURNING, Walker, kv_mib, predict, rows
from tools.gpu_runs.measure import MakeTimer
from tools.gpu_runs.tables import markdown

if TYPE_CHECKING:
    from markupsafe import Markup

METRICS = (
    "lts__t_sectors_srcunit_tex.sum",
    "lts__t_sectors_srcunit_tex_lookup_miss.sum",
    "lts__t_sectors_lookup_miss.sum",
    "dram__bytes_read.sum",
    "gpu__time_duration.sum",
)
"""What multiprocessors asked of the L2 and missed there, all that missed, and what came from memory: names of
Nsight Compute (docs.nvidia.com/nsight-compute/ProfilingGuide, "Metrics Reference")."""
TIMEOUT_S = 120.0
FILE = "counters.json"


@dataclass(frozen=True, kw_only=True)
class CountedRow:
    """What was counted of one launch beside what the model predicts."""

    key: str
    case: str
    contender: str
    kv_mib: int
    counters: Mapping[str, float | None]
    """Each of `METRICS`; None where the GPU does not count it."""
    predicted_missed_l2: float | None = None
    """Bytes; None for other kernels, and where nothing says how large the L2 is."""
    predicted_missed_half_l2: float | None = None
    """Likewise, where two copies of each byte are in the L2."""


@dataclass(kw_only=True)
class Counts(BaseRecord):
    """Everything that was counted."""

    rows: list[CountedRow] = field(default_factory=list)


def launch_once(key: str) -> None:
    """Launch a row's kernel, and let the profiler see the second launch: the first one compiles.

    Raises:
        SystemExit: The study has no such row.
    """
    import torch

    row = next((row for row in rows(False) if row.key == key), None)
    if row is None:
        raise SystemExit(f"the study sawtooth has no row {key}")
    make_tensor = partial(MakeTensor, device="cuda", seed=0, signed_rows=False)
    inputs = SPEC.make_inputs(make_tensor, row.case)
    row.contender.launch(**inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    row.contender.launch(**inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def compared(row: Row, gpu_name: str, counters: KernelCounters) -> CountedRow:
    """Return what was counted for a launch beside what the model predicts."""
    gpu, walker = find_platform(gpu_name), row.contender
    missed: list[float | None] = [None, None]
    if isinstance(walker, Walker) and gpu is not None and gpu.cuda_reports is not None:
        predictions = [
            predict(gpu, row.case.params, copies=copies, one_in=walker.one_in) for copies in (1, 2)
        ]
        missed = [
            (prediction.turning if walker.turning else prediction.in_order).missed
            for prediction in predictions
        ]
    return CountedRow(
        key=row.key,
        case=row.case.name,
        contender=walker.name,
        kv_mib=kv_mib(row.case),
        counters={metric: counters.values.get(metric) for metric in METRICS},
        predicted_missed_l2=missed[0],
        predicted_missed_half_l2=missed[1],
    )


def pages(record: Counts) -> dict[str, str]:
    """Return the text of each file by its name."""
    return {
        "counters.md": page(record),
        "counters.svg": drawing(
            "Bytes from memory, counted and predicted",
            {
                f"{name}; the model is of half of the L2": plot(record, causal=causal)
                for name, causal in (("All keys", False), ("Causal", True))
            },
        ),
    }


def plot(record: Counts, *, causal: bool) -> Markup:
    """Return what a launch on all SMs read from memory, beside what the model expects of half of the L2."""
    lines = []
    for name, read in (("counted", counted_mb), ("model", predicted_mb)):
        for contender in (IN_ORDER.name, TURNING.name):
            dots = [
                Dot(x=row.kv_mib, y=mb, title=f"{contender}, {name}, {row.kv_mib} MiB: {mb:.0f} MB")
                for row in record.rows
                if row.contender == contender and ("causal" in row.case) is causal and (mb := read(row))
            ]
            lines.append(PlottedLine(name=f"{contender}, {name}", dots=dots))
    return lines_plot(
        lines, x_title="K and V, MiB", y_title="MB from memory", label="MB by size of K and V", is_log_y=True
    )


def counted_mb(row: CountedRow) -> float | None:
    read = row.counters["dram__bytes_read.sum"]
    return None if read is None else read / 1e6


def predicted_mb(row: CountedRow) -> float | None:
    """Return what half of the L2 misses without the results that are written, which are half of K and V."""
    missed = row.predicted_missed_half_l2
    return None if missed is None else (missed - row.kv_mib * 2**20 / 2) / 1e6


def page(record: Counts) -> str:
    """Return the table of what was counted beside what was predicted."""

    def mb(value: float | None, factor: float = 1.0) -> str:
        return "-" if value is None else f"{value * factor / 1e6:.0f}"

    lines = [
        (
            row.case,
            row.contender,
            f"{row.kv_mib}",
            mb(row.counters[METRICS[0]], SECTOR_BYTES),
            mb(row.counters[METRICS[1]], SECTOR_BYTES),
            mb(row.counters["dram__bytes_read.sum"]),
            mb(row.predicted_missed_l2),
            mb(row.predicted_missed_half_l2),
        )
        for row in record.rows
    ]
    header = (
        "case",
        "",
        "K and V, MiB",
        "looked up, MB",
        "missed",
        "from memory",
        "predicted",
        "half the L2",
    )
    failed = "".join(f"\n\nNot counted: {key}: {why}" for key, why in record.errors.items())
    environment = ", ".join(f"{name} {value}" for name, value in record.environment.items())
    return f"""# Misses of the L2, counted and predicted

Counted {record.date} on {environment}, by `python -m studies.sawtooth.counters{" --quick" * record.quick}`.
Megabytes of one launch; results that are written count as missed in the prediction.

{markdown(header, lines)}{failed}

![Bytes from memory by size of K and V, counted and predicted](counters.svg)
"""


def _count(to_count: Sequence[Row], gpu_name: str, lock: GpuLock) -> Iterator[tuple[Row, CountedRow | str]]:
    """Yield each row with what was counted, or why nothing was.

    Raises:
        SystemExit: Nobody may read the counters.
    """
    for row in to_count:
        command = [sys.executable, "-m", "studies.sawtooth.counters", "--one", row.key]
        try:
            with lock.alone():
                *_, last = collect(command, sections=(), metrics=METRICS, timeout_s=TIMEOUT_S)
        except ProfilingError as error:
            if NO_PERMISSION in str(error):
                raise SystemExit(f"{error}") from error
            yield row, str(error)
        else:
            yield row, compared(row, gpu_name, last)


def _line(row: Row, outcome: CountedRow | str) -> str:
    if isinstance(outcome, str):
        return f"{row.key}: NOT COUNTED: {outcome}"
    read, predicted = outcome.counters["dram__bytes_read.sum"], outcome.predicted_missed_l2
    said = ["-" if size is None else f"{size / 1e6:.0f} MB" for size in (read, predicted)]
    return f"{row.key}: {said[0]} from memory, {said[1]} predicted"


def count(make_timer: MakeTimer, output: Path | None, *, quick: bool, budget_s: float) -> int:
    """Count what the folder does not hold yet, and store it after each launch; return 1 if anything failed.

    Raises:
        SystemExit: There is no ncu or no GPU, the GPU is busy, counters may not be read, or the folder holds
            rows of another environment.
        OSError: The files cannot be written.
    """
    try:
        find_ncu()
    except ProfilingError as error:
        raise SystemExit(f"{error}") from error
    timer = make_timer()
    folder = (output or folder_of_today(timer, quick=quick)) / "sawtooth"
    new = Counts(
        study="sawtooth",
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        quick=quick,
        environment=environment_here(timer),
    )
    record = read_record(folder / FILE, new)
    stored = {row.key for row in record.rows}
    of_study = rows(quick)
    to_count = [row for row in of_study if row.key not in stored]
    if to_count:
        refuse_problems(timer)
    store_record(folder / FILE, record)  # before anything is counted

    def store() -> None:
        store_record(folder / FILE, record)
        write_texts(folder, pages(record))

    print_now(f"{counted(len(to_count), 'row')} to count, {len(stored)} stored in {folder / FILE}")
    outcomes = _count(to_count, timer.device.name, GpuLock(timer.device.uuid))
    add_outcomes(
        record, of_study, outcomes, len(to_count), _line, store=store, say=print_now, budget_s=budget_s
    )
    return 1 if record.errors else 0


def main(argv: Sequence[str] | None = None, *, make_timer: MakeTimer = gpu_timer) -> int:
    """Run what the command line says; return 1 if anything could not be counted."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.sawtooth.counters", description="Count what the L2 misses, beside the model."
    )
    add_run_options(parser, quick="fewer lengths")
    parser.add_argument("--one", metavar="ROW", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        launch_once(options.one)
        return 0
    with failing_in_words():
        return count(make_timer, options.output, quick=options.quick, budget_s=options.budget)


if __name__ == "__main__":
    sys.exit(main())
