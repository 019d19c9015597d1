"""What a check raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_cutile.words.errors import ShownWithoutTraceback
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    import torch

    from pytest_cutile.words.results import ErrorMap


SECOND_LAUNCH = "the second launch, after one that was right"
WHICH_LAUNCH = 3
"""Clarity of a failure that says which launch is wrong: more than any pattern of the errors."""
LATER_LAUNCH = "launch {}, after {} that were right"
"""Begins a message about a launch that was to do the same as the one before it."""


def with_facts(text: str, *facts: str) -> str:
    """Return a message with further facts before its details, which follow the first empty line."""
    head, gap, details = text.partition("\n\n")
    return "\n".join([head, *facts]) + gap + details


class KernelMismatch(ShownWithoutTraceback, AssertionError):  # noqa: N818 - it reads as a verdict in pytest's report
    """A kernel's outputs are not what its reference computes, or it changed what it may not."""

    def __init__(self, message: str, *, reason: Reason = Reason.WRONG_VALUES) -> None:
        super().__init__(message)
        self.reason = reason
        """What is wrong, as a reason code."""

    def on_launch(self, which: str) -> None:
        """Say which launch it was: that is the cause."""
        self.args = (f"{which}: {self}",)
        self.clarity = WHICH_LAUNCH

    def with_message(self, message: str) -> KernelMismatch:
        other = KernelMismatch(message)
        vars(other).update(vars(self))
        return other

    output: torch.Tensor | None = None
    """The first output that is wrong, if its elements could be compared."""
    index: tuple[int, ...] = ()
    """Its worst element."""
    changed: torch.Tensor | None = None
    """The first input that was changed and may not be."""
    clarity: int = 0
    """How clear the first line makes the cause: of several failures of one cause, the clearest is shown."""
    wrong_share: float = 0.0
    """Share of that output's elements that are outside the bound."""
    advice: str = ""
    """Which looser numerics policy would let the outputs pass; empty where none was tried."""
    errors: ErrorMap | None = None
    """Where the errors of that output are; None if there are none to show."""


class ReferenceFailed(ShownWithoutTraceback, RuntimeError):  # noqa: N818 - likewise
    """The reference raised, or returned something that nothing can be compared with."""


class UncheckableOutput(ShownWithoutTraceback, TypeError):  # noqa: N818 - likewise
    """A kernel returned no tensor, or one of a dtype that cannot be compared."""
