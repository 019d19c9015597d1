"""What is reported of a test whose process ended, or was ended, before it could report by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from _pytest.runner import CallInfo

from pytest_cutile.gates import gate_of
from pytest_cutile.pytest_parts.failure import Place
from pytest_cutile.pytest_parts.reporting import PROPERTY
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    import pytest

    from pytest_cutile.gates.session import Session
    from pytest_cutile.words.results import Result

PHASES = ("setup", "call", "teardown")
_MEASURING, _CHECKING = "perf", "check_kernel"


@dataclass(frozen=True, kw_only=True)
class Crash:
    """How the process of a test ended."""

    nodeid: str
    reason: Reason
    """`Reason.CRASH` or `Reason.HANG`."""
    what: str
    """What happened, and what is known of where: "its process ended by SIGSEGV (Segmentation fault)"."""


def reports_of_crash(
    item: pytest.Item, session: Session, crash: Crash, *, phases: Sequence[str] = PHASES
) -> list[pytest.TestReport]:
    """Return the reports of a test that ended its process: of its `phases`, the call has failed.

    With the first phase missing, it has been reported; with the call missing, too, the teardown fails.
    """
    from pytest_cutile.gates.outcome import GateFailed

    message = _message(item, crash)

    def fail() -> None:
        failure = GateFailed(message, pytrace=False)
        failure.place = Place(str(item.path), (item.location[1] or 0) + 1, f"in {item.name}")
        raise failure

    failing = "call" if "call" in phases else phases[0]
    item.user_properties += [
        (PROPERTY, result.to_builtins())
        for result in crash_results(item, session, crash.reason, message.partition("\n")[0])
    ]
    reports = []
    for phase in phases:
        call: Any = CallInfo.from_call(fail if phase == failing else _nothing, when=phase)  # type: ignore[arg-type]
        reports.append(item.ihook.pytest_runtest_makereport(item=item, call=call))
    return reports


def _nothing() -> None:
    pass


def crash_results(item: pytest.Item, session: Session, reason: Reason, detail: str) -> list[Result]:
    """Return the results of a test that ended its process: one for each gate that it would have asked."""
    from pytest_cutile.pytest_parts.reproduce import arch_of
    from pytest_cutile.words.results import CorrectResult, SpeedResult, names_of_test

    task = getattr(item, "task", None)
    if task is not None:
        kinds = [_result_type(task.gate)]
        key, kernel, case = task.key, task.spec.name, task.case_name
    else:
        names = getattr(item, "fixturenames", ())
        by_fixture: dict[str, type[Result]] = {_CHECKING: CorrectResult, _MEASURING: SpeedResult}
        kinds = [kind for fixture, kind in by_fixture.items() if fixture in names]
        key, (kernel, case) = item.nodeid, names_of_test(item.nodeid)
    device = session.gpu.device
    if CorrectResult in kinds:
        session.checked[key] = Reason.UNCHECKED
    return [
        kind(
            key=key,
            kernel=kernel,
            case=case,
            arch=arch_of(item, session),
            verdict=reason.verdict,
            reason=reason,
            detail=detail,
            gpu="" if device is None else device.name,
        )
        for kind in kinds
    ]


def result_of_lost(nodeid: str, reason: Reason, detail: str, known: Result | None) -> Result:
    """Return the result of a test of which only the id is left, and perhaps another gate's result.

    For a process that has collected nothing. A test without a gate in its id counts as one that measures.
    """
    from pytest_cutile.words.results import names_of_test

    gate = gate_of(nodeid)
    kernel, case = names_of_test(nodeid)
    key = nodeid
    if gate:
        case = case.removeprefix(f"{gate}[").removesuffix("]")
        key = f"{kernel}[{case}]"
    return _result_type(gate if gate and gate != "search" else "speed")(
        key=known.key if known else key,
        kernel=known.kernel if known else kernel,
        case=known.case if known else case,
        arch=known.arch if known else "",
        gpu=known.gpu if known else "",
        verdict=reason.verdict,
        reason=reason,
        detail=detail,
    )


def _result_type(gate: str) -> type[Result]:
    from pytest_cutile.words.results import Result

    return {str(kind.__struct_config__.tag): kind for kind in Result.__subclasses__()}[gate]


def _message(item: pytest.Item, crash: Crash) -> str:
    """Return the message that fails a test: which case, how its process ended, and what to do."""
    task = getattr(item, "task", None)
    name = item.nodeid if task is None else task.key
    lines = [f"{name}: {crash.what}", "  All other cases go on in another process."]
    if crash.reason is Reason.HANG:
        lines.append(
            "  Which loop waits? Interpreted, a kernel that waits for ever is told with its line: "
            "--correct-on=interpreter. Longer launches are allowed by the ini option cutile_launch_seconds."
        )
    else:
        lines.append(
            "  A Python stack of the crash, if there is one, is in this run's output (faulthandler). "
            "An access outside of memory is found by --sanitize=memcheck."
        )
    return "\n".join(lines)
