"""Runs what launch code launches: takes the place of `cuda.tile.launch`, on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pytest_cutile.compile import cutile
from pytest_cutile.compile.export import CompileJob, export
from pytest_cutile.compile.signature import derive_signature
from pytest_cutile.compile.trace import Launch, pretend_gpu
from pytest_cutile.interpret import ops  # noqa: F401 - registers the operations
from pytest_cutile.interpret.bytecode import read_module
from pytest_cutile.interpret.faults import KernelFault
from pytest_cutile.interpret.ir import Entry, Module
from pytest_cutile.interpret.machine import Machine, batch_size, synchronizes
from pytest_cutile.interpret.memory import Memory, Shadow

_SHADOW = "_pytest_cutile_shadow"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How launches are interpreted."""

    check_races: bool = True
    """Whether two blocks that touch one element without atomics, one of them writing, are a fault."""
    check_uninitialized: bool = True
    """Whether reading what nothing has written is a fault."""
    poison_padding: bool = True
    """Whether what a load finds beyond an array, where padding is undetermined, is NaN or a number that nobody
    expects; else it is zero, as it happens to be on many GPUs."""
    reverse: bool = False
    """Whether the last block runs first: a result that depends on the order of the blocks differs."""
    only_block: tuple[int, int, int] | None = None
    """Run this block alone."""


@contextmanager
def interpreting(arch: str, options: Options | None = None) -> Iterator[Interpreter]:
    """Run launch code on the CPU, as if on a GPU of `arch` ("sm_121").

    Inside, `cuda.tile.launch` interprets the kernel, `device="cuda"` makes tensors in the memory of the CPU,
    and `torch.cuda` answers for that GPU. Tensors of the CPU may be passed to kernels as well. Not for
    several threads at once.

    Raises:
        CompilerMissing: cuda-tile or tileiras is not installed.
        CompileError: in a launch: cuda-tile rejects the kernel.
        KernelFault: in a launch: the kernel does something wrong.
    """
    interpreter = Interpreter(arch, options or Options())
    with pretend_gpu(arch, "cpu", run=interpreter.launch, fresh=interpreter.poison):
        yield interpreter


