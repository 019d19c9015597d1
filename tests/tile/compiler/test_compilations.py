"""The compilations of a case whose launcher tunes: one configuration is the case, and all are compiled."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import torch

from pytest_cutile.tile.compiler import Compiled, CompileError, CompileJob
from pytest_cutile.tile.compiler.compilations import Compilations
from pytest_cutile.tile.compiler.traced import CompileCase
from tests.tile.compiler.launchers import add
from tests.tile.compiler.tuned_launchers import SPACE, add_timed, add_tuned

TILES = [{"tile": 64}, {"tile": 32}, {"tile": 16}]


class FakeCompiler:
    """Compiles nothing, and rejects kernels whose last constant is one of these."""

    def __init__(self, *rejected: int) -> None:
        self._rejected = tuple(f"_I{constant}" for constant in rejected)
        self.jobs: dict[bytes, Future[Compiled]] = {}

    def submit(self, job: CompileJob) -> Future[Compiled]:
        if job.bytecode not in self.jobs:
            future = self.jobs[job.bytecode] = Future()
            if job.symbol.endswith(self._rejected):
                future.set_exception(job.rejected("out of shared memory"))
            else:
                future.set_result(
                    Compiled(cubin=b"", remarks=None, arch=job.arch, kernel=job.kernel, symbol=job.symbol)
                )
        return self.jobs[job.bytecode]


@pytest.fixture(autouse=True)
def digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kernel's symbol stand for its machine code."""
    for module in ("compilations", "configurations"):
        monkeypatch.setattr(f"pytest_cutile.tile.compiler.{module}.digest_code", lambda _, symbol: symbol)


def case_of(launcher: Any, *args: Any) -> CompileCase:
    def run() -> None:
        launcher(torch.ones(1000, device="cuda"), *args)

    return CompileCase(kernel="add", case="n1000", arch="sm_90", run=run, inputs=run, params={})


def compilations(*rejected: int) -> Compilations:
    return Compilations(FakeCompiler(*rejected), lambda _: None)  # type: ignore[arg-type]


def tile_of(found: Compilations, case: CompileCase) -> int:
    """Return the tile with which a case counts as compiled."""
    found.result(case)
    [compilation] = found.of(case)
    return int(compilation.launch.job.symbol.rpartition("_I")[2])


def errors(found: Compilations, case: CompileCase) -> dict[str, str]:
    return {one.name: one.rejected for one in found.configurations(case) if one.rejected}


def test_all_configurations_are_compiled_and_one_is_the_case() -> None:
    found, case = compilations(), case_of(add_tuned)
    assert tile_of(found, case) == 64
    assert [one.name for one in found.configurations(case)] == [
        "tile=64, occupancy=1",
        "tile=48, occupancy=1",
        "tile=32",
    ]
    [(name, message)] = errors(found, case).items()
    assert name == "tile=48, occupancy=1"
    assert "48" in message


def test_equal_kernels_are_compiled_once() -> None:
    compiler = FakeCompiler()
    found, case = Compilations(compiler, lambda _: None), case_of(add_tuned, [*TILES, *TILES])  # type: ignore[arg-type]
    found.result(case)
    assert len(found.configurations(case)) == 6
    assert len(compiler.jobs) == 3


@pytest.mark.parametrize(("rejected", "tile"), [((), 64), ((64,), 32), ((64, 32), 16), ((32, 16), 64)])
@pytest.mark.parametrize("launcher", [add_tuned, add_timed])
def test_what_does_not_compile_is_no_error_of_the_case_if_another_does(launcher, rejected, tile) -> None:
    space = TILES if launcher is add_tuned else [one["tile"] for one in TILES]
    found, case = compilations(*rejected), case_of(launcher, space)
    assert tile_of(found, case) == tile
    assert len(errors(found, case)) == len(rejected)
    assert set(errors(found, case).values()) <= {"out of shared memory"}


@pytest.mark.parametrize("launcher", [add_tuned, add_timed])
def test_without_any_that_compiles_the_case_does_not(launcher) -> None:
    space = TILES if launcher is add_tuned else [one["tile"] for one in TILES]
    with pytest.raises(CompileError, match="out of shared memory"):
        compilations(64, 32, 16).result(case_of(launcher, space))
    with pytest.raises(CompileError, match="48"):
        compilations().result(case_of(add_tuned, SPACE[1:2]))
    with pytest.raises(CompileError, match="48"):
        compilations().result(case_of(add_timed, [48, 48]))


def test_a_loop_goes_on_with_a_configuration_that_compiles() -> None:
    found, case = compilations(), case_of(add_timed, [48, 32])
    assert tile_of(found, case) == 32
    assert [*errors(found, case)] == ["tuned_kernel(tile=48), grid 21"]


def test_the_space_belongs_to_the_fingerprint_and_its_order_does_not() -> None:
    def fingerprint(*space: Any) -> str:
        return compilations().fingerprint(case_of(add_tuned, [*space]))

    first, second, third = TILES
    assert fingerprint(first, second, third) == fingerprint(first, third, second)
    assert fingerprint(first, second, third) != fingerprint(first, second)
    assert fingerprint(first, second) != fingerprint(first, {"tile": 48}, second)


def test_a_launcher_that_does_not_tune_has_no_configurations() -> None:
    found, case = compilations(), case_of(lambda x: add(x, x))
    assert found.configurations(case) == []
    assert found.fingerprint(case) == found.fingerprint(case_of(lambda x: add(x, x)))
