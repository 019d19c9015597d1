"""Messages of failures: every figure, the cause, and the command."""

import re
from dataclasses import replace

import msgspec
import pytest

from pytest_cutile import Block, Device, Measurement, Work
from pytest_cutile.baselines.entries import StaticEntry
from pytest_cutile.baselines.select import stored_us
from pytest_cutile.gates.messages import regression_message, static_message
from pytest_cutile.gates.speed.case import SpeedCase
from pytest_cutile.gates.speed.comparison import Comparison, Paired, PublishedFigure, StoredTimes
from pytest_cutile.gates.speed.pending import PendingCase
from pytest_cutile.gates.speed.rule import Decision, Rule
from pytest_cutile.pytest_parts.options.ini import STATIC_MARGIN
from pytest_cutile.tile.static.comparison import compare
from pytest_cutile.timing.measure.blocks import above_limit_message
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.text import WIDTH
from pytest_cutile.words.timing import Regime, Sustained
from pytest_cutile.words.verdicts import Judgement, Reason
from tests.baselines.examples import COMMIT, PUBLISHED, baselines, entry, record
from tests.gates.speed.simulated import NOT_LIMITED
from tests.gates.speed.simulated import stored as stored_times
from tests.reports.test_compiled import LAUNCH, WORSE, case

H200 = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-1", max_sm_clock_mhz=1980.0)
WORK = Work(bytes=1.34e8)
FILE = "baselines/sm_90-nvidia-h200.json"


def measurement(us: float, baseline_us: float | None = None, work: Work = WORK, **changes) -> Measurement:
    """Return one process's measurement, whose placements differ by 0.4 %."""
    blocks = tuple(
        Block(
            current_us=(us * place,) * 5,
            baseline_us=() if baseline_us is None else (baseline_us * (2 - place),) * 5,
        )
        for place in (0.998, 1.0, 1.002)
    )
    facts = {"device": H200, "work": work, "platform": find_platform(H200.name), "burst": blocks}
    return Measurement(**{**facts, **changes})


def paired() -> Comparison:
    return Paired(rule=Rule(), revision=COMMIT, launcher=lambda: None)


def stored(entry_) -> Comparison:
    times = stored_us(baselines({"k[c]": entry_}), entry_, "burst", "GPU-1")
    return StoredTimes(
        rule=Rule(),
        stored={} if times is None else {Regime.BURST: times},
        unavailable="it was recorded outside of git, so there is no baseline kernel",
    )


def message(*measurements: Measurement, comparison: Comparison | None = None, **changes) -> str:
    of = SpeedCase(
        key="softmax[bf16-4096x8192]",
        check_key="",
        kernel="softmax",
        case="bf16-4096x8192",
        nodeid="kernels/softmax.py::speed[bf16-4096x8192]",
        arch="sm_90",
        module="kernels.softmax",
        work=WORK,
    )
    judgement = Judgement(reason=Reason.SLOWER, change=0.06)
    repeats = measurements or tuple(measurement(us, 40.0) for us in (42.3, 42.4, 42.5))
    comparison = comparison or paired()
    pending = PendingCase(
        case=of,
        comparison=comparison,
        records=False,
        screening=repeats[0],
        judgement=changes.pop("judgement", judgement),
        regimes=(Regime.BURST,),
        repeats=[*repeats],
        decisions=dict.fromkeys(changes.pop("slower", ()), Decision.SLOWER),
    )
    options = {"baseline_file": FILE, **changes}
    return regression_message(case=pending, comparison=comparison, **options)


def sustained(us: float, baseline_us: float) -> Sustained:
    return Sustained(
        blocks=(Block(current_us=(us,) * 2, baseline_us=(baseline_us,) * 2),) * 2,
        current_clock_mhz=1605.0,
        baseline_clock_mhz=1755.0,
        current_watts=699.4,
        baseline_watts=640.0,
    )


