"""Runs launch code as if on a GPU of a given architecture, and records what it launches. Runs no kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_cutile.compiler import cutile
from pytest_cutile.compiler.toolchain import CompilerMissing
from pytest_cutile.compiler.trace.patching import Replacements
from pytest_cutile.errors import NO_TORCH

if TYPE_CHECKING:
    import torch

    from pytest_cutile.compiler.trace.operations import TorchOperations
    from pytest_cutile.compiler.trace.tensors import Backing, PretendedTensors

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


@dataclass(kw_only=True, eq=False)
class Recorder:
    """What was launched while a GPU was pretended."""

    tensors: PretendedTensors
    """The mode that makes tensors say they are on the GPU."""
    operations: TorchOperations
    """What torch computed; nothing where launches run."""
    launches: list[Launch] = field(default_factory=list)
    run: Callable[[Launch, tuple[Any, ...]], None] | None = None
    """What runs a launch, given its arguments as they were passed; None: nothing does."""

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
        del stream
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
        from pytest_cutile.tensors.other_arrays import as_launched

        kernel_args = as_launched(kernel_args)
        launch = Launch(
            kernel=kernel,
            grid=sizes,
            args=_without_data(kernel_args),
            dependent=bool(programmatic_dependent_launch),
        )
        self.launches.append(launch)
        if self.run is not None:
            self.run(launch, kernel_args)

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

    from pytest_cutile.compiler.trace.cuda_api import replacements
    from pytest_cutile.compiler.trace.operations import TorchOperations
    from pytest_cutile.compiler.trace.tensors import PretendedTensors, backward_under

    operations = TorchOperations()
    # Only a fingerprint needs to know what torch computes, and each operation takes longer for it.
    mode = PretendedTensors(backing, fresh=fresh, operations=operations if run is None else None)
    recorder = Recorder(tensors=mode, operations=operations, run=run)
    with ExitStack() as stack:
        stack.enter_context(
            Replacements(
                [
                    (ct, "launch", recorder.launch),
                    (tune, "exhaustive_search", _take_first_config),
                    # On the CPU, the gradients that torch makes itself are to be on the pretended GPU.
                    backward_under(mode, mode.mark if backing == "cpu" else None),
                    *replacements(arch),
                ],
                while_paused=torch._C.DisableTorchFunction,  # noqa: SLF001
            )
        )
        if "torch._dynamo" in sys.modules:
            # What `torch.compile` made runs as it was written: there is no GPU to compile for.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(mode)
        _active.append(recorder)
        stack.callback(_active.remove, recorder)
        yield recorder


def record_launches(make_and_launch: Callable[[], object], arch: str) -> list[Launch]:
    """Return what `record` records of `make_and_launch`; an empty list means that nothing was launched."""
    return record(make_and_launch, arch).launches


def record(make_and_launch: Callable[[], object], arch: str) -> Recorder:
    """Trace `make_and_launch` without memory for its tensors; once more with it if it needs their values."""
    with pretend_gpu(arch, "meta") as recorder:
        try:
            make_and_launch()
        except Exception as error:
            if not recorder.needs_values(error):
                raise
        else:
            return recorder
    with pretend_gpu(arch, "cpu") as recorder:
        make_and_launch()
    return recorder


def _without_data(value: Any) -> Any:
    import torch

    from pytest_cutile.compiler.trace.tensors import stand_in

    if isinstance(value, torch.Tensor):
        return stand_in(value)
    if type(value) in {tuple, list}:
        return type(value)(_without_data(item) for item in value)
    return value


def _take_first_config(search_space: Any, *_: Any, **__: Any) -> Any:
    """Stand in for `cuda.tile.tune.exhaustive_search`: nothing is timed, the first configuration wins."""
    from cuda.tile.tune import Measurement, TuningResult

    if len(search_space) == 0:
        raise ValueError("Search space is empty.")
    best = Measurement(config=next(iter(search_space)), mean_us=0.0, num_samples=0, error_margin_us=0.0)
    return TuningResult(best=best, successes=(best,), failures=())
