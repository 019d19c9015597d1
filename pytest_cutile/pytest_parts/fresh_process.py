"""Measuring in fresh processes: the same tests, run by another pytest that judges nothing.

A server imports and collects once, without ever using the GPU, while the run still tests; each fresh process
is a fork of the server. Several fresh processes start at once: one measures, and holds the GPU's lock for
one case at a time, while the others get ready. The run and its server talk by files
(`gates/speed/protocol.py`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from pytest_cutile.gates.speed.case import Request
from pytest_cutile.gates.speed.protocol import Answers, Failed, ProcessFiles
from pytest_cutile.pytest_parts.options import OPTIONS, SERVER_FOLDER
from pytest_cutile.words.settings import SHARERS_VARIABLE
from pytest_cutile.words.temporary import temporary_folder
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    import pytest

    from pytest_cutile.gates.speed.pending import PendingCase
    from pytest_cutile.timing.measure.call import MeasurementFailed
    from pytest_cutile.words.timing import Measurement

POLL_SECONDS = 0.02
AT_ONCE = 3
"""Most fresh processes that are started at once: each keeps some of the GPU's memory."""
SILENT_SECONDS = 600
"""Time without an answer after which a fresh process counts as hung. It may wait for others on its GPU."""
ANOTHER_SERVER = 75
"""Exit status of a server that has used the GPU, and so cannot fork any more."""

