"""What modules ask torch about the GPU while they are imported, where there is none."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

QUESTIONS = (
    *("get_device_properties", "get_device_capability", "get_device_name", "current_device"),
    "mem_get_info",
)
"""Functions of `torch.cuda` that raise without a GPU; `is_available` and `device_count` do not."""
MOVE = (
    "The body of a module uses the GPU, and there is none here.\n"
    "Move that into the launcher, into `inputs`, or into a test or fixture that takes make_tensor: it is "
    "interpreted there.\n"
    "In a module's body only questions are answered: torch.cuda.get_device_properties and its like."
)
_NO_GPU = re.compile(
    "Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
    "|CUDA driver initialization failed|no CUDA-capable device"
)


def wants_gpu(error: BaseException) -> bool:
    """Say whether torch raised an error because there is no GPU."""
    return bool(_NO_GPU.search(str(error)))


@contextmanager
def questions_answered(arch: Callable[[], str | None]) -> Iterator[None]:
    """Answer `QUESTIONS` for `arch()` while modules are imported, if there is no GPU; None: do not.

    Modules keep none of the answering functions. One kept elsewhere asks what `torch.cuda` has by then.
    """
    try:
        import torch
    except ModuleNotFoundError:  # nobody can ask
        yield
        return
    originals = {name: getattr(torch.cuda, name) for name in QUESTIONS}
    answers = {name: _answering(name, original, arch) for name, original in originals.items()}
    known = {*sys.modules}
    vars(torch.cuda).update(answers)
    try:
        yield
    except Exception as error:
        if wants_gpu(error):
            add_advice(error)
        raise
    finally:
        vars(torch.cuda).update(originals)
        own = {id(answers[name]): original for name, original in originals.items()}
        for module in [module for name, module in sys.modules.items() if name not in known]:
            for name, value in [*getattr(module, "__dict__", {}).items()]:
                if id(value) in own:
                    setattr(module, name, own[id(value)])


def add_advice(error: BaseException) -> None:
    """Say once what to move where."""
    if MOVE not in getattr(error, "__notes__", ()):
        error.add_note(MOVE)


def _answering(name: str, original: Callable[..., Any], arch: Callable[[], str | None]) -> Callable[..., Any]:
    import torch

    @functools.wraps(original)
    def answer(*args: Any, **kwargs: Any) -> Any:
        current = getattr(torch.cuda, name)
        if current is not answer:
            return current(*args, **kwargs)
        answered_for = None if torch.cuda.is_available() else arch()
        if answered_for is None:
            return original(*args, **kwargs)
        from pytest_cutile.tile.compiler.trace.cuda_api import replacements

        [said] = [new for owner, of, new in replacements(answered_for) if owner is torch.cuda and of == name]
        return said(*args, **kwargs)

    return answer
