"""Run a study: `python -m studies list`, `python -m studies NAME [--quick]`. Most need a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from studies.running.compiling import compile_beforehand
from studies.running.files import write_texts
from studies.running.run import RESULTS, folder_of_today, gpu_timer, run_study
from studies.running.study import StoredStudy, Study
from tools.gpu_runs.measure import MakeTimer

FOLDER = Path(__file__).resolve().parent


def study_names() -> list[str]:
    return sorted(file.parent.name for file in FOLDER.glob("*/main.py"))


def load_study(name: str) -> Study | StoredStudy:
    study: Study | StoredStudy = import_module(f"studies.{name}.main").STUDY
    return study


def main(argv: Sequence[str] | None = None, *, make_timer: MakeTimer = gpu_timer) -> int:
    """Run what the command line names; return 1 if a row could not be timed."""
    parser = argparse.ArgumentParser(prog="python -m studies", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", choices=["list", *study_names()], help="a study, or list", metavar="NAME")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="of a study that reads files")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="for the files (studies/results/GPU-DATE); a run goes on there",
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes, in bursts alone")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains it")
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="begin no row after so long; the same command goes on later",
    )
    options = parser.parse_args(argv)
    if options.name == "list":
        for name in study_names():
            print(f"{name:14} {load_study(name).summary}")
        return 0
    study = load_study(options.name)
    if isinstance(study, StoredStudy):
        output = options.output or RESULTS / f"stored-{datetime.now(UTC):%Y-%m-%d}"
        print(*write_texts(output / study.name, study.pages(options.files)), sep="\n")
        return 0
    if options.files:
        parser.error(f"{study.name} measures: it reads no files")
    timer = make_timer()
    output = options.output or folder_of_today(timer, quick=options.quick)
    record = run_study(
        study,
        timer,
        output / study.name,
        quick=options.quick,
        prepare=compile_beforehand,
        only=options.only,
        budget_s=options.budget,
    )
    return 1 if record.errors else 0


if __name__ == "__main__":
    sys.exit(main())
