"""The commands that end a failure: to repeat its test with the same inputs, or to accept a regression."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from pytest_cutile.pytest_parts.options import OPTIONS
from pytest_cutile.pytest_parts.options.option import Repeat
from pytest_cutile.pytest_parts.reporting import PROPERTY
from pytest_cutile.words.settings import Settings
from pytest_cutile.words.verdicts import Verdict

if TYPE_CHECKING:
    import pytest

    from pytest_cutile.gates.base import Task
    from pytest_cutile.gates.session import Session


def arch_of(item: pytest.Item, session: Session) -> str:
    """Return the architecture that a test is about: its task's, its parameter's, else the run's."""
    task: Task | None = getattr(item, "task", None)
    if task is not None:
        return task.arch
    callspec = getattr(item, "callspec", None)
    value = callspec.params.get("arch") if callspec is not None else None
    return value if value in session.target.architectures else session.target.gpu_arch


def how_to_repeat(item: pytest.Item, session: Session) -> str:
    """Return the command that repeats a test that failed, and the seed of its inputs if it has any."""
    task: Task | None = getattr(item, "task", None)
    arch, gate = arch_of(item, session), getattr(item, "gate", None)
    if gate is not None and not gate.has_inputs:
        seed, interpreted = "", False
    else:
        from pytest_cutile.gates.correct import seed_of
        from pytest_cutile.tile.tensors.seeded import seed_from

        seed = f" (seed {seed_from(item.nodeid) if task is None else seed_of(task.case, item.nodeid)})"
        results = [value for name, value in item.user_properties if name == PROPERTY]
        measured = all(result["verdict"] != Verdict.NOT_MEASURED for result in results)  # type: ignore[index]
        interpreted = measured and session.target.interprets(arch)
    return f"Reproduce{seed}:\n  {_command(item, session.settings, arch, interpreted=interpreted)}"


def how_to_report_fault(item: pytest.Item, session: Session) -> str:
    """Return the command that writes a folder for a bug report about the compiler."""
    task: Task | None = getattr(item, "task", None)
    case = _id_here(item) if task is None else task.key
    words = ["pytest-cutile", "reproduce", case, "--arch", arch_of(item, session), "-o", "compiler-fault"]
    if given := _given(item.config):
        words.append(f"--pytest={shlex.join(given)}")
    return f"Write a folder for a bug report about tileiras:\n  {shlex.join(words)}"


def how_to_accept(item: pytest.Item, session: Session) -> str:
    command = _command(item, session.settings, arch_of(item, session), interpreted=False)
    return (
        "To accept it (the reason is stored with the baseline):\n"
        f"  {command} \\\n    --update-baselines --reason 'why it is worse'"
    )


def _command(item: pytest.Item, settings: Settings, arch: str, *, interpreted: bool) -> str:
    """Return the shell command that runs `item` alone, with the same inputs: its id is their seed."""
    config = item.config
    words = ["pytest", _id_here(item)]
    words += _given(config)
    words += _options(config, Repeat.ALWAYS)
    if settings.foreign_arch is None:
        # An id that names an architecture exists only if `--arch` lists all of them again.
        in_id = "arch" in getattr(getattr(item, "callspec", None), "params", {})
        words += ["--arch", ",".join(settings.asked) if in_id and settings.asked else arch]
    if interpreted:
        words.append("--correct-on=interpreter")
        words += _options(config, Repeat.IF_INTERPRETED)
    return shlex.join(words)


def _id_here(item: pytest.Item) -> str:
    """Return a test's id relative to the folder that this run started in; a node id is to the root folder."""
    file, colons, name = str(item.nodeid).partition("::")
    here = os.path.relpath(item.config.rootpath / file, item.config.invocation_params.dir)
    return f"{here}{colons}{name}"


def _options(config: pytest.Config, repeat: Repeat) -> list[str]:
    return [word for option in OPTIONS if option.repeat is repeat for word in option.words(config)]


def _given(config: pytest.Config) -> list[str]:
    """Return the options of pytest itself, as given, by which it finds the test."""
    options, added = config.option, config.getini("addopts")
    folder = config.invocation_params.dir
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
    # -m and -k in the ini file's addopts may deselect the test. This run's values, given instead, did not.
    for option, value in (("-m", options.markexpr), ("-k", options.keyword)):
        if any(word.startswith(option) for word in added):
            words += [option, value]
    return words
