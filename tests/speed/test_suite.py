"""What the speed gate makes of fresh processes, without any."""

import datetime as dt
import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from pytest_cutile.speed.comparisons import PairedComparison, StoredRuns

from pytest_cutile import Block
from pytest_cutile.gates.speed import _stale
from pytest_cutile.speed.case import SpeedCase
from pytest_cutile.speed.decide import Rule
from pytest_cutile.speed.measure.call import MeasurementFailed
from pytest_cutile.speed.suite import SpeedSuite
from pytest_cutile.verdicts import Judgement, Reason
from tests.speed.test_comparisons import DENSE, H200, HERE, MM, THERE, measured, stored_entry

RULE = Rule()
FIRST = measured((44.0, 100.0), work=DENSE)
UNCONFIRMED = Judgement(reason=Reason.UNCONFIRMED, change=0.1)


def make_suite(stored, environment, checkout=""):
    """A suite of a run that knows one commit, abc; `checkout` is what is under test."""
    settings = SimpleNamespace(
        rule=RULE,
        update_baselines=False,
        strict=False,
        baseline_revision=None,
        baseline_option="",
        xdist_worker=False,
    )
    context: Any = SimpleNamespace(
        stored_runs=stored,
        settings=settings,
        checkout=SimpleNamespace(has_commit=lambda name: name == "abc", is_at=lambda name: name == checkout),
        progress=lambda _: None,
        gpu=SimpleNamespace(
            lock=SimpleNamespace(alone=nullcontext), timer=SimpleNamespace(environment=lambda: environment)
        ),
        baselines=None,
        speed_baselines_name="baselines/x.json",
    )
    return SpeedSuite(context)


def make_case(key, first):
    """A case with this key, which `first` has measured."""
    return SpeedCase(
        key=key,
        check_key=key,
        kernel=key,
        case="c",
        nodeid=f"x.py::{key}",
        arch="sm_90",
        work=first.work,
        call=lambda: pytest.fail("nothing is run here"),
        fingerprint=lambda: "same",
    )


def settle(
    *again: Any,
    first=FIRST,
    device=HERE,
    revision="",
    commit="",
    checkout="",
    fingerprint="",
    environment=None,
    clock_mhz=None,
    elsewhere=(),
    accepted_at=None,
):
    """Settle one case screened as `first`; return its outcome and how often it was measured again."""
    entry = structs.replace(stored_entry(first.work), provenance={"commit": commit}, fingerprint=fingerprint)
    reason = accepted_at and "exact division"
    marks = {"clock_mhz": clock_mhz, "commit": accepted_at, "reason": reason}
    own = tuple(structs.replace(run, **marks) for run in entry.runs)
    entry = structs.replace(entry, runs=(*elsewhere, *own))
    stored = StoredRuns({"k": entry}, rule=RULE, platform=H200)
    suite = make_suite(stored, environment or {**entry.environment}, checkout)
    case = make_case("k", first)
    suite.add(case, stored.compare(entry, device, MM), UNCONFIRMED, first, is_pending=True, records=False)
    (pending,) = suite.pending
    left = list(again)
    revisions = []

    def measure_again(_: Any, revision: str) -> Any:
        revisions.append(revision)
        return {"k": left.pop(0)} if left else {}

    suite.settle(measure_again)
    assert revision is None or set(revisions) <= {revision}
    outcome = suite.current(pending.number).outcome
    assert outcome is not None
    return outcome, len(again) - len(left)


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
    """One place with several samples interleaved with the reference workload."""
    block = Block(samples_us=own_us, interleaved_us=(100.0,))
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


@pytest.mark.parametrize("reference_workload", ["", MM.replace("2.11", "2.12")])
def test_a_fresh_process_without_the_reference_workload_that_is_followed_is_no_slowdown(reference_workload):
    other = replace(measured((40.0, 0.5), work=DENSE), reference_workload=reference_workload)
    outcome, _ = settle(other, other, other)
    assert outcome.judgement.reason is Reason.NOT_TIMED
    assert outcome.failure is not None
    assert f"in place of {MM}" in outcome.failure


