"""What a run asks its fresh processes, and what they answer: by files in one folder, a message in each.

For process 1 the run writes `1.requests.json`, the process `1.begun` (the case that it measures now) and
`1.measured.jsonl` (a line for each case), and its server `1.ended` when the process has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from pytest_cutile.gates.speed.case import Request
from pytest_cutile.timing.measure.call import MeasurementFailed
from pytest_cutile.words.timing import Measurement
from pytest_cutile.words.verdicts import Reason

_Message = TypeVar("_Message")


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """A case was measured."""

    key: str
    measurement: Measurement
    """Without its platform, which the run knows."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A case could not be measured."""

    key: str
    reason: Reason
    error: str


Answer: TypeAlias = Timed | Failed


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What one fresh process answered."""

    answers: list[Answer] = []
    """Case by case."""
    problem: str = ""
    """What went wrong, if the process did not answer all requests."""

    def read(self, like: Mapping[str, Measurement]) -> dict[str, Measurement | MeasurementFailed]:
        """Return what was measured of cases, by key; what failed says why.

        Args:
            like: the first measurements of these cases, by key; answers may be about others, too.
        """
        measured = {one.key: _read(one, like[one.key]) for one in self.answers if one.key in like}
        for key in like.keys() - measured.keys():
            message = f"{key}: the fresh process that was to measure it again did not"
            text = f"{message}: {self.problem}" if self.problem else message
            measured[key] = MeasurementFailed(Reason.NOT_TIMED, text)
        return measured


def _read(answer: Answer, like: Measurement) -> Measurement | MeasurementFailed:
    if isinstance(answer, Failed):
        return MeasurementFailed(answer.reason, answer.error)
    return replace(answer.measurement, device=like.device, work=like.work, platform=like.platform)


def write_message(path: Path, message: object) -> None:
    """Write a message for another process, which finds all of it or nothing."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(msgspec.json.encode(message))
    unfinished.rename(path)


def read_message(path: Path, message_type: type[_Message]) -> _Message | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=message_type)
    except FileNotFoundError:
        return None


def take_message(path: Path, message_type: type[_Message]) -> _Message | None:
    message = read_message(path, message_type)
    if message is not None:
        path.unlink()
    return message


@dataclass(frozen=True)
class ProcessFiles:
    """How a run and one of its fresh processes talk."""

    folder: Path
    number: int

    def ask(self, requests: Mapping[str, Request]) -> None:
        write_message(self._path("requests.json"), requests)

    def requests(self) -> dict[str, Request] | None:
        return read_message(self._path("requests.json"), dict[str, Request])

    def answer(self, answer: Answer) -> None:
        with self._path("measured.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(answer) + b"\n")

    def begin(self, key: str) -> None:
        write_message(self._path("begun"), key)

    def begun(self) -> str:
        """Return the key of the case that a fresh process began last; "" if it began none."""
        return read_message(self._path("begun"), str) or ""

    def answers(self) -> list[Answer]:
        """Return what a fresh process has answered so far; skip a line that it could not finish."""
        path = self._path("measured.jsonl")
        answers: list[Answer] = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with contextlib.suppress(msgspec.DecodeError):
                answers.append(msgspec.json.decode(line, type=Answer))
        return answers

    def end(self, exit_code: int) -> None:
        write_message(self._path("ended"), exit_code)

    def exit_code(self) -> int | None:
        return read_message(self._path("ended"), int)

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.number}.{name}"


class RequestedCases:
    """The cases that this fresh process is to measure; each is answered once."""

    def __init__(self, requests: Mapping[str, Request], files: ProcessFiles) -> None:
        self.requests = requests
        """By the key of the case."""
        self._files = files
        self._open = set(requests)
        self.running = ""
        """The key of the case that is measured now."""

    def begin(self, key: str) -> None:
        """Say which case is measured next: measuring it may end this process."""
        self.running = key
        self._files.begin(key)

    def answer(self, answer: Answer) -> None:
        """Write the answer at once: measuring the next case may end this process."""
        self._open.discard(answer.key)
        self._files.answer(answer)

    def answer_rest(self, nodeid: str, problem: str) -> None:
        """Say why nothing was measured of the cases of a test that has ended."""
        for key in sorted(self._open):
            if self.requests[key].nodeid == nodeid:
                self.answer(Failed(key=key, reason=Reason.NOT_TIMED, error=f"{key}: {problem}"))
