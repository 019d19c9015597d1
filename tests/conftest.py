"""What all tests share: the processes that they start, and random numbers."""

import contextlib
import gc
import os
import sys

import pytest

# Its plugin imports it at the end of each run. What is imported after `gc.freeze` cannot look for referrers.
with contextlib.suppress(ModuleNotFoundError):
    import hypothesis.internal.observability  # noqa: F401

# Containers often set it. Each of the processes that tests start would then compile what it imports anew,
# and rewrite its asserts: a third of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Workers share the cores. With a thread of torch for each core, they wait for each other: twice the CPU time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish():
    """Keep the collected tests out of each search for garbage: a million objects, all of which stay."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Begin with the slow tests: one that a worker of pytest-xdist begins last keeps all others waiting."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _not_on_ci(monkeypatch):
    """Inner runs print what they print on a terminal: on CI, pytest cuts no message short."""
    for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _seed_torch():
    """Let random tensors not depend on which tests the same worker ran before."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
