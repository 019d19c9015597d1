"""What more than one wing raises, and the root of errors that are shown by their message alone."""

from __future__ import annotations

from pytest_cutile.words.verdicts import Reason

NO_TORCH = "torch is not installed: pip install 'pytest-cutile[torch]'"


class ShownWithoutTraceback(Exception):  # noqa: N818 - says what happens to it
    """An error whose message is the whole of what there is to say: a failure shows no traceback of it."""


class GateSkipped(Exception):  # noqa: N818 - not an error: the gate has nothing to measure on
    """A gate cannot answer its question here."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
