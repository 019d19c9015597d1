"""Each study that measures is quick, refuses a busy GPU, shows progress, and can be interrupted."""

import re
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from studies.__main__ import load_study, study_names
from studies.running.run import run_study
from studies.running.study import Contender, Study
from tests.studies.pretended import PretendedTimer

MEASURED = [whole for name in study_names() if isinstance(whole := load_study(name), Study)]
INTERRUPTED_AFTER = 2
SOME_SUITES = ("softmax", "dropout")
"""All of them take seconds."""


class AnyTimer(PretendedTimer):
    """Every launch takes 0.1 s: rates stay below the limits of the chip, whatever the work."""

    def __init__(self):
        super().__init__(defaultdict(lambda: 1e5), longest_us=1e6)


class InterruptedTimer(AnyTimer):
    def time_block(self, launches):
        if len({*self.timed, launches[0].launch.func.__name__} - {"beside"}) > INTERRUPTED_AFTER:
            raise KeyboardInterrupt
        return super().time_block(launches)


@pytest.fixture(params=MEASURED, ids=lambda study: study.name)
def study(request, monkeypatch):
    """Return a study whose launches return their argument, of one element; cases, work and pages are real."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr("studies.sawtooth.main.PREDICTED_LENGTHS", (65536,))
    monkeypatch.setattr("studies.sawtooth.main.PREDICTED_CAUSAL_LENGTHS", ())
    monkeypatch.setattr("studies.sawtooth.main.GPUS", ("NVIDIA GB10",))
    monkeypatch.setattr("studies.kernel_suite.main.SUITES", SOME_SUITES)
    whole = request.param
    return replace(
        whole,
        rows=lambda quick: [pretend_row(row) for row in whole.rows(quick)],
        spec=whole.spec and pretend_spec(whole.spec),
    )


def pretend_row(row):
    return replace(
        row,
        contender=pretend_contender(row.contender, row.key),
        beside=row.beside and pretend_contender(row.beside, "beside"),
        spec=row.spec and pretend_spec(row.spec),
    )


def pretend_contender(contender, name):
    def launch(x):
        return x

    launch.__name__ = name
    return Contender(name=contender.name, launch=launch, is_peer=True, missing=contender.missing)


def pretend_spec(spec):
    return replace(
        spec, reference=lambda x: x, inputs=lambda make_tensor, **_: {"x": make_tensor((1,), "float16")}
    )


@pytest.mark.slow
def test_a_study_is_quick_refuses_a_busy_gpu_shows_progress_and_goes_on(study, tmp_path):
    rows = [row for row in study.rows(True) if not row.contender.missing]
    busy = AnyTimer()
    busy.state = ["1 other process on the GPU"]
    with pytest.raises(SystemExit, match="not fit to measure on: 1 other process on the GPU"):
        run_study(study, busy, tmp_path, quick=True)
    assert not [*tmp_path.iterdir()]

    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_study(study, InterruptedTimer(), tmp_path, quick=True, say=said.append)
    progress = rf"  2 of {len(rows)}  {re.escape(rows[1].key)}: .*  \(\d+ s, \d+ s left\)"
    assert re.fullmatch(progress, said[2])
    assert all(file.read_text() for file in tmp_path.iterdir())  # what there is can be read

    timer = AnyTimer()
    record = run_study(study, timer, tmp_path, quick=True)
    assert not record.errors
    assert [row.key for row in record.rows] == [row.key for row in rows]
    assert not {row.key for row in rows[:INTERRUPTED_AFTER]} & {*timer.timed}
    assert not any(row.sustained for row in record.rows)


@pytest.mark.parametrize("whole", MEASURED, ids=lambda study: study.name)
def test_quick_rows_are_fewer_and_a_key_is_of_one_row(whole, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr("studies.kernel_suite.main.SUITES", SOME_SUITES)
    keys = {quick: [row.key for row in whole.rows(quick)] for quick in (True, False)}
    assert len({*keys[False]}) == len(keys[False])
    assert len(keys[True]) <= len(keys[False])
