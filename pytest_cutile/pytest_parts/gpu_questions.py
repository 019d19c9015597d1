"""Answers modules that ask about the GPU while pytest imports them, where there is none."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_cutile.pytest_parts.run import PytestRun


class GpuQuestions:
    """Answers for the first architecture while test modules and modules of kernels are collected."""

    def __init__(self, run: PytestRun) -> None:
        self._run = run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        if "torch" in sys.modules:
            from pytest_cutile.tile.compiler.trace.questions import add_advice, questions_answered

            with questions_answered(self._arch):
                report = yield
            error = _error_of(report)
            if error is not None:
                add_advice(error.value)
                report.longrepr = collector.repr_failure(error)
            return report
        report = yield
        if _error_of(report) is None:
            return report
        # The module has imported torch, and asked: torch cannot be made to answer before it is there.
        again: pytest.CollectReport = collector.ihook.pytest_make_collect_report(collector=collector)
        return again

    def _arch(self) -> str | None:
        try:
            return self._run.session.target.architectures[0]
        except pytest.UsageError:  # the gates say it
            return None


def _error_of(report: pytest.CollectReport) -> pytest.ExceptionInfo[BaseException] | None:
    """Return what a module raised because there is no GPU; None: something else, or nothing."""
    call = getattr(report, "call", None)
    error: pytest.ExceptionInfo[BaseException] | None = None if call is None else call.excinfo
    if error is None or "torch" not in sys.modules:
        return None
    from pytest_cutile.tile.compiler.trace.questions import wants_gpu

    return error if wants_gpu(error.value) else None
