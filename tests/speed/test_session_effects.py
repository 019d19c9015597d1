"""The session effect of a stratum is subtracted, and hides no code that became slower."""

import json

import pytest
from msgspec import structs
from pytest_cutile.speed.comparisons import StoredRuns

from pytest_cutile.verdicts import Reason
from tests.speed.test_comparisons import H200, HERE, MM, measured, stored_entry
from tests.speed.test_suite import RULE, UNCONFIRMED, make_case, make_suite

ABROAD = ("GPU-7", "GPU-8")
"""GPUs that are not the one at hand."""


def settle_strata(here, abroad, *, workers=False):
    """Settle cases with baselines of this GPU and of others; return their reasons, and the suite.

    Args:
        here: By how much each of the first is slower than recorded, now and in fresh processes.
        abroad: Likewise of the second.
        workers: Whether another worker has screened all but the first of each.
    """
    changes = {f"here[{n}]": by for n, by in enumerate(here)}
    changes |= {f"abroad[{n}]": by for n, by in enumerate(abroad)}
    found = {key: measured((40.0 * (1 + by), 100.0)) for key, by in changes.items()}
    entries = {}
    for n, key in enumerate(changes):
        entry = stored_entry()
        runs = tuple(structs.replace(run, gpu_uuid=ABROAD[n % 2]) for run in entry.runs)
        entries[key] = structs.replace(entry, runs=runs) if key.startswith("abroad") else entry
    stored = StoredRuns(entries, rule=RULE, platform=H200)
    mine, theirs = (make_suite(stored, {**stored_entry().environment}) for _ in range(2))
    for key, first in found.items():
        suite = theirs if workers and not key.endswith("[0]") else mine
        comparison = stored.compare(entries[key], HERE, MM)
        suite.add(make_case(key, first), comparison, UNCONFIRMED, first, is_pending=True, records=False)
    mine.effects.other_workers = lambda: json.loads(json.dumps([*theirs.effects.screenings.values()]))
    numbers = [case.number for case in mine.pending]
    mine.settle(lambda cases, _: {case.case.key: found[case.case.key] for case in cases})
    settled = [mine.current(number) for number in numbers]
    return {case.case.key: case.decided.judgement.reason for case in settled}, mine


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("abroad", [0, 1, 12])
def test_baselines_of_another_gpu_hide_no_slowdown_on_this_one(abroad, workers):
    """GPUs of one kind may differ by 2.4 %, sessions on one GPU may not."""
    reasons, suite = settle_strata([0.019] * 30, [0.0] * abroad, workers=workers)
    here = {reason for key, reason in reasons.items() if key.startswith("here")}
    assert here == {Reason.SUITE_SLOWER}
    assert suite.remarks == []


@pytest.mark.parametrize("workers", [False, True])
def test_what_another_gpu_adds_is_subtracted_for_its_baselines_alone(workers):
    reasons, suite = settle_strata([0.0] * 12, [0.018] * 12, workers=workers)
    assert {reasons[f"here[{n}]"] for n in range(1 if workers else 12)} == {Reason.WITHIN_MARGIN}
    assert not {Reason.SLOWER, Reason.SUITE_SLOWER} & {*reasons.values()}
    (remark,) = suite.remarks
    assert (
        "12 cases limited by GB/s, compared with other GPUs' runs, are +1.8 % in the median; this was sub"
        in remark
    )
