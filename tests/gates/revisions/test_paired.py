"""Whether two launchers launch one kernel."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_cutile.gates.revisions.paired import LaunchedKernels
from pytest_cutile.tile.compiler.trace.launches import pretend_gpu
from tests.tile.compiler import launchers


def other_revision() -> Any:
    """Return the same module once more: as another revision's, its kernels are other functions."""
    spec = importlib.util.spec_from_file_location("other_launchers", Path(launchers.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nothing(*_: Any) -> None:
    """Launch no cuTile kernel, as torch's operations do."""


def tile_of_64(x: Any, y: Any, _: int) -> Any:
    """Launch the kernel in another way: its function is the same."""
    return launchers.add(x, y, 64)


@pytest.mark.parametrize(
    ("baseline", "shared"),
    [
        (launchers.add, "add_kernel"),
        (tile_of_64, "add_kernel"),
        (other_revision().add, ""),
        (nothing, ""),
    ],
    ids=["same", "other launch", "other revision", "no kernel"],
)
def test_one_kernel_for_both_launchers_is_noticed(baseline: Callable[..., Any], shared: str) -> None:
    launched = LaunchedKernels()
    both = [launched.watch(launchers.add), launched.watch(baseline)]
    with pretend_gpu("sm_90") as recorder:
        for call in [*both, *both]:
            call(*(torch.empty(1000, device="cuda") for _ in range(2)), 128)
    assert launched.shared == shared
    assert len(recorder.launches) == (2 if baseline is nothing else 4)


def test_launchers_that_launch_no_kernel_share_none() -> None:
    launched = LaunchedKernels()
    for call in [launched.watch(nothing), launched.watch(nothing)]:
        call()
    assert launched.shared == ""


def test_an_installed_kernel_is_the_same_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who launches it otherwise is measured."""
    installed = {"purelib": str(Path(launchers.__file__).parent), "platlib": "/nowhere"}
    monkeypatch.setattr("sysconfig.get_paths", lambda: installed)
    launched = LaunchedKernels()
    with pretend_gpu("sm_90"):
        for call in [launched.watch(launchers.add), launched.watch(tile_of_64)]:
            call(*(torch.empty(1000, device="cuda") for _ in range(2)), 128)
    assert launched.shared == ""
