"""Everything that leans on cuda-tile's private parts, and nothing else.

Checked with the versions in `CHECKED_WITH`. When a later cuda-tile moves one of these parts, this module
is where it shows, as an `IncompatibleCompiler` that names the part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from pytest_cutile.tile.compiler.fault import fault_of, reason_in, text_of
from pytest_cutile.tile.compiler.job import CompileJob
from pytest_cutile.tile.compiler.process import run_process
from pytest_cutile.tile.compiler.toolchain import INSTALL, CompilerMissing, makes_remarks, toolchain_versions

CHECKED_WITH = ("1.7.0",)


class IncompatibleCompiler(CompilerMissing):
    """As good as missing: the installed cuda-tile lacks a private part that this package needs."""


def import_cutile() -> Any:
    try:
        return importlib.import_module("cuda.tile")
    except ModuleNotFoundError as error:
        if error.name not in {"cuda", "cuda.tile"}:
            raise
        raise CompilerMissing(
            f"cuda-tile is not installed, so no kernel can be compiled: {INSTALL}"
        ) from None


def _private(module: str, name: str) -> Any:
    import_cutile()
    with _relying_on(f"{module}.{name}"):
        return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def _relying_on(part: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError, KeyError, TypeError):
        raise _incompatible(part) from None


def _incompatible(part: str) -> IncompatibleCompiler:
    return IncompatibleCompiler(
        f"cuda-tile {importlib.metadata.version('cuda-tile')} has no {part}, which pytest-cutile relies on: "
        f"it was checked with cuda-tile {', '.join(CHECKED_WITH)}; "
        "install one of those, or a newer pytest-cutile"
    )


def is_kernel(candidate: object) -> bool:
    return isinstance(candidate, import_cutile().kernel)


def is_compile_error(error: BaseException) -> bool:
    """Return whether a launch on a GPU raised this because its kernel does not compile."""
    return isinstance(error, import_cutile().TileError)


def kernel_function(kernel: Any) -> FunctionType:
    with _relying_on("kernel._annotated_function.pyfunc"):
        function = kernel._annotated_function.pyfunc  # noqa: SLF001
    if not isinstance(function, FunctionType):
        raise _incompatible("kernel._annotated_function.pyfunc (a function)")
    return function


@dataclasses.dataclass(frozen=True)
class ArrayOptions:
    """How an array is annotated."""

    wide: bool = False
    """Whether lengths and strides are int64."""
    static_shape_dims: tuple[int, ...] = ()
    static_stride_dims: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Annotation:
    """How a parameter is annotated, or an item of a tuple."""

    constant: bool = False
    wide: bool = False
    """Whether an int is int64."""
    array: ArrayOptions = ArrayOptions()
    element: ArrayOptions = ArrayOptions()
    """Options of the arrays of a list."""
    items: tuple[Annotation, ...] | None = None
    """Annotations of a tuple's items, if each has its own."""
    item: Annotation | None = None
    """Annotation of a tuple's items, if all have the same."""

    @property
    def is_tuple(self) -> bool:
        """Whether only a tuple will do."""
        return self.items is not None or self.item is not None

    def of_items(self, value: tuple[Any, ...]) -> tuple[tuple[Any, Annotation], ...]:
        if self.items is None:
            return tuple((item, self.item or self) for item in value)
        return tuple(zip(value, self.items, strict=True))


def parameter_annotations(kernel: Any) -> tuple[Annotation, ...]:
    with _relying_on("kernel._annotated_function.parameter_annotations"):
        nodes = tuple(kernel._annotated_function.parameter_annotations)  # noqa: SLF001
    try:
        return tuple(_annotation(node) for node in nodes)
    except AttributeError as error:
        raise _incompatible(f"{type(error.obj).__name__}.{error.name}") from None


def _annotation(node: Any) -> Annotation:
    if node.KIND == "heterogeneous_tuple":
        return Annotation(items=tuple(_annotation(item) for item in node.items))
    if node.KIND == "homogeneous_tuple":
        return Annotation(item=_annotation(node.each))
    if node.KIND != "leaf":
        raise _incompatible(f"known KIND of annotation ({node.KIND!r})")
    return Annotation(
        constant=node.constant,
        wide=node.scalar is not None and node.scalar.dtype == import_cutile().int64,
        array=_array_options(node.array),
        element=_array_options(None if node.list is None else node.list.element),
    )


