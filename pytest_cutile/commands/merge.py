"""`pytest-cutile merge FILE... --into FILE`: put together what several runners recorded of one platform."""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path

from pytest_cutile.baselines.entries import SpeedBaselines
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.select import SessionConflictError, merge
from pytest_cutile.baselines.store import read_speed, read_speed_target, record_speed
from pytest_cutile.words.quantities import counted

HELP = "put together what several runners recorded of one platform"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--into", type=Path, required=True, metavar="FILE", help="made if it is not there")


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    into: Path = options.into
    existing = read_speed_target(into)
    files = {path: read_speed(path) for path in options.files}
    of_path, of = (into, existing) if existing is not None else next(iter(files.items()))
    for path, file in files.items():
        if (file.arch, file.gpu) != (of.arch, of.gpu):
            raise BaselineError(
                f"{path} is about {file.gpu} ({file.arch}), and {of_path} about {of.gpu} ({of.arch}): "
                "only files of one platform can be merged; nothing was written"
            )
        _refuse_future(path, file)
    before, after = of, of

    def renew(on_disk: SpeedBaselines) -> SpeedBaselines:
        nonlocal before, after
        try:
            before, after = on_disk, merge([on_disk, *files.values()])
        except SessionConflictError as error:
            holders = [f"{path}" for path, file in files.items() if error.session in file.sessions]
            holders += [f"{into}"] * (error.session in on_disk.sessions)
            raise BaselineError(f"{', '.join(holders)}: {error}; nothing was written") from error
        return after

    record_speed(into, arch=of.arch, gpu=of.gpu, renew=renew)
    return 0, _changes(into, before, after)


def _refuse_future(path: Path, file: SpeedBaselines) -> None:
    """Refuse a session of a machine whose clock is wrong: its runs would stay the newest ones."""
    for name, session in file.sessions.items():
        if session.time > dt.datetime.now(dt.UTC) + dt.timedelta(days=1):
            raise BaselineError(f"{path}: session {name} is of {session.at}, later than now: check its clock")


def _changes(into: Path, before: SpeedBaselines, after: SpeedBaselines) -> list[str]:
    """Return a line for each case that was changed, and how many were."""
    notes = {}
    for key, entry in sorted(after.entries.items()):
        earlier = before.entries.get(key)
        if entry == earlier:
            continue
        had = {record.session for record in earlier.records} if earlier is not None else set()
        has = {record.session for record in entry.records}
        counts = [f"+{counted(len(has - had), 'session')}"] if has - had else []
        counts += [f"{counted(len(had - has), 'old session')} dropped"] if had - has else []
        new = "" if earlier is not None else "new: "
        notes[key] = new + (", ".join(counts) or ("a published figure" if new else "old runs dropped"))
    width = max(map(len, notes), default=0)
    lines = [f"{key.ljust(width)}  {note}" for key, note in notes.items()]
    return [*lines, f"{into}: {counted(len(after.entries), 'case')}, {len(notes)} changed"]
