"""One test for each rule: what is worse, better, or only different."""

import pytest
from msgspec.structs import replace

from pytest_cutile.tile.static.changes import Effect
from pytest_cutile.tile.static.comparison import compare
from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts, Note, Site, SpillLine
from pytest_cutile.tile.static.rules import occupancy_of, resident
from pytest_cutile.words.platforms.occupancy import Limiter

MARGIN = 0.1
LOAD = Site(operation="load", instruction="TMA Load", shape="64x128", file="k.py", line=10)
STORE = Site(operation="store", instruction="TMA Store", shape="64x128", file="k.py", line=14)
MMA = Site(operation="mma", instruction="Tensor-core SM90", shape="64x128x16", file="k.py", line=12)
MIX = {
    "tensor_core": {"HGMMA": 8},
    "tma_load": {"UTMALDG": 3},
    "tma_store": {"UTMASTG": 4},
    "barrier": {"BAR": 1},
}
LAUNCH = LaunchFacts(
    kernel="k",
    grid=(1024,),
    code_bytes=12_000,
    threads=256,
    ctas=1,
    registers=128,
    stack_bytes=0,
    local_bytes=0,
    static_shared_bytes=100_000,
    dynamic_shared_bytes=0,
    instruction_count=750,
    instructions=MIX,
    sites=(LOAD, MMA, STORE),
)


def case(*launches: LaunchFacts) -> CaseFacts:
    return CaseFacts(fingerprint="i", source="s", launches=launches or (LAUNCH,))


def changed(**fields) -> CaseFacts:
    return case(replace(LAUNCH, **fields))


def effects(baseline: CaseFacts, current: CaseFacts, margin: float = MARGIN) -> dict[str, Effect]:
    changes = compare(baseline, current, arch="sm_90", margin=margin).changes
    return {change.quantity: change.effect for change in changes}


def test_the_same_is_no_change():
    comparison = compare(case(), case(), arch="sm_90", margin=MARGIN)
    assert comparison.changes == ()
    assert comparison.unknown == ()


def without(kind):
    return {name: by for name, by in MIX.items() if name != kind}


SPILLS = "spills, in bytes per thread"
BLOCKS = "blocks per multiprocessor"


@pytest.mark.parametrize(
    ("fields", "quantity"),
    [
        ({"stack_bytes": 8}, SPILLS),
        ({"local_bytes": 8}, SPILLS),
        ({"instructions": without("tensor_core")}, "tensor-core instructions"),
        ({"instructions": {**MIX, "tensor_core": {"HMMA": 800}}}, "tensor-core instructions"),
        ({"instructions": without("tma_load")}, "TMA loads"),
        ({"instructions": without("tma_store")}, "TMA stores"),
        ({"registers": 160}, BLOCKS),
        ({"static_shared_bytes": 120_000}, BLOCKS),
        ({"sites": (replace(LOAD, instruction="Global-memory load"), MMA, STORE)}, "load"),
        ({"sites": (replace(LOAD, instruction="Ldgsts"), MMA, STORE)}, "load"),
        ({"sites": (LOAD, replace(MMA, instruction="FMA"), STORE)}, "mma"),
        ({"sites": (LOAD, replace(MMA, instruction="Tensor-core SM80"), STORE)}, "mma"),
        ({"sites": (LOAD, replace(MMA, shape="64x64x16"), STORE)}, "mma"),
        ({"sites": (LOAD, MMA, replace(STORE, instruction="Global-memory store"))}, "store"),
    ],
)
def test_what_is_worse_and_better_the_other_way(fields, quantity):
    assert effects(case(), changed(**fields))[quantity] is Effect.WORSE
    back = effects(changed(**fields), case())[quantity]
    # More warps are no improvement by themselves.
    assert back is (Effect.DIFFERENT if quantity == BLOCKS else Effect.BETTER)


