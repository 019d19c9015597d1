"""What the speed gate makes of fresh processes, without any."""

import datetime as dt
import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cutile import Block
from pytest_cutile.core.comparisons import DuetComparison, StoredRuns
from pytest_cutile.core.speed_rule import Rule
from pytest_cutile.core.verdicts import Judgement, Reason
from pytest_cutile.gates.measuring import Unmeasured
from pytest_cutile.gates.speed import SpeedCase, _beaten
from pytest_cutile.gates.suite import SpeedSuite
from tests.core.test_comparisons import DENSE, H200, HERE, MM, THERE, measured, stored_entry

RULE = Rule()
FIRST = measured((44.0, 100.0), work=DENSE)
UNCONFIRMED = Judgement(reason=Reason.UNCONFIRMED, change=0.1)


def make_suite(stored, environment, checkout=""):
    """A suite of an engine that knows one commit, abc; `checkout` is what is under test."""
    settings = SimpleNamespace(
        rule=RULE,
        update_baselines=False,
        strict=False,
        baseline_revision=None,
        baseline_option="",
        xdist_worker=False,
    )
    engine: Any = SimpleNamespace(
        stored_runs=stored,
        settings=settings,
        duet=None,
        has_commit=lambda name: name == "abc",
        is_at=lambda name: name == checkout,
        progress=lambda _: None,
        gpu_lock=SimpleNamespace(alone=nullcontext),
        timer=SimpleNamespace(environment=lambda: environment),
        baseline_file=None,
        shown_baseline_file="baselines/x.json",
    )
    compilations: Any = SimpleNamespace(identity=lambda _: "same")
    return SpeedSuite(engine, compilations)


def make_case(key, first):
    """A case with this key, which `first` has measured."""
    return SpeedCase(
        key=key,
        identity=key,
        kernel=key,
        case="c",
        nodeid=f"x.py::{key}",
        arch="sm_90",
        work=first.work,
        call=lambda: pytest.fail("nothing is run here"),
        compiled=SimpleNamespace(),  # type: ignore[arg-type]
    )


def settle(
    *again: Any,
    first=FIRST,
    device=HERE,
    revision="",
    commit="",
    checkout="",
    identity="",
    environment=None,
    clock_mhz=None,
    elsewhere=(),
    accepted_at=None,
):
    """Settle one case screened as `first`; return its outcome and how often it was measured again."""
    entry = replace(stored_entry(first.work), provenance={"commit": commit}, identity=identity)
    reason = accepted_at and "exact division"
    marks = {"clock_mhz": clock_mhz, "commit": accepted_at, "reason": reason}
    own = tuple(replace(run, **marks) for run in entry.runs)
    entry = replace(entry, runs=(*elsewhere, *own))
    stored = StoredRuns({"k": entry}, rule=RULE, platform=H200)
    suite = make_suite(stored, environment or {**entry.environment}, checkout)
    case = make_case("k", first)
    suite.add(case, stored.compare(entry, device, MM), UNCONFIRMED, first, is_open=True, records=False)
    (opened,) = suite.open
    left = list(again)
    beside = []

    def measure_again(_: Any, revision: str) -> Any:
        beside.append(revision)
        return {"k": left.pop(0)} if left else {}

    suite.settle(measure_again)
    assert revision is None or set(beside) <= {revision}
    assert opened.outcome is not None
    return opened.outcome, len(again) - len(left)


def test_a_suspect_that_fresh_processes_do_not_confirm_passes():
    outcome, processes = settle(*[measured((40.0, 100.0), work=DENSE)] * 12)
    assert (outcome.judgement.reason, outcome.failure) == (Reason.WITHIN_MARGIN, None)
    assert processes <= RULE.looks[0]


def test_a_suspect_that_they_confirm_fails():
    outcome, processes = settle(*[FIRST] * 12)
    assert outcome.judgement.reason is Reason.SLOWER
    assert outcome.judgement.change == pytest.approx(0.1)
    assert outcome.failure is not None
    assert processes == RULE.looks[0]


def samples(*own_us):
    """One place with several samples beside the control."""
    block = Block(samples_us=own_us, partner_us=(100.0,))
    return replace(FIRST, blocks=(block,))


@pytest.mark.parametrize(
    ("again", "reason"),
    [
        ((40.0, 40.0, 40.0, 120.0), Reason.NOISY),
        ((40.0, 40.0, 40.0, 40.0, 40.0, 120.0), Reason.WITHIN_MARGIN),  # a hiccup of the host
        ((44.0, 44.0, 44.0, 120.0), Reason.SLOWER),
    ],
)
def test_what_fresh_processes_clear_by_noisy_samples_is_no_pass(again, reason):
    outcome, _ = settle(*[samples(*again)] * 12, first=samples(44.0, 44.0, 120.0))
    assert outcome.judgement.reason is reason
    if reason is Reason.NOISY:
        assert "k: the samples spread by 25%, " in outcome.judgement.detail


