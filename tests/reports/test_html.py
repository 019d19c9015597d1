"""The page: what it shows, what it escapes, and how large it gets."""

import cProfile
import json
import math
import pstats
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pytest_cutile.baselines import files
from pytest_cutile.baselines.entries import Run
from pytest_cutile.cli import main
from pytest_cutile.reports.cases import FailedTest, RunOutcome
from pytest_cutile.reports.compiled import named_launches
from pytest_cutile.reports.history import HistoryPoint
from pytest_cutile.reports.html import PAGE_BYTES, render_html
from pytest_cutile.reports.html.heat_map import heat_map, heat_map_file
from pytest_cutile.reports.html.kernel import shown_kernel
from pytest_cutile.reports.html.plots import (
    Dot,
    PlottedLine,
    histogram,
    history_plot,
    lines_plot,
    picture,
    ratio_plot,
    roofline,
)
from pytest_cutile.reports.html.templates import text_of
from pytest_cutile.reports.report import from_json, report_of_baselines, report_of_run, to_json
from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts
from pytest_cutile.words.results import ErrorMap, Measured, Result, SampleBlock
from pytest_cutile.words.verdicts import Reason, Verdict
from tests.baselines.examples import baselines, entry, record
from tests.reports.test_terminal_summary import NOT_MEASURED, result

HOSTILE = "<script>alert('x')</script>\"'&\x1b[2J\u202e"
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Page(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


def measured(current=(40.0, 41.0, 42.0), baseline=(), **facts) -> Measured:
    block = SampleBlock(regime="burst", current_us=current, baseline_us=baseline)
    return Measured(blocks=(block,), **{"flops": 1e9, "bytes": 1e8, "dtype": "float16", **facts})


def page_of(*results, **facts) -> Page:
    return Page(render_html(report_of_run(RunOutcome(results=results, **facts))))


def failed_test(of, **changes) -> FailedTest:
    texts = {"nodeid": "k.py::speed[c]", "headline": "it is slower", "place": "k.py:7", "text": "all of it"}
    return FailedTest(**{**texts, "command": "pytest 'k.py::speed[c]'", "results": (of,), **changes})


def test_no_case():
    assert "No case was run." in page_of().text


def test_one_case_has_a_row_that_leads_to_its_details():
    page = page_of(result(measured=measured(), gpu="NVIDIA H200"))
    ids = page.attributes("id")
    assert len(ids) == len({*ids})
    for href in page.attributes("href"):
        assert not href.startswith("#") or href[1:] in ids
    for text in ("softmax", "bf16-4096x8192", "38.8 us", "3459 GB/s", "72 %", "+0.3 %", "pass"):
        assert text in page.text
    labels = page.attributes("aria-label")
    assert any(label.startswith("3 samples of 40 us to 42 us") for label in labels)


def test_failures_come_first_with_story_place_and_command():
    slow = result(verdict=Verdict.REGRESSION, reason=Reason.SLOWER, measured=measured(baseline=(38.0, 39.0)))
    page = page_of(result(case="other", key="o"), slow, failed=[slow], failed_tests=[failed_test(slow)])
    order = [page.text.index(text) for text in ("1 of 2 cases failed", "it is slower", "k.py:7", "pytest 'k")]
    assert order == sorted(order)
    assert order[-1] < page.text.index("other")
    assert any("2 of the baseline kernel" in label for label in page.attributes("aria-label"))


def test_a_launcher_that_tunes_has_its_choice_and_its_configurations_shown_once():
    line = "TILE=512: spills 64 bytes per thread"
    timed = result(measured=measured(), gpu="NVIDIA H200", tuning="chose TILE=64 of 3 configurations")
    page = page_of(timed, result("static", configurations=(line,)), result("compile", configurations=(line,)))
    assert "tuning, speed, sm_90: chose TILE=64 of 3 configurations" in page.text
    assert page.text.count(line) == 1


def errors(**changes) -> ErrorMap:
    facts = {
        "matrix": "output",
        "shape": (6, 7),
        "cell": (3, 2),
        "rows": ("....", ".039"),
        "unit": "times the bound",
    }
    scale = ("1", "3", "10", "30", "100", "300", "1000", "3000", "10000", "infinite")
    return ErrorMap(**{**facts, "scale": scale, "worst": "worst element [5, 6]: got 2, exact 1", **changes})


def wrong_result(**changes) -> Result:
    return result(
        "correct", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES, **{"errors": errors(), **changes}
    )


def test_a_wrong_result_shows_where_its_errors_are_and_of_which_inputs():
    wrong = wrong_result(inputs="tiny")
    page = page_of(wrong, failed=[wrong], failed_tests=[failed_test(wrong)])
    title = "sm_90, tiny inputs: output, 6 x 7: times the bound, the most in each cell of 3 x 2"
    assert page.text.count(title) == 2  # with the failure, and in the details of its case
    assert page.text.count("worst element [5, 6]: got 2, exact 1") == 2
    (label,) = {one for one in page.attributes("aria-label") if "cells have errors" in one}
    assert "3 of 8 cells have errors, at most infinite or more times the bound" in label


def test_a_map_of_errors_has_its_cells_where_they_are():
    drawn = heat_map(errors())
    ((_, left, top, right, bottom), (_, left2, *_), (_, left3, _, end, _)) = (
        [one, *map(float, numbers)]
        for one, *numbers in re.findall(r'd="(M)([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H[\d.]+z"', drawn)
    )
    assert (left2, left3) == (right, pytest.approx(2 * right - left, abs=0.11))
    assert end - left3 == pytest.approx((right - left) / 2, abs=0.11)  # of 7 columns the last cell has one
    assert bottom - top == pytest.approx(1.5 * (right - left), abs=0.2)


def test_a_map_of_errors_is_a_file_of_svg_too():
    root = ET.fromstring(heat_map_file(errors(matrix=HOSTILE)))
    assert any((one.text or "").startswith("<script>") for one in root.iter())


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (1, 10**9), (10**9, 1)])
def test_maps_of_any_shape_are_drawn(shape):
    drawn = heat_map(errors(shape=shape, cell=shape, rows=("9",)))
    assert drawn.count("<svg") == 1
    assert "nan" not in drawn


