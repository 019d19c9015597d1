"""Messages of failures: every figure, the cause, and the command."""

import math
import re
from dataclasses import replace

import msgspec
import pytest

from pytest_cutile import Block, Device, Measurement, Work
from pytest_cutile.baselines.entries import Entry, StaticEntry
from pytest_cutile.platforms.lookup import find_platform
from pytest_cutile.reports.failures import regression_message, static_message
from pytest_cutile.reports.text import WIDTH
from pytest_cutile.speed.comparisons import Comparison, PairedComparison, StoredRuns
from pytest_cutile.speed.decide import NO_SESSION_EFFECT, Rule, SessionEffect
from pytest_cutile.speed.measure.blocks import above_limit_message
from pytest_cutile.static.changes import StaticRule
from pytest_cutile.static.comparison import compare
from pytest_cutile.verdicts import Judgement, Reason
from tests.baselines.test_speed import ENVIRONMENT, PUBLISHED, entry, run
from tests.reports.test_compiled import LAUNCH, WORSE, case

H200 = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-1", max_sm_clock_mhz=1980.0)
MM = "torch 2.11.0 mm bf16 4096x2048x4096"


def measurement(us: float, work: Work, device: Device = H200, **changes) -> Measurement:
    blocks = (Block(samples_us=(us,) * 5), Block(samples_us=(us * 1.01,) * 5))
    platform = find_platform(device.name)
    return Measurement(**{"device": device, "blocks": blocks, "work": work, "platform": platform, **changes})


def selected(baseline: Entry, device: Device = H200) -> Comparison:
    stored = StoredRuns({}, rule=Rule(), platform=find_platform(device.name))
    return stored.compare(baseline, device, baseline.reference_workload)


def paired_with(revision: str) -> Comparison:
    return PairedComparison(rule=Rule(), revision=revision)


