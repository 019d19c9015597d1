"""Fresh processes for all workers of pytest-xdist: they meet when their tests have run.

The controller owns a server on each GPU, and a folder. A worker, say gw0, writes `gw0.pending` when its first
case is pending, so that the server can get ready, and `gw0.post` when its tests have run, once for each look.
When all workers that still run have posted, the controller lets fresh processes measure what all of them ask
for, and writes `gw0.reply`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_cutile.gates.speed.case import Request
from pytest_cutile.gates.speed.protocol import Answers, take_message, write_message
from pytest_cutile.pytest_parts.fresh_process import POLL_SECONDS, Server
from pytest_cutile.pytest_parts.workers import WorkerEnding
from pytest_cutile.words.settings import SHARERS_VARIABLE
from pytest_cutile.words.temporary import temporary_folder

FOLDER = "cutile_meeting"
"""Key of the folder in what pytest-xdist gives to a worker."""
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", SHARERS_VARIABLE)
_ELSEWHERE = ("ssh", "socket", "via", "vagrant_ssh", "python", "chdir")
"""What specifies a worker that is no plain copy of the controller."""


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A worker has a pending case."""

    nodeids: list[str]
    """All tests of the run that may have one."""
    gpu: dict[str, str]
    """Variables that say which GPU the worker uses, and with how many others."""


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker whose tests have run asks for."""

    comparisons: int
    """Number of comparisons that this worker makes."""
    requests: dict[str, Request] = {}
    """Cases to measure, by key; none when it only wants to know the comparisons of the run."""
    processes: int = 0
    """In how many fresh processes each is measured."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller answers."""

    comparisons: int = 0
    """Number of comparisons that all workers of the run make."""
    answers: list[Answers] = []
    """Answers of each fresh process, also to the requests of other workers."""
    error: str = ""
    """The controller's unexpected error; the other fields are then empty."""


class Worker:
    """A worker of pytest-xdist asks the controller, as it would ask a server of its own."""

    def __init__(self, folder: Path, name: str, nodeids: Sequence[str]) -> None:
        self._folder = folder
        self._name = name
        self._controller = os.getppid()
        self._comparisons = 0
        gpu = {name: os.environ[name] for name in _GPU_VARIABLES if name in os.environ}
        write_message(folder / f"{name}.pending", Pending(nodeids=[*nodeids], gpu=gpu))

    def comparisons_of_run(self, own: int) -> int:
        self._comparisons = own
        return self._post(Post(comparisons=own)).comparisons

    def ask(self, requests: Mapping[str, Request], processes: int) -> Sequence[Answers]:
        post = Post(comparisons=self._comparisons, requests={**requests}, processes=processes)
        return self._post(post).answers[:processes]

    def close(self) -> None:
        """Leave: the controller notices that this process ends."""

    def _post(self, post: Post) -> Reply:
        write_message(self._folder / f"{self._name}.post", post)
        while (reply := take_message(self._folder / f"{self._name}.reply", Reply)) is None:
            if os.getppid() != self._controller or not self._folder.exists():
                raise RuntimeError("pytest-xdist's controller cannot measure for its workers any more")
            time.sleep(POLL_SECONDS)
        if reply.error:
            raise RuntimeError(reply.error)
        return reply