def test_one_root_cause_is_told_once_by_the_story_that_tells_most():
    results = [
        wrong_result(case=name, key=f"k[{name}]", clarity=clarity)
        for name, clarity in (("a", 0), ("b", 2), ("c", 1))
    ]
    failed_tests = [failed_test(one, headline=f"story of {one.case}") for one in results]
    page = page_of(*results, failed=results, failed_tests=failed_tests)
    assert "story of b" in page.text
    assert "The kernel also fails in k[a], sm_90 , k[c], sm_90" in page.text
    assert not {"story of a", "story of c"} & {*re.findall(r"story of \w", page.text)}


@pytest.mark.parametrize(
    ("others", "shown"),
    [
        ({"clarity": 2, "inputs": "tiny"}, "other"),  # a cause
        ({"clarity": 1, "inputs": "tiny"}, "one"),  # what the errors of special inputs have in common
        ({"clarity": 1}, "other"),
        ({"wrong_share": 0.99, "inputs": "tiny"}, "one"),
        ({"wrong_share": 0.99}, "other"),
    ],
)
def test_of_one_root_cause_the_default_inputs_are_shown_unless_others_name_it(others, shown):
    results = [
        wrong_result(case="small", key="k[small]", inputs="small", wrong_share=0.002),
        wrong_result(case="one", key="k[one]", wrong_share=0.98),
        wrong_result(case="other", key="k[other]", **others),
    ]
    failed_tests = [failed_test(one, headline=f"story of {one.case}") for one in results]
    page = page_of(*results, failed=results, failed_tests=failed_tests)
    assert re.findall(r"story of (\w+)", page.text) == [shown]


@pytest.mark.slow
def test_2000_failures_stay_under_2_mb():
    results = [
        result(case=f"c{n}", key=f"k[c{n}]", verdict=Verdict.REGRESSION, reason=Reason.SLOWER)
        for n in range(2000)
    ]
    text = "a line of the message of the failure\n" * 30
    run = RunOutcome(
        results=results, failed=results, failed_tests=[failed_test(one, text=text) for one in results]
    )
    text = render_html(report_of_run(run))
    assert len(text.encode()) <= PAGE_BYTES + 50_000
    assert re.search(r"\d+ more failures: the page would be too large", Page(text).text)


def test_details_say_what_the_gpu_did_and_what_the_compiler_changed():
    busy = measured(clock_mhz=1980.0, sustained_watts=694.2, problems=("another process used the GPU",))
    changes = ("worse: spills: 0 -> 64", "different: grid: (4, 4) -> (8, 4)")
    text = page_of(result(measured=busy, gpu="NVIDIA H200"), result("static", changes=changes)).text
    assert "NVIDIA H200, measured: 38.8 us; 3459 GB/s; 72 % of the limit; 1980 MHz; 694 W sustained" in text
    assert "another process used the GPU" in text
    assert "sm_90: worse: spills: 0 -> 64" in text


def test_a_slower_case_says_by_how_much_although_its_reason_needs_no_words():
    slower = result(verdict="regression", reason=Reason.SLOWER, detail="", change=0.217)
    assert "speed, sm_90: regression (slower) +21.7 %" in page_of(slower).text


