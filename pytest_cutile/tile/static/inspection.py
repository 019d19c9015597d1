"""Reads compiled kernels with NVIDIA's tools: many at a time, each once, remembered on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from pytest_cutile.tile.compiler.cache import DiskCache
from pytest_cutile.tile.compiler.fingerprint import machine_code
from pytest_cutile.tile.compiler.service import Compiled
from pytest_cutile.tile.compiler.toolchain import ToolMissing, tool_version
from pytest_cutile.tile.static.disassembly import Disassembly, read_codes, read_usage
from pytest_cutile.tile.static.facts import LaunchFacts, SpillLine
from pytest_cutile.tile.static.remarks import RemarksError, read_remarks
from pytest_cutile.words.platforms.lookup import find_architecture
from pytest_cutile.words.temporary import temporary_folder

_CACHE_FORMAT = "5"
# cuda-tile 1.7 launches with no dynamic shared memory; tests/tile/static/test_inspection.py watches it.
_DYNAMIC_SHARED_BYTES = 0
_NO_REMARKS = (
    "the installed tileiras makes no remarks, so what became of each load and product is unknown: "
    "pip install -U 'pytest-cutile[tileiras]' (13.4 or newer)"
)
_SHOWN_SPILL_LINES = 4
READ_AT_ONCE = 24
"""Kernels that nvdisasm reads at once: it takes 0.35 s to start, and 0.02 s for each kernel."""

Inspected: TypeAlias = tuple[LaunchFacts, tuple[str, ...]]
"""The facts of a kernel (no grid, absolute paths), and what could not be had, with what to do about it."""


class Inspector:
    """The service of one run that reads compiled kernels. Call `close` in the end."""

    def __init__(self, *, cache_dir: Path | None, jobs: int) -> None:
        """Prepare; nothing starts before the first kernel."""
        self._cache = DiskCache(cache_dir, suffix=".json")
        self._pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="inspect")
        self._futures: dict[Future[Compiled], Future[Inspected]] = {}

    def submit(self, compiling: Sequence[Future[Compiled]]) -> list[Future[Inspected]]:
        """Read kernels as soon as they are compiled. A future raises what its compilation raises."""
        new = [future for future in dict.fromkeys(compiling) if future not in self._futures]
        for start in range(0, len(new), READ_AT_ONCE):
            batch: dict[Future[Compiled], Future[Inspected]] = {
                future: Future() for future in new[start : start + READ_AT_ONCE]
            }
            self._futures |= batch
            self._pool.submit(self._read, batch)
        return [self._futures[future] for future in compiling]

    @property
    def progress(self) -> str:
        done = sum(future.done() for future in self._futures.values())
        return f"reading {done}/{len(self._futures)} compiled kernels"

    def close(self) -> None:
        """Drop what has not started; what runs is waited for."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, batch: Mapping[Future[Compiled], Future[Inspected]]) -> None:
        unread: list[tuple[Compiled, Future[Inspected]]] = []
        try:
            for compiling, future in batch.items():
                if (error := compiling.exception()) is not None:
                    future.set_exception(error)
                    continue
                compiled = compiling.result()
                stored = self._cache.read(_key(compiled))
                if stored is None:
                    unread.append((compiled, future))
                else:
                    future.set_result((msgspec.json.decode(stored, type=LaunchFacts), ()))
            for (compiled, future), inspected in zip(
                unread, inspect_all([compiled for compiled, _ in unread]), strict=True
            ):
                facts, missing = inspected
                if not missing:
                    self._cache.write(_key(compiled), msgspec.json.encode(facts))
                future.set_result(inspected)
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            for future in batch.values():
                if not future.done():
                    future.set_exception(error)


def inspect(compiled: Compiled) -> Inspected:
    return inspect_all([compiled])[0]


def inspect_all(compiled: Sequence[Compiled]) -> list[Inspected]:
    """Return the facts of kernels, in their order; those of one architecture are disassembled together."""
    with temporary_folder() as folder:
        cubins = [Path(folder) / f"{number}.cubin" for number in range(len(compiled))]
        for cubin, kernel in zip(cubins, compiled, strict=True):
            cubin.write_bytes(kernel.cubin)
        codes: dict[Path, Disassembly | ToolMissing] = {}
        for arch in {kernel.arch for kernel in compiled}:
            alike = [cubin for cubin, kernel in zip(cubins, compiled, strict=True) if kernel.arch == arch]
            try:
                codes |= zip(alike, read_codes(alike, arch), strict=True)
            except ToolMissing as error:
                codes |= dict.fromkeys(alike, error)
        return [
            _inspected(kernel, cubin, codes[cubin]) for cubin, kernel in zip(cubins, compiled, strict=True)
        ]


def _inspected(compiled: Compiled, cubin: Path, code: Disassembly | ToolMissing) -> Inspected:
    missing: list[str] = []
    known: dict[str, Any] = {}
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
    if isinstance(code, ToolMissing):
        missing.append(f"instructions are unknown: {code}")
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
    code_bytes = len(machine_code(compiled.cubin))
    return LaunchFacts(kernel=compiled.kernel, grid=(), code_bytes=code_bytes, **known), tuple(missing)


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
