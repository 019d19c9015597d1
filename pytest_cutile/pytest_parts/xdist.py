"""The controller's side of pytest-xdist: what its workers share, and what they report when they end."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cutile.pytest_parts.run import PytestRun

_REMARKS, _LEFT_OUT = "cutile_remarks", "cutile_left_out"


class Controller:
    """Collects what workers noticed."""

    def __init__(self, run: PytestRun) -> None:
        self._run = run

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        plugins = session.config.pluginmanager
        if plugins.hasplugin("dsession"):
            from pytest_cutile.pytest_parts.meeting import Meeting
            from pytest_cutile.pytest_parts.workers import LostTests

            meeting = Meeting(session.config, self._run.progress)
            plugins.register(meeting, "cutile-meeting")
            plugins.register(LostTests(self._run.results, meeting.folder), "cutile-lost-tests")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        del error
        output = getattr(node, "workeroutput", {})
        results = self._run.results
        results.remarks += [line for line in output.get(_REMARKS, []) if line not in results.remarks]
        results.left_out = max(output.get(_LEFT_OUT, []), results.left_out, key=len)


def send_to_controller(run: PytestRun) -> None:
    """In a worker that ends: send what it left out and remarked."""
    output = getattr(run.config, "workeroutput", None)
    if output is not None:
        output[_LEFT_OUT], output[_REMARKS] = run.results.left_out, run.results.remarks
