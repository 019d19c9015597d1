"""What is reported of a test whose process ended, or was ended, before it could report by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_cutile.gates import gate_of
from pytest_cutile.verdicts import Reason

if TYPE_CHECKING:
    import pytest

    from pytest_cutile.results import Result
    from pytest_cutile.session import Session

_MEASURING, _CHECKING = "perf", "check_kernel"


def crash_results(item: pytest.Item, session: Session, reason: Reason, detail: str) -> list[Result]:
    """Return the results of a test that ended with its process: one for each gate that it would have asked."""
    from pytest_cutile.pytest_parts.reproduce import arch_of
    from pytest_cutile.results import CorrectResult, Result, SpeedResult, names_of_test

    types = {subclass.__struct_config__.tag: subclass for subclass in Result.__subclasses__()}
    task = getattr(item, "task", None)
    if task is not None:
        kinds = [types[task.gate]]
        key, kernel, case = task.key, task.spec.name, task.case_name
    else:
        names = getattr(item, "fixturenames", ())
        by_fixture = {_CHECKING: CorrectResult, _MEASURING: SpeedResult}
        kinds = [kind for fixture, kind in by_fixture.items() if fixture in names]
        key, (kernel, case) = item.nodeid, names_of_test(item.nodeid)
    device = session.gpu.device
    common = {
        "kernel": kernel,
        "case": case,
        "arch": arch_of(item, session),
        "verdict": reason.verdict,
        "reason": reason,
        "detail": detail,
        "gpu": "" if device is None else device.name,
    }
    if any(issubclass(kind, CorrectResult) for kind in kinds):
        session.checked[key] = Reason.UNCHECKED
    return [kind(key=key, **common) for kind in kinds]


def result_of_lost(nodeid: str, reason: Reason, detail: str, known: Result | None) -> Result:
    """Return the result of a test of which only the id is left, and perhaps another gate's result.

    For the process that controls others: it has collected nothing. Without a gate in the id, the test may
    have measured; the result is that of the gate `speed`.
    """
    from pytest_cutile.results import Result, names_of_test

    types = {subclass.__struct_config__.tag: subclass for subclass in Result.__subclasses__()}
    gate = gate_of(nodeid)
    kernel, case = names_of_test(nodeid)
    key = nodeid
    if gate:
        case = case.removeprefix(f"{gate}[").removesuffix("]")
        key = f"{kernel}[{case}]"
    return types.get(gate, types["speed"])(
        key=known.key if known else key,
        kernel=known.kernel if known else kernel,
        case=known.case if known else case,
        arch=known.arch if known else "",
        gpu=known.gpu if known else "",
        verdict=reason.verdict,
        reason=reason,
        detail=detail,
    )


def crash_message(item: pytest.Item, what: str) -> str:
    """Return the message that fails a test: which case, and how its process ended."""
    task = getattr(item, "task", None)
    name = item.nodeid if task is None else task.key
    return (
        f"{name}: {what}\n"
        "  All other cases are judged as if this had not happened.\n"
        "  Does its launcher end the process, or call native code that crashes? faulthandler (on unless "
        "-p no:faulthandler) prints the Python stack of a crash."
    )