class Meeting:
    """The controller's side."""

    def __init__(self, config: pytest.Config, progress: Callable[[str], None]) -> None:
        self._config = config
        self._progress = progress
        self._resources = contextlib.ExitStack()
        self._running: frozenset[str] = frozenset()
        """Workers that have not ended."""
        self._gpus: dict[str, str] = {}
        """On which GPU a worker is, by its name."""
        self._servers: dict[str, Server] = {}
        """By GPU."""
        self._comparisons: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # Linux kills a server when the thread that started it ends (PR_SET_PDEATHSIG). The threads of a pool
        # live until its shutdown.
        self._threads = ThreadPoolExecutor()

    # -- what pytest-xdist says -----------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker the folder. Without it (on a full disk), the worker starts a server of its own."""
        if _is_here(node):
            with contextlib.suppress(OSError):
                node.workerinput[FOLDER] = str(self._folder)
                self._running |= {node.gateway.id}
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="cutile-meeting", daemon=True)
                self._thread.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._running -= {node.gateway.id}

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Let the controller's thread stop the servers: no worker asks any more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    @functools.cached_property
    def folder(self) -> Path | None:
        """The folder by which workers talk with the controller; None if there is no room for it."""
        with contextlib.suppress(OSError):
            return Path(self._resources.enter_context(temporary_folder()))
        return None

    @property
    def _folder(self) -> Path:
        if self.folder is None:
            raise OSError("no temporary folder can be made")
        return self.folder

    # -- the controller's thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        """Answer the workers until the run ends or an error occurs; then delete the folder.

        A worker that waits for a reply notices that the folder is gone, and fails.
        """
        with self._resources:
            try:
                self._answer_posts()
            finally:
                self._stopping.set()
                self._threads.shutdown()
                for server in self._servers.values():
                    server.close()

    def _answer_posts(self) -> None:
        posts: dict[str, Post] = {}
        while not self._stopping.wait(POLL_SECONDS):
            running = self._running
            for name in sorted(running):
                if (post := take_message(self._folder / f"{name}.post", Post)) is not None:
                    posts[name] = post
                self._get_ready(name)  # whoever has posted was pending before
            posts = {name: post for name, post in posts.items() if name in running}
            if posts and posts.keys() >= running:
                for name, reply in self._replies(posts).items():
                    write_message(self._folder / f"{name}.reply", reply)
                posts = {}
                self._progress("")

    def _get_ready(self, name: str) -> None:
        """Start a server if a worker has a pending case, on a GPU that has none."""
        pending = take_message(self._folder / f"{name}.pending", Pending)
        if pending is None:
            return
        gpu = self._gpus[name] = pending.gpu.get("CUDA_VISIBLE_DEVICES", "")
        if gpu not in self._servers:
            start = functools.partial(Server, environment=pending.gpu, stopping=self._stopping)
            starting = self._threads.submit(start, self._config, self._progress, pending.nodeids)
            self._servers[gpu] = starting.result()

    def _replies(self, posts: Mapping[str, Post]) -> dict[str, Reply]:
        try:
            self._comparisons |= {name: post.comparisons for name, post in posts.items()}
            comparisons = sum(self._comparisons.values())
            answers = self._measure(posts)
        except Exception as error:  # noqa: BLE001 - whatever it is, no worker may wait for ever
            text = "".join(traceback.format_exception(error))
            return dict.fromkeys(posts, Reply(error=f"pytest-xdist's controller failed:\n{text}"))
        return {name: Reply(comparisons=comparisons, answers=answers[self._gpus[name]]) for name in posts}

    def _measure(self, posts: Mapping[str, Post]) -> dict[str, list[Answers]]:
        """Measure what all workers ask for, on all GPUs at once; return the answers by GPU."""
        requests: dict[str, dict[str, Request]] = {self._gpus[name]: {} for name in posts}
        for name, post in posts.items():
            of_gpu = requests[self._gpus[name]]
            for key, request in post.requests.items():
                of_gpu[key] = _merged(of_gpu.get(key, request), request)
        processes = max(post.processes for post in posts.values())
        futures = {
            gpu: self._threads.submit(self._servers[gpu].ask, cases, processes if cases else 0)
            for gpu, cases in requests.items()
        }
        return {gpu: future.result() for gpu, future in futures.items()}


def measuring_for(
    config: pytest.Config, progress: Callable[[str], None], nodeids: Sequence[str]
) -> Server | Worker:
    """Return where this process has its pending cases measured, which are of some of these tests."""
    workerinput: Mapping[str, Any] = getattr(config, "workerinput", {})
    if FOLDER in workerinput:
        return Worker(Path(workerinput[FOLDER]), workerinput["workerid"], nodeids)
    return Server(config, progress, nodeids, alike=int(workerinput.get("workercount", 1)))


def worker_ending(config: pytest.Config) -> WorkerEnding | None:
    """Return how a worker of pytest-xdist ends in a test; None of one that shares no folder."""
    workerinput: Mapping[str, Any] = getattr(config, "workerinput", {})
    if FOLDER not in workerinput:
        return None
    return WorkerEnding(config, Path(workerinput[FOLDER]), workerinput["workerid"])


def _is_here(node: Any) -> bool:
    """Say whether a worker is a copy of the controller, so that the controller can start its tests anew."""
    spec = node.gateway.spec
    return not spec.env and all(getattr(spec, name, None) is None for name in _ELSEWHERE)


def _merged(one: Request, other: Request) -> Request:
    """Return a request for all that two workers need of one case.

    With `--dist each` every worker runs every test, and may suspect its case in another regime.
    """
    sustained, revision = one.sustained or other.sustained, one.revision or other.revision
    return Request(nodeid=one.nodeid, revision=revision, sustained=sustained)
