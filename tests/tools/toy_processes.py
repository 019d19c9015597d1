"""Handlers for tests of the pool: light, because each process imports this."""

import os
import time

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
    if what == "sleep":
        time.sleep(float(rest[0]))
    return f"{what} by {number}" if what == "who" else os.getpid()


def start_never(number):
    raise RuntimeError(f"process {number} has no GPU")


def start_dead(number):
    os._exit(number + 1)
