"""The gate `static`: is the compiled kernel as good as its baseline? It needs no GPU and has no noise."""

from __future__ import annotations

import datetime as dt
import linecache
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pytest_cutile.compile import CompileError
from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import environment_changes
from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.static_baselines import StaticEntry, record_static
from pytest_cutile.core.static_facts import CaseFacts, LaunchFacts, Note, Site, SpillLine
from pytest_cutile.core.static_json import to_json
from pytest_cutile.core.static_report import static_message
from pytest_cutile.core.static_rules import Comparison, Effect, compare
from pytest_cutile.core.toolchain import CompilerMissing, toolchain_versions
from pytest_cutile.core.verdicts import ERRORS, UNDECIDED, Judgement, Reason, Verdict
from pytest_cutile.gates.compiling import NO_COMPILER, Compilations, CompileCase, NothingLaunched, wait_for
from pytest_cutile.gates.engine import Blocked, Engine
from pytest_cutile.gates.recording import Refused, provenance
from pytest_cutile.gates.revision import RevisionError

_Inspection = Future[tuple[LaunchFacts, tuple[str, ...]]]
_Remark = TypeVar("_Remark", Site, Note, SpillLine)


@dataclass(frozen=True, kw_only=True)
class StaticOutcome:
    """What the gate found for one case."""

    judgement: Judgement
    """Verdict and reason."""
    failure: str | None
    """Message to fail the test with; None when it passes."""


