"""The gate `correct` on the CPU: a test's launches are interpreted, and compiled by the real compiler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.errors import SECOND_LAUNCH, WHICH_LAUNCH, KernelMismatch
from pytest_cutile.correctness.guards.launching import (
    Interpreted,
    LauncherCall,
    Launching,
    call_launcher,
)
from pytest_cutile.correctness.signatures import function_name
from pytest_cutile.gates.explained import (
    CheckWith,
    WrongElement,
    add_origin,
    tensors_of,
    why_unwritten,
)
from pytest_cutile.gates.known_faults import CompiledLaunch, find_known_faults
from pytest_cutile.gates.tuned import MOST, EachConfiguration
from pytest_cutile.tile.compiler import Compiled, CompileError, export
from pytest_cutile.tile.compiler.compilations import wait_for
from pytest_cutile.tile.compiler.toolchain import CompilerMissing
from pytest_cutile.tile.compiler.trace.tuning import NoConfigurationWorks, Tuning
from pytest_cutile.tile.interpreter.faults import KernelFault, NoSuchBlock, NotInterpreted, UnwrittenOutput
from pytest_cutile.tile.interpreter.options import Options
from pytest_cutile.words.errors import NO_TORCH, GateSkipped
from pytest_cutile.words.settings import CheckOn
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    from pytest_cutile.correctness.report import CheckReport
    from pytest_cutile.gates.session import Session
    from pytest_cutile.tile.compiler import CompileJob, Launch
    from pytest_cutile.tile.interpreter.api import Run
    from pytest_cutile.tile.interpreter.contribution import Contribution
    from pytest_cutile.words.spec import Work

LARGEST_BYTES = 8 << 20
"""Size of all tensors of a case up to which it is interpreted unasked."""
LARGEST_FLOPS = 5e9
"""Floating-point operations of a case up to which it is interpreted unasked."""
TOO_LARGE = (
    f"more than {LARGEST_BYTES >> 20} MiB or {LARGEST_FLOPS / 1e9:.0f} GFLOP are interpreted only with "
    "--correct-on=interpreter"
)


_LAST_FIRST = "with the last block first"
_REVERSED = 2
"""Number of the launch of a check that is interpreted with the last block first."""


class Interpreting:
    """Interprets what one test launches for one architecture; the real compiler has to accept that, too."""

    def __init__(self, session: Session, arch: str, *, compiles: bool = True) -> None:
        self._session = session
        self._compiles = compiles
        self._arch = arch
        self._asked = session.settings.interpretation
        self._active_run: Run | None = None
        self._tuning = Tuning(accepts=self._accept)
        self._candidates: dict[bytes, str] = {}
        """The configuration of each exported kernel that a launcher tries."""
        self._launched_bytes = 0
        """Size of the largest launch's tensors."""
        self._compilations: dict[Future[Compiled], CompileJob] = {}
        self._launched: list[CompiledLaunch] = []
        """Launches in which no known fault of tileiras has been looked for."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make launch code run on the CPU; inputs are to be made inside as well."""
        try:
            from pytest_cutile.tile.interpreter.api import interpret
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise GateSkipped(Reason.NO_GPU, NO_TORCH) from error
        asked = self._asked
        options = Options(
            only_block=asked.block,
            watch=() if asked.watch is None else (asked.watch,),
            poison_padding=asked.poison_padding,
            check_races=asked.check_races,
        )
        with ExitStack() as stack:
            try:
                run = stack.enter_context(
                    interpret(
                        self._arch, options, on_export=self._compile, takes_cpu=False, tuning=self._tuning
                    )
                )
            except CompilerMissing as error:
                raise self._no_interpreter(error) from error
            self._active_run = run
            yield
            self._active_run = None

    @property
    def is_active(self) -> bool:
        return self._active_run is not None

    @property
    def _run(self) -> Run:
        if self._active_run is None:
            raise RuntimeError("a check is made inside of `active`")
        return self._active_run

    def _no_interpreter(self, error: CompilerMissing) -> GateSkipped:
        return GateSkipped(Reason.NO_GPU, f"no GPU of {self._arch}, and no interpreter: {error}")

    def swallowed_faults(self, test_file: Path) -> Iterator[KernelFault]:
        """Yield the faults that neither the test nor this package caught, but a launcher, say."""
        for fault in self._run.faults:
            if isinstance(fault, NotInterpreted) or fault.__traceback__ is None:
                continue
            catcher = fault.__traceback__.tb_frame  # a traceback begins where the exception was caught
            own = catcher.f_globals.get("__name__", "").startswith("pytest_cutile.")
            if not own and Path(catcher.f_code.co_filename) != test_file:
                yield fault

    # -- the real compiler ----------------------------------------------------------------------------

    def _compile(self, job: CompileJob, launch: Launch) -> None:
        """Start compiling what is about to be interpreted: what tileiras rejects must not pass."""
        if self._compiles:
            compiling = self._session.compiler.submit(job)
            from pytest_cutile.tile.compiler.parameters import parameters_of  # it imports torch

            parameters = parameters_of(launch)
            self._launched.append(CompiledLaunch(job=job, parameters=parameters, compiling=compiling))
            self._compilations.setdefault(compiling, job)

    def wait_for_compiler(self) -> None:
        """Wait until the real compiler has accepted all that was interpreted."""
        started = time.monotonic()

        def show() -> None:
            jobs = (job for future, job in self._compilations.items() if not future.done())
            name = next((job.kernel for job in jobs), "")
            waited = f"{time.monotonic() - started:.0f} s"
            self._session.progress(f"compiling {name} for {self._arch} after its interpretation: {waited}")

        wait_for(self._compilations, show)
        for future in self._compilations:
            future.result()

    def refuse_known_faults(self, where: str) -> None:
        """Raise Miscompiled if tileiras is known to compile a launch wrongly; `where` names the test."""
        launched, self._launched = self._launched, []
        for fault in find_known_faults(self._session, launched):
            raise fault.error(f"{where} for {self._arch}")

    def _accept(self, launch: Launch) -> None:
        """Export what a launcher tries; raises what cuda-tile says against it."""
        self._candidates[export(launch, self._arch).bytecode] = launch.candidate

    def _take_rejected(self) -> dict[str, CompileError]:
        """Wait for what a launcher has tried; return what tileiras says against which configuration.

        A search leaves these out: they are not waited for again.
        """
        for launch in () if self._tuning.loops is None else self._tuning.loops.marked():
            if launch.candidate:
                self._accept(launch)
        tried = {
            future: job for future, job in self._compilations.items() if job.bytecode in self._candidates
        }
        rejected: dict[str, CompileError] = {}
        for future, job in tried.items():
            error = future.exception()
            if isinstance(error, CompileError):
                rejected[self._candidates[job.bytecode]] = error
                del self._compilations[future]
        return rejected

    # -- the check ------------------------------------------------------------------------------------

    def interpret(
        self, check_with: CheckWith, work: Work | None = None, *, each_configuration: bool = False
    ) -> CheckReport:
        """Make a check whose launches are interpreted, and wait for the real compiler.

        With `each_configuration` the check is made with others, too, that a launcher which tunes may choose.

        Raises what `gate_correct` lists.
        """
        if not self.is_active:
            with self.active():
                return self.interpret(check_with, work, each_configuration=each_configuration)
        if work is not None:
            self._refuse_large(work.bytes, work.flops)
        before = len(self._run.launches)
        configurations = EachConfiguration(
            most=partial(self._most_configurations, work), begin_fork=self._begin_fork
        )
        asks = each_configuration and self._asked.block is None and self._asked.watch is None
        self._tuning.begin(configurations.explore if asks else None)
        report = configurations.run(lambda: self._interpret_once(check_with), self._tuning.found)
        if self._asked.both_orders:
            with self._run.using(replace(self._run.options, reverse=True, one_by_one=True)):
                self._interpret_once(check_with, f"{_LAST_FIRST}: ")
        if self._tuning.found():
            configurations.leave_out(self._take_rejected())
        self.wait_for_compiler()
        report = configurations.told(report, self._tuning.found())
        if len(self._run.launches) == before and report.elements:
            raise GateSkipped(
                Reason.NOT_LAUNCHED,
                f"no GPU of {self._arch}, and no cuTile kernel was launched that could be interpreted",
            )
        return report

    def _most_configurations(self, work: Work | None) -> float:
        """Return how many more configurations may be checked, so that a case stays as small as others."""
        if self._session.settings.every_input:
            return math.inf
        size = max(self._launched_bytes, 0 if work is None else work.bytes, 1)
        flops = 1.0 if work is None else max(work.flops, 1.0)
        return min(MOST, LARGEST_BYTES / size - 1, LARGEST_FLOPS / flops - 1)

    def _begin_fork(self) -> None:
        """In a fork: do without the compiler, whose threads are in the process that was forked."""
        self._compiles = False

    def _interpret_once(self, check_with: CheckWith, prefix: str = "") -> CheckReport:
        """Make a check; a failure begins with `prefix`, and says what in the kernel led to it."""
        launching = _LaunchesOfCheck(self._run, self._launch)
        try:
            return launching.with_contribution(check_with(launching))
        except KernelMismatch as mismatch:
            raise self._with_causes(mismatch, prefix, launching, check_with) from None
        except CompilerMissing as error:
            raise self._no_interpreter(error) from error
        except NoConfigurationWorks as error:
            if isinstance(error.__cause__, CompileError):
                raise error.__cause__ from None
            raise
        except NoSuchBlock as error:
            raise GateSkipped(Reason.ONE_BLOCK, f"{error}") from None
        except NotInterpreted as fault:
            raise GateSkipped(Reason.NOT_INTERPRETED, fault.in_one_line()) from None
        except KernelFault as fault:
            if launching.reversed and launching.failed == _REVERSED and self._passes_forward(check_with):
                prefix = f"{_LAST_FIRST}: "
            fault.message = f"{prefix}{fault.message}"
            if isinstance(fault, UnwrittenOutput):
                fault.message += why_unwritten(self._run, check_with, self._check_written)
            raise

    def _with_causes(
        self, mismatch: KernelMismatch, prefix: str, launching: _LaunchesOfCheck, check_with: CheckWith
    ) -> KernelMismatch:
        """Return a mismatch that says where its worst element comes from, and whether block order matters.

        Each of the two makes the check anew: once with all stores recorded, once with no launch reversed.
        """
        tensor, index = mismatch.changed, None
        if mismatch.output is not None:
            tensor, index = mismatch.output, mismatch.index
        text, wrong = f"{prefix}{mismatch}", launching.find(tensor, index)
        if wrong is not None:
            recorded = _LaunchesOfCheck(self._run, Interpreted())
            text = add_origin(text, self._run, check_with, recorded, wrong)
        is_forward = wrong is not None and wrong.launch != _REVERSED
        if launching.reversed and not is_forward and self._passes_forward(check_with):
            text = f"{_LAST_FIRST}: {text.replace(f'{SECOND_LAUNCH}: ', '')}"
            mismatch.clarity = WHICH_LAUNCH
        return mismatch.with_message(text)

    def _passes_forward(self, check_with: CheckWith) -> bool:
        """Make a check anew with the first block first in all its launches; return whether it passes."""
        try:
            check_with(Interpreted(self._launch))
        except Exception:  # noqa: BLE001 - the failure that is explained matters more
            return False
        return True

    def _launch(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a launcher; the interpreter knows what was written, so that no memory is poisoned here."""
        from pytest_cutile.tile.tensors.trees import tensors_in

        self._launched_bytes = sum(tensor.nbytes for tensor in tensors_in((args, kwargs)))
        self._refuse_large(self._launched_bytes)
        try:
            outputs = call_launcher(fn, args, kwargs)
        finally:
            self.show_watched()
        if self._asked.block is not None:
            raise GateSkipped(
                Reason.ONE_BLOCK, f"only block {self._asked.block} was run, and nothing compared"
            )
        self._check_written(fn, outputs)
        return outputs

    def _check_written(self, fn: Callable[..., Any], outputs: Any) -> None:
        from pytest_cutile.tile.tensors.trees import named_tensors

        named = list(named_tensors(outputs, "output"))
        try:
            self._run.check_written([tensor for _, tensor in named], [name for name, _ in named])
        except UnwrittenOutput as fault:
            fault.kernel = fault.kernel or function_name(fn)
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


class _LaunchesOfCheck(Launching):
    """Calls a launcher as often as a check asks for, the second time with the last block first.

    A check (`correctness.check`) calls its launcher again to compare the outputs of several launches. With
    the blocks in the other order, the second launch also shows what depends on that order.
    """

    is_interpreted = True

    def __init__(self, run: Run, launch: LauncherCall) -> None:
        self._run = run
        self._launch = launch
        self._calls: list[tuple[Any, Sequence[Any], Mapping[str, Any]]] = []
        """Outputs and arguments of each call that returned, or nothing of one that did not."""
        self.failed: int | None = None
        """The number of the call that raised."""
        self.leaves_other_memory = False
        self._written: dict[int, int] = {}
        """Digests of what the last call left in memory, by storage."""
        self._contributions: list[tuple[Contribution, str]] = []
        """What the launches of each call have contributed, where that is known, and the launcher's name."""

    def with_contribution(self, report: CheckReport) -> CheckReport:
        """Return a report that says what launches contributed, in the call in which that was most."""
        if not self._contributions:
            return report
        most, launcher = max(self._contributions, key=lambda pair: pair[0].largest_share)
        other_work = most.message(launcher) if most.is_nothing else ""
        return replace(report, from_launches=most.share, other_work=other_work)

    @property
    def reversed(self) -> bool:
        """Whether a call had the last block first."""
        return len(self._calls) >= _REVERSED and not self._run.options.reverse

    def find(self, output: Any, index: tuple[int, ...] | None) -> WrongElement | None:
        """Return in which call a tensor, or an element of it, was wrong; None: no call had such a tensor."""
        for number, call in enumerate(self._calls, 1):
            for name, tensor in tensors_of(*call).items():
                if tensor is output:
                    return WrongElement(launch=number, tensor=name, index=index)
        return None

    def __call__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._calls.append((None, args, kwargs))
        before = len(self._run.launches)
        number = len(self._calls)
        try:
            with (
                self._run.reversed() if self.reversed and number == _REVERSED else nullcontext(),
                self._run.following((args, kwargs)) as origins,
            ):
                outputs = self._launch(fn, args, kwargs)
        except Exception:
            self.failed = self.failed or number
            raise
        self._calls[-1] = outputs, args, kwargs
        if (contribution := origins.contribution(outputs)) is not None:
            self._contributions.append((contribution, function_name(fn)))
        launched = self._run.launches[before:]
        written = {storage: digest for launch in launched for storage, digest in launch.written.items()}
        self.leaves_other_memory = any(
            self._written[storage] != written[storage] for storage in self._written.keys() & written.keys()
        )
        self._written = written
        return outputs
