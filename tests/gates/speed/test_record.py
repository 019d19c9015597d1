"""What is recorded of settled cases, and what is rejected."""

import pytest

from pytest_cutile.baselines.entries import Published
from pytest_cutile.gates.speed.case import SpeedCase
from pytest_cutile.gates.speed.comparison import PublishedFigure
from pytest_cutile.gates.speed.record import known, new_run_id
from pytest_cutile.gates.speed.suite import SpeedSuite
from pytest_cutile.words.verdicts import Judgement, Reason
from tests.gates.speed.simulated import (
    RULE,
    WORK,
    FakeStore,
    Fresh,
    make_case,
    make_context,
    measured,
    paired,
    settle,
    unpaired,
)


def record(again, *, screening=None, comparison=None, commit="a" * 40, **settings):
    """Record one case; return it, its record (None where there is none) and the store."""
    store = FakeStore()
    context = make_context(store, commit, update_baselines=True, **settings)
    case, _ = settle(
        screening=screening or again(), again=again, comparison=comparison or paired(), context=context
    )
    entry = store.baselines.entries.get("k[c]")
    return case, entry.records[0] if entry else None, store


def test_a_record_holds_one_run_for_each_fresh_process():
    case, recorded, store = record(lambda: measured(0.0, 0.01))
    assert len(recorded.runs) == RULE.looks[0]
    assert recorded.runs[0].burst_us == pytest.approx(100, abs=0.1)
    assert recorded.runs[0].sustained_us == pytest.approx(101, abs=0.1)
    assert recorded.runs[0].workload_us == 100
    assert (recorded.fingerprint, recorded.moved, recorded.reason) == ("fingerprint", "", "")
    (name, session), *_ = store.baselines.sessions.items()
    assert name == recorded.session
    assert (session.commit, session.gpu_uuid, session.environment) == ("a" * 40, "GPU-1", {"driver": "580"})
    assert case.is_recorded
    assert "k[c]: 3 runs of 99.99 us recorded in baselines/" in case.so_far.note


def test_a_record_holds_the_change_against_the_anchor_with_its_interval():
    _, recorded, _ = record(lambda: measured(0.005, -0.004))
    change = recorded.changes["burst"]
    assert change.value == pytest.approx(0.005, abs=1e-3)
    assert change.low < change.value < change.high
    assert recorded.changes["sustained"].value == pytest.approx(-0.004, abs=1e-3)


def test_a_kernel_that_the_screening_has_cleared_is_measured_alone_again():
    """Beside the baseline kernel it would take three times as long."""
    store = FakeStore()
    suite = SpeedSuite(make_context(store, update_baselines=True))
    fresh = Fresh(**{key: lambda _: measured(0.0, 0.0) for key in ("k[c]", "k[d]")})
    cleared, suspect = Judgement(reason=Reason.WITHIN_MARGIN), Judgement(reason=Reason.UNCONFIRMED)
    suite.add(make_case("k[c]"), paired(), cleared, measured(0.0, 0.0))
    suite.add(make_case("k[d]"), paired(), suspect, measured(0.03, 0.0))
    suite.settle(fresh)
    revisions = {request.nodeid: request.revision for request in fresh.requests}
    assert revisions == {"x.py::k[c]": "", "x.py::k[d]": "abc1234"}
    assert all(request.sustained for request in fresh.requests)
    recorded = store.baselines.entries["k[c]"].records[0]
    assert len(recorded.runs) == RULE.looks[0]
    assert recorded.changes.keys() == {"burst", "sustained"}


@pytest.mark.parametrize(
    ("again", "reason", "moved"),
    [
        (lambda: measured(0.0), None, ""),
        (lambda: measured(0.0), "a new layout", ""),
        (lambda: measured(0.008), None, ""),
        (lambda: measured(-0.1), None, "faster"),
        (lambda: measured(0.1), "exact division", "accepted"),
    ],
)
def test_only_an_improvement_or_a_reason_moves_the_anchor(again, reason, moved):
    case, recorded, _ = record(again, reason=reason)
    assert recorded.moved == moved
    assert recorded.reason == (reason if moved == "accepted" else "")
    assert case.so_far.failure is None


def test_a_slower_kernel_is_not_recorded_without_a_reason():
    case, recorded, store = record(lambda: measured(0.1))
    assert recorded is None
    assert store.writes == 0
    assert "give --reason TEXT to accept it" in case.so_far.failure


def test_a_scattering_kernel_is_not_recorded():
    changes = iter([0.05, -0.05] * 20)
    _, recorded, _ = record(lambda: measured(next(changes)), screening=measured(0.0), reason="so be it")
    assert recorded is None


@pytest.mark.parametrize(
    ("again", "text"),
    [
        (lambda: measured(0.0, problems=("the GPU is busy",)), "the GPU is busy"),
        (lambda: measured(0.0, scatter=0.4), "the samples spread by "),
    ],
)
def test_doubtful_times_are_not_recorded(again, text):
    case, recorded, _ = record(again)
    assert recorded is None
    assert text in case.so_far.note


def test_without_a_baseline_kernel_a_reason_is_needed():
    case, recorded, _ = record(measured, comparison=unpaired())
    assert recorded is None
    assert "there is no baseline kernel to compare it with: abc1234 is not in this clone" in case.so_far.note
    _, recorded, _ = record(measured, comparison=unpaired(), reason="history was rewritten")
    assert recorded.moved == "accepted"


def test_a_published_figure_is_replaced_where_it_is_not_missed():
    comparison = PublishedFigure(
        rule=RULE, published=Published(work=WORK, median_us=100.0, margin=0.15, source="a table")
    )
    _, recorded, _ = record(measured, comparison=comparison)
    assert recorded.moved == ""


def test_a_dirty_checkout_is_warned_about():
    store = FakeStore()
    suite = SpeedSuite(make_context(store, "a" * 40 + "+", update_baselines=True))
    suite.add(make_case(), None, Judgement(reason=Reason.NO_ENTRY), measured())
    [case] = suite.pending
    suite.settle(Fresh(**{"k[c]": lambda _: measured()}))
    (remark,) = suite.remarks
    assert "warning: recorded from uncommitted changes of aaaaaaaaaaaa" in remark
    assert case.is_recorded


def test_a_new_case_is_recorded_without_a_comparison():
    store = FakeStore()
    suite = SpeedSuite(make_context(store, update_baselines=True))
    suite.add(make_case(), None, Judgement(reason=Reason.NO_ENTRY), measured(0.0, 0.0))
    fresh = Fresh(**{"k[c]": lambda _: measured(0.0, 0.0)})
    suite.settle(fresh)
    assert fresh.requests[0].sustained
    assert len(store.baselines.entries["k[c]"].records[0].runs) == 3


def test_a_case_whose_test_failed_is_not_recorded():
    store = FakeStore()
    suite = SpeedSuite(make_context(store, update_baselines=True))
    suite.add(make_case(), None, Judgement(reason=Reason.NO_ENTRY), measured())
    [case] = suite.pending
    case.test_failed = True
    suite.settle(Fresh(**{"k[c]": lambda _: measured()}))
    assert not store.writes
    assert case.so_far.note == "k[c]: not recorded: its test failed"


def test_a_fingerprint_that_cannot_be_computed_is_left_out():
    class Uncompiled(SpeedCase):
        def fingerprint(self, revision: str) -> str:  # noqa: ARG002
            raise RuntimeError("no compiler")

    assert known(make_case(kind=Uncompiled).fingerprint) == ""


def test_runs_have_names_of_their_own():
    assert new_run_id() != new_run_id()
    assert new_run_id("0123456789")[-8:] == "01234567"
