"""What a case is compared with: its baseline kernel, which git has, else stored or published times."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_cutile.baselines.entries import Record, SpeedBaselines, environment_changes
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.select import (
    Stored,
    anchor_of,
    since_anchor,
    stored_records,
    stored_us,
    unchanged_record,
    work_of,
)
from pytest_cutile.gates.revisions.modules import RevisionError
from pytest_cutile.gates.speed.comparison import Comparison, Paired, PublishedFigure, SameCode, StoredTimes
from pytest_cutile.gates.speed.record import known
from pytest_cutile.gates.speed.rule import Rule
from pytest_cutile.tile.compiler import CompilerFault
from pytest_cutile.tile.compiler.compilations import NothingLaunched
from pytest_cutile.timing.measure.call import MeasurementFailed
from pytest_cutile.words.timing import Regime
from pytest_cutile.words.verdicts import Judgement, Reason

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session
    from pytest_cutile.gates.speed.case import Launcher, SpeedCase
    from pytest_cutile.words.spec import Work


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
    work = work_of(entry)
    if work != case.work:
        detail = (
            f"{case.key} does {_work(case.work)} now, {_work(work)} in "
            f"{session.speed_baselines_name}; {_advice(case)} --reason TEXT"
        )
        return None, Judgement(reason=Reason.WORK_CHANGED, detail=detail)
    anchor = anchor_of(entry)
    if anchor is None:
        if entry.published is None:
            raise BaselineError(f"{case.key} has neither a record nor a published figure")
        return PublishedFigure(rule=Rule.of(settings), published=entry.published), judgement
    stored = StoredTimes(
        rule=Rule.of(settings),
        anchor=anchor,
        stored=_stored(session, case, baselines),
        environment_changes=_environment_changes(session, case, baselines),
        unavailable="nobody has looked for it",
    )
    try:
        return _with_baseline_kernel(session, case, stored, anchor, baselines), judgement
    except RevisionError as error:
        return replace(stored, unavailable=str(error)), judgement


def _compare_with_revision(
    session: Session, case: SpeedCase, name: str
) -> tuple[Comparison | None, Judgement]:
    launcher = case.launcher_at(name)
    if launcher is None:
        detail = f"{name} has no {case.key}"
        if "::" in case.key:
            detail = f"{name}: {case.key} times no function of a module that {name} has, too"
        return None, Judgement(reason=Reason.NOT_IN_REVISION, detail=detail)
    comparison = Paired(rule=Rule.of(session.settings), revision=name, launcher=launcher)
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
        stale = session.stale & baselines.entries.keys()
        gone = sorted(key for key in stale if _may_be_renamed(key, case, session.kernels))
        if gone:
            detail = (
                f"{shown} has no entry for {case.key}, and one for {gone[0]}, which is gone: if that was "
                f"renamed, rename its entry; else delete it, or {_advice(case)} --reason TEXT"
            )
            return None, Judgement(reason=Reason.MAYBE_RENAMED, detail=detail)
        detail = f"{shown} has no entry for {case.key}; {_advice(case)}"
        return None, Judgement(reason=Reason.NO_ENTRY, detail=detail)
    return baselines, Judgement(reason=Reason.WITHIN_MARGIN)


def _may_be_renamed(stale: str, case: SpeedCase, kernels: Collection[str]) -> bool:
    """Say whether a case that is gone may have the name of `case` now: of its kernel, or of one that is gone.

    Of test functions, any may.
    """
    if "::" in stale or "::" in case.key:
        return "::" in stale and "::" in case.key
    kernel = stale.partition("[")[0]
    return kernel == case.kernel or kernel not in kernels


def _advice(case: SpeedCase) -> str:
    return f"record it: pytest {shlex.quote(case.nodeid)} --update-baselines"


def _stored(session: Session, case: SpeedCase, baselines: SpeedBaselines) -> dict[Regime, Stored]:
    entry, uuid = baselines.entries[case.key], session.gpu.timer.device.uuid
    times = {regime: stored_us(baselines, entry, regime, uuid) for regime in Regime}
    return {regime: stored for regime, stored in times.items() if stored is not None}


def _environment_changes(session: Session, case: SpeedCase, baselines: SpeedBaselines) -> Sequence[str]:
    """Return what differs from the environment of the stored times; empty if today's was recorded, too."""
    device, today = session.gpu.timer.device, dict(session.gpu.timer.environment())
    entry = baselines.entries[case.key]
    known = [dict(baselines.sessions[record.session].environment) for record in since_anchor(entry)]
    if today in known:
        return []
    timed = [record for regime in Regime for record in stored_records(baselines, entry, regime, device.uuid)]
    recorded = dict(baselines.sessions[timed[0].session].environment) if timed else known[-1]
    return environment_changes(recorded, today)


