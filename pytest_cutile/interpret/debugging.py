"""What an interpreter records on request: values at lines of the source, origins of NaN and Inf, writers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_cutile.interpret.analysis import prepare
from pytest_cutile.interpret.births import NonfiniteFinder
from pytest_cutile.interpret.provenance import Provenance
from pytest_cutile.interpret.watch import Watcher

if TYPE_CHECKING:
    import torch

    from pytest_cutile.interpret.ir import Entry
    from pytest_cutile.interpret.launch import Options
    from pytest_cutile.interpret.machine import Machine, Observer


class Debugging:
    """What was recorded, of all launches."""

    def __init__(self, options: Options) -> None:
        blocks = options.watch_blocks
        if options.only_block is not None:
            blocks = (options.only_block,)
        self.watcher = Watcher(options.watch, blocks) if options.watch else None
        """Values at lines of the source; None: not asked for."""
        self.nonfinite = NonfiniteFinder() if options.find_nonfinite else None
        """Origins of NaN and Inf; None: not asked for."""
        self.provenance = Provenance() if options.trace_writes else None
        """Who wrote what; None: not asked for."""

    def begin_launch(self, machine: Machine, entry: Entry, arguments: Sequence[torch.Tensor]) -> None:
        """Prepare a machine for a kernel whose parameters have these values."""
        prepare(machine, entry, arguments)
        observers: list[Observer] = []
        if self.watcher is not None:
            self.watcher.begin_launch(machine, entry)
            observers.append(self.watcher)
        if self.nonfinite is not None:
            self.nonfinite.begin_launch(machine, entry, arguments)
            observers.append(self.nonfinite)
        if self.provenance is not None:
            self.provenance.begin_launch(machine, entry)
            observers.append(self.provenance)
            machine.memory.observer = self.provenance
        machine.observers = observers

    def writers(self, tensor: torch.Tensor) -> str:
        """Return which lines wrote a tensor's elements last, and in which blocks; empty: unknown."""
        return "" if self.provenance is None else self.provenance.writers(tensor)
