"""Checks what a launcher that tunes may choose, and not only what it chooses here.

Where launches are interpreted, this process forks at the launcher's search, once for each configuration. The
fork goes on as if that one were the fastest, and says how the check ends. What a launcher keeps of its choice
is kept in the fork alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from pytest_cutile.correctness.errors import KernelMismatch, with_facts
from pytest_cutile.tile.compiler import CompileError, cutile
from pytest_cutile.tile.compiler.trace.tuning import NoConfigurationWorks, Search
from pytest_cutile.tile.forking import ForkDied, answer_and_exit, can_fork, fork, wait_for_answer
from pytest_cutile.tile.interpreter.faults import KernelFault, NotInterpreted
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.quantities import counted

if TYPE_CHECKING:
    from pytest_cutile.correctness.report import CheckReport

MOST = 16
"""Configurations that are checked unasked, besides the one that the launcher chooses."""


@dataclass(frozen=True, kw_only=True)
class ConfigurationOutcome:
    """How the check of one configuration ended; right, if nothing is said."""

    rejected: str = ""
    """Why the configuration does not compile."""
    unchecked: str = ""
    """Why nobody knows whether the configuration is right."""
    error: Exception | None = None
    """What is wrong."""

    @property
    def is_right(self) -> bool:
        return not (self.rejected or self.unchecked or self.error)


class CheckedConfigurations:
    """What checks with other configurations than the chosen one have found."""

    def __init__(self) -> None:
        self.outcomes: dict[str, ConfigurationOutcome] = {}
        self.left_out = 0
        """Configurations that were not checked, because there are too many."""

    def leave_out(self, rejected: Mapping[str, CompileError]) -> None:
        """Leave out what tileiras rejects, as a search does; raise an error if no configuration is right."""
        if rejected and not any(outcome.is_right for outcome in self.outcomes.values()):
            raise next(iter(rejected.values()))
        self.outcomes.update({text: outcome_of(error) for text, error in rejected.items()})

    def told(self, report: CheckReport, searches: Sequence[Search]) -> CheckReport:
        """Return the report of a check with what is known of its launcher's configurations.

        Raises what is wrong with the first wrong one.
        """
        total = sum(len(search.configurations) for search in searches)
        for text, outcome in self.outcomes.items():
            if outcome.error is not None:
                raise with_configuration(outcome.error, text, total)
        right = sum(outcome.is_right for outcome in self.outcomes.values())
        return replace(
            report,
            tuning="; ".join(map(str, searches)),
            checked_configurations=right + 1 if right else 0,
            configurations=(*_remarks(self.outcomes.items()), *self._left_out()),
        )

    def _right_of_others(self) -> str:
        compiled = [outcome for outcome in self.outcomes.values() if not outcome.rejected]
        others = counted(len(compiled), "other configuration")
        return f"{sum(outcome.is_right for outcome in compiled)} of {others} right"

    def _left_out(self) -> Iterator[str]:
        if self.left_out:
            yield f"{counted(self.left_out, 'configuration')} not checked; --every-input checks all"


class EachConfiguration(CheckedConfigurations):
    """Makes an interpreted check with each configuration that its launcher may choose, in forks."""

    def __init__(self, *, most: Callable[[], float], begin_fork: Callable[[], None]) -> None:
        """Check at most `most()` configurations, asked when a check has begun, besides the chosen one."""
        super().__init__()
        self._most = most
        self._begin_fork = begin_fork
        self._writer: int | None = None
        """In a fork: where it says how its check ended."""

    def explore(self, text: str) -> bool:
        """Check a configuration in a fork of this process; return True in the fork."""
        if not can_fork() or len(self.outcomes) >= self._most():
            self.left_out += 1
            return False
        reader, writer = os.pipe()
        pid = fork()
        if pid == 0:
            os.close(reader)
            self._writer = writer
            self._begin_fork()
            return True
        os.close(writer)
        try:
            self.outcomes[text] = wait_for_answer(pid, reader)
        except ForkDied as died:
            self.outcomes[text] = ConfigurationOutcome(
                error=RuntimeError(f"the process that interpreted it {died}")
            )
        return False

    def run(self, check: Callable[[], CheckReport], searches: Callable[[], Sequence[Search]]) -> CheckReport:
        """Make a check, which forks where its launcher searches; each fork ends in here.

        Raises what the check raises, and what is wrong with the first wrong configuration.
        """
        try:
            report = check()
        except BaseException as error:
            if self._writer is not None:
                self._answer(outcome_of(error))
            if isinstance(error, KernelMismatch) and self.outcomes:
                fact = f"  with {searches()[0].chosen}; {self._right_of_others()}"
                error.args = (with_facts(f"{error}", fact),)
            raise
        if self._writer is not None:
            self._answer(ConfigurationOutcome())
        return report

    def _answer(self, outcome: ConfigurationOutcome) -> NoReturn:
        if self._writer is None:
            raise RuntimeError("this process is no fork")
        answer_and_exit(lambda: outcome, self._writer)


def _remarks(outcomes: Iterable[tuple[str, ConfigurationOutcome]]) -> Iterator[str]:
    for text, outcome in outcomes:
        if outcome.rejected:
            yield f"{text}: does not compile: {outcome.rejected}"
        if outcome.unchecked:
            yield f"{text}: not checked: {outcome.unchecked}"


def outcome_of(error: BaseException) -> ConfigurationOutcome:
    """Return how a check ended that raised; the error can be sent to another process."""
    if isinstance(error, NoConfigurationWorks) and error.__cause__ is not None:
        error = error.__cause__
    message = f"{error}".partition("\n")[0]
    if isinstance(error, CompileError):
        return ConfigurationOutcome(rejected=error.message.partition("\n")[0])
    if cutile.is_compile_error(error):  # of a launch on a GPU
        return ConfigurationOutcome(rejected=message)
    if isinstance(error, GateSkipped | NotInterpreted) or not isinstance(error, Exception):
        return ConfigurationOutcome(unchecked=message or type(error).__name__)
    if isinstance(error, KernelMismatch):
        error.output = error.changed = None  # tensors
    elif not isinstance(error, KernelFault):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return ConfigurationOutcome(error=error)


def with_configuration(error: Exception, text: str, total: int) -> Exception:
    """Return an error that says first with which configuration it came."""
    where = f"with {text}, one of {counted(total, 'configuration')} that the launcher chooses from"
    if isinstance(error, KernelMismatch):
        error.on_launch(where)  # the configuration is the cause, as a launch is
    elif isinstance(error, KernelFault):
        error.message = f"{where}: {error.message}"
    else:
        return RuntimeError(f"{where}: {error}")
    return error
