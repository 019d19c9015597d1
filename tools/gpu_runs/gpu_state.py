"""What the tuner and the comparison do about a GPU's memory, and about errors that stay in a process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from pytest_cutile.timing.gpu import nvml
from tools.gpu_runs.processes import Broken, Handler, describe


def release_memory() -> None:
    """Let go of what the last case left: its memory, and what torch.compile remembers of code it compiled.

    After a few shapes for one piece of code torch.compile gives up and runs it eagerly.
    """
    import torch

    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    free_memory()


def free_memory() -> None:
    """Give back what no tensor uses, to the other processes of the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def use_one_of(devices: Sequence[int], number: int) -> None:
    """Let this process, the `number`-th of several, see one of `devices`, and compute on one core of the CPU.

    Args:
        devices: numbers of visible GPUs; without any, it interprets.
        number: of the process.
    """
    if devices:
        nvml.choose_gpu(devices[number % len(devices)])
    import torch

    torch.set_num_threads(1)


def guarded(handle: Handler, device: str) -> Handler:
    """Return `handle` so that it raises Broken where it leaves `device` in an error, which then stays."""
    return partial(_guarded, handle, device)


def _guarded(handle: Handler, device: str, task: Any) -> Any:
    try:
        return handle(task)
    except Exception as error:
        raise_if_broken(device, describe(error))
        raise


def raise_if_broken(device: str, why: str) -> None:
    """Raise Broken(why) if the GPU answers nothing but errors."""
    if device == "cpu":
        return
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as error:
        raise Broken(why) from error
