"""Kernels of a study are compiled before they are timed, all that a search would try; launches find them."""

import pytest
import torch
from cuda.tile.tune import exhaustive_search

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.signature import derive_signature
from pytest_cutile.tile.compiler.toolchain import CompilerMissing
from pytest_cutile.tile.compiler.trace.launches import pretend_gpu
from studies.running import compiling
from studies.running.compiling import compile_beforehand
from studies.running.study import Contender, Row, Study
from tests.studies.test_running import CASES
from tests.tile.compiler import launchers
from tests.tools import toy_kernel

TILES = [64, 256]
SEARCHED: list[object] = []
"""What searches ended with."""


def add_tuned(x):
    """Add in the tiles that a search finds the fastest."""
    grids = {tile: (-(-x.shape[0] // tile),) for tile in TILES}
    SEARCHED.append(
        exhaustive_search(
            TILES,
            0,
            grids.__getitem__,
            launchers.add_kernel,
            lambda tile: (x, x, x, tile),
            lambda tile: {"occupancy": 2 if tile == 64 else 1},
        )
    )


def needs_a_gpu(x):
    return x.item()


def study_of(*launches):
    rows = [
        Row(case=CASES[0], contender=Contender(name=launch.__name__, launch=launch)) for launch in launches
    ]
    return Study(name="toy", summary="", spec=toy_kernel.SPEC, rows=lambda _: rows, pages=lambda _: {})


def test_a_launch_finds_each_configuration_of_a_search_compiled(tmp_path, monkeypatch):
    context = cutile._private("cuda.tile._cext", "default_tile_context")
    monkeypatch.setattr(context.config, "cache_dir", str(tmp_path))
    study = study_of(needs_a_gpu, add_tuned, toy_kernel.double)
    said: list[str] = []
    compile_beforehand(study, study.rows(False), "sm_90", said.append)
    assert said == ["  compiling 2 kernels for sm_90"]
    assert not SEARCHED  # nothing is kept as the fastest that was never timed
    monkeypatch.setattr("cuda.tile._compile.compile_cubin", lambda *_, **__: pytest.fail("compiled again"))
    with pretend_gpu("sm_90") as recorder:
        x = torch.empty(CASES[0].params["n"], dtype=torch.float16, device="cuda")
        for tile in TILES:
            kernel = launchers.add_kernel.replace_hints(occupancy=2 if tile == 64 else 1)
            recorder.launch(0, (1,), kernel, (x, x, x, tile))
    for launch in recorder.launches:
        launch.kernel._compile(derive_signature(launch.kernel, launch.args), context, (9, 0))


def test_without_a_compiler_nothing_is_timed(monkeypatch):
    def missing():
        raise CompilerMissing("tileiras is not installed: install it")

    monkeypatch.setattr(compiling, "find_tileiras", missing)
    with pytest.raises(SystemExit, match="tileiras is not installed: install it"):
        compile_beforehand(study_of(toy_kernel.double), [], "sm_90", print)
