"""The gate `static`: is the compiled kernel as good as its baseline? It needs no GPU and has no noise."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pytest_cutile.baselines.entries import StaticEntry, environment_changes, provenance
from pytest_cutile.baselines.errors import BaselineError, Rejected
from pytest_cutile.gates.compile import CompilingGate
from pytest_cutile.gates.compiled_facts import compiled_facts, inspections, remarks_on_configurations
from pytest_cutile.gates.correct import check_as_selected
from pytest_cutile.gates.declared import compile_case_of, skip_if_wrong
from pytest_cutile.gates.known_faults import CompiledLaunch, FoundFault, find_known_faults
from pytest_cutile.gates.messages import static_message
from pytest_cutile.gates.outcome import GateFailed
from pytest_cutile.gates.user_code import FAILURES
from pytest_cutile.tile.compiler.toolchain import toolchain_versions
from pytest_cutile.tile.static.changes import Effect, StaticComparison
from pytest_cutile.tile.static.comparison import compare
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.results import StaticResult
from pytest_cutile.words.verdicts import Judgement, Reason, Verdict, strict_failure

if TYPE_CHECKING:
    from pytest_cutile.gates.base import RunningTest, Task
    from pytest_cutile.tile.compiler.traced import CompileCase
    from pytest_cutile.tile.static.facts import CaseFacts

_NOT_COMPILED = "there is no compiled kernel, see the gate compile"
_NO_CHANGES = StaticComparison(changes=(), unknown=())


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """A case beside its baseline."""

    judgement: Judgement
    entry: StaticEntry | None = None
    """None: there is no baseline."""
    comparison: StaticComparison = _NO_CHANGES
    toolchain_changes: Sequence[str] = ()


class StaticGate(CompilingGate):
    """Compares every case with its baseline."""

    result_type = StaticResult

    def prepare(self, tasks: Sequence[Task]) -> None:
        cases = [compile_case_of(self.session, task) for task in tasks]
        self.session.compilations.start(cases)
        inspections(self.session, [case for case in cases if self.session.compilations.is_traced(case)])

    def run(self, task: Task, test: RunningTest) -> None:
        """Compare a case with its baseline, and record it if that was asked for."""
        case = compile_case_of(self.session, task)
        check_as_selected(self.session, task, test.nodeid)
        try:
            skip_if_wrong(self.session, task.key, "compiled code")
        except GateSkipped as skipped:
            self.append(case, skipped.reason, skipped.detail)
            raise
        current = self._current(case)
        facts = msgspec.to_builtins(current) if self.session.settings.keeps_facts else None
        if faults := self._known_faults(case):
            error = faults[0].error(f"{case.baseline_key} for {case.arch}")
            self.append(case, error.reason, f"{error}".partition("\n")[0], facts=facts)
            raise error
        try:
            compared = self._compare(case, current, test.nodeid)
            is_recorded, note = self._record(case, current)
        except BaselineError as error:
            self.append(case, Reason.BAD_BASELINE, str(error), facts=facts)
            raise GateFailed(str(error), pytrace=False) from None
        failure = None if is_recorded else self._failure(case, current, compared)
        against = remarks_on_configurations(self.session, case)
        self.append(
            case,
            compared.judgement.reason,
            detail=compared.judgement.detail,
            changes=tuple(
                f"{change.effect}: {change.text}"
                for effect in Effect
                for change in compared.comparison.of(effect)
            ),
            toolchain="; ".join(compared.toolchain_changes),
            facts=facts,
            recorded=note if failure is None else "",
            tuning=f"{counted(len(against), 'configuration')} with a drawback" if against else "",
            configurations=against,
        )
        if failure is not None:
            raise GateFailed("\n\n".join(filter(None, (failure, note))), pytrace=False)

    def _known_faults(self, case: CompileCase) -> list[FoundFault]:
        launches = [
            CompiledLaunch(
                job=compilation.launch.job,
                parameters=compilation.launch.parameters,
                compiling=compilation.compiling,
            )
            for compilation in self.session.compilations.of(case)
        ]
        return find_known_faults(self.session, launches)

    def _entry(self, case: CompileCase) -> StaticEntry | None:
        """Return what a case is compared with: what is stored, or what the other revision compiles to now."""
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
        return [
            f"no time is predicted of {kernel}: what it executes could not be counted ({why})"
            for kernel, why in self.session.uncounted.items()
        ]

    # -- the gate -------------------------------------------------------------------------------------

    def _current(self, case: CompileCase) -> CaseFacts:
        try:
            return compiled_facts(self.session, case)
        except FAILURES as error:
            if ("compile", *case.key) in self.session.selected:
                self.append(case, Reason.NOT_COMPILED, _NOT_COMPILED)
                message = f"{error}".partition("\n")[0]
                raise GateSkipped(Reason.NOT_COMPILED, f"{_NOT_COMPILED}: {message}") from None
            self.append_failure(case, error)
            raise

    def _compare(self, case: CompileCase, current: CaseFacts, nodeid: str) -> _Compared:
        entry = self._entry(case)
        if entry is None:
            return _Compared(judgement=self._without_entry(case, nodeid))
        toolchain_changes = environment_changes(entry.toolchain, toolchain_versions())
        if entry.facts.runs_the_same(current):
            unchanged = Judgement(reason=Reason.UNCHANGED)
            return _Compared(judgement=unchanged, entry=entry, toolchain_changes=toolchain_changes)
        margin = self.session.settings.static_margin
        comparison = compare(entry.facts, current, arch=case.arch, margin=margin)
        return _Compared(
            judgement=_judge(entry.facts, current, comparison, toolchain_changes),
            entry=entry,
            comparison=comparison,
            toolchain_changes=toolchain_changes,
        )

    def _failure(self, case: CompileCase, current: CaseFacts, compared: _Compared) -> str | None:
        """Return the message that fails the test of a case that was not recorded; None if it passes."""
        judgement, store = compared.judgement, self.session.baselines
        if judgement.verdict is not Verdict.REGRESSION or compared.entry is None:
            strict = self.session.settings.strict
            return strict_failure(f"{case.baseline_key} {case.arch}", judgement, strict=strict)
        return static_message(
            key=case.baseline_key,
            arch=case.arch,
            entry=compared.entry,
            current=current,
            comparison=compared.comparison,
            toolchain=toolchain_versions(),
            baseline=f"{self.session.revision_kernels}" if store is None else store.static_name(case.arch),
        )

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

    @property
    def _records(self) -> bool:
        return self.session.settings.update_baselines and self.session.baselines is not None

    def _record(self, case: CompileCase, current: CaseFacts) -> tuple[bool, str]:
        """Record a case if that was asked for; return whether its baseline is up to date now, and a note."""
        settings, store = self.session.settings, self.session.baselines
        if store is None or not self._records:
            return False, ""
        made_by = provenance(self.session.checkout.commit, settings.reason)
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        new = StaticEntry(facts=current, toolchain=toolchain_versions(), provenance={**made_by, "at": at})
        shown, note = store.static_name(case.arch), ""

        def renew(stored: StaticEntry | None) -> StaticEntry | None:
            nonlocal note
            if stored is not None and _same_source(stored, new):
                renewed, what = _noted(stored, new)
                note = f"{what}, noted in {shown}" if what else ""
                return renewed
            if current.missing:
                raise Rejected("; ".join(current.missing))
            if stored is None:
                note = f"compiled kernels recorded in {shown}"
                return new
            comparison = compare(stored.facts, current, arch=case.arch, margin=settings.static_margin)
            if settings.reason is None:
                _refuse_worse(comparison)
            lines = [f"{change.effect}: {change.text}" for change in comparison.changes]
            note = "\n    ".join([f"{case.baseline_key} for {case.arch}: recorded anew in {shown}", *lines])
            return new

        try:
            store.record_static(case.arch, case.baseline_key, renew)
        except Rejected as rejected:
            return False, f"{case.baseline_key} for {case.arch}: not recorded: {rejected}"
        return True, note


def _same_source(stored: StaticEntry, new: StaticEntry) -> bool:
    return stored.facts.runs_the_same(new.facts) and stored.facts.source == new.facts.source


def _noted(stored: StaticEntry, new: StaticEntry) -> tuple[StaticEntry | None, str]:
    """Return the entry that replaces `stored`, of the same code, and what is new; None if nothing is."""

    def counts_of(facts: CaseFacts) -> tuple[object, ...]:
        return facts.torch_bytes, *(launch.executed for launch in facts.launches)

    # Another version of this package may have counted other operations of the same code, or none.
    counts = counts_of(new.facts)
    if counts != counts_of(stored.facts) and any(count is not None for count in counts):
        return new, "executed operations"
    if stored.toolchain != new.toolchain:
        return replace(new, facts=stored.facts), "the same code from another toolchain"
    return None, ""


def _refuse_worse(comparison: StaticComparison) -> None:
    """Raise Rejected unless a case is better than what is stored, or as good."""
    if worse := comparison.of(Effect.WORSE):
        raise Rejected(f"{worse[0].text} is worse; give --reason TEXT to accept that")
    doubtful = [change for change in comparison.changes if change.needs_reason]
    if doubtful and not comparison.of(Effect.BETTER):
        raise Rejected(f"{doubtful[0].text} alone is no improvement; give --reason TEXT to record it")


def _judge(
    baseline: CaseFacts, current: CaseFacts, comparison: StaticComparison, toolchain_changes: Sequence[str]
) -> Judgement:
    """Judge other code than the baseline's."""
    worse, better = comparison.of(Effect.WORSE), comparison.of(Effect.BETTER)
    same_source = baseline.source == current.source
    if not worse and comparison.unknown:
        why = [*current.missing]
        if "executed" in comparison.unknown:
            why.append("what it executes depends on data, or cannot be counted, so no time is predicted")
        detail = f"not compared: {', '.join(comparison.unknown)}: {'; '.join(why)}"
        return Judgement(reason=Reason.INCOMPLETE, detail=detail)
    details = [change.text for change in worse or better]
    if toolchain_changes:
        same = "same source" if same_source else "other source, too"
        details.append(f"{same}, other toolchain ({'; '.join(toolchain_changes)})")
    if worse:
        reason = Reason.WORSE_COMPILER if toolchain_changes and same_source else Reason.WORSE_CODE
    else:
        reason = Reason.BETTER_CODE if better else Reason.NOT_WORSE
    return Judgement(reason=reason, detail="; ".join(details))
