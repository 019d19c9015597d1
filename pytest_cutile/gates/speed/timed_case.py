"""A declared case as the gate `speed` measures it, today and as of git revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_cutile.gates.compiled_facts import compiled_facts
from pytest_cutile.gates.correct import check_as_selected, check_task, make_inputs
from pytest_cutile.gates.declared import (
    call_of,
    compile_case,
    compiled_at,
    declared_at,
    is_compiled,
    launcher_at,
    recorded_at,
    skip_if_wrong,
)
from pytest_cutile.gates.speed.case import Launcher, SpeedCase
from pytest_cutile.tile.compiler.compilations import NothingLaunched
from pytest_cutile.tile.compiler.source import declaration_digest
from pytest_cutile.tile.static.comparison import compare
from pytest_cutile.tile.tensors.seeded import timed_seed
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.spec import Case, KernelSpec, ModelSpec, Work

if TYPE_CHECKING:
    from pytest_cutile.gates.base import Task
    from pytest_cutile.gates.session import Session
    from pytest_cutile.tile.compiler.traced import CompileCase
    from pytest_cutile.timing.measure.call import Call


def declared_speed_case(session: Session, task: Task, nodeid: str, *, sampled: bool) -> SpeedCase:
    """Return what is measured of a task; with `sampled`, its check compares a few parts of a large case.

    Its `work` is left empty: what one launch does, the user's code says.
    """
    spec = task.spec
    return _DeclaredCase(
        key=task.key,
        check_key=task.key,
        kernel=spec.name,
        case=task.case.name,
        nodeid=nodeid,
        arch=task.arch,
        module=task.module,
        work=Work(),
        session=session,
        task=task,
        sampled=sampled,
    )


@dataclass(frozen=True, kw_only=True)
class _DeclaredCase(SpeedCase):
    session: Session
    task: Task
    sampled: bool

    def call(self) -> Call:
        spec, case = self.task.spec, self.task.case
        inputs = make_inputs(self.session, self.task, seed=timed_seed(spec, case), signed_rows=False)
        call = call_of(spec.launch, inputs)
        if isinstance(spec, ModelSpec):  # which keeps what it has read
            return replace(call, is_stateful=True)
        options = spec.check_options(case)
        return replace(call, writes=tuple(options.writes), is_stateful=bool(options.mutates))

    def is_deterministic(self) -> bool:
        """Blocks that do not communicate leave the same bits each time; of torch operations nobody knows."""
        if not is_compiled(self.task):
            return False
        from pytest_cutile.tile.interpreter.launch import communicates

        compilations = self.session.compilations
        try:
            jobs = [compilation.launch.job for compilation in compilations.of(self._compiled)]
        except Exception:  # noqa: BLE001 - the gate compile reports it
            return False
        return not (compilations.torch_bytes(self._compiled) or any(map(communicates, jobs)))

    def check(self) -> None:
        session, key = self.session, self.check_key
        if not check_as_selected(session, self.task, self.nodeid):
            check_task(session, self.task, self.nodeid, sampled=self.sampled)
            return
        skip_if_wrong(session, key, "speed")
        if (unchecked := session.checked[key]) is not None:
            raise GateSkipped(unchecked, "its result is not checked: see the gate correct")

    def launcher_at(self, revision: str) -> Launcher | None:
        return launcher_at(self.session, self.task, revision)

    def fingerprint(self, revision: str) -> str:
        if not is_compiled(self.task):
            return ""
        compiled = recorded_at(self.session, self.task, revision) if revision else self._compiled
        return "" if compiled is None else self.session.compilations.speed_fingerprint(compiled)

    def source(self, revision: str) -> str:
        declared = self._declared(revision)
        if declared is None:
            return ""
        spec, case = declared
        return declaration_digest([spec.launch, spec.inputs], case.params)

    @property
    def _compiled(self) -> CompileCase:
        return compile_case(self.task.spec, self.task.case, self.task.arch)

    def _declared(self, revision: str) -> tuple[KernelSpec, Case] | None:
        """Return the kernel and case as a revision declares them; None if it does not."""
        if not revision:
            return self.task.spec, self.task.case
        return declared_at(self.session, self.task, revision)

    def shared_file(self, revision: str) -> str:
        if not is_compiled(self.task):
            return ""
        compiled = recorded_at(self.session, self.task, revision)
        return "" if compiled is None else self.session.compilations.shared_file(compiled)

    def compiled_otherwise(self, revision: str) -> Sequence[str]:
        task = self.task
        if not is_compiled(task):
            return super().compiled_otherwise(revision)
        compiled = compiled_at(self.session, task, revision)
        if compiled is None:
            return ()
        try:
            baseline, now = (compiled_facts(self.session, one) for one in (compiled, self._compiled))
        except NothingLaunched:
            return ["not compared: it launches no cuTile kernel"]
        if baseline.fingerprint == now.fingerprint:
            return ["the machine code and its launches are the same: look at torch operations and inputs"]
        changes = compare(baseline, now, arch=task.arch, margin=self.session.settings.static_margin).changes
        return [f"{change.effect}: {change.text}" for change in changes]
