import itertools

import pytest
from msgspec.structs import replace

from pytest_cutile import Work
from pytest_cutile.baselines.entries import MAX_RUNS, Entry, Published, Run
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.merge import Merged, merge_entries
from pytest_cutile.speed.comparisons import merge_limits
from pytest_cutile.speed.decide import Rule

WORK = Work(bytes=1e8, dtype="bfloat16")
SAME = "40 us -> 40 us (+0.0 %)"


def run(day: int, median_us: float = 40.0, gpu: str = "GPU-1") -> Run:
    at = f"2025-11-{day:02}T10:00:00+00:00"
    return Run(at=at, session=f"s{day}-{gpu}", gpu_uuid=gpu, median_us=median_us, spread=0.004)


def entry(*runs: Run, **changes) -> Entry:
    fields = {
        "work": WORK,
        "runs": runs,
        "fingerprint": "abc",
        "reference_workload": "copy",
        "environment": {"driver": "580.1"},
        "provenance": {"by": "pytest-cutile 0.1.0", "commit": "1"},
    }
    return Entry(**{**fields, **changes})


def published(median_us: float = 50.0) -> Entry:
    figure = Published(median_us=median_us, margin=0.1, source="a document")
    return Entry(work=WORK, published=figure, environment={}, provenance={})


def merge(before: Entry | None, *others: Entry, reason: str | None = None) -> Merged:
    existing = {"k[c]": before} if before is not None else {}
    merged = merge_entries(
        existing, [{"k[c]": other} for other in others], limits=merge_limits(Rule()), reason=reason
    )
    assert [*merged] == ["k[c]"]
    return merged["k[c]"]


def kept(merged: Merged) -> Entry:
    assert merged.entry is not None
    return merged.entry


def days(entry: Entry) -> list[int]:
    return [int(each.at[8:10]) for each in entry.runs]


def test_a_new_case_is_taken_over():
    merged = merge(None, entry(run(1), run(2)))
    assert (merged.entry, merged.changed) == (entry(run(1), run(2)), True)
    assert merged.note == "new: 40 us, 2 runs"


def test_cases_that_nobody_else_has_are_not_touched():
    assert merge_entries({"a[c]": entry(run(1))}, [{}], limits=merge_limits(Rule())) == {}


def test_runs_are_joined_oldest_first():
    merged = merge(entry(run(2)), entry(run(1, gpu="GPU-2")), entry(run(3, gpu="GPU-3")))
    assert days(kept(merged)) == [1, 2, 3]
    assert merged.note == f"{SAME}: +2 runs, 3 now"


def test_identical_runs_are_there_once():
    merged = merge(entry(run(1), run(2)), entry(run(1), run(3)), entry(run(3)))
    assert days(kept(merged)) == [1, 2, 3]


def test_two_runs_of_one_session_are_both_kept():
    assert len(kept(merge(entry(run(1, 40.0)), entry(run(1, 40.4)))).runs) == 2


def test_runs_of_one_session_that_read_the_same_are_several():
    session = [run(1), run(1), run(1, 40.1)]
    assert len(kept(merge(None, entry(*session))).runs) == 3
    merged = merge(entry(*session), entry(*session, run(2), run(2)), entry(run(2), run(2)))
    assert [(each.at[8:10], each.median_us) for each in kept(merged).runs] == [
        ("01", 40.0),
        ("01", 40.0),
        ("01", 40.1),
        ("02", 40.0),
        ("02", 40.0),
    ]
    assert merged.note == "40.03 us -> 40.02 us (-0.0 %): +2 runs, 5 now"
    fewer = merge(entry(run(1)), entry(run(1), run(1)))
    assert (len(kept(fewer).runs), fewer.note, fewer.changed) == (2, f"{SAME}: +1 run, 2 now", True)


def test_times_are_compared_as_times():
    zulu = Run(at="2025-11-01T09:00:00Z", session="s", gpu_uuid="GPU-2", median_us=40.0, spread=0.004)
    far = Run(at="2025-11-01T12:00:00+05:00", session="t", gpu_uuid="GPU-3", median_us=40.0, spread=0.004)
    merged = merge(entry(run(1)), entry(zulu), entry(far))
    assert [each.session for each in kept(merged).runs] == ["t", "s", "s1-GPU-1"]