SLOWER = {"verdict": Verdict.REGRESSION, "reason": Reason.SLOWER, "change": 0.1}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (("worse: spills: 0 -> 64",), "worse: spills: 0 -> 64"),
        (tuple(f"different: {n}" for n in range(5)), "different: 2; and 2 more, see the message"),
        (
            ("the machine code and its launches are the same",),
            "the machine code and its launches are the same",
        ),
    ],
)
def test_a_slower_case_says_why(changes, why):
    """By the speed baseline's commit: a static baseline may be of another."""
    unchanged = result("static", reason=Reason.UNCHANGED)
    page = page_of(result(**SLOWER, code_changes=changes), unchanged)
    assert why in page.text.partition("Why it is slower: ")[2]
    assert "Why it is slower" not in page_of(result(**SLOWER), unchanged).text


def test_pairs_show_their_changes_and_how_certain_the_mean_is():
    blocks = tuple(
        SampleBlock(regime="burst", current_us=(44.0, 44.0 + n), baseline_us=(40.0, 40.0))
        for n in (0, 0.1, 0.2)
    )
    page = page_of(result(gpu="NVIDIA H200", measured=Measured(blocks=blocks)))
    assert "Change of each pair, burst, first process, NVIDIA H200" in page.text
    (label,) = (one for one in page.attributes("aria-label") if "pairs" in one)
    found = re.fullmatch(r"6 pairs: mean \+10\.1 %, 95 % interval \+(\d+\.\d) % to \+(\d+\.\d) %", label)
    assert found
    low, high = map(float, found.groups())
    assert 9.5 < low < 10.1 < high < 10.8
    assert not any("pair" in one for one in page_of(result(measured=measured())).attributes("aria-label"))


def run_after(*recorded_us: float, us: float = 44.0, gpu_id: str = "box GPU-1") -> Page:
    """Return the page of a run whose case has a history on the GPU "GPU-1"."""
    now = result(
        key="softmax[c]", case="c", gpu="NVIDIA H200", gpu_id=gpu_id, us_per_launch=us,
        measured=measured(current=(us, us, us)),
    )  # fmt: skip
    sessions = [record(day, one) for day, one in enumerate(recorded_us, start=1)]
    stored = report_of_baselines([baselines({"softmax[c]": entry(*sessions)})], [], {})
    report = report_of_run(RunOutcome(results=[now], environment={"commit": "f" * 40}))
    return Page(render_html(replace(report, history=stored.history)))


def test_the_run_is_the_last_point_of_its_history():
    page = run_after(40.0, 40.4)
    assert "2 recorded sessions and this run on 1 GPU, 40 us to 44 us, 1 step" in page.attributes(
        "aria-label"
    )
    assert "NVIDIA H200: a step of +8.9 % between 0123456789ab and ffffffffffff" in page.text
    hollow = [attrs for tag, attrs in page.tags if (tag, attrs.get("class")) == ("circle", "hollow")]
    assert len(hollow) == 1
    assert float(hollow[0]["cx"] or 0) == max(float(one or 0) for one in page.attributes("cx"))
    (line,) = (one for one in page.attributes("d") if one.count("L") == 2)  # joined to the sessions before
    assert line.rpartition("L")[2].split()[0] == hollow[0]["cx"]
    assert "this run ffffffffffff 44 us, 1: a step of +8.9 %" in page.text


def test_a_run_as_fast_as_before_is_no_step():
    page = run_after(40.0, 40.4, us=41.0)
    assert any(
        "and this run on 1 GPU, 40 us to 41 us, 0 steps" in one for one in page.attributes("aria-label")
    )


@pytest.mark.parametrize("gpu_id", ["", "box", "box GPU-2"])
def test_a_run_on_another_gpu_is_compared_with_no_session(gpu_id):
    """GPUs of one kind differ by themselves."""
    page = run_after(40.0, gpu_id=gpu_id)
    assert any(
        "and this run on 2 GPUs, 40 us to 44 us, 0 steps" in one for one in page.attributes("aria-label")
    )


def test_what_was_not_measured_is_said():
    assert "1 speed no GPU: no NVIDIA driver" in page_of(result(**NOT_MEASURED)).text


