import itertools

import pytest

from pytest_cutile import Work
from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import MAX_RUNS, Entry, Published, Run
from pytest_cutile.core.merging import Merged, merge_entries

WORK = Work(bytes=1e8, dtype="bfloat16")


def run(day: int, median_us: float = 40.0, board: str = "GPU-1") -> Run:
    at = f"2026-11-{day:02}T10:00:00+00:00"
    return Run(at=at, session=f"s{day}-{board}", gpu_uuid=board, median_us=median_us, spread=0.004)


def entry(*runs: Run, **changes) -> Entry:
    fields = {
        "work": WORK,
        "runs": runs,
        "identity": "abc",
        "control": "copy",
        "environment": {"driver": "580.1"},
        "provenance": {"by": "pytest-cutile 0.1.0", "commit": "1"},
    }
    return Entry(**{**fields, **changes})


def published(median_us: float = 50.0) -> Entry:
    return Entry(work=WORK, published=Published(median_us=median_us, margin=0.1, source="a document"))


def merge(before: Entry | None, *others: Entry) -> Merged:
    existing = {"k[c]": before} if before is not None else {}
    merged = merge_entries(existing, [{"k[c]": other} for other in others])
    assert [*merged] == ["k[c]"]
    return merged["k[c]"]


def days(entry: Entry) -> list[int]:
    return [int(each.at[8:10]) for each in entry.runs]


def test_a_new_case_is_taken_over():
    merged = merge(None, entry(run(1), run(2)))
    assert (merged.entry, merged.changed) == (entry(run(1), run(2)), True)
    assert merged.note == "new, 2 runs"


def test_cases_that_nobody_else_has_are_not_touched():
    assert merge_entries({"a[c]": entry(run(1))}, [{}]) == {}


def test_runs_are_joined_oldest_first():
    merged = merge(entry(run(2)), entry(run(1, board="GPU-2")), entry(run(3, board="GPU-3")))
    assert days(merged.entry) == [1, 2, 3]
    assert merged.note == "+2 runs, 3 now"


def test_identical_runs_are_there_once():
    merged = merge(entry(run(1), run(2)), entry(run(1), run(3)), entry(run(3)))
    assert days(merged.entry) == [1, 2, 3]


def test_two_runs_of_one_session_are_both_kept():
    assert len(merge(entry(run(1, 40.0)), entry(run(1, 41.0))).entry.runs) == 2


def test_runs_of_one_session_that_read_the_same_are_several():
    session = [run(1), run(1), run(1, 40.1)]
    assert len(merge(None, entry(*session)).entry.runs) == 3
    merged = merge(entry(*session), entry(*session, run(2), run(2)), entry(run(2), run(2)))
    assert [(each.at[8:10], each.median_us) for each in merged.entry.runs] == [
        ("01", 40.0),
        ("01", 40.0),
        ("01", 40.1),
        ("02", 40.0),
        ("02", 40.0),
    ]
    assert merged.note == "+2 runs, 5 now"
    fewer = merge(entry(run(1)), entry(run(1), run(1)))
    assert (len(fewer.entry.runs), fewer.note, fewer.changed) == (2, "+1 run, 2 now", True)


def test_times_are_compared_as_times():
    zulu = Run(at="2026-11-01T09:00:00Z", session="s", gpu_uuid="GPU-2", median_us=40.0, spread=0.004)
    far = Run(at="2026-11-01T12:00:00+05:00", session="t", gpu_uuid="GPU-3", median_us=40.0, spread=0.004)
    merged = merge(entry(run(1)), entry(zulu), entry(far))
    assert [each.session for each in merged.entry.runs] == ["t", "s", "s1-GPU-1"]


def test_a_time_that_is_none_is_an_error():
    odd = Run(at="yesterday", session="s", gpu_uuid="GPU-2", median_us=40.0, spread=0.004)
    with pytest.raises(BaselineError, match=r"k\[c\].*'yesterday'"):
        merge(None, entry(odd))


def test_the_earliest_runs_are_kept():
    merged = merge(entry(*(run(day) for day in range(10, 20))), entry(*(run(day) for day in range(1, 6))))
    assert days(merged.entry) == [*range(1, 6), *range(10, 17)]
    assert len(merged.entry.runs) == MAX_RUNS
    assert merged.note == "+5 runs, 12 now; 3 later than the first 12 left out"


def test_merging_what_is_there_changes_nothing():
    before = entry(run(1), run(2))
    merged = merge(before, entry(run(1), run(2), provenance={"by": "somebody's copy"}), entry(run(1)))
    assert (merged.entry, merged.note, merged.changed) == (before, "", False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"work": Work(bytes=2e8, dtype="bfloat16")}, "other work"),
        ({"environment": {"driver": "590.1"}}, "driver: 580.1 -> 590.1"),
        ({"control": "other copy"}, "control: copy -> other copy"),
        ({"identity": "def"}, "other compiled code"),
        ({"provenance": {"reason": "worth it"}}, "accepted as slower: worth it"),
    ],
)
def test_what_cannot_be_compared_is_not_mixed(changes, why):
    old, new = entry(run(1), run(2)), entry(run(3), **changes)
    merged = merge(old, new)
    assert merged.entry == new
    assert merged.note == f"1 run in place of 2 older ones ({why})"
    # The other way round, the existing entry is the newer one, and what is lost is said, too.
    merged = merge(new, old)
    assert (merged.entry, merged.changed) == (new, False)
    assert merged.note == f"2 runs of other conditions left out ({why})"


def test_the_newest_run_decides_even_across_an_entry_of_other_conditions():
    new_driver = {"environment": {"driver": "590.1"}}
    merged = merge(entry(run(1)), entry(run(2), **new_driver), entry(run(3)))
    assert days(merged.entry) == [1, 3]
    assert merged.note == ("+1 run, 2 now; 1 run of other conditions left out (driver: 590.1 -> 580.1)")


def test_the_order_of_the_files_does_not_matter():
    entries = [
        entry(run(2), run(4)),
        entry(run(1), run(4)),
        entry(run(3), identity=""),
        entry(run(5), identity="other"),
        published(),
    ]
    results = {str(merge(None, *order).entry) for order in itertools.permutations(entries[:3] + entries[4:])}
    assert len(results) == 1
    results = {str(merge(None, *order).entry) for order in itertools.permutations(entries)}
    assert len(results) == 1


def test_unknown_code_may_be_any():
    merged = merge(entry(run(1), identity="abc"), entry(run(2), identity=""))
    assert (days(merged.entry), merged.entry.identity) == ([1, 2], "abc")


def test_unknown_code_does_not_join_two_that_differ():
    merged = merge(entry(run(3), identity=""), entry(run(2), identity="abc"), entry(run(1), identity="def"))
    assert (days(merged.entry), merged.entry.identity) == ([2, 3], "abc")


def test_what_was_measured_wins_over_what_was_published():
    merged = merge(published(), entry(run(1), run(2)))
    assert merged.entry == entry(run(1), run(2))
    assert merged.note == "2 runs in place of a published figure"
    merged = merge(entry(run(1)), published())
    assert (merged.entry, merged.note, merged.changed) == (entry(run(1)), "", False)


def test_published_figures_alone():
    assert merge(None, published()).note == "a published figure"
    assert not merge(published(), published()).changed
    merged = merge(published(), published(60.0))
    assert (merged.entry, merged.changed) == (published(), False)
    assert merged.note == "several published figures differ: the first one stays"
