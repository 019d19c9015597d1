"""Options about how thoroughly kernels are checked."""

from __future__ import annotations

import importlib.util

import pytest

from pytest_cutile.pytest_parts.options.option import Fields, Option, Repeat, read_with_another
from pytest_cutile.words.settings import DEFAULT_SANITIZER_TOOLS, SANITIZER_TOOLS, CheckOn, SearchBudget


def _read_search(config: pytest.Config) -> Fields:
    seconds, seed = config.getoption("--search"), config.getoption("--search-seed")
    if seconds is None:
        if seed is not None:
            raise pytest.UsageError(f"--search-seed {seed} is of a search: it needs --search SECONDS")
        return {"search": None}
    if not 0 < seconds < float("inf"):
        raise pytest.UsageError(f"--search {seconds:g}: expected a positive number of seconds")
    if importlib.util.find_spec("hypothesis") is None:
        raise pytest.UsageError("--search needs hypothesis: pip install 'pytest-cutile[search]'")
    return {"search": SearchBudget(seconds=seconds, seed=seed or 0)}


def _read_sanitize(config: pytest.Config) -> Fields:
    text = config.getoption("--sanitize")
    if text is None or hasattr(config, "workerinput"):
        return {"sanitize": ()}
    tools = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [tool for tool in tools if tool not in SANITIZER_TOOLS]:
        raise pytest.UsageError(
            f"--sanitize {text}: {unknown[0]!r} is none of {', '.join(SANITIZER_TOOLS)}; write "
            "--sanitize=memcheck, or put --sanitize last"
        )
    if config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError("--sanitize starts processes of its own: leave out pytest-xdist's -n")
    if config.getoption("--correct-on") == CheckOn.INTERPRETER:
        raise pytest.UsageError("--sanitize watches a GPU: leave out --correct-on=interpreter")
    from pytest_cutile.tile.compiler.toolchain import ToolMissing, find_tool

    try:
        find_tool("compute-sanitizer")
    except ToolMissing as error:
        raise pytest.UsageError(f"--sanitize: {error}") from None
    return {"sanitize": tools}


OPTIONS = (
    Option(
        name="--every-input",
        help="Check every small case of declared kernels with every kind of input (outliers, tiny, nan ...); "
        "by default the cases of a kernel share them. Of a launcher that tunes, check every configuration.",
        repeat=Repeat.ALWAYS,  # makes cases
    ),
    Option(
        name="--check-layouts",
        help="Check each case, large ones too, with its inputs also in all other layouts: with padded rows, "
        "at addresses that are multiples of one element only, and with the last two axes exchanged in "
        "memory. By default only small cases are checked in other layouts: the first two on a GPU, the first "
        "on the interpreter. A launcher may refuse a layout.",
        repeat=Repeat.ALWAYS,
    ),
    Option(
        name="--mutation-test",
        help="Where a kernel is correct, mutate its result as bugs would (zeros, a tile missing, two heads "
        "exchanged, a truncating cast, the end of an input ignored), and report which mutants survive the "
        "check of each case. Takes several times as long; decides nothing.",
        in_fresh_process=False,
        repeat=Repeat.ALWAYS,  # checks as a whole what is otherwise checked in parts
    ),
    Option(
        name="--search",
        metavar="SECONDS",
        type=float,
        help="Also search for failing cases, for so many seconds for each declared kernel: hypothesis varies "
        "sizes, dtypes, layouts and values around those of its cases, and reports the smallest that fails.",
        read=_read_search,
    ),
    Option(
        name="--search-seed",
        metavar="N",
        type=int,
        help="Seed of --search (default 0): the same seed tries the same examples.",
        read=read_with_another,
    ),
    Option(
        name="--sanitize",
        metavar="TOOL[,TOOL...]",
        const=",".join(DEFAULT_SANITIZER_TOOLS),
        help="Run the tests that check kernels under NVIDIA's compute-sanitizer as well, on a GPU: what it "
        f"finds fails the test. Of {', '.join(SANITIZER_TOOLS)}; by default the first three. Write "
        "--sanitize=TOOL, or put --sanitize last: a word after a space is read as TOOL.",
        read=_read_sanitize,
        in_fresh_process=False,
    ),
)
