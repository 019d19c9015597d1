"""The command line and the ini file, and the one bridge from them to `Settings`."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_cutile.core.architectures import ArchitectureError, normalize_architecture
from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import read_baselines
from pytest_cutile.core.sanitizer import DEFAULT_TOOLS, TOOLS
from pytest_cutile.core.settings import CheckOn, Interpretation, SearchBudget, Settings
from pytest_cutile.core.speed_rule import Rule
from pytest_cutile.core.static_baselines import is_static
from pytest_cutile.core.static_rules import StaticRule
from pytest_cutile.core.toolchain import ToolMissing, find_tool

_ARCH_HELP = (
    "GPU architectures to gate kernels for: a comma-separated list (sm_90,sm_121), 'native' for the GPU at "
    "hand (the default where there is one), or 'all' that the installed compiler knows. Kernels are compiled "
    "for each of them; a GPU is used only if its own architecture is among them (see --correct-on)."
)
MEASURED_AGAIN = "cutile_measured_again"
"""What a fresh process is told by the one that it measures for; no option of the command line."""
SANITIZED = "cutile_sanitized"
"""What a process under compute-sanitizer is told by the one that it runs tests for; likewise no option."""
_INI: Mapping[str, dict[str, Any]] = {
    "cutile_kernels": {
        "help": "Modules and packages whose SPEC or SPECS (pytest_cutile.KernelSpec) are collected and "
        "gated.",
        "type": "linelist",
        "default": [],
    },
    "cutile_arch": {
        "help": "Architecture (or comma-separated list) to gate for when there is no GPU and no --arch.",
        "default": "sm_121",
    },
    "cutile_perf_margin": {
        "help": "Slowdown, as a fraction, that the speed gate must not miss.",
        "default": str(Rule.margin),
    },
    "cutile_static_margin": {
        "help": "Growth of registers, shared memory or spills, as a fraction, above which a kernel is worse.",
        "default": str(StaticRule.margin),
    },
    "cutile_compile_timeout": {
        "help": "Seconds after which the compilation of one kernel counts as hung.",
        "default": "300",
    },
}
"""Keys of configuration files, by their names, as `addini` takes them."""
_OWN_ARCH_DEST = "cutile_asked_arch"


def add_options(parser: pytest.Parser) -> None:
    """Register everything but `--arch`, which `add_arch_option` registers late."""
    group = parser.getgroup("cutile", "cuTile kernels (pytest-cutile)")
    group.addoption(
        "--perf-baseline",
        metavar="PATH|git:REV|none",
        help="What to compare with: a directory (or JSON file of speeds) of baselines, by default baselines/ "
        "in the rootdir; git:REV, the kernels of that revision, measured now, in turns with the working "
        "tree's; or none, nothing. Write --perf-baseline=PATH: with a space, pytest takes a path outside the "
        "project for the place of the tests.",
    )
    group.addoption(
        "--correct-on",
        metavar="auto|gpu|interpreter",
        default="auto",
        help="What correctness is checked on: a GPU of the asked architecture, and where there is none the "
        "interpreter on the CPU (auto, the default); only a GPU; or only the interpreter, which then also "
        "runs the large cases that it leaves out by itself.",
    )
    group.addoption(
        "--interpret-block",
        metavar="X[,Y[,Z]]",
        help="Interpret this block of each launch alone, and compare nothing: to look at it with ct.print or "
        "--interpret-watch.",
    )
    group.addoption(
        "--interpret-watch",
        metavar="FILE:LINE",
        help="Print each tile that is computed at this line of a kernel, as the interpreter comes by: of the "
        "block of --interpret-block, or of block 0.",
    )
    group.addoption(
        "--interpret-both-orders",
        action="store_true",
        help="Check each case twice where it is interpreted, the second time with the last block first: a "
        "result must not depend on the order of the blocks.",
    )
    group.addoption(
        "--check-strength",
        action="store_true",
        help="Where a kernel is correct, alter its result as bugs would (zeros, a tile missing, two heads "
        "exchanged, a truncating cast, the end of an input ignored), and report which of that the check of "
        "each case would have caught. Takes several times as long; decides nothing.",
    )
    group.addoption(
        "--check-layouts",
        action="store_true",
        help="Check each case, large ones too, with its inputs also in all other layouts: with padded rows, "
        "at addresses that are multiples of one element only, and with the last two axes exchanged in "
        "memory. Without it, small cases in the first two; interpreted, in the first. A launcher may refuse "
        "a layout.",
    )
    group.addoption(
        "--every-input",
        action="store_true",
        help="Check every small case of declared kernels with every kind of input (outliers, tiny, nan ...); "
        "by default the cases of a kernel share them.",
    )
    group.addoption(
        "--search",
        metavar="SECONDS",
        type=float,
        help="Also search for failing cases, for so many seconds for each declared kernel: hypothesis varies "
        "sizes, dtypes, layouts and values around those of its cases, and reports the smallest that fails.",
    )
    group.addoption(
        "--search-seed",
        metavar="N",
        type=int,
        help="With --search: another number tries other examples, the same one the same (default 0).",
    )
    group.addoption(
        "--sanitize",
        metavar="TOOL[,TOOL...]",
        nargs="?",
        const=",".join(DEFAULT_TOOLS),
        help="Run the tests that check kernels under NVIDIA's compute-sanitizer as well, on a GPU: what it "
        f"finds fails the test. Of {', '.join(TOOLS)}; by default the first three. Write --sanitize=TOOL, or "
        "--sanitize behind the paths: with a space, what follows is taken for a tool.",
    )
    group.addoption(
        "--update-baselines",
        action="store_true",
        help="Record this run as baselines: new cases, better ones, and further timings of unchanged "
        "ones. A slower one, or one that compiles to something worse, is recorded only with --reason.",
    )
    group.addoption(
        "--reason",
        metavar="TEXT",
        help="With --update-baselines: why worse figures are accepted. Stored in the baseline file.",
    )
    group.addoption(
        "--perf-strict",
        action="store_true",
        help="Fail also what was not measured, has no baseline, cannot be compared or stayed inconclusive. "
        "For CI on GPU runners, where a gate that measures nothing must not be green.",
    )
    group.addoption(
        "--changed-only",
        action="store_true",
        help="Of declared kernels, run only the cases whose compiled code or launch configuration is not "
        "that of the static baselines (<arch>-static.json): what a change cannot have touched is left out.",
    )
    group.addoption(
        "--kernel-report",
        action="store_true",
        help="Print what the kernels were compiled to: resources, blocks per multiprocessor, instructions "
        "and the compiler's remarks by source line, architectures side by side.",
    )
    group.addoption(
        "--kernel-summary",
        metavar="PATH",
        help="Append a Markdown summary of the run to PATH, failures first, such as "
        '--kernel-summary="$GITHUB_STEP_SUMMARY" for the page of a GitHub Actions job.',
    )
    for name, options in _INI.items():
        parser.addini(name, **options)


def hide_arch_from_early_parsing(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Keep the value of `--arch` from being taken for a test path while conftests are looked for.

    `--arch` is not registered yet then (`add_arch_option` says why), so "sm_121" in `--arch sm_121`
    would look like a path, and pytest would not load the conftests of `testpaths`.
    """
    if "--arch" not in args:
        return
    at = args.index("--arch")
    namespace = parser.parse_known_args([*args[:at], *args[at + 2 :]])
    early_config.known_args_namespace.file_or_dir = namespace.file_or_dir


