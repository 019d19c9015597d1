"""What a case is compared with: its baseline kernel, which git has, else stored or published times."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pytest_cutile.baselines.entries import Record, SpeedBaselines, environment_changes
from pytest_cutile.baselines.select import Stored, anchor_of, since_anchor, stored_us, unchanged_record
from pytest_cutile.revisions.modules import RevisionError
from pytest_cutile.session import Session
from pytest_cutile.spec import Work
from pytest_cutile.speed.case import Launcher, SpeedCase
from pytest_cutile.speed.comparison import Comparison
from pytest_cutile.speed.measure.call import MeasurementFailed
from pytest_cutile.speed.measure.timing import Regime
from pytest_cutile.speed.recording import fingerprint_of
from pytest_cutile.verdicts import Judgement, Reason


def find_comparison(session: Session, case: SpeedCase) -> tuple[Comparison | None, Judgement]:
    """Return what a case is compared with, or None and the judgement that says why nothing is.

    Raises:
        BaselineError: the baselines cannot be used.
        MeasurementFailed: today's kernel and the baseline's cannot be told apart in this process.
    """
    settings = session.settings
    if settings.baseline_revision is not None:
        return _compare_with_revision(session, case, settings.baseline_revision)
    baselines, judgement = _baselines_of(session, case)
    if baselines is None:
        return None, judgement
    entry = baselines.entries[case.key]
    if entry.published is not None:
        return Comparison(rule=settings.rule, published=entry.published), judgement
    anchor = anchor_of(entry)
    if anchor is None:
        return None, Judgement(reason=Reason.NO_ENTRY, detail=f"{case.key} has no records")
    if anchor.work != case.work:
        detail = (
            f"{case.key} does {_work(case.work)} now, {_work(anchor.work)} in "
            f"{session.speed_baselines_name}; {_advice(case)} --reason TEXT"
        )
        return None, Judgement(reason=Reason.WORK_CHANGED, detail=detail)
    comparison = Comparison(
        rule=settings.rule,
        anchor=anchor,
        stored=_stored(session, case, baselines),
        environment_changes=_environment_changes(session, case, baselines),
    )
    return _with_baseline_kernel(session, case, comparison, baselines), judgement


def _compare_with_revision(
    session: Session, case: SpeedCase, name: str
) -> tuple[Comparison | None, Judgement]:
    launcher = case.launcher_at(name)
    if launcher is None:
        detail = f"{name} has no {case.key}"
        if case.fingerprint is None:
            detail = f"{name}: {case.key} times no function of a module that {name} has, too"
        return None, Judgement(reason=Reason.NOT_IN_REVISION, detail=detail)
    comparison = Comparison(rule=session.settings.rule, revision=name, launcher=launcher)
    return comparison, Judgement(reason=Reason.WITHIN_MARGIN)


def _baselines_of(session: Session, case: SpeedCase) -> tuple[SpeedBaselines | None, Judgement]:
    """Return the baselines that hold an entry for the case; else None and the judgement that says why not."""
    if session.settings.baseline_path is None:
        return None, Judgement(reason=Reason.BASELINES_OFF, detail="--perf-baseline none")
    device, baselines, shown = session.gpu.timer.device, session.speed_baselines, session.speed_baselines_name
    if baselines is None:
        detail = f"{shown} does not exist; record it: pytest --update-baselines"
        return None, Judgement(reason=Reason.NO_FILE, detail=detail)
    if (baselines.arch, baselines.gpu) != (device.arch, device.name):
        detail = f"{shown} was recorded on {baselines.gpu} ({baselines.arch})"
        return None, Judgement(reason=Reason.OTHER_GPU, detail=detail)
    if case.key not in baselines.entries:
        detail = f"{shown} has no entry for {case.key}; {_advice(case)}"
        return None, Judgement(reason=Reason.NO_ENTRY, detail=detail)
    return baselines, Judgement(reason=Reason.WITHIN_MARGIN)


def _advice(case: SpeedCase) -> str:
    return f"record it: pytest {shlex.quote(case.nodeid)} --update-baselines"


def _stored(session: Session, case: SpeedCase, baselines: SpeedBaselines) -> dict[Regime, Stored]:
    entry, uuid = baselines.entries[case.key], session.gpu.timer.device.uuid
    times = {regime: stored_us(baselines, entry, regime, uuid) for regime in Regime}
    return {regime: stored for regime, stored in times.items() if stored is not None}


def _environment_changes(session: Session, case: SpeedCase, baselines: SpeedBaselines) -> Sequence[str]:
    """Return what differs from the last recorded environment of a case; empty if today's was recorded."""
    today = dict(session.gpu.timer.environment())
    records = since_anchor(baselines.entries[case.key])
    known = [dict(baselines.sessions[record.session].environment) for record in records]
    return [] if today in known else environment_changes(known[-1], today)


