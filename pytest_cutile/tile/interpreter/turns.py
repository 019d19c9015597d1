"""Runs blocks that may wait for each other: one at a time, and while one waits, the others.

Each block has a thread, of which only one runs at any moment. A block is waiting when a loop of it has
changed nothing. It goes on when memory has changed; if nobody can go on and no block is left to start,
nobody ever will.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch

from pytest_cutile.tile.interpreter.machine import Machine

MOST_BLOCKS = 1024
"""Blocks of a launch up to which they may run in any order: all but one may have to wait at once."""

T = TypeVar("T")


class _Cancelled(BaseException):
    """Unwinds a block that waits after another one has failed."""


class _Block(Generic[T]):
    """One block, which runs whenever it is resumed until it waits or ends."""

    def __init__(self, machine: Machine, run: Callable[[T], None], argument: T) -> None:
        self.seen = -1
        """How often memory had changed when it began to wait."""
        self.ended = False
        self.error: BaseException | None = None
        self._machine = machine
        self._work = run, argument
        self._iterations: list[int] = []
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._alone = self._cancelled = False
        self._thread = threading.Thread(target=self._main, daemon=True)

    def resume(self, *, alone: bool = False) -> None:
        """Let it run until it waits or ends; `alone`: nobody else will change anything."""
        self._alone = alone
        self._machine.iterations = self._iterations
        self._machine.wait = self._wait
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._paused.acquire()

    def cancel(self) -> None:
        self._cancelled = True
        self._go.release()
        self._thread.join()

    def _main(self) -> None:
        run, argument = self._work
        try:
            with torch.no_grad():
                run(argument)
        except _Cancelled:
            return
        except BaseException as error:  # noqa: BLE001 - raised in the thread that launches
            self.error = error
        self.ended = True
        self._paused.release()

    def _wait(self) -> bool:
        if self._alone:
            return False
        self.seen = self._machine.memory.changes
        self._paused.release()
        self._go.acquire()
        if self._cancelled:
            raise _Cancelled
        return not self._alone


def take_turns(machine: Machine, run: Callable[[T], None], arguments: Iterable[T]) -> None:
    """Call `run` with each of the arguments, one block each, in this order as far as they do not wait.

    Raises:
        KernelFault: a block did something wrong, or waits for what no block does.
    """
    waiting: list[_Block[T]] = []

    def resume(block: _Block[T], *, alone: bool = False) -> None:
        block.resume(alone=alone)
        if block.error is not None:
            raise block.error
        if block.ended and block in waiting:
            waiting.remove(block)
        elif not block.ended and block not in waiting:
            waiting.append(block)

    def resume_who_may_go_on() -> None:
        while ready := [block for block in waiting if block.seen != machine.memory.changes]:
            resume(ready[0])

    try:
        for argument in arguments:
            resume(_Block(machine, run, argument))
            resume_who_may_go_on()
        while waiting:
            resume(waiting[0], alone=True)
            resume_who_may_go_on()
    finally:
        for block in waiting:
            if not block.ended:
                block.cancel()
