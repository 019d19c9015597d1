"""Files that a run writes when it ends: one for each report format whose option was given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cutile.pytest_parts.reporting import Results
from pytest_cutile.reports.formats import FORMATS, ReportFormat


def read_report_paths(config: pytest.Config) -> dict[ReportFormat, Path]:
    """Return the files that were asked for; none in workers of pytest-xdist."""
    paths = {}
    for report_format in FORMATS:
        text = config.getoption(report_format.option)
        if text is None or hasattr(config, "workerinput"):
            continue
        if not text.strip():
            raise pytest.UsageError(
                f"{report_format.option} is empty: give a file (is the shell variable set?)"
            )
        path = config.invocation_params.dir / Path(text).expanduser()
        try:
            path.open("a").close()
        except OSError as error:
            raise pytest.UsageError(
                f"{report_format.option}: {text} cannot be written: {error.strerror}"
            ) from error
        paths[report_format] = path
    return paths


class ReportFiles:
    """Writes the files when the run ends, however it ends."""

    def __init__(self, paths: Mapping[ReportFormat, Path], results: Results) -> None:
        self._paths = paths
        self._results = results
        self._errors: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the files. An error waits for the terminal summary: the run's outcome stands."""
        if session.config.option.collectonly:
            return
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        stopped = session.exitstatus not in ended or bool(session.shouldfail or session.shouldstop)
        run = self._results.run(unfinished=stopped)
        for report_format, path in self._paths.items():
            text = report_format.render(run)
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(f"\n{text}" if file.seekable() and file.tell() else text)
            except OSError as error:
                self._errors.append(f"cutile: {report_format.option}: nothing was written: {error}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for text in self._errors:
            terminalreporter.write_line(text, yellow=True)
