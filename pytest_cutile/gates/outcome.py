"""How what a gate found becomes the outcome of a test: pass, skip as not-measured, or one clear failure."""

from __future__ import annotations

import traceback
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

import pytest
from _pytest.outcomes import Failed  # pytest.fail.Exception, as a type

from pytest_cutile.correctness.errors import ReferenceFailed, with_facts
from pytest_cutile.correctness.run_stopped import RunStopped
from pytest_cutile.tile.interpreter.faults import KernelFault, NoSuchBlock, NotInterpreted
from pytest_cutile.timing.gpu.context import breaks_the_context, is_out_of_memory
from pytest_cutile.words.document import printable
from pytest_cutile.words.errors import NO_TORCH, GateSkipped, ShownWithoutTraceback
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    from pytest_cutile.gates.interpreted import Interpreting
    from pytest_cutile.gates.session import Session
    from pytest_cutile.words.results import ErrorMap


class GateFailed(Failed):
    """The failure of a gate, whose message is the whole of what there is to say."""

    errors: ErrorMap | None = None
    """Where the errors of a wrong output are."""
    call = ""
    """Which call of a fixture failed: "call 3: double(x float32 [300])"; empty for a declared case."""
    raised: BaseException | None = None
    """What the user's reference raised, whose traceback leads to its line."""
    place: object = None
    """Where it was called, if the traceback does not say: a `pytest_parts.failure.Place`."""


@dataclass(frozen=True)
class GateOutcome(AbstractContextManager[None]):
    """Context that turns the exceptions of gates into test outcomes.

    What a user's kernel, launcher or inputs raise goes on, with a traceback of the user's frames alone.
    """

    session: Session
    where: str
    """What is named in messages about the GPU: a case."""
    is_right: bool = False
    """Whether the case has passed its correctness check: a skip as not-measured then says so."""
    call: str = ""
    """The call of a fixture, shown with the user's line, which a loop may run several times."""

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Raise the outcome that belongs to `error`, if it is not to go on as it is."""
        __tracebackhide__ = True
        if isinstance(error, RunStopped):
            raise error.request from None
        if isinstance(error, GateSkipped):
            right = " (its result is right)" if self.is_right else ""
            message = f"not-measured ({error.reason}): {error.detail}{right}"
            if not self.session.settings.strict:
                raise pytest.skip.Exception(printable(message), _use_item_location=True) from None
            raise GateFailed(f"{message} [--perf-strict]", pytrace=False) from None
        if isinstance(error, ReferenceFailed) and is_out_of_memory(error.__cause__):
            error = error.__cause__
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise GateFailed(NO_TORCH, pytrace=False) from None
        if isinstance(error, ShownWithoutTraceback):
            prefix = f"{error.kind}: " if isinstance(error, KernelFault) else ""
            notes = getattr(error, "__notes__", ())
            failure = GateFailed(prefix + with_facts(f"{error}", *notes), pytrace=False)
            failure.errors, failure.call = getattr(error, "errors", None), self.call
            failure.raised = error.__cause__
            raise failure from None
        if not isinstance(error, Exception):
            return
        if breaks_the_context(error):
            self.session.gpu.failure = f"{self.where}: {error}".partition("\n")[0]
            raise GateFailed(_crash_message(error, self.where), pytrace=False) from None
        if is_out_of_memory(error):
            error.__traceback__ = None  # its frames hold the tensors that fill the memory
            message = _out_of_memory_message(error, self.where)
            raise GateFailed(message, pytrace=False) from None
        if self.call:
            error.add_note(f"in {self.call}")
        error.__traceback__ = _without_own_frames(error.__traceback__)


@dataclass(frozen=True)
class LaunchesOutcome(AbstractContextManager[None]):
    """Context of a test whose launches are interpreted: the real compiler has to accept them all."""

    session: Session
    interpreting: Interpreting
    item: pytest.Item

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise what the compiler says, or the outcome that belongs to `error`."""
        __tracebackhide__ = True
        self.interpreting.show_watched()
        for fault in self.interpreting.swallowed_faults(self.item.path) if error is None else ():
            text = printable(f"the test passed over a fault: {fault.in_one_line()}")
            try:
                self.item.warn(pytest.PytestWarning(text))
            except pytest.PytestWarning:  # with -W error
                raise GateFailed(text, pytrace=False) from None
        with GateOutcome(self.session, ""):
            if error is None:
                self.interpreting.wait_for_compiler()
            elif isinstance(error, NotInterpreted):
                raise GateSkipped(Reason.NOT_INTERPRETED, error.in_one_line()) from None
            elif isinstance(error, NoSuchBlock):
                raise GateSkipped(Reason.ONE_BLOCK, f"{error}") from None
        if isinstance(error, Exception):
            error.__traceback__ = _without_own_frames(error.__traceback__)


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return `traceback` with the user's frames alone; all of it if there are none."""
    entries = []
    step = traceback
    while step is not None:
        if is_users(step.tb_frame):
            entries.append(step)
        step = step.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result or traceback


def is_users(frame: FrameType) -> bool:
    """Say whether a frame is the user's: neither this package's nor torch's."""
    return frame.f_globals.get("__name__", "").partition(".")[0] not in {"pytest_cutile", "torch"}


def _crash_message(error: BaseException, where: str) -> str:
    """Return the story of a kernel that ended the CUDA context: what CUDA said, and where it was noticed."""
    lines = [
        f"{where}: a kernel crashed, and with it the CUDA context of its process: {error}".partition("\n")[0]
    ]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if is_users(frame)]
    if frames:
        code = frames[-1].f_code
        lines.append(
            f"  noticed at {code.co_filename}:{frames[-1].f_lineno} in {code.co_name}; launches are "
            "asynchronous, so that it may have happened earlier"
        )
    lines.append("  All other cases go on in another process. To find the access: --sanitize=memcheck")
    return "\n".join(lines)


def _out_of_memory_message(error: BaseException, where: str) -> str:
    import torch

    torch.cuda.empty_cache()
    return (
        f"{where}: CUDA is out of memory: {str(error).partition('. GPU')[0]}\n"
        "Give the case a smaller shape, or free the GPU (nvidia-smi lists what uses it). Other tests go on."
    )