def test_hostile_texts_are_nothing_but_text():
    hostile = result(
        case=HOSTILE, key=HOSTILE, kernel=HOSTILE, arch=HOSTILE, gpu=HOSTILE, detail=HOSTILE, unit=HOSTILE,
        verdict=Verdict.REGRESSION, reason=Reason.SLOWER, measured=measured(dtype=HOSTILE),
    )  # fmt: skip
    places = errors(matrix=HOSTILE, unit=HOSTILE, worst=HOSTILE, rows=(HOSTILE,), scale=(HOSTILE,) * 10)
    wrong = wrong_result(case=HOSTILE, key=HOSTILE, kernel=HOSTILE, inputs=HOSTILE, errors=places)
    told = failed_test(hostile, headline=HOSTILE, place=HOSTILE, text=HOSTILE, command=HOSTILE)
    run = RunOutcome(
        results=[hostile, wrong],
        failed=[hostile, wrong],
        failed_tests=[told, failed_test(wrong)],
        remarks=[HOSTILE],
        environment={HOSTILE: HOSTILE, "commit": HOSTILE},
    )
    text = render_html(report_of_run(run))
    assert "\x1b" not in text
    assert "\u202e" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.text.count("<script>alert('x')</script>") > 10


@pytest.mark.parametrize(
    "name", ["x" * 300, "語" * 300, "مرحبا" * 60, "😀" * 300], ids=["x", "cjk", "arabic", "emoji"]
)
def test_names_of_300_characters_in_any_script(name):
    slow = result(case=name, key=name, kernel=name, verdict=Verdict.REGRESSION, measured=measured())
    page = page_of(slow, failed=[slow], failed_tests=[failed_test(slow, headline=name)])
    assert page.text.count(name) >= 3


def test_halves_of_characters_are_written_in_ascii():
    """As in names of files that are no UTF-8."""
    name = "half \ud800 of \udcff"
    slow = result(case=name, key=f"k[{name}]", kernel=name, gpu=name, detail=name, measured=measured())
    run = RunOutcome(
        results=[slow],
        failed=[slow],
        failed_tests=[failed_test(slow, headline=name, text=name)],
        remarks=[name],
    )
    shown = "half \\ud800 of \\udcff"
    page = render_html(report_of_run(run)).encode().decode()
    assert page.count(shown) >= 3
    assert json.loads(to_json(report_of_run(run)).encode())["cases"][0]["name"] == shown


def test_numbers_that_are_no_sizes():
    names = [f"{digit * 300}x64" for digit in "789"] + ["7" * 5000]
    page = page_of(*(result(case=name, key=name, gpu="NVIDIA H200", measured=measured()) for name in names))
    assert "throughput" not in page.text


def test_kernels_whose_names_no_address_can_hold():
    page = page_of(*(result(case="c", key=kernel, kernel=kernel) for kernel in ("語", "言", "<", ">")))
    ids = page.attributes("id")
    assert len(ids) == len({*ids})


@pytest.mark.parametrize("us", [math.nan, math.inf, 40.0], ids=str)
def test_samples_of_one_value_and_of_none(us):
    page = page_of(result(us_per_launch=us, rate=us, change=us, measured=measured(current=(us,))))
    assert not {"nan", "inf"} & {*page.text.lower().split()}
    assert any("1 sample of 40 us" in label for label in page.attributes("aria-label")) == math.isfinite(us)


def test_the_page_works_with_no_network():
    text = render_html(report_of_baselines([baselines({"softmax[c]": entry(record(1, 40.0))})], [], {}))
    page = Page(text)
    addresses = page.attributes("src") + [href for href in page.attributes("href") if href != "data:,"]
    assert [one for one in addresses if not one.startswith(("#", "data:image/"))] == []
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in page.attributes("content")[1]


def test_a_history_with_a_step():
    page = Page(render_html(report_of_baselines(
        [baselines({"softmax[c]": entry(record(1, 40.0), record(2, 44.0))})], [], {}
    )))  # fmt: skip
    assert "NVIDIA H200: a step of +10.0 % between 0123456789ab and 0123456789ab" in page.text
    assert any(
        "2 recorded sessions on 1 GPU, 40 us to 44 us, 1 step" in one for one in page.attributes("aria-label")
    )


def test_a_history_shows_how_the_samples_of_its_sessions_scatter():
    point = HistoryPoint(
        at="2026-01-01T00:00:00+00:00", commit="abc", gpu_uuid="GPU-1", burst_us=40.0, burst_spread=0.05
    )
    drawn = history_plot([point], "burst")
    assert "half of the samples within 5.0%" in drawn
    (low, high) = map(float, re.findall(r'class="line" d="M[\d.]+ ([\d.]+)V([\d.]+)"', drawn)[0])
    assert 176 > low > high > 28  # within the frame


@pytest.mark.parametrize(("sessions", "labels"), [(1, 1), (2, 2), (5, 3), (12, 4)])
def test_a_history_names_commits_and_the_newest_of_them(sessions, labels):
    points = [
        HistoryPoint(at=f"2026-01-{n:02}", commit=f"c{n:06}ffff", gpu_uuid="GPU-1", burst_us=40.0)
        for n in range(1, sessions + 1)
    ]
    named = re.findall(r">(c\d{6})</text>", history_plot(points, "burst"))
    assert len(named) == labels
    assert named[0] == f"c{sessions:06}"


