"""Interprets launch code on the CPU, with neither pytest nor a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_cutile.tile.compiler.export import export
from pytest_cutile.tile.compiler.job import CompileJob
from pytest_cutile.tile.compiler.toolchain import supported_architecture
from pytest_cutile.tile.compiler.trace.launches import Launch, pretend_gpu
from pytest_cutile.tile.compiler.trace.tensors import PretendedTensors
from pytest_cutile.tile.compiler.trace.tuning import Tuning
from pytest_cutile.tile.interpreter.faults import KernelFault, NotInterpreted, UnwrittenOutput
from pytest_cutile.tile.interpreter.launch import communicates, run_launch
from pytest_cutile.tile.interpreter.nonfinite_origin import NonfiniteFinder
from pytest_cutile.tile.interpreter.options import Options
from pytest_cutile.tile.interpreter.origins import Origins
from pytest_cutile.tile.interpreter.provenance import Trace
from pytest_cutile.tile.interpreter.recording import Recording
from pytest_cutile.tile.interpreter.shadow import poison, shadow_of
from pytest_cutile.tile.interpreter.watch import Watcher


@contextmanager
def interpret(
    arch: str,
    options: Options | None = None,
    *,
    on_export: Callable[[CompileJob, Launch], None] | None = None,
    takes_cpu: bool = True,
    tuning: Tuning | None = None,
) -> Iterator[Run]:
    """Run launch code on the CPU, as if on a GPU of `arch` ("sm_121").

    Inside, `cuda.tile.launch` interprets the kernel, `device="cuda"` makes tensors in the CPU's memory, and
    `torch.cuda` answers for that GPU. What a GPU refuses is refused: tensors of which some are on the CPU,
    and streams that are none. Not for several threads at once.

    Args:
        arch: the architecture.
        options: what is checked and recorded; by default all checks and no records.
        on_export: called with each launch and its exported kernel before it is interpreted.
        takes_cpu: whether all tensors of a launch may be on the CPU, for kernels that are tried out by hand.
        tuning: says how a launcher's searches for its fastest configuration end; by default with the first.

    Raises:
        ArchitectureError: `arch` names no architecture that the installed tileiras compiles for.
        CompilerMissing: cuda-tile or tileiras is not installed.
        CompileError: in a launch: cuda-tile rejects the kernel.
        KernelFault: in a launch: the kernel does something wrong.
    """
    run = Run(arch, options, on_export=on_export)
    with pretend_gpu(
        run.arch, "cpu", run=run.launch, fresh=run.poison, takes_cpu=takes_cpu, tuning=tuning
    ) as recorder:
        run.tensors = recorder.tensors
        yield run


@dataclass(frozen=True, kw_only=True)
class InterpretedLaunch:
    """A launch that began."""

    kernel: str
    """Name of the kernel's function."""
    grid: tuple[int, ...]
    """Number of blocks along one to three axes."""
    bytecode: bytes = field(default=b"", repr=False)
    """The kernel as it was exported."""
    communicates: bool = field(default=False, repr=False)
    """Whether the kernel has atomics, or other operations that acquire or release."""
    written: dict[int, int] = field(default_factory=dict, repr=False, compare=False)
    """A digest of each storage that it wrote, by the identity of the storage; empty until it has ended."""


