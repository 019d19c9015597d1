"""Speed baselines: one JSON file per platform."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pytest_cutile.core.baseline_files import (
    BaselineError,
    bad_entry,
    one_line,
    read_document,
    rewriting,
    write_document,
)
from pytest_cutile.core.platforms import gpu_slug
from pytest_cutile.core.spec import Work
from pytest_cutile.core.speed_rule import STORED_NOISE, Level, Rule, reference_of
from pytest_cutile.core.statistics import median

SCHEMA = 2
"""Version of the file's form that this release writes and reads."""
LOW_CLOCK = 0.9
"""Share of the clock of an entry's runs below which another clock is none of theirs. On an H200 clocks of one
case differed by up to 9 % between the processes of one session (baselines/sm_90-nvidia-h200.json)."""
FAR = 0.08
"""Difference of two entries, as a fraction, from which boards explain it no longer. Sessions on two H200s
differed by up to 4 % (matmul; the baselines of commit 22a498f): this is twice as much."""
MAX_RUNS = 12
"""Runs kept of each board in an entry. The first ones stay: a reference that follows every run drifts with
them. Other boards' take none of a board's room: it is held against its own alone."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One recorded measurement: one process on one GPU."""

    at: str
    """When, ISO 8601 in UTC."""
    session: str
    """The run of pytest it belongs to, which may have measured in several processes."""
    gpu_uuid: str
    """The board that was measured."""
    median_us: float
    """Median time per launch in the fastest placement of the buffers, in microseconds."""
    spread: float
    """Half interquartile range of these samples over their median."""
    control_us: float | None = None
    """Median time of the control beside them."""
    clock_mhz: float | None = None
    """Clock of the SMs."""
    commit: str | None = None
    """Commit of its kernel, where its board alone was accepted as slower; else that of the entry."""
    reason: str | None = None
    """Why it was accepted as slower, where its board alone was; else that of the entry."""

    def level(self, slope: float) -> Level:
        """Return what the rule of the speed gate compares: the time, less what the control explains of it."""
        control = self.control_us**slope if self.control_us else 1.0
        return Level(value=math.log(self.median_us / control), session=self.session, board=self.gpu_uuid)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A single figure that somebody published, where nothing was recorded yet."""

    median_us: float
    """Time per launch, in microseconds."""
    margin: float
    """Slowdown, as a fraction, that one figure of unknown spread can be trusted to show."""
    source: str
    """Document (title and address)."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one case is compared with."""

    work: Work
    """What one launch did when it was recorded."""
    runs: tuple[Run, ...] = ()
    """The measurements, oldest first; empty only where a figure is published."""
    published: Published | None = None
    """What stands in for measurements."""
    identity: str = ""
    """Digest of the compiled code and the launch configuration; empty where they are not known."""
    control: str = ""
    """Name of the control beside the measurements."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Driver, compiler, versions, power limit: the same for all runs of the entry."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Who recorded it, from which commit, the reason if it was slower than what it replaced, its drift."""

    @property
    def median_us(self) -> float:
        """The median over the runs, or what was published, in microseconds per launch."""
        if self.published is not None:
            return self.published.median_us
        return median([run.median_us for run in self.runs])

    @property
    def reference_us(self) -> float:
        """What the gate compares with: the mean over sessions and boards, or what was published.

        In microseconds, as measured: the gate takes off what their controls explain. One slow session moves
        it, which the median over the runs would hide.
        """
        if self.published is not None:
            return self.published.median_us
        levels = [run.level(0.0) for run in self.runs]
        return math.exp(reference_of(levels, STORED_NOISE, other_board=True).value)

    def on_board(self, uuid: str) -> Entry:
        """Return it with the runs that a board is held against, and their commit and reason.

        Its own alone, if there are any: boards differ by far more than sessions. Else those of the boards
        that were not accepted as slower one by one.
        """
        own = tuple(run for run in self.runs if run.gpu_uuid == uuid)
        own = own or tuple(run for run in self.runs if run.reason is None) or self.runs
        provenance = self.provenance
        if own and own[0].reason is not None:
            provenance = {**provenance, "commit": own[0].commit or "", "reason": own[0].reason}
        return replace(self, runs=own, provenance=provenance)

    @property
    def boards(self) -> frozenset[str]:
        """The boards that were measured."""
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
        """Return this entry with a drift."""
        provenance = {key: value for key, value in self.provenance.items() if key != "drift"}
        if round(drift, 5):
            provenance["drift"] = f"{drift:.5f}"
        return replace(self, provenance=provenance)

    def small_step(self, rule: Rule) -> float:
        """Return by what fraction what replaces it under other conditions may be slower without a reason.

        Steps that are as small could add up to anything: all of them together may be no larger.
        """
        return rule.margin / 4 - max(self.drift, 0.0)

    def low_clock(self, clock_mhz: float | None) -> str:
        """Say so if a clock is below those of the runs by clearly more than they scatter; else nothing."""
        clocks = [run.clock_mhz for run in self.runs if run.clock_mhz]
        if not clock_mhz or not clocks:
            return ""
        usual, scatter = median(clocks), max(clocks) - min(clocks)
        if clock_mhz >= min(LOW_CLOCK * usual, min(clocks) - scatter):
            return ""
        return f"an SM clock of {clock_mhz:.0f} MHz, {usual:.0f} MHz when its baseline was recorded"

    def with_runs(self, runs: Sequence[Run], **changes: Any) -> Entry:
        """Return this entry with further runs, as far as their boards have room, and `changes`."""
        return replace(self, runs=first_of_each_board((*self.runs, *runs)), **changes)