def message(shown: Measurement | None = None, **changes) -> str:
    work = Work(bytes=1.34e8)
    shown = shown or measurement(42.4, work)
    fields = {
        "key": "softmax[bf16-4096x8192]",
        "nodeid": "kernels/softmax.py::speed[bf16-4096x8192]",
        "shown": shown,
        "measurements": [measurement(42.9, work), measurement(42.3, work), shown, measurement(42.5, work)],
        "judgement": Judgement(reason=Reason.SLOWER, change=0.06),
        "comparison": selected(entry(40.0), shown.device),
        "environment": ENVIRONMENT,
        "baseline_file": "baselines/sm_90-nvidia-h200.json",
        "effect": NO_SESSION_EFFECT,
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
    assert "fastest of 2 buffer placements; the slowest is +1.0 %" in text
    assert "environment unchanged" in text
    assert "baselines/sm_90-nvidia-h200.json (1 run in 1 session, last 2026-11-21)" in text
    assert "pytest 'kernels/softmax.py::speed[bf16-4096x8192]' --arch sm_90 \\\n" in text
    assert "--update-baselines --reason 'why it is slower'" in text
    assert "shared cause" not in text


def test_a_regression_names_what_differs_in_the_environment():
    other = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-2")
    text = message(measurement(42.4, Work(), other), environment={**ENVIRONMENT, "driver": "590.2"})
    assert "driver: 580.1 -> 590.2" in text
    assert "another GPU of the same model" in text


def test_a_regression_shows_the_reference_workload_and_the_clock_of_both_sides():
    runs = (run(workload_us=100.0, clock_mhz=1980.0), run(workload_us=102.0, session="b"))
    block = Block(samples_us=(42.4,) * 5, interleaved_us=(102.01,) * 5)
    shown = measurement(42.4, Work(flops=1e9), blocks=(block,), reference_workload=MM, clock_mhz=1755.0)
    text = message(shown, comparison=selected(entry(runs=runs, reference_workload=MM)))
    assert f"  reference   102 us, baseline 101 us (+1.0 %): {MM}" in text
    assert "  SM clock    1755 MHz, baseline 1980 MHz" in text
    assert "2 runs in 2 sessions" in text


TWO_GPUS = tuple(
    run(us, workload_us=workload_us, clock_mhz=clock_mhz, gpu_uuid=gpu, session=gpu, at=at)
    for us, workload_us, clock_mhz, gpu, at in (
        (40.0, 100.0, 1900.0, "GPU-1", "2026-11-20T10:00:00+00:00"),
        (41.6, 104.0, 1800.0, "GPU-2", "2026-11-21T10:00:00+00:00"),
    )
    for _ in range(3)
)


@pytest.mark.parametrize(
    ("gpu", "before", "change", "workload_us", "clock", "said"),
    [
        ("GPU-1", "40 us", "+6.0 %", "100", 1900, "this GPU's 3 runs in 1 session, last 2026-11-20"),
        ("GPU-2", "41.6 us", "+1.9 %", "104", 1800, "this GPU's 3 runs in 1 session, last 2026-11-21"),
        ("GPU-3", "40.79 us", "+3.9 %", "102", 1850, None),
    ],
)
def test_a_regression_shows_the_runs_that_decided(gpu, before, change, workload_us, clock, said):
    """A GPU that has runs of its own is compared with these alone."""
    device = replace(H200, uuid=gpu)
    block = Block(samples_us=(42.4,) * 5, interleaved_us=(102.0,) * 5)
    shown = measurement(
        42.4, Work(bytes=1.34e8), device, blocks=(block,), reference_workload=MM, clock_mhz=1755.0
    )
    text = message(shown, comparison=selected(entry(runs=TWO_GPUS, reference_workload=MM), device))
    assert re.search(rf"time per launch +42\.4 us +{re.escape(before)} +{re.escape(change)}", text)
    assert f"102 us, baseline {workload_us} us" in text
    assert f"1755 MHz, baseline {clock} MHz" in text
    assert "(6 runs in 2 sessions, last 2026-11-21)\n" in text
    assert "compared with" in text if said else "compared with" not in text
    assert said is None or f"              compared with {said}\n" in text


def test_a_regression_shows_the_mean_of_its_sessions_as_it_was_compared_with():
    runs = (run(40.0), run(40.0), run(40.0), run(41.0, session="slow"))
    text = message(comparison=selected(entry(runs=runs)))
    assert re.search(r"time per launch +42\.4 us +40\.5 us +\+4\.7 %", text)


def test_a_slower_suite_is_said_to_be_one():
    text = message(
        judgement=Judgement(reason=Reason.SUITE_SLOWER, change=0.06),
        effect=SessionEffect(shift=math.log(1.041), slower=True, cases=24),
    )
    assert "suite       the 24 cases limited by GB/s are 4.1% slower in the median" in text


def test_a_published_figure_is_named_with_its_margin_and_source():
    text = message(comparison=selected(entry(runs=(), published=PUBLISHED)))
    assert "slower than the published figure (margin 10%)" in text
    assert PUBLISHED.source in text
    assert "123.5 us" in text


def test_a_paired_measurement_names_the_revision_and_asks_for_no_baseline():
    block = Block(samples_us=(42.4,) * 5, interleaved_us=(40.0,) * 5)
    text = message(
        measurement(42.4, Work(), blocks=(block,)), comparison=paired_with("git:main"), baseline_file=""
    )
    assert "is 6.0% slower than git:main." in text
    assert "40 us" in text
    assert "--update-baselines" not in text
    assert "None" not in text


def test_a_paired_measurement_shows_the_judged_change_and_two_times_of_one_placement_that_agree_with_it():
    lucky = Block(samples_us=(41.0,) * 5, interleaved_us=(40.6,) * 5)
    usual = Block(samples_us=(42.4,) * 5, interleaved_us=(40.0,) * 5)
    text = message(
        measurement(41.0, Work(bytes=1.34e8), blocks=(lucky, usual, usual)),
        judgement=Judgement(reason=Reason.SLOWER, change=0.062),
        comparison=paired_with("HEAD"),
        baseline_file="",
    )
    assert "is 6.2% slower than HEAD" in text
    assert re.search(r"time per launch +42.4 us +40 us +\+6\.2 %", text)
    assert re.search(r"GB/s +3160 +3350 +-5\.8 %", text)
    assert re.search(r"share of limit +66 % +70 %", text)
    assert "table: the placement whose ratio is nearest" in text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"comparison": selected(entry(runs=TWO_GPUS))},
        {"key": "softmax[bf16]", "comparison": selected(entry(runs=(), published=PUBLISHED))},
        {"comparison": paired_with("git:origin/main~10")},
    ],
    ids=["runs", "two GPUs", "published", "paired"],
)
def test_messages_fit_into_a_hundred_columns(changes):
    assert max(len(line) for line in message(**changes).splitlines()) <= WIDTH


