"""What is known about a compiled case without running it: resources, instructions, the compiler's choices.

Everything is per launch, because a launcher may launch several kernels. What could not be had (a tool is
missing, the compiler is too old) is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

# The most that can be: far above what there is, and small enough to calculate with.
Total = Annotated[int, Meta(ge=0, le=2**40)]
Executed = Annotated[int, Meta(ge=0, le=2**62)]
Small = Annotated[int, Meta(ge=0, le=2**20)]
Positive = Annotated[int, Meta(ge=1, le=2**20)]
LineNumber = Annotated[int, Meta(ge=0, le=2**31)]
Extent = Annotated[int, Meta(ge=0, le=2**31)]


class _Placed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that is about a line of the kernel's source."""

    file: str
    """Source file, relative to the rootdir where it is inside."""
    line: LineNumber
    """Line in it, from 1."""

    @property
    def place(self) -> str:
        """File and line, as editors take them."""
        return f"{self.file}:{self.line}"


class Site(_Placed, frozen=True, kw_only=True):
    """What the compiler made of one load, store or matrix product of the kernel's source."""

    operation: str
    """"load", "store" or "mma"."""
    instruction: str
    """What it became, in the compiler's words: "TMA Load", "Ldgsts", "Tensor-core SM90", "FMA"."""
    shape: Annotated[str, Meta(pattern=r"^(\d{1,9}(x\d{1,9})*)?$")] = ""
    """Shape of the instruction, e.g. "64x128x16"; empty when the compiler does not say."""
    missed: tuple[str, ...] = ()
    """Why it did not become something better, in the compiler's words."""
    text: str = ""
    """The line of source, shortened: it tells sites apart when lines move and others come between."""

    @property
    def outcome(self) -> str:
        """Instruction and shape: "TMA Load 64x128"."""
        return f"{self.instruction} {self.shape}".rstrip()


class Note(_Placed, frozen=True, kw_only=True):
    """Another remark of the compiler: a hint it took or refused, a loop it unrolled."""

    text: str


class SpillLine(_Placed, frozen=True, kw_only=True):
    """A line of the source whose code moves values between registers and local memory."""

    instructions: Total
    """Local loads and stores that come from it."""


class LaunchFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One launch of one kernel, as it was compiled."""

    kernel: str
    grid: tuple[Extent, ...]
    """Blocks, in up to three dimensions."""
    times: Annotated[int, Meta(ge=1, le=2**40)] = 1
    """How often the case launches exactly this."""
    code_bytes: Total
    threads: Positive | None = None
    """Threads per block."""
    ctas: Positive | None = None
    """Thread blocks per cluster."""
    registers: Small | None = None
    """Registers per thread."""
    stack_bytes: Total | None = None
    """Local memory on the stack of each thread: where spilled registers go."""
    local_bytes: Total | None = None
    """Further local memory of each thread."""
    static_shared_bytes: Total | None = None
    """Shared memory per block that the compiler laid out, without the 1 KiB that the system takes of it."""
    dynamic_shared_bytes: Total | None = None
    """Shared memory per block that the launch asks for in addition."""
    instruction_count: Total | None = None
    """Instructions of the machine code, not weighted by how often they run."""
    instructions: Mapping[str, Mapping[str, Total]] | None = None
    """How many of each instruction, by class: {"tensor_core": {"HGMMA": 16}, "local_load": {"LDL": 4}}."""
    executed: Mapping[str, Executed] | None = None
    """What all blocks of a launch execute together, as `tile.interpreter.executed` counts and names it."""
    sites: tuple[Site, ...] | None = None
    """What became of loads, stores and products, in source order."""
    notes: tuple[Note, ...] = ()
    """Other remarks of the compiler, in source order."""
    spill_lines: tuple[SpillLine, ...] = ()
    """Where local memory is used, most first."""

    def count(self, instruction_class: str) -> int | None:
        """Return the instructions of a class, "tensor_core" for one; None when that is unknown."""
        if self.instructions is None:
            return None
        return sum(self.instructions.get(instruction_class, {}).values())

    @property
    def shared_bytes(self) -> int | None:
        if self.static_shared_bytes is None:
            return None
        return self.static_shared_bytes + (self.dynamic_shared_bytes or 0)


class CaseFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A case as it was compiled for one architecture."""

    fingerprint: str
    """Digest of machine code and launch configuration: the same digest runs the same code in the same way."""
    source: str
    """Digest of the kernels' source, with what it was specialized for; a compiler does not change it."""
    launches: tuple[LaunchFacts, ...]
    torch_bytes: Executed | None = None
    """What torch operations of the launcher read and write; None: it was not counted."""
    missing: tuple[str, ...] = ()
    """What could not be had, and what to do about it."""

    def runs_the_same(self, other: CaseFacts) -> bool:
        """Say whether the same code is launched in the same way, beside as much work of torch."""
        moved = self.torch_bytes, other.torch_bytes
        return self.fingerprint == other.fingerprint and (None in moved or moved[0] == moved[1])