def _array_options(annotation: Any) -> ArrayOptions:
    if annotation is None:
        return ArrayOptions()
    return ArrayOptions(
        wide=annotation.index_dtype == import_cutile().int64,
        static_shape_dims=tuple(annotation.static_shape_dims),
        static_stride_dims=tuple(annotation.static_stride_dims),
    )


def native_dtype(foreign: object) -> Any | None:
    """Return cuda-tile's dtype for another library's dtype object (torch.float16); None if it is none."""
    return _private("cuda.tile._cext", "foreign_dtype_object_to_native")(foreign)


def optimization_level(kernel: Any, arch: str) -> int:
    """Return the -O level that a launch of `kernel` on `arch` would compile with."""
    with _relying_on("kernel._compiler_options.opt_level_for_target"):
        return int(kernel._compiler_options.opt_level_for_target(arch))  # noqa: SLF001


def compiler_hints(kernel: Any, arch: str) -> dict[str, Any]:
    """Return the hints that a launch of `kernel` on `arch` would compile with, but for those at default."""
    with _relying_on("kernel._compiler_options.hints_by_target"):
        options = kernel._compiler_options  # noqa: SLF001
        by_target = options.hints_by_target()
        defaults = {field.name: field.default for field in dataclasses.fields(options)}
        resolved = {**by_target["default"], **by_target.get(arch, {})}
    return {name: value for name, value in sorted(resolved.items()) if value != defaults.get(name)}


@functools.cache
def bytecode_version() -> str | None:
    """Return the version of Tile IR bytecode to export; None: cuda-tile finds it out itself.

    cuda-tile tries versions on tileiras. Of a tileiras that crashes whatever it is given, cuda-tile takes the
    oldest version, for which it rejects kernels that are right: then the release of tileiras says it.
    """
    newest = _private("cuda.tile._compile", "_get_max_supported_bytecode_version")
    with _relying_on("_compile.dev_features_enabled, _SUPPORTED_VERSIONS, default_tile_context.config"):
        compile_module = importlib.import_module("cuda.tile._compile")
        temp_dir = compile_module.default_tile_context.config.temp_dir
        allow_dev = compile_module.dev_features_enabled()
        supported = [version.as_string() for version in compile_module._SUPPORTED_VERSIONS]  # noqa: SLF001
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Failed to detect the maximum supported TileIR")
        try:
            newest(temp_dir, allow_dev=allow_dev)
        except FileNotFoundError as error:
            raise CompilerMissing(f"{error}: {INSTALL}") from None
        except (UserWarning, UnicodeDecodeError):
            release = _numbers(toolchain_versions()["tileiras"])
            return max((v for v in supported if _numbers(v) <= release), key=_numbers, default=None)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Invocation:
    """How a launch would run tileiras on a file of Tile IR bytecode."""

    tileiras: str
    flags: tuple[str, ...]
    """Architecture, optimization level, line numbers and, where tileiras makes them, remarks."""
    env: dict[str, str]

    def arguments(self, name: str) -> list[str]:
        """Return what tileiras is given to compile `name`.tileirbc; its outputs lie beside the file."""
        remarks = [f"--remarks-output-file={name}.yaml"] if makes_remarks() else []
        return [f"{name}.tileirbc", "-o", f"{name}.cubin", *self.flags, *remarks]

    @staticmethod
    def of(arch: str, opt_level: int) -> Invocation:
        """Return the program, flags and environment.

        Raises:
            CompilerMissing: tileiras is not installed.
        """
        options = _private("cuda.tile._compiler_options", "CompilerOptions")
        effective_options = _private("cuda.tile._compile", "_tileiras_effective_opt_and_device_debug")
        find_binary = _private("cuda.tile._compile", "_find_compiler_bin")
        try:
            binary = find_binary()
        except FileNotFoundError as error:
            raise CompilerMissing(f"{error}: {INSTALL}") from None
        with _relying_on("_CompilerBinary.path, .bin_path, .ld_path, .pass_cuda_home_var"):
            env = {**os.environ, "PATH": binary.bin_path, "LD_LIBRARY_PATH": binary.ld_path}
            tileiras, passes_home = binary.path, binary.pass_cuda_home_var
        if not passes_home:
            for name in ("CUDA_HOME", "CUDA_PATH"):
                env.pop(name, None)
        with _relying_on("_tileiras_effective_opt_and_device_debug"):
            level, debugs = effective_options(options(opt_level=opt_level), arch)
        flags = ["--gpu-name", arch, f"-O{level}", "--device-debug" if debugs else "--lineinfo"]
        if makes_remarks():
            flags += ["--remark-format=yaml", "--remarks=all"]
        return Invocation(tileiras=tileiras, flags=tuple(flags), env=env)


