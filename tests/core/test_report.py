import math
import re
from dataclasses import replace

import pytest

from pytest_cutile import Block, Device, Measurement, Work
from pytest_cutile.core.baselines import Entry
from pytest_cutile.core.comparisons import Comparison, DuetComparison, StoredRuns
from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.report import WIDTH, above_limit_message, format_time, regression_message, summary
from pytest_cutile.core.results import GateResult
from pytest_cutile.core.speed_rule import UNKNOWN_WEATHER, Rule, Weather
from pytest_cutile.core.verdicts import Judgement, Reason, Verdict
from tests.core.test_baselines import ENVIRONMENT, PUBLISHED, entry, run

H200 = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-1", max_sm_clock_mhz=1980.0)
MM = "torch 2.11.0 mm bf16 4096x2048x4096"


def measurement(us: float, work: Work, device: Device = H200, **changes) -> Measurement:
    blocks = (Block(samples_us=(us,) * 5), Block(samples_us=(us * 1.01,) * 5))
    platform = find_platform(device.name)
    return Measurement(**{"device": device, "blocks": blocks, "work": work, "platform": platform, **changes})


def held_against(baseline: Entry, device: Device = H200) -> Comparison:
    stored = StoredRuns({}, rule=Rule(), platform=find_platform(device.name))
    return stored.compare(baseline, device, baseline.control)


def beside(revision: str) -> Comparison:
    return DuetComparison(rule=Rule(), revision=revision)


def message(shown: Measurement | None = None, **changes) -> str:
    work = Work(bytes=1.34e8)
    shown = shown or measurement(42.4, work)
    fields = {
        "key": "softmax[bf16-4096x8192]",
        "nodeid": "kernels/softmax.py::speed[bf16-4096x8192]",
        "shown": shown,
        "measurements": [measurement(42.9, work), measurement(42.3, work), shown, measurement(42.5, work)],
        "judgement": Judgement(reason=Reason.SLOWER, change=0.06),
        "comparison": held_against(entry(40.0), shown.device),
        "environment": ENVIRONMENT,
        "baseline_file": "baselines/sm_90-nvidia-h200.json",
        "weather": UNKNOWN_WEATHER,
    }
    return regression_message(**{**fields, **changes})


def test_a_regression_says_everything_that_is_needed():
    text = message()
    assert "softmax[bf16-4096x8192] on sm_90 (NVIDIA H200) is 6.0% slower than its baseline." in text
    assert "42.4 us" in text
    assert "40 us" in text
    assert "+6.0 %" in text
    assert "-5.7 %" in text  # GB/s
    assert "3160" in text
    assert "3350" in text
    assert "measured    42.9 us, then in fresh processes 42.3, 42.4, 42.5 us" in text
    assert "each the fastest of 2 places of its buffers, the slowest +1.0%" in text
    assert "environment unchanged" in text
    assert "baselines/sm_90-nvidia-h200.json (1 run in 1 session, last 2026-11-21)" in text
    assert "pytest 'kernels/softmax.py::speed[bf16-4096x8192]' --arch sm_90 \\\n" in text
    assert "--update-baselines --reason 'why it is slower'" in text
    assert "and not it alone" not in text


def test_a_regression_names_what_differs_in_the_environment():
    other = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-2")
    text = message(measurement(42.4, Work(), other), environment={**ENVIRONMENT, "driver": "590.2"})
    assert "driver: 580.1 -> 590.2" in text
    assert "another board of the same kind" in text


def test_a_regression_shows_the_control_and_the_clock_then_and_now():
    runs = (run(control_us=100.0, clock_mhz=1980.0), run(control_us=102.0, session="b"))
    block = Block(samples_us=(42.4,) * 5, partner_us=(102.01,) * 5)
    shown = measurement(42.4, Work(flops=1e9), blocks=(block,), control=MM, clock_mhz=1755.0)
    text = message(shown, comparison=held_against(entry(runs=runs, control=MM)))
    assert f"  control     102 us, 101 us then (+1.0 %): {MM}" in text
    assert "  SM clock    1755 MHz, 1980 MHz then" in text
    assert "2 runs in 2 sessions" in text