def test_the_earliest_runs_are_kept():
    merged = merge(entry(*(run(day) for day in range(10, 20))), entry(*(run(day) for day in range(1, 6))))
    assert days(kept(merged)) == [*range(1, 6), *range(10, 17)]
    assert len(kept(merged).runs) == MAX_RUNS
    assert merged.note == f"{SAME}: +5 runs, 12 now; 3 later than the first 12 of their GPU left out"


def test_each_gpu_keeps_its_earliest_runs():
    first = [run(day) for day in range(1, 13)]
    second = [run(day, gpu="GPU-2") for day in range(13, 29)]
    late = run(29)
    merged = merge(entry(*second[8:], late), entry(*first, *second[:8]))
    assert kept(merged).runs == (*first, *second[:MAX_RUNS])
    assert merged.note == f"{SAME}: +20 runs, 24 now; 5 later than the first 12 of their GPU left out"


def test_merging_what_is_there_changes_nothing():
    before = entry(run(1), run(2))
    merged = merge(before, entry(run(1), run(2), provenance={"by": "somebody's copy"}), entry(run(1)))
    assert (merged.entry, merged.note, merged.changed) == (before, "", False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"environment": {"driver": "590.1"}}, "driver: 580.1 -> 590.1"),
        ({"reference_workload": "other copy"}, "reference workload: copy -> other copy"),
        ({"fingerprint": "def"}, "other compiled code"),
        ({"provenance": {"reason": "worth it"}}, "accepted as slower: worth it"),
    ],
)
def test_what_cannot_be_compared_is_not_mixed(changes, why):
    old, new = entry(run(1), run(2)), entry(run(3), **changes)
    merged = merge(old, new)
    assert merged.entry == new
    assert merged.note == f"{SAME}: 1 run in place of 2 older ones ({why})"
    # The other way round, the existing entry is the newer one, and what is lost is said, too.
    merged = merge(new, old)
    assert (merged.entry, merged.changed) == (new, False)
    assert merged.note == f"2 runs of other conditions left out ({why})"


def test_the_newest_run_decides_even_across_an_entry_of_other_conditions():
    new_driver = {"environment": {"driver": "590.1"}}
    merged = merge(entry(run(1)), entry(run(2), **new_driver), entry(run(3)))
    assert days(kept(merged)) == [1, 3]
    assert merged.note == (
        f"{SAME}: +1 run, 2 now; 1 run of other conditions left out (driver: 590.1 -> 580.1)"
    )


def test_the_order_of_the_files_does_not_matter():
    entries = [
        entry(run(2), run(4)),
        entry(run(1), run(4)),
        entry(run(3), fingerprint=""),
        entry(run(5), fingerprint="other"),
        published(),
    ]
    results = {str(merge(None, *order).entry) for order in itertools.permutations(entries[:3] + entries[4:])}
    assert len(results) == 1
    results = {str(merge(None, *order).entry) for order in itertools.permutations(entries)}
    assert len(results) == 1


def test_unknown_code_may_be_any():
    merged = merge(entry(run(1), fingerprint="abc"), entry(run(2), fingerprint=""))
    assert (days(kept(merged)), kept(merged).fingerprint) == ([1, 2], "abc")


def test_unknown_code_does_not_join_two_that_differ():
    merged = merge(
        entry(run(3), fingerprint=""), entry(run(2), fingerprint="abc"), entry(run(1), fingerprint="def")
    )
    assert (days(kept(merged)), kept(merged).fingerprint) == ([2, 3], "abc")


def test_code_that_nobody_knows_does_not_join_two_that_differ():
    known, unknown = entry(run(1), fingerprint="i2"), entry(run(2, gpu="GPU-2"), fingerprint="")
    other = entry(run(3, 40.2), fingerprint="i1", provenance={"commit": "b", "reason": "r"})
    merged = kept(merge(known, unknown, other))
    assert merged.fingerprint == "i1"
    assert {each.at for each in merged.runs if each.gpu_uuid == "GPU-1"} == {run(3).at}


