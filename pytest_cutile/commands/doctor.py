"""`pytest-cutile doctor`: what this machine can do, gate by gate, and the command that mends what it cannot.

It imports torch and asks NVML, which no other subcommand does; both may be missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.store import summarize
from pytest_cutile.gates import REGISTRY
from pytest_cutile.tile.compiler.toolchain import (
    CompilerMissing,
    ToolMissing,
    find_tileiras,
    find_tool,
    supported_architectures,
    tool_version,
    toolchain_versions,
)
from pytest_cutile.words.document import Document, Facts, Paragraph
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.text import render_text

HELP = "show which gates work on this machine, and how to fix the others"

_TOOLS = ("cuobjdump", "nvdisasm")
_EXTRAS = {
    "pytest-benchmark": "pytest-cutile[benchmark]",
    "pytest-xdist": "pytest-cutile[xdist]",
    "hypothesis": "pytest-cutile[search]",
    "jinja2": "pytest-cutile[report]",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rootdir", type=Path, nargs="?", default=Path(), help="the project's root (default: this folder)"
    )


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    root: Path = options.rootdir.resolve()
    if not root.is_dir():
        return 2, [f"pytest-cutile doctor: {root} is no folder"]
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    document = Document(
        f"pytest-cutile {_version('pytest-cutile')}, {python}",
        [
            Facts([*_packages(), *_compiler(), *_gpus(), *_project(root)]),
            Paragraph("Gates on this machine:"),
            Facts([(gate, [text]) for gate, text in _abilities()]),
        ],
    )
    return 0, render_text(document).splitlines()


def _abilities() -> Iterator[tuple[str, str]]:
    """Yield what each gate can do on this machine, or why it cannot run and what mends that."""
    torch_problem = _import_problem("torch", "torch", "torch")
    problems = {
        "compiler": torch_problem
        or _import_problem("cuda.tile", "cuda-tile", "tileiras")
        or _first_problem(toolchain_versions, supported_architectures),
        "tools": _first_problem(*(partial(tool_version, tool) for tool in _TOOLS)),
        "GPU": torch_problem or _gpu_problem(),
        "lock": _lock_problem(),
    }
    for gate in REGISTRY:
        if problem := next(filter(None, map(problems.__getitem__, gate.needs)), ""):
            yield gate.name, f"does not work: {problem}"
        elif gate.without_gpu:
            yield gate.name, f"works: {gate.without_gpu if problems['GPU'] else 'on the GPU'}"
        else:
            yield gate.name, "works"


# -- what is installed --------------------------------------------------------------------------------


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _packages() -> Iterator[tuple[str, list[str]]]:
    yield "torch", [_version("torch") or "not installed: pip install 'pytest-cutile[torch]'"]
    extras = [
        f"{package} {_version(package) or f'is not installed: pip install {extra!r}'}"
        for package, extra in _EXTRAS.items()
    ]
    yield "extras", extras


def _import_problem(module: str, package: str, extra: str) -> str:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return f"{package} is not installed: pip install 'pytest-cutile[{extra}]'"
    except ImportError as error:  # of a shared library that is missing, say
        return f"{package} cannot be imported: {error}"
    return ""


def _compiler() -> Iterator[tuple[str, list[str]]]:
    yield "cuda-tile", [_version("cuda-tile") or "not installed: pip install 'pytest-cutile[tileiras]'"]
    try:
        architectures = supported_architectures()
        span = f"compiles for {architectures[0]} to {architectures[-1]}" if architectures else ""
        yield "tileiras", [f"{toolchain_versions()['tileiras']}, {span}", str(find_tileiras())]
    except CompilerMissing as error:
        yield "tileiras", [str(error)]
    yield "tools", [_place(tool) for tool in (*_TOOLS, "compute-sanitizer")]


def _place(tool: str) -> str:
    try:
        return str(find_tool(tool))
    except ToolMissing as error:
        return str(error).partition(" (")[0]


def _first_problem(*checks: Callable[[], object]) -> str:
    """Return what is wrong; empty if nothing is."""
    try:
        for check in checks:
            check()
    except (CompilerMissing, ToolMissing) as error:
        return str(error)
    return ""


# -- GPUs ---------------------------------------------------------------------------------------------


def _gpus() -> Iterator[tuple[str, list[str]]]:
    from pytest_cutile.timing.gpu import condition, nvml

    try:
        device, state, driver = nvml.find_gpu(), nvml.read_state(), nvml.driver_environment()
    except nvml.NoGpuError as error:
        yield "GPU", [f"none: {error}"]
        return
    others = len(nvml.visible_uuids()) - 1
    clock = f"{state.sm_clock_mhz} of {state.max_sm_clock_mhz} MHz" if state.sm_clock_mhz else "clock unknown"
    more = f", and {counted(others, 'more GPU')}" if others else ""
    yield "GPU", [f"{device.name} ({device.arch}, {device.uuid[:12]}){more}", f"{clock}, {state.celsius} C"]
    yield "driver", [", ".join(f"{name} {value}" for name, value in driver.items())]
    disturbances = condition.problems(state, condition.clock_under_load(state))
    yield "condition", [*disturbances] or ["nothing disturbs measurements"]


def _gpu_problem() -> str:
    from pytest_cutile.timing.gpu import nvml
    from pytest_cutile.timing.gpu.at_hand import torch_problem

    try:
        nvml.find_gpu()
    except nvml.NoGpuError as error:
        return f"no GPU: {error}; run it on a machine that has one"
    return torch_problem()


def _lock_problem() -> str:
    known = importlib.util.find_spec("fcntl") is not None
    return "" if known else "timing needs a lock of the GPU (flock), which this platform lacks"


# -- the project --------------------------------------------------------------------------------------


def _project(root: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        lines = summarize(root / "baselines")
    except BaselineError as error:
        lines = [str(error)]
    yield "baselines", lines or ["none in baselines/: pytest --update-baselines records them"]
    cache = root / ".pytest_cache" / "d" / "cutile"
    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) if cache.is_dir() else 0
    yield "cache", [f"{size / 2**20:.1f} MiB of compiled kernels in {cache.relative_to(root)}"]