def test_times_of_two_regimes_are_not_one_history():
    """A launch that became too long for bursts has no step: power limits the other times."""
    sustained = record(2, runs=(Run(sustained_us=8000.0),))
    stored = baselines({"softmax[c]": entry(record(1, 7000.0), sustained)})
    labels = Page(render_html(report_of_baselines([stored], [], {}))).attributes("aria-label")
    assert "1 recorded session on 1 GPU, 7 ms to 7 ms, 0 steps" in labels
    assert "1 recorded session on 1 GPU, 8 ms to 8 ms, 0 steps" in labels


def test_a_ladder_of_sizes_and_a_roofline():
    results = [
        result(
            case=f"fp16-{n}x64", key=f"s[fp16-{n}x64]", gpu="NVIDIA H200", measured=measured(flops=n * 1e6)
        )
        for n in (512, 1024, 2048)
    ]
    page = page_of(*results)
    assert "fp16-Nx64: throughput over N" in page.text
    assert "Roofline, NVIDIA H200" in page.text
    assert any("limits 989.4 TFLOPS of fp16, 4800 GB/s" in one for one in page.attributes("aria-label"))


def test_gpus_stand_side_by_side():
    stored = [
        baselines({"softmax[c]": entry(record(1, 40.0))}),
        baselines({"softmax[c]": entry(record(1, 20.0))}, arch="sm_121", gpu="NVIDIA GB10"),
    ]
    page = Page(render_html(report_of_baselines(stored, [], {})))
    assert "GPUs side by side" in page.text


def report_with_samples(count):
    """Return a report of so many timed cases, and of one that failed."""
    samples = tuple(40.0 + 0.01 * number for number in range(160))
    results = [
        result(
            case=f"fp16-{n}x{number}", key=f"k{number % 20}[fp16-{n}x{number}]", kernel=f"k{number % 20}",
            gpu="NVIDIA H200", measured=measured(current=samples, baseline=samples),
        )
        for number, n in ((number, 64 * (number % 16 + 1)) for number in range(count))
    ]  # fmt: skip
    slow = result(case="slow", key="z[slow]", kernel="z", verdict=Verdict.REGRESSION, measured=measured())
    return report_of_run(RunOutcome(results=[*results, slow], failed=[slow]))


def test_a_case_costs_a_page_few_calls():
    """Seconds depend on the machine: a call took some 0.2 us, so that 2000 cases took two to five seconds."""
    reports = {count: report_with_samples(count) for count in (100, 300)}
    calls = {}
    for count, report in reports.items():
        profile = cProfile.Profile()
        profile.runcall(render_html, report)
        calls[count] = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    assert (calls[300] - calls[100]) / 200 < 15_000


@pytest.mark.slow
def test_2000_cases_stay_under_2_mb():
    text = render_html(report_with_samples(2000))
    assert len(text.encode()) <= PAGE_BYTES + 50_000
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("tr") > 2001
    assert re.search(r"\d+ cases without details.*: the page would be too large", page.text)
    assert any(one.startswith("d-z-slow") for one in page.attributes("id"))  # what failed has its details
    ids = {*page.attributes("id")}
    assert [one for one in page.attributes("href") if one.startswith("#") and one[1:] not in ids] == []


@pytest.mark.parametrize(
    ("kernels", "name"),
    [(1, "x" * 300), (1, "語" * 300), (500, "c"), (2000, "c")],
    ids=["long", "wide", "4", "1"],
)
def test_2000_cases_stay_under_2_mb_whatever_their_names(kernels, name):
    results = [
        result(
            case=f"{number:04}{name}", key=f"k{number % kernels}[{number:04}{name}]",
            kernel=f"k{number % kernels}", gpu="NVIDIA H200", measured=measured(),
        )
        for number in range(2000)
    ]  # fmt: skip
    assert len(render_html(report_of_run(RunOutcome(results=results))).encode()) <= 2_000_000


def test_a_run_without_a_gpu_shows_no_stored_figure(stored):
    """The time of some GPU of the architecture would stand there as if it were the run's."""
    files.write_speed(
        files.speed_path(stored / "baselines", "sm_90", "NVIDIA H200"), baselines({"s[a]": entry()})
    )
    one = result(kernel="s", case="a", key="s[a]", gpu="", us_per_launch=None, rate=None)
    (case,) = report_of_run(RunOutcome(results=[one], baselines=stored / "baselines")).cases
    assert case.figures is None


