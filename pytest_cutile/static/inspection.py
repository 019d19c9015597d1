"""Reads compiled kernels with NVIDIA's tools: several at a time, each once, remembered on disk."""

from __future__ import annotations

import hashlib
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from pytest_cutile.compiler.cache import DiskCache
from pytest_cutile.compiler.fingerprint import code_bytes
from pytest_cutile.compiler.service import Compiled
from pytest_cutile.compiler.toolchain import ToolMissing, tool_version
from pytest_cutile.platforms.lookup import find_architecture
from pytest_cutile.static.disassembly import read_code, read_usage
from pytest_cutile.static.facts import LaunchFacts, SpillLine
from pytest_cutile.static.remarks import RemarksError, read_remarks

_CACHE_FORMAT = "5"
# cuda-tile 1.7 launches with no dynamic shared memory; tests/static/test_inspection.py watches it.
_DYNAMIC_SHARED_BYTES = 0
_NO_REMARKS = (
    "the installed tileiras makes no remarks, so what became of each load and product is unknown: "
    "pip install -U 'pytest-cutile[tileiras]' (13.4 or newer)"
)
_SHOWN_SPILL_LINES = 4
_WAIT_S = 30.0

Inspected: TypeAlias = tuple[LaunchFacts, tuple[str, ...]]
"""The facts of a kernel (no grid, absolute paths), and what could not be had, with what to do about it."""


class Inspector:
    """The service of one run that reads compiled kernels. Call `close` in the end."""

    def __init__(self, *, cache_dir: Path | None, jobs: int) -> None:
        """Prepare; nothing starts before the first kernel."""
        self._cache = DiskCache(cache_dir, suffix=".json")
        self._pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="inspect")
        self._futures: dict[Future[Compiled], Future[Inspected]] = {}

    def submit(self, compiling: Future[Compiled]) -> Future[Inspected]:
        """Read a kernel as soon as it is compiled. The future raises what `compiling` raises."""
        if compiling not in self._futures:
            self._futures[compiling] = self._pool.submit(lambda: self._inspect(compiling.result()))
        return self._futures[compiling]

    @property
    def progress(self) -> str:
        """How much has been read, in words."""
        done = sum(future.done() for future in self._futures.values())
        return f"reading {done}/{len(self._futures)} compiled kernels"

    def close(self) -> None:
        """Drop what has not started; what runs is waited for."""
        self._cache.closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _inspect(self, compiled: Compiled) -> Inspected:
        key = _key(compiled)
        with self._cache.making(key, wait_s=_WAIT_S) as stored:
            if stored is None:
                facts, missing = inspect(compiled)
                if not missing:
                    self._cache.write(key, msgspec.json.encode(facts))
                return facts, missing
        return msgspec.json.decode(stored, type=LaunchFacts), ()


def inspect(compiled: Compiled) -> Inspected:
    missing: list[str] = []
    known: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="pytest-cutile-") as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.cubin)
        try:
            usage = read_usage(cubin, compiled.symbol)
        except ToolMissing as error:
            missing.append(f"registers, shared memory and threads are unknown: {error}")
        else:
            shared_bytes = usage.pop("shared_bytes") - _reserved_shared_bytes(compiled.arch)
            known.update(
                usage,
                static_shared_bytes=max(0, shared_bytes),
                dynamic_shared_bytes=_DYNAMIC_SHARED_BYTES,
            )
        try:
            code = read_code(cubin)
        except ToolMissing as error:
            missing.append(f"instructions are unknown: {error}")
        else:
            lines = [SpillLine(file=file, line=line, instructions=n) for file, line, n in code.spills]
            known.update(
                instruction_count=code.instruction_count,
                instructions=code.instructions,
                spill_lines=tuple(lines[:_SHOWN_SPILL_LINES]),
            )
    if compiled.remarks is None:
        missing.append(_NO_REMARKS)
    else:
        try:
            known["sites"], known["notes"] = read_remarks(compiled.remarks)
        except RemarksError as error:
            missing.append(f"what became of loads and products is unknown: {error}")
    facts = LaunchFacts(kernel=compiled.kernel, grid=(), code_bytes=code_bytes(compiled.cubin), **known)
    return facts, tuple(missing)


def _reserved_shared_bytes(arch: str) -> int:
    """Return how much of the shared memory in a cubin is not the kernel's: what the system takes per block.

    Cubins for sm_90 and newer contain it, if the kernel has any itself; those for sm_8x do not.
    """
    architecture = find_architecture(arch)
    if architecture is None or not architecture.has_clusters:
        return 0
    return architecture.reserved_shared_bytes_per_block


def _key(compiled: Compiled) -> str:
    versions = []
    for tool in ("cuobjdump", "nvdisasm"):
        try:
            versions.append(tool_version(tool))
        except ToolMissing:
            versions.append("")
    digest = hashlib.sha256("\0".join((_CACHE_FORMAT, *versions, compiled.kernel)).encode())
    for part in (compiled.cubin, (compiled.remarks or "").encode()):
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()