def run_tileiras(folder: Path, job: CompileJob, *, timeout_s: float) -> tuple[bytes, str | None]:
    """Compile Tile IR bytecode with the flags that a launch uses; files are left in `folder`.

    Returns the cubin and the compiler's remarks, as YAML text (None: this tileiras makes none). This goes
    around the process-wide lock of `compile_tile`, so threads compile in parallel. It also goes around
    `compile_cubin`, which keeps too little of how the process ends to tell a crash from a rejection.

    Raises:
        CompilerMissing: tileiras is not installed.
        CompilerFault: tileiras crashed, or failed without a reason.
        CompileError: tileiras rejected the kernel, or was stopped after `timeout_s` seconds.
    """
    name = folder / "kernel"
    name.with_suffix(".tileirbc").write_bytes(job.bytecode)
    cubin_file, remarks_file = name.with_suffix(".cubin"), name.with_suffix(".yaml")
    invocation = Invocation.of(job.arch, job.opt_level)
    command = [invocation.tileiras, *invocation.arguments(f"{name}")]
    try:
        ended = run_process(command, invocation.env, timeout_s=timeout_s)
    except FileNotFoundError as error:
        raise CompilerMissing(f"{error}: {INSTALL}") from None
    except OSError as error:
        raise CompilerMissing(f"{invocation.tileiras} cannot be run ({error}): {INSTALL}") from None
    if ended.was_stopped:
        raise job.stopped(
            f"tileiras was stopped after {timeout_s:g} s. Smaller tiles compile faster; or allow more time "
            "with the ini option cutile_compile_timeout"
        )
    cubin = cubin_file.read_bytes() if cubin_file.exists() else b""
    printed = text_of(ended.output)
    if (fault := fault_of(ended, cubin)) is not None:
        versions = ", ".join(f"{name} {version}" for name, version in toolchain_versions().items())
        raise fault.error(job, tried=f"{' '.join(invocation.flags)} ({versions})", printed=reason_in(printed))
    if ended.status != 0:
        message, place = _private("cuda.tile._compile", "_parse_tileir_stderr")(reason_in(printed))
        raise job.rejected(message.strip(), place.filename, place.line, place.col)
    remarks = None
    if makes_remarks():
        # With nothing to say, tileiras writes no file.
        exists = remarks_file.exists()
        remarks = remarks_file.read_text(encoding="utf-8", errors="replace") if exists else ""
    return cubin, remarks


def keep_for_launches(job: CompileJob, cubin: bytes, remarks: str | None) -> None:
    """Put a kernel into cuda-tile's own cache, so that a launch on a GPU does not compile it once more.

    Where that cache is off, or another release keeps it elsewhere, launches compile: it only takes time.
    """
    with contextlib.suppress(ImportError, AttributeError, TypeError, IncompatibleCompiler):
        cache = importlib.import_module("cutile_cache._cache")
        folder = _private("cuda.tile._cext", "default_tile_context").config.cache_dir
        version = _private("cuda.tile._compile", "_get_compiler_version_string")()
        if folder is not None and version is not None:
            key = cache.cache_key(version, job.arch, job.opt_level, job.bytecode)
            metadata = cache.MetadataV1(
                kernel_names=[job.symbol], compiler_version=version.strip(), remarks=remarks or ""
            )
            cache.cache_store(folder, key, cubin, metadata.to_dict())
