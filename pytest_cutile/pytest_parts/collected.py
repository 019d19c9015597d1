"""What pytest has collected, before anything of it is deselected."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pytest_cutile.words.spec import KernelSpec


class Collected:
    """The test functions, the files that were collected whole, and the declared kernels."""

    def __init__(self) -> None:
        self.is_complete = False
        """Whether the collection came to its end."""
        self._tests: set[str] = set()
        self._whole: set[str] = set()
        self.declared: dict[str, tuple[KernelSpec, Path]] = {}
        """Each declared kernel by its name, with its module."""
        self.modules: set[Path] = set()
        """Files of the collected modules of declared kernels."""
        self.bad_declarations: dict[str, Path] = {}
        """The first module whose declaration cannot be gated, by the message that says why."""

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._tests.add(_function_of(item.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember a file that was collected whole: for `file.py::test`, pytest reports only the test."""
        if report.passed:
            self._whole.add(report.nodeid)

    def lacks(self, key: str) -> bool:
        """Say whether the file of a test was collected whole and lacks its function; parameters may vary."""
        return key.partition("::")[0] in self._whole and _function_of(key) not in self._tests


def _function_of(key: str) -> str:
    """Return the node id of the function that a test or a key in the baselines belongs to."""
    return key.partition("[")[0].partition("#")[0]
