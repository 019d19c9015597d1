"""What the user asked for: one frozen object, built from the command line and the ini file."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pytest_cutile.core.speed_rule import Rule
from pytest_cutile.core.static_rules import StaticRule

RUN_VARIABLE = "PYTEST_CUTILE_RUN"
"""Environment variable with the process id of the pytest process that the user started."""
SHARERS_VARIABLE = "PYTEST_CUTILE_SHARERS"
"""Environment variable with how many processes of the run use this one's GPU: one where it is not set."""


class CheckOn(StrEnum):
    """What the gate `correct` runs kernels on."""

    AUTO = "auto"
    """The GPU if it is of the asked architecture, else the interpreter."""
    GPU = "gpu"
    """The GPU; without one of the asked architecture nothing is measured."""
    INTERPRETER = "interpreter"
    """The interpreter, also beside a GPU and for large cases."""


@dataclass(frozen=True, kw_only=True)
class Interpretation:
    """How the gate `correct` interprets kernels on the CPU."""

    correct_on: CheckOn = CheckOn.AUTO
    """Whether it does."""
    block: tuple[int, int, int] | None = None
    """The only block that is run; None: all of them."""
    watch: str | None = None
    """File and line, counted from 1, whose tiles are printed: "kernels/softmax.py:98"."""
    both_orders: bool = False
    """Whether each check is made a second time with the blocks in reverse order."""


@dataclass(frozen=True, kw_only=True)
class SearchBudget:
    """How failing cases of declared kernels are searched for."""

    seconds: float
    """Time for each kernel."""
    seed: int = 0
    """Of the choice of examples."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of one run."""

    rootpath: Path
    """pytest's rootdir."""
    asked: tuple[str, ...]
    """Architectures as asked for: canonical names, "native" or "all"; empty when nothing was asked."""
    own_option: bool
    """Whether they come from this plugin's `--arch`, not from another plugin's or a conftest's."""
    default_arch: str
    """Architecture when nothing was asked and there is no GPU (ini option `cutile_arch`)."""
    foreign_arch: str | None
    """The value of an `--arch` that another plugin or conftest owns, when it names no architecture."""
    baseline_path: Path | None
    """Directory or file of baselines; None: compare with nothing that is stored."""
    baseline_revision: str | None
    """The git revision whose kernels are compared with (`--perf-baseline git:REV`)."""
    baseline_option: str
    """How the path was given on the command line, for commands in messages; empty when it was not."""
    update_baselines: bool
    """Whether to record baselines."""
    reason: str | None
    """Why a worse value is accepted; stored with it."""
    strict: bool
    """Whether everything that stays undecided fails too."""
    kernels: tuple[str, ...]
    """Modules and packages that declare kernels (ini option `cutile_kernels`)."""
    rule: Rule
    """Thresholds of the speed gate."""
    static_rule: StaticRule
    """Thresholds of the static gate."""
    changed_only: bool
    """Whether to leave out the cases whose compiled code and launch are those of the static baselines."""
    kernel_report: bool
    """Whether to print what was compiled, kernel by kernel."""
    kernel_summary: Path | None
    """File to which a Markdown summary is appended; None in workers of pytest-xdist."""
    compile_timeout_s: float
    """Seconds after which one compilation counts as hung (ini option `cutile_compile_timeout`)."""
    measured_again: Path | None
    """In a fresh process that measures for another one: the file that takes what is measured."""
    xdist_worker: bool
    """Whether this process is a pytest-xdist worker."""
    check_strength: bool = False
    """Whether to try what else the check of each case would have caught."""
    check_layouts: bool = False
    """Whether each case is checked with its inputs in all layouts, not only in those that cost little."""
    interpretation: Interpretation = field(default_factory=Interpretation)
    """Whether and how kernels are interpreted."""
    search: SearchBudget | None = None
    """Whether and how long failing cases of declared kernels are searched for (`--search`)."""
    sanitize: tuple[str, ...] = ()
    """Tools of compute-sanitizer that the tests run under as well."""
    sanitized: Path | None = None
    """In a process under compute-sanitizer, where kernels are launched and nothing is compared: the file that
    takes the tests that have run."""
    every_input: bool = False
    """Whether every small case is checked with every named input (`--every-input`), not with its share."""
