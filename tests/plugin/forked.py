"""pytest in a fork of this process: alone as in a new process, without importing torch and all else again."""

import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.plugin.warm_python import fork, redirect


def run_forked(pytester: pytest.Pytester, *args: str, folder: Path | None = None) -> pytest.RunResult:
    """Run pytest as `pytester.runpytest_subprocess` does: what it patches, or dies of, stays there.

    It runs in `folder`, or else in the project. Workers of pytest-xdist are forks of another process.
    """
    out, err = pytester.path / "stdout", pytester.path / "stderr"
    basetemp = f"--basetemp={pytester.path.parent / f'{pytester.path.name}-basetemp'}"
    start = time.monotonic()
    pid = fork(lambda: _run_pytest([basetemp, *map(str, args)], folder or pytester.path, out, err))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - start
    with suppress(ValueError):
        code = pytest.ExitCode(code)
    outcome = pytest.RunResult(code, out.read_text().splitlines(), err.read_text().splitlines(), seconds)
    for path, lines, stream in ((out, outcome.outlines, sys.stdout), (err, outcome.errlines, sys.stderr)):
        print(*lines, sep="\n", file=stream)
        path.unlink()
    return outcome


def _run_pytest(args: list[str], folder: Path, out: Path, err: Path) -> int:
    writes = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    gc.freeze()  # what this process has need not be searched for garbage, which would copy its memory
    torch.set_num_threads(1)  # other threads are not forked, and OpenMP would wait for them
    for number, file in enumerate(
        (os.open(os.devnull, os.O_RDONLY), os.open(out, writes), os.open(err, writes))
    ):
        os.dup2(file, number)
    redirect()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        return int(pytest.main(args))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
