"""`pytest-cutile reproduce CASE [-o DIR]`: a folder for a bug report about tileiras.

A pytest compiles the one case, tries the options of tileiras and writes the folder
(`pytest_parts/reproduced_case.py`).
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from pytest_cutile.commands.profile import file_name

HELP = "write a folder for a bug report about tileiras: bytecode, command line, which options crash"
_SECONDS = 120.0
_SHOWN_LINES = 40
"""Lines of pytest's output that are shown where no folder was written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", help="key of a declared case: softmax[bf16-4096x8192]; or a test's id")
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="DIR", help="gets the files; default: tileiras-CASE"
    )
    parser.add_argument("--arch", help="architecture (default: the GPU's, else the ini option cutile_arch)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=_SECONDS,
        help="how long architectures and optimization levels are tried (default: %(default)g)",
    )
    parser.add_argument(
        "--pytest", default="", metavar="OPTIONS", help="options of pytest that find the case, as one word"
    )


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    folder: Path = options.output or Path(f"tileiras-{file_name(options.case)}")
    readme = folder / "README.md"
    before = readme.stat().st_mtime_ns if readme.exists() else None
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command += ["-p", "pytest_cutile.pytest_parts.reproduced_case"]
    command += ["--cutile-reproduce", options.case, str(folder.absolute()), str(options.seconds)]
    # A GPU's own launches compile without this package.
    command += ["--correct-on=interpreter", "--perf-baseline=none"]
    command += [] if options.arch is None else ["--arch", options.arch]
    command += shlex.split(options.pytest)
    command += [options.case] if "::" in options.case else []
    print(f"compiling {options.case}, and trying tileiras for up to {options.seconds:g} s", file=sys.stderr)  # noqa: T201
    done = subprocess.run(  # noqa: S603 - no shell
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if not readme.exists() or readme.stat().st_mtime_ns == before:
        printed = done.stdout.strip().splitlines()[-_SHOWN_LINES:]
        return 1, ["pytest-cutile reproduce: nothing was compiled, so no folder was written", *printed]
    text = readme.read_text(encoding="utf-8").splitlines()
    tables = [line for line in text if line.startswith("|")]
    return 0, [text[0].removeprefix("# "), "", *tables, "", f"wrote {folder}: run `sh {folder}/reproduce.sh`"]
