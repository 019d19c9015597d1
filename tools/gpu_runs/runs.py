"""A run over many cases: on which GPUs, for how long, and where the figures go after every case."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_cutile.words.platforms.lookup import gpu_slug
from tools.gpu_runs.processes import Pool, Start
from tools.gpu_runs.suites import select


@dataclass(frozen=True, kw_only=True)
class Job:
    """One case to measure."""

    suite: str
    """Name of the suite."""
    case: str
    """Name of the case."""

    def __str__(self) -> str:
        return f"{self.suite}[{self.case}]"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what both commands understand."""
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases whose name contains it")
    parser.add_argument(
        "--device", type=device_numbers, default=[0], metavar="0,1", help="GPUs, to share the cases"
    )
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS", help="begin no case after so long"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, after every case")


def device_numbers(text: str) -> list[int]:
    """Read "0,1" from a command line."""
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPUs' numbers, as in 0,1")
    return [int(number) for number in numbers]


def todays_name(gpu_name: str, *, quick: bool) -> str:
    """Return the name of a folder for what is measured today, as in "h200-2026-11-26-quick"."""
    gpu = gpu_slug(gpu_name).removeprefix("nvidia-")
    return f"{gpu}-{datetime.now(UTC):%Y-%m-%d}{'-quick' * quick}"


def positive(text: str) -> int:
    """Read an integer of at least 1 from a command line."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least 1")
    return int(text)


def require_gpus(devices: Sequence[int]) -> None:
    """Check that there are GPUs of these numbers, before processes are started that each find out.

    Raises:
        SystemExit: there are not; the message says what is missing.
    """
    from pytest_cutile.timing.gpu.nvml import NoGpuError, find_gpu, visible_uuids

    try:
        gpu = find_gpu()
    except NoGpuError as error:
        raise SystemExit(f"this has to run on a GPU: {error}") from error
    count = len(visible_uuids())
    if max(devices) >= count:
        raise SystemExit(f"--device {max(devices)}: visible GPUs are 0 to {count - 1} ({gpu.name})")


def select_jobs(options: argparse.Namespace) -> list[Job]:
    """Return the cases that the command line names.

    Raises:
        SystemExit: there are none.
    """
    jobs = [Job(suite=suite, case=case) for suite, case in select(options.names, options.case)]
    if not jobs:
        named = f" among {', '.join(options.names)}" if options.names else ""
        raise SystemExit(f"no case has {options.case!r} in its name{named}")
    return jobs


def run_jobs(
    jobs: Sequence[Job],
    options: argparse.Namespace,
    start: Start,
    show: Callable[[Job, Mapping[str, Any]], None],
    *,
    case_seconds: float,
    processes: int = 1,
) -> tuple[dict[str, Any], bool]:
    """Measure cases; return the document, and whether all is in it.

    Args:
        jobs: of `select_jobs`.
        options: of `add_options`, and `names`.
        start: prepares the process of a GPU, whose handler takes a Job and returns plain data, with the
            environment under "environment".
        show: prints a case.
        case_seconds: after so long a case is given up.
        processes: for each GPU; process N is of the N-th GPU, counted round and round.
    """
    begun = time.monotonic()
    document: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M}",
        "environment": {},
        "cases": [],
        "errors": {},
    }
    done = 0
    count = min(len(options.device) * processes, len(jobs))
    with Pool(count, start, task_seconds=case_seconds, nested=True) as pool:
        for number, outcome in pool.run(jobs, until=begun + options.budget):
            done += 1
            if outcome.error is not None:
                document["errors"][str(jobs[number])] = outcome.error
                print(f"\n{jobs[number]}\n  FAILED: {outcome.error}")
            else:
                document["environment"] = outcome.value.pop("environment")
                document["cases"].append(outcome.value)
                show(jobs[number], outcome.value)
            print(f"  {done} of {len(jobs)} cases, {time.monotonic() - begun:.0f} s")
            sys.stdout.flush()
            if options.json:
                write_document(options.json, document)
    if done < len(jobs):
        print(f"\n{len(jobs) - done} cases were not begun: the budget of {options.budget:g} s was spent.")
    return document, done == len(jobs) and not document["errors"]


def write_document(file: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file that is a whole one whenever this process ends."""
    beside = file.with_name(f"{file.name}.part")
    beside.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
    beside.replace(file)
