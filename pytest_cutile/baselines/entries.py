"""What baselines hold: speed entries and static entries, frozen and checked when they are read."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from pytest_cutile.spec import Work
from pytest_cutile.static.facts import CaseFacts
from pytest_cutile.statistics import median

LOW_CLOCK = 0.9
"""Share of an entry's usual SM clock below which a run's clock counts as low. On an H200 the clocks of one
case differed by up to 9 % between the processes of one session (baselines/sm_90-nvidia-h200.json)."""
FAR = 0.08
"""Difference of two entries, as a fraction, that different GPUs do not explain. Sessions on two H200s
differed by up to 4 % (matmul; the baselines of commit 22a498f): this is twice as much."""
MAX_RUNS = 12
"""Runs kept of each GPU in an entry: the first ones, for a reference that follows every run drifts."""

# A number outside of these bounds would pass everything, or nothing.
Microseconds = Annotated[float, Meta(gt=1e-4, lt=1e9)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]
Spread = Annotated[float, Meta(ge=0, lt=1)]
Megahertz = Annotated[float, Meta(ge=0, lt=1e5)]


class Run(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One recorded measurement: one process on one GPU."""

    at: str
    """When, ISO 8601 in UTC."""
    session: str
    """The run of pytest it belongs to, which may have measured in several processes."""
    gpu_uuid: str
    median_us: Microseconds
    """Median time per launch in the fastest placement of the buffers, in microseconds."""
    spread: Spread
    """Half interquartile range of these samples over their median."""
    workload_us: Microseconds | None = None
    """Median time of the reference workload beside them."""
    clock_mhz: Megahertz | None = None
    commit: str | None = None
    """Commit of its kernel, where its GPU alone was accepted as slower; else that of the entry."""
    reason: str | None = None
    """Why it was accepted as slower, where its GPU alone was; else that of the entry."""

    def __post_init__(self) -> None:
        try:
            dt.datetime.fromisoformat(self.at)
        except ValueError:
            raise ValueError(f"at is {self.at!r}, no date and time of ISO 8601") from None

    @property
    def time(self) -> dt.datetime:
        at = dt.datetime.fromisoformat(self.at)
        return at if at.tzinfo else at.replace(tzinfo=dt.UTC)


class Published(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A single figure that somebody published, where nothing was recorded yet."""

    median_us: Microseconds
    margin: Fraction
    """Slowdown, as a fraction, that one figure of unknown spread can be trusted to show."""
    source: str
    """Document (title and address)."""


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one case is compared with."""

    work: Work
    fingerprint: str = ""
    """Digest of the compiled code and the launch configuration; empty where they are not known."""
    reference_workload: str = ""
    """Name of the reference workload beside the measurements."""
    environment: Mapping[str, str]
    """Driver, compiler, versions, power limit: the same for all runs of the entry."""
    provenance: Mapping[str, str]
    """Who recorded it, from which commit, the reason if it was slower than what it replaced, its drift."""
    runs: tuple[Run, ...] = ()
    """The measurements, oldest first; empty only where a figure is published."""
    published: Published | None = None
    """What stands in for measurements."""

    def __post_init__(self) -> None:
        if not self.runs and self.published is None:
            raise ValueError("it has no runs")
        if self.runs and self.published is not None:
            raise ValueError("it has both runs and a published figure")
        if not -1 < self.drift < 1:
            raise ValueError(f"provenance / drift is {self.drift}, not a fraction")

    @property
    def commit(self) -> str:
        """The commit whose kernel was recorded, with "+" where the checkout had changes; or empty."""
        return self.provenance.get("commit", "")

    @property
    def reason(self) -> str | None:
        """Why it was accepted as slower; None if it was not."""
        return self.provenance.get("reason")

    @property
    def median_us(self) -> float:
        """The median over the runs, or what was published, in microseconds per launch."""
        if self.published is not None:
            return self.published.median_us
        return median([run.median_us for run in self.runs])

    @property
    def reference_us(self) -> float:
        """What the gate compares with: the mean over sessions and GPUs, or what was published.

        In microseconds, as measured. One slow session moves this mean; a median over the runs would hide it.
        """
        if self.published is not None:
            return self.published.median_us
        sessions: dict[tuple[str, str], list[float]] = defaultdict(list)
        for run in self.runs:
            sessions[run.gpu_uuid, run.session].append(math.log(run.median_us))
        gpus: dict[str, list[float]] = defaultdict(list)
        for (gpu, _), log_times in sessions.items():
            gpus[gpu].append(_mean(log_times))
        return math.exp(_mean([_mean(means) for means in gpus.values()]))

    def on_gpu(self, uuid: str) -> Entry:
        """Return it with the runs that a GPU is compared with, and their commit and reason.

        Those of this GPU, if there are any: GPUs differ by far more than sessions. Else those of the GPUs
        that were not accepted as slower one by one.
        """
        own = tuple(run for run in self.runs if run.gpu_uuid == uuid)
        own = own or tuple(run for run in self.runs if run.reason is None) or self.runs
        provenance = self.provenance
        if own and own[0].reason is not None:
            provenance = {**provenance, "commit": own[0].commit or "", "reason": own[0].reason}
        return replace(self, runs=own, provenance=provenance)

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset(run.gpu_uuid for run in self.runs)

    @property
    def sessions(self) -> int:
        """How many runs of pytest it was recorded in."""
        return len({run.session for run in self.runs})

    @property
    def drift(self) -> float:
        """By what fraction it is slower than the last one that was first, faster or accepted with a reason.

        What lies between are entries under other conditions, each in place of the one before.
        """
        return float(self.provenance.get("drift", 0))

    def with_drift(self, drift: float) -> Entry:
        provenance = {key: value for key, value in self.provenance.items() if key != "drift"}
        if round(drift, 5):
            provenance["drift"] = f"{drift:.5f}"
        return replace(self, provenance=provenance)

    def allowed_step(self, margin: float) -> float:
        """Return by what fraction its replacement under other conditions may be slower without a reason.

        Steps that are as small could add up to anything: all of them together may be no larger than a quarter
        of the margin.
        """
        return margin / 4 - max(self.drift, 0.0)

    def low_clock(self, clock_mhz: float | None) -> str:
        """Say so if a clock is below those of the runs by clearly more than they scatter; else nothing."""
        clocks = [run.clock_mhz for run in self.runs if run.clock_mhz]
        if not clock_mhz or not clocks:
            return ""
        usual, scatter = median(clocks), max(clocks) - min(clocks)
        if clock_mhz >= min(LOW_CLOCK * usual, min(clocks) - scatter):
            return ""
        return f"an SM clock of {clock_mhz:.0f} MHz, {usual:.0f} MHz when its baseline was recorded"


class SpeedBaselines(Struct, frozen=True, kw_only=True):
    """The recorded entries of one platform."""

    arch: str
    gpu: str
    """GPU they were measured on, as NVML names it."""
    entries: Mapping[str, Entry] = {}
    """By case key, e.g. "softmax[bf16-4096x8192]"."""


class StaticEntry(Struct, frozen=True, kw_only=True):
    """What the compiled code of one case is compared with."""

    facts: CaseFacts
    toolchain: Mapping[str, str]
    """Versions of what compiled it: {"cuda-tile": "1.7.0", "tileiras": "13.4.92"}."""
    provenance: Mapping[str, str]
    """Who recorded it, when, from which commit, and the reason if it was worse than what it replaced."""


class StaticBaselines(Struct, frozen=True, kw_only=True):
    """The recorded entries of one architecture."""

    arch: str
    entries: Mapping[str, StaticEntry] = {}


def provenance(commit: str, reason: str | None) -> dict[str, str]:
    """Return who records, from which commit, and the reason that was given."""
    from pytest_cutile import __version__

    by = {"by": f"pytest-cutile {__version__}", "commit": commit}
    return by if reason is None else {**by, "reason": reason}


# -- sets of runs -------------------------------------------------------------------------------------


def first_of_each_gpu(runs: Iterable[Run]) -> tuple[Run, ...]:
    kept: list[Run] = []
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.gpu_uuid] += 1
        if counts[run.gpu_uuid] <= MAX_RUNS:
            kept.append(run)
    return tuple(kept)


