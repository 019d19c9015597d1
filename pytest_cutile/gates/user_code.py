"""What pytest's own outcomes mean where a kernel's code raises them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import SkipTest

import pytest
from _pytest.outcomes import Failed  # pytest.fail.Exception, as a type

from pytest_cutile.correctness.errors import ReferenceFailed
from pytest_cutile.correctness.run_stopped import carrying_exit, raising_exit
from pytest_cutile.tile.compiler.launch_fault import fault_of_launch
from pytest_cutile.timing.gpu.context import breaks_the_context, is_out_of_memory
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.verdicts import Reason

_TIMEOUT = "pytest_timeout"
"""The module of pytest-timeout, whose signal handler fails the test that runs."""
FAILURES = (Exception, Failed)
"""What fails a case: exceptions, and pytest.fail, which pytest-timeout calls wherever a test is."""


def failure_of(error: BaseException) -> tuple[Reason, str]:
    """Return why one of `FAILURES` fails a case, and its detail."""
    message = f"{error}".partition("\n")[0]
    cause = error.__cause__ if isinstance(error, ReferenceFailed) and error.__cause__ is not None else error
    if breaks_the_context(cause):
        return Reason.CRASH, f"{type(error).__name__}: {message}"
    if is_out_of_memory(cause):
        return Reason.OUT_OF_MEMORY, f"{type(error).__name__}: {message}"
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    if isinstance(error, Failed) and any(frame.f_globals.get("__name__") == _TIMEOUT for frame in frames):
        return Reason.TIMED_OUT, message
    return Reason.RAISED, f"{type(error).__name__}: {message}"


@contextmanager
def user_code() -> Iterator[None]:
    """Run a launcher, its inputs or its reference, in which a skip is a verdict on the case.

    pytest would take the skip for that of a test: the case would have no row, and `--perf-strict` would pass.

    Raises:
        GateSkipped: the code called pytest.skip or pytest.xfail.
        RuntimeError: the code called sys.exit.
        RunStopped: the code called pytest.exit.
        CompilerFault: tileiras crashed in a launch, or failed without a reason.
    """
    try:
        with carrying_exit():
            yield
    except (SkipTest, pytest.skip.Exception, pytest.xfail.Exception) as skip:
        called = "pytest.xfail" if isinstance(skip, pytest.xfail.Exception) else "pytest.skip"
        raise GateSkipped(Reason.SKIPPED, f"the kernel's code called {called}: {skip}") from None
    except SystemExit as error:
        raise RuntimeError(f"the kernel's code raised {type(error).__name__}: {error}") from error
    except Exception as error:
        if (fault := fault_of_launch(error)) is not None:
            raise fault from None
        raise


@contextmanager
def traced_code() -> Iterator[None]:
    """Run a launcher that is traced for a later test: what it raises is an Exception, which waits for that.

    Raises:
        RuntimeError: the code called pytest.fail, which would fail the running test.
        Exit: the code called pytest.exit.
    """
    try:
        with raising_exit(), user_code():
            yield
    except Failed as error:
        raise RuntimeError(f"the kernel's code raised {type(error).__name__}: {error}") from error
