"""Runs launch code as if on a GPU of a given architecture, and records what it launches. Runs no kernel."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.toolchain import CompilerMissing
from pytest_cutile.tile.compiler.trace.patching import Replacements
from pytest_cutile.tile.compiler.trace.questions import questions_answered
from pytest_cutile.tile.compiler.trace.timed_loops import TimedLoops
from pytest_cutile.tile.compiler.trace.tuning import Tuning
from pytest_cutile.words.errors import NO_TORCH

if TYPE_CHECKING:
    import torch

    from pytest_cutile.tile.compiler.trace.operations import TorchOperations
    from pytest_cutile.tile.compiler.trace.tensors import Backing, PretendedTensors

_MAX_GRID_RANK = 3
_MAX_GRID_SIZES = (2**24 - 1, 65535, 65535)
"""What cuda-tile 1.7.0 takes along any axis ("24-bit limit"), and CUDA along the second and third (CUDA C++
Programming Guide, technical specifications)."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One call of `cuda.tile.launch`."""

    kernel: Any
    """The object made by `@ct.kernel`, or by its `replace_hints`."""
    grid: tuple[int, ...]
    """Blocks, as they were given: one to three numbers."""
    args: tuple[Any, ...]
    """The kernel's arguments; each tensor replaced by a meta tensor of the same layout."""
    dependent: bool = False
    """Whether it may start before the launch before it has ended (programmatic dependent launch)."""
    candidate: str = ""
    """The configuration that a tuner would have tried by it; "" of a launch that the launcher made."""


@dataclass(kw_only=True, eq=False)
class Recorder:
    """What was launched while a GPU was pretended."""

    tensors: PretendedTensors
    """The mode that makes tensors say they are on the GPU."""
    operations: TorchOperations
    """What torch computed; nothing where launches run."""
    launches: list[Launch] = field(default_factory=list)
    tuning: Tuning = field(default_factory=Tuning)
    """How the launcher's searches for its fastest configuration end, and which there were."""
    run: Callable[[Launch, tuple[Any, ...]], None] | None = None
    """What runs a launch, given its arguments as they were passed; None: nothing does."""
    takes_cpu: bool = False
    """Whether all tensors of a launch may be on the CPU."""
    thread: int = field(default_factory=threading.get_ident)
    """The only thread in which tensors say where they are."""

    def launch(
        self,
        stream: Any,
        grid: Any,
        kernel: Any,
        kernel_args: Any,
        /,
        *,
        programmatic_dependent_launch: bool = False,
    ) -> None:
        """Stand in for `cuda.tile.launch`: check what it checks, or CUDA for it, and record."""
        __tracebackhide__ = True
        from pytest_cutile.tile.compiler.trace.refusals import check_stream

        check_stream(stream)
        kernel_args = _as_launched(kernel_args)
        launch = self._checked(grid, kernel, kernel_args, dependent=bool(programmatic_dependent_launch))
        self.launches.append(launch)
        if self.run is not None:
            self.run(launch, kernel_args)

    def try_candidate(self, text: str, grid: Any, kernel: Any, args_fn: Callable[[], Any], /) -> Launch:
        """Return the launch of a configuration that a tuner tries; raise what `launch` would raise of it."""
        with self.operations.paused():
            return replace(self._checked(grid, kernel, _as_launched(args_fn())), candidate=text)

    def _checked(self, grid: Any, kernel: Any, kernel_args: Any, *, dependent: bool = False) -> Launch:
        from pytest_cutile.tile.compiler.trace.refusals import check_on_gpu

        __tracebackhide__ = True
        if not isinstance(grid, tuple):
            raise TypeError(f"Grid must be a tuple, got {type(grid).__name__}")
        if len(grid) > _MAX_GRID_RANK:
            raise ValueError(f"Grid dimensions must be at most {_MAX_GRID_RANK}, got {grid}")
        sizes = tuple(size.__index__() for size in grid)
        if not all(0 <= size <= limit for size, limit in zip(sizes, _MAX_GRID_SIZES, strict=False)):
            raise ValueError(
                f"Grid sizes must be within 0 and {_MAX_GRID_SIZES[: len(sizes)]}, axis by axis, got {sizes}"
            )
        if not cutile.is_kernel(kernel):
            raise TypeError(
                f"launch() expects a tile kernel as the third argument, got {type(kernel).__name__}"
            )
        if not isinstance(kernel_args, tuple):
            raise TypeError(
                f"launch() expects a tuple as the fourth argument, got {type(kernel_args).__name__}"
            )
        if threading.get_ident() == self.thread:
            check_on_gpu(kernel_args, self.tensors.on_gpu, takes_cpu=self.takes_cpu)
        return Launch(kernel=kernel, grid=sizes, args=_without_data(kernel_args), dependent=dependent)

    def settled(self) -> Recorder:
        """Mark what a loop with events has launched to time it, if candidates are asked for."""
        loops = self.tuning.loops
        if self.tuning.every and loops is not None:
            self.tuning.searches, self.tuning.loops = [*self.tuning.found()], None
            self.launches[:] = loops.marked()
        return self

    def needs_values(self, error: BaseException | None) -> bool:
        """Return whether `error` began in a torch function on tensors that have no values."""
        if self.tensors.backing != "meta":
            return False
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            if error is self.tensors.failure:
                return True
            seen.add(id(error))
            error = error.__cause__ or error.__context__
        return False


_active: list[Recorder] = []


def launcher_begins() -> None:
    """Say, while a GPU is pretended, that inputs have been made, and what follows is the launcher's."""
    for recorder in _active:
        recorder.operations.moved_bytes = 0


