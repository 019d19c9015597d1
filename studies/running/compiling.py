"""Compile what a study launches before anything is timed: on all cores, and without a launch on the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from functools import partial
from typing import Any

from pytest_cutile.tile.compiler import Compiled, Compiler
from pytest_cutile.tile.compiler.export import export
from pytest_cutile.tile.compiler.toolchain import CompilerMissing, find_tileiras
from pytest_cutile.tile.compiler.trace.launches import Launch, Recorder, pretend_gpu
from pytest_cutile.tile.compiler.trace.patching import Replacements
from pytest_cutile.tile.tensors.seeded import MakeTensor
from pytest_cutile.words.quantities import counted
from studies.running.study import Row, Study
from tools.gpu_runs.inputs import as_arguments

COMPILE_SECONDS = 60.0
"""After so long a compilation is given up: the launch tries it once more, and its row says what is wrong."""


def compile_beforehand(study: Study, rows: Sequence[Row], arch: str, say: Callable[[str], None]) -> None:
    """Compile the cuTile kernels of `rows` for `arch` in parallel, into the cache that launches read.

    Launches compile one after the other, and so does TileGym's tuner, whose configurations take seconds each.
    What cannot be traced or compiled here is left to the row itself.

    Raises:
        SystemExit: There is no compiler.
    """
    try:
        find_tileiras()
    except CompilerMissing as error:
        raise SystemExit(f"{error}") from error
    jobs = len(os.sched_getaffinity(0))
    with Compiler(cache_dir=None, jobs=jobs, timeout_s=COMPILE_SECONDS, gpu_arch=arch) as compiler:
        under_way: dict[Future[Compiled], None] = {}
        for row in rows:
            for launch in _launches(study, row, arch):
                with suppress(Exception):  # whatever the compiler raises: the row's own launch will raise it
                    under_way[compiler.submit(export(launch, arch))] = None
        if under_way:
            say(f"  compiling {counted(len(under_way), 'kernel')} for {arch}")
        for _ in as_completed(under_way):
            pass


def _launches(study: Study, row: Row, arch: str) -> list[Launch]:
    """Return what a row's contender launches, traced on tensors without data."""
    from cuda.tile import tune

    with pretend_gpu(arch) as recorder, suppress(Exception):  # PyTorch's back ends may need a GPU
        inputs = study.spec_of(row).make_inputs(partial(MakeTensor, device="cuda", seed=0), row.case)
        args, kwargs = as_arguments(inputs)
        with Replacements([(tune, "exhaustive_search", partial(_launch_all, recorder))]):
            row.contender.on(args, kwargs)()
    return recorder.launches


class _NothingTimed(Exception):  # noqa: N818 - it says what happened
    """Ends a search, so that its caller keeps no configuration as the fastest."""


def _launch_all(
    recorder: Recorder,
    search_space: Sequence[Any],
    stream: Any,
    grid_fn: Callable[[Any], tuple[int, ...]],
    kernel: Any,
    args_fn: Callable[[Any], tuple[Any, ...]],
    hints_fn: Callable[[Any], dict[str, Any]] | None = None,
    **_: Any,
) -> Any:
    """Stand in for `cuda.tile.tune.exhaustive_search`: launch every configuration, time none."""
    for config in search_space:
        chosen = kernel if hasattr(kernel, "replace_hints") else kernel(config)
        hints = hints_fn(config) if hints_fn else {}
        recorder.launch(stream, grid_fn(config), chosen.replace_hints(**hints), args_fn(config))
    raise _NothingTimed