@dataclass(frozen=True, kw_only=True)
class _AnchorCode:
    """Where git has the code of a case's anchor."""

    record: Record
    commit: str
    is_recorded_commit: bool
    """Whether the record names this commit, without uncommitted changes. Else it is the commit that added the
    record to the baselines."""
    in_this_environment: bool
    """Whether it was recorded in today's environment: then equal code has equal fingerprints."""


def _with_baseline_kernel(
    session: Session, case: SpeedCase, stored: StoredTimes, anchor: Record, baselines: SpeedBaselines
) -> Paired | SameCode:
    """Return the comparison with the kernel of the anchor, or that today's code is the anchor's.

    Raises:
        RevisionError: the anchor's kernel is not available, or the commit has other code than was recorded.
    """
    entry, environment = baselines.entries[case.key], dict(session.gpu.timer.environment())
    today = known(case.fingerprint)
    if unchanged_record(baselines, entry, work=case.work, fingerprint=today, environment=environment):
        return stored.of_same_code(is_recorded=True)
    if same_digest(anchor.fingerprint, today):
        return stored.of_same_code()
    code = _anchor_code(session, case, anchor, baselines)
    if _is_recompiled(session, case, code, today):
        return stored.of_same_code()
    launcher = _launcher_at(case, code.commit)
    _refuse_other_code(session, case, code, today)
    if session.checkout.is_at(code.commit):  # and nobody knows a fingerprint
        return stored.of_same_code()
    return stored.paired_with(code.commit, launcher)


def _refuse_other_code(session: Session, case: SpeedCase, code: _AnchorCode, today: str) -> None:
    """Raise RevisionError if the code at the anchor's commit is not the recorded code.

    The first of these questions that has an answer decides:

    1. Does it compile to the anchor's fingerprint? Only known in the anchor's environment.
    2. Does the record name this commit? Then the code is the recorded one.
    3. Does the source have the anchor's digest?

    If the code imports a file that git does not track, only the first question counts.
    """
    compiled = _compiled_at(case, code.commit) if code.in_this_environment else ""
    is_recorded_code = same_digest(code.record.fingerprint, compiled)
    if is_recorded_code is False and code.is_recorded_commit:
        _refuse_one_kernel(session, case, code.commit, today)
    if is_recorded_code is None:
        _refuse_shared_files(session, case, code.commit)
        is_recorded_code = code.is_recorded_commit or same_digest(
            code.record.source, known(case.source, code.commit)
        )
    if not is_recorded_code:
        raise RevisionError(_other_code(code, is_known=is_recorded_code is not None))


def _is_recompiled(session: Session, case: SpeedCase, code: _AnchorCode, today: str) -> bool:
    """Say whether the code of the fingerprint `today` is the anchor's, compiled by another compiler.

    Raises:
        RevisionError: the anchor's code does not compile, or imports a file that git does not track.
    """
    if code.in_this_environment or not code.is_recorded_commit:
        return False
    if not today or not same_digest(code.record.source, known(case.source)):
        return False
    compiled = _compiled_at(case, code.commit)
    _refuse_shared_files(session, case, code.commit)
    # Equal sources are not enough: the digest lacks what a launcher imports while it runs.
    return compiled == today


def _refuse_one_kernel(session: Session, case: SpeedCase, commit: str, today: str) -> None:
    """Raise MeasurementFailed if today's code is found at a commit where other code was recorded."""
    if _compiled_at(case, commit) == today and not session.checkout.is_at(commit):
        raise MeasurementFailed(
            Reason.SAME_KERNEL,
            f"{case.key}: this process gets one kernel for both the working tree and {commit[:12]}, although "
            "another one was recorded there. Is it registered once in a process (torch.library, a shared "
            "library)? It cannot be measured interleaved with its baseline; give --perf-baseline none",
        )


