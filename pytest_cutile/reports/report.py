"""What every report shows, as one frozen value: of a run, or of stored baselines alone.

`--kernel-json` writes it as it is. docs/reference/json.md says what the fields mean: one that changes its
meaning or goes away needs another `SCHEMA`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, Struct

from pytest_cutile.baselines.entries import (
    RecordedSession,
    SpeedBaselines,
    StaticBaselines,
    StaticEntry,
    recorded_by,
)
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.select import work_of
from pytest_cutile.baselines.store import read_all
from pytest_cutile.reports.cases import AnyResult, CaseRow, FailedTest, RunOutcome, cases_of, not_measured
from pytest_cutile.reports.history import HistoryPoint, history_points
from pytest_cutile.tile.static.facts import CaseFacts
from pytest_cutile.words.document import Tone
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.quantities import natural_order
from pytest_cutile.words.results import Amount, Measured, Microseconds, Result, SpeedResult, StaticResult
from pytest_cutile.words.spec import Work
from pytest_cutile.words.timing import bound_of

LimitValue = Annotated[float, Meta(gt=0, lt=1e12)]

SCHEMA = 1
"""Version of the JSON form."""
_DTYPE = re.compile(r"(?<![a-z0-9_])(fp\d+|bf16|tf32|e\dm\d|u?int\d+|b?float\d+)(?![a-z0-9_])", re.IGNORECASE)


class Figures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast a case is, and how near to the chip's limit."""

    origin: str
    """"measured" in this run, "recorded" before, or "published" by somebody."""
    us_per_launch: Microseconds
    sustained_us_per_launch: Microseconds | None = None
    flops: Amount = 0.0
    bytes: Amount = 0.0
    tokens: Amount = 0.0
    dtype: str = ""
    rate: Amount | None = None
    """In `unit`."""
    unit: str = ""
    """"TFLOPS" or "GB/s", the limit that the case is nearest to, or "tokens/s"."""
    share_of_limit: Amount | None = None
    change: float | None = None
    """Relative change against the baseline; +0.05 is 5 % slower."""

    @property
    def is_sustained(self) -> bool:
        """Whether the figures are of launch after launch, not of bursts."""
        return self.us_per_launch == self.sustained_us_per_launch

    @property
    def source(self) -> str:
        """Where they are from, in words: "recorded, sustained"."""
        return f"{self.origin}{', sustained' * self.is_sustained}"

    def sustained(self) -> Figures:
        """Return the figures of launch after launch, or else these where no such time is known."""
        us = self.sustained_us_per_launch
        if us is None:
            return self
        slower = us / self.us_per_launch
        rate, share = (None if one is None else one / slower for one in (self.rate, self.share_of_limit))
        return msgspec.structs.replace(self, us_per_launch=us, rate=rate, share_of_limit=share)

    def in_unit(self, unit: str) -> float | None:
        """Return TFLOPS, GB/s or tokens/s; None where the work counts none."""
        amount = Work(flops=self.flops, bytes=self.bytes, tokens=self.tokens).amounts.get(unit)
        return amount / self.us_per_launch * 1e6 if amount else None

    @property
    def intensity(self) -> float | None:
        """Operations per byte."""
        return self.flops / self.bytes if self.flops and self.bytes else None


class GpuHistory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was recorded of a case on one kind of GPU, oldest session first."""

    arch: str
    gpu: str
    points: tuple[HistoryPoint, ...] = ()
    published_us: Microseconds | None = None
    published_source: str = ""
    figures: Figures | None = None
    """Figures of the newest session, or else the published ones."""


class ReportedCase(Struct, frozen=True, kw_only=True):
    """One case on one architecture."""

    id: str
    kernel: str
    name: str
    key: str
    arch: str
    gpu: str
    dtype: str
    """Dtype by the case's name ("bf16"), or else by its work; empty where neither says."""
    verdict: str
    """In words: the worst of its gates'; "recorded" in a report of baselines."""
    tone: Tone = Tone.PLAIN
    failed: bool = False
    results: tuple[AnyResult, ...] = ()
    figures: Figures | None
    baseline: StaticEntry | None


class ReportedPlatform(Struct, frozen=True, kw_only=True):
    """The limits of a GPU."""

    arch: str
    memory_bandwidth_gb_s: LimitValue
    dense_tflops: Mapping[str, LimitValue]
    source: str


class NotMeasured(Struct, frozen=True, kw_only=True):
    """What was not measured, and why."""

    counts: str
    why: str


