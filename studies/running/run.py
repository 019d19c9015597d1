"""Time the rows of a study, each checked first and stored at once, so that a run can be interrupted."""

from __future__ import annotations

import argparse
import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from pytest_cutile.gates.revisions.checkout import Checkout
from pytest_cutile.tile.tensors.seeded import MakeTensor, timed_seed
from pytest_cutile.tile.tensors.trees import map_tensors
from pytest_cutile.timing.gpu.lock import GpuLock
from pytest_cutile.timing.measure.blocks import measure
from pytest_cutile.timing.measure.call import Call, MeasurementFailed
from pytest_cutile.words.quantities import counted, format_time
from pytest_cutile.words.spec import Case, KernelSpec
from pytest_cutile.words.timing import LaunchFunction, Measurement, Timer, Uncapturable
from studies.running.files import ROWS, read_record, store_record, write_pages
from studies.running.study import BaseRecord, Record, Row, Study, TimedRow, timed_row
from tools.comparison.stream_timer import StreamTimer
from tools.gpu_runs.agreement import check_launch
from tools.gpu_runs.gpu_state import free_memory
from tools.gpu_runs.inputs import as_arguments
from tools.gpu_runs.measure import environment_of
from tools.gpu_runs.processes import describe
from tools.gpu_runs.runs import require_gpus, todays_name

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "studies" / "results"
"""Changes of it are no changes of what is measured."""
SOURCES = ("kernels", "models", "pytest_cutile", "studies", "tools")
GATE_CHECK_FLOPS = 2e11
"""Operations per launch up to which all of a case is checked by the gate's bounds: they need the float64
reference up to a dozen times. Of larger cases, a few parts are checked."""
GATE_CHECK_BYTES = 1e8
"""Likewise, bytes."""

Say: TypeAlias = Callable[[str], None]
Prepare: TypeAlias = Callable[[Study, Sequence[Row], str, Say], None]
print_now: Say = partial(print, flush=True)


def gpu_timer() -> Timer:
    """Return the speed gate's timer, on the first visible GPU.

    Raises:
        SystemExit: There is no GPU.
    """
    from pytest_cutile.timing.gpu.nvml import find_gpu
    from pytest_cutile.timing.measure.timer import CudaGraphTimer

    require_gpus([0])
    return CudaGraphTimer(find_gpu())


@contextmanager
def failing_in_words() -> Iterator[None]:
    """End a command in a line where it is interrupted or ended, or where its files cannot be written.

    Raises:
        SystemExit: Either.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # of batch systems, and `timeout`
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit("interrupted: the same command goes on with the rows that are left") from None
    except OSError as error:
        raise SystemExit(f"{error}; --output names another folder") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def folder_of_today(timer: Timer, *, quick: bool) -> Path:
    """Return the folder in `RESULTS` for what is measured now."""
    return RESULTS / todays_name(timer.device.name, quick=quick)


def positive_seconds(text: str) -> float:
    """Return a number of seconds that a command line gives."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text} is no time in seconds")
    return seconds


def add_run_options(parser: argparse.ArgumentParser, *, quick: str) -> None:
    """Add what every command that measures takes; `quick` is the help of --quick."""
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="for the files (studies/results/GPU-DATE); a run goes on there",
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--budget",
        type=positive_seconds,
        default=math.inf,
        metavar="SECONDS",
        help="begin no row after so long; the same command goes on later",
    )


def environment_here(timer: Timer) -> dict[str, str]:
    """Return what makes figures comparable: GPU, driver, libraries, commit, and what changed since it."""
    commit = Checkout(ROOT, baselines=RESULTS).commit
    return {
        **environment_of(timer),
        "uuid": timer.device.uuid,
        "commit": commit,
        "sources": digest_of_sources(ROOT),
    }


