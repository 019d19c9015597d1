"""The command line and the ini file, and the one bridge from them to `Settings`.

An option is a row of a table `OPTIONS` in one of these modules. The row says how the option is read, and
whether fresh measuring processes and the command that repeats a test pass the option on. A value that makes
no sense is a pytest.UsageError that says what would.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cutile.pytest_parts.options import baselines, checks, interpretation
from pytest_cutile.pytest_parts.options.arch import read_arch
from pytest_cutile.pytest_parts.options.ini import add_ini_keys, read_ini
from pytest_cutile.pytest_parts.options.option import Option, read_with_another
from pytest_cutile.pytest_parts.report_files import read_report_paths
from pytest_cutile.reports.formats import FORMATS
from pytest_cutile.words.settings import Settings

if TYPE_CHECKING:
    import pytest

SERVER_FOLDER = "cutile_server_folder"
"""What a fresh process gets from the one that it measures for; no option of the command line."""
SANITIZED = "cutile_sanitized"
"""What a process under compute-sanitizer gets from the one that it runs tests for; likewise no option."""

_REPORTS = (
    Option(
        name="--kernel-report",
        help="Print what the kernels were compiled to: resources, blocks per multiprocessor, instructions "
        "and the compiler's remarks by source line, architectures side by side.",
        in_fresh_process=False,
    ),
    *(
        Option(
            name=report_format.option,
            metavar="PATH",
            help=report_format.help,
            read=read_with_another,
            in_fresh_process=False,
        )
        for report_format in FORMATS
    ),
)

_GROUPS = {
    "cutile": ("what to run", (baselines.CHANGED_ONLY,)),
    "cutile-correctness": ("correctness", (*checks.OPTIONS, *interpretation.OPTIONS)),
    "cutile-baselines": ("baselines and speed", baselines.OPTIONS),
    "cutile-reports": ("reports", _REPORTS),
}
"""Groups of `--help`: title and options, by name."""

OPTIONS = tuple(option for _, options in _GROUPS.values() for option in options)
"""Every option but `--arch`."""


def add_options(parser: pytest.Parser) -> None:
    """Register everything but `--arch`, which `arch.add_arch_option` registers late."""
    for name, (title, options) in _GROUPS.items():
        group = parser.getgroup(name, f"cuTile kernels: {title}")
        for option in options:
            option.register(group)
    add_ini_keys(parser)


def read_settings(config: pytest.Config) -> Settings:
    fields = {**read_ini(config), **read_arch(config)}
    for option in OPTIONS:
        fields |= option.fields(config)
    return Settings(
        **fields,
        rootpath=config.rootpath,
        report_paths=read_report_paths(config),
        keeps_facts=fields["kernel_report"]
        or any(file.shows_code and config.getoption(file.option) for file in FORMATS),
        server_folder=_internal_path(config, SERVER_FOLDER),
        sanitized=_internal_path(config, SANITIZED),
        xdist_worker=hasattr(config, "workerinput"),
    )


def _internal_path(config: pytest.Config, name: str) -> Path | None:
    value = getattr(config.option, name, None)
    return None if value is None else Path(value)
