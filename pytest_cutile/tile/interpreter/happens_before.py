"""Vector clocks: what each block knows of the others, by atomics that acquire and release.

Synchronizing operations are counted as they run. For each location that they use (usually an element), a
block's clock holds the time up to which the block knows of releases there. An acquire takes over what the
location's releasers knew. What a block did happened before the present of another block if that block's clock
covers a later release.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

_MOST_LANES = 8
"""Elements on which a block acquires or releases at once, beyond which the storage is one location."""
_MOST_LOCATIONS = 256
"""Elements of a storage that are separate locations."""
_MOST_ENTRIES = 2**24
"""Entries of all clocks, beyond which a storage is one location."""


class VectorClocks:
    """The clock of each block, and what each location passes on."""

    def __init__(self, blocks: int) -> None:
        self.epochs = torch.zeros(blocks, dtype=torch.int32)
        """How often each block has released."""
        self._clocks = np.zeros((blocks, 4), dtype=np.int32)
        """By block and location: the time up to which the block knows of releases there."""
        self._released = np.zeros((4, 4), dtype=np.int32)
        """By location and location: the clock that an acquire takes over."""
        self._releasers: list[set[int]] = []
        """Blocks that have released at each location; two of them are enough."""
        self._has_acquired = np.zeros(blocks, dtype=bool)
        """Which blocks have acquired what another had released."""
        self._releases: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Where and when each block has released."""
        self._locations: dict[int, dict[int, int]] = defaultdict(dict)
        """By storage and byte."""
        self._merged: dict[int, int] = {}
        """The one location of a storage whose elements are merged."""
        self._time = 0

    def synchronize(self, storage: int, blocks: torch.Tensor, bytes_: torch.Tensor, ordering: str) -> None:
        """Let blocks acquire, release or both, in turn, at these bytes of a storage."""
        acquires, releases = (ordering in {side, "acq_rel"} for side in ("acquire", "release"))
        if not (acquires or releases) or not len(blocks):
            return
        if int(torch.unique_consecutive(blocks, return_counts=True)[1].max()) > _MOST_LANES:
            self._merge_elements(storage)
        if storage in self._merged:
            blocks = torch.unique_consecutive(blocks)
            bytes_ = torch.zeros_like(blocks)
        for block, byte in zip(blocks.tolist(), bytes_.tolist(), strict=True):
            location = self._location(storage, byte)
            self._time += 1
            if acquires:
                known = self._clocks[block]
                np.maximum(known, self._released[location], out=known)
                known[location] = self._time
                self._has_acquired[block] |= bool(self._releasers[location] - {block}) or bool(
                    self._released[location].any()
                )
            if releases:
                np.maximum(self._released[location], self._clocks[block], out=self._released[location])
                if len(self._releasers[location]) < 2:  # noqa: PLR2004
                    self._releasers[location].add(block)
                self._releases[block].append((location, self._time))
                self.epochs[block] += 1

    def happened_before(self, own: torch.Tensor, other: torch.Tensor, epochs: torch.Tensor) -> torch.Tensor:
        """Return which accesses of other blocks, by epoch, happened before the present of `own`.

        Where the other block is unknown (negative), having acquired anything is enough.
        """
        most = int(epochs.max()) + 1
        count = len(self.epochs) + 1
        keys = (own.to(torch.int64) * count + other.clamp(min=-1) + 1) * most + epochs
        keys, inverse = keys.unique(return_inverse=True)
        known = [
            self._knows(key // most // count, key // most % count - 1, key % most) for key in keys.tolist()
        ]
        return torch.tensor(known, dtype=torch.bool)[inverse]

    def _knows(self, own: int, other: int, epoch: int) -> bool:
        if other < 0:
            return bool(self._has_acquired[own])
        known = self._clocks[own]
        return any(known[location] >= time for location, time in self._releases[other][epoch:])

    def _location(self, storage: int, byte: int) -> int:
        locations = self._locations[storage]
        if storage not in self._merged and byte not in locations:
            entries = len(self._clocks) * (len(self._releasers) + 1)
            if len(locations) < _MOST_LOCATIONS and entries <= _MOST_ENTRIES:
                locations[byte] = self._add_location()
            else:
                self._merge_elements(storage)
        whole = self._merged.get(storage)
        return locations[byte] if whole is None else whole

    def _merge_elements(self, storage: int) -> None:
        """Make a storage one location: an acquire at one element then covers all."""
        if storage in self._merged:
            return
        location = self._merged[storage] = self._add_location()
        for other in self._locations[storage].values():
            np.maximum(self._released[location], self._released[other], out=self._released[location])
            self._released[location][other] = self._time
            self._releasers[location] |= self._releasers[other]

    def _add_location(self) -> int:
        location = len(self._releasers)
        self._releasers.append(set())
        if location == len(self._released):
            self._clocks = np.pad(self._clocks, ((0, 0), (0, location)))
            self._released = np.pad(self._released, ((0, location), (0, location)))
        return location