def digest_of_sources(root: Path) -> str:
    """Return a digest of all Python that a study may run, whether it is committed or not."""
    digest = hashlib.sha256()
    for file in sorted(file for name in SOURCES for file in (root / name).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def refuse_problems(timer: Timer) -> None:
    """Leave a GPU alone that is busy or throttled.

    Raises:
        SystemExit: It is.
    """
    if problems := timer.problems():
        raise SystemExit(f"the GPU is not fit to measure on: {'; '.join(problems)}; run it again later")


def prepare_nothing(study: Study, rows: Sequence[Row], arch: str, say: Say) -> None:
    """Leave everything to the first launch of each row."""


def run_study(
    study: Study,
    timer: Timer,
    folder: Path,
    *,
    quick: bool = False,
    say: Say = print_now,
    prepare: Prepare = prepare_nothing,
    only: str = "",
    budget_s: float = math.inf,
) -> Record:
    """Time what `folder` does not hold yet of a study, and write its files.

    Args:
        study: What to time.
        timer: Of this process's GPU.
        folder: Of this study's files.
        quick: Whether fewer cases, in bursts alone, are enough.
        say: Prints a line.
        prepare: Called with the rows to time of each kernel before the first of them, for instance
            `compiling.compile_beforehand`.
        only: Rows whose key contains it; all others are left as they are stored.
        budget_s: Begin no row after so many seconds.

    Raises:
        SystemExit: The GPU is busy or throttled, no row is meant by `only`, or `folder` holds rows of another
            environment.
        OSError: The files cannot be written.
    """
    rows = study.rows(quick)
    new = Record(
        study=study.name,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        quick=quick,
        environment=environment_here(timer),
        missing={row.contender.name: row.contender.missing for row in rows if row.contender.missing},
    )
    record = read_record(folder / ROWS, new)
    stored = {row.key for row in record.rows}
    if strange := stored - {row.key for row in rows}:
        raise SystemExit(
            f"{folder / ROWS} has rows that {study.name} does not have, {min(strange)} for one; "
            "choose another --output"
        )
    record.planned = sum(not row.contender.missing for row in rows)
    to_time = [row for row in rows if row.key not in stored and not row.contender.missing and only in row.key]
    if not any(only in row.key for row in rows):
        raise SystemExit(f"no row of {study.name} has {only!r} in its name; one is {rows[0].key}")
    if to_time:
        refuse_problems(timer)
    store_record(folder / ROWS, record)  # before anything is timed: what cannot be stored is not measured
    say(f"{study.name}: {counted(len(to_time), 'row')} to time, {len(stored)} stored in {folder}")

    def ready(of_kernel: Sequence[Row]) -> None:
        prepare(study, of_kernel, timer.device.arch, say)

    timed = _time_rows(study, timer, to_time, quick=quick, ready=ready)
    store = partial(store_record, folder / ROWS, record)
    try:
        add_outcomes(record, rows, timed, len(to_time), _line, store=store, say=say, budget_s=budget_s)
    finally:  # who interrupts a run reads what there is
        say("\n".join(["wrote", *(f"  {file}" for file in write_pages(folder, study, record))]))
    return record


def add_outcomes(
    record: BaseRecord,
    rows: Sequence[Row],
    outcomes: Iterable[tuple[Row, Any]],
    count: int,
    line: Callable[[Row, Any], str],
    *,
    store: Callable[[], object],
    say: Say,
    budget_s: float,
) -> None:
    """Add outcomes to a record, one by one: store it, and say the outcome and the time left.

    Args:
        record: What was measured before.
        rows: All rows, in the order in which a record has them.
        outcomes: Rows with what was measured of them, or with a text that says why nothing was.
        count: How many outcomes there are.
        line: Returns an outcome in words.
        store: Stores the record.
        say: Prints a line.
        budget_s: End after so many seconds.
    """
    order = [row.key for row in rows]
    begun = time.monotonic()
    for done, (row, outcome) in enumerate(outcomes, 1):
        if isinstance(outcome, str):
            record.errors[row.key] = outcome
        else:
            record.rows.append(outcome)
            record.rows.sort(key=lambda row: order.index(row.key))
            record.errors.pop(row.key, None)  # of an earlier run
        store()
        seconds = time.monotonic() - begun
        left = seconds / done * (count - done)
        say(f"  {done} of {count}  {line(row, outcome)}  ({seconds:.0f} s, {left:.0f} s left)")
        if seconds > budget_s and done < count:
            say(f"  {counted(count - done, 'row')} left: the same command goes on with them")
            return


def _line(row: Row, outcome: TimedRow | str) -> str:
    if isinstance(outcome, str):
        return f"{row.key}: NOT TIMED: {outcome}"
    timing = outcome.headline
    text = f"{row.key}: {format_time(timing.us)}"
    rate = timing.tflops if outcome.bound == "TFLOPS" else timing.gb_per_s
    text += f", {rate:.4g} {outcome.bound}" if rate else ""
    text += ", on a stream" if outcome.why_on_stream else ""
    return text + (f", {timing.speedup:.3f} x {outcome.beside}" if timing.speedup else "")


def _time_rows(
    study: Study, timer: Timer, rows: Sequence[Row], *, quick: bool, ready: Callable[[Sequence[Row]], None]
) -> Iterator[tuple[Row, TimedRow | str]]:
    """Yield each row with its times, or why it has none: a contender that fails leaves the others alone.

    `ready` gets the rows of each kernel before the first of them.
    """
    lock = GpuLock(timer.device.uuid)
    for _, of_kernel in groupby(rows, key=lambda row: row.kernel):
        together = [*of_kernel]
        ready(together)
        for case, of_case in groupby(together, key=lambda row: row.case):
            free_memory()
            spec = study.spec_of(together[0])
            prepared = _PreparedCase(
                spec=spec, case=case, device=timer.device.torch_device, sampled_flops=study.sampled_flops
            )
            for row in of_case:
                try:
                    with lock.alone():
                        yield row, _time_row(timer, prepared, row, sustained=not quick)
                except Exception as error:  # noqa: BLE001 - whatever a contender raises
                    yield row, describe(error).partition("\n")[0]


def _time_row(timer: Timer, prepared: _PreparedCase, row: Row, *, sustained: bool) -> TimedRow | str:
    """Time a row; where no CUDA graph can be made of it, on a stream, as what it is compared with."""
    prepared.check(row)
    args, kwargs = as_arguments(prepared.inputs)

    def measure_by(timer: Timer) -> Measurement:
        return measure(
            timer,
            row.key,
            prepared.spec.work_of(row.case),
            _BoundCall(row.contender.on, args, kwargs),
            baseline=row.beside.on if row.beside else None,
            sustained=sustained,
        )

    why_on_stream = ""
    try:
        measurement = measure_by(timer)
    except MeasurementFailed as error:
        if not isinstance(error.__cause__, Uncapturable):
            raise
        why_on_stream = f"{error.__cause__}".partition("\n")[0]
        measurement = measure_by(StreamTimer(timer))
    if measurement.problems:
        return f"the GPU was disturbed: {'; '.join(measurement.problems)}"
    return timed_row(row, measurement, why_on_stream=why_on_stream)


class _BoundCall(Call):
    """Calls a contender, of which `function` is `Contender.on`."""

    def on(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> LaunchFunction:
        launch: Any = self.function(*arguments)
        return launch  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class _PreparedCase:
    """The arguments of a case, and what is right."""

    spec: KernelSpec
    case: Case
    device: str
    sampled_flops: float
    """Of the study."""

    @cached_property
    def inputs(self) -> Any:
        seed = timed_seed(self.spec, self.case)
        return self.spec.make_inputs(
            partial(MakeTensor, device=self.device, seed=seed, signed_rows=False), self.case
        )

    @cached_property
    def expected(self) -> Any:
        """What the reference computes in float64."""
        doubles = map_tensors(
            lambda tensor: tensor.double() if tensor.dtype.is_floating_point else tensor, self.inputs
        )
        args, kwargs = as_arguments(doubles)
        return self.spec.reference(*args, **kwargs)

    def check(self, row: Row) -> None:
        """Compare a contender with the reference: by the gate's bounds, in a few parts of large cases.

        Peers, of which nobody knows what they round, are compared coarsely, and so are the largest cases.

        Raises:
            ValueError: It is wrong.
            KernelMismatch: Likewise.
        """
        args, kwargs = as_arguments(self.inputs)
        contender, work = row.contender, self.spec.work_of(self.case)
        has_bounds = contender.spec or not contender.is_peer
        if has_bounds and work.flops <= self.sampled_flops:
            spec = replace(contender.spec or self.spec, launch=contender.launch)
            is_affordable = work.flops <= GATE_CHECK_FLOPS and work.bytes <= GATE_CHECK_BYTES
            check_launch(spec, self.case, args, kwargs, sampled=not is_affordable)
        elif said := contender.difference(contender.launch(*args, **kwargs), self.expected, self.inputs):
            raise ValueError(f"it is wrong: {said}")