class Run:
    """Launches that are interpreted for one architecture, and what came of them."""

    def __init__(
        self,
        arch: str,
        options: Options | None = None,
        *,
        on_export: Callable[[CompileJob, Launch], None] | None = None,
    ) -> None:
        self.arch = supported_architecture(arch)
        self.options = options or Options()
        self.launches: list[InterpretedLaunch] = []
        """In the order in which they began."""
        self.faults: list[KernelFault] = []
        """Faults that launches raised, also those that somebody caught."""
        self.recording = Recording(self.options)
        self.tensors: PretendedTensors | None = None
        """What makes tensors be on the GPU, while one is pretended."""
        self._on_export = on_export
        self._origins: Origins | None = None

    def poison(self, tensor: torch.Tensor) -> None:
        """Fill a tensor that is made uninitialized, and remember that it is."""
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            poison(tensor, remember=self.options.check_uninitialized)

    def launch(self, launch: Launch, arguments: Sequence[Any]) -> None:
        """Run a kernel on `arguments`, whose tensors are in the CPU's memory.

        Raises:
            CompileError: cuda-tile rejects the kernel.
            KernelFault: the kernel does something wrong.
            NoSuchBlock: the grid lacks `Options.only_block`.
        """
        __tracebackhide__ = True
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():  # noqa: SLF001
                job = export(launch, self.arch)
                if self._on_export is not None:
                    self._on_export(job, launch)
                launched = InterpretedLaunch(
                    kernel=job.kernel,
                    grid=launch.grid,
                    bytecode=job.bytecode,
                    communicates=communicates(job),
                )
                self.launches.append(launched)
                launched.written.update(
                    run_launch(job, launch, arguments, self.options, self.recording, self._origins)
                )
        except KernelFault as fault:
            self.faults.append(fault)
            if self._origins is not None and isinstance(fault, NotInterpreted):
                self._origins.lose()  # a launcher that catches it goes another way than on a GPU
            # The interpreter's frames say nothing about the kernel.
            raise fault.with_traceback(None)  # noqa: B904 - it keeps its own cause

    def check_written(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        """Check that every element of each tensor was written.

        Raises:
            UnwrittenOutput: a KernelFault: a tensor made uninitialized has an element that nothing wrote.
        """
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            for tensor, name in zip(tensors, names, strict=True):
                shadow = shadow_of(tensor)
                if shadow is None or not shadow.unwritten:
                    continue
                missing = shadow.unwritten_in(tensor).nonzero()
                if len(missing):
                    raise UnwrittenOutput(
                        f"nothing has written {len(missing)} of {tensor.numel()} elements of {name}, "
                        f"{missing[0].tolist()} first, {missing[-1].tolist()} last",
                        tensor,
                    )

    @contextmanager
    def using(self, options: Options) -> Iterator[None]:
        """Interpret with other options for a while, into a recording of its own."""
        before = self.options, self.recording
        self.options, self.recording = options, Recording(options)
        try:
            yield
        finally:
            self.options, self.recording = before

    @contextmanager
    def reversed(self) -> Iterator[None]:
        """Interpret with the last block first for a while, into the same recording."""
        before = self.options
        self.options = replace(before, reverse=not before.reverse)
        try:
            yield
        finally:
            self.options = before

    @contextmanager
    def following(self, arguments: Any) -> Iterator[Origins]:
        """Follow who makes what in one call of a launcher with these arguments."""
        origins = Origins(arguments)
        if self.tensors is None:
            origins.lose()
            yield origins
            return
        before = self._origins, self.tensors.observer
        self._origins, self.tensors.observer = origins, origins.torch_did
        try:
            yield origins
        finally:
            self._origins, self.tensors.observer = before

    def forget(self) -> None:
        """Begin a new recording: what was recorded so far is dropped."""
        self.recording = Recording(self.options)

    # -- what was recorded on request -----------------------------------------------------------------

    @property
    def watched(self) -> Watcher:
        """The values at the lines of `Options.watch`; `str()` shows them all.

        Raises:
            ValueError: no line is watched.
        """
        if self.recording.watcher is None:
            raise ValueError('no line is watched: interpret with Options(watch=("kernels/softmax.py:98",))')
        return self.recording.watcher

    @property
    def nonfinite(self) -> NonfiniteFinder:
        """Where NaN and Inf come from.

        Raises:
            ValueError: `Options.find_nonfinite` is off.
        """
        if self.recording.nonfinite is None:
            raise ValueError("NaN and Inf are not followed: interpret with Options(find_nonfinite=True)")
        return self.recording.nonfinite

    def trace_element(self, tensor: torch.Tensor, index: Sequence[int]) -> Trace:
        """Return which block wrote an element last, at which line, and the tiles that it came from.

        Args:
            tensor: what a kernel was given, or a view of it.
            index: of the element, in `tensor`.

        Raises:
            LookupError: no kernel has written the element, or there is no such element.
            ValueError: `Options.trace_writes` is off.
        """
        if self.recording.provenance is None:
            raise ValueError("writers are not recorded: interpret with Options(trace_writes=True)")
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            return self.recording.provenance.trace(tensor, tuple(index))

    def writers(self, tensor: torch.Tensor) -> str:
        """Describe which lines wrote a tensor's elements last, and in which blocks.

        Raises:
            ValueError: `Options.trace_writes` is off.
        """
        if self.recording.provenance is None:
            raise ValueError("writers are not recorded: interpret with Options(trace_writes=True)")
        return self.recording.provenance.writers(tensor)
