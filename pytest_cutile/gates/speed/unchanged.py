"""Which tasks need not run: those whose case compiles and is launched as its baseline says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.gates.declared import compile_case_of, is_compiled
from pytest_cutile.gates.revisions.modules import RevisionError
from pytest_cutile.gates.revisions.paired import shared_kernels

if TYPE_CHECKING:
    from pytest_cutile.gates.base import Task
    from pytest_cutile.gates.session import Session
    from pytest_cutile.tile.compiler.traced import CompileCase


def unchanged(session: Session, tasks: Mapping[str, Task], *, start_at: float = 0.0) -> set[str]:
    """Return the node ids of the tasks whose code and launches are the baseline's, or the other revision's.

    `start_at` says where in the list to begin compiling, as a fraction: processes that begin at different
    places and share a cache share the work.

    Raises:
        BaselineError: the baselines cannot be used.
        RevisionError: a module of the revision to compare with cannot be imported.
    """
    cases = {
        key: compile_case_of(session, task)
        for key, task in tasks.items()
        if task.case.runs_on(task.arch) and is_compiled(task)
    }
    baselines = [case.base() for case in cases.values() if case.base is not None]
    wanted = [*cases.values(), *(case for case in baselines if case is not None)]
    first = int(len(wanted) * start_at)
    session.compilations.start([*wanted[first:], *wanted[:first]])
    return {key for key, case in cases.items() if is_unchanged(session, case)}


def is_unchanged(session: Session, case: CompileCase) -> bool:
    """Return whether a case compiles to what its baseline says; False when nobody can know."""
    try:
        compilations = session.compilations
        if case.base is not None:
            baseline = case.base()
            if baseline is None or shared_kernels(*map(compilations.kernel_functions, (case, baseline))):
                return False
            return compilations.speed_fingerprint(baseline) == compilations.speed_fingerprint(case)
        store = session.baselines
        entry = store.static_entry(case.arch, case.baseline_key) if store is not None else None
        if entry is None or compilations.fingerprint(case) != entry.facts.fingerprint:
            return False
        return entry.facts.torch_bytes in {None, compilations.torch_bytes(case)}
    except (BaselineError, RevisionError):
        raise
    except Exception:  # noqa: BLE001 - what does not compile has to be seen: its tests stay
        return False
