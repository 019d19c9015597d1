"""The gate `correct` on the CPU: launch code of one test is interpreted, and compiled for real as well."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.check.run import CheckReport, KernelMismatch
from pytest_cutile.compile import Compiled
from pytest_cutile.core.settings import CheckOn
from pytest_cutile.core.spec import Work
from pytest_cutile.core.toolchain import CompilerMissing
from pytest_cutile.core.verdicts import Reason
from pytest_cutile.gates.compiling import wait_for
from pytest_cutile.gates.engine import Blocked, Engine
from pytest_cutile.gpu.trees import named_tensors

if TYPE_CHECKING:
    from pytest_cutile.compile import CompileJob
    from pytest_cutile.interpret import Interpreter, Options
    from pytest_cutile.interpret.faults import KernelFault

RunLaunch = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Calls a launcher with its arguments and returns its outputs."""
Check = Callable[[RunLaunch], CheckReport]
"""Makes a check, given what runs the launcher."""

LARGEST_BYTES = 8 << 20
"""Size of all tensors of a case up to which it is interpreted unasked."""
LARGEST_FLOPS = 5e9
"""Likewise, its floating-point operations."""
TILES_TOLD = 12
"""Of those that a wrong element came from."""
TOO_LARGE = (
    f"more than {LARGEST_BYTES >> 20} MiB or {LARGEST_FLOPS / 1e9:.0f} GFLOP are interpreted only with "
    "--correct-on=interpreter"
)


