"""Tests run once more under NVIDIA's compute-sanitizer, whose findings become failures of the tests.

compute-sanitizer can only watch a process from its start, so the tests run in a fresh process for each tool,
which launches kernels and compares nothing. If a tool finds something, halves of the tests run again, and
halves of those, until the finding belongs to one test.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_cutile.pytest_parts.fresh_process import kill, start_pytest
from pytest_cutile.pytest_parts.options import SANITIZED
from pytest_cutile.pytest_parts.sanitizer_log import SanitizerLog, read_log
from pytest_cutile.tile.compiler.toolchain import find_tool
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.temporary import temporary_folder
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session

_BROKEN = "compute-sanitizer did not work"
SECONDS, SECONDS_PER_TEST = 300, 120
"""After how long a process under the sanitizer counts as hung: to start, and for each test."""

_OPTIONS = (
    # No --error-exitcode: compute-sanitizer ends with status 0 even if it could not start the program. Only
    # the summary in its log shows that it finished.
    *("--target-processes", "application-only"),  # not the compilers that the tests start
    *("--report-api-errors", "no"),  # torch makes calls that may fail, to learn what there is
    *("--check-exit-code", "no"),  # the usual run of the tests reports their failures
    *("--destroy-on-device-error", "kernel"),  # the tests after the faulty kernel still run
    *("--show-backtrace", "device"),
    *("--strip-paths", "no"),
)
_ENVIRONMENT = {
    # One allocation for each tensor. In an allocation that torch divides among tensors, an access beyond one
    # tensor would go unnoticed.
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
}


class Sanitizing:
    """Runs the tests that check kernels under compute-sanitizer, before they run as usual."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self._session = session
        self._findings: dict[str, list[str]] = {}
        self._unmeasured = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        nodeids = [item.nodeid for item in session.items if checks_kernels(item)]
        if nodeids and not self._config.option.collectonly:
            if self._session.target.interprets(self._session.target.gpu_arch):
                self._unmeasured = f"no GPU of {self._session.target.gpu_arch}"
            else:
                for tool in self._session.settings.sanitize:
                    for nodeid, finding in self.find(tool, nodeids).items():
                        self._findings.setdefault(nodeid, []).append(finding)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Fail a test that passes, if something was found in it; show it beside the failure of others."""
        __tracebackhide__ = True
        findings = self._findings.get(item.nodeid, [])
        try:
            yield
        except BaseException:  # pytest's own outcomes are no Exceptions
            if findings:
                item.add_report_section("call", "compute-sanitizer", "\n".join(findings))
            raise
        if self._unmeasured and self._session.settings.strict and checks_kernels(item):
            findings = [f"not-measured ({Reason.NO_GPU}): --sanitize: {self._unmeasured} [--perf-strict]"]
        if not findings:
            return
        for place, result in enumerate(self._session.results):
            if result.gate == "correct":
                detail = findings[0].partition("\n")[0]
                self._session.results[place] = msgspec.structs.replace(
                    result, verdict=Reason.SANITIZER.verdict, reason=Reason.SANITIZER, detail=detail
                )
                self._session.checked[result.key] = Reason.WRONG_RESULT  # and so it gets no speed
        from pytest_cutile.gates.outcome import GateFailed

        raise GateFailed("\n".join(findings), pytrace=False)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._unmeasured:
            terminalreporter.write_line(f"--sanitize: not measured: {self._unmeasured}")

    # -- processes ------------------------------------------------------------------------------------

    def find(self, tool: str, nodeids: Sequence[str]) -> dict[str, str]:
        """Return what `tool` finds in each of some tests, for those in which it finds anything."""
        finding = self._try(tool, nodeids)
        if finding is None:
            return {}
        if len(nodeids) == 1:
            return {nodeids[0]: finding}
        alone = self._try(tool, nodeids[:1]) if finding.startswith(_BROKEN) else None
        if alone is not None and alone.startswith(_BROKEN):  # the tool does not work on this machine
            return dict.fromkeys(nodeids, alone)
        half = len(nodeids) // 2
        findings = self.find(tool, nodeids[:half]) | self.find(tool, nodeids[half:])
        return findings or dict.fromkeys(
            nodeids, f"in {len(nodeids)} tests together, in none alone: {finding}"
        )

    def _try(self, tool: str, nodeids: Sequence[str]) -> str | None:
        """Run tests under `tool`; return what it finds, None if nothing."""
        self._session.progress(f"compute-sanitizer ({tool}): {counted(len(nodeids), 'test')}")
        with temporary_folder() as name:
            log, output, missing = self._run(tool, nodeids, Path(name))
        if log.is_clean and not missing:
            return None
        if log.is_clean or log.errors is None:
            broken_off = log.describe(tool) if log.errors is None else ""
            last = "\n".join(f"  {line}" for line in output.strip().splitlines()[-6:])
            lost = f"{len(missing)} of {len(nodeids)} tests did not run"
            return f"{_BROKEN} ({tool}): {lost}\n{broken_off}\n{last}".rstrip()
        return log.describe(tool)

    def _run(self, tool: str, nodeids: Sequence[str], folder: Path) -> tuple[SanitizerLog, str, set[str]]:
        """Return the log, what the process printed, and the tests that did not run to their end."""
        ran, log = folder / "ran", folder / "log"
        ran.touch()
        log.touch()
        changes = {SANITIZED: str(ran), "sanitize": None, "correct_on": "gpu"}
        sanitizer = str(find_tool("compute-sanitizer"))
        with (folder / "printed").open("w+b") as printed:
            process = start_pytest(
                self._config,
                nodeids,
                changes,
                folder / "state",
                log=printed,
                environment=os.environ | _ENVIRONMENT,
                tool=[sanitizer, "--tool", tool, "--log-file", str(log), *_OPTIONS],
            )
            try:
                process.wait(SECONDS + SECONDS_PER_TEST * len(nodeids))
            except subprocess.TimeoutExpired:
                printed.write(b"\nit was stopped: it took too long")
            finally:
                kill(process)
            printed.seek(0)
            output = printed.read().decode(errors="replace")
        done = {json.loads(line) for line in ran.read_text().splitlines()}
        return read_log(log.read_text(errors="replace")), output, {*nodeids} - done


class Sanitized:
    """In the process that is watched: writes down which tests have run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a line for a test that has run, passed or not: its usual run reports failures."""
        if report.when == "teardown":
            with self._path.open("a") as file:
                file.write(json.dumps(report.nodeid) + "\n")


def checks_kernels(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("cutile_correct") is not None or "check_kernel" in fixtures
