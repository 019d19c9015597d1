"""What more than one layer raises."""

from __future__ import annotations

from pytest_cutile.words.verdicts import Reason

NO_TORCH = "torch is not installed: pip install 'pytest-cutile[torch]'"


class GateSkipped(Exception):  # noqa: N818 - not an error: the gate has nothing to measure on
    """A gate cannot answer its question here."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