def test_what_was_measured_wins_over_what_was_published():
    merged = merge(published(), entry(run(1), run(2)))
    assert merged.entry == entry(run(1), run(2))
    assert merged.note == "50 us -> 40 us (-20.0 %): 2 runs in place of a published figure"
    merged = merge(entry(run(1)), published())
    assert (merged.entry, merged.note, merged.changed) == (entry(run(1)), "", False)


def test_published_figures_alone():
    assert merge(None, published()).note == "a published figure"
    assert not merge(published(), published()).changed
    merged = merge(published(), published(60.0))
    assert (merged.entry, merged.changed) == (published(), False)
    assert merged.note == "several published figures differ: the first one stays"


# -- what a file may become ---------------------------------------------------------------------------


def slow(*numbers: int, us: float = 80.0, **changes) -> Entry:
    return entry(*(run(day, us) for day in numbers), **changes)


def assert_refused(merged: Merged, before: Entry | None, *parts: str) -> None:
    assert (merged.entry, merged.changed, merged.refused) == (before, False, True)
    assert merged.note.startswith("not merged: ")
    assert "give --reason TEXT to" in merged.note
    assert all(part in merged.note for part in parts), merged.note


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fingerprint": "def"}, "other compiled code"),
        ({"environment": {"driver": "590.1"}}, "driver: 580.1 -> 590.1"),
        ({}, ""),  # the same code and conditions: joined, their median would be that of none
    ],
)
def test_a_slower_entry_needs_a_reason(changes, why):
    old, new = entry(run(1), run(2)), slow(3, 4, 5, **changes)
    assert_refused(merge(old, new), old, "it is slower: 40 us -> 80 us (+100.0 %)", why or "another speed")
    merged = merge(old, new, reason="exact division")
    why = ", ".join(filter(None, [why, "accepted as slower: exact division"]))
    assert kept(merged).runs == new.runs
    assert kept(merged).provenance["reason"] == "exact division"
    assert (merged.changed, merged.refused) == (True, False)
    assert merged.note == f"40 us -> 80 us (+100.0 %): 3 runs in place of 2 older ones ({why})"


def test_small_steps_under_other_conditions_need_a_reason():
    """They could add up to anything; under the same ones they are one more session."""
    old = entry(run(1))
    assert_refused(merge(old, slow(2, us=40.4, fingerprint="def")), old, "40 us -> 40.4 us (+1.0 %)")
    assert merge(old, slow(2, us=40.1, fingerprint="def")).changed
    merged = merge(old, slow(2, us=40.4))
    assert merged.note == "40 us -> 40.2 us (+0.5 %): +1 run, 2 now"


def test_the_smallest_steps_under_other_conditions_do_not_add_up():
    merged = entry(run(1))
    for day in range(2, 5):
        new = slow(day, us=40.0 * 1.0045 ** (day - 1), environment={"driver": f"580.{day}"})
        result = merge(merged, new)
        assert result.refused is (day > 2)
        merged = kept(result)
    assert merged.drift == pytest.approx(0.0045)
    joined = kept(merge(merged, slow(5, us=40.2, environment={"driver": "580.2"})))
    assert (len(joined.runs), joined.drift) == (2, merged.drift)
    assert kept(merge(merged, entry(run(6, 36.0)))).drift == 0
    assert kept(merge(merged, slow(6), reason="exact division")).drift == 0


def test_runs_that_are_joined_do_not_make_an_entry_slower_without_a_reason():
    old = entry(run(1))
    assert_refused(merge(old, slow(2, 3, us=42.0)), old, "it is slower: 40 us -> 42 us (+5.0 %)")
    merged = merge(old, slow(2, 3, us=42.0), reason="a new launcher")  # it replaces its GPU's run
    assert (days(kept(merged)), kept(merged).provenance["reason"]) == ([2, 3], "a new launcher")