class StaticGate:
    """The gate's state in one run: what is being read of compiled kernels, for all cases at once."""

    def __init__(self, engine: Engine, compilations: Compilations) -> None:
        self._engine = engine
        self._compilations = compilations
        self._started: dict[tuple[str, str, str], list[_Inspection]] = {}

    def start(self, cases: Iterable[CompileCase]) -> None:
        """Compile and read every case that is not under way yet. Errors wait until the case asks."""
        cases = [case for case in cases if case.key not in self._started]
        self._compilations.start(cases)
        for case in cases:
            try:
                compilations = self._compilations.of(case)
            except Exception:  # noqa: BLE001 - user code may raise anything; its test reports it
                compilations = []
            self._started[case.key] = [self._engine.inspector.submit(each.compiling) for each in compilations]

    def facts(self, case: CompileCase) -> CaseFacts:
        """Wait for a case and return what was compiled.

        Raises:
            CompileError, CompilerMissing, NothingLaunched: it does not compile.
            Exception: whatever the launcher raised.
        """
        self.start([case])
        compilations = self._compilations.of(case)
        self._compilations.result(case)  # says first what does not compile
        wait_for(self._started[case.key], lambda: self._engine.progress(self._progress_text()))
        found = [future.result() for future in self._started[case.key]]
        launches = [
            replace(
                facts,
                grid=compilation.launch.grid,
                sites=None if facts.sites is None else self._relative([*map(_with_text, facts.sites)]),
                notes=self._relative(facts.notes),
                spill_lines=self._relative(facts.spill_lines),
            )
            for (facts, _), compilation in zip(found, compilations, strict=True)
        ]
        return CaseFacts(
            identity=self._compilations.identity(case),
            source=self._compilations.source(case),
            launches=_joined(launches),
            missing=tuple(dict.fromkeys(line for _, missing in found for line in missing)),
        )

    def _relative(self, remarks: Sequence[_Remark]) -> tuple[_Remark, ...]:
        return tuple(replace(remark, file=self._engine.shown(Path(remark.file))) for remark in remarks)

    def _progress_text(self) -> str:
        futures = [future for inspections in self._started.values() for future in inspections]
        return f"reading {sum(future.done() for future in futures)}/{len(futures)} compiled kernels"

    def is_untouched(self, case: CompileCase) -> bool:
        """Return whether a case is compiled and launched as its baseline says; False when nobody can know.

        Raises:
            BaselineError: the baselines cannot be used.
            RevisionError: the other revision's module cannot be imported.
        """
        try:
            if case.base is not None:
                base = case.base()
                then = self._compilations.identity(base) if base is not None else None
            else:
                entry = self._entry(case)
                then = entry.facts.identity if entry is not None else None
            return then is not None and self._compilations.identity(case) == then
        except (BaselineError, RevisionError):
            raise
        except Exception:  # noqa: BLE001 - what does not compile has to be seen: its tests stay
            return False

    def _entry(self, case: CompileCase) -> StaticEntry | None:
        """Return what a case is compared with: what is stored, or what the other revision compiles to now.

        Raises:
            BaselineError: the baselines cannot be used.
            RevisionError: the other revision's module cannot be imported.
        """
        if case.base is None:
            file = self._engine.static_baselines(case.arch)
            return file.entries.get(case.baseline_key) if file is not None else None
        base = case.base()
        if base is None:
            return None
        try:
            facts = self.facts(base)
        except Exception:  # noqa: BLE001 - a case that did not compile then is no baseline
            return None
        return StaticEntry(facts=facts, toolchain=toolchain_versions(), provenance={})

    # -- the gate -------------------------------------------------------------------------------------

    def check(self, case: CompileCase, *, nodeid: str) -> StaticOutcome:
        """Compare a case with its baseline, and record it if that was asked for.

        Raises:
            Blocked: it does not compile, and the gate `compile` says so in this run.
            CompileError, CompilerMissing, NothingLaunched: it does not compile.
            Exception: whatever the launcher raised.
        """
        __tracebackhide__ = True
        try:
            now = self.facts(case)
        except Exception as error:
            own = isinstance(error, CompileError | CompilerMissing | NothingLaunched)
            said = f"{error}".partition("\n")[0]
            if case.key in self._compilations.gated:
                self._append(case, Verdict.NOT_MEASURED, Reason.NOT_COMPILED, detail=_NOT_COMPILED)
                raise Blocked(Reason.NOT_COMPILED, f"{_NOT_COMPILED}: {said}") from None
            reason = NO_COMPILER if isinstance(error, CompilerMissing) else "" if own else "raised"
            self._append(case, "fail", reason, detail=said)
            raise
        facts = to_json(now) if self._engine.settings.kernel_report else None
        try:
            return self._judge(case, now, facts, nodeid)
        except BaselineError as error:
            self._append(case, "fail", Reason.BAD_BASELINE, detail=f"{error}", facts=facts)
            return StaticOutcome(judgement=Judgement(reason=Reason.BAD_BASELINE), failure=str(error))

    def _judge(
        self, case: CompileCase, now: CaseFacts, facts: dict[str, object] | None, nodeid: str
    ) -> StaticOutcome:
        settings = self._engine.settings
        path = self._engine.static_file(case.arch)
        entry = self._entry(case)
        toolchain = toolchain_versions()
        comparison = Comparison(changes=(), unknown=())
        toolchain_changes: Sequence[str] = ()
        if entry is None:
            judgement = self._without_entry(case, path, nodeid)
        else:
            comparison = compare(entry.facts, now, arch=case.arch, rule=settings.static_rule)
            toolchain_changes = environment_changes(entry.toolchain, toolchain)
            judgement = _judge_code(entry.facts, now, comparison, toolchain_changes)
        recorded, note = False, ""
        if settings.update_baselines and path is not None:
            try:
                note = self._record(case, now, toolchain, path)
                recorded = True
            except Refused as refused:
                note = f"{case.baseline_key} for {case.arch}: not recorded: {refused}"
        failure = None
        if judgement.verdict is Verdict.REGRESSION and entry is not None and not recorded:
            failure = static_message(
                key=case.baseline_key,
                arch=case.arch,
                nodeid=nodeid,
                entry=entry,
                comparison=comparison,
                same_source=entry.facts.source == now.source,
                toolchain_changes=toolchain_changes,
                toolchain=toolchain,
                baseline_file=self._engine.shown(path) if path is not None else f"{self._engine.duet}",
                baseline_option=settings.baseline_option,
                missing=now.missing,
            )
        elif settings.strict and judgement.verdict in UNDECIDED and not recorded:
            failure = (
                f"{case.baseline_key} {case.arch}: {judgement.verdict} ({judgement.reason}): "
                f"{judgement.detail} [--perf-strict]"
            )
        if failure is not None and note:
            failure += f"\n\n{note}"
        self._append(
            case,
            "fail" if judgement.reason in ERRORS else judgement.verdict,
            judgement.reason,
            detail=judgement.detail,
            changes=tuple(
                f"{change.effect}: {change.text}" for effect in Effect for change in comparison.of(effect)
            ),
            toolchain="; ".join(toolchain_changes),
            facts=facts,
            # Why it was not recorded is said with the failure.
            recorded="" if failure is not None else note,
        )
        return StaticOutcome(judgement=judgement, failure=failure)

    def _without_entry(self, case: CompileCase, path: Path | None, nodeid: str) -> Judgement:
        if case.base is not None:
            detail = f"{self._engine.duet} has no {case.baseline_key} that compiles for {case.arch}"
            return Judgement(reason=Reason.NOT_IN_REVISION, detail=detail)
        if path is None:
            return Judgement(reason=Reason.BASELINES_OFF, detail="--perf-baseline none")
        shown = self._engine.shown(path)
        if self._engine.static_baselines(case.arch) is None:
            return Judgement(
                reason=Reason.NO_FILE, detail=f"{shown} does not exist; record it: pytest --update-baselines"
            )
        return Judgement(
            reason=Reason.NO_ENTRY,
            detail=f"{shown} has no entry for {case.baseline_key}; "
            f"record it: pytest '{nodeid}' --arch {case.arch} --update-baselines",
        )

    def _append(
        self,
        case: CompileCase,
        verdict: str,
        reason: str,
        *,
        detail: str,
        **further: object,
    ) -> None:
        self._engine.results.append(
            GateResult(
                gate=Gate.STATIC,
                key=case.baseline_key,
                kernel=case.kernel,
                case=case.case,
                arch=case.arch,
                verdict=verdict,
                reason=reason,
                detail=detail,
                **further,  # type: ignore[arg-type]
            )
        )

    # -- recording ------------------------------------------------------------------------------------

    def _record(self, case: CompileCase, now: CaseFacts, toolchain: dict[str, str], path: Path) -> str:
        """Record a case; return what was done, for people, or "" when there was nothing to do.

        Raises:
            Refused: something of it is unknown, or it is worse than what is on disk and there is no --reason.
            BaselineError: the file cannot be used or written.
        """
        settings = self._engine.settings
        shown = self._engine.shown(path)
        said = ""

        def renew(entry: StaticEntry | None) -> StaticEntry | None:
            nonlocal said
            renewed = StaticEntry(facts=now, toolchain=toolchain, provenance=self._provenance())
            same_code = entry is not None and entry.facts.identity == now.identity
            if entry is not None and same_code and entry.facts.source == now.source:
                if entry.toolchain == toolchain:
                    return None
                said = f"the same code from another toolchain, noted in {shown}"
                return replace(renewed, facts=entry.facts)
            if now.missing:
                raise Refused("; ".join(now.missing))
            if entry is None:
                said = f"compiled kernels recorded in {shown}"
                return renewed
            comparison = compare(entry.facts, now, arch=case.arch, rule=settings.static_rule)
            worse = comparison.of(Effect.WORSE)
            if worse and settings.reason is None:
                raise Refused(f"{worse[0].text} is worse; give --reason TEXT to accept that")
            lines = [f"{change.effect}: {change.text}" for change in comparison.changes]
            said = "\n    ".join([f"{case.baseline_key} for {case.arch}: recorded anew in {shown}", *lines])
            return renewed

        record_static(path, case.baseline_key, arch=case.arch, renew=renew)
        return said

    def _provenance(self) -> dict[str, str]:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        return {**provenance(self._engine), "at": at}