_NEUTRAL: Mapping[str, Any] = {
    # The run that asks selects tests, writes reports and debugs. A fresh process only reads caches and
    # baselines.
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


DIE_WITH_PARENT = """
import ctypes
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: do not outlive the thread that started this
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

The program itself imports nothing of this package: pytest warns about modules that were imported before it
could rewrite their assertions.
"""

Ask: TypeAlias = "Callable[[Mapping[str, Request], int], Sequence[Answers]]"
"""Measures cases, by their keys, once in each of so many fresh processes."""


def measure_again(
    ask: Ask, cases: Sequence[PendingCase], processes: int
) -> list[Mapping[str, Measurement | MeasurementFailed]]:
    """Return what each of so many fresh processes measured of cases, by key."""
    first = {case.case.key: case.screening for case in cases}
    requests = {case.case.key: case.request for case in cases}
    return [answers.read(first) for answers in ask(requests, processes)]


class Server:
    """A pytest without tests of its own, whose forks measure what it is asked for."""

    def __init__(
        self,
        config: pytest.Config,
        progress: Callable[[str], None],
        nodeids: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stopping: threading.Event | None = None,
        alike: int = 1,
    ) -> None:
        """Start it.

        Args:
            config: of this run.
            progress: shows how far fresh processes are.
            nodeids: all tests that it may be asked for; it collects nothing else.
            environment: variables of a worker whose tests it measures: which GPU that uses.
            stopping: set when nobody waits for answers any more.
            alike: processes of the run that are taken to make as many comparisons as this one.
        """
        self._config = config
        self._progress = progress
        self._nodeids = nodeids
        self._environment = environment or {}
        self._stopping = stopping or threading.Event()
        self._alike = alike
        self._resources = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0
        with contextlib.suppress(OSError):  # no room for it: who asks it says so
            self._start()

    def comparisons_of_run(self, own: int) -> int:
        return own * self._alike

    def _start(self) -> None:
        """Let it import and collect, unless it has."""
        if self._process is not None:
            return
        environment = {
            name: value
            for name, value in {**os.environ, **self._environment}.items()
            if not name.startswith("PYTEST_XDIST")
        }
        # The fresh processes use the GPU in addition to the processes that share it already.
        sharers = int(environment.get(SHARERS_VARIABLE, "1"))
        environment[SHARERS_VARIABLE] = str(sharers + AT_ONCE)
        # torch then asks NVML, not CUDA, whether there is a GPU: a process that has used CUDA cannot fork.
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        temporary = self._folder / "tmp"  # forks end without removing theirs
        temporary.mkdir(exist_ok=True)
        environment["TMPDIR"] = str(temporary)
        changes = {
            SERVER_FOLDER: str(self._folder),
            "perf_baseline": None,
            "basetemp": str(self._folder / "basetemp"),  # goes with the folder
        }
        with (self._folder / "log").open("wb") as log:
            self._process = start_pytest(
                self._config,
                self._nodeids,
                changes,
                self._folder / "state",
                log=log,
                environment=environment,
                program=DIE_WITH_PARENT + PROGRAM,
            )

    def close(self) -> None:
        if self._process is not None:
            kill(self._process)
        self._resources.close()

    @functools.cached_property
    def _folder(self) -> Path:
        folder = temporary_folder()
        return Path(self._resources.enter_context(folder))

    def ask(self, requests: Mapping[str, Request], processes: int) -> list[Answers]:
        """Return what each of so many fresh processes answers."""
        answered: list[Answers] = []
        while len(answered) < processes:
            count = min(AT_ONCE, processes - len(answered))
            try:
                self._start()
                numbers = range(self._asked + 1, self._asked + count + 1)
                started = [ProcessFiles(self._folder, number) for number in numbers]
                self._asked += count
                for files in started:
                    files.ask(requests)
                answered += [self._answers(files, requests) for files in started]
            except OSError as error:  # a full disk, no memory for a process
                missing = processes - len(answered)
                answered += [Answers(problem=f"it could not be run: {error}")] * missing
        return answered

    def _answers(self, files: ProcessFiles, requests: Mapping[str, Request]) -> Answers:
        """Wait for a fresh process; let another one measure what is left if a case has ended it."""
        problem = self._wait(files, len(requests))
        answers = files.answers()
        last = files.begun()
        if problem and last and last not in {answer.key for answer in answers}:
            text = f"{last}: the fresh process that measured it ended: {problem}"
            answers.append(Failed(key=last, reason=Reason.CRASH, error=text))
        done = {answer.key for answer in answers}
        left = {key: request for key, request in requests.items() if key not in done}
        if problem and done and left and not self._stopping.is_set():
            self._start()
            self._asked += 1
            following = ProcessFiles(self._folder, self._asked)
            following.ask(left)
            rest = self._answers(following, left)
            return Answers(answers=[*answers, *rest.answers], problem=rest.problem)
        return Answers(answers=answers, problem=problem)

    def _wait(self, files: ProcessFiles, cases: int) -> str:
        """Wait for a fresh process; return what went wrong, with the end of its output, or nothing."""
        answered = -1
        while (code := files.exit_code()) is None:
            if (count := len(files.answers())) != answered:
                answered, deadline = count, time.monotonic() + SILENT_SECONDS
                self._progress(f"fresh process {files.number} has measured {answered} of {cases} again")
            ended = None if self._process is None else self._process.poll()
            if self._process is None or ended == ANOTHER_SERVER:
                self._process = None
                self._start()
            elif ended is not None:
                files.end(ended)
                self._process = None
            elif time.monotonic() > deadline:
                kill(self._process)
                files.end(-signal.SIGKILL)
                self._process = None  # the next process is another server's
                return self._reason(f"it was silent for {SILENT_SECONDS} s")
            if self._stopping.wait(POLL_SECONDS):
                return "the run was stopped"
        return self._reason(f"it ended with status {code}") if code else ""

    def _reason(self, what: str) -> str:
        log = self._folder / "log"
        last = log.read_bytes().decode(errors="replace").strip().splitlines()[-8:] if log.exists() else []
        return "\n".join([what, *last])


def start_pytest(
    config: pytest.Config,
    nodeids: Sequence[str],
    changes: Mapping[str, Any],
    state: Path,
    *,
    log: IO[bytes],
    environment: Mapping[str, str],
    program: str = PROGRAM,
    tool: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a process that runs tests as this one does.

    Args:
        config: of this process.
        nodeids: the tests.
        changes: options with another value in the new process, by their names in `config.option`.
        state: the file that passes path, options and arguments to the new process.
        log: takes what the new process prints.
        environment: environment variables of the new process.
        program: Python code that reads `state` and runs pytest.
        tool: a command that runs the new process under its watch, such as compute-sanitizer.
    """
    state.write_bytes(pickle.dumps(_state(config, nodeids, changes)))
    return subprocess.Popen(  # noqa: S603 - our own program
        [*tool, sys.executable, "-c", program, str(state)],
        cwd=config.invocation_params.dir,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that all it starts can be stopped with it
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of `start_pytest`, if it still runs, and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _state(
    config: pytest.Config, nodeids: Sequence[str], changes: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any], list[str]]:
    """Return what a fresh process needs to run tests as this one does: path, options, arguments."""
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


def _travels(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - pickling somebody's object may raise anything
        return False
    return type(value).__module__ in ("builtins", "pathlib", "enum") or isinstance(value, os.PathLike)
