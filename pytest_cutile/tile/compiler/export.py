"""From a recorded launch to what tileiras compiles, or to an error that names the user's line."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import linecache
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.cache import DiskCache
from pytest_cutile.tile.compiler.job import CompileError, CompileJob
from pytest_cutile.tile.compiler.reach import describe_kernel
from pytest_cutile.tile.compiler.signature import derive_signature
from pytest_cutile.tile.compiler.toolchain import INSTALL, CompilerMissing, find_tileiras
from pytest_cutile.tile.compiler.trace.launches import Launch

_NO_REASON = "cuda-tile rejects it without a reason; a loop that can never end is a likely cause"

_exported: WeakKeyDictionary[FunctionType, dict[tuple[Any, ...], CompileJob]] = WeakKeyDictionary()
"""What each kernel's function was translated to, by all that decides it; a symbol says all of a signature."""
_shared = DiskCache(None, suffix=".job")
"""What all processes of a run have translated, by a digest that also says what the function reaches."""


def share_exports(folder: Path | None) -> None:
    """Let processes that share `folder` translate a kernel once, while its code and what it reaches stay."""
    global _shared  # noqa: PLW0603 - like `_exported`
    _shared = DiskCache(folder, suffix=".job")


def export(launch: Launch, arch: str) -> CompileJob:
    """Translate the kernel of `launch` to Tile IR, specialized for the launch's arguments.

    As with launches on a GPU, that is done once for a function, its hints, signature and architecture: what a
    kernel reads of its module is taken as it was the first time.

    Raises:
        CompileError: cuda-tile rejects the kernel, or the arguments it is launched with.
        CompilerMissing: cuda-tile or tileiras is not installed.
    """
    find_tileiras()  # cuda-tile asks tileiras for the newest bytecode it reads
    from cuda.tile import TileError
    from cuda.tile.compilation import export_kernel

    function = cutile.kernel_function(launch.kernel)
    file, line = function.__code__.co_filename, _definition_line(function)
    output = io.BytesIO()
    # Launchers may make a kernel anew for each launch, with hints of their own.
    known = _exported.setdefault(function, {})
    hints = cutile.compiler_hints(launch.kernel, arch)
    opt_level = cutile.optimization_level(launch.kernel, arch)
    try:
        signature = derive_signature(launch.kernel, launch.args)
        key = arch, signature.symbol, opt_level, tuple(hints.items())
        if key in known:
            return known[key]
        digest = _digest(function, key)
        if (stored := _shared.read(digest)) is not None:
            known[key] = msgspec.msgpack.decode(stored, type=CompileJob)
            return known[key]
        with _no_garbage_collection():
            export_kernel(
                launch.kernel,
                [signature],
                output,
                gpu_code=arch,
                output_format="tileir_bytecode",
                bytecode_version=cutile.bytecode_version(),
            )
    except TileError as error:
        place = error.loc
        # cuda-tile's message may quote another error, of no place of its own.
        raise CompileError(
            error.message.removesuffix("\nUnknown location") or _NO_REASON,
            kernel=function.__name__,
            arch=arch,
            file=place.filename or file,
            line=place.line if place.filename else line,
            # cuda-tile counts columns from 0
            column=place.col + 1 if place.filename else None,
            # With calls, and what ran at compile time, it takes several frames to say where.
            excerpt=str(error).removeprefix(error.message).strip("\n"),
        ) from None
    except FileNotFoundError as error:
        raise CompilerMissing(f"{error}: {INSTALL}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise CompileError(str(error), kernel=function.__name__, arch=arch, file=file, line=line) from error
    job = known[key] = CompileJob(
        bytecode=output.getvalue(),
        arch=arch,
        opt_level=opt_level,
        kernel=function.__name__,
        symbol=signature.symbol,
        file=file,
        line=line,
    )
    _shared.write(digest, msgspec.msgpack.encode(job))
    return job


def _digest(function: FunctionType, key: tuple[Any, ...]) -> str:
    """Return what tells a translation apart from all others of a run."""
    code = function.__code__
    where = code.co_filename, code.co_firstlineno, function.__qualname__
    return hashlib.sha256(repr((where, key, describe_kernel(function))).encode()).hexdigest()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect no garbage inside: among cuda-tile's many objects, that took a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _definition_line(function: FunctionType) -> int:
    """Return the line that says `def`: to Python a function begins with its first decorator."""
    first = function.__code__.co_firstlineno
    for line in range(first, first + 50):
        if linecache.getline(function.__code__.co_filename, line).lstrip().startswith("def "):
            return line
    return first
