"""The installed cuTile toolchain: which tileiras a launch would run, what it can compile for, its versions.

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

_WHEELS = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")
INSTALL = "pip install 'pytest-cutile[tileiras]'"
"""What to do when the compiler is missing."""


class CompilerMissing(RuntimeError):  # noqa: N818 - reads as a state in reports
    """cuda-tile or tileiras is not installed; the message says how to get it."""


@cache
def find_tileiras() -> Path:
    """Return the tileiras that a launch would run.

    Raises:
        CompilerMissing: there is none.
    """
    for folder in _folders():
        found = shutil.which("tileiras", path=folder)
        if found is not None:
            return Path(found)
    raise CompilerMissing(
        f"cuTile's compiler tileiras is not installed, so no kernel can be compiled: {INSTALL}, "
        "or a CUDA toolkit of 13.1 or newer with its bin folder on PATH"
    )


def _folders() -> list[str]:
    folders = []
    try:
        releases = {tuple(importlib.metadata.version(name).split(".")[:2]) for name in _WHEELS}
        spec = importlib.util.find_spec("nvidia.cu13") if len(releases) == 1 else None
    except (importlib.metadata.PackageNotFoundError, ModuleNotFoundError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        folders += [str(Path(root, "bin")) for root in spec.submodule_search_locations]
    folders.append(os.environ.get("PATH", ""))
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
        answer = subprocess.run(  # noqa: S603 - the compiler that was found
            [str(tileiras), option], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(f"{tileiras} {option} did not run ({error}); reinstall it: {INSTALL}") from None
    return answer.stdout


def supported_architectures() -> tuple[str, ...]:
    """Return what the installed tileiras compiles for, oldest first: ("sm_80", ..., "sm_121").

    Raises:
        CompilerMissing: there is no tileiras.
    """
    names = set(re.findall(r"^\s*=(sm_\d+)\b", _ask("--help"), re.MULTILINE))
    return tuple(sorted(names, key=lambda name: int(name.removeprefix("sm_"))))


def toolchain_versions() -> dict[str, str]:
    """Return the versions that decide the generated code: {"cuda-tile": "1.7.0", "tileiras": "13.4.92"}.

    Raises:
        CompilerMissing: cuda-tile or tileiras is missing.
    """
    try:
        cuda_tile = importlib.metadata.version("cuda-tile")
    except importlib.metadata.PackageNotFoundError:
        raise CompilerMissing(f"cuda-tile is not installed: {INSTALL}") from None
    answer = _ask("--version")
    release = re.search(r"\bV(\d+(?:\.\d+)+)", answer)
    return {"cuda-tile": cuda_tile, "tileiras": release[1] if release else " ".join(answer.split())}
