"""What is known about a compiled case without running it: resources, instructions, the compiler's choices.

Everything is per launch, because a launcher may launch several kernels. What could not be had (a tool is
missing, the compiler is too old) is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

CLASS_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "tensor_core": "tensor-core instructions",
        "tma_load": "TMA loads",
        "tma_store": "TMA stores",
        "bulk_copy": "bulk copies",
        "async_copy": "asynchronous copies",
        "global_load": "global loads",
        "global_store": "global stores",
        "local_load": "local loads",
        "local_store": "local stores",
        "tensor_memory": "tensor-memory instructions",
        "barrier": "barriers",
        "special_function": "special functions",
    }
)
"""Classes of instructions that are counted, and what they are called."""


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """Something that is about a line of the kernel's source."""

    file: str
    """Source file, relative to the rootdir where it is inside."""
    line: int
    """Line in it, from 1."""

    @property
    def place(self) -> str:
        """File and line, as editors take them."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Site(_Placed):
    """What the compiler made of one load, store or matrix product of the kernel's source."""

    operation: str
    """"load", "store" or "mma"."""
    instruction: str
    """What it became, in the compiler's words: "TMA Load", "Ldgsts", "Tensor-core SM90", "FMA"."""
    shape: str = ""
    """Shape of the instruction, e.g. "64x128x16"; empty when the compiler does not say."""
    missed: tuple[str, ...] = ()
    """Why it did not become something better, in the compiler's words."""
    text: str = ""
    """The line of source, shortened: it tells sites apart when lines move and others come between."""

    @property
    def outcome(self) -> str:
        """Instruction and shape: "TMA Load 64x128"."""
        return f"{self.instruction} {self.shape}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Note(_Placed):
    """Another remark of the compiler: a hint it took or refused, a loop it unrolled."""

    text: str
    """What it says."""


@dataclass(frozen=True, kw_only=True)
class SpillLine(_Placed):
    """A line of the source whose code moves values between registers and local memory."""

    instructions: int
    """Local loads and stores that come from it."""


@dataclass(frozen=True, kw_only=True)
class LaunchFacts:
    """One launch of one kernel, as it was compiled."""

    kernel: str
    """Name of the kernel's function."""
    grid: tuple[int, ...]
    """Blocks, in up to three dimensions."""
    times: int = 1
    """How often the case launches exactly this."""
    code_bytes: int
    """Size of the machine code."""
    threads: int | None = None
    """Threads per block."""
    ctas: int | None = None
    """Thread blocks per cluster."""
    registers: int | None = None
    """Registers per thread."""
    stack_bytes: int | None = None
    """Local memory on the stack of each thread: where spilled registers go."""
    local_bytes: int | None = None
    """Further local memory of each thread."""
    static_shared_bytes: int | None = None
    """Shared memory per block that the compiler laid out, without the 1 KiB that the system takes of it."""
    dynamic_shared_bytes: int | None = None
    """Shared memory per block that the launch asks for in addition."""
    instruction_count: int | None = None
    """Instructions of the machine code, not weighted by how often they run."""
    instructions: Mapping[str, Mapping[str, int]] | None = None
    """How many of each kind, by class: {"tensor_core": {"HGMMA": 16}, "local_load": {"LDL": 4}}."""
    sites: tuple[Site, ...] | None = None
    """What became of loads, stores and products, in source order."""
    notes: tuple[Note, ...] = ()
    """Other remarks of the compiler, in source order."""
    spill_lines: tuple[SpillLine, ...] = ()
    """Where local memory is used, most first."""

    def count(self, kind: str) -> int | None:
        """Return the instructions of a class, "tensor_core" for one; None when that is unknown."""
        if self.instructions is None:
            return None
        return sum(self.instructions.get(kind, {}).values())

    @property
    def shared_bytes(self) -> int | None:
        """Shared memory per block, static and dynamic."""
        if self.static_shared_bytes is None:
            return None
        return self.static_shared_bytes + (self.dynamic_shared_bytes or 0)


@dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """A case as it was compiled for one architecture."""

    identity: str
    """Digest of machine code and launch configuration: the same digest runs the same code in the same way."""
    source: str
    """Digest of the kernels' source, with what it was specialized for; a compiler does not change it."""
    launches: tuple[LaunchFacts, ...]
    """In the order they are launched."""
    missing: tuple[str, ...] = field(default=(), compare=False)
    """What could not be had, and what to do about it."""
