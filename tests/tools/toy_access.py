"""A timer that writes down when it times, for processes that share a GPU which is not there."""

import os
import time
from dataclasses import replace
from pathlib import Path

from tests.tools.toy_kernel import FakeStreamTimer, FakeTimer

UUID, LOG = "TOY_UUID", "TOY_LOG"
"""Environment variables: the UUID of the GPU, and the file that the timers write to."""


class LoggingTimer(FakeTimer):
    """Lets other processes run meanwhile, so that another would overlap."""

    device = replace(FakeTimer.device, uuid=os.environ.get(UUID, ""))

    def time_block(self, launches):
        begun = time.monotonic()
        for _ in range(100):
            os.sched_yield()
        samples = super().time_block(launches)
        with Path(os.environ[LOG]).open("a") as file:
            file.write(f"{begun} {time.monotonic()} {os.getpid()}\n")
        return samples


class LoggingStreamTimer(FakeStreamTimer, LoggingTimer):
    """The same, of launches on a stream."""


make_timer = LoggingTimer
make_stream_timer = LoggingStreamTimer