_SHOWN_TEXT = 48
_NOT_COMPILED = "there is no compiled kernel, see the gate compile"


def _with_text(site: Site) -> Site:
    """Add the line of source. Not earlier: what is remembered of a compiled kernel holds no names."""
    linecache.checkcache(site.file)
    return replace(site, text=linecache.getline(site.file, site.line).strip()[:_SHOWN_TEXT])


def _joined(launches: Iterable[LaunchFacts]) -> tuple[LaunchFacts, ...]:
    """Return launches without repeats, each with how often it is there."""
    different: list[LaunchFacts] = []
    times: list[int] = []
    for launch in launches:
        if launch in different:
            times[different.index(launch)] += 1
        else:
            different.append(launch)
            times.append(1)
    return tuple(replace(launch, times=n) for launch, n in zip(different, times, strict=True))


def _judge_code(
    then: CaseFacts, now: CaseFacts, comparison: Comparison, toolchain_changes: Sequence[str]
) -> Judgement:
    if then.identity == now.identity:
        return Judgement(reason=Reason.UNTOUCHED)
    other = ""
    if toolchain_changes:
        same = "same source" if then.source == now.source else "other source, too"
        other = f"{same}, other toolchain ({'; '.join(toolchain_changes)})"
    worse, better = comparison.of(Effect.WORSE), comparison.of(Effect.BETTER)
    if worse:
        by_compiler = toolchain_changes and then.source == now.source
        reason = Reason.WORSE_COMPILER if by_compiler else Reason.WORSE_CODE
        return Judgement(
            reason=reason, detail="; ".join([change.text for change in worse] + [other] * bool(other))
        )
    if comparison.unknown:
        what = ", ".join(comparison.unknown)
        return Judgement(reason=Reason.INCOMPLETE, detail=f"not compared: {what}: {'; '.join(now.missing)}")
    if better:
        return Judgement(
            reason=Reason.BETTER_CODE,
            detail="; ".join([change.text for change in better] + [other] * bool(other)),
        )
    return Judgement(reason=Reason.NO_WORSE, detail=other)
