"""A merge is a union: properties on random files."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_cutile.baselines.entries import Entry, Record, SpeedBaselines
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.select import MAX_RUNS, add, merge, pruned, since_anchor, stored_us
from tests.baselines.examples import (
    ENVIRONMENT,
    PUBLISHED,
    WORK,
    baselines,
    entry,
    record,
    run,
    session,
)

CASES = ("a[c]", "b[c]")
DAYS = range(1, 13)
GPUS = ("GPU-1", "GPU-2")


@st.composite
def worlds(draw) -> SpeedBaselines:
    """Draw everything that was ever recorded of a platform."""
    sessions = {
        f"s{day}": session(
            day,
            gpu_uuid=draw(st.sampled_from(GPUS)),
            environment={"driver": draw(st.sampled_from(["580", "590"]))},
        )
        for day in DAYS
    }

    def drawn(day: int, anchors: list[str]) -> Record:
        moved = draw(st.sampled_from(["", "", "", "faster"]))
        if moved:
            anchors.append(f"anchor of s{day}")
        # On any branch: compared with the newest anchor or an earlier one, or recorded for the first time.
        anchor = "" if moved else draw(st.sampled_from(["", *anchors]))
        neutral = draw(st.sampled_from(["abc", "def"]))
        return Record(
            session=f"s{day}",
            work=WORK,
            fingerprint=anchors[-1] if moved else neutral if anchor else "abc",
            runs=tuple(run(40.0 + number / 8 + day) for number in range(draw(st.sampled_from([1, 3, 3, 5])))),
            moved=moved,
            anchor=anchor,
        )

    entries = {}
    for key in CASES:
        anchors = ["abc"]
        entries[key] = Entry(records=tuple(drawn(day, anchors) for day in DAYS))
    return baselines(entries, sessions)


def part(world: SpeedBaselines, kept: set[tuple[str, int]]) -> SpeedBaselines:
    """Return what a runner has that recorded some cases on some days."""
    file = replace(world, sessions={}, entries={})
    for key, day in sorted(kept):
        session_id = f"s{day}"
        record = next(each for each in world.entries[key].records if each.session == session_id)
        file = add(file, session_id, world.sessions[session_id], {key: record})
    return file


def counting(file: SpeedBaselines) -> dict[str, object]:
    """Return what later runs are compared with, by case."""
    return {
        key: (
            [(each.session, each.fingerprint) for each in since_anchor(of)][:1],
            {(each.fingerprint, str(file.sessions[each.session].environment)) for each in since_anchor(of)},
            [stored_us(file, of, regime, gpu) for regime in ("burst", "sustained") for gpu in GPUS],
        )
        for key, of in file.entries.items()
    }


PARTS = st.lists(st.sets(st.tuples(st.sampled_from(CASES), st.sampled_from(DAYS))), min_size=3, max_size=3)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(worlds(), PARTS)
def test_order_never_matters_and_merging_again_changes_nothing(world, parts):
    files = [part(world, kept) for kept in parts]
    merged = merge(files)
    assert all(merge(order) == merged for order in itertools.permutations(files))
    assert merge([merged]) == merged
    # It counts as what one machine had recorded that did it all, whenever old runs were dropped.
    expected = counting(part(world, set().union(*parts)))
    assert counting(merged) == expected
    assert counting(merge([merge(files[:2]), files[2]])) == counting(merge([merged, *files])) == expected


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(worlds(), PARTS)
def test_nothing_is_lost_but_old_runs(world, parts):
    merged = merge([part(world, kept) for kept in parts])
    for key, file in merged.entries.items():
        asked = {f"s{day}" for of, day in set().union(*parts) if of == key}
        assert {each.session for each in file.records} <= asked
        for gpu in GPUS:
            recorded = [
                (each.session, one)
                for each in reversed(world.entries[key].records)
                if each.session in asked and world.sessions[each.session].gpu_uuid == gpu
                for one in each.runs
            ]
            kept = [
                (each.session, one)
                for each in reversed(file.records)
                if merged.sessions[each.session].gpu_uuid == gpu
                for one in each.runs
            ]
            assert [one for one in kept if one in recorded[:MAX_RUNS]] == recorded[:MAX_RUNS]
            times = [each for each in since_anchor(file) if merged.sessions[each.session].gpu_uuid == gpu][:1]
            assert all(one in kept for one in recorded if one[0] in {each.session for each in times})
    assert pruned(merged) == merged


def test_two_recorders_of_one_case():
    one, other = baselines({"k[c]": entry(record(1, 40.0))}), baselines({"k[c]": entry(record(2, 41.0))})
    merged = merge([other, one])
    assert merged.entries == {"k[c]": entry(record(1, 40.0), record(2, 41.0))}
    assert merged.sessions == {"s1": session(1), "s2": session(2)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"sessions": {"s1": session(2)}},
            r"session s1 .*different content: at is '2025-11-01.*' and '2025-11-02",
        ),
        (
            {"sessions": {"s1": session(environment={**ENVIRONMENT, "driver": "5"})}},
            "environment is .*580.1.*'5'",
        ),
        (
            {"entries": {"k[c]": entry(record(1, 44.0))}},
            r"session s1 .*: k\[c\]: runs is .*40\.0.* and .*44\.0",
        ),
        ({"entries": {"k[c]": entry(record(1, 40.0, source="x"))}}, r"k\[c\]: source is '' and 'x'"),
    ],
)
def test_one_session_with_different_content_is_an_error_that_names_both(change, said):
    one = baselines()
    with pytest.raises(BaselineError, match=said):
        merge([one, replace(one, **change)])


def test_a_copy_without_its_old_runs_is_the_same_record():
    whole = baselines({"k[c]": entry(record(1, 40.0, 41.0, 42.0))})
    for runs in ((), (40.0,), (40.0, 41.0)):
        assert merge([baselines({"k[c]": entry(record(1, *runs))}), whole]) == whole
    with pytest.raises(BaselineError, match="runs is"):
        merge([baselines({"k[c]": entry(record(1, 41.0))}), whole])


def test_published_figures():
    published = baselines({"k[c]": Entry(published=PUBLISHED)})
    assert merge([published, published]) == published
    both = merge([published, baselines()])
    assert both.entries == {"k[c]": entry(published=PUBLISHED)}
    other = baselines({"k[c]": Entry(published=replace(PUBLISHED, median_us=1.5))})
    with pytest.raises(
        BaselineError, match=r"two published figures of k\[c\] differ: median_us is 123.5 and 1.5"
    ):
        merge([both, other])


def test_several_platforms_are_not_merged():
    with pytest.raises(BaselineError, match=r"not of NVIDIA GB10 \(sm_121\), NVIDIA H200 \(sm_90\)"):
        merge([baselines(), baselines(arch="sm_121", gpu="NVIDIA GB10")])