def _with_baseline_kernel(
    session: Session, case: SpeedCase, comparison: Comparison, baselines: SpeedBaselines
) -> Comparison:
    """Return the comparison with the kernel of the anchor, or with why it cannot be had."""
    anchor, entry = comparison.anchor, baselines.entries[case.key]
    if anchor is None:
        return comparison
    commit = _commit_of(session, anchor, baselines)
    today, environment = fingerprint_of(case), session.gpu.timer.environment()
    if today and (
        today == anchor.fingerprint
        or unchanged_record(baselines, entry, work=case.work, fingerprint=today, environment=environment)
    ):
        return comparison.of_same_code(commit)
    is_recorded = commit == baselines.sessions[anchor.session].commit  # not the one of a squash merge
    is_here = bool(commit) and session.checkout.is_at(commit)
    was_here = dict(baselines.sessions[anchor.session].environment) == dict(environment)
    has_rules = bool(today) and _rules(anchor.fingerprint) == _rules(today)
    if is_here and is_recorded:
        is_other = was_here and has_rules  # with another fingerprint
        return (
            comparison.without_baseline_kernel(
                f"its code is not the one recorded at {commit[:12]}, which is checked out: does it depend "
                "on a file that git does not track?"
            )
            if is_other
            else comparison.of_same_code(commit, is_fingerprinted=False)
        )
    try:
        launcher = _launcher_at(case, commit)
        is_same = bool(today) and fingerprint_of(case, commit) == today
        if is_same and is_recorded and was_here and has_rules:
            raise MeasurementFailed(
                Reason.SAME_KERNEL,
                f"{case.key}: this process gets one kernel for both the working tree and {commit[:12]}, "
                "although another one was recorded there. Is it registered once in a process "
                "(torch.library, a shared library)? Such a kernel cannot be measured beside its baseline; "
                "give --perf-baseline none",
            )
        _verify(case, commit, anchor)
    except RevisionError as error:
        return comparison.without_baseline_kernel(str(error))
    if is_here or is_same:
        return comparison.of_same_code(commit, is_fingerprinted=is_same)
    return comparison.with_launcher(commit, launcher)


def _commit_of(session: Session, anchor: Record, baselines: SpeedBaselines) -> str:
    """Return the commit of the anchor's kernel: after a squash merge, the one that added its session."""
    commit = baselines.sessions[anchor.session].commit
    if not commit or commit.endswith("+") or session.checkout.has_commit(commit):
        return commit
    return session.checkout.commit_that_added(anchor.session) or commit


def _verify(case: SpeedCase, commit: str, anchor: Record) -> None:
    """Raise RevisionError if the kernel's source at a commit is not the one that was recorded."""
    if not anchor.source or case.source is None:
        return
    try:
        source = case.source(commit)
    except RevisionError:
        raise
    except Exception as error:
        raise RevisionError(f"the baseline kernel of {commit[:12]} does not compile: {error}") from error
    if source != anchor.source:
        raise RevisionError(f"the kernel's source at {commit[:12]} is not the one that was recorded")


def _launcher_at(case: SpeedCase, commit: str) -> Launcher:
    """Return the case's launcher as of a recorded commit.

    Raises:
        RevisionError: they cannot be had; the message says why and what to do.
    """
    if not commit:
        raise RevisionError("it was recorded outside of git, so there is no baseline kernel")
    if commit.endswith("+"):
        raise RevisionError(
            f"it was recorded from uncommitted changes of {commit[:12]}, so git has no baseline kernel: "
            "commit, then record it again"
        )
    launcher = case.launcher_at(commit)
    if launcher is None:
        raise RevisionError(f"{commit[:12]}, the commit of the baseline kernel, has no {case.key}")
    return launcher


def _rules(fingerprint: str) -> str:
    """Return by which rules a fingerprint was made: others cannot be compared with it."""
    return fingerprint.rpartition("-")[0]


def _work(work: Work) -> str:
    dtype = f", {work.dtype}" if work.dtype else ""
    return f"{work.flops:.6g} flops, {work.bytes:.6g} bytes{dtype}"
