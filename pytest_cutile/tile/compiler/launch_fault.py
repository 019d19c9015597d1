"""Finds a compiler's fault in what a launch on a GPU raises: cuda-tile compiles in the first launch."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from typing import Any

from pytest_cutile.tile.compiler.fault import CompilerFault, Fault, fault_of, reason_in
from pytest_cutile.tile.compiler.process import FinishedProcess

_PRINTED = re.compile(r"Return code (-?\d+)\n?(.*)", re.DOTALL)


def fault_of_launch(error: Any) -> CompilerFault | None:
    """Return the fault of tileiras that `error` is about; None: it is about something else.

    cuda-tile tells a crash as a rejection, with the exit status in the message. It takes for granted that
    what tileiras prints is UTF-8, and that a tileiras that ends well has written a cubin.
    """
    execution_error = getattr(sys.modules.get("cuda.tile"), "TileCompilerExecutionError", ())
    fault, tried, printed = None, "what the launch asks for", ""
    if isinstance(error, execution_error) and (match := _PRINTED.match(error.message)) is not None:
        ended = FinishedProcess(status=int(match[1]), output=match[2].encode(), was_stopped=False)
        fault, tried, printed = fault_of(ended, b""), error.compiler_flags, reason_in(match[2])
    elif isinstance(error, UnicodeDecodeError) and _is_of_cutiles_compiler(error):
        fault = Fault(how="what it printed is no text (not UTF-8)")
    elif isinstance(error, FileNotFoundError) and f"{error.filename}".endswith(".cubin"):
        fault = Fault(how="exit status 0, and no cubin") if _is_of_cutiles_compiler(error) else None
    if fault is None:
        return None
    return CompilerFault(
        fault.headline("in a launch"), facts=[*fault.facts(tried, printed)], crashed=fault.crashed
    )


def _is_of_cutiles_compiler(error: BaseException) -> bool:
    """Say whether an error was raised in cuda-tile's module that runs tileiras, or in what that called."""
    return any(
        Path(frame.f_code.co_filename).parts[-3:] == ("cuda", "tile", "_compile.py")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
