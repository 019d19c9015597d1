"""What `pytest-cutile history` prints of a case."""

import re

import pytest

from pytest_cutile.baselines.entries import Entry, PairedChange, Run
from pytest_cutile.reports.history import history_document, sparkline
from pytest_cutile.words.text import render_text
from tests.baselines.examples import PUBLISHED, baselines, entry, record, session

KEY = "softmax[c]"
ANOTHER_GPU = {"s2": session(2, gpu_uuid="GPU-2")}
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


def test_a_gpu_is_compared_with_itself_where_it_can():
    lines = lines_of(entry(record(1, 40.0), record(2, 41.0), record(3, 40.4)), ANOTHER_GPU)
    assert not [line for line in lines if line.startswith("a step")]
    assert "+1.0 %" in lines[-1]


def test_a_step_shows_where_each_session_has_another_gpu():
    another = {"s2": session(2, gpu_uuid="GPU-2", commit="f" * 40)}
    lines = lines_of(entry(record(1, 40.0), record(2, 80.0)), another)
    assert lines[-1] == "a step of +100.0 % between 0123456789ab and ffffffffffff; on another GPU"


def test_one_commit_on_two_gpus_is_no_step():
    assert "step" not in "".join(lines_of(entry(record(1, 40.0), record(2, 50.0)), ANOTHER_GPU))


def test_a_small_step_shows_where_kernels_were_measured_interleaved():
    changes = {"burst": PairedChange(value=0.03, low=0.029, high=0.031)}
    faster_gpu = record(2, 38.0, changes=changes)
    lines = lines_of(entry(record(1, 40.0), faster_gpu), ANOTHER_GPU)
    assert lines[-1] == "a step of +3.0 % between 0123456789ab and 0123456789ab"


def test_uncommitted_changes_are_told():
    dirty = {"s2": session(2, commit="f" * 40 + "+")}
    lines = lines_of(entry(record(1, 40.0), record(2, 44.0)), dirty)
    assert lines[-1] == f"a step of +10.0 % between 0123456789ab and {'f' * 12}+"


def test_a_drift_is_a_step_since_the_last_one():
    drift = [record(i, 40.0 * 1.04**i) for i in range(1, 4)]
    later = {f"s{i}": session(i, commit=str(i) * 40) for i in range(1, 4)}
    assert lines_of(entry(*drift), later)[-1] == f"a step of +8.2 % between {'1' * 12} and {'3' * 12}"


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