def test_a_kernel_that_counts_bytes_alone_is_drawn_under_the_limit_of_memory():
    page = page_of(*(result(case=f"fp16-{n}", key=f"k[fp16-{n}]", kernel="k", gpu="NVIDIA H200",
                            measured=measured(flops=0.0, bytes=n * 1e6)) for n in (64, 128)))  # fmt: skip
    assert "Bandwidth, NVIDIA H200" in page.text
    assert "Bandwidth on NVIDIA H200: 2 cases; limit 4800 GB/s" in page.attributes("aria-label")


def test_launches_of_one_kernel_are_compared_in_their_order():
    launches = [LaunchFacts(kernel="k", grid=(1,), code_bytes=8, registers=n) for n in (16, 32)]
    facts = CaseFacts(fingerprint="", source="", launches=tuple(launches))
    assert [*named_launches(facts).items()] == [("k", launches[0]), ("k, launch 2", launches[1])]


def test_gpus_side_by_side_are_of_one_regime():
    """A launch that is too long for bursts has sustained times alone."""
    both, long = Run(burst_us=40.0, sustained_us=50.0), Run(sustained_us=80.0)
    of_h200 = {"k[a]": entry(record(1, runs=(both,))), "k[b]": entry(record(1, runs=(both,)))}
    of_gb10 = {"k[a]": entry(record(1, 44.0)), "k[b]": entry(record(1, runs=(long,)))}
    stored = [baselines(of_h200), baselines(of_gb10, gpu="NVIDIA GB10", arch="sm_121")]
    report = report_of_baselines(stored, [], {})
    groups = {case.key: [case] for case in report.cases if case.gpu == "NVIDIA H200"}
    rows = shown_kernel(groups, report).side_by_side
    times = [[one.us_per_launch for one in figures if one is not None] for _, _, figures in rows]
    assert times == [[44.0, 40.0], [80.0, 50.0]]


def colours(*, dark: bool) -> dict[str, str]:
    light, night = text_of("page.css").split("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--(\w+): (#\w{6})", light))
    return found | (dict(re.findall(r"--(\w+): (#\w{6})", night)) if dark else {})


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours (WCAG 2.2, 1.4.3)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_and_marks_have_contrast(dark):
    of = colours(dark=dark)
    names = ["fg", "muted", "link", "good", "bad", "warn", *(f"c{number}" for number in range(6))]
    low = {name for name in names for ground in ("bg", "panel") if contrast(of[name], of[ground]) < 4.5}
    assert low == set()


@pytest.mark.parametrize(
    "plot",
    [
        histogram([]), histogram([math.nan]), history_plot([], "burst"),
        history_plot([HistoryPoint(at="2026-01-01T00:00:00+00:00", commit="", gpu_uuid="")], "burst"),
        lines_plot([], x_title="", y_title="", label=""), roofline({}, gb_per_s=1, peaks={}, label=""),
        ratio_plot({}, {}, x_title="", label=""),
    ],
)  # fmt: skip
def test_nothing_to_draw_is_no_plot(plot):
    assert plot == ""


def test_a_roofline_stays_in_its_frame():
    """Where every case is far right of where the roof bends, and limits differ by much."""
    peaks = {"fp8": 2000.0, "tf32": 100.0}
    svg = roofline({"fp8": [Dot(x=1e6, y=900.0, title="")]}, gb_per_s=5000, peaks=peaks, label="")
    for path in re.findall(r'class="roof" d="M([^"]+)"', svg):
        for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path):
            assert 52 <= float(x) <= 348
            assert 28 <= float(y) <= 176


def test_the_limit_of_memory_is_named_where_no_case_can_be():
    dots = [Dot(x=2.0**n, y=80.0, title="") for n in range(8, 13)]
    svg = roofline({"fp16": dots}, gb_per_s=273, peaks={"fp16": 250.0}, label="")
    ridge, top = re.findall(r'class="roof" d="M[\d.]+ [\d.]+L([\d.]+) ([\d.]+)H', svg)[0]
    ((right, y),) = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" dy="12" class="end">273 GB/s', svg)
    assert float(right) < float(ridge)
    assert y == top


def test_equal_values_are_drawn():
    assert histogram([40.0] * 5).count("<svg") == 1
    point = HistoryPoint(at="2026-01-01T00:00:00+00:00", commit="abc", gpu_uuid="GPU-1", burst_us=40.0)
    assert "nan" not in history_plot([point], "burst")
    for y in (1.0, 0.0):
        line = PlottedLine(name="", dots=[Dot(x=8, y=y, title="")])
        assert "nan" not in lines_plot([line], x_title="", y_title="", label="")