@pytest.mark.parametrize(
    ("us", "gpu", "fingerprint", "taken"),
    [
        (41.0, "GPU-2", "abc", True),  # 2.5 %: GPUs of one model differ by as much, and the code is the same
        (41.0, "GPU-1", "abc", False),
        (41.0, "GPU-2", "def", False),
        (41.4, "GPU-2", "abc", False),
    ],
)
def test_other_gpus_may_be_slower_by_half_as_much_again(us, gpu, fingerprint, taken):
    added = entry(*(run(day, us, gpu) for day in (2, 3, 4)), fingerprint=fingerprint)
    assert merge(entry(run(1)), added).refused is not taken


TWO_GPUS = entry(*[run(1, 40.0)] * 3, *[run(1, 41.6, "GPU-2")] * 3)


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ([run(2, 41.3)] * 3, "it is slower: 40 us -> 41.3 us (+3.2 %)"),  # 1.2 % above the mean of both
        ([run(2, 41.3)] * 3 + [run(2, 40.0, "GPU-2")] * 3, "it is slower: 40 us -> 41.3 us (+3.2 %)"),
        ([run(2, 41.9, "GPU-2")] * 3, ""),  # 0.7 %, and 2.7 % above that mean
        ([run(2, 41.9, "GPU-3")] * 3, ""),  # a new GPU may be
        ([run(2, 42.2, "GPU-3")] * 3, "it is slower: 40.79 us -> 42.2 us (+3.5 %)"),
    ],
)
def test_runs_of_a_gpu_are_compared_with_its_own(added, said):
    merged = merge(TWO_GPUS, entry(*added))
    assert merged.refused is bool(said)
    assert said in merged.note


@pytest.mark.parametrize(
    ("added", "refused"),
    [
        ([run(2, 40.0)] * 3 + [run(2, 41.6, "GPU-2")] * 3, False),  # as they were, on each GPU
        ([run(2, 40.8)] * 3, True),
        ([run(2, 40.0)] * 3 + [run(2, 42.4, "GPU-2")] * 3, True),
    ],
)
def test_a_step_of_other_code_is_one_of_a_gpu(added, refused):
    first = replace(TWO_GPUS, fingerprint="", provenance={"commit": "c1"})
    later = entry(*added, fingerprint="", provenance={"commit": "c2"})
    assert merge(first, later).refused is refused


@pytest.mark.parametrize(("us", "gpu", "drift"), [(40.1, "GPU-1", 0.0025), (41.7, "GPU-2", 0.0024)])
def test_drift_is_that_of_a_gpu(us, gpu, drift):
    merged = merge(TWO_GPUS, entry(*[run(2, us, gpu)] * 3, environment={"driver": "590"}))
    assert kept(merged).drift == pytest.approx(drift, abs=1e-4)


def test_clocks_of_other_gpus_make_none_of_a_gpu_usual():
    fast, slow = (replace(run(1, gpu=f"GPU-{clock}"), clock_mhz=clock) for clock in (1980, 1500))
    held_down = replace(slow, at=run(2).at, clock_mhz=1300)
    merged = merge(entry(fast, slow), entry(held_down))
    assert "an SM clock of 1300 MHz, 1500 MHz when its baseline was recorded" in merged.note


@pytest.mark.parametrize("clock_mhz", [1500.0, 1980.0])
def test_a_slow_session_does_not_hide_among_more_runs(clock_mhz):
    """It leaves the median over the runs as it is, and moves the mean over sessions, which the gate takes."""

    def session(day: int, us: float, gpu: str, clock_mhz: float) -> list[Run]:
        return [replace(run(day, us, gpu), clock_mhz=clock_mhz)] * 3

    steady = [each for day in (1, 2) for each in session(day, 50.0, "GPU-0", 1980.0)]
    slow = session(3, 53.9, "GPU-1", clock_mhz)
    for incoming in (entry(*slow), entry(*steady, *slow)):  # alone, or added to a copy
        assert_refused(merge(entry(*steady), incoming), entry(*steady), "50 us -> 53.9 us (+7.8 %)")


