"""The gate `static`: is the compiled kernel as good as its baseline? It needs no GPU and has no noise."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from pytest_cutile.baselines.entries import StaticEntry, environment_changes, provenance
from pytest_cutile.baselines.errors import BaselineError, Rejected
from pytest_cutile.baselines.store import BaselineStore
from pytest_cutile.compiler.compilations import CompileCase
from pytest_cutile.compiler.toolchain import toolchain_versions
from pytest_cutile.errors import GateSkipped
from pytest_cutile.gates.base import RunningTest, Task
from pytest_cutile.gates.compile import CompilingGate
from pytest_cutile.gates.compiled_facts import compiled_facts, inspections
from pytest_cutile.gates.declared import compiled_case
from pytest_cutile.gates.outcome import GateFailed
from pytest_cutile.reports.failures import static_message
from pytest_cutile.results import StaticResult
from pytest_cutile.static.changes import Effect, StaticComparison
from pytest_cutile.static.comparison import compare
from pytest_cutile.static.facts import CaseFacts
from pytest_cutile.verdicts import Judgement, Reason, Verdict, strict_failure


class StaticGate(CompilingGate):
    """Compares every case with its baseline."""

    result_type = StaticResult

    def prepare(self, tasks: Sequence[Task]) -> None:
        cases = [compiled_case(self.session, task) for task in tasks]
        self.session.compilations.start(cases)
        inspections(self.session, [case for case in cases if self.session.compilations.is_traced(case)])

    def run(self, task: Task, test: RunningTest) -> None:
        """Compare a case with its baseline, and record it if that was asked for.

        Raises:
            GateSkipped: it does not compile, and the gate `compile` says so in this run.
            GateFailed: it is worse than its baseline, or its baseline cannot be read.
            CompileError, CompilerMissing, NothingLaunched: it does not compile.
            Exception: whatever the launcher raised.
        """
        case = compiled_case(self.session, task)
        current = self._current(case)
        try:
            failure = self._judge(case, current, test.nodeid)
        except BaselineError as error:
            failure = str(error)
            self.append(case, Reason.BAD_BASELINE, failure, facts=self._shown(current))
        if failure is not None:
            raise GateFailed(failure, pytrace=False)

    def _entry(self, case: CompileCase) -> StaticEntry | None:
        """Return what a case is compared with: what is stored, or what the other revision compiles to now.

        Raises:
            BaselineError: the baselines cannot be used.
            RevisionError: the other revision's module cannot be imported.
        """
        if case.base is None:
            store = self.session.baselines
            return store.static_entry(case.arch, case.baseline_key) if store is not None else None
        base = case.base()
        if base is None:
            return None
        try:
            facts = compiled_facts(self.session, base)
        except Exception:  # noqa: BLE001 - a case that did not compile there is no baseline
            return None
        return StaticEntry(facts=facts, toolchain=toolchain_versions(), provenance={})

    def finish(self) -> list[str]:
        """Return of which kernels no time is predicted."""
        return [
            f"no time is predicted of {kernel}: what it executes could not be counted ({why})"
            for kernel, why in self.session.uncounted.items()
        ]

    # -- the gate -------------------------------------------------------------------------------------

    def _current(self, case: CompileCase) -> CaseFacts:
        try:
            return compiled_facts(self.session, case)
        except Exception as error:
            if ("compile", *case.key) in self.session.selected:
                self.append(case, Reason.NOT_COMPILED, _NOT_COMPILED)
                message = f"{error}".partition("\n")[0]
                raise GateSkipped(Reason.NOT_COMPILED, f"{_NOT_COMPILED}: {message}") from None
            self.append_failure(case, error)
            raise

    def _shown(self, facts: CaseFacts) -> dict[str, object] | None:
        """Return what reports show of a compiled case, if the run makes one."""
        return msgspec.to_builtins(facts) if self.session.settings.keeps_facts else None

    def _judge(self, case: CompileCase, current: CaseFacts, nodeid: str) -> str | None:
        """Add the result of a case; return the message to fail its test with."""
        settings, store = self.session.settings, self.session.baselines
        entry = self._entry(case)
        toolchain = toolchain_versions()
        comparison = StaticComparison(changes=(), unknown=())
        toolchain_changes: Sequence[str] = ()
        if entry is None:
            judgement = self._without_entry(case, nodeid)
        else:
            if not entry.facts.runs_the_same(current):
                comparison = compare(entry.facts, current, arch=case.arch, margin=settings.static_margin)
            toolchain_changes = environment_changes(entry.toolchain, toolchain)
            judgement = _judge_code(entry.facts, current, comparison, toolchain_changes)
        recorded, note = False, ""
        if settings.update_baselines and store is not None:
            try:
                note = self._record(case, current, toolchain, store)
                recorded = True
            except Rejected as rejected:
                note = f"{case.baseline_key} for {case.arch}: not recorded: {rejected}"
        failure = None
        if judgement.verdict is Verdict.REGRESSION and entry is not None and not recorded:
            failure = static_message(
                key=case.baseline_key,
                arch=case.arch,
                entry=entry,
                current=current,
                comparison=comparison,
                toolchain=toolchain,
                baseline=f"{self.session.revision_kernels}"
                if store is None
                else store.static_name(case.arch),
            )
        elif not recorded:
            failure = strict_failure(f"{case.baseline_key} {case.arch}", judgement, strict=settings.strict)
        if failure is not None and note:
            failure += f"\n\n{note}"
        self.append(
            case,
            judgement.reason,
            detail=judgement.detail,
            changes=tuple(
                f"{change.effect}: {change.text}" for effect in Effect for change in comparison.of(effect)
            ),
            toolchain="; ".join(toolchain_changes),
            facts=self._shown(current),
            # Why it was not recorded is said with the failure.
            recorded="" if failure is not None else note,
        )
        return failure

    def _without_entry(self, case: CompileCase, nodeid: str) -> Judgement:
        if case.base is not None:
            detail = (
                f"{self.session.revision_kernels} has no {case.baseline_key} that compiles for {case.arch}"
            )
            return Judgement(reason=Reason.NOT_IN_REVISION, detail=detail)
        store = self.session.baselines
        if store is None:
            return Judgement(reason=Reason.BASELINES_OFF, detail="--perf-baseline none")
        shown = store.static_name(case.arch)
        if store.static(case.arch) is None:
            return Judgement(
                reason=Reason.NO_FILE, detail=f"{shown} does not exist; record it: pytest --update-baselines"
            )
        return Judgement(
            reason=Reason.NO_ENTRY,
            detail=f"{shown} has no entry for {case.baseline_key}; "
            f"record it: pytest '{nodeid}' --arch {case.arch} --update-baselines",
        )

    # -- recording ------------------------------------------------------------------------------------

    def _record(
        self, case: CompileCase, current: CaseFacts, toolchain: dict[str, str], store: BaselineStore
    ) -> str:
        """Record a case; return what was done, for people, or "" when there was nothing to do.

        Raises:
            Rejected: something of it is unknown, or it is worse than what is stored, without --reason.
            BaselineError: the file cannot be used or written.
        """
        settings = self.session.settings
        shown = store.static_name(case.arch)
        note = ""

        def renew(entry: StaticEntry | None) -> StaticEntry | None:
            nonlocal note
            renewed = StaticEntry(facts=current, toolchain=toolchain, provenance=self._provenance())
            same_code = entry is not None and entry.facts.runs_the_same(current)
            if entry is not None and same_code and entry.facts.source == current.source:
                # Of the same code, another version may have counted other operations, or none.
                recounted = _is_counted(current) and _counted(current) != _counted(entry.facts)
                facts = current if recounted else entry.facts
                if entry.toolchain == toolchain and not recounted:
                    return None
                what = "executed operations" if recounted else "the same code from another toolchain"
                note = f"{what}, noted in {shown}"
                return replace(renewed, facts=facts)
            if current.missing:
                raise Rejected("; ".join(current.missing))
            if entry is None:
                note = f"compiled kernels recorded in {shown}"
                return renewed
            comparison = compare(entry.facts, current, arch=case.arch, margin=settings.static_margin)
            worse = comparison.of(Effect.WORSE)
            if worse and settings.reason is None:
                raise Rejected(f"{worse[0].text} is worse; give --reason TEXT to accept that")
            doubtful = [change for change in comparison.changes if change.needs_reason]
            if doubtful and not comparison.of(Effect.BETTER) and settings.reason is None:
                raise Rejected(f"{doubtful[0].text} alone is no improvement; give --reason TEXT to record it")
            lines = [f"{change.effect}: {change.text}" for change in comparison.changes]
            note = "\n    ".join([f"{case.baseline_key} for {case.arch}: recorded anew in {shown}", *lines])
            return renewed

        store.record_static(case.arch, case.baseline_key, renew)
        return note

    def _provenance(self) -> dict[str, str]:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        return {**provenance(self.session.checkout.commit, self.session.settings.reason), "at": at}


def _counted(facts: CaseFacts) -> tuple[object, ...]:
    return facts.torch_bytes, *(launch.executed for launch in facts.launches)


def _is_counted(facts: CaseFacts) -> bool:
    return any(counts is not None for counts in _counted(facts))


_NOT_COMPILED = "there is no compiled kernel, see the gate compile"


def _judge_code(
    baseline: CaseFacts, current: CaseFacts, comparison: StaticComparison, toolchain_changes: Sequence[str]
) -> Judgement:
    if baseline.runs_the_same(current):
        return Judgement(reason=Reason.UNCHANGED)
    other = ""
    if toolchain_changes:
        same = "same source" if baseline.source == current.source else "other source, too"
        other = f"{same}, other toolchain ({'; '.join(toolchain_changes)})"
    worse, better = comparison.of(Effect.WORSE), comparison.of(Effect.BETTER)
    if worse:
        by_compiler = toolchain_changes and baseline.source == current.source
        reason = Reason.WORSE_COMPILER if by_compiler else Reason.WORSE_CODE
        return Judgement(
            reason=reason, detail="; ".join([change.text for change in worse] + [other] * bool(other))
        )
    if comparison.unknown:
        why = [*current.missing]
        if "executed" in comparison.unknown:
            why.append("what it executes depends on data, or cannot be counted, so no time is predicted")
        detail = f"not compared: {', '.join(comparison.unknown)}: {'; '.join(why)}"
        return Judgement(reason=Reason.INCOMPLETE, detail=detail)
    if better:
        return Judgement(
            reason=Reason.BETTER_CODE,
            detail="; ".join([change.text for change in better] + [other] * bool(other)),
        )
    return Judgement(reason=Reason.NOT_WORSE, detail=other)
