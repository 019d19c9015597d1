"""Runs the compiler as a process, and says how the process ended: its status, its text, its memory."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_cutile.tile.forking import STARTING

_FIRST_POLL_S, _LONGEST_POLL_S = 0.0005, 0.02
_PROC = Path("/proc")
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""What a container may have and has: control groups of version 2 and 1."""
_ENOUGH = 0.25
"""Share of all memory that has to be free for a killed process not to have run out of it."""


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """What is known of memory, in bytes; None: the system does not say."""

    peak: int | None = None
    """The most that the process had, when it was last looked at."""
    least_free: int | None = None
    """The least that the machine had available while the process ran."""
    total: int | None = None
    """What the machine has, or the container may have."""

    @property
    def is_enough(self) -> bool:
        """Say whether memory is known not to have been short."""
        return (
            self.least_free is not None
            and self.total is not None
            and (self.least_free > _ENOUGH * self.total)
        )


@dataclass(frozen=True, kw_only=True)
class FinishedProcess:
    """A process that ended."""

    status: int
    """The exit status; -n for a process that signal n ended."""
    output: bytes
    """What the process printed, to either stream."""
    was_stopped: bool
    """Whether the process was killed here, because its time was over."""
    memory: ProcessMemory = ProcessMemory()


def run_process(command: Sequence[str], env: Mapping[str, str], *, timeout_s: float) -> FinishedProcess:
    """Run `command` to its end, or stop it after `timeout_s` seconds.

    Raises:
        OSError: the program cannot be started.
    """
    deadline, poll_s, was_stopped = time.monotonic() + timeout_s, _FIRST_POLL_S, False
    # A file, not a pipe: what the process leaves running cannot keep a file open for this one.
    with tempfile.TemporaryFile() as printed:
        with STARTING:
            process = subprocess.Popen(  # noqa: S603 - no shell
                command, env=env, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT
            )
        peak, least_free = 0, _available_bytes()
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    was_stopped = True
                    break
                peak = max(peak, _peak_bytes(process.pid))
                least_free = _least(least_free, _available_bytes())
                time.sleep(poll_s)
                poll_s = min(2 * poll_s, _LONGEST_POLL_S)
        finally:
            process.kill()  # does nothing to a process that has ended
            process.wait()
        printed.seek(0)
        return FinishedProcess(
            status=process.returncode,
            output=printed.read(),
            was_stopped=was_stopped,
            memory=ProcessMemory(peak=peak or None, least_free=least_free, total=_total_bytes()),
        )


def _least(*sizes: int | None) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def _peak_bytes(pid: int) -> int:
    return _kib(_PROC / f"{pid}" / "status", "VmHWM") or 0


def _available_bytes() -> int | None:
    return _least(
        _kib(_PROC / "meminfo", "MemAvailable"), *(limit - used for limit, used in _cgroup_figures())
    )


def _total_bytes() -> int | None:
    limits = (limit for limit, _ in _cgroup_figures())
    return _least(_kib(_PROC / "meminfo", "MemTotal"), *limits)


def _cgroup_figures() -> Iterator[tuple[int, int]]:
    """Yield limit and use of the control group, in bytes."""
    for limit, used in _CGROUPS:
        with suppress(OSError, ValueError):  # no such group, or "max"
            yield int(limit.read_text(encoding="ascii")), int(used.read_text(encoding="ascii"))


def _kib(file: Path, name: str) -> int | None:
    """Return a figure of one of Linux's tables, in bytes; None where there is no such table."""
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="ascii", errors="replace").splitlines():
            title, _, value = line.partition(":")
            if title == name:
                return int(value.split()[0]) * 1024
    return None