@pytest.mark.parametrize("days", [(1, 2), (2, 1)], ids=["low, then high", "high, then low"])
def test_runs_of_a_low_clock_are_not_joined(days):
    low, high = (
        replace(run(day), clock_mhz=clock) for day, clock in zip(days, (1500.0, 1980.0), strict=True)
    )
    merged = merge(entry(low), entry(high))
    assert len(kept(merged).runs) == 1
    assert "an SM clock of " in merged.note


def test_a_much_faster_kernel_is_not_joined_either():
    merged = merge(slow(1, 2), entry(run(3)))
    assert merged.entry == entry(run(3))
    assert merged.note == "80 us -> 40 us (-50.0 %): 1 run in place of 2 older ones (another speed)"


@pytest.mark.parametrize(
    ("us", "gpu", "joined"),
    [
        (38.3, "GPU-1", True),  # 4 % faster than its own runs, and 8.3 % than the mean of both GPUs
        (39.7, "GPU-2", False),  # 8.3 % and 4 %
        (39.7, "GPU-3", True),
        (38.3, "GPU-3", False),
    ],
)
def test_a_gpu_is_as_far_as_from_its_own_runs(us, gpu, joined):
    before = entry(run(1, 40.0), run(1, 43.0, "GPU-2"))
    merged = merge(before, entry(run(2, us, gpu)))
    assert len(kept(merged).runs) == (3 if joined else 1)
    assert ("another speed" in merged.note) is not joined


def test_a_reason_that_was_given_when_it_was_recorded_is_enough():
    given = {"reason": "exact division"}
    new = slow(2, provenance=given)
    assert merge(entry(run(1)), new).entry == new
    old = entry(run(1), provenance=given)  # but not the one that had been given before
    assert_refused(merge(old, new), old)


def test_a_reason_does_not_excuse_what_was_recorded_since():
    """An old runner adds a session to what was accepted once; meanwhile the kernel has become faster."""
    accepted = slow(2, us=44.0, provenance={"reason": "exact division"})
    faster = entry(run(3))
    runner = replace(accepted, runs=(*accepted.runs, run(4, 44.0)))
    assert merge(entry(run(1)), accepted).entry == accepted
    assert_refused(merge(faster, runner), faster, "it is slower: 40 us -> 44 us (+10.0 %)")
    assert merge(faster, slow(4, us=44.0, provenance=accepted.provenance)).changed
    assert merge(faster, runner, reason="exact division, again").changed


def test_other_work_needs_a_reason():
    old, new = entry(run(1)), entry(run(2), work=Work(bytes=2e8, dtype="bfloat16"))
    assert_refused(merge(old, new), old, "other work than the recorded one")
    merged = merge(old, new, reason="twice the rows")
    assert (kept(merged).work, kept(merged).provenance["reason"]) == (new.work, "twice the rows")
    merged = merge(new, old)  # the existing entry is the newer one, and what is left out is said
    assert (merged.entry, merged.changed, merged.refused) == (new, False, False)
    assert merged.note == "1 run of other conditions left out (other work)"


def test_slower_than_published_by_more_than_its_margin_needs_a_reason():
    before = published(50.0)
    assert merge(before, slow(1, us=54.0)).changed
    assert_refused(merge(before, slow(1, us=56.0)), before, "50 us -> 56 us (+12.0 %)")
    assert merge(before, slow(1, us=56.0), reason="a warm L2").changed


def test_nothing_in_place_does_not_let_a_slower_file_win():
    fast, new = entry(run(1)), slow(2, fingerprint="def")
    for order in itertools.permutations((fast, new)):
        assert_refused(merge(None, *order), None, "40 us -> 80 us")
        assert merge(None, *order, reason="exact division").changed


def test_a_reason_is_kept_only_where_it_was_needed():
    merged = merge(entry(run(1)), entry(run(2)), reason="exact division")
    assert "reason" not in kept(merged).provenance


