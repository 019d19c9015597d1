"""Options about what is compared with baselines, and what is recorded as such."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_cutile.pytest_parts.options.option import Fields, Option, Repeat


def _read_baseline(config: pytest.Config) -> Fields:
    text, update = config.getoption("--perf-baseline"), config.getoption("--update-baselines")
    path = revision = None
    if text is None:
        path = config.rootpath / "baselines"
    elif text == "none":
        if update:
            raise pytest.UsageError("--perf-baseline none leaves --update-baselines no file to write to")
    elif text.startswith("git:"):
        revision = _revision(text, update=update)
    else:
        path = _path(text, config.invocation_params.dir, update=update)
    return {"baseline_path": path, "baseline_revision": revision}


def _revision(text: str, *, update: bool) -> str:
    if update:
        raise pytest.UsageError(
            f"--perf-baseline {text} compares two revisions and stores nothing: leave out --update-baselines"
        )
    revision = text.removeprefix("git:")
    if not revision:
        raise pytest.UsageError("--perf-baseline git: names no revision; give e.g. git:main or git:HEAD~1")
    return revision


def _path(text: str, folder: Path, *, update: bool) -> Path:
    if not text.strip():
        raise pytest.UsageError("--perf-baseline is empty: give a directory, a JSON file, or 'none'")
    path = Path(os.path.abspath(folder / Path(text).expanduser()))  # noqa: PTH100
    from pytest_cutile.baselines.errors import BaselineError
    from pytest_cutile.baselines.store import check_location

    try:
        check_location(path)  # also where no GPU will ask for it
    except BaselineError as error:
        raise pytest.UsageError(f"--perf-baseline: {error}") from None
    if not os.path.exists(path) and not update:  # noqa: PTH110 - Path.exists raises where a name is too long
        revision = "" if path.suffix else f"; a revision of git is --perf-baseline=git:{text}"
        raise pytest.UsageError(
            f"--perf-baseline: {text} does not exist. Check the path, or record it: pytest --perf-baseline="
            f"{text} --update-baselines{revision}"
        )
    return path


def _read_reason(config: pytest.Config) -> Fields:
    reason = config.getoption("--reason")
    if reason is not None and not config.getoption("--update-baselines"):
        raise pytest.UsageError(
            "--reason says why a slower baseline is accepted: it needs --update-baselines"
        )
    if reason is not None and not reason.strip():
        raise pytest.UsageError("--reason is empty: say why the slower figures are accepted")
    return {"reason": None if reason is None else " ".join(reason.split())}


def _read_changed_only(config: pytest.Config) -> Fields:
    given = config.getoption("--changed-only")
    if given and config.getoption("--perf-baseline") == "none":
        raise pytest.UsageError("--changed-only needs baselines to compare with, not --perf-baseline none")
    return {"changed_only": given}


CHANGED_ONLY = Option(
    name="--changed-only",
    help="Of declared kernels, run only the cases whose compiled code or launch configuration is not "
    "that of the static baselines (<arch>-static.json): what a change cannot have touched is left out.",
    read=_read_changed_only,
    in_fresh_process=False,
)

OPTIONS = (
    Option(
        name="--reason",
        metavar="TEXT",
        help="With --update-baselines: why worse figures are accepted. Stored in the baseline file.",
        read=_read_reason,
        in_fresh_process=False,
    ),
    Option(
        name="--perf-baseline",
        metavar="PATH|git:REV|none",
        help="What to compare with: a directory (or JSON file of speeds) of baselines, by default baselines/ "
        "in the rootdir; git:REV, the kernels of that revision, measured now, interleaved with the working "
        "tree's; or none, nothing. Write --perf-baseline=PATH: with a space, pytest takes a path outside the "
        "project for the place of the tests.",
        read=_read_baseline,
        repeat=Repeat.ALWAYS,
    ),
    Option(
        name="--update-baselines",
        help="Record this run as baselines: new cases, better ones, and further timings of unchanged "
        "ones. A slower one, or one that compiles to something worse, is recorded only with --reason.",
        in_fresh_process=False,
    ),
    Option(
        name="--perf-all",
        help="Measure also the cases whose code, launch and environment are those of a recorded session. "
        "Without it they pass as unchanged.",
        in_fresh_process=False,
    ),
    Option(
        name="--perf-strict",
        help="Fail also what was not measured, has no baseline, cannot be compared or stayed inconclusive. "
        "For CI on GPU runners, where a gate that measures nothing must not be green.",
        read=lambda config: {"strict": config.getoption("--perf-strict")},
        repeat=Repeat.ALWAYS,
        in_fresh_process=False,
    ),
)
