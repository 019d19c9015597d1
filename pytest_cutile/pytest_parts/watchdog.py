"""Ends the process of a launch that does not end by itself.

A kernel that waits for ever leaves the thread that waits for it in one call of CUDA, and nothing can
interrupt that. A second thread looks on: where the first stands at the same instruction for longer than a
launch may take, while the GPU is busy with what this process has launched, the test is reported and the
process ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import PurePath
from types import FrameType
from typing import Any

TICK_SECONDS = 1.0
_QUERY_SECONDS = 5.0


class Watchdog:
    """The thread that looks on. Start it in each process that uses the GPU."""

    def __init__(self, limit_s: float, *, beat: Callable[[], None], bark: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            limit_s: How long the process may stand at one instruction while the GPU is busy, in seconds.
            beat: Called every few seconds: this process lives.
            bark: Called once, with the place where it stands, when it has stood there for too long.
        """
        self._limit_s = limit_s
        self._beat = beat
        self._bark = bark
        self._stop = threading.Event()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="cutile-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        place, since = _place(self._watched), time.monotonic()
        while not self._stop.wait(min(TICK_SECONDS, self._limit_s / 4)):
            self._beat()
            now = _place(self._watched)
            if now != place:
                place, since = now, time.monotonic()
            elif time.monotonic() - since > self._limit_s:
                frame = sys._current_frames().get(self._watched)  # noqa: SLF001
                if frame is not None and (_waits_for_gpu(frame) or _gpu_is_busy()):
                    self._bark(_describe(frame))
                    return
                since = time.monotonic()


def _place(thread: int) -> tuple[tuple[int, int], ...]:
    """Return where a thread stands: its frames, with the instruction of each."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001
    return tuple((id(one), one.f_lasti) for one in _outwards(frame))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits_for_gpu(frame: FrameType) -> bool:
    """Say whether a frame is torch's that waits for a stream, an event or a device."""
    return PurePath(frame.f_code.co_filename).parts[-3:-1] == ("torch", "cuda")


def _gpu_is_busy() -> bool:
    """Say whether something that this process has launched has not ended, or CUDA does not answer."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    answers: list[bool] = []

    def ask() -> None:
        try:
            answers.append(torch.cuda.default_stream().query())
        except Exception:  # noqa: BLE001 - the context is lost: whoever waits for it gets an error
            answers.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_QUERY_SECONDS)
    return not answers or not answers[0]


def _describe(frame: FrameType) -> str:
    """Return the user's innermost line at which a thread stands: "softmax.py:31 in softmax"."""
    from pytest_cutile.gates.outcome import is_users

    own = [one for one in _outwards(frame) if is_users(one)]
    innermost = next(
        (one for one in own if not one.f_globals.get("__name__", "").startswith("_pytest")), frame
    )
    return f"{innermost.f_code.co_filename}:{innermost.f_lineno} in {innermost.f_code.co_name}"