def test_a_time_to_come_wins_nothing():
    later = Run(at="2999-01-01T00:00:00+00:00", session="s", gpu_uuid="GPU-2", median_us=40.0, spread=0.004)
    with pytest.raises(BaselineError, match=r"k\[c\].*2999-01-01.*later than now"):
        merge(entry(run(1)), entry(later))
    with pytest.raises(BaselineError, match=r"2999-01-01"):
        merge(entry(later), entry(run(1)))


# -- runs of code that only its commit names ----------------------------------------------------------


def of_commit(commit: str, day: int, us: float, **changes) -> Entry:
    """Three runs of one session, of a case whose compiled code nobody knows."""
    provenance = {"by": "pytest-cutile 0.1.0", "commit": commit}
    return entry(*[run(day, us)] * 3, **{"fingerprint": "", "provenance": provenance, **changes})


def test_the_commit_stays_that_of_the_first_runs():
    """Suspects are measured beside it: one that moved with each merge would let a slowdown in by steps."""
    merged = of_commit("c1", 1, 70.0)
    for day, us in enumerate((70.2, 70.4, 70.6), start=2):
        merged = kept(merge(merged, of_commit(f"c{day}", day, us)))
    assert (merged.provenance["commit"], len(merged.runs)) == ("c1", 12)
    for order in itertools.permutations((of_commit("c2", 2, 70.0), of_commit("c1", 1, 70.0))):
        assert kept(merge(None, *order)).provenance["commit"] == "c1"


@pytest.mark.parametrize("commit", ["c1+", ""])
def test_a_commit_without_the_kernel_gives_way_to_the_first_that_has_it(commit):
    merged = merge(of_commit(commit, 1, 70.0), of_commit("c3", 3, 70.0), of_commit("c2", 2, 70.0))
    assert kept(merged).provenance["commit"] == "c2"


def test_a_slowdown_does_not_creep_in_by_small_steps():
    merged = first = of_commit("c1", 1, 70.0)
    for day, us in enumerate((71.3, 72.0, 72.8), start=2):
        result = merge(merged, of_commit(f"c{day}", day, us))
        assert_refused(result, first, f"it is slower: 70 us -> {us:g} us", f"(c1 -> c{day})")
        merged = kept(result)
    assert_refused(merge(None, of_commit("c2", 2, 71.3), first), None, "70 us -> 71.3 us")


@pytest.mark.parametrize(
    ("commit", "us", "changes"),
    [
        ("c1", 71.3, {}),  # the same code
        ("c2", 71.3, {"fingerprint": "abc"}),  # likewise
        ("c2", 70.3, {}),  # too small a step
        ("c2", 69.0, {}),
    ],
)
def test_runs_that_show_no_slower_code_are_joined(commit, us, changes):
    first = of_commit("c1", 1, 70.0, **changes)
    assert len(kept(merge(first, of_commit(commit, 2, us, **changes))).runs) == 6


def test_a_small_step_on_another_gpu_may_be_the_gpus():
    first, step = of_commit("c1", 1, 70.0), of_commit("c2", 2, 71.0)
    other = entry(*[run(2, 71.0, gpu="GPU-2")] * 3, fingerprint="", provenance=step.provenance)
    assert merge(first, step).refused
    assert len(kept(merge(first, other)).runs) == 6


def test_slower_code_that_is_accepted_takes_the_place_of_the_old():
    """With its commit: beside the earlier commit, a suspect would stay slower."""
    merged = merge(of_commit("c1", 1, 70.0), of_commit("c2", 2, 71.3), reason="exact division")
    assert kept(merged).provenance["commit"] == "c2"
    assert kept(merged).provenance["reason"] == "exact division"
    assert merged.note == (
        "70 us -> 71.3 us (+1.9 %): 3 runs in place of 3 older ones (accepted as slower: exact division)"
    )


def test_what_is_joined_is_held_against_its_oldest_runs():
    """Not only against the entry in place, which may be a later one."""
    before, oldest = of_commit("c1", 2, 71.3), of_commit("c1", 1, 70.0)
    newest = of_commit("c1", 3, 72.3)
    assert_refused(merge(before, oldest, newest, entry(*newest.runs, *newest.runs)), before, "70 us -> ")
