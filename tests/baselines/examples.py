"""Short ways to make baselines for tests."""

from collections.abc import Mapping

from pytest_cutile import Work
from pytest_cutile.baselines.entries import (
    Entry,
    Published,
    Record,
    RecordedSession,
    Run,
    SpeedBaselines,
)

ENVIRONMENT = {"driver": "580.1", "tileiras": "13.4.92"}
WORK = Work(bytes=1e8, dtype="bfloat16")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PUBLISHED = Published(
    work=WORK, median_us=123.5, margin=0.1, source="Somebody's blog, https://example.org/fast"
)


def run(burst_us: float | None = 40.0, **changes) -> Run:
    return Run(**{"burst_us": burst_us, "spread": 0.004, **changes})


def session(day: int = 1, **changes) -> RecordedSession:
    facts = {
        "at": f"2025-11-{day:02}T10:00:00+00:00",
        "gpu_uuid": "GPU-1",
        "commit": COMMIT,
        "by": "pytest-cutile 0.1.0",
        "environment": ENVIRONMENT,
    }
    return RecordedSession(**{**facts, **changes})


def record(day: int = 1, *burst_us: float, **changes) -> Record:
    """Return a record of the session s1, s2, ... of that day."""
    runs = tuple(run(us) for us in burst_us)
    return Record(**{"session": f"s{day}", "work": WORK, "fingerprint": "abc", "runs": runs, **changes})


def entry(*records: Record, published: Published | None = None) -> Entry:
    return Entry(records=records or (record(1, 40.0),), published=published)


def baselines(
    entries: Mapping[str, Entry] | None = None,
    sessions: Mapping[str, RecordedSession] | None = None,
    *,
    arch: str = "sm_90",
    gpu: str = "NVIDIA H200",
) -> SpeedBaselines:
    """Return baselines with the sessions that the records name, each of its day unless given otherwise."""
    entries = {"k[c]": entry()} if entries is None else entries
    named = {record.session for each in entries.values() for record in each.records}
    made = {name: session(int(name.removeprefix("s"))) for name in named if name not in (sessions or {})}
    return SpeedBaselines(arch=arch, gpu=gpu, entries=entries, sessions={**made, **(sessions or {})})
