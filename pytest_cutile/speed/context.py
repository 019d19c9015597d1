"""What the speed gate needs of a run. `pytest_cutile.session.Session` provides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pytest_cutile.baselines.store import BaselineStore
from pytest_cutile.gpu.at_hand import GpuAtHand
from pytest_cutile.settings import Settings


class Checkout(Protocol):
    """The checkout under test."""

    @property
    def commit(self) -> str:
        """The full id of the commit, with "+" where the checkout has changes; "" outside of git."""


class SpeedContext(Protocol):
    """The parts of a run that the speed gate uses, so that nothing here depends on the whole session."""

    @property
    def settings(self) -> Settings: ...

    @property
    def gpu(self) -> GpuAtHand: ...

    @property
    def checkout(self) -> Checkout: ...

    @property
    def baselines(self) -> BaselineStore | None:
        """The stored baselines; None when nothing stored is compared."""

    @property
    def speed_baselines_name(self) -> str:
        """Where the baselines of this kind of GPU are, as messages name it."""

    @property
    def progress(self) -> Callable[[str], None]:
        """Shows what takes time."""

    @property
    def run_id(self) -> str:
        """Name of this run of pytest, and of its worker."""