def first_of_each_board(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the first `MAX_RUNS` of each board, in the order that they have."""
    kept: list[Run] = []
    taken: Counter[str] = Counter()
    for run in runs:
        taken[run.gpu_uuid] += 1
        if taken[run.gpu_uuid] <= MAX_RUNS:
            kept.append(run)
    return tuple(kept)


def added_runs(entry: Entry, other: Entry) -> list[Run]:
    """Return the runs that an entry has and another one has not."""
    return [*(Counter(entry.runs) - Counter(other.runs)).elements()]


def united_runs(entries: Iterable[Entry]) -> list[Run]:
    """Return the runs of all entries, each as often as the entry has it that has it most often.

    Files that were copied from each other share runs. Two runs of one entry are two, even if they look the
    same: they have their session's time, and figures that were rounded.
    """
    runs: list[Run] = []
    taken: Counter[Run] = Counter()
    for entry in entries:
        here: Counter[Run] = Counter()
        for run in entry.runs:
            here[run] += 1
            if here[run] > taken[run]:
                taken[run] += 1
                runs.append(run)
    return runs


@dataclass(frozen=True, kw_only=True)
class BaselineFile:
    """The recorded entries of one platform."""

    arch: str
    """Architecture the entries were measured on."""
    gpu: str
    """GPU they were measured on, as NVML names it."""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """By case key, e.g. "softmax[bf16-4096x8192]"."""


def baseline_path(base: Path, arch: str, gpu: str) -> Path:
    """Return the file for a platform: `base` itself if it is a JSON file, else <arch>-<gpu>.json in it."""
    return base if base.suffix == ".json" else base / f"{arch}-{gpu_slug(gpu)}.json"


def read_baselines(path: Path) -> BaselineFile | None:
    """Read a baseline file; None when there is none.

    Raises:
        BaselineError: it cannot be read, holds a merge conflict, has another schema, lacks a key, has one
            that is not known, or has a value that cannot be right.
    """
    data = read_document(path, schema=SCHEMA)
    if data is None:
        return None
    key = "(top level)"
    try:
        _refuse_unknown(data, BaselineFile, "schema")
        arch = data[key := "arch"]
        # One that was mistyped would be taken for another platform, with which nothing compares.
        if not (isinstance(arch, str) and re.fullmatch(r"sm_\d+", arch)):
            raise ValueError(f"{arch!r:.40}, not a name such as sm_90")
        gpu = data[key := "gpu"]
        if not (isinstance(gpu, str) and gpu):
            raise ValueError(f"{gpu!r:.40}, not a GPU's name")
        entries: dict[str, Entry] = {}
        raw_entries = data[key := "entries"]
        for name, raw in raw_entries.items():
            key = f"entries / {name}"
            entries[name] = _parse_entry(raw)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise bad_entry(path, key, error) from error
    return BaselineFile(arch=arch, gpu=gpu, entries=entries)


def _refuse_unknown(raw: Mapping[str, Any], form: type, *more: str) -> None:
    """Refuse keys that are none: what was mistyped would be taken for missing, and be missed by nobody."""
    known = {*more, *(each.name for each in fields(form))}
    unknown = next((name for name in raw if name not in known), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is unknown, the keys are {', '.join(sorted(known))}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.40}, not a text")  # noqa: TRY004 - caught with the others
    return value


def _texts(name: str, raw: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(f"{name} / {key}", value) for key, value in raw.items()}


def _parse_entry(raw: Mapping[str, Any]) -> Entry:
    _refuse_unknown(raw, Entry)
    published = raw.get("published")
    entry = Entry(
        work=Work(**raw["work"]),
        runs=tuple(_parse_run(run) for run in raw.get("runs", ())),
        published=None if published is None else Published(**published),
        identity=_text("identity", raw.get("identity", "")),
        control=_text("control", raw.get("control", "")),
        environment=_texts("environment", raw["environment"]),
        provenance=_texts("provenance", raw["provenance"]),
    )
    if not -1 < entry.drift < 1:
        raise ValueError(f"provenance / drift is {entry.drift}, not a fraction")
    if not entry.runs and entry.published is None:
        raise ValueError("it has no runs")
    if entry.runs and entry.published is not None:
        raise ValueError("it has both runs and a published figure")
    if entry.published is not None:
        _check_numbers(entry.published, ("median_us", "margin"))
        _text("source", entry.published.source)
    return entry


def _parse_run(raw: Mapping[str, Any]) -> Run:
    run = Run(**raw)
    _check_numbers(run, ("median_us",))
    _check_numbers(run, ("spread", "control_us", "clock_mhz"), may_lack=True)
    for name in ("at", "session", "gpu_uuid"):
        _text(name, getattr(run, name))
    for name in ("commit", "reason"):
        _text(name, getattr(run, name) or "")
    try:
        dt.datetime.fromisoformat(run.at)
    except ValueError:
        raise ValueError(f"at is {run.at!r}, no date and time of ISO 8601") from None
    return run


_BOUNDS: Mapping[str, tuple[float, float]] = {
    "median_us": (1e-4, 1e9),  # a tenth of a nanosecond, and a quarter of an hour
    "control_us": (1e-4, 1e9),
    "spread": (0, 1),
    "clock_mhz": (0, 1e5),
    "margin": (0, 1),
}
"""Between what the numbers in a file have to be. One outside would pass everything, or nothing."""


def _check_numbers(holder: object, names: Sequence[str], *, may_lack: bool = False) -> None:
    for name in names:
        value = getattr(holder, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if may_lack and (value is None or (is_number and value == 0)):
            continue
        low, high = _BOUNDS[name]
        if not (is_number and low < value < high):
            raise ValueError(f"{name} is {value!r:.40}, not a number between {low:g} and {high:g}")


def record_entries(
    path: Path, *, arch: str, gpu: str, renew: Callable[[Mapping[str, Entry]], Mapping[str, Entry]]
) -> None:
    """Put `renew(the entries as they are on disk now)` into the file at `path`, under a lock; others stay.

    Raises:
        BaselineError: the existing file cannot be used, belongs to another GPU, or cannot be written, or
            an entry could not be read again.
    """
    with rewriting(path) as target:
        existing = read_baselines(target) or BaselineFile(arch=arch, gpu=gpu)
        if (existing.arch, existing.gpu) != (arch, gpu):
            raise BaselineError(
                f"{path} belongs to {existing.gpu} ({existing.arch}), not to {gpu} ({arch}): nothing was "
                "written. Give --perf-baseline a directory, and each platform gets its own file."
            )
        renewed = renew(existing.entries)
        _refuse_unreadable(target, BaselineFile(arch=arch, gpu=gpu, entries=renewed))
        if renewed:
            entries = {**existing.entries, **renewed}
            write_document(target, render(BaselineFile(arch=arch, gpu=gpu, entries=entries)))


def _refuse_unreadable(path: Path, file: BaselineFile) -> None:
    """Refuse entries that nobody could read once they are written: a timer may return anything.

    Raises:
        BaselineError: there is one.
    """
    for name, entry in file.entries.items():
        try:
            alone = json.loads(render(replace(file, entries={name: entry})))
            _parse_entry(alone["entries"][name])
        except (TypeError, ValueError, OverflowError) as error:
            raise BaselineError(
                f"{path}: nothing was written, for the entry of {name} could not be read again: {error}. "
                "Check the timer."
            ) from error


def render(file: BaselineFile) -> str:
    """Return the text of a baseline file: sorted, a few lines per case, one line per run."""
    blocks = []
    for name in sorted(file.entries):
        entry = file.entries[name]
        lines = [f'"work": {one_line(_present(entry.work))}']
        lines += [
            f"{json.dumps(key)}: {json.dumps(value)}"
            for key, value in (("identity", entry.identity), ("control", entry.control))
            if value
        ]
        lines += [
            f'"environment": {one_line(entry.environment)}',
            f'"provenance": {one_line(entry.provenance)}',
        ]
        if entry.published is not None:
            lines.append(f'"published": {one_line(_present(entry.published))}')
        else:
            runs = ",\n".join(f"    {one_line(_present(run))}" for run in entry.runs)
            lines.append(f'"runs": [\n{runs}\n   ]')
        blocks.append(f"  {json.dumps(name)}: {{\n   " + ",\n   ".join(lines) + "\n  }")
    body = ",\n".join(blocks)
    head = f' "schema": {SCHEMA},\n "arch": {json.dumps(file.arch)},\n "gpu": {json.dumps(file.gpu)},\n'
    return f'{{\n{head} "entries": {{\n{body}\n }}\n}}\n'


def _present(value: Any) -> dict[str, Any]:
    return {key: each for key, each in asdict(value).items() if each is not None}


def same_code(then: Entry, now: Entry) -> bool:
    """Say whether two entries are known to be of the same code: by its digest, or the commit without changes.

    The code of a launcher of plain torch and of a test function is known by its commit alone.
    """
    if then.identity and now.identity:
        return then.identity == now.identity
    commit = then.provenance.get("commit", "")
    return is_clean(commit) and commit == now.provenance.get("commit", "")


def is_far(then: Entry, now: Entry) -> bool:
    """Say whether two entries differ by more than boards do: the mean of their runs would be that of none.

    By each board that has runs in both; all runs of both where there is none. What was accepted as slower on
    its board alone is compared with that board's alone.
    """
    apart = any(all(run.reason is not None for run in each.runs) for each in (then, now))
    for board in (then.boards & now.boards) or (set() if apart else {""}):
        fast, slow = sorted((then.on_board(board).reference_us, now.on_board(board).reference_us))
        if slow / fast - 1 > FAR:
            return True
    return False


def is_clean(commit: str) -> bool:
    """Say whether this names the code of a commit: git was there, and nothing was changed."""
    return bool(commit) and not commit.endswith("+")


def condition_changes(then: Entry, now: Entry) -> list[str]:
    """Return what two entries were recorded under that differs: environment, control, compiled code."""
    changes = [*environment_changes(then.environment, now.environment)]
    if then.control != now.control:
        changes.append(f"control: {then.control or 'none'} -> {now.control or 'none'}")
    if then.identity and now.identity and then.identity != now.identity:
        changes.append("other compiled code")
    return changes


def environment_changes(then: Mapping[str, str], now: Mapping[str, str]) -> Sequence[str]:
    """Return what differs between two environments, one "name: then -> now" each, sorted."""
    return [
        f"{name}: {then.get(name, 'unknown')} -> {now.get(name, 'unknown')}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
