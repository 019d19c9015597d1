"""Measuring in a fresh process: the same tests, run by another pytest that judges nothing.

What makes two processes differ (where memory lies, how a library starts) differs in every process anew: that
is why a slowdown is believed only when fresh ones show it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cutile.pytest_parts.options import MEASURED_AGAIN, OPTIONS
from pytest_cutile.settings import SHARERS_VARIABLE

if TYPE_CHECKING:
    import pytest

    from pytest_cutile.speed.measure.blocks import MeasurementFailed
    from pytest_cutile.speed.measure.timing import Measurement
    from pytest_cutile.speed.pending import PendingCase

LINGER_SECONDS = 2.0
"""How long one that has measured everything may take to end."""
SECONDS, SECONDS_PER_CASE = 300, 30
"""After how long a fresh process counts as hung: to start, and for each case."""

_NEUTRAL: Mapping[str, Any] = {
    # Selection, reports and debuggers belong to the run that asks; caches and baselines are only read.
    **dict.fromkeys(("keyword", "markexpr"), ""),
    **dict.fromkeys(("deselect", "ignore", "ignore_glob", "tx", "px"), None),
    **dict.fromkeys(("numprocesses", "maxprocesses", "xmlpath", "report_log", "htmlpath", "basetemp"), None),
    **dict.fromkeys(("debug", "allure_report_dir"), None),
    **dict.fromkeys(("usepdb", "trace", "collectonly", "cacheclear", "lf", "failedfirst", "newfirst"), False),
    **dict.fromkeys(("stepwise", "stepwise_skip", "setuponly", "setupshow", "setupplan"), False),
    **dict.fromkeys(("benchmark_only", "benchmark_skip", "benchmark_enable"), False),
    **dict.fromkeys(("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare"), None),
    **dict.fromkeys(("benchmark_histogram", "benchmark_cprofile"), None),
    "log_file": os.devnull,  # None would be the ini file's, which the run itself writes to
    "cov_source": [],
    **{option.dest: option.default for option in OPTIONS if not option.in_fresh_process},
    "dist": "no",
    "maxfail": 0,
    "verbose": 0,
    "benchmark_disable": True,
}


_DIE_WITH_PARENT = """
import ctypes
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it does not outlive who asked
"""
PROGRAM = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    path, options, args = pickle.load(file)
sys.path[:] = [*dict.fromkeys([*path, *sys.path])]
from _pytest.config import Config
config = Config.fromdictargs(options, args)
try:
    sys.exit(int(config.hook.pytest_cmdline_main(config=config) or 0))
finally:
    config._ensure_unconfigure()
"""
"""Runs the tests with another process's options, as pytest-xdist's workers do.

It imports nothing of this package before pytest does: pytest warns of what it cannot rewrite any more.
"""