class Interpreter:
    """Interprets launches for one architecture."""

    def __init__(self, arch: str, options: Options | None = None) -> None:
        self.arch = arch
        self.options = options or Options()
        self._modules: dict[bytes, tuple[Module, Entry]] = {}
        self._exported: dict[Any, CompileJob] = {}

    def poison(self, tensor: torch.Tensor) -> None:
        """Fill a tensor that is made uninitialized, and remember that it is."""
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            if tensor.dtype.is_floating_point and tensor.element_size() > 1:
                tensor.fill_(float("nan"))
            else:
                tensor.zero_()
            if tensor.numel():
                shadow = Shadow(_elements(tensor), initialized=not self.options.check_uninitialized)
                shadow.version = tensor._version  # noqa: SLF001
                setattr(tensor.untyped_storage(), _SHADOW, shadow)

    def launch(self, launch: Launch, arguments: Sequence[Any]) -> None:
        """Run a kernel on `arguments`, whose tensors have memory.

        Raises:
            CompileError: cuda-tile rejects the kernel.
            KernelFault: it does something wrong.
        """
        __tracebackhide__ = True
        with torch._C.DisableTorchFunction(), torch.no_grad():  # noqa: SLF001
            module, entry, kernel = self._read(launch)
            memory = Memory(check_races=self.options.check_races and not synchronizes(entry))
            machine = Machine(module, memory, launch.grid)
            machine.kernel = kernel
            machine.poison_padding = self.options.poison_padding
            parameters = [
                torch.tensor([value], dtype=dtype)
                for value, dtype in _flatten(memory, arguments, launch.kernel)
            ]
            for blocks in self._batches(machine, entry):
                machine.run(entry, parameters, blocks)
            memory.end_launch()

    def check_written(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        """Check that results were written to their last element.

        Raises:
            KernelFault: an element of a tensor that was made uninitialized is so still.
        """
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            for tensor, name in zip(tensors, names, strict=True):
                shadow = _shadow_of(tensor)
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

    def _read(self, launch: Launch) -> tuple[Module, Entry, str]:
        key = _launch_key(launch)
        job = self._exported.get(key) if key is not None else None
        if job is None:
            job = export(launch, self.arch)
            if key is not None:
                self._exported[key] = job
        if job.bytecode not in self._modules:
            module = read_module(job.bytecode)
            (entry,) = module.entries.values()
            self._modules[job.bytecode] = module, entry
        return *self._modules[job.bytecode], job.kernel

    def _batches(self, machine: Machine, entry: Entry) -> Iterator[torch.Tensor]:
        x, y, z = machine.grid
        if self.options.only_block is not None:
            i, j, k = self.options.only_block
            if not (0 <= i < x and 0 <= j < y and 0 <= k < z):
                raise ValueError(f"block {(i, j, k)} is not in the grid {machine.grid}")
            yield torch.tensor([i + x * (j + y * k)])
            return
        batches = torch.arange(x * y * z).split(batch_size(entry))
        yield from reversed(batches) if self.options.reverse else batches


def _launch_key(launch: Launch) -> Any | None:
    """Return what a launch on a GPU keeps a compiled kernel by; None: its arguments are no good."""
    try:
        signature = derive_signature(launch.kernel, launch.args)
    except (TypeError, ValueError, OverflowError):
        return None  # exporting it says what is wrong
    # As text, because 1, 1.0 and True are other constants, and equal.
    return launch.kernel, signature.symbol, repr(signature.parameters)


def _elements(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _shadow_of(tensor: torch.Tensor) -> Shadow | None:
    """Return the shadow of a tensor's storage, if it was made uninitialized and only kernels wrote it since."""
    storage = tensor.untyped_storage()
    shadow: Shadow | None = getattr(storage, _SHADOW, None)
    if shadow is None or shadow.version != tensor._version or shadow.elements != _elements(tensor):  # noqa: SLF001
        return None  # the host has written it
    return shadow


def _add(memory: Memory, name: str, tensor: torch.Tensor) -> int:
    shadow = _shadow_of(tensor)
    if shadow is None:
        key = tensor.untyped_storage()._cdata  # noqa: SLF001 - one of several arguments may share a storage
        shadow = memory.shadows.get((key, tensor.element_size()))
        if shadow is None:
            shadow = Shadow(_elements(tensor), initialized=True)
            memory.shadows[key, tensor.element_size()] = shadow
    return memory.add(name, tensor, shadow)


def _flatten(memory: Memory, arguments: Sequence[Any], kernel: Any) -> Iterator[tuple[Any, torch.dtype]]:
    """Yield what the parameters of a kernel are for these arguments."""
    names = cutile.kernel_function(kernel).__code__.co_varnames
    for value, annotation, name in zip(arguments, cutile.parameter_annotations(kernel), names, strict=False):
        yield from _parameters(memory, value, annotation, name)


def _parameters(memory: Memory, value: Any, annotation: Any, name: str) -> Iterator[tuple[Any, torch.dtype]]:
    if isinstance(value, tuple):
        if annotation.KIND == "heterogeneous_tuple":
            nodes = annotation.items
        elif annotation.KIND == "homogeneous_tuple":
            nodes = (annotation.each,) * len(value)
        else:
            nodes = (annotation,) * len(value)
        for index, (item, node) in enumerate(zip(value, nodes, strict=True)):
            yield from _parameters(memory, item, node, f"{name}[{index}]")
    elif annotation.constant:
        return
    elif isinstance(value, torch.Tensor):
        yield _add(memory, name, value), torch.int64
        wide = annotation.array is not None and str(annotation.array.index_dtype) == "int64"
        for each in (*value.shape, *value.stride()):
            yield each, torch.int64 if wide else torch.int32
    elif isinstance(value, list):
        rows = [
            [_add(memory, f"{name}[{index}]", item), *item.shape, *item.stride()]
            for index, item in enumerate(value)
        ]
        table = torch.tensor(rows, dtype=torch.int64)
        yield memory.add(name, table, Shadow(table.numel(), initialized=True)), torch.int64
        yield len(value), torch.int32
    elif isinstance(value, bool):
        yield value, torch.bool
    elif isinstance(value, int):
        wide = annotation.scalar is not None and str(annotation.scalar.dtype) == "int64"
        yield value, torch.int64 if wide else torch.int32
    else:
        yield value, torch.float32
