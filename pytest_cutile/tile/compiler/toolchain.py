"""The installed toolchain: which tileiras a launch would run, its abilities, and NVIDIA's binary tools.

cuda-tile knows too, but importing it imports torch, which takes seconds. So its search is followed here:
the wheels if their versions agree, then PATH, CUDA_HOME, and the default folder of the CUDA toolkit.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from pytest_cutile.words.errors import ShownWithoutTraceback
from pytest_cutile.words.platforms.architectures import ArchitectureError, normalize_architecture

_WHEELS = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")
_TOOLS = {
    "cuobjdump": ("nvidia-cuda-cuobjdump", "static"),
    "nvdisasm": ("nvidia-cuda-nvdisasm", "static"),
    "compute-sanitizer": ("nvidia-cuda-sanitizer-api", "sanitizer"),
}
"""NVIDIA's binary tools: the wheel of each, and the extra of pytest-cutile that installs it."""
_REMARKS_SINCE = (13, 4)
_TOOL_TIMEOUT_S = 60
INSTALL = "pip install 'pytest-cutile[tileiras]'"


class CompilerMissing(ShownWithoutTraceback, RuntimeError):  # noqa: N818 - reads as a state in reports
    """cuda-tile or tileiras is not installed; the message says how to get it."""


class ToolMissing(RuntimeError):  # noqa: N818 - reads as a state in reports
    """A tool that reads compiled kernels is not installed, or does not run; the message says what to do."""


@cache
def find_tileiras() -> Path:
    if (tileiras := find_program("tileiras", _compiler_folders())) is not None:
        return tileiras
    raise CompilerMissing(
        f"cuTile's compiler tileiras is not installed, so no kernel can be compiled: {INSTALL}, "
        "or a CUDA toolkit of 13.1 or newer with its bin folder on PATH"
    )


@cache
def find_tool(name: str) -> Path:
    """Return the path of one of `_TOOLS`: that of the wheel, else that of a CUDA toolkit."""
    if (tool := find_program(name, _tool_folders())) is not None:
        return tool
    wheel, extra = _TOOLS[name]
    raise ToolMissing(
        f"{name} is not installed: pip install 'pytest-cutile[{extra}]' (the package {wheel}), "
        "or a CUDA toolkit with its bin folder on PATH"
    )


def find_program(name: str, folders: list[str]) -> Path | None:
    """Return the path of a program in one of `folders` (or of lists of them, as in PATH); None without it."""
    tool = shutil.which(name, path=os.pathsep.join(filter(None, folders)))
    return None if tool is None else Path(tool)


def run_tool(name: str, *args: str) -> str:
    """Run "cuobjdump" or "nvdisasm"; return what it prints.

    Raises:
        ToolMissing: it is not installed, or it cannot do that (an old one, asked about a new architecture).
    """
    tool = find_tool(name)
    try:
        return _output(tool, *args)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().partition("\n")[0] or f"exit status {error.returncode}"
        raise ToolMissing(
            f"{tool} failed ({reason}); a newer one may do: pip install -U {_TOOLS[name][0]}"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(f"{tool} cannot be run ({error})") from None


def _output(tool: Path, *args: str) -> str:
    done = subprocess.run(  # noqa: S603 - a tool that was found
        [str(tool), *args],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=_TOOL_TIMEOUT_S,
        check=True,
    )
    return done.stdout


@cache
def tool_version(name: str) -> str:
    """Return the release of "cuobjdump" or "nvdisasm": "13.5.37"."""
    return _release_in(run_tool(name, "--version"))


def _tool_folders() -> list[str]:
    return [*_wheel_folders(), *toolkit_folders()]


def _compiler_folders() -> list[str]:
    """Return where cuda-tile looks: the wheels only if those that make up the compiler are of one release."""
    try:
        releases = {tuple(importlib.metadata.version(name).split(".")[:2]) for name in _WHEELS}
    except importlib.metadata.PackageNotFoundError:
        releases = set()
    return _tool_folders() if len(releases) == 1 else toolkit_folders()


def _wheel_folders() -> list[str]:
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        return []
    roots = (spec.submodule_search_locations if spec is not None else None) or ()
    return [str(Path(root, "bin")) for root in roots]


def toolkit_folders() -> list[str]:
    """Return PATH, and the folders with programs of the CUDA toolkits that are installed."""
    folders = [os.environ.get("PATH", "")]
    if "CUDA_HOME" in os.environ:
        folders.append(str(Path(os.environ["CUDA_HOME"], "bin")))
    toolkits = Path("/usr/local").glob("cuda*/bin")
    return [*folders, *sorted(map(str, toolkits), key=_release, reverse=True)]


def _release(folder: str) -> tuple[float, ...]:
    """Order /usr/local/cuda, the administrator's choice, before cuda-13.4 before cuda-13.3."""
    numbers = re.findall(r"\d+", Path(folder).parent.name)
    return tuple(map(float, numbers)) or (float("inf"),)


@cache
def _ask(option: str) -> str:
    tileiras = find_tileiras()
    try:
        return _output(tileiras, option)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(f"{tileiras} {option} did not run ({error}); reinstall it: {INSTALL}") from None


def supported_architectures() -> tuple[str, ...]:
    """Return what the installed tileiras compiles for, oldest first: ("sm_80", ..., "sm_121")."""
    names = set(re.findall(r"^\s*=(sm_\d+)\b", _ask("--help"), re.MULTILINE))
    return tuple(sorted(names, key=lambda name: int(name.removeprefix("sm_"))))


def supported_architecture(name: str) -> str:
    """Return an architecture in cuTile's spelling; without a compiler nobody knows which ones it has.

    Raises:
        ArchitectureError: `name` names none, or none that the installed tileiras compiles for.
    """
    try:
        supported = supported_architectures()
    except CompilerMissing:
        return normalize_architecture(name)
    listed = ", ".join(supported)
    try:
        arch = normalize_architecture(name)
    except ArchitectureError as error:
        raise ArchitectureError(f"{error}; known: {listed}") from error
    if supported and arch not in supported:
        raise ArchitectureError(f"the installed tileiras cannot compile for {arch}; it has {listed}")
    return arch


def makes_remarks() -> bool:
    """Return whether the installed tileiras says what became of loads, stores and products (since 13.4).

    13.3 has the option, but names no source lines and says nothing of loads and stores.
    """
    release = tuple(int(part) for part in re.findall(r"\d+", _release_in(_ask("--version")))[:2])
    return release >= _REMARKS_SINCE and "--remarks-output-file" in _ask("--help")


def toolchain_versions() -> dict[str, str]:
    """Return the versions that decide the generated code: {"cuda-tile": "1.7.0", "tileiras": "13.4.92"}."""
    return {"cuda-tile": _cuda_tile_version(), "tileiras": _release_in(_ask("--version"))}


@cache  # looking it up takes a millisecond, and each compilation asks
def _cuda_tile_version() -> str:
    try:
        return importlib.metadata.version("cuda-tile")
    except importlib.metadata.PackageNotFoundError:
        raise CompilerMissing(f"cuda-tile is not installed: {INSTALL}") from None


def _release_in(answer: str) -> str:
    release = re.search(r"\bV(\d+(?:\.\d+)+)", answer)
    return release[1] if release else " ".join(answer.split())
