"""Handlers for tests of the pool: light, because each process imports this."""

import os
import time
from pathlib import Path

from tools.gpu_runs.processes import Broken


def start(number):
    return lambda task: handle(number, task)


def handle(number, task):
    what, *rest = task.split()
    if what == "die":
        os._exit(7)
    if what == "raise":
        raise ValueError("no such thing")
    if what == "break":
        raise Broken("the GPU is gone")
    if what == "hang":
        while True:
            time.sleep(1)  # until it is killed
    if what == "meet":
        meet(Path(rest[0]))
    if what == "alone":
        place = Path(rest[0])
        place.mkdir()  # raises if another is in it
        place.rmdir()
    return f"{what} by {number}" if what == "who" else os.getpid()


def meet(place):
    """Wait for another process to come, too: it never ends unless two work at once."""
    (place / f"{os.getpid()}").touch()
    while len([*place.iterdir()]) == 1:
        time.sleep(0.01)


def start_never(number):
    raise RuntimeError(f"process {number} has no GPU")


def start_dead(number):
    os._exit(number + 1)
