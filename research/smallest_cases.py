"""A pytest plugin that keeps the two smallest cases of each test function, for suites made for a GPU.

TileGym's own tests are run with it, research/reports/interpreter-cutile-suite.md says how.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_KEPT = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep cases of the backend cutile whose integer parameters have the least product, and no timing."""
    functions: dict[str, list[tuple[int, pytest.Item]]] = defaultdict(list)
    for item in items:
        callspec = getattr(item, "callspec", None)
        params = callspec.params if callspec else {}
        if "test_perf" not in item.name and params.get("backend", "cutile") == "cutile":
            size = math.prod(value for value in params.values() if type(value) is int and value > 1)
            functions[item.nodeid.split("[")[0]].append((size, item))
    items[:] = [
        item for cases in functions.values() for _, item in sorted(cases, key=lambda case: case[0])[:_KEPT]
    ]
