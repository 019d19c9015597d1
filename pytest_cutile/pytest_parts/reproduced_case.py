"""Compiles one case with each option of tileiras and writes a folder: for `pytest-cutile reproduce`.

python -m pytest -p pytest_cutile.pytest_parts.reproduced_case --cutile-reproduce CASE FOLDER SECONDS
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_cutile.pytest_parts.named_case import collect_kernels_alone, declared_tests, tests_of_case
from pytest_cutile.pytest_parts.run import run_of

if TYPE_CHECKING:
    from pytest_cutile.tile.compiler import CompileJob, Compiler

_MOST_KERNELS = 4
"""Kernels of a case that a folder has at most."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cutile-reproduce",
        nargs=3,
        metavar=("CASE", "FOLDER", "SECONDS"),
        help="write what tileiras makes of CASE into FOLDER, trying options for SECONDS",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        ReproducedCase(*config.getoption("--cutile-reproduce")), "cutile-reproduced-case"
    )


class ReproducedCase:
    """Selects one case, and writes the folder when its kernels have been compiled."""

    def __init__(self, case: str, folder: str, seconds: str) -> None:
        self._case = case
        self._folder = Path(folder)
        self._seconds = float(seconds)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Collect declared kernels alone, unless the case is a test function."""
        if self._is_declared(session.config):
            collect_kernels_alone(session)

    def _is_declared(self, config: pytest.Config) -> bool:
        file, colons, _ = self._case.partition("::")
        return not colons or run_of(config).kernel_module(config.rootpath / file) is not None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave the case's tests of the gate `compile`; a test function has no gate, and stays."""
        if self._is_declared(config):
            named = {test.task.compiled for test in tests_of_case(items, self._case)}
            items[:] = [
                test
                for test in declared_tests(items)
                if test.task.gate == "compile" and test.task.compiled in named
            ]

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Try the options on what the test compiled, in the process that ran it: that may be a fork."""
        run = run_of(item.config)
        if not run.has_session or not (jobs := run.session.compiler.jobs):
            return
        from pytest_cutile.tile.compiler.reproduction import TriedKernel, write_reproduction
        from pytest_cutile.tile.compiler.toolchain import supported_architectures
        from pytest_cutile.tile.compiler.trials import try_options

        chosen = _chosen(run.session.compiler, jobs)
        kernels = []
        for job in chosen:
            run.progress(f"trying options of tileiras on {job.kernel}")
            trials = try_options(
                job,
                supported_architectures(),
                seconds=self._seconds / len(chosen),
                processes=len(os.sched_getaffinity(0)),
            )
            kernels.append(TriedKernel(job=job, trials=trials))
        write_reproduction(self._folder, self._case, kernels)


def _chosen(compiler: Compiler, jobs: Sequence[CompileJob]) -> Sequence[CompileJob]:
    """Return the jobs that find the compiler at fault; all of them, up to a few, where none does."""
    from pytest_cutile.tile.compiler import CompilerFault

    at_fault = [job for job in jobs if isinstance(compiler.submit(job).exception(), CompilerFault)]
    return (at_fault or jobs)[:_MOST_KERNELS]
