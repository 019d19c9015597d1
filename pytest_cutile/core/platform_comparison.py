"""Two platforms compared by their baselines, case by case, with what NVIDIA published about the two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_cutile.core.baselines import BaselineFile, Entry
from pytest_cutile.core.published import B300, GB10, RATIOS, Ratio
from pytest_cutile.core.results import names_of_test


@dataclass(frozen=True, kw_only=True)
class PlatformRow:
    """A case that both platforms have a figure of."""

    key: str
    """In both files."""
    metric: str
    """TFLOPS if it counts operations, else GB/s, or launches/s if its work is unknown: on both platforms the
    same, while the limit that a kernel is nearest to may not be."""
    first: float
    """What the first one does."""
    second: float
    """What the second one does."""
    first_published: bool
    """Whether the first figure was published rather than measured."""
    second_published: bool
    """Likewise for the second one."""
    published: Ratio | None = None
    """What NVIDIA says of this kernel on a B300 and a GB10."""
    same_shape: bool = False
    """Whether it says so of this very case."""

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self._names[0]

    @property
    def case(self) -> str:
        """The case's name."""
        return self._names[1]

    @property
    def _names(self) -> tuple[str, str]:
        if "::" in self.key.partition("[")[0]:
            return names_of_test(self.key)
        kernel, _, case = self.key.partition("[")
        return kernel, case.removesuffix("]")

    @property
    def ratio(self) -> float:
        """How much faster the second platform is."""
        return self.second / self.first


@dataclass(frozen=True, kw_only=True)
class PlatformComparison:
    """What two files of baselines say of their platforms."""

    first: BaselineFile
    """Of the first platform."""
    second: BaselineFile
    """Of the second one."""
    rows: Sequence[PlatformRow]
    """Cases that both have, with the same work."""
    other_work: Sequence[str]
    """Keys that both have, with other work."""
    unmatched: Sequence[Ratio]
    """What NVIDIA published about the two that no row shows."""

    @property
    def backwards(self) -> bool:
        """Whether the B300 is the first one: NVIDIA's ratios have it second."""
        return self.first.gpu == B300

    @property
    def is_nvidias(self) -> bool:
        """Whether these are the two platforms that NVIDIA compares."""
        return {self.first.gpu, self.second.gpu} == {GB10, B300}

    def only_in(self, file: BaselineFile) -> int:
        """Return how many cases of one file the other one lacks."""
        return len(file.entries) - len(self.rows) - len(self.other_work)

    def means(self) -> Mapping[str, tuple[float, int]]:
        """Return the geometric mean of the ratios and their number, by metric."""
        logs: dict[str, list[float]] = {}
        for row in self.rows:
            logs.setdefault(row.metric, []).append(math.log(row.ratio))
        return {
            metric: (math.exp(sum(found) / len(found)), len(found)) for metric, found in sorted(logs.items())
        }

    def oriented(self, ratio: float) -> float:
        """Return a ratio of B300 over GB10 as that of the second platform over the first."""
        return 1 / ratio if self.backwards else ratio


def compare_platforms(first: BaselineFile, second: BaselineFile) -> PlatformComparison:
    """Compare the cases that both files have, by key, where one launch does the same work."""
    common = sorted(first.entries.keys() & second.entries.keys(), key=_by_number)
    rows = [_row(key, first, second) for key in common if first.entries[key].work == second.entries[key].work]
    compared = {row.key for row in rows}
    unmatched: list[Ratio] = []
    if {first.gpu, second.gpu} == {GB10, B300}:
        rows, unmatched = _with_published(rows)
    return PlatformComparison(
        first=first,
        second=second,
        rows=rows,
        other_work=[key for key in common if key not in compared],
        unmatched=unmatched,
    )


def _by_number(key: str) -> list[tuple[int, str]]:
    """Sort 8192 before 16384."""
    words = "".join(c if c.isdigit() else f" {c} " for c in key).split()
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def _row(key: str, first: BaselineFile, second: BaselineFile) -> PlatformRow:
    one, other = first.entries[key], second.entries[key]
    metric = "TFLOPS" if one.work.flops else "GB/s" if one.work.bytes else "launches/s"
    return PlatformRow(
        key=key,
        metric=metric,
        first=_rate(one, metric),
        second=_rate(other, metric),
        first_published=one.published is not None,
        second_published=other.published is not None,
    )


def _rate(entry: Entry, metric: str) -> float:
    per_launch = {"TFLOPS": entry.work.flops * 1e-12, "GB/s": entry.work.bytes * 1e-9, "launches/s": 1.0}
    return per_launch[metric] / (entry.median_us * 1e-6)


def _with_published(rows: Sequence[PlatformRow]) -> tuple[list[PlatformRow], list[Ratio]]:
    """Put each published ratio to the case of its shape, else to all cases of its kernel, else aside."""
    keys = {row.key for row in rows}
    published: dict[str, tuple[Ratio, bool]] = {}
    unmatched = []
    for ratio in RATIOS:
        if ratio.key in keys:
            published[ratio.key] = (ratio, True)
            continue
        alike = [row.key for row in rows if ratio.is_about(row.kernel, row.case)]
        published.update(dict.fromkeys(alike, (ratio, False)))
        if not alike:
            unmatched.append(ratio)
    return [_given(row, *published.get(row.key, (None, False))) for row in rows], unmatched


def _given(row: PlatformRow, ratio: Ratio | None, same_shape: bool) -> PlatformRow:
    return replace(row, published=ratio, same_shape=same_shape)
