"""Tries the compiler's options on one kernel: for which of them does tileiras crash?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

from pytest_cutile.tile.compiler.fault import CompilerFault
from pytest_cutile.tile.compiler.job import CompileError, CompileJob, CompileTimeout
from pytest_cutile.tile.compiler.service import Compiled, Compiler

OPT_LEVELS = (0, 1, 2, 3)
NOT_TRIED = "not tried"
_ONE_TRIAL_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What tileiras made of a kernel with one architecture and optimization level."""

    arch: str
    opt_level: int
    outcome: str
    """"crashes", "fails without a reason", "rejects it", "compiles", "too long" or `NOT_TRIED`."""
    error: CompileError | None = None


def try_options(
    job: CompileJob, architectures: Sequence[str], *, seconds: float, processes: int
) -> list[Trial]:
    """Compile `job` for each of `architectures` with each optimization level, the options of `job` first.

    Args:
        job: What is compiled. Its bytecode stays the same.
        architectures: Names such as "sm_121".
        seconds: What has not begun by then is not tried.
        processes: How many tileiras may run at a time.

    Raises:
        CompilerMissing: tileiras is not installed.
    """
    options = [(arch, level) for arch in dict.fromkeys((job.arch, *architectures)) for level in OPT_LEVELS]
    # What tells most comes first: the job's own options, then those that differ in one thing.
    options.sort(key=lambda pair: (pair[0] != job.arch) + (pair[1] != job.opt_level))
    deadline = time.monotonic() + seconds
    with Compiler(cache_dir=None, jobs=processes, timeout_s=min(_ONE_TRIAL_S, seconds)) as compiler:
        futures = [compiler.submit(replace(job, arch=arch, opt_level=level)) for arch, level in options]
        wait(futures, timeout=max(0.0, deadline - time.monotonic()))
    return [_trial(arch, level, future) for (arch, level), future in zip(options, futures, strict=True)]


def _trial(arch: str, level: int, future: Future[Compiled]) -> Trial:
    if future.cancelled():
        return Trial(arch=arch, opt_level=level, outcome=NOT_TRIED)
    error = future.exception()
    match error:
        case None:
            outcome = "compiles"
        case CompilerFault():
            outcome = "crashes" if error.crashed else "fails without a reason"
        case CompileTimeout():
            outcome = "too long"
        case CompileError():
            outcome = "rejects it"
        case _:
            raise error
    return Trial(arch=arch, opt_level=level, outcome=outcome, error=error)