def test_nothing_is_praised_beside_what_is_worse():
    larger = {"sites": (LOAD, replace(MMA, shape="64x256x16"), STORE)}
    assert effects(case(), changed(**larger)) == {"mma": Effect.BETTER}
    assert effects(case(), changed(**larger, stack_bytes=64)) == {
        SPILLS: Effect.WORSE,
        "mma": Effect.DIFFERENT,
    }


@pytest.mark.parametrize(
    ("fields", "quantity"),
    [
        ({"registers": 100}, "registers per thread"),
        ({"static_shared_bytes": 112_000}, "shared memory per block, in bytes"),
        ({"threads": 128}, "threads per block"),
        ({"ctas": 2}, "thread blocks per cluster"),
        ({"grid": (65,)}, "grid"),
        ({"code_bytes": 50_000}, "bytes of code"),
        ({"instruction_count": 5000}, "instructions"),
        ({"instructions": {**MIX, "barrier": {"BAR": 9}}}, "barriers"),
        ({"instructions": {**MIX, "tensor_core": {"HGMMA": 4}}}, "tensor-core instructions"),
        ({"sites": (replace(LOAD, shape="32x64"), MMA, STORE)}, "load"),
        ({"sites": (replace(LOAD, instruction="Of the future"), MMA, STORE)}, "load"),
        ({"sites": (LOAD, LOAD, MMA, STORE)}, "load"),
        ({"sites": (MMA, STORE)}, "load"),
        ({"notes": (Note(text="Hint ignored", file="k.py", line=3),)}, "remark"),
    ],
)
def test_what_is_only_different(fields, quantity):
    assert effects(case(), changed(**fields))[quantity] is Effect.DIFFERENT


def test_the_margin_is_the_rules():
    assert effects(changed(stack_bytes=100), changed(stack_bytes=105))[SPILLS] is Effect.DIFFERENT
    assert effects(changed(stack_bytes=100), changed(stack_bytes=120))[SPILLS] is Effect.WORSE


def test_spills_that_vanish_from_code_that_has_grown_are_no_improvement():
    spilling = changed(stack_bytes=8, instruction_count=1872)
    assert effects(spilling, changed(stack_bytes=0, instruction_count=1880))[SPILLS] is Effect.BETTER
    assert effects(spilling, changed(stack_bytes=0, instruction_count=3792))[SPILLS] is Effect.DIFFERENT


def test_fewer_blocks_of_more_warps_each_are_only_different():
    wide = replace(LAUNCH, threads=512, registers=128)
    assert effects(case(), case(wide))[BLOCKS] is Effect.DIFFERENT


def test_fewer_warps_that_load_as_much_at_a_time_are_only_different():
    less, more = ({"bytes_in_flight": n} for n in (16384, 32768))
    narrow, large = changed(executed=less), changed(static_shared_bytes=220_000, executed=more)
    assert effects(narrow, large)[BLOCKS] is Effect.DIFFERENT
    assert effects(changed(executed=more), large)[BLOCKS] is Effect.WORSE


def test_blocks_are_no_more_than_the_grid_has():
    there = resident(replace(LAUNCH, grid=(100,)), "sm_90")
    assert there is not None
    assert (there.blocks, there.warps, *there.limited_by) == (1, 8, Limiter.GRID)
    few, large = changed(grid=(100,)), changed(grid=(100,), static_shared_bytes=220_000)
    assert BLOCKS not in effects(few, large)


def test_half_the_warps_in_as_many_blocks_are_worse():
    """Registers bind: as many blocks of half the threads with twice the registers."""
    narrow = changed(threads=128, registers=255)
    assert effects(case(), narrow)[BLOCKS] is Effect.WORSE
    assert effects(narrow, case())[BLOCKS] is Effect.DIFFERENT


def test_lines_that_move_do_not_count():
    moved = tuple(replace(site, line=site.line + 100) for site in (LOAD, MMA, STORE))
    assert effects(case(), changed(sites=moved)) == {}