def test_the_message_for_an_impossible_figure_names_figures_and_source():
    text = above_limit_message("k[c]", measurement(27.0, Work(bytes=1.34e8)))
    assert "k[c]: 4963 GB/s of at most 4800 GB/s is above what NVIDIA H200 can do" in text
    assert "http" in text


def static_text(*, same_source=False, before="13.4.92", missing=(), **changes) -> str:
    """Return the message of a case that tileiras 13.4.92 compiles to something worse than `before` did."""
    baseline = case(LAUNCH)
    source = baseline.source if same_source else "another"
    current = msgspec.structs.replace(case(WORSE), missing=tuple(missing), source=source)
    options = {
        "key": "k[c]",
        "arch": "sm_90",
        "nodeid": "kernels/k.py::static[c-sm_90]",
        "entry": StaticEntry(
            facts=baseline,
            toolchain={"tileiras": before},
            provenance={"at": "2026-11-21T10:00:00+00:00", "commit": "abc"},
        ),
        "comparison": compare(baseline, current, arch="sm_90", rule=StaticRule()),
        "current": current,
        "toolchain": {"tileiras": "13.4.92"},
        "baseline_file": "baselines/sm_90-static.json",
    }
    return static_message(**{**options, **changes})


def test_a_static_regression_says_what_where_who_and_how_to_accept_it():
    text = static_text()
    lines = text.splitlines()
    assert lines[0] == (
        "k[c] for sm_90 compiles to something worse: spills, in bytes per thread: 0 -> 64 (and 1 more)"
    )
    assert "  worse       spills, in bytes per thread: 0 -> 64" in lines
    assert "  worse       kernels/k.py:10: load: TMA Load 64x128 -> Global-memory load" in lines
    assert "  baseline    baselines/sm_90-static.json (2026-11-21, commit abc)" in lines
    assert "  pytest 'kernels/k.py::static[c-sm_90]' --arch sm_90 \\" in lines
    assert "    --update-baselines --reason 'why it is worse'" in lines
    assert max(map(len, lines)) <= WIDTH + 15


def test_a_static_regression_names_the_cause():
    assert "same toolchain (tileiras 13.4.92)" in static_text()
    assert (
        "its source is the same, so its launch or the compiler's choice differs; same toolchain"
        in static_text(same_source=True)
    )
    both = static_text(before="13.3")
    assert "another toolchain (tileiras: 13.3 -> 13.4.92); the kernel's source changed, too" in both
    compiler = static_text(before="13.3", same_source=True)
    assert "another toolchain (tileiras: 13.3 -> 13.4.92); the kernel's source is the same" in compiler


def test_a_static_regression_says_what_is_unknown_and_repeats_the_option():
    text = static_text(missing=["instructions are unknown: ..."], baseline_option=" --perf-baseline other")
    assert "  unknown     instructions are unknown: ..." in text
    assert "--arch sm_90 --perf-baseline other \\" in text
