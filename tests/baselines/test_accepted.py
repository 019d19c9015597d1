"""Merging what was accepted as slower on one GPU."""

import itertools

import pytest
from msgspec.structs import replace

from pytest_cutile.baselines.entries import Entry, Run
from tests.baselines.test_merge import assert_refused, days, entry, kept, merge, run, slow


def accepted(*runs: Run, commit: str = "c2") -> Entry:
    """What a runner recorded as slower, with a reason."""
    provenance = {"by": "pytest-cutile 0.1.0", "commit": commit, "reason": "exact division"}
    return entry(*runs, fingerprint="", provenance=provenance)


BOTH = entry(
    *[run(1, 40.0)] * 3, *[run(1, 41.0, "GPU-2")] * 3, fingerprint="", provenance={"by": "x", "commit": "c1"}
)


@pytest.mark.parametrize("us", [42.5, 48.0])
def test_a_reason_replaces_the_runs_of_its_gpu_alone(us):
    merged = merge(BOTH, accepted(*[run(2, us, "GPU-2")] * 3))
    assert (merged.changed, merged.refused) == (True, False)
    there = kept(merged).on_gpu("GPU-2")
    assert [each.median_us for each in kept(merged).runs] == [40.0] * 3 + [us] * 3
    assert kept(merged).provenance == {"by": "x", "commit": "c1"}
    assert (there.provenance["commit"], there.provenance["reason"]) == ("c2", "exact division")
    assert "+3 runs, 6 now; 3 runs of GPUs that were accepted as slower since left out" in merged.note
    again = merge(kept(merged), accepted(*[run(2, us, "GPU-2")] * 3))
    assert (again.entry, again.changed) == (merged.entry, False)
    for order in itertools.permutations([BOTH, accepted(*[run(2, us, "GPU-2")] * 3)]):
        assert merge(None, *order).entry == merged.entry


@pytest.mark.parametrize("us", [42.5, 48.0])
def test_a_reason_that_was_given_on_a_new_gpu_replaces_nothing(us):
    merged = merge(BOTH, accepted(*[run(2, us, "GPU-3")] * 3))
    assert [each.median_us for each in kept(merged).runs] == [40.0] * 3 + [41.0] * 3 + [us] * 3
    assert kept(merged).on_gpu("GPU-9").gpus == BOTH.gpus
    assert kept(merged).on_gpu("GPU-3").provenance["commit"] == "c2"


def test_a_gpu_that_has_been_recorded_since_is_not_made_slower_by_an_older_reason():
    before = replace(BOTH, runs=tuple(replace(each, at=run(5).at) for each in BOTH.runs))
    merged = merge(before, accepted(*[run(2, 42.5, "GPU-2")] * 3))
    assert (merged.entry, merged.changed) == (before, False)
    later = accepted(*[run(2, 42.5, "GPU-2")] * 3, *[run(6, 42.5, "GPU-2")] * 3)
    assert_refused(merge(before, later), before, "it is slower: 41 us -> 42.5 us")


def test_what_was_accepted_on_one_gpu_lets_no_other_get_slower():
    merged = kept(merge(BOTH, accepted(*[run(2, 42.5, "GPU-2")] * 3)))
    assert_refused(merge(merged, replace(merged, runs=(run(3, 42.5),) * 3)), merged, "40 us -> 42.5 us")
    assert merge(merged, replace(merged, runs=(run(3, 42.5, "GPU-4"),) * 3)).refused


def test_a_reason_that_was_given_when_merging_outlives_the_runners_copy():
    copy = slow(2, fingerprint="def")
    there = kept(merge(entry(run(1)), copy, reason="exact division"))
    merged = merge(there, copy)
    assert (merged.entry, merged.changed) == (there, False)


def copy_of(*runs: Run, commit: str = "c2", **changes) -> Entry:
    """What a runner recorded as slower, without a reason."""
    return entry(*runs, fingerprint="", provenance={"by": "x", "commit": commit}, **changes)


def test_a_reason_that_is_given_when_merging_is_of_the_gpus_that_need_it():
    slower, session = copy_of(*[run(2, 42.5, "GPU-2")] * 3), copy_of(*[run(3, 40.0)] * 3, commit="c1")
    merged = merge(BOTH, slower, session, reason="GPU 2 is slow")
    assert [each.median_us for each in kept(merged).runs] == [40.0] * 3 + [42.5] * 3 + [40.0] * 3
    assert {each.gpu_uuid for each in kept(merged).runs if each.reason} == {"GPU-2"}
    assert kept(merged).on_gpu("GPU-1").provenance["commit"] == "c1"
    assert kept(merged).on_gpu("GPU-2").provenance["commit"] == "c2"


def test_merging_once_more_changes_nothing():
    slower = copy_of(*[run(2, 42.5, "GPU-2")] * 3)
    there = kept(merge(BOTH, slower, reason="GPU 2 is slow"))
    for reason in (None, "GPU 2 is slow"):
        again = merge(there, slower, reason=reason)
        assert (again.entry, again.changed, again.refused, again.note) == (there, False, False, "")
    of_one = kept(merge(entry(run(1)), slow(2), slow(3), reason="exact division"))
    assert not merge(of_one, slow(2), slow(3)).changed


@pytest.mark.parametrize("gpu", ["GPU-1", "GPU-2"])
def test_a_later_session_of_what_was_accepted_is_one_more(gpu):
    """It needs no reason of its own; nor does a session of a GPU that nothing was accepted on."""
    there = kept(merge(BOTH, copy_of(*[run(2, 42.5, "GPU-2")] * 3), reason="GPU 2 is slow"))
    us = 42.5 if gpu == "GPU-2" else 40.0
    merged = merge(there, copy_of(*[run(4, us, gpu)] * 3, commit="c3"))
    assert (merged.refused, len(kept(merged).runs)) == (False, 9)
    assert {each.gpu_uuid for each in kept(merged).runs if each.reason} == {"GPU-2"}


def test_so_is_one_of_an_entry_that_was_accepted_as_a_whole():
    changes = {"environment": {"driver": "590.1"}}
    first = slow(2, us=41.2, provenance={"commit": "1", "reason": "driver 590"}, **changes)
    later = slow(3, us=41.2, **changes)
    one_by_one = kept(merge(kept(merge(entry(run(1)), first)), later))
    assert days(one_by_one) == [2, 3]
    assert one_by_one.provenance["reason"] == "driver 590"
    assert merge(entry(run(1)), first, later).entry == one_by_one


def test_what_is_faster_again_is_no_session_of_what_was_accepted():
    there = kept(merge(BOTH, copy_of(*[run(2, 44.0, "GPU-2")] * 3), reason="GPU 2 is slow"))
    merged = kept(merge(there, copy_of(*[run(4, 41.0, "GPU-2")] * 3, commit="c3")))
    assert not any(each.reason for each in merged.runs)