def test_a_new_operation_before_does_not_hide_which_one_lost():
    """The remarks are paired in source order, by what they say where their number differs."""
    first = replace(LOAD, line=5, shape="8x8")
    lost = replace(LOAD, instruction="Ldgsts", shape="")
    comparison = compare(
        changed(sites=(LOAD, MMA)), changed(sites=(first, lost, MMA)), arch="sm_90", margin=MARGIN
    )
    assert [change.current for change in comparison.changes if change.quantity == "load"]


def test_the_message_names_the_line_and_the_reason():
    lost = replace(LOAD, instruction="Ldgsts", shape="", line=11, missed=("stride",))
    spilling = changed(
        sites=(lost, MMA, STORE),
        stack_bytes=64,
        spill_lines=(SpillLine(file="k.py", line=12, instructions=7),),
    )
    texts = [c.text for c in compare(case(), spilling, arch="sm_90", margin=MARGIN).of(Effect.WORSE)]
    assert texts == [
        f"{SPILLS}: 0 -> 64 (local loads and stores near k.py:12 (7))",
        "k.py:11: load: TMA Load 64x128 -> Ldgsts (stride)",
    ]


# -- several launches ---------------------------------------------------------------------------------

SECOND = replace(LAUNCH, kernel="reduce", instructions={}, sites=())


def test_a_change_names_its_kernel_when_there_are_several():
    grown = replace(SECOND, stack_bytes=16)
    changes = effects(case(LAUNCH, SECOND), case(LAUNCH, grown))
    assert changes == {f"reduce: {SPILLS}": Effect.WORSE}


def test_another_number_of_launches_is_different_as_long_as_nothing_is_lost():
    assert effects(case(), case(LAUNCH, SECOND)) == {"launches": Effect.DIFFERENT}


@pytest.mark.parametrize(
    ("second", "quantity"),
    [
        ({"stack_bytes": 8}, SPILLS),
        ({"instructions": {}}, "k: tensor-core instructions"),
    ],
)
def test_splitting_a_kernel_hides_nothing(second, quantity):
    first = replace(LAUNCH, instructions={})
    current = case(first, replace(SECOND, **second))
    assert effects(case(), current)[quantity] is Effect.WORSE


def test_another_launch_beside_hides_nothing_of_the_first():
    grown = replace(LAUNCH, registers=168, static_shared_bytes=190_000)
    changes = effects(case(), case(grown, SECOND))
    assert changes[f"k: {BLOCKS}"] is Effect.WORSE
    assert changes["launches"] is Effect.DIFFERENT


def test_a_launch_less_is_no_loss():
    uses_tma = replace(SECOND, instructions={"tma_load": {"UTMALDG": 2}})
    assert effects(case(LAUNCH, uses_tma), case(LAUNCH)) == {"launches": Effect.DIFFERENT}


def test_a_launch_that_took_the_place_of_others_is_compared_with_them():
    fused = replace(LAUNCH, kernel="fused", instructions={}, stack_bytes=32)
    changes = effects(case(LAUNCH, SECOND), case(fused))
    assert changes["tensor-core instructions"] is Effect.WORSE
    assert changes[SPILLS] is Effect.WORSE


def test_the_order_of_launches_does_not_count():
    changes = effects(case(LAUNCH, SECOND), case(SECOND, LAUNCH))
    assert Effect.WORSE not in changes.values()


def test_the_order_of_lines_does_not_count():
    """Two loads that swap their lines swap their remarks."""
    slow = replace(LOAD, instruction="Global-memory load", shape="", line=11)
    swapped = (replace(slow, line=10), replace(LOAD, line=11))
    assert effects(changed(sites=(LOAD, slow)), changed(sites=swapped)) == {}
    lost = (replace(LOAD, line=9), replace(slow, line=10), slow)
    baseline = (LOAD, replace(LOAD, line=10), slow)
    [change] = compare(changed(sites=baseline), changed(sites=lost), arch="sm_90", margin=MARGIN).changes
    assert (change.effect, change.baseline, change.current) == (
        Effect.WORSE,
        "TMA Load 64x128",
        "Global-memory load",
    )


