import pytest
from msgspec.structs import replace

from pytest_cutile import Work
from pytest_cutile.baselines.entries import PairedChange, Record, environment_changes
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.select import (
    MAX_RUNS,
    SessionConflictError,
    add,
    anchor_of,
    n_runs,
    pruned,
    since_anchor,
    stored_us,
    unchanged_record,
    work_of,
)
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

OTHER_WORK = Work(bytes=2e8, dtype="bfloat16")


def names(records: tuple[Record, ...]) -> list[str]:
    return [record.session for record in records]


# -- the anchor ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moves", "anchor"),
    [
        (["", "", ""], "s1"),
        (["", "faster", ""], "s2"),
        (["accepted", "faster", "accepted"], "s3"),
        (["faster", "", ""], "s1"),
    ],
)
def test_the_anchor_is_the_last_record_that_moved_it(moves, anchor):
    of = entry(*(record(day, 40.0, moved=moved, reason="x") for day, moved in enumerate(moves, start=1)))
    found = anchor_of(of)
    assert found is not None
    assert found.session == anchor
    assert names(since_anchor(of)) == [f"s{day}" for day in range(int(anchor[1:]), 4)]


@pytest.mark.parametrize(("gains", "anchor"), [((-0.10, -0.03), "s2"), ((-0.03, -0.10), "s3")])
def test_of_two_branches_that_made_a_kernel_faster_the_faster_is_the_anchor(gains, anchor):
    changes = [{"burst": PairedChange(value=gain, low=gain, high=gain)} for gain in gains]
    first = record(1, 40.0, fingerprint="old")
    branches = [
        replace(
            record(day, 40.0, fingerprint=f"new {day}", anchor="old", moved="faster"),
            changes=changes[day - 2],
        )
        for day in (2, 3)
    ]
    found = anchor_of(entry(first, *branches))
    assert found is not None
    assert found.session == anchor
    assert found.compared_with == found.code
    after = replace(branches[1], anchor="new 2")  # not a branch, but later
    assert anchor_of(entry(first, branches[0], after)) == after


@pytest.mark.parametrize(
    ("branch", "anchor"),
    [
        (("faster", -0.03), "s3"),  # 97 us, and the other branch takes 76
        (("faster", -0.30), "s4"),
        (("accepted", 0.05), "s3"),  # the reason was about 5 %, not 38 %
    ],
)
def test_a_branch_does_not_move_the_anchor_to_a_slower_kernel(branch, anchor):
    def step(day, compared_with, moved, change):
        changes = {"burst": PairedChange(value=change, low=change, high=change)}
        of = record(day, 40.0, fingerprint=f"code {day}", anchor=compared_with, moved=moved, reason="x")
        return replace(of, changes=changes)

    main = [
        record(1, 100.0, fingerprint="code 1"),
        step(2, "code 1", "faster", -0.2),
        step(3, "code 2", "faster", -0.05),
    ]
    found = anchor_of(entry(*main, step(4, "code 1", *branch)))
    assert found is not None
    assert found.session == anchor


def test_one_improvement_that_two_machines_recorded_has_one_anchor():
    def faster(day, change):
        changes = {"burst": PairedChange(value=change, low=change, high=change)}
        return replace(record(day, 38.0, fingerprint="new", anchor="old", moved="faster"), changes=changes)

    of = entry(record(1, 40.0, fingerprint="old"), faster(2, -0.050), faster(3, -0.051))
    assert names(since_anchor(of)) == ["s2", "s3"]


def test_a_faster_kernel_of_another_branch_does_not_bring_other_work_back():
    change = {"burst": PairedChange(value=-0.05, low=-0.05, high=-0.05)}
    other_work = record(2, 80.0, fingerprint="more", work=OTHER_WORK, moved="accepted", reason="x")
    branch = replace(record(3, 38.0, fingerprint="new", anchor="old", moved="faster"), changes=change)
    of = entry(record(1, 40.0, fingerprint="old"), other_work, branch)
    assert names(since_anchor(of)) == ["s2"]


def test_what_two_machines_recorded_of_one_source_counts_for_both():
    """As of the fixture `perf`, whose fingerprint nobody knows."""
    of_perf = {"fingerprint": "", "source": "2-abc"}
    of = entry(record(1, 40.0, **of_perf), record(2, 44.0, **of_perf))
    both = baselines({"k[c]": of}, {"s2": session(2, gpu_uuid="GPU-2")})
    stored = stored_us(both, of, "burst", "GPU-2")
    assert stored is not None
    assert stored.us == pytest.approx(44.0)
    assert stored.is_own


def test_a_published_figure_has_no_anchor():
    of = replace(entry(), records=(), published=PUBLISHED)
    assert (anchor_of(of), since_anchor(of)) == (None, ())
    assert work_of(of) == WORK


# -- stored times -------------------------------------------------------------------------------------