def pretended_backing() -> Backing | None:
    """Return what holds "cuda" tensors now, "meta" (they have no values) or "cpu"; None: no GPU is pretended.

    For code that makes inputs: on "meta" it need not draw random values.
    """
    return _active[-1].tensors.backing if _active else None


def pretended_tensors() -> PretendedTensors | None:
    """Return what makes tensors be on the GPU that is pretended now; None: there is none."""
    return _active[-1].tensors if _active else None


@contextmanager
def pretend_gpu(
    arch: str,
    backing: Backing = "meta",
    *,
    run: Callable[[Launch, tuple[Any, ...]], None] | None = None,
    fresh: Callable[[torch.Tensor], None] | None = None,
    takes_cpu: bool = False,
    tuning: Tuning | None = None,
) -> Iterator[Recorder]:
    """Pretend a GPU of `arch` ("sm_121"); inputs are to be made inside as well.

    Inside, `torch.cuda` answers for that GPU, `device="cuda"` makes tensors that say they are on it, and
    `cuda.tile.launch` records. A GPU that is there is not touched. Not for several threads at once.

    Args:
        arch: the architecture.
        backing: "meta" needs no memory, and anything that needs values raises; "cpu" has them, zero where
            they are uninitialized, and never what a kernel would have written.
        run: Runs each launch, given its arguments as they were passed; only with "cpu".
        fresh: Fills each tensor that is made uninitialized, instead of zero.
        takes_cpu: Whether all tensors of a launch may be on the CPU; some of them never may.
        tuning: Says how searches for the fastest configuration end; by default with the first one.

    Raises:
        CompilerMissing: cuda-tile or torch is not installed.
    """
    ct = cutile.import_cutile()
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CompilerMissing(NO_TORCH) from None
    from cuda.tile import tune

    from pytest_cutile.tile.compiler.trace.cuda_api import replacements
    from pytest_cutile.tile.compiler.trace.operations import TorchOperations
    from pytest_cutile.tile.compiler.trace.tensors import PretendedTensors, backward_under

    operations = TorchOperations()
    # Only a fingerprint needs to know what torch computes, and each operation takes longer for it.
    mode = PretendedTensors(backing, fresh=fresh, operations=operations if run is None else None)
    recorder = Recorder(
        tensors=mode, operations=operations, tuning=tuning or Tuning(), run=run, takes_cpu=takes_cpu
    )
    loops = recorder.tuning.loops = TimedLoops(recorder.launches, recorder.tuning, arch)
    with ExitStack() as stack:
        stack.enter_context(
            Replacements(
                [
                    (ct, "launch", recorder.launch),
                    (tune, "exhaustive_search", partial(recorder.tuning.search, recorder)),
                    # On the CPU, the gradients that torch makes itself are to be on the pretended GPU.
                    backward_under(mode, mode.mark if backing == "cpu" else None),
                    *replacements(arch, loops),
                ],
                while_paused=functools.partial(_importing, arch),
            )
        )
        if "torch._dynamo" in sys.modules:
            # What `torch.compile` made runs as it was written: there is no GPU to compile for.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(mode)
        _active.append(recorder)
        stack.callback(_active.remove, recorder)
        yield recorder


@contextmanager
def _importing(arch: str) -> Iterator[None]:
    """Let a module be imported as if no GPU were pretended, but for plain questions in its body."""
    import torch

    with torch._C.DisableTorchFunction(), questions_answered(lambda: arch):  # noqa: SLF001
        yield


def record_launches(make_and_launch: Callable[[], object], arch: str) -> list[Launch]:
    """Return what `record` records of `make_and_launch`; an empty list means that nothing was launched.

    All tensors of a launch may be on the CPU.
    """
    return record(make_and_launch, arch, takes_cpu=True).launches


def record(
    make_and_launch: Callable[[], object],
    arch: str,
    *,
    takes_cpu: bool = False,
    accepts: Callable[[Launch], object] | None = None,
    choice: str = "",
) -> Recorder:
    """Trace `make_and_launch` without memory for its tensors; once more with it if it needs their values.

    Args:
        make_and_launch: makes inputs and calls a launcher.
        arch: the architecture.
        takes_cpu: whether all tensors of a launch may be on the CPU.
        accepts: raises what is wrong with a launch. With it, every configuration that the launcher would try
            to find its fastest one is recorded, too: as a launch with a `candidate`.
        choice: the configuration that the launcher is to choose, as `candidate` names it.
    """

    def tuning() -> Tuning:
        return Tuning(choice=choice, every=accepts is not None, accepts=accepts)

    with pretend_gpu(arch, "meta", takes_cpu=takes_cpu, tuning=tuning()) as recorder:
        try:
            make_and_launch()
        except Exception as error:
            if not recorder.needs_values(error):
                raise
        else:
            return recorder.settled()
    with pretend_gpu(arch, "cpu", takes_cpu=takes_cpu, tuning=tuning()) as recorder:
        make_and_launch()
    return recorder.settled()


def _as_launched(kernel_args: Any) -> Any:
    """Return arguments with tensors for arrays that are not torch's; what is no tuple is refused later."""
    from pytest_cutile.tile.tensors.other_arrays import as_launched

    return as_launched(kernel_args) if isinstance(kernel_args, tuple) else kernel_args


def _without_data(value: Any) -> Any:
    import torch

    from pytest_cutile.tile.compiler.trace.tensors import stand_in

    if isinstance(value, torch.Tensor):
        return stand_in(value)
    if type(value) in {tuple, list}:
        return type(value)(_without_data(item) for item in value)
    return value
