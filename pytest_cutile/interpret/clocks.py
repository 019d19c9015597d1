"""What each block knows of what the others have done: by its atomic operations that acquire and release.

Atomic operations are counted as they run. Of each place that is used to acquire and release (an element, as a
rule), a block knows what was released there until it last acquired there, and what those that released there
knew themselves. What a block does counts as done before that of another one if the other knows of a release
that came after it.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

_MOST_LANES = 8
"""Elements on which a block acquires or releases at once that are told apart."""
_MOST_PLACES = 256
"""Elements of a storage that are told apart."""
_MOST_ENTRIES = 2**24
"""Entries of the table of what blocks know, beyond which elements are not told apart."""


class Clocks:
    """What each block knows of the others."""

    def __init__(self, blocks: int) -> None:
        self.epochs = torch.zeros(blocks, dtype=torch.int32)
        """How often each block has released."""
        self._known = np.zeros((blocks, 4), dtype=np.int32)
        """Until when each block knows what was released at each place."""
        self._left = np.zeros((4, 4), dtype=np.int32)
        """What is learned at each place of the others."""
        self._by_others: list[set[int]] = []
        """Blocks that have released at each place; two of them are enough."""
        self._met = np.zeros(blocks, dtype=bool)
        """Which blocks have acquired what another had released."""
        self._releases: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Where and when each block has released."""
        self._places: dict[int, dict[int, int]] = defaultdict(dict)
        """By storage and byte."""
        self._whole: dict[int, int] = {}
        """Of storages whose elements are not told apart."""
        self._time = 0

    def meet(self, storage: int, blocks: torch.Tensor, bytes_: torch.Tensor, ordering: str) -> None:
        """Let blocks acquire or release, or both, in turn, each at the byte that is beside it."""
        acquires, releases = (ordering in {kind, "acq_rel"} for kind in ("acquire", "release"))
        if not (acquires or releases) or not len(blocks):
            return
        if int(torch.unique_consecutive(blocks, return_counts=True)[1].max()) > _MOST_LANES:
            self._widen(storage)
        if storage in self._whole:
            blocks = torch.unique_consecutive(blocks)
            bytes_ = torch.zeros_like(blocks)
        for block, byte in zip(blocks.tolist(), bytes_.tolist(), strict=True):
            place = self._place(storage, byte)
            self._time += 1
            if acquires:
                known = self._known[block]
                np.maximum(known, self._left[place], out=known)
                known[place] = self._time
                self._met[block] |= bool(self._by_others[place] - {block}) or bool(self._left[place].any())
            if releases:
                np.maximum(self._left[place], self._known[block], out=self._left[place])
                if len(self._by_others[place]) < 2:  # noqa: PLR2004
                    self._by_others[place].add(block)
                self._releases[block].append((place, self._time))
                self.epochs[block] += 1

    def ordered(self, own: torch.Tensor, other: torch.Tensor, epochs: torch.Tensor) -> torch.Tensor:
        """Return which of what others did, each in one of its epochs, a block knows to be done.

        Where the other is not known (it is negative), what any block released is enough.
        """
        most = int(epochs.max()) + 1
        count = len(self.epochs) + 1
        keys = (own.to(torch.int64) * count + other.clamp(min=-1) + 1) * most + epochs
        keys, inverse = keys.unique(return_inverse=True)
        found = [
            self._knows(key // most // count, key // most % count - 1, key % most) for key in keys.tolist()
        ]
        return torch.tensor(found, dtype=torch.bool)[inverse]

    def _knows(self, own: int, other: int, epoch: int) -> bool:
        if other < 0:
            return bool(self._met[own])
        known = self._known[own]
        return any(known[place] >= time for place, time in self._releases[other][epoch:])

    def _place(self, storage: int, byte: int) -> int:
        places = self._places[storage]
        if storage not in self._whole and byte not in places:
            entries = len(self._known) * (len(self._by_others) + 1)
            if len(places) < _MOST_PLACES and entries <= _MOST_ENTRIES:
                places[byte] = self._add()
            else:
                self._widen(storage)
        whole = self._whole.get(storage)
        return places[byte] if whole is None else whole

    def _widen(self, storage: int) -> None:
        """Tell the elements of a storage apart no longer: who acquires at one knows of all."""
        if storage in self._whole:
            return
        place = self._whole[storage] = self._add()
        for each in self._places[storage].values():
            np.maximum(self._left[place], self._left[each], out=self._left[place])
            self._left[place][each] = self._time
            self._by_others[place] |= self._by_others[each]

    def _add(self) -> int:
        place = len(self._by_others)
        self._by_others.append(set())
        if place == len(self._left):
            self._known = np.pad(self._known, ((0, 0), (0, place)))
            self._left = np.pad(self._left, ((0, place), (0, place)))
        return place
