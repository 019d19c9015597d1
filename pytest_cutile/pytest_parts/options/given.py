"""Options of the command line by which pytest finds a test again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def given_words(config: pytest.Config, folder: Path) -> list[str]:
    """Return the options of pytest itself, as given, for a command that is run in `folder`."""
    options, added = config.option, config.getini("addopts")
    words = []
    # What the root folder depends on.
    if options.inifilename is not None:
        words += ["-c", os.path.relpath(config.inipath or options.inifilename, folder)]
    if options.rootdir is not None:
        words += ["--rootdir", os.path.relpath(config.rootpath, folder)]
    for plugin in options.plugins or ():
        words += ["-p", plugin]
    for override in options.override_ini or ():
        if not override.startswith("strict_"):  # what pytest makes of --strict-markers
            words += ["-o", override]
    # The ini file's may leave the test out, and those given in their place did not.
    for option, value in (("-m", options.markexpr), ("-k", options.keyword)):
        if any(word.startswith(option) for word in added):
            words += [option, value]
    return words