def _refuse_shared_files(session: Session, case: SpeedCase, commit: str) -> None:
    """Raise RevisionError if the baseline kernel imports a file that git does not track.

    Such a file is today's for both kernels, and without a fingerprint nothing shows whether it has changed.
    """
    if not session.checkout.has_commit(commit):
        return
    shared = session.revision(commit).shared_file(case.module) or case.shared_file(commit)
    if shared:
        raise RevisionError(
            f"the kernel of {commit[:12]} imports {shared}, which is today's for both kernels: git does not "
            "track it"
        )


def same_digest(recorded: str, other: str) -> bool | None:
    """Say whether two digests are equal; None if one is not known, or was made by other rules."""
    rules = [digest.rpartition("-")[0] for digest in (recorded, other)]
    return recorded == other if rules[0] and rules[0] == rules[1] else None


def _other_code(code: _AnchorCode, *, is_known: bool) -> str:
    """Return why the code at a commit is not taken for the anchor's."""
    commit = code.commit[:12]
    if code.is_recorded_commit:
        return (
            f"the code at {commit} is not the one that was recorded there: does it depend on a file "
            "that git does not track?"
        )
    what = "is not the one that was recorded" if is_known else "cannot be compared with what was recorded"
    return f"the code at {commit}, which added the record to the baselines, {what}: record it again"


def _anchor_code(session: Session, case: SpeedCase, anchor: Record, baselines: SpeedBaselines) -> _AnchorCode:
    """Find the commit of the anchor's code: of those where it was recorded, the first that has the launcher.

    If the anchor was recorded from uncommitted changes, or its commit is gone (squash merge), this is the
    commit that added the anchor's session to the baselines.
    """
    recorded, checkout = baselines.sessions[anchor.session], session.checkout
    records = since_anchor(baselines.entries[case.key])
    commits = [baselines.sessions[one.session].commit for one in records if one.code == anchor.code]
    there = [one for one in commits if not one.endswith("+") and checkout.has_commit(one)]
    clean = next((one for one in there if _has_launcher(case, one)), next(iter(there), None))
    return _AnchorCode(
        record=anchor,
        commit=clean or checkout.commit_that_added(anchor.session) or recorded.commit,
        is_recorded_commit=clean is not None,
        in_this_environment=dict(recorded.environment) == dict(session.gpu.timer.environment()),
    )


def _has_launcher(case: SpeedCase, commit: str) -> bool:
    try:
        return case.launcher_at(commit) is not None
    except RevisionError:
        return False


def _compiled_at(case: SpeedCase, commit: str) -> str:
    """Return the fingerprint as of a commit; empty where nobody knows one."""
    try:
        return case.fingerprint(commit)
    except (RevisionError, NothingLaunched):
        return ""
    except CompilerFault as fault:
        raise RevisionError(f"no baseline kernel of {commit[:12]}: {fault.headline}") from fault
    except Exception as error:
        raise RevisionError(f"the baseline kernel of {commit[:12]} does not compile: {error}") from error


def _launcher_at(case: SpeedCase, commit: str) -> Launcher:
    """Return the case's launcher as of a recorded commit."""
    if not commit:
        raise RevisionError("it was recorded outside of git, so there is no baseline kernel")
    if commit.endswith("+"):
        raise RevisionError(
            f"it was recorded from uncommitted changes of {commit[:12]}, and git finds no commit that added "
            "the record: commit the kernel together with the baselines, or in a shallow clone fetch that "
            "commit (git fetch --unshallow)"
        )
    launcher = case.launcher_at(commit)
    if launcher is None:
        raise RevisionError(
            f"{commit[:12]}, the commit of the baseline kernel, has no {case.key} in {case.module}: if it "
            "was moved or renamed, record it again"
        )
    return launcher


def _work(work: Work) -> str:
    dtype = f", {work.dtype}" if work.dtype else ""
    tokens = f", {work.tokens:.6g} tokens" if work.tokens else ""
    return f"{work.flops:.6g} flops, {work.bytes:.6g} bytes{tokens}{dtype}"