class Interpreting:
    """Interprets what one test launches for one architecture.

    Args:
        engine: of this run.
        arch: the architecture.
        compiles: whether the real compiler has to accept what is interpreted.
    """

    def __init__(self, engine: Engine, arch: str, *, compiles: bool = True) -> None:
        self._engine = engine
        self._compiles = compiles
        self._arch = arch
        self._asked = engine.settings.interpretation
        self._interpreter: Interpreter | None = None
        self._blocked: Blocked | None = None
        self._compilations: dict[bytes, tuple[str, Future[Compiled]]] = {}
        """Names of kernels, and what comes of them, by their Tile IR."""
        self._launches = self._shown = 0
        self._unwritten: KernelFault | None = None
        self.faults: list[KernelFault] = []
        """Those that the test's launches raised where nobody expected them."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make launch code run on the CPU; inputs are to be made inside as well.

        Raises:
            Blocked: torch, cuda-tile or tileiras is not installed.
        """
        with ExitStack() as stack:
            try:
                self._enter(stack)
            except Blocked as blocked:
                self._blocked = blocked
                raise
            yield
            self._interpreter = None

    @property
    def is_active(self) -> bool:
        """Whether launch code runs on the CPU now."""
        return self._interpreter is not None

    def _enter(self, stack: ExitStack) -> None:
        if not _is_installed("torch"):
            raise Blocked(Reason.NO_GPU, "torch is not installed (pip install 'pytest-cutile[torch]')")
        from pytest_cutile.interpret import interpreting

        try:
            context = interpreting(self._arch, self._options(), seen=self._compile)
            self._interpreter = stack.enter_context(context)
            self._interpreter.on_fault = self._note_fault
        except CompilerMissing as error:
            raise self._no_interpreter(error) from error
        if self._engine.settings.xdist_worker or self._asked.correct_on is not CheckOn.INTERPRETER:
            stack.enter_context(_one_thread())

    def _no_interpreter(self, error: CompilerMissing) -> Blocked:
        return Blocked(Reason.NO_GPU, f"no GPU of {self._arch}, and no interpreter: {error}")

    def _options(self) -> Options:
        from pytest_cutile.interpret import Options

        return Options(
            only_block=self._asked.block, watch=() if self._asked.watch is None else (self._asked.watch,)
        )

    def _compile(self, job: CompileJob) -> None:
        """Start compiling what is about to be interpreted: what tileiras rejects must not pass."""
        self._launches += 1
        if self._compiles and job.bytecode not in self._compilations:
            self._compilations[job.bytecode] = job.kernel, self._engine.compiler.submit(job)

    def _note_fault(self, fault: KernelFault) -> None:
        if not is_unknown(fault) and not _is_expected():
            self.faults.append(fault)

    def wait_for_compiler(self) -> None:
        """Wait until the real compiler has accepted all that was interpreted.

        Raises:
            CompileError: it rejects a kernel.
        """
        started = time.monotonic()

        def show() -> None:
            left = [(name, future) for name, future in self._compilations.values() if not future.done()]
            name = left[0][0] if left else ""
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            waited = f"{time.monotonic() - started:.0f} s"
            if not any(future.running() for _, future in left):
                waited += ", behind other kernels"
            self._engine.progress(
                f"compiling {name}{more} for {self._arch} after its interpretation: {waited}"
            )

        futures = [future for _, future in self._compilations.values()]
        wait_for(futures, show)
        for future in futures:
            future.result()

    def check(self, check: Check, work: Work | None = None) -> CheckReport:
        """Make a check, in both orders of the blocks if that was asked for; then hear the compiler.

        Args:
            check: makes it, given what runs the launcher. Made inside `active`.
            work: what one launch does, if that is known.

        Raises:
            Blocked: too much work, nothing to interpret, an unknown operation, or one block alone was asked
                for.
            KernelMismatch: the result is wrong.
            KernelFault: the kernel did something wrong on its way.
            CompileError: cuda-tile or tileiras rejects the kernel.
        """
        __tracebackhide__ = True
        if self._blocked is not None:
            raise self._blocked
        if work is not None:
            self._refuse_large(work.bytes, work.flops)
        before = self._launches
        report = self._check_once(check)
        if self._asked.both_orders:
            with self._reversed():
                self._check_once(check, "with the last block first: ")
        self.wait_for_compiler()
        if self._launches == before and report.elements:
            raise Blocked(
                Reason.NOT_LAUNCHED,
                f"no GPU of {self._arch}, and no cuTile kernel was launched that could be interpreted",
            )
        return report

    def _check_once(self, check: Check, prefix: str = "") -> CheckReport:
        __tracebackhide__ = True
        try:
            return check(self._run)
        except KernelMismatch as mismatch:
            told = "" if mismatch.output is None else self._tell(check)
            explained = KernelMismatch(f"{prefix}{mismatch}{told}")
            explained.picture = mismatch.picture
            raise explained from None
        except CompilerMissing as error:
            raise self._no_interpreter(error) from error
        except Exception as error:
            if is_no_block(error):
                raise Blocked(Reason.ONE_BLOCK, f"{error}") from None
            fault = as_fault(error)
            if fault is None:
                raise
            if is_unknown(fault):
                raise Blocked(Reason.NOT_INTERPRETED, in_one_line(fault)) from None
            told = self._tell_writers(check) if fault is self._unwritten else ""
            fault.message = f"{prefix}{fault.message}{told}"
            raise

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a launcher; nobody has to poison memory for it, the interpreter knows what was written."""
        __tracebackhide__ = True
        tensors = named_tensors((tuple(args), dict(kwargs)), "input")
        self._refuse_large(sum(tensor.numel() * tensor.element_size() for _, tensor in tensors))
        try:
            outputs = fn(*args, **kwargs)
        finally:
            self.show_watched()
        if self._asked.block is not None:
            raise Blocked(Reason.ONE_BLOCK, f"only block {self._asked.block} was run, and nothing compared")
        for name, tensor in named_tensors(outputs, "output"):
            if self._interpreter is not None:
                try:
                    self._interpreter.check_written([tensor], [name])
                except Exception as error:
                    if (fault := as_fault(error)) is not None:
                        self._unwritten = fault
                        fault.kernel = fault.kernel or getattr(fn, "__qualname__", None) or type(fn).__name__
                    raise
        return outputs

    def _refuse_large(self, size_bytes: float, flops: float = 0.0) -> None:
        if self._asked.correct_on is CheckOn.INTERPRETER:
            return
        if size_bytes > LARGEST_BYTES or flops > LARGEST_FLOPS:
            raise Blocked(Reason.TOO_LARGE, f"no GPU of {self._arch}; {TOO_LARGE}")

    @contextmanager
    def _reversed(self) -> Iterator[None]:
        interpreter = self._interpreter
        if interpreter is None:
            raise RuntimeError("a check is made inside of `active`")
        options = interpreter.options
        interpreter.options = replace(options, reverse=True, one_by_one=True)
        try:
            yield
        finally:
            interpreter.options = options

    @contextmanager
    def _once_more(self) -> Iterator[Interpreter]:
        """Record all stores while a check is made once more, of which nothing else is to be seen.

        Nothing is recorded until something is wrong, because that takes time.
        """
        interpreter = self._interpreter
        if interpreter is None:
            raise RuntimeError("a check is made inside of `active`")
        options = replace(interpreter.options, trace_writes=True, find_nonfinite=True, watch=())
        shown = self._launches == self._shown
        faults = [*self.faults]
        with interpreter.under(options), contextlib.redirect_stdout(io.StringIO()):
            yield interpreter
        self.faults = faults
        if shown:
            self._shown = self._launches

    def _tell(self, check: Check) -> str:
        """Return where a NaN or Inf in the worst element of a wrong result was born, and who wrote it."""
        told: list[str] = []
        with self._once_more() as interpreter:
            try:
                check(_call)
            except KernelMismatch as mismatch:
                if mismatch.output is None:
                    return ""
                worst = mismatch.output[mismatch.index].item()
                nonfinite = interpreter.nonfinite
                if math.isnan(worst) and (origin := nonfinite.first("NaN")):
                    told += f"the first NaN that was stored: {origin}".splitlines()
                if math.isinf(worst) and (origin := nonfinite.first("Inf")):
                    told += f"the first Inf that was stored: {origin}".splitlines()
                with contextlib.suppress(LookupError):  # the host wrote it
                    trace = interpreter.trace_element(mismatch.output, mismatch.index)
                    head = f"{replace(trace, tiles=())}".splitlines()
                    tiles = f"{trace}".splitlines()[len(head) :]
                    if len(tiles) > TILES_TOLD:
                        tiles[TILES_TOLD:] = ["  ..."]
                    told += head + tiles
            except Exception:  # noqa: BLE001 - the failure that is explained matters more
                return ""
        return "".join(f"\n  {line}" for line in told)

    def _tell_writers(self, check: Check) -> str:
        """Return which lines and blocks stored into the output that is not written to its last element."""
        told = ""

        def run(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            nonlocal told
            outputs = fn(*args, **kwargs)
            for name, tensor in named_tensors(outputs, "output"):
                try:
                    recorded.check_written([tensor], [name])
                except Exception:
                    told = recorded.debugging.writers(tensor)
                    raise
            return outputs

        with self._once_more() as recorded:
            try:
                check(run)
            except Exception as error:  # noqa: BLE001 - whatever it is, the first run's fault is what matters
                if not told:
                    told = f"who wrote the rest is not known: {type(error).__name__}: {error}"
        return "".join(f"\n  {line}" for line in told.splitlines())

    def show_watched(self) -> None:
        """Print what was computed at the line that somebody watches, since the last time."""
        interpreter = self._interpreter
        if interpreter is None or self._asked.watch is None or self._shown == self._launches:
            return
        self._shown = self._launches
        print(f"\n{interpreter.watched}")  # noqa: T201 - asked for on the command line
        interpreter.debugging = type(interpreter.debugging)(interpreter.options)


def _call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return fn(*args, **kwargs)


# -- faults, known without importing the interpreter, which imports torch ------------------------------


def as_fault(error: BaseException | None) -> KernelFault | None:
    """Return `error` if it is the interpreter's."""
    faults = sys.modules.get("pytest_cutile.interpret.faults")
    return error if faults is not None and isinstance(error, faults.KernelFault) else None


def is_unknown(fault: KernelFault) -> bool:
    """Return whether a fault is not the kernel's: the interpreter lacks something."""
    return isinstance(fault, sys.modules["pytest_cutile.interpret.faults"].NotInterpreted)


def is_no_block(error: BaseException | None) -> bool:
    """Return whether a block was asked for that the grid does not have."""
    faults = sys.modules.get("pytest_cutile.interpret.faults")
    return faults is not None and isinstance(error, faults.NoSuchBlock)


def in_one_line(fault: KernelFault) -> str:
    """Return a fault with its place, but without the source text."""
    first = f"{fault}".partition("\n")[0]
    return f"{first} ({fault.location})" if fault.location is not None else first


def _is_expected() -> bool:
    """Return whether the code that runs is inside of a `pytest.raises`: it waits for what it will catch."""
    return any(
        type(each) is pytest.ExceptionInfo and getattr(each, "_excinfo", ()) is None
        for each in gc.get_objects()
    )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread.

    The tensors of small cases gain nothing from more, and threads that wait for each other take the cores
    from other processes: on two busy cores, two threads took five times as much of their time as one.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
