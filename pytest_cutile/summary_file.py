"""`--kernel-summary`: the Markdown summary of a run, appended to a file for the page of a CI job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cutile.reports import Results


class SummaryFile:
    """Writes the summary when the run ends, however it ends."""

    def __init__(self, path: Path, results: Results) -> None:
        self._path = path
        self._results = results
        self._error: OSError | None = None

    def write(self, session: pytest.Session, *, left_out: int) -> None:
        """Append the summary. An error waits for the terminal summary: the run's outcome stands."""
        from pytest_cutile.core.markdown import markdown_summary

        if session.config.option.collectonly:
            return
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        text = markdown_summary(
            self._results.all,
            self._results.failed,
            other_failures=self._results.other_failures,
            left_out=left_out,
            unfinished=session.exitstatus not in ended or bool(session.shouldfail or session.shouldstop),
        )
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"\n{text}" if file.seekable() and file.tell() else text)
        except OSError as error:
            self._error = error

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say why there is no summary."""
        if self._error is not None:
            terminalreporter.write_line(
                f"cutile: --kernel-summary: nothing was written: {self._error}", yellow=True
            )