def test_registers_count_per_block():
    """Half the threads with twice the registers each is the same block."""
    assert effects(case(), changed(threads=128, registers=255))["registers per thread"] is Effect.DIFFERENT


def test_what_is_added_hides_nothing_that_is_lost():
    """B loses TMA while a second load of D, which never used it, is added."""
    a = replace(LOAD, line=8, text="a = ct.load(A)")
    b = replace(LOAD, line=9, text="b = ct.load(B)")
    d = replace(LOAD, line=10, text="d = ct.load(D)", instruction="Global-memory load", shape="")
    lost = replace(b, instruction="Global-memory load", shape="", missed=("stride",))
    more = replace(d, line=14, text="d2 = ct.load(D)")
    for texts in (True, False):
        baseline: tuple[Site, ...] = (a, b, d)
        current: tuple[Site, ...] = (a, lost, d, more)
        if not texts:
            baseline = tuple(replace(site, text="") for site in baseline)
            current = tuple(replace(site, text="") for site in current)
        comparison = compare(changed(sites=baseline), changed(sites=current), arch="sm_90", margin=MARGIN)
        [worse] = comparison.of(Effect.WORSE)
        assert worse.current == "Global-memory load"
        if texts:
            assert worse.place == "k.py:9"


def test_launches_of_the_same_are_counted():
    changes = effects(case(), changed(times=3))
    assert changes == {"launches of it": Effect.DIFFERENT}


def test_a_tma_store_that_is_gone_says_where_it_was():
    """tileiras says nothing of stores that it makes without TMA."""
    lost = changed(instructions=without("tma_store"), sites=(LOAD, MMA))
    comparison = compare(case(), lost, arch="sm_90", margin=MARGIN)
    assert [change.text for change in comparison.of(Effect.WORSE)] == ["TMA stores: UTMASTG -> none"]
    gone = [change.text for change in comparison.of(Effect.DIFFERENT) if change.quantity == "store"]
    assert [text.partition("gone")[2] for text in gone] == [" (it was at k.py:14)"]


# -- what is unknown ----------------------------------------------------------------------------------

NO_TOOLS = {
    "registers": None,
    "threads": None,
    "ctas": None,
    "stack_bytes": None,
    "local_bytes": None,
    "static_shared_bytes": None,
    "dynamic_shared_bytes": None,
    "instruction_count": None,
    "instructions": None,
    "sites": None,
}


def test_what_is_unknown_is_named_and_never_worse_or_better():
    comparison = compare(case(), changed(**NO_TOOLS), arch="sm_90", margin=MARGIN)
    assert comparison.unknown == ("registers", "threads", "shared bytes", "instructions", "sites")
    assert comparison.changes == ()
    assert compare(changed(**NO_TOOLS), case(), arch="sm_90", margin=MARGIN).changes == ()


def test_without_cuobjdump_spills_are_counted_in_instructions():
    unknown = {"stack_bytes": None, "local_bytes": None}
    spilling = changed(**unknown, instructions={**MIX, "local_load": {"LDL": 4}, "local_store": {"STL": 3}})
    assert effects(case(), spilling)["spills, in local loads and stores"] is Effect.WORSE


def test_occupancy_needs_every_figure():
    fits = occupancy_of(LAUNCH, "sm_90")
    assert fits is not None
    assert fits.blocks == 2
    assert occupancy_of(LAUNCH, "sm_999") is None
    for unknown in ({"registers": None}, {"threads": None}, {"static_shared_bytes": None}):
        assert occupancy_of(changed(**unknown).launches[0], "sm_90") is None
