"""Options about where correctness is checked, and how the interpreter does it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pytest_cutile.pytest_parts.options.option import Fields, Option, Repeat, read_with_another
from pytest_cutile.words.settings import CheckOn, Interpretation


def _read(config: pytest.Config) -> Fields:
    correct_on = CheckOn(config.getoption("--correct-on"))
    block, watch = config.getoption("--interpret-block"), config.getoption("--interpret-watch")
    both_orders = config.getoption("--interpret-both-orders")
    given = [word for option in _OF_INTERPRETER for word in option.words(config)]
    if given and correct_on is CheckOn.GPU:
        raise pytest.UsageError(f"{given[0]} is about the interpreter: leave out --correct-on=gpu")
    if block is not None and both_orders:
        raise pytest.UsageError("--interpret-both-orders needs all blocks: leave out --interpret-block")
    interpretation = Interpretation(
        correct_on=CheckOn.INTERPRETER if given else correct_on,  # on a GPU they would do nothing, in silence
        block=None if block is None else _block(block),
        watch=None if watch is None else _line(config, watch),
        both_orders=both_orders,
        poison_padding=config.getoption("--interpret-padding") == "poison",
        check_races=config.getoption("--interpret-races") == "fail",
    )
    return {"interpretation": interpretation}


def _block(text: str) -> tuple[int, int, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 3 or not all(re.fullmatch("[0-9]+", part) for part in parts):  # noqa: PLR2004
        raise pytest.UsageError(
            f"--interpret-block {text}: expected the numbers of a block, one to three, such as 3 or 0,2,1"
        )
    x, y, z = (*map(int, parts), 0, 0)[:3]
    return x, y, z


def _line(config: pytest.Config, text: str) -> str:
    """Return a line of an existing file as the interpreter names it: by the end of the file's path."""
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
    return f"{os.path.normpath(file).replace('../', '')}:{line}"


_OF_INTERPRETER = (
    Option(
        name="--interpret-block",
        metavar="X[,Y[,Z]]",
        help="Interpret this block of each launch alone, and compare nothing: to look at it with ct.print or "
        "--interpret-watch.",
        read=read_with_another,
    ),
    Option(
        name="--interpret-watch",
        metavar="FILE:LINE",
        help="Print each tile that is computed at this line of a kernel, for the block of --interpret-block "
        "(default: block 0).",
        read=read_with_another,
    ),
    Option(
        name="--interpret-both-orders",
        help="Check each case twice where it is interpreted, the second time with the last block first: a "
        "result must not depend on the order of the blocks.",
        read=read_with_another,
        repeat=Repeat.IF_INTERPRETED,
    ),
    Option(
        name="--interpret-padding",
        choices=("poison", "zero"),
        help="Padding of loads that have no padding_mode: a result that depends on it fails (poison, the "
        "default), or it is zero, as on many GPUs (zero).",
        read=read_with_another,
        repeat=Repeat.IF_INTERPRETED,
    ),
    Option(
        name="--interpret-races",
        choices=("fail", "ignore"),
        help="Whether an interpreted kernel fails where two blocks touch one element without atomics (fail, "
        "the default) or goes on (ignore).",
        read=read_with_another,
        repeat=Repeat.IF_INTERPRETED,
    ),
)
OPTIONS = (
    Option(
        name="--correct-on",
        choices=("auto", "gpu", "interpreter"),
        help="What correctness is checked on: a GPU of the asked architecture, and where there is none the "
        "interpreter on the CPU (auto, the default); only a GPU; or only the interpreter, which then also "
        "runs the large cases that it leaves out by itself.",
        read=_read,
    ),
    *_OF_INTERPRETER,
)
