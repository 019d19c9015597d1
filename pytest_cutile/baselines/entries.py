"""What baselines hold: records of speed by case and session, and static entries, frozen."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from pytest_cutile.tile.static.facts import CaseFacts
from pytest_cutile.words.results import Microseconds, RelativeSpread
from pytest_cutile.words.spec import Work
from pytest_cutile.words.version import version

_COMMIT = re.compile(r"(([0-9a-f]{7,40}|[0-9a-f]{64})\+?)?", re.ASCII)

# A number outside of these bounds would pass everything, or nothing.
Fraction = Annotated[float, Meta(gt=0, lt=1)]
Megahertz = Annotated[float, Meta(ge=0, lt=1e5)]
Watts = Annotated[float, Meta(ge=0, lt=1e5)]
RelativeChange = Annotated[float, Meta(gt=-1, lt=1e6)]
RegimeName = Annotated[str, Meta(pattern=r"\A(burst|sustained)\Z")]
Moved = Annotated[str, Meta(pattern=r"\A(faster|accepted|)\Z")]


class _Checked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value of a file of speed baselines."""


class Run(_Checked, frozen=True, kw_only=True):
    """What one process measured of one case."""

    burst_us: Microseconds | None = None
    """Mean time per launch with a cold L2 and a full clock; None where a launch is too long for bursts."""
    sustained_us: Microseconds | None = None
    """Mean time per launch, launch after launch; None where it was not measured."""
    spread: RelativeSpread = 0.0
    """Half the range of the middle 90 % of the burst samples over their median; before 2026-11-28
    that of the middle half."""
    clock_mhz: Megahertz | None = None
    """SM clock in bursts."""
    sustained_clock_mhz: Megahertz | None = None
    sustained_watts: Watts | None = None
    workload_us: Microseconds | None = None
    """Time of the reference workload, timed once by this process."""

    def __post_init__(self) -> None:
        if self.burst_us is None and self.sustained_us is None:
            raise ValueError("it has neither burst_us nor sustained_us")

    def time_us(self, regime: str) -> float | None:
        """Return the time per launch in the regime "burst" or "sustained"."""
        return {"burst": self.burst_us, "sustained": self.sustained_us}[regime]


class PairedChange(_Checked, frozen=True, kw_only=True):
    """By what fraction today's kernel is slower than the anchor's kernel, measured interleaved."""

    value: RelativeChange
    """+0.01 is 1 % slower."""
    low: RelativeChange
    high: RelativeChange

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


class Record(_Checked, frozen=True, kw_only=True):
    """What one session measured of one case. It is added and never rewritten; old runs are dropped."""

    session: str
    """Key of `SpeedBaselines.sessions`."""
    work: Work
    fingerprint: str = ""
    """Digest of machine code, launches, torch operations and inputs; empty where it is not known."""
    source: str = ""
    """Digest of the launcher and its inputs as written: no compiler changes it. It verifies a commit that was
    not recorded itself, as after a squash merge."""
    runs: tuple[Run, ...] = ()
    """One for each process; empty once they were dropped."""
    changes: Mapping[RegimeName, PairedChange] = {}
    """By regime: "burst", "sustained"."""
    anchor: str = ""
    """The `code` of the anchor that it was compared with; "" where it was compared with none."""
    moved: Moved = ""
    """Why the anchor moved here: "faster", "accepted", or "" where it did not."""
    reason: str = ""
    """Text of `--reason`."""

    def __post_init__(self) -> None:
        if self.moved == "accepted" and not self.reason:
            raise ValueError("it was accepted without a reason")

    @property
    def code(self) -> str:
        """What names its code: one name for what several machines recorded of one kernel."""
        return self.fingerprint or self.source or self.session

    @property
    def compared_with(self) -> str:
        """The code of the anchor that its times are about: its own, if it is one."""
        return self.code if self.moved else self.anchor or self.code


class RecordedSession(_Checked, frozen=True, kw_only=True):
    """One run of pytest on one GPU."""

    at: str
    """When, ISO 8601 in UTC."""
    gpu_uuid: str
    commit: str
    """Hash of the commit, with "+" where the checkout had changes; empty outside of git."""
    by: str
    """Who recorded it: "pytest-cutile 0.1.0"."""
    environment: Mapping[str, str]
    """Driver, compiler, versions, power limit."""
    workload: str = ""
    """Name of the reference workload."""
    unseen: str = ""
    """What of the GPU's condition could not be watched."""

    def __post_init__(self) -> None:
        try:
            offset = self.time.utcoffset()
        except ValueError:
            raise ValueError(f"at is {self.at!r}, no date and time of ISO 8601") from None
        if offset != dt.timedelta(0):
            raise ValueError(f"at is {self.at!r}, not in UTC: it must end in +00:00")
        if not is_commit(self.commit):
            raise ValueError(f"commit is {self.commit!r}, no hash of git")

    @property
    def time(self) -> dt.datetime:
        return dt.datetime.fromisoformat(self.at)


class Published(_Checked, frozen=True, kw_only=True):
    """A single figure that somebody published; it stands in until a case is recorded."""

    work: Work
    median_us: Microseconds
    margin: Fraction
    """Slowdown, as a fraction, that one figure of unknown spread can be trusted to show."""
    source: str
    """Document (title and address)."""
    printed: str = ""
    """What the document prints, where `median_us` was computed from it."""
    environment: Mapping[str, str] = {}


class Entry(_Checked, frozen=True, kw_only=True):
    """What one case is compared with."""

    records: tuple[Record, ...] = ()
    """Oldest session first."""
    published: Published | None = None

    def __post_init__(self) -> None:
        if not self.records and self.published is None:
            raise ValueError("it has neither records nor a published figure")


class SpeedBaselines(Struct, frozen=True, kw_only=True):
    """What was recorded of one platform."""

    arch: str
    gpu: str
    """GPU that was measured, as NVML names it."""
    sessions: Mapping[str, RecordedSession] = {}
    entries: Mapping[str, Entry] = {}
    """By case key, e.g. "softmax[bf16-4096x8192]"."""

    def in_order(self) -> SpeedBaselines:
        """Return it with the records of each entry in the order of their sessions, oldest first."""
        places = {name: (session.time, name) for name, session in self.sessions.items()}
        entries = {
            key: replace(
                entry, records=tuple(sorted(entry.records, key=lambda record: places[record.session]))
            )
            for key, entry in self.entries.items()
        }
        return replace(self, entries=entries)


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


def is_commit(text: str) -> bool:
    """Say whether a text is a commit's hash, with "+" for uncommitted changes; empty means outside of git."""
    return _COMMIT.fullmatch(text) is not None


def recorded_by() -> str:
    return f"pytest-cutile {version()}"


def provenance(commit: str, reason: str | None) -> dict[str, str]:
    """Return who records a static entry, from which commit, and the reason that was given."""
    by = {"by": recorded_by(), "commit": commit}
    return by if reason is None else {**by, "reason": reason}


def environment_changes(baseline: Mapping[str, str], current: Mapping[str, str]) -> Sequence[str]:
    """Return what differs between two environments, one "name: baseline -> current" each, sorted."""
    return [
        f"{name}: {baseline.get(name, 'unknown')} -> {current.get(name, 'unknown')}"
        for name in sorted({*baseline, *current})
        if baseline.get(name) != current.get(name)
    ]