EMPTY = baselines({})
TWO_GPUS = baselines(
    {"k[c]": entry(record(1, 60.0, 60.0, 60.0), record(2, 90.0), record(3, 10.0))},
    {"s3": session(3, gpu_uuid="GPU-2")},
)


def stored(of=TWO_GPUS, gpu="GPU-1", regime="burst"):
    return stored_us(of, of.entries["k[c]"], regime, gpu)


def test_stored_times_are_the_first_of_the_own_gpu():
    own = stored()
    assert own.us == pytest.approx(60.0)
    assert (own.gpus, own.n_runs) == (1, 3)
    assert stored(gpu="GPU-2").us == pytest.approx(10.0)


def test_an_environment_that_gets_slower_step_by_step_moves_no_stored_time():
    of = EMPTY
    for day in range(1, 16):
        changed = {**ENVIRONMENT, "driver": f"{580 + day}"}
        us = 40.0 * 1.02**day
        of = add(of, f"s{day}", session(day, environment=changed), {"k[c]": record(day, us, us, us)})
    assert stored(of).us == pytest.approx(40.0 * 1.02)
    assert n_runs(of, of.entries["k[c]"], "GPU-1") == MAX_RUNS + 3


def test_a_new_gpu_is_compared_with_the_mean_over_gpus():
    mean = stored(gpu="GPU-3")
    assert mean.us == pytest.approx((60.0 * 10.0) ** 0.5)
    assert (mean.gpus, mean.n_runs) == (2, 4)


def test_times_before_the_anchor_and_of_other_work_are_left_out():
    records = [record(1, 10.0), record(2, moved="accepted", reason="x"), record(3, 1.0), record(4, 80.0)]
    records[2] = replace(records[2], work=OTHER_WORK)
    assert stored(baselines({"k[c]": entry(*records)})).us == pytest.approx(80.0)


def test_what_was_compared_with_another_anchor_does_not_count():
    """As after a merge of a branch that recorded a neutral change of a kernel that is faster by now."""
    branch = record(3, 40.0, fingerprint="neutral", anchor="old")
    records = [record(1, 40.0, fingerprint="old"), record(2, 30.0, moved="faster"), branch]
    of = baselines({"k[c]": entry(*records)}, {"s3": session(3, gpu_uuid="GPU-2")})
    assert names(since_anchor(of.entries["k[c]"])) == ["s2"]
    known = replace(branch, anchor="abc")
    for entry_, found in ((of.entries["k[c]"], None), (entry(*records[:2], known), known)):
        unchanged = unchanged_record(of, entry_, work=WORK, fingerprint="neutral", environment=ENVIRONMENT)
        assert unchanged == found
    assert stored(of, gpu="GPU-2").us == pytest.approx(30.0)


def test_what_several_machines_recorded_first_of_one_kernel_counts_for_all():
    of = entry(record(1, 40.0), record(2, 41.0), record(3, 50.0, fingerprint="other"))
    assert names(since_anchor(of)) == ["s1", "s2"]


def test_each_regime_has_its_own_times():
    runs = (run(40.0), run(None, sustained_us=50.0))
    of = baselines({"k[c]": entry(record(1, 42.0), record(2, runs=runs), record(3, 40.0))})
    assert (stored(of).us, stored(of).n_runs) == (pytest.approx(42.0), 1)
    sustained = stored(of, regime="sustained")
    assert (sustained.us, sustained.n_runs) == (pytest.approx(50.0), 1)


def test_no_times_are_none():
    assert stored(regime="sustained") is None
    assert stored(baselines({"k[c]": entry(record(1))})) is None


def test_the_reference_workload_is_one():
    """Times beside several workloads, or beside none, say nothing of a GPU's condition."""
    runs = (run(40.0, workload_us=50.0),)

    def of(first: str, second: str, *, more=()):
        entries = {"k[c]": entry(record(1, runs=runs), record(2, runs=(*runs, *more)))}
        other = session(2, workload=second, gpu_uuid="GPU-2")
        return baselines(entries, {"s1": session(1, workload=first), "s2": other})

    same = stored(of("copy", "copy"), "GPU-3")
    assert (same.workload_us, same.workload) == (pytest.approx(50), "copy")
    for other in (of("copy", "mm"), of("copy", "copy", more=(run(),))):
        assert (stored(other, "GPU-3").workload_us, stored(other, "GPU-3").workload) == (None, "")


# -- unchanged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, "s3"),
        ({"fingerprint": "def"}, None),
        ({"fingerprint": ""}, None),
        ({"work": OTHER_WORK}, None),
        ({"environment": {"driver": "590"}}, None),
        ({"fingerprint": "old"}, None),  # before the anchor
    ],
)
def test_unchanged_is_the_same_code_work_and_environment(changes, found):
    records = [
        record(1, 40.0, fingerprint="old"),
        record(2, 40.0, moved="faster"),
        record(3, 40.0),
        record(4, 40.0, fingerprint="", anchor="abc"),
    ]
    of = baselines({"k[c]": entry(*records)})
    asked = {"work": WORK, "fingerprint": "abc", "environment": ENVIRONMENT, **changes}
    unchanged = unchanged_record(of, of.entries["k[c]"], **asked)
    assert (unchanged.session if unchanged else None) == found


