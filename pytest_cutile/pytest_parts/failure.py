"""How a failure is shown, of whatever kind: what is wrong, where, the facts, and the command that comes next.

The first line of a message says what is wrong. Lines up to the first empty one follow by how much they tell;
paragraphs after that are details.
"""

from __future__ import annotations

import base64
import linecache
import os
import traceback
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest._code.code import (
    ExceptionRepr,
    ReprEntry,
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)

from pytest_cutile.pytest_parts.reporting import PROPERTY
from pytest_cutile.words.verdicts import COMPILERS_FAULTS, Verdict

if TYPE_CHECKING:
    from pytest_cutile.gates.base import Task
    from pytest_cutile.gates.outcome import GateFailed
    from pytest_cutile.gates.session import Session
    from pytest_cutile.words.results import ErrorMap

_FAILED = "E   "
"""Begins the lines that pytest shows in red."""
_STYLE: Final[Any] = "cutile"
"""Marks the entries of this package's failures, so that `shorten` leaves pytest's own tracebacks alone.

A field of pytest's class, since a report loses its other attributes on its way from a worker of
pytest-xdist. pytest shows an entry of an unknown style as its lines, then its place.
"""


@dataclass(frozen=True)
class Place:
    """A line of the user's test or declaration."""

    file: str
    line: int
    within: str
    """What is there: "in test_softmax"."""

    @staticmethod
    def of(frame: FrameType, line: int, within: str = "") -> Place:
        return Place(frame.f_code.co_filename, line, f"in {frame.f_code.co_name}{within}")

    @staticmethod
    def of_call(frame: FrameType | None, file: Path, within: str) -> Place | None:
        """Return the line in a test's file from which `frame` was called; else the line of `frame` itself."""
        step = frame
        while step is not None:
            if step.f_code.co_filename == str(file):
                return Place.of(step, step.f_lineno, within)
            step = step.f_back
        return None if frame is None else Place.of(frame, frame.f_lineno, within)


CALLS: pytest.StashKey[dict[str, Place | None]] = pytest.StashKey()
"""In a test's stash: where it called the fixture `perf`, by the name of the call."""


def show_failure(
    item: pytest.Item,
    report: pytest.TestReport,
    excinfo: pytest.ExceptionInfo[BaseException],
    session: Session,
) -> None:
    """Put the message of a gate, its place and the command that repeats or accepts it into a test's report.

    What the user's own code raised keeps pytest's traceback, and gets the command.
    """
    from pytest_cutile.gates.outcome import GateFailed
    from pytest_cutile.pytest_parts.reproduce import how_to_accept, how_to_repeat, how_to_report_fault

    error = excinfo.value
    if isinstance(error, GateFailed):
        text = str(error)
        results = [value for name, value in item.user_properties if name == PROPERTY]
        is_worse = any(result["verdict"] == Verdict.REGRESSION for result in results)  # type: ignore[index]
        is_stored = session.settings.baseline_revision is None
        command = (how_to_accept if is_worse and is_stored else how_to_repeat)(item, session)
        if any(result.get("reason") in COMPILERS_FAULTS for result in results):  # type: ignore[attr-defined]
            command += f"\n{how_to_report_fault(item, session)}"
        places = _places(item, excinfo, error)
        if error.call and not error.call.startswith("call 1:"):  # perhaps of a loop
            text = f"{error.call}: {text}"
        report.longrepr = failure_repr(text, places, item.config.invocation_params.dir, command)
        if error.errors is not None:
            attach_picture(item.config, report, error.errors)
    elif isinstance(report.longrepr, ExceptionRepr) and PROPERTY in dict(item.user_properties):
        heading, command = how_to_repeat(item, session).split("\n")
        report.longrepr.addsection(heading.rstrip(":"), command)


def _places(
    item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException], error: GateFailed
) -> list[Place]:
    """Return where a gate's failure is: in a declaration, or in a test and the user's functions it called."""
    task: Task | None = getattr(item, "task", None)
    raised = [] if error.raised is None else [*_innermost_of_user(error.raised)]
    if task is not None:
        file, line = task.case.place
        return [Place(file, line, f"in {task.key}"), *raised]
    if isinstance(error.place, Place):
        return [error.place]
    entries = excinfo.traceback.cut(path=item.path).filter(excinfo)
    first, *others = [
        Place(str(entry.path), entry.lineno + 1, f"in {entry.name}")
        for entry in entries
        if entry.path == item.path or not entry.frame.f_globals.get("__name__", "").startswith("_pytest.")
    ] or [Place(str(item.path), (item.location[1] or 0) + 1, f"in {item.name}")]
    call = f", {error.call}" if error.call else ""
    return [replace(first, within=f"{first.within}{call}"), *others, *raised]


