"""Compiles exported kernels with tileiras: several at a time, each at most once, remembered on disk."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.cache import DiskCache
from pytest_cutile.tile.compiler.job import CompileJob
from pytest_cutile.tile.compiler.toolchain import toolchain_versions
from pytest_cutile.words.temporary import temporary_folder

_CACHE_FORMAT = "4"
_ASK_PERSONALITY, _ADDR_NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000  # linux/personality.h


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A kernel that tileiras accepted."""

    cubin: bytes
    """The machine code, an ELF file."""
    remarks: str | None
    """What the compiler said about its choices, as YAML; None from a tileiras that says nothing."""
    arch: str
    kernel: str
    symbol: str


class Compiler(AbstractContextManager["Compiler"]):
    """The compiler service of one run. Use as a context manager, or call `close`.

    Threads are enough to compile in parallel: tileiras is a process of its own, with one thread.
    """

    def __init__(self, *, cache_dir: Path | None, jobs: int, timeout_s: float, gpu_arch: str = "") -> None:
        """Prepare; nothing starts before the first job.

        Args:
            cache_dir: folder that keeps what was compiled from run to run; None keeps nothing.
            jobs: how many tileiras may run at a time.
            timeout_s: after so many seconds a compilation is stopped and counts as failed.
            gpu_arch: architecture of the GPU at hand: its launches find what was compiled here.
        """
        self._gpu_arch = gpu_arch
        self._cache = DiskCache(cache_dir, suffix=".cubin")
        self._pool = ThreadPoolExecutor(
            max_workers=max(1, jobs), thread_name_prefix="tileiras", initializer=_fix_addresses_of_children
        )
        self._timeout_s = timeout_s
        self._futures: dict[str, Future[Compiled]] = {}
        self.jobs: list[CompileJob] = []
        """What was submitted, each different job once."""
        self._lock = threading.Lock()

    def submit(self, job: CompileJob) -> Future[Compiled]:
        """Start compiling `job` and return at once; a job that was submitted before is not compiled again.

        The future raises CompileError when tileiras rejects the kernel or takes too long.
        """
        key = _key(job)
        with self._lock:
            if key not in self._futures:
                self.jobs.append(job)
                self._futures[key] = self._pool.submit(self._compile, job, key)
            return self._futures[key]

    def close(self) -> None:
        """Drop what has not started; what runs is waited for."""
        self._cache.closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(self, job: CompileJob, key: str) -> Compiled:
        with self._cache.making(key, wait_s=self._timeout_s) as stored:  # another process may be at it
            if stored is None:
                cubin, remarks = self._run(job)
                self._cache.write(key, msgspec.msgpack.encode((cubin, remarks)))
            else:
                cubin, remarks = msgspec.msgpack.decode(stored, type=tuple[bytes, str | None])
        if job.arch == self._gpu_arch:
            cutile.keep_for_launches(job, cubin, remarks)
        return Compiled(cubin=cubin, remarks=remarks, arch=job.arch, kernel=job.kernel, symbol=job.symbol)

    def _run(self, job: CompileJob) -> tuple[bytes, str | None]:
        with temporary_folder() as folder:
            return cutile.run_tileiras(Path(folder), job, timeout_s=self._timeout_s)


def _fix_addresses_of_children() -> None:
    """Let the processes that this thread starts have the same addresses each time, where that is allowed.

    tileiras 13.4 orders some things by their addresses: of the same kernel for sm_100 it made one of two
    cubins, which differ in the order of barriers and registers, and so in their fingerprint.
    """
    with contextlib.suppress(OSError, AttributeError):  # containers may forbid it; other systems lack it
        libc = ctypes.CDLL(None)
        current = libc.personality(_ASK_PERSONALITY)
        if current != -1:
            libc.personality(current | _ADDR_NO_RANDOMIZE)


def _key(job: CompileJob) -> str:
    """Return a digest of everything that decides what tileiras produces."""
    facts = (_CACHE_FORMAT, toolchain_versions()["tileiras"], job.arch, f"O{job.opt_level}")
    digest = hashlib.sha256("\0".join(facts).encode())
    digest.update(b"\0" + job.bytecode)
    return digest.hexdigest()
