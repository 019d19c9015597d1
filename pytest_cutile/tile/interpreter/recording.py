"""What an interpreted run records on request: values at lines of source, nonfinite origins, writers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_cutile.tile.interpreter.ir import EntryPoint
from pytest_cutile.tile.interpreter.machine import Machine, Observer
from pytest_cutile.tile.interpreter.nonfinite_origin import NonfiniteFinder
from pytest_cutile.tile.interpreter.options import Options
from pytest_cutile.tile.interpreter.provenance import Provenance
from pytest_cutile.tile.interpreter.watch import Watcher

if TYPE_CHECKING:
    import torch


class Recording:
    """Records of all launches since it was made; None stands for what `options` do not ask for."""

    def __init__(self, options: Options) -> None:
        blocks = options.watch_blocks if options.only_block is None else (options.only_block,)
        self.watcher = Watcher(options.watch, blocks) if options.watch else None
        self.nonfinite = NonfiniteFinder() if options.find_nonfinite else None
        self.provenance = Provenance() if options.trace_writes else None
        self.launches = 0
        """Number of launches recorded."""

    def begin_launch(self, machine: Machine, entry: EntryPoint, arguments: Sequence[torch.Tensor]) -> None:
        """Attach the recorders to a machine that is about to run a kernel with these parameters."""
        self.launches += 1
        observers: list[Observer] = []
        if self.watcher is not None:
            self.watcher.begin_launch(machine, entry)
            observers.append(self.watcher)
        if self.nonfinite is not None:
            self.nonfinite.begin_launch(machine, arguments)
            observers.append(self.nonfinite)
        if self.provenance is not None:
            self.provenance.begin_launch(machine, entry)
            observers.append(self.provenance)
            machine.memory.observer = self.provenance
        machine.observers = observers