def test_lines_are_named_in_full_in_as_many_rows_as_they_need():
    names = ["PyTorch", "step 1", "step 6", "step 9", "step 13", "TileGym"]
    lines = [PlottedLine(name=name, dots=[Dot(x=1, y=2, title="")]) for name in names]
    one_row, two_rows = (lines_plot(some, x_title="", y_title="", label="") for some in (lines[:3], lines))
    assert re.findall(r"<tspan[^>]*>([^<]*)<", two_rows) == names
    assert [svg.count(' end key"') + svg.count('"end key"') for svg in (one_row, two_rows)] == [1, 2]
    heights = [int(re.findall(r'height="(\d+)"', svg)[0]) for svg in (one_row, two_rows)]
    assert heights[1] - heights[0] == 14
    nothing = lines_plot([*lines[:2], PlottedLine(name="nothing", dots=[])], x_title="", y_title="", label="")
    assert "nothing" not in nothing


def test_an_axis_of_y_can_leave_out_zero():
    line = PlottedLine(name="", dots=[Dot(x=1, y=0.99, title=""), Dot(x=2, y=1.01, title="")])
    svg = lines_plot([line], x_title="", y_title="", label="", shown_y=(0.95, 1.05))
    assert re.findall(r'class="end">([\d.]+)</text>', svg) == ["0.95", "1", "1.05"]
    wide = PlottedLine(name="", dots=[Dot(x=1, y=20.0, title=""), Dot(x=2, y=5e4, title="")])
    svg = lines_plot([wide], x_title="", y_title="", label="", is_log_y=True)
    assert re.findall(r'class="end">([\d.]+)</text>', svg) == ["100", "1000", "10000"]


def test_titles_of_a_picture_are_wrapped():
    plot = lines_plot(
        [PlottedLine(name="", dots=[Dot(x=1, y=1, title="")])], x_title="", y_title="", label=""
    )
    short, long = (picture(title, [(name, plot)], "") for title, name in (("a", "b"), ("a " * 30, "b " * 40)))
    assert [svg.count('class="title"') for svg in (short, long)] == [1, 2]
    assert [svg.count('class="name"') for svg in (short, long)] == [1, 2]
    heights = [float(re.findall(r'height="([\d.]+)"', svg)[0]) for svg in (short, long)]
    assert heights[1] - heights[0] == 20 + 14


def test_the_names_of_limits_stand_above_the_lines_of_all_limits():
    svg = ratio_plot({"k": [Dot(x=1.0, y=0, title="")]}, {"one": 0.9, "two": 1.1}, x_title="", label="")
    assert svg.rindex('class="roof"') < svg.index(">one<")


def test_ticks_of_long_launches_differ():
    points = [
        HistoryPoint(at="2026-01-01T00:00:00+00:00", commit=one, gpu_uuid="GPU-1", burst_us=us)
        for one, us in (("abc", 123e3), ("def", 131e3))
    ]
    labels = re.findall(r'class="end">([\d.e]+)</text>', history_plot(points, "burst"))
    assert len({*labels}) == len(labels) > 2


# -- the command --------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "baselines").mkdir()
    return tmp_path