def add_arch_option(parser: pytest.Parser, args: Sequence[str]) -> None:
    """Register `--arch` if the command line needs it and no plugin or conftest has one.

    It must wait until the initial conftests are loaded: a conftest that defines `--arch` itself gets
    an error if the name is taken, and loses its other options with it. Theirs wins, and `read_settings`
    uses its value. Conftests that pytest finds even later get the name as long as nobody typed it.
    """
    if not any(arg in ("-h", "--help", "--arch") or arg.startswith("--arch=") for arg in args):
        return
    try:
        _, unknown = parser.parse_known_and_unknown_args(["--arch=native"])
    except (pytest.UsageError, ValueError, TypeError):  # somebody's own, and this is no value for it
        return
    if unknown:
        group = parser.getgroup("cutile")
        group.addoption("--arch", metavar="ARCH[,ARCH...]", dest=_OWN_ARCH_DEST, help=_ARCH_HELP)


def read_settings(config: pytest.Config) -> Settings:
    """Build the settings of this run.

    Raises:
        pytest.UsageError: an option's value makes no sense; the message says what would.
    """
    _refuse_unknown_ini(config)
    asked, foreign = _asked_architectures(config)
    reason = config.getoption("--reason")
    if reason is not None and not config.getoption("--update-baselines"):
        raise pytest.UsageError(
            "--reason says why a slower baseline is accepted: it needs --update-baselines"
        )
    if reason is not None and not reason.strip():
        raise pytest.UsageError("--reason is empty: say why the slower figures are accepted")
    baseline = config.getoption("--perf-baseline")
    measured_again = getattr(config.option, MEASURED_AGAIN, None)
    sanitized = getattr(config.option, SANITIZED, None)
    return Settings(
        rootpath=config.rootpath,
        asked=asked,
        own_option=config.getoption(_OWN_ARCH_DEST, None) is not None,
        default_arch=config.getini("cutile_arch"),
        foreign_arch=foreign,
        baseline_path=_baseline_path(config),
        baseline_revision=_baseline_revision(config),
        baseline_option=f" --perf-baseline={shlex.quote(baseline)}" if baseline else "",
        update_baselines=config.getoption("--update-baselines"),
        reason=reason,
        strict=config.getoption("--perf-strict"),
        kernels=tuple(config.getini("cutile_kernels")),
        rule=Rule(margin=_fraction(config, "cutile_perf_margin")),
        static_rule=StaticRule(margin=_fraction(config, "cutile_static_margin")),
        changed_only=_changed_only(config),
        kernel_report=config.getoption("--kernel-report"),
        kernel_summary=_kernel_summary(config),
        compile_timeout_s=_positive(config, "cutile_compile_timeout"),
        measured_again=None if measured_again is None else Path(measured_again),
        check_strength=config.getoption("--check-strength"),
        xdist_worker=hasattr(config, "workerinput"),
        check_layouts=config.getoption("--check-layouts"),
        interpretation=_interpretation(config),
        search=_search(config),
        sanitize=_sanitize(config),
        sanitized=None if sanitized is None else Path(sanitized),
        every_input=config.getoption("--every-input"),
    )


