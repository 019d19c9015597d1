"""Functions that run in forks: what comes back, and what does not."""

import importlib
import os
import signal
import sys
import threading
import time

import pytest

from pytest_cutile.tile.fork_server import ForkServer
from pytest_cutile.tile.forking import ForkDied, call_in_fork, describe_exit
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.verdicts import Reason

KEPT: list[int] = []


class NeedsArguments(Exception):  # noqa: N818 - reads as what happened
    """An exception that pickle alone cannot make anew."""

    def __init__(self, *, number: int) -> None:
        super().__init__(f"number {number}")
        self.number = number


def keep(number: int) -> int:
    KEPT.append(number)
    return len(KEPT)


def fail(number: int) -> None:
    raise NeedsArguments(number=number)


def skip_from_skip() -> None:
    try:
        pytest.skip("tired")
    except pytest.skip.Exception as skip:
        raise GateSkipped(Reason.SKIPPED, f"{skip}") from None


def end(status: int) -> None:
    os._exit(status)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def test_what_a_function_keeps_ends_with_its_fork():
    assert [call_in_fork(lambda: keep(1)) for _ in range(3)] == [1, 1, 1]
    assert KEPT == []


def test_exceptions_come_back_as_they_are_with_the_line_that_raised():
    with pytest.raises(NeedsArguments, match="number 7") as raised:
        call_in_fork(lambda: fail(7))
    assert raised.value.number == 7
    assert raised.traceback[-1].name == "fail"


def test_an_exception_whose_context_cannot_travel_comes_back():
    with pytest.raises(GateSkipped, match="tired") as raised:
        call_in_fork(skip_from_skip)
    assert raised.value.reason is Reason.SKIPPED


def test_what_cannot_be_pickled_comes_back_as_text():
    def fail_oddly() -> None:
        error = ValueError("odd")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(RuntimeError, match="ValueError: odd"):
        call_in_fork(fail_oddly)


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [(lambda: end(3), 3, "ended with status 3"), (kill, -signal.SIGSEGV, "ended by SIGSEGV")],
    ids=["exit", "signal"],
)
@pytest.mark.usefixtures("capfd")
def test_a_fork_that_ends_early_is_told(function, status, words):
    with pytest.raises(ForkDied, match=words) as died:
        call_in_fork(function)
    assert died.value.status == status


def test_the_exit_of_a_process_in_words():
    assert describe_exit(-9) == "ended by SIGKILL (Killed)"
    assert describe_exit(1) == "ended with status 1"


def load(name: str) -> bool:
    """Import a module; say whether it was loaded before."""
    was_loaded = name in sys.modules
    importlib.import_module(name)
    return was_loaded


class TestForkServer:
    @pytest.fixture
    def server(self):
        server = ForkServer(lambda request: request[0](*request[1:]))
        yield server
        server.close()

    def test_each_answer_begins_as_the_server_was_when_it_started(self, server):
        KEPT.append(5)
        try:
            assert [server.call((keep, 1)) for _ in range(3)] == [1, 1, 1]
        finally:
            KEPT.clear()

    def test_many_threads_may_ask(self, server):
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(server.call((abs, -n)))) for n in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(answers) == list(range(24))

    @pytest.mark.usefixtures("capfd")
    def test_errors_and_deaths_are_those_of_one_answer(self, server):
        with pytest.raises(NeedsArguments, match="number 2"):
            server.call((fail, 2))
        with pytest.raises(ForkDied, match="SIGSEGV"):
            server.call((kill,))
        assert server.call((abs, -1)) == 1

    def test_what_a_fork_imports_the_next_one_finds_loaded(self, server):
        assert "tabnanny" not in sys.modules
        assert not server.call((load, "tabnanny"))
        deadline = time.monotonic() + 60
        while not server.call((load, "tabnanny")):  # the server imports while requests wait
            assert time.monotonic() < deadline
