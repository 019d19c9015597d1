"""pytest in a fork of this process: alone as in a new process, without importing torch and all else again."""

import gc
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch


def run_forked(pytester: pytest.Pytester, *args: str, folder: Path | None = None) -> pytest.RunResult:
    """Run pytest as `pytester.runpytest_subprocess` does: what it patches, or dies of, stays there.

    It runs in `folder`, or else in the project. Workers of pytest-xdist are new processes.
    """
    out, err = pytester.path / "stdout", pytester.path / "stderr"
    basetemp = f"--basetemp={pytester.path.parent / f'{pytester.path.name}-basetemp'}"
    start = time.monotonic()
    pid = _fork(lambda: _run_pytest([basetemp, *map(str, args)], folder or pytester.path, out, err))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - start
    with suppress(ValueError):
        code = pytest.ExitCode(code)
    outcome = pytest.RunResult(code, out.read_text().splitlines(), err.read_text().splitlines(), seconds)
    for path, lines, stream in ((out, outcome.outlines, sys.stdout), (err, outcome.errlines, sys.stderr)):
        print(*lines, sep="\n", file=stream)
        path.unlink()
    return outcome


def _fork(run: Callable[[], int]) -> int:
    """Run a function in a forked process, which ends with what it returns; return the process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads: none of this process holds a lock now
        pid = os.fork()
    if pid == 0:
        gc.freeze()  # what this process has need not be searched for garbage, which would copy its memory
        torch.set_num_threads(1)  # other threads are not forked, and OpenMP would wait for them
        code = 1
        try:
            code = run()
        finally:
            os._exit(code)
    return pid


def _run_pytest(args: list[str], folder: Path, out: Path, err: Path) -> int:
    writes = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    _redirect(os.open(os.devnull, os.O_RDONLY), os.open(out, writes), os.open(err, writes))
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        return int(pytest.main(args))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _redirect(*files: int) -> None:
    """Make file descriptors the standard streams."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww")
    )
