"""The pool of the tuner and the comparison: one task's accident is no other's."""

from multiprocessing import connection
from types import SimpleNamespace

import pytest

from tests.tools import toy_processes
from tools.gpu_runs import processes
from tools.gpu_runs.processes import Outcome, Pool


def outcomes(pool, tasks, **options):
    return dict(pool.run(tasks, **options))


@pytest.fixture
def clock(monkeypatch):
    """Time as the pool sees it: it passes when a test says so."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_what_dies_raises_breaks_or_hangs_is_one_task(clock, monkeypatch):
    tasks = ["ok", "die", "ok", "raise", "ok", "break", "ok", "hang", "ok"]

    def wait_unless_it_hangs(pipes, timeout):
        del timeout
        if tasks[pool._places[0].task or 0] == "hang":
            clock.now += 3
            return []
        return connection.wait(pipes)

    monkeypatch.setattr(processes, "wait", wait_unless_it_hangs)
    with Pool(1, toy_processes.start, task_seconds=2.0) as pool:
        results = outcomes(pool, tasks)
    assert sorted(results) == [*range(len(tasks))]
    errors = {tasks[number]: outcome.error for number, outcome in results.items() if tasks[number] != "ok"}
    assert errors == {
        "die": "its process died (exit code 7)",
        "raise": "ValueError: no such thing",
        "break": "the GPU is gone",
        "hang": "not done after 2 s",
    }
    pids = [results[number].value for number in range(0, len(tasks), 2)]
    assert pids[1] == pids[2]  # an exception is no reason to start again
    assert len({*pids}) == 4


def test_processes_work_at_once_or_as_few_as_asked(tmp_path):
    with Pool(2, toy_processes.start) as pool:
        first = outcomes(pool, [f"meet {tmp_path}"] * 2)
        assert len({outcome.value for outcome in first.values()}) == 2
        alone = outcomes(pool, [f"alone {tmp_path}/place"] * 20, at_once=1)
        assert all(outcome.error is None for outcome in alone.values())


def test_nothing_is_begun_after_the_end(clock):
    done = []
    with Pool(1, toy_processes.start) as pool:
        for number, _ in pool.run(["ok", "ok", "ok"], until=5.0):
            done.append(number)
            clock.now += 3.0
    assert done == [0, 1]


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
