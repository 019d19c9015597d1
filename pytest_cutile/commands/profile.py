"""`pytest-cutile profile CASE [-o DIR]`: what bounds a case, by the GPU's counters.

Nsight Compute watches a pytest that launches the one case (`pytest_parts/profiled_launch.py`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pytest_cutile.commands.output import write
from pytest_cutile.reports.markdown import render_markdown
from pytest_cutile.reports.profile import profile_document
from pytest_cutile.timing.profiling.ncu import SECTIONS, ProfilingError, collect, find_ncu
from pytest_cutile.timing.profiling.profiled_case import ProfiledCase
from pytest_cutile.words.document import Document
from pytest_cutile.words.temporary import temporary_folder
from pytest_cutile.words.text import render_text

HELP = "say what bounds a case, by the GPU's counters (Nsight Compute)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", help="key of a declared case: softmax[bf16-4096x8192]; or a test's id")
    parser.add_argument(
        "--section",
        action="append",
        metavar="NAME",
        help=f"a section of Nsight Compute, once or more often (default: {', '.join(SECTIONS)})",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        default=Path("profiles"),
        metavar="DIR",
        help="gets the report (.ncu-rep), the raw counters (.csv) and the summary (.md); default: profiles/",
    )


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    report: Path = options.output / f"{file_name(options.case)}.ncu-rep"
    try:
        find_ncu()
        print(f"profiling {options.case}: Nsight Compute repeats each launch some ten times", file=sys.stderr)  # noqa: T201
        document = profile(options.case, options.section or SECTIONS, report)
    except ProfilingError as error:
        return 1, f"pytest-cutile profile: {error}".splitlines()
    write(summary := report.with_suffix(".md"), render_markdown(document, level=1))
    files = [f"wrote {file}" for file in (report, report.with_suffix(".csv"), summary)]
    return 0, [*render_text(document).splitlines(), "", *files]


def file_name(case: str) -> str:
    """Return a case's key or id as the name of a file: "softmax-bf16-4096x8192"."""
    return re.sub(r"[^\w.=+-]+", "-", case).strip("-")


def profile(case: str, sections: Sequence[str], report: Path) -> Document:
    """Launch a case under Nsight Compute; return the summary, or raise ProfilingError."""
    with temporary_folder() as folder:
        described = Path(folder) / "case.json"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts="]
        command += ["-p", "pytest_cutile.pytest_parts.profiled_launch"]
        command += ["--cutile-profile", case, str(described)]
        kernels = collect(command, sections=sections, report=report)
        return profile_document(msgspec.json.decode(described.read_bytes(), type=ProfiledCase), kernels)
