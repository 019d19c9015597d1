"""What every report shows, as one value: from results, and from stored baselines alone."""

import json
import math
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_cutile.baselines.entries import Entry, StaticBaselines, StaticEntry
from pytest_cutile.reports.cases import FailedTest, RunOutcome
from pytest_cutile.reports.history import HistoryPoint
from pytest_cutile.reports.report import (
    SCHEMA,
    Figures,
    GpuHistory,
    NotMeasured,
    Report,
    ReportedCase,
    ReportedPlatform,
    report_of_baselines,
    report_of_run,
    to_json,
)
from pytest_cutile.tile.static.facts import CaseFacts
from pytest_cutile.words.results import (
    CorrectResult,
    ErrorMap,
    Measured,
    SampleBlock,
    SpeedResult,
    StaticResult,
)
from tests.baselines.examples import PUBLISHED, baselines, entry, record, session
from tests.reports.test_terminal_summary import result

KEY = "softmax[c]"


def stored(of: Entry, sessions=None):
    return report_of_baselines([baselines({KEY: of}, sessions)], [], {})


def test_nothing_at_all():
    report = json.loads(to_json(report_of_baselines([], [], {})))
    assert (report["of"], report["cases"], report["history"]) == ("baselines", [], {})


def test_a_source_checkout_has_no_version(monkeypatch):
    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", none)
    assert report_of_baselines([], [], {}).by == "pytest-cutile unreleased"


def test_a_stored_case_has_the_figures_of_its_newest_session():
    report = stored(entry(record(1, 40.0), record(2, 44.0)))
    (case,) = report.cases
    assert (case.verdict, case.figures.origin, case.figures.us_per_launch) == ("recorded", "recorded", 44.0)
    (series,) = report.history[KEY]
    assert [point.is_step for point in series.points] == [False, True]
    assert series.points[1].change == pytest.approx(0.1)


def test_a_step_names_its_commits_and_its_environment():
    new_driver = {"s2": session(2, commit="f" * 40, environment={"driver": "590.2", "tileiras": "13.4.92"})}
    (series,) = stored(entry(record(1, 40.0), record(2, 44.0)), new_driver).history[KEY]
    assert (series.points[1].since[:4], series.points[1].commit[:4]) == ("0123", "ffff")
    assert series.points[1].environment_changes == ("driver: 580.1 -> 590.2",)


def test_a_published_figure_stands_in():
    (case,) = stored(Entry(published=PUBLISHED)).cases
    assert (case.verdict, case.figures.us_per_launch) == ("published", PUBLISHED.median_us)


def test_one_session_has_no_change():
    (series,) = stored(entry(record(1, 40.0))).history[KEY]
    assert series.points[0].change is None


def test_nan_is_null_in_json():
    nan = Measured(blocks=(SampleBlock(regime="burst", current_us=(math.nan, math.inf)),))
    report = report_of_run(RunOutcome(results=[result(measured=nan, us_per_launch=math.nan)]))
    text = json.loads(to_json(report), parse_constant=pytest.fail)
    (case,) = text["cases"]
    assert case["figures"]["us_per_launch"] is None
    assert case["results"][0]["measured"]["blocks"][0]["current_us"] == [None, None]


def test_identifiers_are_the_same_in_each_run_and_differ_between_cases():
    names = ["a[b]", "a(b)", "語" * 300, "x" * 300, "x" * 299 + "y", "<script>"]
    results = [result(case=name, key=name) for name in names]
    first, second = (report_of_run(RunOutcome(results=some)) for some in (results, results[::-1]))
    ids = {case.key: case.id for case in first.cases}
    assert len({*ids.values()}) == len(names)
    assert ids == {case.key: case.id for case in second.cases}
    assert all(len(one) < 80 and one.isascii() for one in ids.values())


def test_all_inputs_of_a_case_are_there():
    tiny = result(gate="correct", case="c-tiny", key="softmax[c-tiny]", inputs="tiny", reason=None)
    report = report_of_run(RunOutcome(results=[result(gate="correct", case="c", key=KEY, reason=None), tiny]))
    (case,) = report.cases
    assert [one.case for one in case.results] == ["c", "c-tiny"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bf16-4096x8192", "bf16"), ("4x8-to_e4m3", ""), ("causal-fp16-4", "fp16"), ("tf32", "tf32"), ("c", "")],
)
def test_the_dtype_is_a_word_of_the_name(name, dtype):
    report = report_of_run(RunOutcome(results=[result(case=name, key=name)]))
    assert report.cases[0].dtype == dtype


def test_the_reference_names_every_field():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
    described = {*re.findall(r"\.?(\w+)", " ".join(re.findall(r"`([^`]+)`", page)))}
    structs: list[Any] = [
        Report,
        FailedTest,
        ReportedCase,
        Figures,
        ReportedPlatform,
        NotMeasured,
        GpuHistory,
    ]
    structs += [HistoryPoint, Measured, SampleBlock, CorrectResult, ErrorMap, StaticResult, SpeedResult]
    fields = {name for one in structs for name in one.__struct_fields__}
    assert fields - described == set()
    assert f"`schema` is {SCHEMA}" in page


def test_static_baselines_of_two_files_are_all_there():
    compiled = StaticEntry(
        facts=CaseFacts(fingerprint="", source="", launches=()), toolchain={}, provenance={}
    )
    files = [StaticBaselines(arch="sm_90", entries={key: compiled}) for key in ("a[c]", "b[c]")]
    assert [case.key for case in report_of_baselines([], files, {}).cases] == ["a[c]", "b[c]"]
