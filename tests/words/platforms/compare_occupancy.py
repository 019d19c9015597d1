"""Compare `occupancy` with the calculation in NVIDIA's header `cuda_occupancy.h`, which is plain C.

The header is told the threads, registers and shared memory of the SM, as CUDA would report them, and decides
itself: the blocks per SM, the units of allocation, whether the shared memory is a configuration that the
architecture has, and everything about the calculation.

`research/check_occupancy.py` prints the comparison over a dense grid, the tests check a coarse one.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cutile.words.platforms.occupancy import Limiter, occupancy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_cutile.words.platforms.data import Architecture

_SOURCE = Path(__file__).with_name("nvidia_occupancy.c")
_BITS = {
    0x01: Limiter.THREADS,
    0x02: Limiter.REGISTERS,
    0x04: Limiter.SHARED_MEMORY,
    0x08: Limiter.BLOCKS,
    # 0x10, barriers: at one per block they only ever bind where BLOCKS does.
}
_UNKNOWN = 255  # as in nvidia_occupancy.c


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of these is compared."""

    registers_per_thread: Sequence[int]
    """32-bit registers."""
    threads_per_block: Sequence[int]
    """Threads."""
    shared_bytes_per_block: Sequence[int]
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came out for one architecture."""

    known: bool
    """Whether the header knows the architecture."""
    combinations: int
    """Combinations that were compared."""
    differences: tuple[str, ...]
    """The combinations on which the two disagree, in words."""


def find_compiler() -> str | None:
    """Return a C compiler, or None."""
    return shutil.which("gcc") or shutil.which("cc")


def find_header() -> Path | None:
    """Return `cuda_occupancy.h` of the installed wheels, or else of CUDA_HOME; None if there is neither."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    folders = sorted((folder for root in roots for folder in Path(root).glob("*/include")), reverse=True)
    if "CUDA_HOME" in os.environ:
        folders.append(Path(os.environ["CUDA_HOME"], "include"))
    return next((path for folder in folders if (path := folder / "cuda_occupancy.h").is_file()), None)


def release_of(header: Path) -> tuple[int, int]:
    """Return the CUDA release of `header`, as `cuda.h` beside it says: (13, 4); (0, 0) if it does not."""
    driver_header = header.with_name("cuda.h")
    text = driver_header.read_text(errors="replace") if driver_header.is_file() else ""
    match = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", text)
    return (int(match[1]) // 1000, int(match[1]) % 1000 // 10) if match else (0, 0)


def build(compiler: str, header: Path, folder: Path) -> Path:
    """Compile the program that asks `header`, into `folder`."""
    program = folder / "nvidia_occupancy"
    subprocess.run([compiler, "-O2", "-I", header.parent, "-o", program, _SOURCE], check=True)
    return program


def shared_edges(limits: Architecture) -> list[int]:
    """Return for each number of blocks the most shared bytes per block that allow it, and one more."""
    edges = {0, limits.max_shared_bytes_per_block}
    for blocks in range(1, limits.max_blocks_per_sm + 2):
        units = limits.shared_bytes_per_sm // blocks // limits.shared_allocation_unit_bytes
        edges.add(units * limits.shared_allocation_unit_bytes - limits.reserved_shared_bytes_per_block)
    return sorted(edges | {edge + 1 for edge in edges})


def compare(program: Path, arch: str, limits: Architecture, grid: Grid) -> Comparison:
    """Ask both about every combination of `grid`."""
    capability = int(arch.removeprefix("sm_"))
    figures = (
        *divmod(capability, 10),
        limits.max_threads_per_sm,
        limits.max_threads_per_block,
        limits.registers_per_sm,
        limits.shared_bytes_per_sm,
        limits.max_shared_bytes_per_block,
        limits.reserved_shared_bytes_per_block,
    )
    axes = (grid.registers_per_thread, grid.threads_per_block, grid.shared_bytes_per_block)
    question = "\n".join(f"{len(axis)} {' '.join(map(str, axis))}" for axis in axes)
    answer = subprocess.run(
        [program, *map(str, figures)], input=question.encode(), capture_output=True, check=True
    ).stdout
    if set(answer[::2]) == {_UNKNOWN}:
        return Comparison(known=False, combinations=0, differences=())
    differences = []
    combinations = 0
    for number, (registers, threads, shared) in enumerate(itertools.product(*axes)):
        combinations += 1
        ours = occupancy(
            limits,
            registers_per_thread=registers,
            threads_per_block=threads,
            shared_bytes_per_block=shared,
        )
        blocks, factors = answer[2 * number : 2 * number + 2]
        theirs = {limiter for bit, limiter in _BITS.items() if factors & bit}
        if ours.blocks != blocks or set(ours.limited_by) != theirs:
            differences.append(
                f"{registers} registers, {threads} threads, {shared} bytes: {ours.blocks} blocks limited by "
                f"{', '.join(ours.limited_by)}; NVIDIA's {blocks} by {', '.join(sorted(theirs))}"
            )
    if 2 * combinations != len(answer):
        raise RuntimeError(f"expected {2 * combinations} bytes of {program.name}, got {len(answer)}")
    return Comparison(known=True, combinations=combinations, differences=tuple(differences))