TWO_BOARDS = tuple(
    run(us, control_us=control_us, clock_mhz=clock_mhz, gpu_uuid=board, session=board, at=at)
    for us, control_us, clock_mhz, board, at in (
        (40.0, 100.0, 1900.0, "GPU-1", "2026-11-20T10:00:00+00:00"),
        (41.6, 104.0, 1800.0, "GPU-2", "2026-11-21T10:00:00+00:00"),
    )
    for _ in range(3)
)


@pytest.mark.parametrize(
    ("board", "before", "change", "control", "clock", "said"),
    [
        ("GPU-1", "40 us", "+6.0 %", "100", 1900, "this board's 3 runs in 1 session, last 2026-11-20"),
        ("GPU-2", "41.6 us", "+1.9 %", "104", 1800, "this board's 3 runs in 1 session, last 2026-11-21"),
        ("GPU-3", "40.79 us", "+3.9 %", "102", 1850, None),
    ],
)
def test_a_regression_shows_the_runs_that_decided(board, before, change, control, clock, said):
    """A board that has runs of its own is held against these alone."""
    device = replace(H200, uuid=board)
    block = Block(samples_us=(42.4,) * 5, partner_us=(102.0,) * 5)
    shown = measurement(42.4, Work(bytes=1.34e8), device, blocks=(block,), control=MM, clock_mhz=1755.0)
    text = message(shown, comparison=held_against(entry(runs=TWO_BOARDS, control=MM), device))
    assert re.search(rf"time per launch +42\.4 us +{re.escape(before)} +{re.escape(change)}", text)
    assert f"102 us, {control} us then" in text
    assert f"1755 MHz, {clock} MHz then" in text
    assert "(6 runs in 2 sessions, last 2026-11-21)\n" in text
    assert "held against" in text if said else "held against" not in text
    assert said is None or f"              held against {said}\n" in text


def test_a_regression_shows_the_mean_of_its_sessions_as_it_was_compared_with():
    runs = (run(40.0), run(40.0), run(40.0), run(41.0, session="slow"))
    text = message(comparison=held_against(entry(runs=runs)))
    assert re.search(r"time per launch +42\.4 us +40\.5 us +\+4\.7 %", text)


def test_a_slower_suite_is_said_to_be_one():
    text = message(
        judgement=Judgement(reason=Reason.SUITE_SLOWER, change=0.06),
        weather=Weather(shift=math.log(1.041), slower=True, cases=24),
    )
    assert "not it alone: the 24 cases limited by GB/s are 4.1% slower in the median" in text


def test_a_published_figure_is_named_with_its_margin_and_source():
    text = message(comparison=held_against(entry(runs=(), published=PUBLISHED)))
    assert "slower than the published figure (margin 10%)" in text
    assert PUBLISHED.source in text
    assert "123.5 us" in text


def test_a_duet_names_the_revision_and_asks_for_no_baseline():
    block = Block(samples_us=(42.4,) * 5, partner_us=(40.0,) * 5)
    text = message(
        measurement(42.4, Work(), blocks=(block,)), comparison=beside("git:main"), baseline_file=""
    )
    assert "is 6.0% slower than git:main." in text
    assert "40 us" in text
    assert "--update-baselines" not in text
    assert "None" not in text


