"""A plugin that writes every measurement of a run to the file in DUMP_MEASUREMENTS, a line of JSON each.

DUMP_MEASUREMENTS=out.jsonl pytest -p research.dump_measurements kernels -m cutile_speed
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from pytest_cutile.gates import speed
from pytest_cutile.session import Session
from pytest_cutile.speed.case import SpeedCase
from pytest_cutile.speed.measure.blocks import to_plain
from pytest_cutile.speed.measure.timing import Measurement

_measure_case = speed.measure_case
RUN = f"{time.time():.3f}-{os.getpid()}"


def measure_case(session: Session, case: SpeedCase) -> Measurement:
    """Measure a case, and write the measurement down."""
    began = time.perf_counter()
    measurement = _measure_case(session, case)
    line = {
        "run": RUN,
        "key": case.key,
        "gpu_uuid": measurement.device.uuid,
        "bound": measurement.bound,
        "seconds": round(time.perf_counter() - began, 4),
        "again": session.measured_again is not None,
        **to_plain(measurement),
    }
    with Path(os.environ["DUMP_MEASUREMENTS"]).open("a") as file:
        file.write(json.dumps(line) + "\n")
    return measurement


speed.measure_case = measure_case