@pytest.mark.parametrize("again", [[], [MeasurementFailed(Reason.NOT_TIMED, "k: it crashed")], [FIRST]])
def test_a_case_that_was_lost_is_an_error_and_no_pass(again):
    outcome, _ = settle(*again)
    assert outcome.judgement.reason is Reason.NOT_TIMED
    assert outcome.failure is not None


# -- a clock that is clearly below that of the stored runs ---------------------------------------------


def at(clock_mhz, measurement):
    return replace(measurement, clock_mhz=clock_mhz)


@pytest.mark.parametrize(
    ("stored", "current", "low"),
    [
        ((1980, 1980, 1980), 1800, False),
        ((1980, 1980, 1980), 1770, True),
        ((1980, 1980, 1800), 1650, False),  # they scatter
        ((1980, 1980, 1800), 1610, True),
        ((1980,), 1200, True),
        ((None,), 345, False),
        ((None, 1980), 1200, True),
        ((1980,), None, False),
        ((1980,), 2100, False),
    ],
)
def test_a_clock_counts_as_low_by_what_the_runs_had(stored, current, low):
    runs = tuple(
        structs.replace(run, clock_mhz=clock) for run, clock in zip(stored_entry().runs, stored, strict=False)
    )
    said = structs.replace(stored_entry(), runs=runs).low_clock(current)
    assert bool(said) is low
    if low:
        assert said == f"an SM clock of {current} MHz, 1980 MHz when its baseline was recorded"


@pytest.mark.parametrize(
    ("clock_mhz", "environment", "reason"),
    [
        (1200, None, Reason.DISTURBED),
        (1900, None, Reason.SLOWER),
        (1200, {"power_limit_w": "500"}, Reason.SLOWER),  # that explains it
    ],
)
@pytest.mark.parametrize("when", ["screened", "measured again"])
def test_slower_at_a_low_clock_is_disturbed(clock_mhz, environment, reason, when):
    first, again = at(1980, FIRST), at(clock_mhz, FIRST)
    if when == "screened" and reason is Reason.DISTURBED:
        first = replace(first, low_clock="an SM clock of 1200 MHz, 1980")
        again = FIRST
    outcome, _ = settle(*[again] * 12, first=first, environment=environment, clock_mhz=1980.0)
    assert outcome.judgement.reason is reason
    if reason is Reason.DISTURBED:
        assert "an SM clock of 1200 MHz, 1980" in outcome.judgement.detail


def test_clocks_of_other_gpus_make_none_of_this_one_usual():
    there = [structs.replace(run, gpu_uuid="GPU-7", clock_mhz=1980.0) for run in stored_entry().runs]
    outcome, _ = settle(*[at(1300, FIRST)] * 12, first=at(1500, FIRST), clock_mhz=1500.0, elsewhere=there)
    assert outcome.judgement.reason is Reason.DISTURBED
    assert "1300 MHz, 1500 MHz when its baseline was recorded" in outcome.judgement.detail


def test_a_reference_workload_as_slow_explains_nothing_at_a_low_clock():
    """The same figures pass at the clock of the stored runs."""
    both = measured((40.56, 102.0), work=DENSE)
    for clock, low, reason in ((1980, "", Reason.WITHIN_MARGIN), (1200, "low", Reason.DISTURBED)):
        first = replace(both, low_clock=low)
        outcome, _ = settle(*[at(clock, both)] * 12, first=first, clock_mhz=1980.0)
        assert outcome.judgement.reason is reason


def test_interleaved_kernels_share_a_low_clock():
    outcome, _ = settle(
        *[at(1200, paired(40.7, 39.5))] * 12,
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
        ([(44.0, 100.0)], {"fingerprint": "same"}, Reason.ENVIRONMENT),
        ([(46.0, 46.0)], {"commit": "abc", "revision": "abc"}, Reason.ENVIRONMENT),
    ],
    ids=["noisy", "slower and disturbed", "cleared and disturbed", "the same code", "both slower"],
)
def test_what_is_inconclusive_says_what_could_have_been_seen(again, options, reason):
    found = [
        measured(pair, work=DENSE, reference_workload="" if "commit" in options else MM) for pair in again
    ]
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
    suite.add(make_case("k", FIRST), comparison, UNCONFIRMED, FIRST, is_pending=True, records=records)
    (pending,) = suite.pending
    suite.give_up()
    assert suite.remarks == remarks
    result = suite.current(pending.number).result
    assert result.reason == Reason.UNCONFIRMED
    assert VISIBLE.search(result.detail)