def parse_architectures(text: str) -> tuple[str, ...]:
    """Return the canonical names in a comma-separated list, "native" and "all" as they are, without repeats.

    Raises:
        ArchitectureError: a part names no architecture, or there is none.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ArchitectureError("no architecture is named")
    names = [
        part.lower() if part.lower() in ("native", "all") else normalize_architecture(part) for part in parts
    ]
    return tuple(dict.fromkeys(names))


def _asked_architectures(config: pytest.Config) -> tuple[tuple[str, ...], str | None]:
    own = config.getoption(_OWN_ARCH_DEST, None)
    text = own if own is not None else config.getoption("--arch", None)
    if text is None:
        return (), None
    text = ",".join(map(str, text)) if isinstance(text, list | tuple) else str(text)
    try:
        return parse_architectures(text), None
    except ArchitectureError as error:
        if own is None:
            # Somebody else's --arch (a network's architecture, say): no error before a gate needs one.
            return (), text
        raise pytest.UsageError(f"--arch: {error}; {known_architectures_hint()}") from error


def known_architectures_hint() -> str:
    """Return a clause that lists the architectures of the installed compiler, or says why it cannot."""
    from pytest_cutile.core.toolchain import CompilerMissing, supported_architectures

    try:
        return f"the installed tileiras has {', '.join(supported_architectures())}"
    except CompilerMissing as error:
        return str(error)


def _baseline_path(config: pytest.Config) -> Path | None:
    text = config.getoption("--perf-baseline")
    if text is None:
        return config.rootpath / "baselines"
    if not text.strip():
        raise pytest.UsageError("--perf-baseline is empty: give a directory, a JSON file, or 'none'")
    if text == "none":
        if config.getoption("--update-baselines"):
            raise pytest.UsageError("--perf-baseline none leaves --update-baselines no file to write to")
        return None
    if text.startswith("git:"):
        return None
    if is_static(Path(text)):
        raise pytest.UsageError(
            f"--perf-baseline {text}: static baselines are a file per architecture; give their folder"
        )
    path = Path(os.path.abspath(config.invocation_params.dir / Path(text).expanduser()))  # noqa: PTH100
    if not path.exists() and not config.getoption("--update-baselines"):
        revision = "" if path.suffix else f"; a revision of git is --perf-baseline=git:{text}"
        raise pytest.UsageError(
            f"--perf-baseline: {text} does not exist. Check the path, or record it: pytest --perf-baseline="
            f"{text} --update-baselines{revision}"
        )
    if path.suffix == ".json":
        try:
            read_baselines(path)  # also where no GPU will ask for it
        except BaselineError as error:
            raise pytest.UsageError(f"--perf-baseline: {error}") from None
    return path


def _baseline_revision(config: pytest.Config) -> str | None:
    text = config.getoption("--perf-baseline")
    if text is None or not text.startswith("git:"):
        return None
    if config.getoption("--update-baselines"):
        raise pytest.UsageError(
            f"--perf-baseline {text} compares two revisions and stores nothing: leave out --update-baselines"
        )
    revision = str(text).removeprefix("git:")
    if not revision:
        raise pytest.UsageError("--perf-baseline git: names no revision; give e.g. git:main or git:HEAD~1")
    return revision


def _changed_only(config: pytest.Config) -> bool:
    asked = bool(config.getoption("--changed-only"))
    if asked and config.getoption("--perf-baseline") == "none":
        raise pytest.UsageError("--changed-only needs baselines to compare with, not --perf-baseline none")
    return asked


def _kernel_summary(config: pytest.Config) -> Path | None:
    text = config.getoption("--kernel-summary")
    if text is None or hasattr(config, "workerinput"):
        return None
    if not text.strip():
        raise pytest.UsageError("--kernel-summary is empty: give a file (is the shell variable set?)")
    path = config.invocation_params.dir / Path(text).expanduser()
    try:
        path.open("a").close()
    except OSError as error:
        raise pytest.UsageError(f"--kernel-summary: {text} cannot be written: {error.strerror}") from error
    return path


def _search(config: pytest.Config) -> SearchBudget | None:
    seconds, seed = config.getoption("--search"), config.getoption("--search-seed")
    if seconds is None:
        if seed is not None:
            raise pytest.UsageError(f"--search-seed {seed} is of a search: it needs --search SECONDS")
        return None
    if not 0 < seconds < float("inf"):
        raise pytest.UsageError(f"--search {seconds:g}: expected a positive number of seconds")
    if importlib.util.find_spec("hypothesis") is None:
        raise pytest.UsageError("--search needs hypothesis: pip install 'pytest-cutile[search]'")
    return SearchBudget(seconds=seconds, seed=seed or 0)


def _sanitize(config: pytest.Config) -> tuple[str, ...]:
    text = config.getoption("--sanitize")
    if text is None or hasattr(config, "workerinput"):
        return ()
    tools = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [tool for tool in tools if tool not in TOOLS]:
        raise pytest.UsageError(
            f"--sanitize {text}: {unknown[0]!r} is none of {', '.join(TOOLS)}; write --sanitize=memcheck, or "
            "--sanitize behind the paths"
        )
    if config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError("--sanitize starts processes of its own: leave out pytest-xdist's -n")
    if config.getoption("--correct-on") == CheckOn.INTERPRETER:
        raise pytest.UsageError("--sanitize watches a GPU: leave out --correct-on=interpreter")
    try:
        find_tool("compute-sanitizer")
    except ToolMissing as error:
        raise pytest.UsageError(f"--sanitize: {error}") from None
    return tools


def _interpretation(config: pytest.Config) -> Interpretation:
    text = config.getoption("--correct-on")
    if text not in [*CheckOn]:
        raise pytest.UsageError(f"--correct-on {text}: expected {', '.join(CheckOn)}")
    block, watch = config.getoption("--interpret-block"), config.getoption("--interpret-watch")
    both_orders = config.getoption("--interpret-both-orders")
    correct_on = CheckOn(text)
    asked = {
        "--interpret-block": block is not None,
        "--interpret-watch": watch is not None,
        "--interpret-both-orders": both_orders,
    }
    for name, given in asked.items():
        if given and correct_on is CheckOn.GPU:
            raise pytest.UsageError(f"{name} is about the interpreter: leave out --correct-on=gpu")
    if any(asked.values()):
        correct_on = CheckOn.INTERPRETER  # on a GPU they would do nothing, in silence
    if block is not None and both_orders:
        raise pytest.UsageError("--interpret-both-orders needs all blocks: leave out --interpret-block")
    return Interpretation(
        correct_on=correct_on,
        block=None if block is None else _block(block),
        watch=None if watch is None else _place(config, watch),
        both_orders=both_orders,
    )


def _block(text: str) -> tuple[int, int, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 3 or not all(re.fullmatch("[0-9]+", part) for part in parts):  # noqa: PLR2004
        raise pytest.UsageError(
            f"--interpret-block {text}: expected the numbers of a block, one to three, such as 3 or 0,2,1"
        )
    x, y, z = (*map(int, parts), 0, 0)[:3]
    return x, y, z


def _place(config: pytest.Config, text: str) -> str:
    file, _, number = text.rpartition(":")
    if not file or not re.fullmatch("[0-9]+", number):
        raise pytest.UsageError(
            f"--interpret-watch {text}: expected a file and a line, such as mykernels/softmax.py:42"
        )
    path = config.invocation_params.dir / Path(file).expanduser()
    try:
        lines = len(path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise pytest.UsageError(f"--interpret-watch: {file} cannot be read: {why}") from error
    line = int(number)
    if not 1 <= line <= lines:
        raise pytest.UsageError(f"--interpret-watch {text}: {file} has lines 1 to {lines}")
    # A source file is told by the end of its path.
    return f"{os.path.normpath(file).replace('../', '')}:{line}"


def _fraction(config: pytest.Config, name: str) -> float:
    value = _positive(config, name)
    if value >= 1:
        raise pytest.UsageError(f"{name} = {value}: expected a fraction below 1, such as 0.03 for 3 %")
    return value


def _refuse_unknown_ini(config: pytest.Config) -> None:
    """Refuse ini keys that look like this plugin's and are not: a margin that was mistyped would not hold.

    Raises:
        pytest.UsageError: there is one.
    """
    given = config._inicfg if hasattr(config, "_inicfg") else config.inicfg  # noqa: SLF001 - deprecated in 9
    for name in given:
        if not name.startswith("cutile_"):
            continue
        try:
            config.getini(name)
        except (ValueError, KeyError):
            (nearest,) = difflib.get_close_matches(name, _INI, n=1, cutoff=0.0)
            raise pytest.UsageError(f"the ini key {name!r} is unknown: did you mean {nearest!r}?") from None


def _positive(config: pytest.Config, name: str) -> float:
    text = config.getini(name)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise pytest.UsageError(f"{name} = {text!r}: expected a positive number")
    return value