class FreshProcess:
    """Measures cases once more, all of them in one fresh process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def __call__(
        self, cases: Sequence[PendingCase], revision: str
    ) -> Mapping[str, Measurement | MeasurementFailed]:
        """Return what was measured, by key; interleaved with `revision` if that is not empty."""
        screenings = {case.case.key: case.screening for case in cases}
        try:
            # What it started may still write there: that makes no measurement wrong.
            with tempfile.TemporaryDirectory(prefix="pytest-cutile-", ignore_cleanup_errors=True) as name:
                folder = Path(name)
                output = folder / "measured.jsonl"
                changes = {MEASURED_AGAIN: str(output), "perf_baseline": self._baseline(revision)}
                state = state_of(self._config, [case.case.nodeid for case in cases], changes)
                (folder / "state").write_bytes(pickle.dumps(state))
                said = self._run(folder, screenings.keys())
                return _read(_lines(output), screenings, said)
        except OSError as error:  # a full disk, no memory for a process
            return _read([], screenings, f"it could not be run: {error}")

    def _baseline(self, revision: str) -> str | None:
        """Return a revision to pair with; stored baselines do not matter where nothing is judged."""
        asked = self._config.option.perf_baseline
        if revision:
            return f"git:{revision}"
        return asked if asked is not None and asked.startswith("git:") else None

    def _run(self, folder: Path, keys: AbstractSet[str]) -> str:
        """Run the fresh process until it has measured; return what went wrong, or nothing."""
        timeout = SECONDS + SECONDS_PER_CASE * len(keys)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")
        }
        # Those that share the GPU with this process, itself among them, and the fresh one.
        environment[SHARERS_VARIABLE] = str(int(environment.get(SHARERS_VARIABLE, "1")) + 1)
        command = [sys.executable, "-c", _DIE_WITH_PARENT + PROGRAM, str(folder / "state")]
        with (folder / "log").open("w+b") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                cwd=self._config.invocation_params.dir,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that all it starts can be stopped with it
            )
            try:
                said = _wait(process, folder / "measured.jsonl", keys, timeout)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            log.seek(0)
            last = log.read().decode(errors="replace").strip().splitlines()[-8:]
        return "\n".join([said, *last]) if said else ""


def state_of(
    config: pytest.Config, nodeids: Sequence[str], changes: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any], list[str]]:
    """Return what a fresh process needs to run tests as this one does: path, options, arguments.

    Args:
        config: of this process.
        nodeids: the tests.
        changes: options that are others there, by the names that they have in `config.option`.
    """
    options = {name: value for name, value in vars(config.option).items() if _travels(value)}
    neutral = {name: value for name, value in _NEUTRAL.items() if name in options}
    plugins = [name for name in options.get("plugins") or [] if name != "no:terminal"]
    options |= {
        **neutral,
        "plugins": plugins,
        "rootdir": str(config.rootpath),
        "inifilename": None if config.inipath is None else str(config.inipath),
        **changes,
    }
    args = [f"{config.rootpath}/{nodeid}" for nodeid in dict.fromkeys(nodeids)]
    early = [part for name in plugins for part in ("-p", name)]
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - "" is this folder
    return path, options, ["-p", "no:cov", *early, *args]


def _wait(process: subprocess.Popen[bytes], output: Path, keys: AbstractSet[str], timeout: float) -> str:
    """Wait for a fresh process; return what went wrong. One that has measured all need not end by itself."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            code = process.wait(LINGER_SECONDS)
        except subprocess.TimeoutExpired:
            if keys <= {data["key"] for data in _lines(output)}:
                return ""
        else:
            return f"it ended with status {code}" if code else ""
    return f"it did not end within {timeout:.0f} s"


def _lines(output: Path) -> list[dict[str, Any]]:
    """Return what a fresh process has written so far; a line that it was killed in is none."""
    written = []
    for line in output.read_text().splitlines() if output.exists() else ():
        with contextlib.suppress(ValueError):
            written.append(json.loads(line))
    return written


def _travels(value: Any) -> bool:
    """Return whether an option's value can be given to another process."""
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - pickling somebody's object may raise anything
        return False
    return type(value).__module__ in ("builtins", "pathlib", "enum") or isinstance(value, os.PathLike)


def _read(
    lines: Sequence[Mapping[str, Any]], first: Mapping[str, Measurement], problem: str
) -> dict[str, Measurement | MeasurementFailed]:
    """Return the measurements that a fresh process wrote, by key; what it failed at says why."""
    from pytest_cutile.speed.measure.blocks import MeasurementFailed, from_plain, validate
    from pytest_cutile.verdicts import Reason

    measured: dict[str, Measurement | MeasurementFailed] = {}
    for data in lines:
        key = data["key"]
        try:
            if "error" in data:
                measured[key] = MeasurementFailed(Reason(data["reason"]), data["error"])
            elif key in first:
                measurement = from_plain(data, first[key])
                validate(key, measurement)
                measured[key] = measurement
        except MeasurementFailed as error:
            measured[key] = error
    for key in first.keys() - measured.keys():
        message = f"{key}: the fresh process that was to measure it again did not"
        measured[key] = MeasurementFailed(Reason.NOT_TIMED, f"{message}: {problem}" if problem else message)
    return measured
