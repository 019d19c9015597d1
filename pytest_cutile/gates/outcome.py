"""How what a gate found becomes the outcome of a test: pass, skip as not-measured, or one clear failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_cutile.compile import CompileError, CompilerMissing
from pytest_cutile.gates.compiling import NothingLaunched
from pytest_cutile.gates.correct import note_gpu_failure
from pytest_cutile.gates.engine import Blocked, Engine
from pytest_cutile.gpu.check import KernelMismatch, ReferenceFailed, UncheckableOutput

_SAID_WITHOUT_TRACEBACK = (
    CompileError,
    CompilerMissing,
    KernelMismatch,
    NothingLaunched,
    ReferenceFailed,
    UncheckableOutput,
)


@contextmanager
def test_outcome(engine: Engine, where: str) -> Iterator[None]:
    """Turn the exceptions of gates into test outcomes.

    What this project raises is said once, without a traceback through it. What a user's kernel,
    launcher or inputs raise goes on with its own traceback.
    """
    __tracebackhide__ = True
    try:
        yield
        return
    except Blocked as blocked:
        message, skip = f"not-measured ({blocked.reason}): {blocked.detail}", not engine.settings.strict
    except _SAID_WITHOUT_TRACEBACK as error:
        message, skip = str(error), False
    except Exception as error:
        note_gpu_failure(engine, error, where)
        if not _is_out_of_memory(error):
            raise
        message, skip = _out_of_memory_message(error, where), False
    # Outside of the handlers: the exception holds the tensors that fill the memory.
    if skip:
        pytest.skip(message)
    if message.startswith("not-measured"):
        message += " [--perf-strict]"
    pytest.fail(message, pytrace=False)


def _is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError"


def _out_of_memory_message(error: BaseException, where: str) -> str:
    import torch

    torch.cuda.empty_cache()
    return (
        f"{where}: CUDA is out of memory: {str(error).partition('. GPU')[0]}\n"
        "Give the case a smaller shape, or free the GPU (nvidia-smi lists what uses it). Other tests go on."
    )