@pytest.mark.parametrize("control", ["", MM.replace("2.11", "2.12")])
def test_a_fresh_process_without_the_control_that_is_followed_is_no_slowdown(control):
    other = replace(measured((40.0, 0.5), work=DENSE), control=control)
    outcome, _ = settle(other, other, other)
    assert outcome.judgement.reason is Reason.NOT_TIMED
    assert outcome.failure is not None
    assert f"not beside {MM}" in outcome.failure


@pytest.mark.parametrize("again", [[], [Unmeasured(Reason.NOT_TIMED, "k: it crashed")], [FIRST]])
def test_a_case_that_was_lost_is_an_error_and_no_pass(again):
    outcome, _ = settle(*again)
    assert outcome.judgement.reason is Reason.NOT_TIMED
    assert outcome.failure is not None


# -- a clock that is clearly below that of the stored runs ---------------------------------------------


def at(clock_mhz, measurement):
    return replace(measurement, clock_mhz=clock_mhz)


@pytest.mark.parametrize(
    ("then", "now", "low"),
    [
        ((1980, 1980, 1980), 1800, False),
        ((1980, 1980, 1980), 1770, True),
        ((1980, 1980, 1800), 1650, False),  # they scatter
        ((1980, 1980, 1800), 1610, True),
        ((1980,), 1200, True),
        ((), 345, False),
        ((None, 1980), 1200, True),
        ((1980,), None, False),
        ((1980,), 2100, False),
    ],
)
def test_a_clock_counts_as_low_by_what_the_runs_had(then, now, low):
    runs = tuple(replace(run, clock_mhz=clock) for run, clock in zip(stored_entry().runs, then, strict=False))
    said = replace(stored_entry(), runs=runs).low_clock(now)
    assert bool(said) is low
    if low:
        assert said == f"an SM clock of {now} MHz, 1980 MHz when its baseline was recorded"


@pytest.mark.parametrize(
    ("now", "environment", "reason"),
    [
        (1200, None, Reason.DISTURBED),
        (1900, None, Reason.SLOWER),
        (1200, {"power_limit_w": "500"}, Reason.SLOWER),  # that explains it
    ],
)
@pytest.mark.parametrize("when", ["screened", "measured again"])
def test_slower_at_a_low_clock_is_disturbed(now, environment, reason, when):
    first, again = at(1980, FIRST), at(now, FIRST)
    if when == "screened" and reason is Reason.DISTURBED:
        first = replace(first, low_clock="an SM clock of 1200 MHz, 1980")
        again = FIRST
    outcome, _ = settle(*[again] * 12, first=first, environment=environment, clock_mhz=1980.0)
    assert outcome.judgement.reason is reason
    if reason is Reason.DISTURBED:
        assert "an SM clock of 1200 MHz, 1980" in outcome.judgement.detail


def test_clocks_of_other_boards_make_none_of_this_one_usual():
    there = [replace(run, gpu_uuid="GPU-7", clock_mhz=1980.0) for run in stored_entry().runs]
    outcome, _ = settle(*[at(1300, FIRST)] * 12, first=at(1500, FIRST), clock_mhz=1500.0, elsewhere=there)
    assert outcome.judgement.reason is Reason.DISTURBED
    assert "1300 MHz, 1500 MHz when its baseline was recorded" in outcome.judgement.detail


def test_a_control_as_slow_explains_nothing_at_a_low_clock():
    """The same figures pass at the clock of the stored runs."""
    both = measured((40.56, 102.0), work=DENSE)
    for clock, low, reason in ((1980, "", Reason.WITHIN_MARGIN), (1200, "low", Reason.DISTURBED)):
        first = replace(both, low_clock=low)
        outcome, _ = settle(*[at(clock, both)] * 12, first=first, clock_mhz=1980.0)
        assert outcome.judgement.reason is reason


def test_two_kernels_that_take_turns_share_a_low_clock():
    outcome, _ = settle(
        *[at(1200, duet(40.7, 39.5))] * 12,
        first=replace(FIRST, low_clock="low"),
        revision="abc",
        commit="abc",
        clock_mhz=1980.0,
    )
    assert outcome.judgement.reason is Reason.SLOWER


