"""`pytest-cutile merge FILE... --into FILE`: put together what several runners recorded of one platform."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from pytest_cutile.baselines.entries import Entry
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.merge import Merged, merge_entries
from pytest_cutile.baselines.store import read_speed, read_speed_target, record_speed
from pytest_cutile.quantities import counted
from pytest_cutile.speed.comparisons import merge_limits
from pytest_cutile.speed.decide import Rule

HELP = "put together what several runners recorded of one platform"

REFUSED = 1
"""Exit status when a case was not merged, because it would have become worse."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--into", type=Path, required=True, metavar="FILE", help="made if it is not there")
    parser.add_argument("--reason", type=_reason, metavar="TEXT", help="why worse figures are accepted")


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: say why the slower figures are accepted")
    return text


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
    merged: dict[str, Merged] = {}

    def renew(on_disk: Mapping[str, Entry]) -> dict[str, Entry]:
        merged.update(
            merge_entries(
                on_disk,
                [file.entries for file in files.values()],
                limits=merge_limits(Rule()),
                reason=options.reason,
            )
        )
        return {key: case.entry for key, case in merged.items() if case.changed and case.entry is not None}

    record_speed(into, arch=of.arch, gpu=of.gpu, renew=renew)
    width = max((len(key) for key, case in merged.items() if case.note), default=0)
    lines = [f"{key.ljust(width)}  {case.note}" for key, case in merged.items() if case.note]
    changed = sum(case.changed for case in merged.values())
    refused = sum(case.refused for case in merged.values())
    total = f"{into}: {counted(len(merged), 'case')} merged, {changed} changed"
    lines.append(total + (f", {refused} refused" if refused else ""))
    return REFUSED if refused else 0, lines
