"""What the speed gate makes of fresh processes, without any."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cutile.core.comparisons import StoredRuns
from pytest_cutile.core.speed_rule import Rule
from pytest_cutile.core.verdicts import Judgement, Reason
from pytest_cutile.gates.measuring import Unmeasured
from pytest_cutile.gates.speed import SpeedCase
from pytest_cutile.gates.suite import SpeedSuite
from tests.core.test_comparisons import DENSE, H200, HERE, MM, THIN, measured, stored_entry

RULE = Rule()
FIRST = measured((44.0, 100.0), work=DENSE)
UNCONFIRMED = Judgement(reason=Reason.UNCONFIRMED, change=0.1)


def settle(*again: Any, first=FIRST):
    """Settle one case screened as `first`; return its outcome and how often it was measured again."""
    entry = stored_entry(first.work)
    stored = StoredRuns({"k": entry}, rule=RULE, platform=H200)
    settings = SimpleNamespace(
        rule=RULE, update_baselines=False, strict=False, baseline_revision=None, baseline_option=""
    )
    engine: Any = SimpleNamespace(
        stored_runs=stored,
        settings=settings,
        progress=lambda _: None,
        gpu_lock=SimpleNamespace(alone=nullcontext),
        timer=SimpleNamespace(environment=dict),
        shown_baseline_file="baselines/x.json",
    )
    case = SpeedCase(
        key="k",
        identity="k",
        kernel="k",
        case="c",
        nodeid="x.py::k",
        arch="sm_90",
        work=first.work,
        call=lambda: pytest.fail("nothing is run here"),
    )
    suite = SpeedSuite(engine, None)  # type: ignore[arg-type]
    suite.add(case, stored.compare(entry, HERE, MM), UNCONFIRMED, first, is_open=True, records=False)
    (opened,) = suite.open
    left = list(again)
    suite.settle(lambda _: {"k": left.pop(0)} if left else {})
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


@pytest.mark.parametrize("control", ["", MM.replace("2.11", "2.12")])
def test_a_fresh_process_without_the_control_that_is_followed_is_no_slowdown(control):
    other = replace(measured((40.0, 0.5), work=DENSE), control=control)
    outcome, _ = settle(other, other, other)
    assert outcome.judgement.reason is Reason.NOT_TIMED
    assert outcome.failure is not None
    assert f"not beside {MM}" in outcome.failure


def test_a_control_that_is_not_followed_may_be_missing():
    first = measured((44.0, 100.0), work=THIN)
    outcome, _ = settle(*[measured((40.0, 100.0), control="")] * 12, first=first)
    assert outcome.judgement.reason is Reason.WITHIN_MARGIN


@pytest.mark.parametrize("again", [[], [Unmeasured(Reason.NOT_TIMED, "k: it crashed")], [FIRST]])
def test_a_case_that_was_lost_is_an_error_and_no_pass(again):
    outcome, _ = settle(*again)
    assert outcome.judgement.reason is Reason.NOT_TIMED
    assert outcome.failure is not None
