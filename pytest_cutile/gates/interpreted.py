"""The gate `correct` on the CPU: a test's launches are interpreted, and compiled by the real compiler."""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.compiler import Compiled
from pytest_cutile.compiler.compilations import wait_for
from pytest_cutile.compiler.toolchain import CompilerMissing
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.errors import GateSkipped
from pytest_cutile.interpreter.faults import KernelFault, NoSuchBlock, NotInterpreted, UnwrittenOutput
from pytest_cutile.interpreter.options import Options
from pytest_cutile.session import Session
from pytest_cutile.settings import CheckOn
from pytest_cutile.spec import Work
from pytest_cutile.verdicts import Reason

if TYPE_CHECKING:
    from pytest_cutile.compiler import CompileJob
    from pytest_cutile.interpreter import Run

RunLaunch = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Calls a launcher with its arguments and returns its outputs."""
Check = Callable[[RunLaunch], CheckReport]
"""Makes a check, given what runs the launcher."""

LARGEST_BYTES = 8 << 20
"""Size of all tensors of a case up to which it is interpreted unasked."""
LARGEST_FLOPS = 5e9
"""Floating-point operations of a case up to which it is interpreted unasked."""
SHOWN_TILES = 12
"""Lines of tiles that a wrong element came from."""
TOO_LARGE = (
    f"more than {LARGEST_BYTES >> 20} MiB or {LARGEST_FLOPS / 1e9:.0f} GFLOP are interpreted only with "
    "--correct-on=interpreter"
)


class Interpreting:
    """Interprets what one test launches for one architecture.

    Args:
        session: of this run.
        arch: the architecture.
        compiles: whether the real compiler has to accept what is interpreted.
    """

    def __init__(self, session: Session, arch: str, *, compiles: bool = True) -> None:
        self._session = session
        self._compiles = compiles
        self._arch = arch
        self._asked = session.settings.interpretation
        self._active_run: Run | None = None
        self._skipped: GateSkipped | None = None
        self._compilations: dict[bytes, tuple[str, Future[Compiled]]] = {}
        """Kernel name and compilation, by Tile IR."""
        self._expected: list[BaseException] = []
        """What `pytest.raises` has caught."""
        self._faults: list[KernelFault] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make launch code run on the CPU; inputs are to be made inside as well.

        Raises:
            GateSkipped: torch, cuda-tile or tileiras is not installed.
        """
        with ExitStack() as stack:
            try:
                self._enter(stack)
            except GateSkipped as skipped:
                self._skipped = skipped
                raise
            yield
            self._active_run = None

    @property
    def is_active(self) -> bool:
        """Whether launch code runs on the CPU now."""
        return self._active_run is not None

    def _enter(self, stack: ExitStack) -> None:
        try:
            from pytest_cutile.interpreter import interpret
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise GateSkipped(
                Reason.NO_GPU, "torch is not installed (pip install 'pytest-cutile[torch]')"
            ) from error
        asked = self._asked
        options = Options(
            only_block=asked.block,
            watch=() if asked.watch is None else (asked.watch,),
            poison_padding=asked.poison_padding,
            check_races=asked.check_races,
        )
        try:
            run = stack.enter_context(interpret(self._arch, options, on_export=self._compile))
        except CompilerMissing as error:
            raise self._no_interpreter(error) from error
        self._active_run, self._faults = run, run.faults
        stack.enter_context(_collecting_expected(self._expected))
        if self._session.settings.xdist_worker or asked.correct_on is not CheckOn.INTERPRETER:
            stack.enter_context(_one_thread())

    @property
    def _run(self) -> Run:
        if self._active_run is None:
            raise RuntimeError("a check is made inside of `active`")
        return self._active_run

    def _no_interpreter(self, error: CompilerMissing) -> GateSkipped:
        return GateSkipped(Reason.NO_GPU, f"no GPU of {self._arch}, and no interpreter: {error}")

    def swallowed_faults(self) -> list[KernelFault]:
        """Return the faults of launches that the test caught, other than by `pytest.raises`."""
        expected = {id(error) for caught in self._expected for error in _chain(caught)}
        return [
            fault
            for fault in self._faults
            if not isinstance(fault, NotInterpreted) and id(fault) not in expected
        ]

    # -- the real compiler ----------------------------------------------------------------------------

    def _compile(self, job: CompileJob) -> None:
        """Start compiling what is about to be interpreted: what tileiras rejects must not pass."""
        if self._compiles and job.bytecode not in self._compilations:
            self._compilations[job.bytecode] = job.kernel, self._session.compiler.submit(job)

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
            self._session.progress(
                f"compiling {name}{more} for {self._arch} after its interpretation: {waited}"
            )

        futures = [future for _, future in self._compilations.values()]
        wait_for(futures, show)
        for future in futures:
            future.result()

    # -- the check ------------------------------------------------------------------------------------

    def check(self, check: Check, work: Work | None = None) -> CheckReport:
        """Make a check, in both orders of the blocks if asked, and wait for the real compiler.

        Args:
            check: makes it, given what runs the launcher. Made inside `active`.
            work: what one launch does, if that is known.

        Raises:
            GateSkipped: too much work, nothing to interpret, an unknown operation, or one block was asked
                for.
            KernelMismatch: the result is wrong.
            KernelFault: the kernel did something wrong on its way.
            CompileError: cuda-tile or tileiras rejects the kernel.
        """
        __tracebackhide__ = True
        if self._skipped is not None:
            raise self._skipped
        if work is not None:
            self._refuse_large(work.bytes, work.flops)
        before = len(self._run.launches)
        report = self._check_once(check)
        if self._asked.both_orders:
            with self._run.using(replace(self._run.options, reverse=True, one_by_one=True)):
                self._check_once(check, "with the last block first: ")
        self.wait_for_compiler()
        if len(self._run.launches) == before and report.elements:
            raise GateSkipped(
                Reason.NOT_LAUNCHED,
                f"no GPU of {self._arch}, and no cuTile kernel was launched that could be interpreted",
            )
        return report

    def _check_once(self, check: Check, prefix: str = "") -> CheckReport:
        __tracebackhide__ = True
        try:
            return check(self._launch)
        except KernelMismatch as mismatch:
            explained = KernelMismatch(f"{prefix}{mismatch}{self._explain_wrong_element(check, mismatch)}")
            explained.picture = mismatch.picture
            raise explained from None
        except CompilerMissing as error:
            raise self._no_interpreter(error) from error
        except NoSuchBlock as error:
            raise GateSkipped(Reason.ONE_BLOCK, f"{error}") from None
        except NotInterpreted as fault:
            raise GateSkipped(Reason.NOT_INTERPRETED, fault.in_one_line()) from None
        except KernelFault as fault:
            writers = self._explain_unwritten(check) if isinstance(fault, UnwrittenOutput) else ""
            fault.message = f"{prefix}{fault.message}{writers}"
            raise

    def _launch(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a launcher; the interpreter knows what was written, so that no memory is poisoned here."""
        __tracebackhide__ = True
        from pytest_cutile.tensors.trees import named_tensors

        tensors = named_tensors((tuple(args), dict(kwargs)), "input")
        self._refuse_large(sum(tensor.numel() * tensor.element_size() for _, tensor in tensors))
        try:
            outputs = fn(*args, **kwargs)
        finally:
            self.show_watched()
        if self._asked.block is not None:
            raise GateSkipped(
                Reason.ONE_BLOCK, f"only block {self._asked.block} was run, and nothing compared"
            )
        self._check_written(fn, outputs)
        return outputs

    def _check_written(self, fn: Callable[..., Any], outputs: Any) -> None:
        __tracebackhide__ = True
        from pytest_cutile.tensors.trees import named_tensors

        named = list(named_tensors(outputs, "output"))
        try:
            self._run.check_written([tensor for _, tensor in named], [name for name, _ in named])
        except UnwrittenOutput as fault:
            fault.kernel = fault.kernel or getattr(fn, "__qualname__", None) or type(fn).__name__
            raise

    def _refuse_large(self, size_bytes: float, flops: float = 0.0) -> None:
        if self._asked.correct_on is CheckOn.INTERPRETER:
            return
        if size_bytes > LARGEST_BYTES or flops > LARGEST_FLOPS:
            raise GateSkipped(Reason.TOO_LARGE, f"no GPU of {self._arch}; {TOO_LARGE}")

    def show_watched(self) -> None:
        """Print what was computed at the line that is watched, since the last time."""
        run = self._active_run
        if run is None or self._asked.watch is None or not run.recording.launches:
            return
        print(f"\n{run.watched}")  # noqa: T201 - asked for on the command line
        run.forget()

    # -- why a check failed ---------------------------------------------------------------------------

    @contextmanager
    def _recorded(self) -> Iterator[Run]:
        """Record all stores while a failed check is made once more, and show nothing else of it.

        Recording takes time, so that only failures are recorded.
        """
        run = self._run
        faults = len(run.faults)
        options = replace(run.options, trace_writes=True, find_nonfinite=True, watch=())
        with run.using(options), contextlib.redirect_stdout(io.StringIO()):
            yield run
        del run.faults[faults:]

    def _explain_wrong_element(self, check: Check, mismatch: KernelMismatch) -> str:
        """Return the origin of a NaN or Inf in the worst element of a wrong result, and who wrote it."""
        if mismatch.output is None:
            return ""
        lines: list[str] = []
        with self._recorded() as run:
            try:
                check(_call)
            except KernelMismatch as again:
                if again.output is None:
                    return ""
                worst = again.output[again.index].item()
                if math.isnan(worst) and (origin := run.nonfinite.first("NaN")):
                    lines += f"the first NaN that was stored: {origin}".splitlines()
                if math.isinf(worst) and (origin := run.nonfinite.first("Inf")):
                    lines += f"the first Inf that was stored: {origin}".splitlines()
                with contextlib.suppress(LookupError):  # the host wrote it
                    trace = run.trace_element(again.output, again.index)
                    head = f"{replace(trace, tiles=())}".splitlines()
                    tiles = f"{trace}".splitlines()[len(head) :]
                    if len(tiles) > SHOWN_TILES:
                        tiles[SHOWN_TILES:] = ["  ..."]
                    lines += head + tiles
            except Exception:  # noqa: BLE001 - the failure that is explained matters more
                return ""
        return "".join(f"\n  {line}" for line in lines)

    def _explain_unwritten(self, check: Check) -> str:
        """Return which lines and blocks stored into the output that is not written to its last element."""

        def launch(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            outputs = fn(*args, **kwargs)
            self._check_written(fn, outputs)
            return outputs

        writers = ""
        with self._recorded() as run:
            try:
                check(launch)
            except UnwrittenOutput as again:
                writers = run.writers(again.tensor)
            except Exception as error:  # noqa: BLE001 - the fault that is explained matters more
                writers = f"who wrote the rest is not known: {type(error).__name__}: {error}"
        return "".join(f"\n  {line}" for line in writers.splitlines())


def _call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return fn(*args, **kwargs)


@contextmanager
def _collecting_expected(caught: list[BaseException]) -> Iterator[None]:
    """Collect what `pytest.raises` catches: it fills an `ExceptionInfo` with each such exception."""
    fill = pytest.ExceptionInfo.fill_unfilled

    def fill_and_collect(info: Any, exc_info: Any) -> None:
        fill(info, exc_info)
        caught.append(exc_info[1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest.ExceptionInfo, "fill_unfilled", fill_and_collect)
        yield


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it, also in groups."""
    while error is not None:
        yield error
        for member in getattr(error, "exceptions", ()):
            yield from _chain(member)
        error = error.__cause__ or error.__context__


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