def test_a_duet_shows_the_judged_change_and_two_times_of_one_place_that_agree_with_it():
    lucky = Block(samples_us=(41.0,) * 5, partner_us=(40.6,) * 5)
    usual = Block(samples_us=(42.4,) * 5, partner_us=(40.0,) * 5)
    text = message(
        measurement(41.0, Work(bytes=1.34e8), blocks=(lucky, usual, usual)),
        judgement=Judgement(reason=Reason.SLOWER, change=0.062),
        comparison=beside("HEAD"),
        baseline_file="",
    )
    assert "is 6.2% slower than HEAD" in text
    assert re.search(r"time per launch +42.4 us +40 us +\+6\.2 %", text)
    assert re.search(r"GB/s +3160 +3350 +-5\.8 %", text)
    assert re.search(r"share of limit +66 % +70 %", text)
    assert "the table: the place whose ratio is nearest" in text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"comparison": held_against(entry(runs=TWO_BOARDS))},
        {"key": "softmax[bf16]", "comparison": held_against(entry(runs=(), published=PUBLISHED))},
        {"comparison": beside("git:origin/main~10")},
    ],
    ids=["runs", "two boards", "published", "duet"],
)
def test_messages_fit_into_a_hundred_columns(changes):
    assert max(len(line) for line in message(**changes).splitlines()) <= WIDTH


def test_the_message_for_an_impossible_figure_names_figures_and_source():
    text = above_limit_message("k[c]", measurement(27.0, Work(bytes=1.34e8)))
    assert "k[c]: 4963 GB/s of at most 4800 GB/s is above what NVIDIA H200 can do" in text
    assert "http" in text


def test_times_keep_their_unit():
    assert format_time(38.806) == "38.81 us"
    assert format_time(1203.4) == "1.203 ms"


def result(**changes) -> GateResult:
    fields = {
        "gate": "speed",
        "key": "k",
        "kernel": "softmax",
        "case": "bf16-4096x8192",
        "arch": "sm_90",
        "verdict": "pass",
        "reason": "within-margin",
        "median_us": 38.8,
        "rate": 3459.0,
        "unit": "GB/s",
        "share_of_limit": 0.72,
        "change": 0.003,
    }
    return GateResult(**{**fields, **changes})


NOT_MEASURED = {
    "verdict": Verdict.NOT_MEASURED,
    "reason": "no-gpu",
    "detail": "no GPU: no NVIDIA driver",
    "median_us": None,
    "rate": None,
    "share_of_limit": None,
    "change": None,
}


def lines_of(*results: GateResult, verbose: bool = False) -> list[str]:
    return [line.text for line in summary(results, verbose=verbose)]


def test_nothing_gated_prints_nothing():
    assert summary([]) == []


def test_a_measured_case_has_a_row_with_every_figure():
    header, _, row = lines_of(result())
    assert header.split() == ["kernel", "case", "arch", "time/launch", "rate", "limit", "change", "verdict"]
    for figure in ("softmax", "bf16-4096x8192", "sm_90", "38.8 us", "3459 GB/s", "72 %", "+0.3 %", "pass"):
        assert figure in row


def test_a_wrong_kernel_is_said_to_be_wrong_whatever_else():
    *_, row = lines_of(result(), result(gate="correct", verdict="fail", median_us=None))
    assert row.endswith("wrong result")


def test_not_measured_is_never_shown_as_passed():
    rows = lines_of(
        result(**NOT_MEASURED),
        result(**{**NOT_MEASURED, "gate": "correct"}),
        result(gate="compile", median_us=None, rate=None, share_of_limit=None, change=None, reason=""),
    )
    assert "compiles, not-measured" in rows[2]
    assert rows[-1] == "not measured: 1 correct, 1 speed: no GPU: no NVIDIA driver"


def test_quiet_rows_are_joined_unless_verbose():
    cases = [result(**{**NOT_MEASURED, "case": f"c{n}"}) for n in range(30)]
    assert any("30 cases" in line for line in lines_of(*cases))
    assert len(lines_of(*cases)) == 4
    assert len(lines_of(*cases, verbose=True)) == 33


def test_the_table_fits_into_a_hundred_columns():
    long = result(
        kernel="a_kernel_with_a_long_name", case="test_function_with_a_very_long_name[with-many-parameters-x]"
    )
    assert max(len(line) for line in lines_of(long, result())) <= WIDTH
    assert all(line.rstrip().endswith("pass") for line in lines_of(long, result())[2:])
