"""What the user asked for: one frozen object, built from the command line and the ini file.

Named tuples, not dataclasses: pytest imports this module at every start, and they are defined in less time.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

RUN_VARIABLE = "PYTEST_CUTILE_RUN"
"""Environment variable with the process id of the pytest process that the user started."""
SHARERS_VARIABLE = "PYTEST_CUTILE_SHARERS"
"""Environment variable with how many processes of the run use this one's GPU: one where it is not set."""
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
"""memcheck: accesses outside of allocations, misaligned ones; racecheck: hazards in shared memory; initcheck:
reads of global memory that nothing has written; synccheck: wrong use of barriers."""
DEFAULT_SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck")


class CheckOn(StrEnum):
    """What the gate `correct` runs kernels on."""

    AUTO = "auto"
    """The GPU if it is of the asked architecture, else the interpreter."""
    GPU = "gpu"
    """The GPU; without one of the asked architecture nothing is measured."""
    INTERPRETER = "interpreter"
    """The interpreter, also beside a GPU and for large cases."""


class Interpretation(NamedTuple):
    """How the gate `correct` interprets kernels on the CPU."""

    correct_on: CheckOn = CheckOn.AUTO
    """Whether it does."""
    block: tuple[int, int, int] | None = None
    """The only block that is run; None: all of them."""
    watch: str | None = None
    """File and line, counted from 1, whose tiles are printed: "kernels/softmax.py:98"."""
    both_orders: bool = False
    """Whether each check is made a second time with the blocks in reverse order."""
    poison_padding: bool = True
    """Whether a result that depends on undetermined padding is a fault; else the padding is zero."""
    check_races: bool = True
    """Whether a race between two blocks is a fault."""


class SearchBudget(NamedTuple):
    """How failing cases of declared kernels are searched for."""

    seconds: float
    """Time for each kernel."""
    seed: int = 0
    """Seed of the choice of examples."""


class Settings(NamedTuple):
    """The options of one run."""

    rootpath: Path
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
    update_baselines: bool
    reason: str | None
    """Why a worse value is accepted; stored with it."""
    strict: bool
    """Whether everything that stays undecided fails too."""
    kernels: tuple[str, ...]
    """Modules and packages that declare kernels (ini option `cutile_kernels`)."""
    perf_margin: float | None
    """Slowdown, as a fraction, that the speed gate must not miss; None: the rule's own."""
    static_margin: float
    """Growth of the predicted time or of spills, as a fraction, above which a kernel is worse."""
    changed_only: bool
    """Whether to leave out the cases whose compiled code and launch are those of the static baselines."""
    kernel_report: bool
    report_paths: Mapping[str, Path]
    """Files to write when the run ends, by option; none in workers of pytest-xdist."""
    compile_timeout_s: float
    """Seconds after which one compilation counts as hung (ini option `cutile_compile_timeout`)."""
    server_folder: Path | None
    """In a server of fresh processes that measure for another one: the folder by which the two talk."""
    keeps_facts: bool
    """Whether a report shows what was compiled."""
    xdist_worker: bool
    launch_seconds: float = 60.0
    """Seconds after which a launch on a GPU counts as hung (ini option `cutile_launch_seconds`)."""
    perf_all: bool = False
    """Whether to measure cases that are known to be unchanged, too."""
    mutation_test: bool = False
    check_layouts: bool = False
    """Whether each case is checked in all layouts of its inputs, not only in those that cost little."""
    interpretation: Interpretation = Interpretation()
    search: SearchBudget | None = None
    """Whether and how long failing cases of declared kernels are searched for (`--search`)."""
    sanitize: tuple[str, ...] = ()
    """Tools of compute-sanitizer that the tests run under as well."""
    sanitized: Path | None = None
    """In a process under compute-sanitizer, where kernels are launched and nothing is compared: the file that
    takes the tests that have run."""
    every_input: bool = False
    """Whether every small case is checked with every named input, not with its share."""