# -- paired with the baseline kernel --------------------------------------------------------------


def paired(own, base):
    return measured((own, base), reference_workload="", work=DENSE)


BUSY = ("1 other process on the GPU",)


@pytest.mark.parametrize("revision", ["abc", "git:main"])
def test_on_a_disturbed_gpu_interleaved_kernels_tell_as_always(revision):
    """Beside the baseline's commit, and with --perf-baseline=git:REV: both are disturbed alike."""
    slower = replace(paired(44.0, 42.0), problems=BUSY)
    if revision == "abc":
        outcome, _ = settle(*[slower] * 12, commit="abc", revision="abc")
    else:
        outcome = settle_paired("main", [slower] * 12)
    assert outcome.judgement.reason is Reason.SLOWER
    assert "the GPU was disturbed: 1 other process" in outcome.judgement.detail
    assert "  GPU         1 other process on the GPU (disturbed both alike)\n" in f"{outcome.failure}\n"


def test_what_a_disturbance_scatters_is_no_slowdown():
    """By the pair's own scatter."""
    rough = [replace(paired(40.0 * by, 40.0), problems=BUSY) for by in (1.06, 0.97, 1.05, 1.0)] * 3
    outcome, _ = settle(*rough, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.DISTURBED
    assert outcome.failure is None


def test_stored_runs_tell_nothing_on_a_disturbed_gpu():
    outcome, _ = settle(*[replace(FIRST, problems=BUSY)] * 12)
    assert outcome.judgement.reason is Reason.DISTURBED


def settle_paired(revision, again, checkout=""):
    """Settle a case of a paired comparison with nothing stored; return its outcome."""
    suite = make_suite(StoredRuns({}, rule=RULE, platform=H200), {}, checkout)
    suite._context.settings.baseline_revision = revision
    first, left = again[0], list(again)
    comparison = PairedComparison(rule=RULE, revision=revision)
    suite.add(make_case("k", first), comparison, UNCONFIRMED, first, is_pending=True, records=False)
    (pending,) = suite.pending
    suite.settle(lambda *_: {"k": left.pop(0)})
    outcome = suite.current(pending.number).outcome
    assert outcome is not None
    return outcome


@pytest.mark.parametrize(
    ("base", "reason"), [(40.7, Reason.WITHIN_MARGIN), (40.5, Reason.WITHIN_MARGIN), (39.5, Reason.SLOWER)]
)
@pytest.mark.parametrize("device", [HERE, THERE], ids=["here", "there"])
def test_what_the_baseline_was_recorded_from_decides(base, reason, device):
    first = measured((40.7, 100.0), work=DENSE)
    outcome, _ = settle(*[paired(40.7, base)] * 12, first=first, device=device, revision="abc", commit="abc")
    assert outcome.judgement.reason is reason
    if reason is Reason.SLOWER:
        assert outcome.judgement.change == pytest.approx(40.7 / 39.5 - 1)
        assert "abc, interleaved with the working tree" in outcome.failure
        assert "commit that baselines/x.json was recorded from" in outcome.failure
        assert "--update-baselines --reason" in outcome.failure


@pytest.mark.parametrize(("device", "commit"), [(HERE, "gone"), (THERE, "abc")])
def test_each_gpu_has_the_commit_that_it_was_recorded_at(device, commit):
    """HERE something slower was accepted at abc; what other GPUs have is older."""
    there = [structs.replace(run, gpu_uuid="GPU-7") for run in stored_entry().runs]
    accepted_at = "abc" if device is HERE else "gone"
    found = [paired(44.0, 44.0)] * 12
    outcome, _ = settle(
        *found, device=device, commit=commit, revision="abc", elsewhere=there, accepted_at=accepted_at
    )
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert "so is the baseline kernel of abc" in outcome.judgement.detail


@pytest.mark.parametrize("commit", ["", "abc+", "gone"])
def test_without_that_commit_the_stored_times_decide(commit):
    outcome, _ = settle(*[FIRST] * 12, device=THERE, commit=commit)
    assert outcome.judgement.reason is Reason.SLOWER


NEW_DRIVER = {"driver": "590.2", "tileiras": "13.4.92"}


@pytest.mark.parametrize(
    ("current", "baseline", "reason"),
    [
        (40.0, 40.0, Reason.WITHIN_MARGIN),
        (46.0, 46.0, Reason.ENVIRONMENT),
        (46.0, 44.0, Reason.SLOWER),
        (40.0, 38.0, Reason.SLOWER),
    ],
    ids=["neither", "both", "the code, too", "the code alone"],
)
def test_with_another_driver_the_baseline_kernel_tells_code_from_driver(current, baseline, reason):
    """Both run under the new one."""
    outcome, _ = settle(
        *[paired(current, baseline)] * 12, commit="abc", revision="abc", environment=NEW_DRIVER
    )
    assert outcome.judgement.reason is reason
    if reason is Reason.ENVIRONMENT:
        detail = outcome.judgement.detail
        assert "something that both share (driver: 580.1 -> 590.2)" in detail
        assert "pytest x.py::k --update-baselines --reason TEXT" in detail


ROUGH = [measured((us, 100.0), work=DENSE) for us in (43.0, 39.0, 40.0)] * 4


@pytest.mark.parametrize(
    ("commit", "environment", "said", "unsaid"),
    [
        (
            "abc+",
            None,
            "it was recorded from uncommitted changes of abc, so git has no baseline kernel: commit",
            "record more",
        ),
        ("", None, "it was recorded outside of git, so there is no baseline kernel", "git fetch"),
        (
            "gone",
            None,
            "git lacks gone, the commit of the baseline kernel: git fetch --unshallow",
            "record more",
        ),
        (
            "abc+",
            NEW_DRIVER,
            "changed since it was recorded: driver: 580.1 -> 590.2; record it again: pytest x.py::k",
            "more",
        ),
    ],
)
def test_what_keeps_fresh_processes_from_telling_is_named(commit, environment, said, unsaid):
    outcome, _ = settle(*ROUGH, commit=commit, environment=environment)
    assert outcome.judgement.reason is Reason.NOISY
    assert said in outcome.judgement.detail
    assert unsaid not in outcome.judgement.detail


def test_sessions_on_other_gpus_are_not_enough():
    there = [
        structs.replace(run, gpu_uuid="GPU-7", session=f"there {n}")
        for n, run in enumerate(stored_entry().runs * 2)
    ]
    outcome, _ = settle(*ROUGH, elsewhere=there)
    assert "its baseline has 3 sessions: record more" in outcome.judgement.detail


@pytest.mark.parametrize(("gpu", "last"), [(HERE.uuid, "2020-01-02"), ("GPU-9", "")])
def test_a_baseline_is_beaten_for_as_long_as_its_runs_are_old(gpu, last):
    """What another GPU has recorded since says nothing of this one's runs."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    own = [structs.replace(run, at="2020-01-02T10:00:00+00:00") for run in stored_entry().runs]
    entry = structs.replace(stored_entry(), runs=(*own, structs.replace(own[0], gpu_uuid="GPU-7", at=now)))
    stored = StoredRuns({"k": entry}, rule=RULE, platform=H200)
    said = _stale("k", stored.compare(entry, replace(HERE, uuid=gpu), MM))
    assert (f"has beaten its baseline of {last}" in said) if last else said == ""


def test_the_same_code_that_is_slower_under_another_driver_names_it():
    outcome, _ = settle(*[FIRST] * 12, fingerprint="same", environment=NEW_DRIVER)
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert "driver: 580.1 -> 590.2" in outcome.judgement.detail


def test_a_launcher_of_then_that_does_not_know_the_case_leaves_it_to_them():
    lacks = MeasurementFailed(Reason.NOT_IN_REVISION, "the launcher of abc raised TypeError")
    outcome, processes = settle(lacks, *[FIRST] * 3, commit="abc", revision=None)
    assert outcome.judgement.reason is Reason.SLOWER
    assert processes == 4


def test_the_same_code_that_is_slower_than_the_baseline_kernel_is_a_regression():
    """What a launcher does besides its kernels is not in their code."""
    outcome, _ = settle(*[paired(44.0, 42.7)] * 12, commit="abc", revision="abc", fingerprint="same")
    assert outcome.judgement.reason is Reason.SLOWER


@pytest.mark.parametrize(
    ("checkout", "fingerprint", "reason"),
    [
        ("abc", "same", Reason.ENVIRONMENT),
        ("abc", "", Reason.ENVIRONMENT),  # plain torch: nothing is compiled
        ("abc", "other", Reason.SLOWER),  # of a file that git does not track
        ("abc+", "same", Reason.SLOWER),
        ("abc+", "", Reason.SLOWER),
    ],
)
def test_one_commit_is_not_slower_than_itself(checkout, fingerprint, reason):
    outcome, _ = settle(
        *[paired(44.0, 42.7)] * 12, commit="abc", revision="abc", checkout=checkout, fingerprint=fingerprint
    )
    assert outcome.judgement.reason is reason
    assert ("are of one commit, without changes" in outcome.judgement.detail) is (outcome.failure is None)


@pytest.mark.parametrize(("checkout", "reason"), [("main", Reason.ENVIRONMENT), ("main+", Reason.SLOWER)])
def test_nor_is_it_with_nothing_stored(checkout, reason):
    found = [replace(paired(44.0, 42.7), problems=BUSY)] * 12
    outcome = settle_paired("main", found, checkout)
    assert outcome.judgement.reason is reason
    assert BUSY[0] in outcome.judgement.detail


@pytest.mark.parametrize("device", [HERE, THERE], ids=["here", "there"])
def test_both_kernels_being_slower_than_what_was_recorded_is_no_pass(device):
    outcome, _ = settle(*[paired(46.0, 46.0)] * 12, device=device, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert outcome.judgement.change == pytest.approx(0.15)
    assert "so is the baseline kernel of abc" in outcome.judgement.detail
    assert (
        "does not track or that is opened relative to the working folder, the GPU)"
        in outcome.judgement.detail
    )


@pytest.mark.parametrize(
    ("current", "baseline"),
    [(40.0, 40.0), (40.1, 40.0), (40.0, 46.0), (40.3, 40.3)],
    ids=["neither", "hardly", "only the baseline kernel", "both within the margin"],
)
def test_a_slow_screening_alone_says_nothing(current, baseline):
    outcome, _ = settle(*[paired(current, baseline)] * 12, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.WITHIN_MARGIN
    assert outcome.failure is None


def test_a_gpu_that_is_slower_as_its_reference_workload_is_makes_no_doubt():
    """In a paired measurement no reference workload is measured: that of the screening tells of the GPU."""
    first = measured((44.0, 112.0), work=DENSE)
    outcome, _ = settle(*[paired(44.0, 44.0)] * 12, first=first, device=THERE, commit="abc", revision="abc")
    assert outcome.judgement.reason is Reason.WITHIN_MARGIN


def test_the_same_code_is_the_environments_fault_on_a_gpu_that_is_known():
    outcome, _ = settle(*[FIRST] * 12, fingerprint="same")
    assert outcome.judgement.reason is Reason.ENVIRONMENT
    assert outcome.failure is None


@pytest.mark.parametrize(("collected", "chances"), [(1, 1), (200, 200)])
def test_only_suspects_count_where_two_kernels_take_turns(collected, chances):
    """A worker that compared a few of many cases has as small a share of the chances."""
    stored = StoredRuns({"k": stored_entry(DENSE)}, rule=RULE, platform=H200)
    comparison = stored.compare(stored_entry(DENSE), HERE, MM)
    context: Any = SimpleNamespace()
    suite = SpeedSuite(context)
    for key in ("suspect", "fine"):
        case: Any = SimpleNamespace(key=key)
        suite.add(case, comparison, UNCONFIRMED, FIRST, is_pending=key == "suspect", records=False)
    suite.multiplicity.collected = 2 * collected
    suite.multiplicity.suspects = len(suite.pending)
    assert suite.multiplicity.of(PairedComparison(rule=RULE, revision="abc")) == chances
    assert suite.multiplicity.of(comparison) == 2 * collected
