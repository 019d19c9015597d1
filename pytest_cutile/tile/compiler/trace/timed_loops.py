"""Launchers with a loop of their own that times launches between two CUDA events: which launches they try.

Pretended events measure the same of all launches: a loop keeps the first, or the one that is to be chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.trace.tuning import Search

if TYPE_CHECKING:
    from pytest_cutile.tile.compiler.trace.launches import Launch
    from pytest_cutile.tile.compiler.trace.tuning import Tuning

EVENT_MS = 1.0
"""What two pretended events measure: code that divides by it goes on."""
_CHOSEN_MS = 0.5


class TimedLoops:
    """The launches between pretended events whose distance was asked for."""

    def __init__(self, launches: list[Launch], tuning: Tuning, arch: str) -> None:
        self._launches = launches
        self._tuning = tuning
        self._arch = arch
        self._regions: dict[tuple[int, int], tuple[str, ...]] = {}
        """What each launches, in words without repeats, by its place among all launches."""

    @property
    def now(self) -> int:
        """What an event remembers when it is recorded: how many launches there have been."""
        return len(self._launches)

    def milliseconds(self, first: int, end: int) -> float:
        """Return what two pretended events measure that were recorded at these places."""
        return _CHOSEN_MS if self.is_chosen(first, end) else EVENT_MS

    def is_chosen(self, first: int, end: int) -> bool:
        """Return whether the launches between two places are to be the fastest, and remember them."""
        if first >= end:
            return False
        region = self._in_words(self._launches[first:end])
        if not self._regions:  # the first is chosen, unless another one is to be
            self._tuning.explored.add(_joined(region))
        self._regions[first, end] = region
        return self._tuning.is_to_choose(_joined(region)) or _joined(region) == self._tuning.choice

    def clear(self) -> None:
        """Forget which launches were timed."""
        self._regions.clear()

    def search(self) -> Search | None:
        """Return which configurations were timed, and which one is launched after that; None: none is."""
        regions = dict.fromkeys(self._regions.values())
        after = self._launches[self._end :]
        for first in range(len(after)):
            for region in regions:
                if self._in_words(after[first : first + len(region)]) == region:
                    return Search(configurations=tuple(map(_joined, regions)), chosen=_joined(region))
        return None

    def marked(self) -> list[Launch]:
        """Return all launches; those of a search once each, as candidates.

        A launch before the last timed one is the search's, too, if it equals one that was timed: a warm-up.
        """
        if self.search() is None:
            return [*self._launches]
        tried = {launch: _joined(region) for region in self._regions.values() for launch in region}
        marked: list[Launch] = []
        seen: set[str] = set()
        for launch in self._launches[: self._end]:
            [text] = self._in_words([launch])
            if text not in tried:
                marked.append(launch)
            elif text not in seen:
                seen.add(text)
                marked.append(replace(launch, candidate=tried[text]))
        return [*marked, *self._launches[self._end :]]

    @property
    def _end(self) -> int:
        return max((end for _, end in self._regions), default=0)

    def _in_words(self, launches: Sequence[Launch]) -> tuple[str, ...]:
        """Return different launches in words: "add_kernel(tile=64, occupancy=2), grid 16"."""
        return tuple(dict.fromkeys(self._of_one(launch) for launch in launches))

    def _of_one(self, launch: Launch) -> str:
        function = cutile.kernel_function(launch.kernel)
        annotations = cutile.parameter_annotations(launch.kernel)
        names = function.__code__.co_varnames[: len(annotations)]
        constants = {
            name: value
            for name, value, annotation in zip(names, launch.args, annotations, strict=False)
            if annotation.constant
        }
        options: dict[str, Any] = {**constants, **cutile.compiler_hints(launch.kernel, self._arch)}
        said = ", ".join(f"{name}={value}" for name, value in options.items())
        return f"{function.__name__}({said}), grid {'x'.join(map(str, launch.grid))}"


def _joined(region: Sequence[str]) -> str:
    return " + ".join(region)