def test_a_regression_says_everything_that_is_needed():
    repeats = [measurement(us, 40.0, clock_mhz=1980.0) for us in (42.3, 42.4, 42.5)]
    text = message(*repeats, slower=[Regime.BURST], compiled_otherwise=["worse: registers: 96 -> 168"])
    lines = text.splitlines()
    assert lines[0] == (
        "softmax[bf16-4096x8192] on sm_90 (NVIDIA H200) is 6.0% slower than its baseline in bursts."
    )
    assert lines[2:5] == [
        "  cause       the code: the baseline kernel, interleaved with it in this run, is faster",
        "  compiler    worse: registers: 96 -> 168",
        "",
    ]
    assert re.search(r"burst: time per launch +42\.4 us +40 us +\+6\.0 % +\+5\.\d % to \+6\.\d %", text)
    assert re.search(r"rate, of the limit +3160 GB/s, 66 % +3350 GB/s, 70 %\n", text)
    assert lines[9] == ""  # all of that is read first
    assert "measured    in 3 fresh processes, after a first one that is not counted" in text
    assert "burst: processes within 0.5%, placements of the buffers within 0.4%, SM clock 1980 MHz" in text
    limit = "limit       a slowdown of 1.0%, if noise cannot explain it; one of 2.0% is not to be missed"
    assert limit in text
    assert f"baseline    the kernel of {COMMIT[:12]}, which {FILE} was recorded" in text
    assert len(lines) <= 28  # the command follows


def test_both_kernels_are_shown_in_both_regimes_with_clocks_and_watts():
    text = message(*(measurement(40.0, 40.0, sustained=sustained(54.0, 50.0)) for _ in range(3)))
    assert re.search(r"burst: time per launch +40 us +40 us +\+0\.0 %", text)
    assert re.search(r"sustained: time per launch +54 us +50 us +\+8\.0 % +\+7\.\d % to \+8\.\d %\n", text)
    assert re.search(r"2481 GB/s, 52 % +2680 GB/s, 56 %", text)
    assert re.search(r"SM clock +1605 MHz +1755 MHz", text)
    assert re.search(r"power +699 W +640 W", text)


@pytest.mark.parametrize(
    ("slower", "said"),
    [
        ([Regime.SUSTAINED], "slower than its baseline under sustained load."),
        ([*Regime], "slower than its baseline in bursts and under sustained load."),
    ],
)
def test_a_regression_says_in_which_regime(slower, said):
    assert message(slower=slower).splitlines()[0].endswith(said)


def test_a_regime_that_was_skipped_is_named_with_the_reason():
    text = message(*(measurement(42.4, 40.0, sustained_skipped=NOT_LIMITED) for _ in range(3)))
    assert "sustained: skipped, not limited by power" in text


def test_without_a_baseline_kernel_the_stored_times_and_the_reason_are_shown():
    repeats = [measurement(us) for us in (42.3, 42.4, 42.5)]
    text = message(*repeats, comparison=stored(entry(record(1, 40.0, 40.0, 40.0))))
    cause = "cause       the code or this GPU's condition: no baseline kernel was measured with it (it was"
    assert cause in text
    assert re.search(r"burst: time per launch +42\.4 us +40 us +\+6\.0 %", text)
    assert f"baseline    stored times of {FILE} (3 runs on 1 GPU)" in text
    assert "limit       5.5%, since other sessions have measured the stored times" in text
    assert "interval" not in text


def test_a_regression_of_the_environment_names_what_changed():
    changes = ("driver: 580.1 -> 590.2", "tileiras: 13.4.92 -> 13.5.1")
    judgement = Judgement(reason=Reason.ENVIRONMENT, change=0.06, detail="by the environment: driver")
    comparison = Paired(rule=Rule(), revision=COMMIT, launcher=lambda: None, environment_changes=changes)
    lines = message(comparison=comparison, judgement=judgement).splitlines()
    assert lines[0].endswith(" is 6.0% slower than recorded.")
    assert lines[2:5] == [
        "  cause       the environment, not the code: its baseline kernel is as slow now",
        "  environment driver: 580.1 -> 590.2",
        "              tileiras: 13.4.92 -> 13.5.1",
    ]