# -- adding and dropping ------------------------------------------------------------------------------


def test_a_record_is_added_in_the_order_of_sessions():
    added = add(EMPTY, "s2", session(2), {"k[c]": record(2, 40.0)})
    added = add(added, "s1", session(1), {"k[c]": record(1, 41.0), "k[d]": record(1, 50.0)})
    assert names(added.entries["k[c]"].records) == ["s1", "s2"]
    assert names(added.entries["k[d]"].records) == ["s1"]
    assert added.sessions == {"s1": session(1), "s2": session(2)}


def test_cases_of_one_session_are_added_one_by_one():
    added = add(EMPTY, "s1", session(), {"k[c]": record(1, 40.0)})
    added = add(added, "s1", session(), {"k[d]": record(1, 50.0)})
    assert [*added.entries] == ["k[c]", "k[d]"]
    assert add(added, "s1", session(), {"k[c]": record(1, 40.0)}) == added


def test_a_record_is_never_rewritten():
    added = add(EMPTY, "s1", session(), {"k[c]": record(1, 40.0)})
    with pytest.raises(
        SessionConflictError, match=r"session s1 is there twice .*: k\[c\]: fingerprint is 'abc'"
    ):
        add(added, "s1", session(), {"k[c]": record(1, 40.0, fingerprint="def")})
    with pytest.raises(BaselineError, match=r"k\[c\]: runs is .*40\.0.* and .*41\.0"):
        add(added, "s1", session(), {"k[c]": record(1, 41.0)})
    with pytest.raises(BaselineError, match=r"session s1 .*: gpu_uuid is 'GPU-1' and 'GPU-2'"):
        add(added, "s1", session(gpu_uuid="GPU-2"), {"k[d]": record(1, 41.0)})


def test_of_each_gpu_the_newest_runs_stay():
    of = EMPTY
    for day in range(1, 10):
        gpu = "GPU-2" if day == 2 else "GPU-1"
        of = add(of, f"s{day}", session(day, gpu_uuid=gpu), {"k[c]": record(day, 40.0, 41.0, 42.0)})
    records = of.entries["k[c]"].records
    assert {each.session: len(each.runs) for each in records} == {
        "s1": 3,  # the GPU's first since the anchor: they are its stored times
        "s2": 3,
        "s6": 3,
        "s7": 3,
        "s8": 3,
        "s9": 3,
    }
    assert of.sessions.keys() == {"s1", "s2", "s6", "s7", "s8", "s9"}
    assert pruned(of) == of


def test_exactly_twelve_newest_runs_stay():
    of = EMPTY
    for day in range(1, 5):
        of = add(of, f"s{day}", session(day), {"k[c]": record(day, *range(day * 10, day * 10 + 5))})
    assert [len(each.runs) for each in of.entries["k[c]"].records] == [5, 2, 5, 5]
    assert of.entries["k[c]"].records[1].runs == (run(20), run(21))
    assert sum(len(each.runs) for each in of.entries["k[c]"].records[1:]) == MAX_RUNS


def full(*records: Record):
    """Return what is left of records with no room for their runs: four newer sessions fill it."""
    newer = [record(day, 40.0, 40.0, 40.0) for day in range(20, 24)]
    return pruned(baselines({"k[c]": entry(*records, *newer)}))


def test_records_without_runs_stay_where_something_needs_them():
    accepted = record(3, 40.0, moved="accepted", reason="worth it")
    refactored = [record(day, 40.0, fingerprint="def", anchor="abc") for day in (4, 5)]
    left = full(record(1, 40.0), record(2, 40.0, fingerprint="x"), accepted, *refactored, record(6, 40.0))
    records = left.entries["k[c]"].records
    # The first, the anchor, and since then the newest of each fingerprint, which keeps a case unchanged.
    assert names(records) == ["s1", "s3", "s5", "s20", "s21", "s22", "s23"]
    assert records[1] == accepted
    assert records[2] == replace(refactored[1], runs=())
    assert left.sessions.keys() == {*names(records)}


def test_every_step_of_a_history_stays():
    steps = [record(1, 40.0), record(2, 50.0, moved="accepted", reason="x"), record(3, 45.0, moved="faster")]
    kept = full(*steps, record(4, 45.0)).entries["k[c]"].records
    assert [*kept[:3]] == steps
    assert names(kept) == ["s1", "s2", "s3", "s20", "s21", "s22", "s23"]


def test_environment_changes_are_named():
    assert environment_changes(ENVIRONMENT, {**ENVIRONMENT, "driver": "590.2"}) == ["driver: 580.1 -> 590.2"]
    assert environment_changes(ENVIRONMENT, ENVIRONMENT) == []
    assert environment_changes({}, {"torch": "2.11"}) == ["torch: unknown -> 2.11"]
