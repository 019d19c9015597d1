"""A plugin that writes every measurement of a run to the file in DUMP_MEASUREMENTS, a line of JSON each.

DUMP_MEASUREMENTS=out.jsonl pytest -p benchmarks.dump_measurements kernels -m cutile_speed
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pytest_cutile.core.spec import Work
from pytest_cutile.core.timing import Measurement
from pytest_cutile.gates import measuring, speed
from pytest_cutile.gates.engine import Engine

_measure = measuring.measure
RUN = f"{time.time():.3f}-{os.getpid()}"


def measure(engine: Engine, key: str, work: Work, call: measuring.Call, **options: Any) -> Measurement:
    """Measure as ever, and write it down."""
    began = time.perf_counter()
    found = _measure(engine, key, work, call, **options)
    line = {
        "run": RUN,
        "key": key,
        "gpu_uuid": found.device.uuid,
        "bound": found.bound,
        "seconds": round(time.perf_counter() - began, 4),
        "again": engine.measured_again is not None,
        **measuring.to_plain(found),
    }
    with Path(os.environ["DUMP_MEASUREMENTS"]).open("a") as file:
        file.write(json.dumps(line) + "\n")
    return found


speed.measure = measure
