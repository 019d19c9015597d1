"""Compile and check configurations in many processes at once, before any of them is timed.

Compilation takes most of a tuning run: seconds a configuration, on one core each. The processes share
cuTile's disk cache, so that the process which times them finds every cubin there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tools.gpu_runs.agreement import describe_difference
from tools.gpu_runs.gpu_state import guarded, release_memory
from tools.gpu_runs.processes import Handler, Pool
from tools.gpu_runs.suites import Prepared, prepare

CACHE_VARIABLE = "CUDA_TILE_CACHE_DIR"
CHECK_SECONDS = 60.0
"""After so long a configuration that is still being compiled, run or compared is given up."""
COMPILE_SECONDS = 50.0
"""After so long the compiler gives up by itself."""
CONTEXT_BYTES = 1 << 30
"""What a process takes of the GPU's memory besides its tensors."""
MEMORY_SHARE = 0.6
"""Share of the free memory that all of them may take."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A configuration to check."""

    suite: str
    """Name of the suite."""
    case: str
    """Name of the case."""
    config: Any
    """The configuration."""
    expected: str
    """File of what the launch has to return."""


def share_cache() -> None:
    """Let this process and those that it starts share a disk cache of cubins. Before cuTile is imported.

    The compiler gives up before the process that waits for it is killed: it would not die with it.
    """
    os.environ.setdefault("CUDA_TILE_COMPILER_TIMEOUT_SEC", f"{COMPILE_SECONDS:g}")
    os.environ.setdefault(CACHE_VARIABLE, str(Path(tempfile.gettempdir()) / f"cutile-tuner-{os.getuid()}"))


def start_checking(number: int, *, device: str) -> Handler:
    """Prepare a process that checks candidates on `device`."""
    del number
    import torch

    torch.set_num_threads(1)
    if device != "cpu":
        torch.empty(1, device=device)  # the context takes a second, which is not the first candidate's
    return guarded(partial(_check, _Kept(device)), device)


class _Kept:
    """The arguments of the case at hand, and what is expected: the next candidate is mostly of the same."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._key: tuple[str, ...] = ()
        self._held: Any = None

    def of(self, candidate: Candidate) -> tuple[Prepared, Any]:
        import torch

        key = (candidate.suite, candidate.case, candidate.expected)
        if key != self._key:
            self._key, self._held = (), None
            release_memory()
            case = prepare(candidate.suite, candidate.case, self.device)
            expected = torch.load(candidate.expected, map_location=self.device, weights_only=True)
            self._key, self._held = key, (case, expected)
        case, expected = self._held
        return case, expected

    def forget(self) -> None:
        self._key, self._held = (), None


def _check(kept: _Kept, candidate: Candidate) -> str | None:
    """Launch a candidate; return what is wrong with its result, or None."""
    case, expected = kept.of(candidate)
    said = describe_difference(case.launcher(candidate.config)(), expected, case.inputs)
    if case.suite.spec.check_of(case.case).get("mutates"):
        kept.forget()  # the next one needs the arguments as they were
    return None if said is None else f"wrong result: {said}"


def count_processes(case: Prepared, expected: Sequence[Any], *, cores: int) -> int:
    """Return how many processes can check `case` at once: as many as `cores`, if the memory allows."""
    import torch

    from pytest_cutile.tile.tensors.trees import named_tensors

    tensors = [tensor for _, tensor in named_tensors((case.inputs, [*expected, *expected]), "")]
    if not any(tensor.is_cuda for tensor in tensors):
        return cores
    needed = CONTEXT_BYTES + sum(tensor.nbytes for tensor in tensors)
    return max(1, min(cores, int(torch.cuda.mem_get_info()[0] * MEMORY_SHARE / needed)))


def check_all(pool: Pool, candidates: Sequence[Candidate], *, at_once: int) -> Any:
    """Yield (place in `candidates`, why it is out or None) as they are done."""
    for number, outcome in pool.run(candidates, at_once=at_once):
        yield number, outcome.error or outcome.value
