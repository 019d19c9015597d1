"""Remembers on disk what launches execute: to count it takes as long as to compile a small kernel."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import msgspec

from pytest_cutile.tile.compiler.cache import DiskCache
from pytest_cutile.tile.compiler.job import CompileJob
from pytest_cutile.tile.compiler.parameters import LaunchParameters
from pytest_cutile.tile.interpreter.executed import count_executed
from pytest_cutile.words.platforms.lookup import stand_in


class ExecutedCache:
    """What `count_executed` returned, by all that it looks at."""

    def __init__(self, folder: Path | None) -> None:
        """Use `folder`; None keeps nothing."""
        self._cache = DiskCache(folder, suffix=".counts.json")

    def count(self, job: CompileJob, launch: LaunchParameters) -> dict[str, int] | None:
        key = _key(job, launch)
        if (stored := self._cache.read(key)) is None:
            stored = msgspec.json.encode(count_executed(job, launch))
            self._cache.write(key, stored)
        return msgspec.json.decode(stored, type=dict[str, int] | None)


def _key(job: CompileJob, launch: LaunchParameters) -> str:
    gpu = stand_in(job.arch)
    arguments = [(value, str(dtype)) for value, dtype in launch.values]
    asked = (_code_digest(), launch.grid, arguments, [*launch.array_bytes], gpu.cuda_reports, gpu.sm_count)
    return hashlib.sha256(repr(asked).encode() + b"\0" + job.bytecode).hexdigest()


@cache
def _code_digest() -> str:
    """Return a digest of the code that counts."""
    digest = hashlib.sha256()
    for path in code_that_counts():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def code_that_counts() -> list[Path]:
    """Return the files whose change may change a count: the interpreter's, and those of dtypes."""
    package = Path(__file__).parents[2]
    folders = (package / "tile" / "interpreter", package / "tile" / "tensors")
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return [*paths, package / "words" / "formats.py"]
