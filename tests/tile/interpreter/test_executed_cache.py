"""What a launch executes is counted once, and again where anything that counting looks at has changed."""

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.tile.compiler import export, record_launches
from pytest_cutile.tile.compiler.parameters import parameters_of
from pytest_cutile.tile.interpreter.executed import count_executed
from pytest_cutile.tile.interpreter.executed_cache import ExecutedCache, code_that_counts
from tests.tile.interpreter.small_kernels import short_counting_kernel

MODULE = "pytest_cutile.tile.interpreter.executed_cache"


@pytest.fixture
def counted(monkeypatch) -> list[object]:
    """Return the launches that were counted, and not remembered."""
    launches: list[object] = []

    def count(job, launch):
        launches.append(launch)
        return count_executed(job, launch)

    monkeypatch.setattr(f"{MODULE}.count_executed", count)
    return launches


def launched(*, grid: int = 4, elements: int = 64, upper: int = 10, arch: str = "sm_90"):
    """Return a kernel and its launch."""

    def run() -> None:
        out = torch.zeros(elements, dtype=torch.int32, device="cuda")
        ct.launch(torch.cuda.current_stream(), (grid,), short_counting_kernel, (out, 0, upper, 1))

    (launch,) = record_launches(run, arch)
    return export(launch, arch), parameters_of(launch)


def test_a_launch_is_counted_once(tmp_path, counted):
    first = ExecutedCache(tmp_path).count(*launched())
    assert first
    assert ExecutedCache(tmp_path).count(*launched()) == first
    assert len(counted) == 1
    assert ExecutedCache(None).count(*launched()) == first
    assert len(counted) == 2


def test_an_unknown_count_is_remembered_too(tmp_path, counted, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.count_executed", lambda _job, launch: counted.append(launch))
    assert ExecutedCache(tmp_path).count(*launched()) is None
    assert ExecutedCache(tmp_path).count(*launched()) is None
    assert len(counted) == 1


@pytest.mark.parametrize("changed", [{"grid": 5}, {"elements": 128}, {"upper": 11}, {"arch": "sm_121"}])
def test_another_launch_is_counted_anew(tmp_path, counted, changed):
    counts = ExecutedCache(tmp_path)
    counts.count(*launched())
    assert counts.count(*launched(**changed)) == count_executed(*launched(**changed))
    assert len(counted) == 2


def test_changed_code_of_the_interpreter_counts_anew(tmp_path, counted, monkeypatch):
    counts = ExecutedCache(tmp_path)
    counts.count(*launched())
    monkeypatch.setattr(f"{MODULE}._code_digest", lambda: "another")
    counts.count(*launched())
    assert len(counted) == 2


def test_every_module_that_interprets_counts():
    counted = {path.name for path in code_that_counts()}
    assert counted >= {"machine.py", "executed.py", "arithmetic.py", "dtypes.py", "formats.py"}
