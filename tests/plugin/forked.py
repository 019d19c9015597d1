"""pytest in a fork of this process: alone as in a new process, without importing torch and all else again."""

import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest


def run_forked(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest as `pytester.runpytest_subprocess` does: what it patches, or dies of, stays there."""
    out, err = pytester.path / "stdout", pytester.path / "stderr"
    basetemp = f"--basetemp={pytester.path.parent / f'{pytester.path.name}-basetemp'}"
    start = time.monotonic()
    pid = fork(lambda: _run_pytest([basetemp, *args], out, err))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with suppress(ValueError):
        code = pytest.ExitCode(code)
    texts = [path.read_text() for path in (out, err)]
    for path, text in zip((out, err), texts, strict=True):
        print(text, file=sys.stderr if path is err else sys.stdout)
        path.unlink()
    return pytest.RunResult(code, *(text.splitlines() for text in texts), time.monotonic() - start)


def fork(run: Callable[[], int]) -> int:
    """Run a function in a forked process, which ends with what it returns; return the process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads: none of this process holds a lock now
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = run()
        finally:
            os._exit(code)
    return pid


def _run_pytest(args: list[str], out: Path, err: Path) -> int:
    for number, path in ((0, Path(os.devnull)), (1, out), (2, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, closefd=False) for n, mode in enumerate("rww"))
    sys.path.insert(0, os.getcwd())
    try:
        return int(pytest.main(args))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
