"""Runs what launch code launches: takes the place of `cuda.tile.launch`, on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from pytest_cutile.compile import cutile
from pytest_cutile.compile.export import CompileJob, export
from pytest_cutile.compile.trace import Launch, pretend_gpu
from pytest_cutile.core.architectures import normalize_architecture
from pytest_cutile.interpret import ops  # noqa: F401 - registers the operations
from pytest_cutile.interpret.analysis import every_op, last_uses
from pytest_cutile.interpret.births import NonfiniteFinder
from pytest_cutile.interpret.bytecode import read_module
from pytest_cutile.interpret.debugging import Debugging
from pytest_cutile.interpret.faults import KernelFault, NoSuchBlock
from pytest_cutile.interpret.ir import Entry, Module, Op
from pytest_cutile.interpret.machine import Machine, batch_size
from pytest_cutile.interpret.memory import Memory
from pytest_cutile.interpret.provenance import Trace
from pytest_cutile.interpret.shadow import poison, shadow_of
from pytest_cutile.interpret.watch import Watcher


@dataclass(frozen=True, kw_only=True)
class Options:
    """How launches are interpreted."""

    check_races: bool = True
    """Whether two blocks that touch one element without atomics, one of them writing, are a fault."""
    check_uninitialized: bool = True
    """Whether reading what nothing has written is a fault."""
    check_tiles: bool = True
    """Whether a tile that is wholly outside of its array is a fault: cuTile leaves undefined what it does.

    A load with a padding_mode is none: there, all of the tile is padding."""
    poison_padding: bool = True
    """Whether what a load finds beyond an array, where padding is undetermined, is NaN, or a number that
    nobody expects; else it is zero, as it happens to be on many GPUs."""
    reverse: bool = False
    """Whether the last block runs first: a result that depends on the order of the blocks differs."""
    one_by_one: bool = False
    """Whether each block runs to its end before the next; else many run together, operation by operation."""
    only_block: tuple[int, int, int] | None = None
    """Run this block alone."""
    watch: tuple[str, ...] = ()
    """Lines of source, "kernels/softmax.py:98": the values that are computed there are recorded."""
    watch_blocks: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)
    """Blocks of which they are; `only_block` takes precedence."""
    find_nonfinite: bool = False
    """Whether to record where the first NaN and the first Inf come from."""
    trace_writes: bool = False
    """Whether to record who wrote each element, and the tiles it came from, for `trace_element`."""


@contextmanager
def interpreting(
    arch: str, options: Options | None = None, *, seen: Callable[[CompileJob], None] | None = None
) -> Iterator[Interpreter]:
    """Run launch code on the CPU, as if on a GPU of `arch` ("sm_121").

    Inside, `cuda.tile.launch` interprets the kernel, `device="cuda"` makes tensors in the memory of the CPU,
    and `torch.cuda` answers for that GPU. Tensors of the CPU may be passed to kernels as well. Not for
    several threads at once.

    Args:
        arch: the architecture.
        options: how.
        seen: is told of each launch what the real compiler would be given, before it is interpreted.

    Raises:
        ArchitectureError: `arch` names none.
        CompilerMissing: cuda-tile or tileiras is not installed.
        CompileError: in a launch: cuda-tile rejects the kernel.
        KernelFault: in a launch: the kernel does something wrong.
    """
    arch = normalize_architecture(arch)
    interpreter = Interpreter(arch, options or Options(), seen=seen)
    with pretend_gpu(arch, "cpu", run=interpreter.launch, fresh=interpreter.poison):
        yield interpreter


class Interpreter:
    """Interprets launches for one architecture."""

    def __init__(
        self, arch: str, options: Options | None = None, *, seen: Callable[[CompileJob], None] | None = None
    ) -> None:
        self.arch = arch
        self.options = options or Options()
        self._seen = seen
        self.debugging = Debugging(self.options)
        self.kernels: list[str] = []
        """Names of the kernels that were launched, in that order."""
        self.on_fault: Callable[[KernelFault], None] | None = None
        """Is told of each fault of a launch, whoever catches it then."""

    def poison(self, tensor: torch.Tensor) -> None:
        """Fill a tensor that is made uninitialized, and remember that it is."""
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            poison(tensor, remember=self.options.check_uninitialized)

    def launch(self, launch: Launch, arguments: Sequence[Any]) -> None:
        """Run a kernel on `arguments`, whose tensors have memory.

        Raises:
            CompileError: cuda-tile rejects the kernel.
            KernelFault: it does something wrong.
            NoSuchBlock: the grid has no such block as is to run alone.
        """
        __tracebackhide__ = True
        try:
            self._launch(launch, arguments)
        except KernelFault as fault:
            # How the interpreter came there says nothing about the kernel.
            raise fault.with_traceback(None)  # noqa: B904 - it keeps its own cause

    def _launch(self, launch: Launch, arguments: Sequence[Any]) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():  # noqa: SLF001
            job = self._export(launch)
            read = _read(job.bytecode)
            entry = read.entry
            memory = Memory(
                check_races=self.options.check_races,
                check_tiles=self.options.check_tiles,
                grid=launch.grid,
            )
            machine = Machine(read.module, memory, launch.grid)
            machine.kernel = job.kernel
            self.kernels.append(job.kernel)
            machine.poison_padding = self.options.poison_padding
            parameters = [
                torch.tensor([value], dtype=dtype)
                for value, dtype in _flatten(memory, arguments, launch.kernel)
            ]
            self.debugging.begin_launch(machine, entry, parameters)
            if not machine.observers and memory.observer is None:
                machine.last_uses = read.last_uses  # else somebody may look back
            machine.make_constants(read.constants)
            try:
                for blocks in self._batches(machine, entry):
                    machine.run(entry, parameters, blocks)
            except KernelFault as fault:
                if self.on_fault is not None:
                    self.on_fault(fault)
                raise
            finally:
                memory.end_launch()

    def check_written(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        """Check that results were written to their last element.

        Raises:
            KernelFault: an element of a tensor that was made uninitialized is so still.
        """
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            for tensor, name in zip(tensors, names, strict=True):
                shadow = shadow_of(tensor)
                if shadow is None or not shadow.unwritten:
                    continue
                missing = shadow.unwritten_in(tensor)
                if missing.any():
                    first = tuple(int(each) for each in missing.nonzero()[0])
                    raise KernelFault(
                        "uninitialized",
                        f"nothing has written {int(missing.sum())} of {tensor.numel()} elements of {name}, "
                        f"{list(first)} first",
                    )

    @contextmanager
    def under(self, options: Options) -> Iterator[None]:
        """Interpret in another way for a while; what is recorded meanwhile is apart from what was before."""
        before = self.options, self.debugging
        self.options, self.debugging = options, Debugging(options)
        try:
            yield
        finally:
            self.options, self.debugging = before

    # -- what was recorded on request -----------------------------------------------------------------

    @property
    def watched(self) -> Watcher:
        """The values at the lines of `Options.watch`; its text tells them all.

        Raises:
            ValueError: no line is watched.
        """
        if self.debugging.watcher is None:
            raise ValueError('no line is watched: interpret with Options(watch=("kernels/softmax.py:98",))')
        return self.debugging.watcher

    @property
    def nonfinite(self) -> NonfiniteFinder:
        """Where NaN and Inf come from.

        Raises:
            ValueError: that is not recorded.
        """
        if self.debugging.nonfinite is None:
            raise ValueError("NaN and Inf are not followed: interpret with Options(find_nonfinite=True)")
        return self.debugging.nonfinite

    def trace_element(self, tensor: torch.Tensor, index: Sequence[int]) -> Trace:
        """Return which block wrote an element last, at which line, and the tiles that it came from.

        Args:
            tensor: what a kernel was given, or a view of it.
            index: of the element, in `tensor`.

        Raises:
            LookupError: no kernel has written it, or there is no such element.
            ValueError: that is not recorded.
        """
        if self.debugging.provenance is None:
            raise ValueError("writers are not recorded: interpret with Options(trace_writes=True)")
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            return self.debugging.provenance.trace(tensor, tuple(index))

    def _export(self, launch: Launch) -> CompileJob:
        job = export(launch, self.arch)
        if self._seen is not None:
            self._seen(job)
        return job

    def _batches(self, machine: Machine, entry: Entry) -> Iterator[torch.Tensor]:
        x, y, z = machine.grid
        if self.options.only_block is not None:
            i, j, k = self.options.only_block
            if not (0 <= i < x and 0 <= j < y and 0 <= k < z):
                raise NoSuchBlock(f"block {(i, j, k)} is not in the grid {machine.grid} of {machine.kernel}")
            yield torch.tensor([i + x * (j + y * k)])
            return
        blocks = torch.arange(x * y * z)
        batches = blocks.split(1 if self.options.one_by_one else batch_size(entry)) if len(blocks) else ()
        if self.options.reverse:
            yield from (batch.flip(0) for batch in reversed(batches))
        else:
            yield from batches


@dataclass(frozen=True)
class _Read:
    """A kernel, and what its operations say before it runs."""

    module: Module
    entry: Entry
    last_uses: dict[int, tuple[int, ...]]
    constants: tuple[Op, ...]


@lru_cache(maxsize=256)
def _read(bytecode: bytes) -> _Read:
    module = read_module(bytecode)
    (entry,) = module.entries.values()
    constants = tuple(op for op in every_op(entry.body) if op.name == "constant")
    return _Read(module, entry, last_uses(entry.body), constants)


def _flatten(memory: Memory, arguments: Sequence[Any], kernel: Any) -> Iterator[tuple[Any, torch.dtype]]:
    """Yield what the parameters of a kernel are for these arguments."""
    names = cutile.kernel_function(kernel).__code__.co_varnames
    for value, annotation, name in zip(arguments, cutile.parameter_annotations(kernel), names, strict=False):
        yield from _parameters(memory, value, annotation, name)


def _parameters(
    memory: Memory, value: Any, annotation: cutile.Annotation, name: str
) -> Iterator[tuple[Any, torch.dtype]]:
    if isinstance(value, tuple):
        for index, (item, of_item) in enumerate(annotation.of_items(value)):
            yield from _parameters(memory, item, of_item, f"{name}[{index}]")
    elif annotation.constant:
        return
    elif isinstance(value, torch.Tensor):
        yield memory.add(name, value), torch.int64
        for each in (*value.shape, *value.stride()):
            yield each, torch.int64 if annotation.array.wide else torch.int32
    elif isinstance(value, list):
        rows = [
            [memory.add(f"{name}[{index}]", item), *item.shape, *item.stride()]
            for index, item in enumerate(value)
        ]
        table = torch.tensor(rows, dtype=torch.int64)
        yield memory.add(name, table), torch.int64
        yield len(value), torch.int32
    elif isinstance(value, bool):
        yield value, torch.bool
    elif isinstance(value, int):
        yield value, torch.int64 if annotation.wide else torch.int32
    else:
        yield value, torch.float32