def test_a_regression_of_the_environment_shows_the_recorded_times_and_their_limit():
    judgement = Judgement(reason=Reason.ENVIRONMENT, change=0.07)
    comparison = replace(paired(), stored=stored_times(), environment_changes=("driver: 580 -> 590",))
    repeats = [measurement(107.0, 107.0, sustained=sustained(110.0, 109.0)) for _ in range(3)]
    text = message(*repeats, comparison=comparison, judgement=judgement)
    assert re.search(r"\n +current +baseline kernel +recorded +change\n", text)
    assert re.search(r"burst: time per launch +107 us +107 us +100 us +\+7\.0 %\n", text)
    assert re.search(r"sustained: time per launch +110 us +109 us +100 us +\+10\.0 %\n", text)
    assert "limit       5.5%, since other sessions have measured the stored times" in text
    assert f"baseline    stored times of {FILE} (3 runs on 1 GPU)" in text
    assert len(text.splitlines()) <= 28
    # What has become too long for a burst is compared with the recorded burst.
    bursts = replace(comparison, stored={Regime.BURST: stored_times()[Regime.BURST]})
    long = measurement(1.0, burst=(), sustained=sustained(125.0, 125.0))
    text = message(long, comparison=bursts, judgement=judgement)
    assert re.search(r"burst: time per launch +100 us +\+25\.0 %\n", text)


def test_a_disturbance_of_both_kernels_is_told():
    text = message(*(measurement(42.4, 40.0, problems=("it is hot",)) for _ in range(3)))
    assert "GPU         it is hot (disturbed both kernels alike)" in text


def test_with_several_gpus_the_message_names_the_gpu():
    assert f"(NVIDIA H200, {H200.gpu_id}) is 6.0% slower" in message(names_gpu=True)


def test_a_published_figure_is_named_with_its_margin_and_source():
    published = PublishedFigure(rule=Rule(), published=PUBLISHED)
    text = message(measurement(142.0), comparison=published)
    assert "slower than the published figure (margin 10%)" in text
    assert PUBLISHED.source in text
    assert "123.5 us" in text


def test_a_revision_is_named_instead_of_a_baseline():
    comparison = Paired(rule=Rule(), revision="main", launcher=lambda: None)
    text = message(comparison=comparison, baseline_file="")
    assert "is 6.0% slower than main." in text
    assert "the kernel of main, interleaved on the same buffers" in text
    assert "None" not in text


def test_what_the_compiler_made_otherwise_is_said_and_cut_short():
    changes = ["worse: blocks per multiprocessor: 2 -> 1", *(f"different: site {n}" for n in range(9))]
    text = message(compiled_otherwise=changes)
    assert "  compiler    worse: blocks per multiprocessor: 2 -> 1" in text
    assert "... and 4 more differences" in text
    assert "site 7" not in text
    assert "compiler" not in message()


@pytest.mark.parametrize(
    "comparison",
    [paired(), stored(entry(record(1, 40.0), record(2, 41.0)))],
    ids=["paired", "stored"],
)
def test_messages_fit_into_a_hundred_columns(comparison):
    repeats = [measurement(42.4, 40.0, sustained=sustained(54.0, 50.0)) for _ in range(3)]
    assert max(len(line) for line in message(*repeats, comparison=comparison).splitlines()) <= WIDTH


def test_the_message_for_an_impossible_figure_names_figures_and_source():
    text = above_limit_message("k[c]", measurement(27.0))
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
        "entry": StaticEntry(
            facts=baseline,
            toolchain={"tileiras": before},
            provenance={"at": "2026-11-21T10:00:00+00:00", "commit": "abc"},
        ),
        "comparison": compare(baseline, current, arch="sm_90", margin=STATIC_MARGIN),
        "current": current,
        "toolchain": {"tileiras": "13.4.92"},
        "baseline": "baselines/sm_90-static.json",
    }
    return static_message(**{**options, **changes})


def test_a_static_regression_says_what_where_and_who():
    text = static_text()
    lines = text.splitlines()
    assert lines[0] == (
        "k[c] for sm_90 compiles to something worse: spills, in bytes per thread: 0 -> 64 (and 1 more)"
    )
    assert "  worse       spills, in bytes per thread: 0 -> 64" in lines
    assert "  worse       kernels/k.py:10: load: TMA Load 64x128 -> Global-memory load" in lines
    assert "  baseline    baselines/sm_90-static.json (2026-11-21, commit abc)" in lines
    assert max(map(len, lines)) <= WIDTH


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


def test_a_static_regression_says_what_is_unknown():
    assert "  unknown     instructions are unknown: ..." in static_text(
        missing=["instructions are unknown: ..."]
    )
