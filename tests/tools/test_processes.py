"""The pool of the tuner and the comparison: one task's accident is no other's."""

import time

import pytest

from tests.tools import toy_processes
from tools.gpu_runs.processes import Outcome, Pool


def outcomes(pool, tasks, **options):
    return dict(pool.run(tasks, **options))


def test_what_dies_raises_breaks_or_hangs_is_one_task():
    tasks = ["ok", "die", "ok", "raise", "ok", "break", "ok", "sleep 30", "ok"]
    with Pool(1, toy_processes.start, task_seconds=2.0) as pool:
        found = outcomes(pool, tasks)
    assert sorted(found) == [*range(len(tasks))]
    errors = {tasks[number]: outcome.error for number, outcome in found.items() if tasks[number] != "ok"}
    assert errors == {
        "die": "its process died (exit code 7)",
        "raise": "ValueError: no such thing",
        "break": "the GPU is gone",
        "sleep 30": "not done after 2 s",
    }
    pids = [found[number].value for number in range(0, len(tasks), 2)]
    assert pids[1] == pids[2]  # an exception is no reason to start again
    assert len({*pids}) == 4


def test_processes_work_at_once_or_as_few_as_asked():
    with Pool(2, toy_processes.start) as pool:
        first = outcomes(pool, ["sleep 0.2"] * 4)
        assert len({outcome.value for outcome in first.values()}) == 2
        alone = outcomes(pool, ["sleep 0.05"] * 3, at_once=1)
        assert all(outcome.error is None for outcome in alone.values())


def test_nothing_is_begun_after_the_end():
    with Pool(1, toy_processes.start) as pool:
        assert outcomes(pool, ["ok"])[0].error is None  # it has started
        found = outcomes(pool, ["sleep 0.3", "ok"], until=time.monotonic() + 0.1)
    assert [*found] == [0]


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (toy_processes.start_never, "the process did not start: RuntimeError: process 0 has no GPU"),
        (toy_processes.start_dead, "its process died (exit code 1)"),
    ],
)
def test_processes_that_never_start_fail_every_task(start, said):
    with Pool(1, start) as pool:
        assert outcomes(pool, ["ok", "ok"]) == dict.fromkeys([0, 1], Outcome(error=said))