VISIBLE = re.compile(r"; only a slowdown of (\d+\.\d)% could have been seen for certain$")


@pytest.mark.parametrize(
    ("again", "options", "reason"),
    [
        ([(43.0, 100.0), (39.0, 100.0), (40.0, 100.0)], {}, Reason.NOISY),
        ([(44.0, 100.0)], {"problems": ("1 other process on the GPU",)}, Reason.DISTURBED),
        ([(40.65, 102.0)], {"problems": ("1 other process on the GPU",)}, Reason.DISTURBED),
        ([(44.0, 100.0)], {"identity": "same"}, Reason.ENVIRONMENT),
        ([(46.0, 46.0)], {"commit": "abc", "revision": "abc"}, Reason.ENVIRONMENT),
    ],
    ids=["noisy", "slower and disturbed", "cleared and disturbed", "the same code", "both slower"],
)
def test_what_is_inconclusive_says_what_could_have_been_seen(again, options, reason):
    found = [measured(pair, work=DENSE, control="" if "commit" in options else MM) for pair in again]
    found = [replace(each, problems=options.get("problems", ())) for each in found]
    options = {name: value for name, value in options.items() if name != "problems"}
    outcome, _ = settle(*found * 12, **options)
    assert outcome.judgement.reason is reason
    (visible,) = VISIBLE.findall(outcome.judgement.detail)
    assert 1 < float(visible) < 30


@pytest.mark.parametrize(
    ("records", "remarks"), [(False, []), (True, ["1 case not recorded: the run was stopped"])]
)
def test_a_run_that_was_stopped_says_what_could_have_been_seen(records, remarks):
    stored = StoredRuns({"k": stored_entry(DENSE)}, rule=RULE, platform=H200)
    suite = make_suite(stored, {})
    comparison = stored.compare(stored_entry(DENSE), HERE, MM)
    suite.add(make_case("k", FIRST), comparison, UNCONFIRMED, FIRST, is_open=True, records=records)
    (opened,) = suite.open
    suite.give_up()
    assert suite.remarks == remarks
    assert opened.result.reason == Reason.UNCONFIRMED
    assert VISIBLE.search(opened.result.detail)


# -- beside the kernel that the baseline was recorded from --------------------------------------------


def duet(own, base):
    return measured((own, base), control="", work=DENSE)


BUSY = ("1 other process on the GPU",)


@pytest.mark.parametrize("revision", ["abc", "git:main"])
def test_on_a_disturbed_gpu_two_kernels_that_take_turns_tell_as_always(revision):
    """Beside the baseline's commit, and with --perf-baseline=git:REV: both are disturbed alike."""
    slower = replace(duet(44.0, 42.0), problems=BUSY)
    if revision == "abc":
        outcome, _ = settle(*[slower] * 12, commit="abc", revision="abc")
    else:
        outcome = settle_beside("main", [slower] * 12)
    assert outcome.judgement.reason is Reason.SLOWER
    assert "on the GPU was seen: 1 other process" in outcome.judgement.detail
    assert "  the GPU     1 other process on the GPU: it disturbed both alike\n" in f"{outcome.failure}\n"


