"""The command `pytest-cutile`: what is done without pytest: a look at the machine, files of baselines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.commands import (
    bisect,
    compare,
    doctor,
    history,
    merge,
    profile,
    report,
    reproduce,
)
from pytest_cutile.words.document import printable
from pytest_cutile.words.version import version

COMMANDS = {
    "doctor": doctor,
    "report": report,
    "history": history,
    "bisect": bisect,
    "profile": profile,
    "reproduce": reproduce,
    "compare": compare,
    "merge": merge,
}
"""All subcommands, in the order of `--help`; a new one is a module in `commands/` and its entry here.

Such a module has `HELP`, `add_arguments(parser)` and `run(options)`, which returns exit status and lines.
"""

BAD_FILE = 2
"""Exit status for files that cannot be used; also that of argparse for a wrong command line."""
INTERRUPTED = 128 + 2
"""Exit status of what Ctrl-C ends."""
CLOSED_PIPE = 128 + 13
"""Exit status when the reader of the output is gone: that of a program ended by SIGPIPE (13)."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pytest-cutile", description="A look at this machine, and files of baselines."
    )
    parser.add_argument("--version", action="version", version=f"pytest-cutile {version()}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.HELP)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    options = parser.parse_args(arguments)
    try:
        status, lines = options.run(options)
    except (BaselineError, OSError) as error:
        print("pytest-cutile:", " ".join(printable(str(error)).split()), file=sys.stderr)  # noqa: T201
        return BAD_FILE
    except KeyboardInterrupt:
        print("pytest-cutile: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    try:
        for line in lines:
            print(printable(line))  # noqa: T201
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough; what is still buffered has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