class Report(Struct, frozen=True, kw_only=True):
    """Everything that the reports show."""

    schema: int
    of: str
    by: str
    at: str
    environment: Mapping[str, str]
    cases: tuple[ReportedCase, ...]
    """Sorted by kernel, name and architecture."""
    history: Mapping[str, tuple[GpuHistory, ...]]
    platforms: Mapping[str, ReportedPlatform]
    sessions: Mapping[str, RecordedSession]
    unfinished: bool = False
    other_failures: int = 0
    """Failures that are no verdict on a kernel."""
    left_out: int = 0
    unchanged: tuple[str, ...] = ()
    verdicts: Mapping[str, Mapping[str, Mapping[str, int]]] = {}
    failures: tuple[FailedTest, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()
    remarks: tuple[str, ...] = ()


def to_json(report: Report) -> str:
    """Return the report as JSON. Numbers that are none (NaN, infinity) are null."""
    try:
        encoded = msgspec.json.encode(report)
    except UnicodeEncodeError:  # half of a character, as in names of files that are no UTF-8
        encoded = msgspec.json.encode(_encodable(msgspec.to_builtins(report)))
    return msgspec.json.format(encoded, indent=1).decode() + "\n"


def _encodable(value: Any) -> Any:
    """Return plain values in whose texts halves of characters are written as Python escapes them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    return [*map(_encodable, value)] if isinstance(value, list | tuple) else value


def from_json(text: bytes) -> Report:
    """Return the report of a file that `to_json` wrote.

    Raises:
        msgspec.DecodeError: it is no JSON.
        msgspec.ValidationError: it is none of these reports, or of another schema.
    """
    schema = msgspec.json.decode(text, type=_Versioned).schema
    if schema != SCHEMA:
        raise msgspec.ValidationError(f"its schema is {schema}, and {SCHEMA} is read here")
    report = msgspec.json.decode(text, type=Report)
    results = [result for case in report.cases for result in case.results]
    for result in (*results, *(result for failure in report.failures for result in failure.results)):
        if isinstance(result, StaticResult) and result.facts is not None:
            msgspec.convert(result.facts, CaseFacts)  # they are kept as they are, and have to be right
    return report


class _Versioned(Struct):
    schema: int


def report_of_run(run: RunOutcome) -> Report:
    """Return the report of a run; baselines that cannot be read are a remark."""
    remarks = [*run.remarks]
    speed: Sequence[SpeedBaselines] = ()
    static: Sequence[StaticBaselines] = ()
    if run.baselines is not None and run.baselines.exists():
        try:
            speed, static = read_all(run.baselines)
        except BaselineError as error:
            remarks.append(f"history and compiled baselines are left out: {error}")
    rows = cases_of(run.results)
    stored = _Stored.read(speed, static, {row.key for row in rows})
    verdicts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for result in run.results:
        verdicts[result.gate][result.arch][result.verdict] += 1
    return _report(
        of="run",
        cases=[_case_of_run(row, run, stored) for row in rows],
        stored=stored,
        unfinished=run.unfinished,
        other_failures=run.other_failures,
        left_out=len(run.left_out),
        unchanged=tuple(sorted({*run.left_out})),
        environment=run.environment,
        verdicts=verdicts,
        failures=tuple(run.failed_tests),
        not_measured=tuple(NotMeasured(counts=counts, why=why) for counts, why in not_measured(run.results)),
        remarks=tuple(remarks),
    )


def report_of_baselines(
    speed: Sequence[SpeedBaselines], static: Sequence[StaticBaselines], environment: Mapping[str, str]
) -> Report:
    """Return the report of what is stored, with no run."""
    timed = {(key, one.arch, one.gpu) for one in speed for key in one.entries}
    stored = _Stored.read(speed, static, {key for key, _, _ in timed})
    untimed = stored.compiled.keys() - {(key, arch) for key, arch, _ in timed}
    cases = []
    for key, arch, gpu in timed | {(key, arch, "") for key, arch in untimed}:
        kernel, _, name = key.partition("[")
        figures = stored.figures(key, arch, gpu)
        cases.append(
            ReportedCase(
                id=identifier(key, arch, gpu),
                kernel=kernel,
                name=name.removesuffix("]") or kernel,
                key=key,
                arch=arch,
                gpu=gpu,
                dtype=_dtype(name, figures),
                verdict="published" if figures is not None and figures.origin == "published" else "recorded",
                figures=figures,
                baseline=stored.compiled.get((key, arch)),
            )
        )
    return _report(of="baselines", cases=cases, stored=stored, environment=environment)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """What baselines hold of some cases."""

    history: Mapping[str, tuple[GpuHistory, ...]]
    compiled: Mapping[tuple[str, str], StaticEntry]
    """By key and architecture; of several files, the last one that has a case."""
    sessions: Mapping[str, RecordedSession]

    @classmethod
    def read(cls, speed: Sequence[SpeedBaselines], static: Sequence[StaticBaselines], keys: set[str]) -> Self:
        history: dict[str, list[GpuHistory]] = defaultdict(list)
        for one in speed:
            for key in one.entries.keys() & keys:
                history[key].append(_gpu_history(key, one))
        return cls(
            history={key: tuple(series) for key, series in sorted(history.items())},
            compiled={(key, one.arch): entry for one in static for key, entry in one.entries.items()},
            sessions={name: session for one in speed for name, session in one.sessions.items()},
        )

    def figures(self, key: str, arch: str, gpu: str) -> Figures | None:
        series = (one.figures for one in self.history.get(key, ()) if (one.arch, one.gpu) == (arch, gpu))
        return next(filter(None, series), None)


def _report(*, of: str, cases: Iterable[ReportedCase], stored: _Stored, **more: Any) -> Report:
    def order(case: ReportedCase) -> tuple[Any, ...]:
        return natural_order(case.kernel), natural_order(case.name), case.arch, case.gpu

    cases = tuple(sorted(cases, key=order))
    gpus = {case.gpu for case in cases} | {one.gpu for series in stored.history.values() for one in series}
    platforms = {gpu: known for gpu in sorted(gpus) if (known := find_platform(gpu)) is not None}
    return Report(
        schema=SCHEMA,
        of=of,
        by=recorded_by(),
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        cases=cases,
        history=stored.history,
        platforms={
            gpu: msgspec.convert(platform, ReportedPlatform, from_attributes=True)
            for gpu, platform in platforms.items()
        },
        sessions=stored.sessions,
        **more,
    )


def _case_of_run(row: CaseRow, run: RunOutcome, stored: _Stored) -> ReportedCase:
    gpu = next((result.gpu for result in row.results if result.gpu), "")
    measured = next(filter(None, map(_measured_figures, row.results)), None)
    figures = measured or stored.figures(row.key, row.arch, gpu)
    return ReportedCase(
        id=identifier(row.key, row.arch, gpu),
        kernel=row.kernel,
        name=row.name,
        key=row.key,
        arch=row.arch,
        gpu=gpu,
        dtype=_dtype(row.name, figures),
        verdict=row.verdict,
        tone=row.tone,
        failed=any(map(run.has_failed, row.of_all_inputs)),
        results=tuple(row.of_all_inputs),
        figures=figures,
        baseline=stored.compiled.get((row.key, row.arch)),
    )


def _measured_figures(result: Result) -> Figures | None:
    if not isinstance(result, SpeedResult) or result.us_per_launch is None:
        return None
    measured = result.measured or Measured()
    return Figures(
        origin="measured",
        us_per_launch=result.us_per_launch,
        sustained_us_per_launch=result.sustained_us_per_launch,
        flops=measured.flops,
        bytes=measured.bytes,
        tokens=measured.tokens,
        dtype=measured.dtype,
        rate=result.rate,
        unit=result.unit,
        share_of_limit=result.share_of_limit,
        change=result.change,
    )


def _gpu_history(key: str, baselines: SpeedBaselines) -> GpuHistory:
    entry, gpu = baselines.entries[key], baselines.gpu
    points = history_points(key, baselines)
    published = entry.published
    newest = next((point for point in reversed(points) if point.headline_us is not None), None)
    figures = None
    if newest is not None:
        record = next(one for one in reversed(entry.records) if one.runs)
        us, sustained_us = newest.headline_us or 0.0, newest.sustained_us
        figures = _figures("recorded", us, record.work, gpu, sustained_us=sustained_us)
    elif published is not None:
        figures = _figures("published", published.median_us, work_of(entry), gpu)
    return GpuHistory(
        arch=baselines.arch,
        gpu=gpu,
        points=tuple(points),
        published_us=None if published is None else published.median_us,
        published_source="" if published is None else published.source,
        figures=figures,
    )


def _figures(origin: str, us: float, work: Work, gpu: str, *, sustained_us: float | None = None) -> Figures:
    platform = find_platform(gpu)
    bound = bound_of(work, platform)
    dtype = work.dtype or ""
    limit = None
    if platform is not None:
        limit = platform.tflops_limit(dtype) if bound == "TFLOPS" else platform.memory_bandwidth_gb_s
    rates = {unit: amount / us * 1e6 for unit, amount in work.amounts.items()}
    unit = "tokens/s" if work.tokens else bound
    return Figures(
        origin=origin,
        us_per_launch=us,
        sustained_us_per_launch=sustained_us,
        flops=work.flops,
        bytes=work.bytes,
        tokens=work.tokens,
        dtype=dtype,
        rate=rates.get(unit),
        unit=unit if unit in rates else "",
        share_of_limit=rates[bound] / limit if limit and bound in rates else None,
    )


def identifier(*names: str) -> str:
    """Return an anchor: readable, and of letters that no page or address has to escape."""
    readable = re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")[:60]
    return f"{readable}-{hashlib.sha256(repr(names).encode()).hexdigest()[:8]}"


def _dtype(name: str, figures: Figures | None) -> str:
    match = _DTYPE.search(name)
    return match[0].lower() if match else figures.dtype if figures is not None else ""
