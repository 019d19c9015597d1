"""Recording baselines: what may be written, and what is said about it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from pytest_cutile.core.baselines import MAX_RUNS, Entry, Run, environment_changes, record_entry
from pytest_cutile.core.report import format_change, format_time
from pytest_cutile.core.spec import Work
from pytest_cutile.core.timing import Measurement
from pytest_cutile.core.verdicts import Judgement, Reason, Verdict
from pytest_cutile.gates.engine import Engine


class Refused(Exception):  # noqa: N818 - nothing is broken
    """The rules do not allow to record this; the message says why and what would."""


def record(
    engine: Engine, key: str, measurement: Measurement, judgement: Judgement, environment: Mapping[str, str]
) -> str:
    """Record a measurement under `key`; return what was done, for people.

    Raises:
        Refused: the GPU is busy or throttled, the figure is noisy or inconclusive, or it is worse than what
            is on disk and there is no --reason.
        BaselineError: the file cannot be used or written.
    """
    path = engine.baseline_file
    if path is None or judgement.reason is Reason.OTHER_GPU:
        raise Refused(judgement.detail)
    problems = engine.timer.problems()
    if problems:
        raise Refused("; ".join(problems))
    if measurement.relative_spread > engine.settings.rule.noise_limit:
        raise Refused(f"the samples spread by {measurement.relative_spread:.0%}; run it again")
    if judgement.verdict is Verdict.INCONCLUSIVE:
        raise Refused(judgement.detail)
    run = Run(
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        median_us=round(measurement.median_us, 3),
        spread=round(measurement.relative_spread, 5),
        samples=len(measurement.samples_us),
        gpu_uuid=measurement.device.uuid,
    )
    said = ""

    def renew(entry: Entry | None) -> Entry:
        nonlocal said
        renewed, said = _renew(engine, entry, run, measurement.work, environment)
        return renewed

    device = measurement.device
    record_entry(path, key, arch=device.arch, gpu=device.name, renew=renew)
    return f"{said} in {engine.shown_baseline_file}"


def _renew(
    engine: Engine, entry: Entry | None, run: Run, work: Work, environment: Mapping[str, str]
) -> tuple[Entry, str]:
    """Return the entry that takes the place of `entry`, which is what is on disk now, and what changed."""
    margin = engine.settings.rule.margin
    reason = engine.settings.reason
    by = provenance(engine)
    fresh = Entry(work=work, runs=(run,), environment=environment, provenance=by)
    if entry is None:
        return fresh, "recorded"
    change = run.median_us / entry.median_us - 1
    said = f"{format_time(entry.median_us)} -> {format_time(run.median_us)} ({format_change(change)})"
    if entry.work != work:
        if reason is None:
            raise Refused("the case does other work than the recorded one; give --reason TEXT to replace it")
        return fresh, f"{said}, for other work"
    if change < -margin:
        return fresh, said
    # Against the first run, too: every run within the margin of the one before could add up to anything.
    worse = max(change, run.median_us / entry.runs[0].median_us - 1) > margin
    if worse and reason is None:
        raise Refused("it is slower; give --reason TEXT to accept that")
    changes = environment_changes(entry.environment, environment)
    if not changes and not worse:
        if len(entry.runs) >= MAX_RUNS:
            raise Refused(f"it has its {MAX_RUNS} runs, and this one is within the margin")
        renewed = entry.with_run(run, environment=environment, provenance=by)
        return renewed, f"run {len(renewed.runs)} added"
    if changes and change > 0 and reason is None:
        raise Refused(
            f"the environment changed ({'; '.join(changes)}) and it is {format_change(change)} slower; give "
            "--reason TEXT to accept that"
        )
    if changes:
        return fresh, f"{said}, the environment changed ({'; '.join(changes)})"
    return fresh, said


def provenance(engine: Engine) -> dict[str, str]:
    """Return who records, from which commit, and the reason that was given."""
    from pytest_cutile import __version__

    by = {"by": f"pytest-cutile {__version__}", "commit": engine.commit}
    return by if engine.settings.reason is None else {**by, "reason": engine.settings.reason}