def test_what_a_disturbance_scatters_is_no_slowdown():
    """By the duet's own scatter."""
    rough = [replace(duet(40.0 * by, 40.0), problems=BUSY) for by in (1.06, 0.97, 1.05, 1.0)] * 3
    outcome, _ = settle(*rough, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.DISTURBED
    assert outcome.failure is None


def test_stored_runs_tell_nothing_on_a_disturbed_gpu():
    outcome, _ = settle(*[replace(FIRST, problems=BUSY)] * 12)
    assert outcome.judgement.reason is Reason.DISTURBED


def settle_beside(revision, again, checkout=""):
    """Settle a case of a duet with nothing stored; return its outcome."""
    suite = make_suite(StoredRuns({}, rule=RULE, platform=H200), {}, checkout)
    suite._engine.duet = revision
    first, left = again[0], list(again)
    comparison = DuetComparison(rule=RULE, revision=revision)
    suite.add(make_case("k", first), comparison, UNCONFIRMED, first, is_open=True, records=False)
    (opened,) = suite.open
    suite.settle(lambda *_: {"k": left.pop(0)})
    assert opened.outcome is not None
    return opened.outcome


@pytest.mark.parametrize(
    ("base", "reason"), [(40.7, Reason.WITHIN_MARGIN), (40.5, Reason.WITHIN_MARGIN), (39.5, Reason.SLOWER)]
)
@pytest.mark.parametrize("device", [HERE, THERE], ids=["here", "there"])
def test_what_the_baseline_was_recorded_from_decides(base, reason, device):
    first = measured((40.7, 100.0), work=DENSE)
    outcome, _ = settle(*[duet(40.7, base)] * 12, first=first, device=device, revision="abc", commit="abc")
    assert outcome.judgement.reason is reason
    if reason is Reason.SLOWER:
        assert outcome.judgement.change == pytest.approx(40.7 / 39.5 - 1)
        assert "abc, which took turns with it" in outcome.failure
        assert "and which baselines/x.json was recorded from" in outcome.failure
        assert "--update-baselines --reason" in outcome.failure


@pytest.mark.parametrize(("device", "commit"), [(HERE, "gone"), (THERE, "abc")])
def test_each_board_has_the_commit_that_it_was_recorded_at(device, commit):
    """HERE something slower was accepted at abc; what other boards have is older."""
    there = [replace(run, gpu_uuid="GPU-7") for run in stored_entry().runs]
    accepted_at = "abc" if device is HERE else "gone"
    found = [duet(44.0, 44.0)] * 12
    outcome, _ = settle(
        *found, device=device, commit=commit, revision="abc", elsewhere=there, accepted_at=accepted_at
    )
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert "so is the kernel of abc" in outcome.judgement.detail


@pytest.mark.parametrize("commit", ["", "abc+", "gone"])
def test_without_that_commit_the_stored_times_decide(commit):
    outcome, _ = settle(*[FIRST] * 12, device=THERE, commit=commit)
    assert outcome.judgement.reason is Reason.SLOWER


NEW_DRIVER = {"driver": "590.2", "tileiras": "13.4.92"}


@pytest.mark.parametrize(
    ("now", "then", "reason"),
    [
        (40.0, 40.0, Reason.WITHIN_MARGIN),
        (46.0, 46.0, Reason.ENVIRONMENT),
        (46.0, 44.0, Reason.SLOWER),
        (40.0, 38.0, Reason.SLOWER),
    ],
    ids=["neither", "both", "the code, too", "the code alone"],
)
def test_with_another_driver_the_kernel_of_then_tells_code_from_driver(now, then, reason):
    """Both run under the new one."""
    outcome, _ = settle(*[duet(now, then)] * 12, commit="abc", revision="abc", environment=NEW_DRIVER)
    assert outcome.judgement.reason is reason
    if reason is Reason.ENVIRONMENT:
        detail = outcome.judgement.detail
        assert "something that both share (driver: 580.1 -> 590.2)" in detail
        assert "pytest x.py::k --update-baselines --reason TEXT" in detail


ROUGH = [measured((us, 100.0), work=DENSE) for us in (43.0, 39.0, 40.0)] * 4


@pytest.mark.parametrize(
    ("commit", "environment", "said", "unsaid"),
    [
        ("abc+", None, "it was recorded from uncommitted changes of abc, ", "record more"),
        ("", None, "it was recorded outside of git, ", "git fetch"),
        ("gone", None, "git lacks gone, whose kernel could tell: git fetch --unshallow", "record more"),
        ("abc+", NEW_DRIVER, "since then driver: 580.1 -> 590.2: record it again: pytest x.py::k", "more"),
    ],
)
def test_what_keeps_fresh_processes_from_telling_is_named(commit, environment, said, unsaid):
    outcome, _ = settle(*ROUGH, commit=commit, environment=environment)
    assert outcome.judgement.reason is Reason.NOISY
    assert said in outcome.judgement.detail
    assert unsaid not in outcome.judgement.detail


def test_sessions_on_other_boards_are_not_enough():
    there = [
        replace(run, gpu_uuid="GPU-7", session=f"there {n}") for n, run in enumerate(stored_entry().runs * 2)
    ]
    outcome, _ = settle(*ROUGH, elsewhere=there)
    assert "it is held against 3 sessions: record more" in outcome.judgement.detail


@pytest.mark.parametrize(("board", "last"), [(HERE.uuid, "2020-01-02"), ("GPU-9", "")])
def test_a_baseline_is_beaten_for_as_long_as_its_runs_are_old(board, last):
    """What another board has recorded since says nothing of this one's runs."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    own = [replace(run, at="2020-01-02T10:00:00+00:00") for run in stored_entry().runs]
    entry = replace(stored_entry(), runs=(*own, replace(own[0], gpu_uuid="GPU-7", at=now)))
    stored = StoredRuns({"k": entry}, rule=RULE, platform=H200)
    said = _beaten("k", stored.compare(entry, replace(HERE, uuid=board), MM))
    assert (f"has beaten its baseline of {last}" in said) if last else said == ""


def test_the_same_code_that_is_slower_under_another_driver_names_it():
    outcome, _ = settle(*[FIRST] * 12, identity="same", environment=NEW_DRIVER)
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert "driver: 580.1 -> 590.2" in outcome.judgement.detail


def test_a_launcher_of_then_that_does_not_know_the_case_leaves_it_to_them():
    lacks = Unmeasured(Reason.NOT_IN_REVISION, "the launcher as of abc raised TypeError")
    outcome, processes = settle(lacks, *[FIRST] * 3, commit="abc", revision=None)
    assert outcome.judgement.reason is Reason.SLOWER
    assert processes == 4


def test_the_same_code_that_is_slower_beside_the_kernel_of_then_is_a_regression():
    """What a launcher does beside its kernels is not in their code."""
    outcome, _ = settle(*[duet(44.0, 42.7)] * 12, commit="abc", revision="abc", identity="same")
    assert outcome.judgement.reason is Reason.SLOWER


@pytest.mark.parametrize(
    ("checkout", "identity", "reason"),
    [
        ("abc", "same", Reason.ENVIRONMENT),
        ("abc", "", Reason.ENVIRONMENT),  # plain torch: nothing is compiled
        ("abc", "other", Reason.SLOWER),  # of a file that git does not track
        ("abc+", "same", Reason.SLOWER),
        ("abc+", "", Reason.SLOWER),
    ],
)
def test_one_commit_is_not_slower_than_itself(checkout, identity, reason):
    outcome, _ = settle(
        *[duet(44.0, 42.7)] * 12, commit="abc", revision="abc", checkout=checkout, identity=identity
    )
    assert outcome.judgement.reason is reason
    assert ("are of one commit, without changes" in outcome.judgement.detail) is (outcome.failure is None)


@pytest.mark.parametrize(("checkout", "reason"), [("main", Reason.ENVIRONMENT), ("main+", Reason.SLOWER)])
def test_nor_is_it_with_nothing_stored(checkout, reason):
    found = [replace(duet(44.0, 42.7), problems=BUSY)] * 12
    outcome = settle_beside("main", found, checkout)
    assert outcome.judgement.reason is reason
    assert BUSY[0] in outcome.judgement.detail


@pytest.mark.parametrize("device", [HERE, THERE], ids=["here", "there"])
def test_both_kernels_being_slower_than_what_was_recorded_is_no_pass(device):
    outcome, _ = settle(*[duet(46.0, 46.0)] * 12, device=device, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert outcome.judgement.change == pytest.approx(0.15)
    assert "so is the kernel of abc" in outcome.judgement.detail
    assert (
        "does not track or that is opened relative to the working folder, the GPU)"
        in outcome.judgement.detail
    )


@pytest.mark.parametrize(
    ("now", "then"),
    [(40.0, 40.0), (40.1, 40.0), (40.0, 46.0), (40.3, 40.3)],
    ids=["neither", "hardly", "only the kernel of then", "both within the margin"],
)
def test_a_slow_screening_alone_says_nothing(now, then):
    outcome, _ = settle(*[duet(now, then)] * 12, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.WITHIN_MARGIN
    assert outcome.failure is None


def test_a_board_that_is_slower_as_its_control_is_makes_no_doubt():
    """In a duet no control is measured: that of the screening tells of the board."""
    first = measured((44.0, 112.0), work=DENSE)
    outcome, _ = settle(*[duet(44.0, 44.0)] * 12, first=first, device=THERE, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.WITHIN_MARGIN


def test_the_same_code_is_the_environments_fault_on_a_board_that_is_known():
    outcome, _ = settle(*[FIRST] * 12, identity="same")
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert outcome.failure is None


@pytest.mark.parametrize(("collected", "chances"), [(1, 1), (200, 200)])
def test_only_suspects_count_where_two_kernels_take_turns(collected, chances):
    """A worker that compared a few of many cases has as small a share of the chances."""
    stored = StoredRuns({"k": stored_entry(DENSE)}, rule=RULE, platform=H200)
    comparison = stored.compare(stored_entry(DENSE), HERE, MM)
    suite = SpeedSuite(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    for key in ("suspect", "fine"):
        case: Any = SimpleNamespace(key=key)
        suite.add(case, comparison, UNCONFIRMED, FIRST, is_open=key == "suspect", records=False)
    suite.chances.collected = 2 * collected
    suite.chances.suspects = len(suite.open)
    assert suite.chances.of(DuetComparison(rule=RULE, revision="abc")) == chances
    assert suite.chances.of(comparison) == 2 * collected