def added_runs(entry: Entry, other: Entry) -> list[Run]:
    """Return the runs that `entry` has and `other` has not."""
    return [*(Counter(entry.runs) - Counter(other.runs)).elements()]


def united_runs(entries: Iterable[Entry]) -> list[Run]:
    """Return the runs of all entries, each as often as in the entry that has it most often.

    Files that were copied from each other share runs. Two equal runs of one entry are two measurements: they
    have their session's time, and figures that were rounded.
    """
    united: Counter[Run] = Counter()
    for entry in entries:
        united |= Counter(entry.runs)
    return [*united.elements()]


# -- whether two entries can be compared --------------------------------------------------------------


def same_code(baseline: Entry, current: Entry) -> bool:
    """Say whether two entries are known to be of the same code: by its digest, or the commit without changes.

    The code of a launcher of plain torch and of a test function is known by its commit alone.
    """
    if baseline.fingerprint and current.fingerprint:
        return baseline.fingerprint == current.fingerprint
    return is_clean(baseline.commit) and baseline.commit == current.commit


def is_clean(commit: str) -> bool:
    """Say whether this names the code of a commit: git was there, and nothing was changed."""
    return bool(commit) and not commit.endswith("+")


def is_far(baseline: Entry, current: Entry) -> bool:
    """Say whether two entries differ by more than GPUs do: the mean of their runs would be that of none.

    By each GPU that has runs in both; by all runs of both where there is none. What was accepted as slower on
    its GPU alone is compared with that GPU's runs alone.
    """
    apart = any(all(run.reason is not None for run in entry.runs) for entry in (baseline, current))
    for gpu in (baseline.gpus & current.gpus) or (set() if apart else {""}):
        fast, slow = sorted((baseline.on_gpu(gpu).reference_us, current.on_gpu(gpu).reference_us))
        if slow / fast - 1 > FAR:
            return True
    return False


def condition_changes(baseline: Entry, current: Entry) -> list[str]:
    """Return what two entries were recorded under that differs: environment, reference workload, code."""
    changes = [*environment_changes(baseline.environment, current.environment)]
    if baseline.reference_workload != current.reference_workload:
        workloads = (entry.reference_workload or "none" for entry in (baseline, current))
        changes.append(f"reference workload: {' -> '.join(workloads)}")
    if baseline.fingerprint and current.fingerprint and baseline.fingerprint != current.fingerprint:
        changes.append("other compiled code")
    return changes


def environment_changes(baseline: Mapping[str, str], current: Mapping[str, str]) -> Sequence[str]:
    """Return what differs between two environments, one "name: baseline -> current" each, sorted."""
    return [
        f"{name}: {baseline.get(name, 'unknown')} -> {current.get(name, 'unknown')}"
        for name in sorted({*baseline, *current})
        if baseline.get(name) != current.get(name)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
