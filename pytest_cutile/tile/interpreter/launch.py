"""Executes one launch: its bytecode, its grid and its arguments, on tensors in the CPU's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from pytest_cutile.tile.compiler.job import CompileJob
from pytest_cutile.tile.compiler.parameters import flatten
from pytest_cutile.tile.compiler.trace.launches import Launch
from pytest_cutile.tile.interpreter import ops  # noqa: F401 - registers the operations
from pytest_cutile.tile.interpreter.analysis import every_op, last_uses
from pytest_cutile.tile.interpreter.bytecode import read_module
from pytest_cutile.tile.interpreter.faults import NoSuchBlock
from pytest_cutile.tile.interpreter.ir import EntryPoint, Module, Op
from pytest_cutile.tile.interpreter.machine import Machine, batch_size, is_ordered, waits_for_others
from pytest_cutile.tile.interpreter.memory import Memory
from pytest_cutile.tile.interpreter.options import Options
from pytest_cutile.tile.interpreter.origins import Origins
from pytest_cutile.tile.interpreter.recording import Recording
from pytest_cutile.tile.interpreter.turns import MOST_BLOCKS, take_turns


def run_launch(
    job: CompileJob,
    launch: Launch,
    arguments: Sequence[Any],
    options: Options,
    recording: Recording,
    origins: Origins | None = None,
) -> dict[int, int]:
    """Run an exported kernel on `arguments`, whose tensors are in the CPU's memory.

    `origins` is told what the kernel writes.

    Returns:
        A digest of each storage that it wrote, by the identity of the storage.

    Raises:
        KernelFault: the kernel does something wrong.
        NoSuchBlock: the grid lacks the only block that is to run.
    """
    program = read_program(job.bytecode)
    memory = Memory(check_races=options.check_races, check_tiles=options.check_tiles, grid=launch.grid)
    machine = Machine(program.module, memory, launch.grid)
    machine.kernel = job.kernel
    machine.poison_padding = options.poison_padding
    parameters = [
        torch.tensor([value], dtype=dtype) for value, dtype in flatten(memory, arguments, launch.kernel)
    ]
    machine.begin_launch(program.entry, parameters)
    recording.begin_launch(machine, program.entry, parameters)
    if not machine.observers and memory.observer is None:
        machine.last_uses = program.last_uses  # a recorder may look back at any value
    machine.make_constants(program.constants)
    if origins is not None:
        origins.begin_launch(job.kernel, arguments)
    try:
        run = partial(machine.run, program.entry, parameters)
        batches = _batches(machine, program, options)
        if program.waits:
            take_turns(machine, run, batches)
        else:
            for blocks in batches:
                run(blocks)
        if origins is not None:
            origins.end_launch(memory)
        return memory.written()
    finally:
        memory.end_launch()


def communicates(job: CompileJob) -> bool:
    """Return whether a kernel has atomics, or other operations that acquire or release."""
    return read_program(job.bytecode).communicates


def _batches(machine: Machine, program: Program, options: Options) -> Iterator[torch.Tensor]:
    x, y, z = machine.grid
    if options.only_block is not None:
        i, j, k = options.only_block
        if not (0 <= i < x and 0 <= j < y and 0 <= k < z):
            raise NoSuchBlock(f"block {(i, j, k)} is not in the grid {machine.grid} of {machine.kernel}")
        yield torch.tensor([i + x * (j + y * k)])
        return
    blocks = torch.arange(x * y * z)
    size = 1 if options.one_by_one or program.waits else batch_size(program.entry)
    if options.reverse and not (program.waits and len(blocks) > MOST_BLOCKS):
        if program.communicates and not program.waits:
            # Blocks of one batch see each other's atomics. One block more or less alone sees those before it.
            blocks, size = _from_both_ends(blocks), min(size, -(-len(blocks) // _MOST_BATCHES))
        else:
            blocks = blocks.flip(0)
    if len(blocks):
        yield from blocks.split(size)


def _from_both_ends(blocks: torch.Tensor) -> torch.Tensor:
    """Return blocks with the last one first, then the first, and so on.

    What takes the first or the last block for the one that finishes the others' work finds it undone.
    """
    half = len(blocks) // 2
    order = torch.empty_like(blocks)
    order[0::2], order[1::2] = blocks[half:].flip(0), blocks[:half]
    return order


_MOST_BATCHES = 64
"""Into how many batches blocks that communicate are cut at most, to run one after the other."""


@dataclass(frozen=True)
class Program:
    """A kernel, and what its operations say before it runs."""

    module: Module
    entry: EntryPoint
    last_uses: dict[int, tuple[int, ...]]
    constants: tuple[Op, ...]
    communicates: bool
    """Whether the kernel has atomics, or other operations that acquire or release."""
    waits: bool
    """Whether a block may wait for what others do."""


@lru_cache(maxsize=256)
def read_program(bytecode: bytes) -> Program:
    module = read_module(bytecode)
    (entry,) = module.entries.values()
    constants = tuple(op for op in every_op(entry.body) if op.name == "constant")
    ordered = any(is_ordered(op) for op in every_op(entry.body))
    waits = any(waits_for_others(op) for op in every_op(entry.body))
    return Program(module, entry, last_uses(entry.body), constants, ordered, waits)
