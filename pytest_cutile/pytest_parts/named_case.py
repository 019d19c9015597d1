"""Finds the tests of the one case that a command names, by its key or by the id of one of its tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_cutile.pytest_parts.run import run_of
from pytest_cutile.words.quantities import abridged

if TYPE_CHECKING:
    from pytest_cutile.pytest_parts.collection import DeclaredTest

_SHOWN_KEYS = 20


def collect_kernels_alone(session: pytest.Session) -> None:
    """Let pytest collect the modules with declared kernels, and nothing else."""
    session.config.args[:] = [str(location.path) for location in run_of(session.config).locations]


def declared_tests(items: Sequence[pytest.Item]) -> list[DeclaredTest]:
    from pytest_cutile.pytest_parts.collection import DeclaredTest

    return [item for item in items if isinstance(item, DeclaredTest)]


def tests_of_case(items: Sequence[pytest.Item], case: str) -> list[DeclaredTest]:
    """Return the tests of a declared case, all gates and architectures; `case` is its key or a test's id.

    Raises:
        pytest.UsageError: no such case is declared.
    """
    declared = declared_tests(items)
    if named := [test for test in declared if case in (test.task.key, test.nodeid)]:
        return named
    keys = list(dict.fromkeys(test.task.key for test in declared))
    near = [key for key in keys if key.startswith(case.partition("[")[0])] or keys
    raise pytest.UsageError(f"no case {case} is declared; there are {abridged(near, _SHOWN_KEYS)}")
