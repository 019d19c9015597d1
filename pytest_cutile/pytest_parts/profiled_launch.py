"""Launches one declared case for a profiler instead of running tests: for `pytest-cutile profile`.

ncu ... python -m pytest -p pytest_cutile.pytest_parts.profiled_launch --cutile-profile CASE FILE
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_cutile.pytest_parts.named_case import collect_kernels_alone, tests_of_case
from pytest_cutile.pytest_parts.run import PytestRun, run_of
from pytest_cutile.words.errors import GateSkipped

if TYPE_CHECKING:
    from pytest_cutile.gates.base import Task
    from pytest_cutile.gates.session import Session
    from pytest_cutile.timing.profiling.profiled_case import ProfiledCase

CALLS_BEFORE = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cutile-profile", nargs=2, metavar=("CASE", "FILE"), help="launch CASE once and describe it in FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        ProfiledLaunch(*config.getoption("--cutile-profile")), "cutile-profiled-launch"
    )


class ProfiledLaunch:
    """Takes the place of the tests."""

    def __init__(self, case: str, file: str) -> None:
        self._case = case
        self._file = Path(file)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        collect_kernels_alone(session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        run = run_of(session.config)
        try:
            task = self._task(session, run)
            described = describe(run.session, task)
            self._file.write_bytes(msgspec.json.encode(described))
            launch_once(run.session, task)
        except GateSkipped as skipped:
            raise pytest.UsageError(f"{self._case}: {skipped}") from skipped
        return True

    def _task(self, session: pytest.Session, run: PytestRun) -> Task:
        tests = tests_of_case(session.items, self._case)
        arch = run.session.gpu.timer.device.arch
        for test in tests:
            if test.task.arch == arch:
                return test.task
        raise pytest.UsageError(f"the case {self._case} is not declared for {arch}")


def describe(session: Session, task: Task) -> ProfiledCase:
    from pytest_cutile.gates.compiled_facts import compiled_facts
    from pytest_cutile.gates.declared import compile_case
    from pytest_cutile.timing.profiling.profiled_case import ProfiledCase

    device, work = session.gpu.timer.device, task.spec.work_of(task.case)
    facts, missing = None, ""
    try:
        facts = compiled_facts(session, compile_case(task.spec, task.case, task.arch))
    except Exception as error:  # noqa: BLE001 - counters are worth having without them
        missing = f"{error}".partition("\n")[0]
    return ProfiledCase(
        key=task.key,
        gpu=device.name,
        arch=device.arch,
        flops=work.flops,
        bytes=work.bytes,
        dtype=work.dtype or "",
        facts=facts,
        facts_missing=missing,
    )


def launch_once(session: Session, task: Task) -> None:
    """Launch a case on the inputs that the speed gate times; the profiler sees the last launch alone.

    The first ones compile, or tune.

    Raises:
        GateSkipped: there is no such GPU.
    """
    from pytest_cutile.gates.correct import make_inputs
    from pytest_cutile.gates.declared import call_of, passes_of
    from pytest_cutile.tile.tensors.seeded import timed_seed

    inputs = make_inputs(session, task, seed=timed_seed(task.spec, task.case), signed_rows=False)
    call = call_of(passes_of(task.spec, task.case), inputs)
    with session.gpu.lock.alone():
        for _ in range(CALLS_BEFORE):
            call()
        if session.gpu.timer.device.torch_device != "cuda":  # a timer that pretends a GPU
            call()
            return
        import torch

        torch.cuda.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
