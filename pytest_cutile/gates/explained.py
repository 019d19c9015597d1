"""Why an interpreted check failed: the check is made once more, and what its kernels store is recorded."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.interpreter.faults import UnwrittenOutput

if TYPE_CHECKING:
    from pytest_cutile.interpreter import Run

RunLaunch = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Calls a launcher with its arguments and returns its outputs."""
Check = Callable[[RunLaunch], CheckReport]
"""Makes a check, given what runs the launcher."""

SHOWN_TILES = 12
"""Lines of tiles that a wrong element came from."""


def why_wrong(run: Run, check: Check, launch: RunLaunch) -> str:
    """Return the origin of a NaN or Inf in the worst element of a wrong result, and who wrote the element."""
    lines: list[str] = []
    with _recorded(run):
        try:
            check(launch)
        except KernelMismatch as again:
            if again.output is None:
                return ""
            worst = again.output[again.index].item()
            if not math.isfinite(worst):
                name: Literal["NaN", "Inf"] = "NaN" if math.isnan(worst) else "Inf"
                if origin := run.nonfinite.first(name):
                    lines += f"the first {name} that was stored: {origin}".splitlines()
            with contextlib.suppress(LookupError):  # the host wrote it
                trace = run.trace_element(again.output, again.index)
                head = f"{replace(trace, tiles=())}".splitlines()
                tiles = f"{trace}".splitlines()[len(head) :]
                if len(tiles) > SHOWN_TILES:
                    tiles[SHOWN_TILES:] = ["  ..."]
                lines += head + tiles
        except Exception:  # noqa: BLE001 - the failure that is explained matters more
            return ""
    return "".join(f"\n  {line}" for line in lines)


def why_unwritten(run: Run, check: Check, check_written: Callable[[Callable[..., Any], Any], None]) -> str:
    """Return which lines and blocks stored into the output that is not written to its last element."""

    def launch(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        outputs = fn(*args, **kwargs)
        check_written(fn, outputs)
        return outputs

    writers = ""
    with _recorded(run):
        try:
            check(launch)
        except UnwrittenOutput as again:
            writers = run.writers(again.tensor)
        except Exception as error:  # noqa: BLE001 - the fault that is explained matters more
            writers = f"who wrote the rest is not known: {type(error).__name__}: {error}"
    return "".join(f"\n  {line}" for line in writers.splitlines())


@contextlib.contextmanager
def _recorded(run: Run) -> Iterator[None]:
    """Record all stores, which takes time, and show nothing else of the check."""
    faults = len(run.faults)
    options = replace(run.options, trace_writes=True, find_nonfinite=True, watch=())
    with run.using(options), contextlib.redirect_stdout(io.StringIO()):
        yield
    del run.faults[faults:]
