"""Which tasks need not run: those whose case compiles and is launched as its baseline says."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.compiler.compilations import CompileCase
from pytest_cutile.gates.base import Task
from pytest_cutile.gates.declared import compiled_case
from pytest_cutile.revisions.modules import RevisionError
from pytest_cutile.session import Session


def unchanged(session: Session, tasks: Mapping[str, Task], *, start_at: float = 0.0) -> set[str]:
    """Return the node ids of the tasks whose code and launches are the baseline's, or the other revision's.

    `start_at` says where in the list to begin compiling, as a fraction: processes that begin at different
    places and share a cache share the work.

    Raises:
        BaselineError: the baselines cannot be used.
        RevisionError: a module of the revision to compare with cannot be imported.
    """
    cases = {key: compiled_case(session, task) for key, task in tasks.items() if task.case.runs_on(task.arch)}
    baselines = [case.base() for case in cases.values() if case.base is not None]
    wanted = [*cases.values(), *(case for case in baselines if case is not None)]
    first = int(len(wanted) * start_at)
    session.compilations.start([*wanted[first:], *wanted[:first]])
    return {key for key, case in cases.items() if is_unchanged(session, case)}


def is_unchanged(session: Session, case: CompileCase) -> bool:
    """Return whether a case compiles to what its baseline says; False when nobody can know.

    Raises:
        BaselineError: the baselines cannot be used.
        RevisionError: the other revision's module cannot be imported.
    """
    try:
        if case.base is not None:
            baseline = case.base()
            fingerprint = session.compilations.fingerprint(baseline) if baseline is not None else None
        else:
            store = session.baselines
            entry = store.static_entry(case.arch, case.baseline_key) if store is not None else None
            fingerprint = entry.facts.fingerprint if entry is not None else None
        return fingerprint is not None and session.compilations.fingerprint(case) == fingerprint
    except (BaselineError, RevisionError):
        raise
    except Exception:  # noqa: BLE001 - what does not compile has to be seen: its tests stay
        return False