def test_the_command_writes_a_page_or_json(stored, capsys):
    assert main(["report", "-o", "site"]) == 0
    assert main(["report", "baselines", "-o", "page.html"]) == 0
    assert main(["report", "-o", "report.json"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "site/index.html: 0 cases"
    assert (stored / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert '"of": "baselines"' in (stored / "report.json").read_text()


def test_the_command_draws_a_run_from_its_json_again(stored):
    wrong = wrong_result(key="s[a]", case="a")
    slow = result(
        key="s[b]",
        case="b",
        gpu="NVIDIA H200",
        verdict=Verdict.REGRESSION,
        measured=measured(baseline=(38.0, 39.0)),
    )
    report = report_of_run(
        RunOutcome(
            results=[wrong, slow], failed=[wrong, slow], failed_tests=[failed_test(wrong), failed_test(slow)]
        )
    )
    (stored / "run.json").write_text(to_json(report))
    assert main(["report", "--run", "run.json", "-o", "page.html"]) == 0
    assert (stored / "page.html").read_text() == render_html(report)
    assert main(["report", "--run", "run.json", "-o", "again.json"]) == 0
    assert json.loads((stored / "again.json").read_text()) == json.loads(to_json(report))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "run.json is no report that --kernel-json wrote: Input data was truncated"),
        ('{"schema": 4}', "its schema is 4, and 1 is read here"),
        ('{"schema": 1, "cases": [{"results": [{"gate": "taste"}]}]}', "run.json is no report"),
        ('{"schema": 1, "cases": [{}]}', "run.json is no report"),
        ('{"schema": 1, "cases": 3}', "run.json is no report"),
        ("[]", "run.json is no report"),
    ],
)
def test_a_file_that_is_no_report_is_one_message(stored, capsys, text, message):
    (stored / "run.json").write_text(text)
    assert main(["report", "--run", "run.json", "-o", "page.html"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert not (stored / "page.html").exists()


def a_run() -> dict[str, Any]:
    """Return the JSON of a run with a slower case, a wrong one, and a history."""
    slow = result(key="softmax[c]", case="c", gpu="NVIDIA H200", measured=measured(baseline=(38.0, 39.0)))
    wrong = wrong_result(key="s[a]", case="a")
    static = result(
        "static",
        key="softmax[c]",
        case="c",
        facts=msgspec.to_builtins(CaseFacts(fingerprint="", source="", launches=())),
    )
    report = report_of_run(RunOutcome(results=[slow, wrong, static], failed_tests=[failed_test(slow)]))
    stored = report_of_baselines([baselines({"softmax[c]": entry(record(1, 40.0, 41.0))})], [], {})
    run: dict[str, Any] = json.loads(to_json(replace(report, history=stored.history)))
    return run


def with_value(run: dict[str, Any], place: tuple[str | int, ...], value: object) -> bytes:
    """Return the JSON of a run with another value at a place."""
    of: Any = run
    for name in place[:-1]:
        of = of[name]
    of[place[-1]] = value
    return json.dumps(run).encode()


SOFTMAX, WRONG = ("cases", 1), ("cases", 0)
POINT, H200 = ("history", "softmax[c]", 0, "points", 0), ("platforms", "NVIDIA H200")


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ((*SOFTMAX, "figures", "us_per_launch"), [0, -1, 1e300]),
        ((*SOFTMAX, "figures", "sustained_us_per_launch"), [0, -1, 1e300]),
        ((*SOFTMAX, "figures", "bytes"), [-1, 1e300]),
        ((*SOFTMAX, "figures", "rate"), [-1, 1e300]),
        ((*SOFTMAX, "figures", "share_of_limit"), [-1, 1e300]),
        ((*SOFTMAX, "results", 0, "us_per_launch"), [0, -1, 1e300]),
        ((*SOFTMAX, "results", 0, "measured", "flops"), [-1, 1e300]),
        ((*SOFTMAX, "results", 0, "measured", "blocks", 0, "current_us", 0), [0, -1, 1e300]),
        ((*SOFTMAX, "results", 0, "measured", "blocks", 0, "baseline_us", 0), [0, -1, 1e300]),
        ((*SOFTMAX, "results", 1, "facts", "launches"), [3]),
        ((*WRONG, "results", 0, "errors", "cell", 0), [0, -1]),
        ((*WRONG, "results", 0, "errors", "shape", 1), [-1]),
        ((*WRONG, "results", 0, "errors", "scale"), [[], ["1"]]),
        ((*POINT, "burst_us"), [0, -1, 1e300]),
        ((*POINT, "burst_spread"), [-1, 1]),
        ((*H200, "memory_bandwidth_gb_s"), [0, -1]),
        ((*H200, "dense_tflops", "float16"), [0, -1]),
    ],
    ids=lambda place: ".".join(map(str, place[2:])),
)  # fmt: skip
def test_a_value_that_no_run_has_is_not_read(place, values):
    run = a_run()
    from_json(json.dumps(run).encode())
    for value in values:
        with pytest.raises(msgspec.ValidationError):
            from_json(with_value(a_run(), place, value))


def test_a_time_of_0_is_one_message(stored, capsys):
    place = (*SOFTMAX, "results", 0, "us_per_launch")
    (stored / "run.json").write_bytes(with_value(a_run(), place, 0))
    assert main(["report", "--run", "run.json", "-o", "page.html"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "run.json is no report that --kernel-json wrote: Expected `float` > " in err
    assert "us_per_launch" in err
    assert [path.name for path in stored.iterdir() if path.name.startswith("page")] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "nosuch.json", "-o", "site"], "nosuch.json cannot be read: No such file"),
        (["nosuch", "-o", "site"], "nosuch: there is no such file or folder"),
        (
            ["-o", "/dev/full/page.html"],
            "nothing was written: /dev/full is full or cannot be written: File exists",
        ),
        (["-o", "n" * 300], "n is full or cannot be written: File name too long"),
        (["-o", "n" * 300 + ".html"], "File name too long"),
        (["n" * 300, "-o", "page.html"], "File name too long"),
        (["-o", "/sys/page.html"], "nothing was written: /sys/"),  # which nobody can write to
    ],
)
def test_what_cannot_be_done_is_one_message(stored, capsys, arguments, message):
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert [path.name for path in stored.iterdir()] == ["baselines"]
