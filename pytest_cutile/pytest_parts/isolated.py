"""A test whose launches are interpreted runs in a fork of this process: what launchers keep ends with it.

Fixtures of a wider scope than the test are set up here, once, and seen by all forks. From the first fixture
of the test's own on, everything happens in the fork: it sends the test's reports, and this process passes
them on as its own.
"""

from __future__ import annotations

import copy
import signal
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from _pytest.runner import runtestprotocol

from pytest_cutile.pytest_parts.collection import prepare_once
from pytest_cutile.pytest_parts.crashed import Crash, reports_of_crash
from pytest_cutile.pytest_parts.run import FORK_REPORTS, PytestRun
from pytest_cutile.tile.forking import ForkDied, call_in_fork
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class _Answer:
    """What a fork says of the test that it ran."""

    reports: list[dict[str, Any]]
    warned: list[tuple[str, type[Warning], str, int]]
    """Text, category, file and line of each warning."""
    checked: Mapping[str, Reason | None]


def report_of_phase(item: pytest.Item, run: PytestRun, own: pytest.TestReport) -> pytest.TestReport:
    """Return the report of a phase of a test that a fork runs; the first phase waits for the fork.

    `own` is this process's report of the phase, in which only fixtures of a wider scope did anything.
    """
    if own.when == "setup":
        item.stash[FORK_REPORTS] = _run_in_fork(item, run)
        item.runtest = _nothing  # type: ignore[method-assign]
    report = item.stash[FORK_REPORTS].get(own.when or "")
    if report is None:
        return own
    if own.when == "teardown" and own.failed:  # of a fixture of a wider scope
        own.user_properties = report.user_properties
        return own
    return report


def forget_earlier_try(item: pytest.Item) -> None:
    """Make a test that is run again (pytest-rerunfailures) one that no fork has run."""
    if FORK_REPORTS in item.stash:
        del item.stash[FORK_REPORTS]
        del item.runtest


def _run_in_fork(item: pytest.Item, run: PytestRun) -> dict[str, pytest.TestReport]:
    """Let a fork of this process run a test; return its reports by phase."""
    prepare_once(run, item)
    sibling = copy.copy(item)  # as if a test of the same class or module followed
    item.session._setupstate.teardown_exact(sibling)  # noqa: SLF001
    remaining = signal.setitimer(signal.ITIMER_REAL, 0)  # a timeout's alarm: a fork has no timers
    try:
        answer = call_in_fork(lambda: _run(item, sibling, run, remaining))
    except ForkDied as died:
        what = f"its process {died} while its kernel was interpreted"
        crash = Crash(nodeid=item.nodeid, reason=Reason.CRASH, what=what)
        reports = reports_of_crash(item, run.session, crash)
    else:
        deserialize = item.config.hook.pytest_report_from_serializable
        reports = [deserialize(config=item.config, data=data) for data in answer.reports]
        for text, category, file, line in answer.warned:
            warnings.warn_explicit(text, category, file, line)
        run.session.checked.update(answer.checked)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *remaining)
    return {report.when or "": report for report in reports}


def _run(item: pytest.Item, sibling: pytest.Item, run: PytestRun, timer: tuple[float, float]) -> _Answer:
    """In the fork: run the test; fixtures of a wider scope are neither set up again nor torn down."""
    run.begin_fork()
    signal.setitimer(signal.ITIMER_REAL, *timer)
    item._initrequest()  # type: ignore[attr-defined] # noqa: SLF001
    with warnings.catch_warnings(record=True) as warned:
        reports = runtestprotocol(item, nextitem=sibling, log=False)
    serialize = item.config.hook.pytest_report_to_serializable
    session = run.session
    answer = _Answer(
        reports=[serialize(config=item.config, report=report) for report in reports],
        warned=[(f"{one.message}", one.category, one.filename, one.lineno) for one in warned],
        checked=session.checked,
    )
    session.close()
    return answer


def _nothing() -> None:
    pass
