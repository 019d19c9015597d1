"""What `pytest-cutile history` prints of a case."""

import re

import pytest

from pytest_cutile.baselines.entries import Entry, Run
from pytest_cutile.reports.history import history_document, sparkline
from pytest_cutile.reports.text import render_text
from tests.baselines.examples import PUBLISHED, baselines, entry, record, session

KEY = "softmax[c]"
FASTER_GPU = {"s2": session(2, gpu_uuid="GPU-2")}
NEW_DRIVER = {"s2": session(2, commit="f" * 40, environment={"driver": "590.2", "tileiras": "13.4.92"})}


def lines_of(of: Entry, sessions=None) -> list[str]:
    return render_text(history_document(KEY, baselines({KEY: of}, sessions))).splitlines()


def test_a_row_for_each_session_and_a_bar_for_each_time():
    accepted = record(3, 44.0, moved="accepted", reason="a new bound")
    lines = lines_of(entry(record(1, 40.0, 41.0, 42.0), record(2, 41.0), accepted))
    assert lines[0] == "softmax[c] on NVIDIA H200 (sm_90)"
    assert "time per launch, burst  ▁▁▆  41 us to 44 us" in lines
    rows = [re.split(r"\s{2,}", line) for line in lines if line.startswith("2025")]
    assert [row[3] for row in rows] == ["41 us", "41 us", "44 us"]
    assert [row[-1] for row in rows] == ["41 us", "+0.0 %", "anchor, accepted, a new bound"]


def test_a_step_lies_between_two_commits_and_has_an_environment():
    lines = lines_of(entry(record(1, 40.0), record(2, 44.0)), NEW_DRIVER)
    assert lines[-1] == "a step of +10.0 % between 0123456789ab and ffffffffffff; driver: 580.1 -> 590.2"


def test_gpus_are_not_compared_with_each_other():
    lines = lines_of(entry(record(1, 40.0), record(2, 30.0), record(3, 40.4)), FASTER_GPU)
    assert not [line for line in lines if line.startswith("a step")]
    assert "+1.0 %" in lines[-1]


def test_a_published_figure_names_its_source():
    assert "123.5 us, published: Somebody's blog" in lines_of(Entry(published=PUBLISHED))[-1]


@pytest.mark.parametrize(
    ("values", "bars"), [([1.0], "▁"), ([1.0, 1.05], "▁▅"), ([1.0, 2.0, 3.0], "▁▅█"), ([2.0, 1.0], "█▁")]
)
def test_bars(values, bars):
    assert sparkline(values) == bars


def test_bars_are_of_one_regime():
    """A launch that became too long for bursts is no slower for that."""
    lines = lines_of(entry(record(1, 40.0), record(2, 41.0), record(3, runs=(Run(sustained_us=80.0),))))
    assert "time per launch, burst  ▁▃  40 us to 41 us" in lines
