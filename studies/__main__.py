"""Run a study on this machine's GPU: `python -m studies list`, `python -m studies NAME [--quick]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from pytest_cutile.platforms.lookup import gpu_slug
from pytest_cutile.speed.measure.timing import Timer
from studies.running.compiling import compile_beforehand
from studies.running.run import RESULTS, run_study
from studies.running.study import Study
from tools.gpu_runs.measure import MakeTimer
from tools.gpu_runs.runs import require_gpus

FOLDER = Path(__file__).resolve().parent


def study_names() -> list[str]:
    return sorted(file.parent.name for file in FOLDER.glob("*/main.py"))


def load_study(name: str) -> Study:
    study: Study = import_module(f"studies.{name}.main").STUDY
    return study


def gpu_timer() -> Timer:
    """Return the speed gate's timer, on the first visible GPU."""
    from pytest_cutile.gpu.nvml import find_gpu
    from pytest_cutile.speed.measure.timer import CudaGraphTimer

    require_gpus([0])
    return CudaGraphTimer(find_gpu())


def main(argv: Sequence[str] | None = None, *, make_timer: MakeTimer = gpu_timer) -> int:
    """Run what the command line names; return 1 if a row could not be timed."""
    parser = argparse.ArgumentParser(prog="python -m studies", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", choices=["list", *study_names()], help="a study, or list", metavar="NAME")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="for the files (studies/results/GPU-DATE); a run goes on there",
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes, in bursts alone")
    options = parser.parse_args(argv)
    if options.name == "list":
        for name in study_names():
            print(f"{name:14} {load_study(name).summary}")
        return 0
    study, timer = load_study(options.name), make_timer()
    gpu = gpu_slug(timer.device.name).removeprefix("nvidia-")
    day = f"{gpu}-{datetime.now(UTC):%Y-%m-%d}{'-quick' * options.quick}"
    output = options.output or RESULTS / day
    record = run_study(study, timer, output / study.name, quick=options.quick, prepare=compile_beforehand)
    return 1 if record.errors else 0


if __name__ == "__main__":
    sys.exit(main())