def _innermost_of_user(error: BaseException) -> Iterator[Place]:
    """Yield the user's innermost line: where a reference raised."""
    from pytest_cutile.gates.outcome import is_users

    frames = [*traceback.walk_tb(error.__traceback__)]
    yield from [Place.of(frame, line) for frame, line in frames if is_users(frame)][-1:]


def failure_repr(text: str, places: Sequence[Place], folder: Path, command: str = "") -> ReprExceptionInfo:
    """Return a failure in the form that pytest prints and that pytest-xdist sends between processes.

    Args:
        text: The message.
        places: The user's line, then lines of functions that were called from there.
        folder: Paths are shown relative to this folder.
        command: How to repeat or accept it.
    """
    from pytest_cutile.words.document import printable

    text = text.replace(f"{folder}{os.sep}", "")
    first, *rest = [printable(line) for line in text.splitlines()] or [""]
    entries: list[ReprEntry | ReprEntryNative] = []
    for place in places:
        where = ReprFileLocation(_shown(place.file, folder), place.line, printable(place.within))
        head = [] if entries else [f"{_FAILED}{first}"]
        entries.append(ReprEntry(head, None, None, where, _STYLE))
        if source := linecache.getline(place.file, place.line).strip():
            entries.append(ReprEntry([f"    {printable(source)}"], None, None, None, _STYLE))
    body = "\n".join(rest).strip("\n")
    # Always both, so that `shorten` finds the facts.
    entries += [ReprEntryNative([f"{line}\n" for line in part.splitlines()]) for part in (body, command)]
    # Its message is what the short summary and JUnit files show.
    crash = ReprFileLocation(_shown(places[0].file, folder), places[0].line, first)
    return ReprExceptionInfo(
        reprtraceback=ReprTraceback(entries, extraline=None, style="value"), reprcrash=crash
    )


def _shown(file: str, folder: Path) -> str:
    return os.path.relpath(file, folder) if Path(file).is_relative_to(folder) else file


def shorten(
    report: pytest.TestReport, lines: int, more: Sequence[str] = (), *, without: Collection[str] = ()
) -> None:
    """Leave `lines` lines of a failure of `failure_repr`: what is wrong, where, most facts, and the command.

    `more` are facts that are known when the run ends; they go before the command, also behind a traceback of
    the user's code. `without` are hints that the run refutes.
    """
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    if not entries or not isinstance(entries[0], ReprEntry) or entries[0].style != _STYLE:
        sections = getattr(report.longrepr, "sections", [])
        if more and sections:  # the last section is the command
            sections.insert(-1, ("Other cases", "\n".join(more), "-"))
        return
    body, gap = entries[-2], "\n"
    facts = [line for line in body.lines if line.strip() not in without]
    added = [f"{line}\n" for line in more]
    body.lines = [*facts, *added]
    if _height(entries) > lines:
        kept = [*facts]
        while kept and _height(entries) > lines:
            kept.pop()
            body.lines = [*kept, *added, ""]
        if gap in kept:  # no half of a paragraph, but of the first
            kept = kept[: len(kept) - 1 - kept[::-1].index(gap)]
        body.lines = [*kept, *added, f"  ... {len(facts) - len(kept)} more lines: -vv\n"]


def _height(entries: Sequence[ReprEntry | ReprEntryNative]) -> int:
    """Return the lines of a failure on a terminal of usual width; the place takes two lines."""
    from pytest_cutile.words.text import WIDTH

    return 2 + sum(max(1, -(-len(line.rstrip()) // WIDTH)) for entry in entries for line in entry.lines)


def attach_picture(config: pytest.Config, report: pytest.TestReport, errors: ErrorMap) -> None:
    """Show where the errors are with a test's report in the page of pytest-html, if that is installed."""
    if not config.pluginmanager.hasplugin("html"):
        return
    try:
        from pytest_html import extras
    except ImportError:  # another plugin of that name
        return
    from pytest_cutile.reports.html.heat_map import heat_map_file  # pytest-html needs jinja2, too

    svg = heat_map_file(errors)
    image = extras.svg(base64.b64encode(svg.encode()).decode(), name="where the errors are")
    report.extras = [*getattr(report, "extras", []), image]  # type: ignore[attr-defined]
