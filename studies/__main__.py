"""Run a study: `python -m studies list`, `python -m studies NAME [--quick]`. Most need a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

INSTALL = "is not installed: pip install -e '.[all]'"
try:
    from studies.running.compiling import compile_beforehand
    from studies.running.files import ROWS, store_record, write_pages, write_texts
    from studies.running.join import join_records, study_of
    from studies.running.run import (
        RESULTS,
        add_run_options,
        failing_in_words,
        folder_of_today,
        gpu_timer,
        run_study,
    )
    from studies.running.study import StoredStudy, Study
    from tools.gpu_runs.measure import MakeTimer
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} {INSTALL}") from error

FOLDER = Path(__file__).resolve().parent


def study_names() -> list[str]:
    return sorted(file.parent.name for file in FOLDER.glob("*/main.py"))


def load_study(name: str) -> Study | StoredStudy:
    """Return a study by its name.

    Raises:
        SystemExit: A package that it needs is not installed.
    """
    try:
        study: Study | StoredStudy = import_module(f"studies.{name}.main").STUDY
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} {INSTALL}") from error
    return study


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    commands.add_parser("list", help="the studies, and what each shows")
    joined = commands.add_parser("join", help="one record of parts that several GPUs of one kind timed")
    joined.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="of one study, with rows.json"
    )
    joined.add_argument("--output", type=Path, metavar="DIR", required=True, help="for the files")
    for name in study_names():
        study = load_study(name)
        explained = f"{study.summary[0].upper()}{study.summary[1:]}. See studies/{name}/README.md."
        own = commands.add_parser(name, help=study.summary, description=explained)
        if isinstance(study, StoredStudy):
            own.add_argument("files", nargs="*", type=Path, metavar="FILE", help="what it reads")
            own.add_argument("--quick", action="store_true", help="no difference: it measures nothing")
            own.add_argument(
                "--output", type=Path, metavar="DIR", help="for the files (studies/results/stored-DATE)"
            )
            continue
        add_run_options(own, quick="fewer sizes, in bursts alone")
        own.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains it")
    return parser.parse_args(argv)


def join(folders: Sequence[Path], output: Path) -> list[Path]:
    """Write one record of parts of a study, and its pages; return the files.

    Raises:
        SystemExit: As `join_records`.
    """
    study = load_study(study_of(folders[0]))
    if isinstance(study, StoredStudy):
        raise SystemExit(f"{study.name} has no rows to join: it reads files")
    record, folder = join_records(folders, study), output / study.name
    store_record(folder / ROWS, record)
    return [folder / ROWS, *write_pages(folder, study, record)]


def main(argv: Sequence[str] | None = None, *, make_timer: MakeTimer = gpu_timer) -> int:
    """Run what the command line names; return 1 if a row could not be timed."""
    options = parse(argv)
    if options.name == "join":
        with failing_in_words():
            print(*join(options.folders, options.output), sep="\n")
        return 0
    if options.name == "list":
        for name in study_names():
            print(f"{name:15} {load_study(name).summary}")
        return 0
    study = load_study(options.name)
    with failing_in_words():
        if isinstance(study, StoredStudy):
            output = options.output or RESULTS / f"stored-{datetime.now(UTC):%Y-%m-%d}"
            print(*write_texts(output / study.name, study.pages(options.files)), sep="\n")
            return 0
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
