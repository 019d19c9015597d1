"""The CUDA context of this process: whether it is usable, and what an error means for it."""

from __future__ import annotations

import sys
from typing import Any

# The errors after which CUDA answers every call of a process with the same one (CUDA Runtime API, "Error
# handling": "This leaves the process in an inconsistent state"), as torch and the driver API word them.
_FATAL = (
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "device-side assert",
    "hardware stack error",
    "illegal instruction",
    "illegal memory access",
    "invalid program counter",
    "misaligned address",
    "operation not supported on global/shared address space",
    "the launch timed out and was terminated",
    "unspecified launch failure",
)


def breaks_the_context(error: BaseException) -> bool:
    """Say whether `error` leaves the CUDA context unusable for this process."""
    return any(phrase in str(error) for phrase in _FATAL)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Say whether the GPU's memory was too small, as torch or the driver says it."""
    is_torchs = type(error).__name__ == "OutOfMemoryError"
    return is_torchs or any(
        text in str(error) for text in ("CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY")
    )


def context_error() -> str:
    """Wait for what this process has launched; return the first line of CUDA's error, or "".

    An error that is no fault of the context is not repeated by CUDA, and so is none here.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - torch's type for it depends on the version
        return f"{error}".partition("\n")[0]
    return ""
