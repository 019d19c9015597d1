"""Tells a compiler that is at fault from a kernel that the compiler rejects."""

from __future__ import annotations

import copy
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_cutile.tile.compiler.job import CompileError, CompileJob
from pytest_cutile.tile.compiler.process import FinishedProcess, ProcessMemory
from pytest_cutile.words.verdicts import Reason

_ELF = b"\x7fELF"
_SHELLS_SIGNAL = 128
"""A shell that started the compiler reports signal n as exit status 128 + n."""
_CRASH_MARKS = ("Stack dump:", "PLEASE submit a bug report", "LLVM ERROR:")
"""What LLVM prints of its own crashes, whatever the exit status is."""
_NO_REASON = "failed to compile Tile IR program"
"""All that tileiras 13.4.92 prints where it fails, or its ptxas crashes, without another word."""
_ERROR = re.compile(r"\berror:", re.IGNORECASE)
_SHOWN_LINES = 8
_GIB, _MIB = 2**30, 2**20


class CompilerFault(CompileError):  # noqa: N818 - reads as a state in reports
    """tileiras crashed, or failed without a reason: nothing says that the kernel is at fault."""

    reason = Reason.COMPILER_FAULT

    def __init__(
        self,
        headline: str,
        *,
        facts: Sequence[str] = (),
        crashed: bool = True,
        kernel: str = "",
        arch: str = "",
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(headline, kernel=kernel, arch=arch, file=file, line=line)
        self.crashed = crashed
        """Otherwise the compiler failed and gave no reason."""
        self.facts = tuple(facts)
        """What is known of the fault, a line for each."""

    @property
    def headline(self) -> str:
        return self.message

    def with_fact(self, fact: str) -> CompilerFault:
        """Return the same error with one more fact; who else waits for the compilation does not see it."""
        other = copy.copy(self)
        other.facts = (*self.facts, fact)
        return other

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {fact}" for fact in self.facts)])


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a compiler did that says nothing of the kernel."""

    how: str
    """"segmentation fault (SIGSEGV)", "exit status 0, and no cubin"."""
    crashed: bool = True
    """Otherwise the compiler failed and gave no reason."""
    memory: str = ""
    """Memory of the machine, if the compiler was killed."""

    def headline(self, where: str) -> str:
        verb = "crashed" if self.crashed else "failed without a reason"
        return f"tileiras {verb} {where}: {self.how}"

    def facts(self, tried: str, printed: str) -> Iterator[str]:
        """Yield what there is to say beside the headline, with the options `tried`."""
        if self.memory:
            yield self.memory
        yield f"tried: {tried}"
        if not self.crashed:
            yield "a compiler that rejects a kernel says why: nothing here says that the kernel is wrong"
        elif not self.memory:
            yield "no kernel may crash a compiler: nothing here says that the kernel is wrong"
        lines = [line for line in printed.splitlines() if line.strip()]
        if lines:
            yield "it printed:"
            yield from (f"  {line}" for line in lines[:_SHOWN_LINES])
        if len(lines) > _SHOWN_LINES:
            yield f"  ... {len(lines) - _SHOWN_LINES} more lines"

    def error(self, job: CompileJob, *, tried: str, printed: str) -> CompilerFault:
        """Return the error of a compiler that was given `job`, with the options `tried`."""
        return CompilerFault(
            self.headline(f"on {job.kernel} for {job.arch} (-O{job.opt_level})"),
            facts=[*self.facts(tried, printed)],
            crashed=self.crashed,
            kernel=job.kernel,
            arch=job.arch,
            file=job.file,
            line=job.line,
        )


def fault_of(ended: FinishedProcess, cubin: bytes) -> Fault | None:
    """Return the fault of a compiler that ended so and wrote `cubin`; None: it compiled, or gave a reason.

    A reason is a message in readable text that says more than that compiling failed.
    """
    number = -ended.status if ended.status < 0 else ended.status - _SHELLS_SIGNAL
    if (name := _signal_name(number)) is not None:
        return Fault(how=name, memory=_memory_words(ended.memory) if number == signal.SIGKILL else "")
    status, printed = f"exit status {ended.status}", text_of(ended.output)
    if ended.status == 0:
        wrote = f"{len(cubin)} bytes that are no cubin" if cubin else "no cubin"
        return None if cubin.startswith(_ELF) else Fault(how=f"{status}, and {wrote}")
    if any(mark in printed for mark in _CRASH_MARKS):
        return Fault(how=f"{status}, with a report of its own crash")
    if not _is_text(ended.output) and not _ERROR.search(printed):
        return Fault(how=f"{status}, and what it printed is no text (not UTF-8)")
    if reason_in(printed):
        return None
    said = f'only "{_NO_REASON}"' if printed.strip() else "nothing printed"
    return Fault(how=f"{status}, {said}", crashed=False)


def reason_in(printed: str) -> str:
    """Return what a compiler printed but for the line that says no more than that it failed."""
    lines = (line for line in printed.splitlines() if _ERROR.sub("", line).strip() != _NO_REASON)
    return "\n".join(lines).strip()


def text_of(output: bytes) -> str:
    return output.decode(errors="backslashreplace")


def _is_text(output: bytes) -> bool:
    try:
        output.decode()
    except UnicodeDecodeError:
        return False
    return True


def _signal_name(number: int) -> str | None:
    """Return a signal in words, as "segmentation fault (SIGSEGV)"; None: there is no such signal."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return None
    words = (signal.strsignal(number) or "").partition(" (")[0].lower()
    return f"{words} ({name})" if words else name


def _memory_words(memory: ProcessMemory) -> str:
    parts = [
        f"tileiras had taken {_size(memory.peak)}" if memory.peak else "",
        f"there are {_size(memory.total)}" if memory.total else "",
        f"at the least {_size(memory.least_free)} were free" if memory.least_free is not None else "",
    ]
    known = "; ".join(filter(None, parts))
    seen = f" ({known})" if known else ""
    if memory.is_enough:
        return f"that mostly means out of memory, but memory was not short{seen}: something else killed it"
    return f"most likely it ran out of memory{seen}; `taskset -c 0 pytest ...` compiles one kernel at a time"


def _size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / _MIB:.0f} MiB"
