"""What pytest's own outcomes mean where a kernel's code raises them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import SkipTest

import pytest

from pytest_cutile.compiler.launch_fault import fault_of_launch
from pytest_cutile.errors import GateSkipped
from pytest_cutile.verdicts import Reason


@contextmanager
def user_code() -> Iterator[None]:
    """Run a launcher, its inputs or its reference, in which a skip is a verdict on the case.

    pytest would take the skip for that of a test: the case would have no row, and `--perf-strict` would pass.

    Raises:
        GateSkipped: the code called pytest.skip or pytest.xfail.
        RuntimeError: the code called pytest.fail or sys.exit, which are no Exceptions.
        CompilerFault: tileiras crashed in a launch, or failed without a reason.
    """
    try:
        yield
    except (SkipTest, pytest.skip.Exception, pytest.xfail.Exception) as skip:
        called = "pytest.xfail" if isinstance(skip, pytest.xfail.Exception) else "pytest.skip"
        raise GateSkipped(Reason.SKIPPED, f"the kernel's code called {called}: {skip}") from None
    except (pytest.fail.Exception, SystemExit) as error:
        raise RuntimeError(f"the kernel's code raised {type(error).__name__}: {error}") from error
    except Exception as error:
        if (fault := fault_of_launch(error)) is not None:
            raise fault from None
        raise
