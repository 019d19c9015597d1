"""Does an exception say that a launcher does not take its arguments, or that it stumbled over them?"""

from __future__ import annotations

import dis
import re
import sys

from pytest_cutile.correctness.errors import UncheckableOutput

_NO_SUCH_VIEW = re.compile(
    r"view size is not compatible with input tensor's size and stride"
    r"|(storage_offset|stride)\S* (must be )?divisible by"
    r"|stride\(-1\) must be 1 to view"
    r"|must have a last dimension with stride 1|must have a stride divisible by"
)
"""What torch says of memory that cannot be seen as another shape or dtype (`view`, `view_as_complex`)."""
_NOT_THE_KERNELS = {*sys.stdlib_module_names, "torch", "numpy", "triton", "cuda", "pytest_cutile"}
"""Packages that know nothing of what a kernel is meant to take."""


def is_refusal(error: BaseException) -> bool:
    """Say whether an error was raised to refuse arguments: by a `raise` in the kernel's own code.

    What Python or torch raise is the launcher's fault.
    """
    if not isinstance(error, (TypeError, ValueError, NotImplementedError)):
        return False
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if isinstance(error, UncheckableOutput) or step is None:
        return False
    package = step.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    instruction = step.tb_frame.f_code.co_code[step.tb_lasti]
    return package not in _NOT_THE_KERNELS and dis.opname[instruction] == "RAISE_VARARGS"


def is_layout_refusal(error: BaseException) -> bool:
    """Say whether an error refuses how arguments lie in memory: so does `view`, which never copies."""
    return is_refusal(error) or (isinstance(error, RuntimeError) and bool(_NO_SUCH_VIEW.search(str(error))))
