"""Where a command runs a model: on the GPU, or interpreted where there is none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from models.weights import CONFIGS
from pytest_cutile.interpreter import interpret

INTERPRETED_ARCH = "sm_90"


def on_gpu(*names: str) -> AbstractContextManager[object]:
    """Return a context in which `device="cuda"` is the GPU; without one, the CPU, with kernels interpreted.

    Args:
        *names: Models that are to run, keys of `CONFIGS`.

    Raises:
        SystemExit: There is no GPU, and a model is too large to be interpreted.
    """
    if torch.cuda.is_available():
        return nullcontext()
    if large := [name for name in names if not name.startswith("tiny-")]:
        raise SystemExit(
            f"{', '.join(large)}: needs a GPU, and there is none. Without one, tiny models run interpreted: "
            f"{', '.join(name for name in CONFIGS if name.startswith('tiny-'))}"
        )
    return interpret(INTERPRETED_ARCH)
