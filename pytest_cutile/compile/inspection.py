"""Reads compiled kernels with NVIDIA's tools: several at a time, each once, remembered on disk."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cutile.compile.cache import DiskCache
from pytest_cutile.compile.disassembly import read_code, read_usage
from pytest_cutile.compile.identity import code_bytes
from pytest_cutile.compile.remarks import RemarksError, read_remarks
from pytest_cutile.core.multiprocessor import limits_of
from pytest_cutile.core.static_facts import CaseFacts, LaunchFacts, SpillLine
from pytest_cutile.core.static_json import from_json, to_json
from pytest_cutile.core.toolchain import ToolMissing, tool_version

if TYPE_CHECKING:
    from pytest_cutile.compile.compiler import Compiled

_CACHE_FORMAT = "4"
# cuda-tile 1.7 launches with no dynamic shared memory; tests/compile/test_inspection.py watches it.
_DYNAMIC_SHARED_BYTES = 0
_NO_REMARKS = (
    "the installed tileiras makes no remarks, so what became of each load and product is unknown: "
    "pip install -U 'pytest-cutile[tileiras]' (13.4 or newer)"
)
_SHOWN_SPILL_LINES = 4
_WAIT_S = 30.0


class Inspector:
    """The service of one run that reads compiled kernels. Call `close` in the end."""

    def __init__(self, *, cache_dir: Path | None, jobs: int) -> None:
        """Prepare; nothing starts before the first kernel.

        Args:
            cache_dir: folder that keeps what was found from run to run; None keeps nothing.
            jobs: how many kernels are read at a time.
        """
        self._cache = DiskCache(cache_dir, suffix=".json")
        self._pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="inspect")
        self._futures: dict[str, Future[tuple[LaunchFacts, tuple[str, ...]]]] = {}
        self._lock = threading.Lock()

    def submit(self, compiling: Future[Compiled]) -> Future[tuple[LaunchFacts, tuple[str, ...]]]:
        """Read a kernel as soon as it is compiled.

        The future gives its facts (its grid is empty, its paths are absolute) and what could not be had,
        with what to do about it. It raises what `compiling` raises.
        """
        return self._pool.submit(lambda: self._inspect_once(compiling.result()))

    def close(self) -> None:
        """Drop what has not started; what runs is waited for."""
        self._cache.closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _inspect_once(self, compiled: Compiled) -> tuple[LaunchFacts, tuple[str, ...]]:
        key = _key(compiled)
        with self._lock:
            future = self._futures.get(key)
            mine = future is None
            if future is None:
                future = self._futures[key] = Future()
        if mine:
            try:
                future.set_result(self._inspect(compiled, key))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    def _inspect(self, compiled: Compiled, key: str) -> tuple[LaunchFacts, tuple[str, ...]]:
        stored = self._cache.read(key)
        if stored is None:
            with self._cache.making(key, wait_s=_WAIT_S) as stored:
                if stored is None:
                    facts, missing = inspect(compiled)
                    if not missing:
                        self._cache.write(key, _pack(facts))
                    return facts, missing
        return _unpack(stored), ()


def inspect(compiled: Compiled) -> tuple[LaunchFacts, tuple[str, ...]]:
    """Return what is in a compiled kernel, and what could not be had, with what to do about it."""
    missing: list[str] = []
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="pytest-cutile-") as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.cubin)
        try:
            usage = read_usage(cubin, compiled.symbol)
        except ToolMissing as error:
            missing.append(f"registers, shared memory and threads are unknown: {error}")
        else:
            found.update(
                registers=usage.registers,
                stack_bytes=usage.stack_bytes,
                local_bytes=usage.local_bytes,
                static_shared_bytes=max(0, usage.shared_bytes - _reserved_shared_bytes(compiled.arch)),
                dynamic_shared_bytes=_DYNAMIC_SHARED_BYTES,
                threads=usage.threads,
                ctas=usage.ctas,
            )
        try:
            code = read_code(cubin)
        except ToolMissing as error:
            missing.append(f"instructions are unknown: {error}")
        else:
            lines = [SpillLine(file=file, line=line, instructions=n) for file, line, n in code.spills]
            found.update(
                instruction_count=code.instruction_count,
                instructions=code.instructions,
                spill_lines=tuple(lines[:_SHOWN_SPILL_LINES]),
            )
    if compiled.remarks is None:
        missing.append(_NO_REMARKS)
    else:
        try:
            found["sites"], found["notes"] = read_remarks(compiled.remarks)
        except RemarksError as error:
            missing.append(f"what became of loads and products is unknown: {error}")
    facts = LaunchFacts(kernel=compiled.kernel, grid=(), code_bytes=code_bytes(compiled.cubin), **found)
    return facts, tuple(missing)


def _reserved_shared_bytes(arch: str) -> int:
    """Return how much of the shared memory in a cubin is not the kernel's: what the system takes per block.

    Cubins for sm_90 and newer contain it, if the kernel has any itself; those for sm_8x do not.
    """
    limits = limits_of(arch)
    return limits.reserved_shared_bytes_per_block if limits is not None and limits.has_clusters else 0


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


def _pack(facts: LaunchFacts) -> bytes:
    return json.dumps(to_json(CaseFacts(identity="", source="", launches=(facts,)))).encode()


def _unpack(stored: bytes) -> LaunchFacts:
    return from_json(json.loads(stored)).launches[0]
