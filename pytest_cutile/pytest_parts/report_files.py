"""Files that a run writes when it ends: one for each report format whose option was given."""

from __future__ import annotations

import platform
import shlex
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.reports.formats import FORMATS

if TYPE_CHECKING:
    from pytest_cutile.pytest_parts.run import PytestRun


def read_report_paths(config: pytest.Config) -> dict[str, Path]:
    """Return the files to write, by option."""
    paths: dict[str, Path] = {}
    for report_format in FORMATS:
        text = config.getoption(report_format.option)
        if text is None or hasattr(config, "workerinput"):
            continue
        if not text.strip():
            raise pytest.UsageError(
                f"{report_format.option} is empty: give a file (is the shell variable set?)"
            )
        if report_format.needs and find_spec(report_format.needs) is None:
            raise pytest.UsageError(
                f"{report_format.option} needs the package {report_format.needs}: "
                "pip install 'pytest-cutile[report]'"
            )
        path = config.invocation_params.dir / Path(text).expanduser()
        try:
            is_new = not path.exists()
            path.open("a").close()
            if is_new and not report_format.appends:
                path.unlink()  # a run that is killed leaves no empty report
        except OSError as error:
            raise pytest.UsageError(
                f"{report_format.option}: {text} cannot be written: {error.strerror}"
            ) from error
        if other := next((one for one, taken in paths.items() if taken == path), None):
            raise pytest.UsageError(f"{other} and {report_format.option} are one file: {text}")
        paths[report_format.option] = path
    return paths


class ReportFiles:
    """Writes the files when the run ends, however it ends."""

    def __init__(self, run: PytestRun) -> None:
        self._run = run
        self._errors: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the files. An error waits for the terminal summary, and a run that passed fails."""
        if session.config.option.collectonly:
            return
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        stopped = session.exitstatus not in ended or bool(session.shouldfail or session.shouldstop)
        outcome = replace(
            self._run.results.run(unfinished=stopped),
            environment=_environment(self._run),
            baselines=self._run.settings.baseline_path,
        )
        paths = self._run.settings.report_paths
        for report_format in (one for one in FORMATS if one.option in paths):
            path = paths[report_format.option]
            text = report_format.render(outcome)
            try:
                _write(path, text, appends=report_format.appends)
            except OSError as error:
                from pytest_cutile.words.locking import not_written

                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
                self._errors.append(f"cutile: {report_format.option}: {not_written(path, error)}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for text in self._errors:
            terminalreporter.write_line(text, red=True)


def _write(path: Path, text: str, *, appends: bool) -> None:
    """Append to a file, or replace it as a whole or not at all."""
    if appends:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}" if file.seekable() and file.tell() else text)
        return
    from pytest_cutile.words.locking import replace_file

    replace_file(path, text)


def _environment(run: PytestRun) -> dict[str, str]:
    """Return versions, commit, GPU and command line of the run; without what is not known."""
    from pytest_cutile.tile.compiler.toolchain import CompilerMissing, toolchain_versions
    from pytest_cutile.timing.gpu.nvml import NoGpuError, driver_environment

    environment = {
        "command": shlex.join(["pytest", *map(str, run.config.invocation_params.args)]),
        "commit": run.session.checkout.commit,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "pytest": pytest.__version__,
    }
    with suppress(PackageNotFoundError):
        environment["torch"] = version("torch")
    with suppress(CompilerMissing):
        environment |= toolchain_versions()
    with suppress(NoGpuError):
        environment |= driver_environment()
    return {name: text for name, text in environment.items() if text}
