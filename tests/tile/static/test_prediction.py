"""What is executed, the time predicted from it, and what the gate says of kernels that were made slower."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import pytest
from msgspec.structs import replace

from kernels.fmha import SPEC as FMHA
from pytest_cutile.gates.declared import compile_case
from pytest_cutile.pytest_parts.options.ini import STATIC_MARGIN
from pytest_cutile.tile.compiler import Compiler, export, record_launches
from pytest_cutile.tile.compiler.parameters import parameters_of
from pytest_cutile.tile.interpreter.executed import count_executed
from pytest_cutile.tile.static.changes import Effect
from pytest_cutile.tile.static.comparison import compare
from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts
from pytest_cutile.tile.static.inspection import inspect
from pytest_cutile.tile.static.roofline import LAUNCH_US, RESULT_CLOCKS, Prediction, predict
from pytest_cutile.words.platforms.lookup import find_architecture
from tests.tile.static import slowed_kernels as slowed

ARCHITECTURES = ("sm_90", "sm_121")
FACTS = LaunchFacts(kernel="k", grid=(132,), code_bytes=1)
RESOURCES: dict[str, Any] = {
    "threads": 256,
    "registers": 255,
    "static_shared_bytes": 98_000,
}
"""Of kernels with products."""
FEW_RESOURCES: dict[str, Any] = {"threads": 128, "registers": 32, "static_shared_bytes": 0}


def executed(run, arch="sm_90") -> CaseFacts:
    """Return a case as it is counted, whatever it compiles to."""
    launches = []
    for launch in record_launches(run, arch):
        counts = count_executed(export(launch, arch), parameters_of(launch))
        resources = RESOURCES if counts and "products" in counts else FEW_RESOURCES
        launches.append(replace(FACTS, **resources, grid=launch.grid, executed=counts))
    return CaseFacts(fingerprint="i", source="s", launches=tuple(launches))


@pytest.fixture(scope="module")
def compiled() -> Iterator[Callable[..., CaseFacts]]:
    """Return a function that compiles a case, which has all facts then."""
    with Compiler(cache_dir=None, jobs=2, timeout_s=60) as compiler:

        @cache
        def facts_of(run, arch) -> CaseFacts:
            launches = []
            for launch in record_launches(run, arch):
                job = export(launch, arch)
                facts, _ = inspect(compiler.submit(job).result())
                launches.append(
                    replace(facts, grid=launch.grid, executed=count_executed(job, parameters_of(launch)))
                )
            return CaseFacts(fingerprint="i", source="s", launches=tuple(launches))

        yield facts_of


def counted(run) -> Mapping[str, int]:
    """Return what a case of one launch executes on sm_90."""
    (launch,) = executed(run).launches
    assert launch.executed is not None
    return launch.executed


def predicted(counts: Mapping[str, int], arch="sm_90", **fields) -> Prediction:
    prediction = predict([replace(FACTS, executed=counts, **fields)], arch)
    assert prediction is not None
    return prediction


def judged(baseline: CaseFacts, current: CaseFacts, arch: str) -> dict[Effect, str]:
    changes = compare(baseline, current, arch=arch, margin=STATIC_MARGIN).changes
    return {change.effect: change.text for change in changes if change.effect is not Effect.DIFFERENT}


# -- what is slower is said to be, and why ------------------------------------------------------------

SLOWED: dict[str, tuple[Callable[..., object], Callable[..., object], str]] = {
    "launched twice": (slowed.gelu, partial(slowed.gelu, times=2), "2.0x slower: memory"),
    "gelu in float64": (slowed.gelu, partial(slowed.gelu, kernel=slowed.gelu_float64_kernel), "FP64"),
    "uncoalesced gather": (slowed.gelu, partial(slowed.gathered_gelu, 32768), "memory"),
    "gather by a table": (slowed.gelu, slowed.gelu_of_rows, "slower: memory"),
    "the loop run twice": (slowed.product, partial(slowed.product, options=(4, 2)), "slower: "),
    "a K step of 16": (slowed.product, partial(slowed.product, k=16), "slower: "),
    "latency 1": (slowed.product, partial(slowed.product, options=(1, 1)), "slower: "),
    "float64": (
        slowed.product,
        partial(slowed.product, kernel=slowed.product_float64_kernel, options=()),
        "slower: tensor cores",
    ),
    "A by gather": (
        slowed.product,
        partial(slowed.product, kernel=slowed.product_gathered_kernel, options=()),
        "slower: ",
    ),
    "one block does all": (slowed.shared_out, partial(slowed.shared_out, busy=1), "slower: L2"),
    "the last block does all": (slowed.shared_out, partial(slowed.shared_out, busy=1023), "slower: L2"),
    "the grid three times": (slowed.copy, partial(slowed.copy, times=3), "slower: memory"),
    "the grid three times, by few blocks": (
        partial(slowed.copy_by_few, passes=1),
        partial(slowed.copy_by_few, passes=3),
        "slower: memory",
    ),
    "carried indices that lie apart": (
        slowed.carried,
        partial(slowed.carried, stride=slowed.ROWS, step=1),
        "slower: memory",
    ),
    "work in every second pass": (slowed.passes, partial(slowed.passes, which=1, times=120), "special"),
    "work in one pass": (slowed.passes, partial(slowed.passes, which=-6, times=240), "special"),
}
COMPILED = {"a K step of 16", "latency 1", "A by gather"}
"""Slower by what they compile to; the others take many seconds to compile."""
UNPREDICTED = {("latency 1", "sm_121"), ("a K step of 16", "sm_121"), ("A by gather", "sm_121")}
"""How long operands are on the way is known of sm_90 alone; on sm_121 memory decides."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arch"),
    [(name, arch) for name in SLOWED for arch in ARCHITECTURES if (name, arch) not in UNPREDICTED],
)
def test_what_executes_more_is_worse(compiled, name, arch):
    before, after, said = SLOWED[name]
    facts = compiled if name in COMPILED else executed
    changes = compare(facts(before, arch), facts(after, arch), arch=arch, margin=STATIC_MARGIN).changes
    [predicted] = [change for change in changes if change.quantity.startswith("predicted")]
    assert predicted.effect is Effect.WORSE
    assert said in predicted.quantity


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "after",
    [
        partial(slowed.gelu, kernel=slowed.gelu_in_other_words_kernel),
        partial(slowed.gelu, 2048),
        partial(slowed.gathered_gelu, 1, tile=1024),
    ],
    ids=["other words", "a tile of 2048", "neighbours"],
)
def test_what_executes_the_same_is_not(after, arch):
    assert Effect.WORSE not in judged(executed(slowed.gelu, arch), executed(after, arch), arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "after",
    [
        partial(slowed.gelu, 2048),
        partial(slowed.gelu, kernel=slowed.gelu_unrolled_kernel, tiles_per_block=2),
    ],
    ids=["a tile of 2048", "unrolled by 2"],
)
def test_fewer_blocks_that_load_as_much_are_worse_if_they_compute_longer_between_loads(compiled, after, arch):
    """On an H200 both take 1.174 times as long (research/reports/static-gate.md)."""
    facts = [compiled(run, arch) for run in (slowed.gelu, after)]
    changes = compare(*facts, arch=arch, margin=STATIC_MARGIN).changes
    assert "blocks per multiprocessor" in {change.quantity for change in changes}
    worse = [change.quantity for change in changes if change.effect is Effect.WORSE]
    if arch == "sm_90":
        assert worse == ["predicted 1.2x slower: waiting, with too few blocks to hide it"]
    else:  # not measured
        assert worse == []


def test_blocks_that_wait_are_hidden_by_as_many_others():
    counts = {"moved_bytes": 2048 * 132 * 1600, "fp32": 128 * 132 * 1600 * 100}
    us = {
        registers: predicted(counts, grid=(132 * 1600,), **{**FEW_RESOURCES, "registers": registers}).us
        for registers in (64, 128)
    }
    architecture = find_architecture("sm_90")
    assert architecture is not None
    assert architecture.memory_clocks is not None
    clocks = architecture.memory_clocks + 100 * RESULT_CLOCKS
    assert us[128] - LAUNCH_US == pytest.approx(1600 / 4 * clocks / 1980, rel=0.01)
    assert us[64] - LAUNCH_US == pytest.approx((us[128] - LAUNCH_US) / 2, rel=1e-3)
    unknown = predicted(counts, grid=(132 * 1600,))
    assert unknown.us < us[128]
    assert "waiting" not in unknown.slowest


# -- what is counted ----------------------------------------------------------------------------------


def test_counts_are_those_of_the_launch():
    counts = counted(slowed.product)
    steps = slowed.SIZE // 64 * (slowed.SIZE // 128) ** 2
    assert counts["mma f16"] == 2 * slowed.SIZE**3
    assert counts["products"] == steps
    assert counts["moved_bytes"] == steps * 2 * 128 * 64 * 2 + 2 * slowed.SIZE**2
    assert counts["bytes_in_flight"] == 2 * 128 * 64 * 2


def test_each_element_apart_moves_a_sector():
    counts = counted(partial(slowed.gathered_gelu, 32768))
    assert counts["moved_bytes"] == 2 * 32 * slowed.ROWS * slowed.COLUMNS


@pytest.mark.parametrize("elements", [slowed.ROWS * slowed.COLUMNS, 2**20], ids=["large", "small"])
def test_what_the_l2_keeps_comes_from_memory_once(elements):
    """64 MiB do not stay in the 60 MiB of an H200 until they are asked for again; 2 MiB do."""
    counts = counted(partial(slowed.copy, elements=elements, times=3))
    assert counts["moved_bytes"] == 3 * 4 * elements
    assert counts["touched_bytes"] == pytest.approx(4 * elements * (1 if elements == 2**20 else 3), rel=0.01)


def test_blocks_of_one_time_share_operands():
    """All blocks of a row ask for the same of A."""
    counts = counted(slowed.product)
    assert 3 * 2 * slowed.SIZE**2 <= counts["touched_bytes"] < counts["moved_bytes"] / 8


def test_a_number_that_a_loop_carries_in_no_line_is_unknown():
    facts = executed(slowed.doubled)
    assert facts.launches[0].executed is None


def test_a_number_that_a_loop_carries_is_known():
    assert counted(slowed.growing)["fp32"] == sum(range(1, 9)) * 1024


def test_a_loop_that_depends_on_data_is_unknown():
    facts = executed(partial(slowed.gelu, kernel=slowed.counted_on_the_way_kernel))
    assert facts.launches[0].executed is None
    assert predict(facts.launches, "sm_90") is None


# -- the roofline -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "slowest", "us"),
    [
        # 132 SMs at 67e12 / (2 * 128 * 132) = 1983 MHz; 4800 GB/s; 989.4 TFLOPS.
        ({}, "launches", 0.0),
        ({"fp64": 132 * 64 * 1_983_000}, "FP64", 1000.0),
        ({"special": 132 * 16 * 1_983_000}, "special functions", 1000.0),
        ({"integer": 132 * 64 * 1_983_000}, "integer arithmetic", 1000.0),
        ({"touched_bytes": 4_800_000_000, "moved_bytes": 4_800_000_000}, "memory", 1000.0),
        ({"mma f16": 989_400_000_000}, "tensor cores", 1000.0),
        ({"fp32": 132 * 128 * 1_983_000, "fp64": 132 * 1_983_000}, "FP32", 1000.0),
    ],
)
def test_the_slowest_unit_decides(counts, slowest, us):
    prediction = predicted(counts)
    assert prediction.slowest == slowest
    assert prediction.us == pytest.approx(us + LAUNCH_US, rel=1e-3)


def test_one_block_more_than_multiprocessors_takes_twice_as_long():
    counts = {"fp32": 10**12}
    full, over = (predicted(counts, grid=(n,)).us for n in (132, 133))
    assert over / full == pytest.approx(2 * 132 / 133, rel=1e-3)


def test_float64_takes_longer_where_it_has_few_units():
    many, few = (predicted({"fp64": 10**10, "fp32": 10**10}, arch) for arch in ARCHITECTURES)
    assert many.slowest == few.slowest == "FP64"
    assert few.us > 50 * many.us


def test_exponentials_take_half_as_long_on_blackwell_ultra():
    blackwell, ultra = (predicted({"special": 10**12}, arch) for arch in ("sm_100", "sm_103"))
    assert blackwell.slowest == ultra.slowest == "special functions"
    assert blackwell.us / ultra.us == pytest.approx(2 * 75 / 80, rel=1e-3)  # of B300 and B200: TFLOPS fp32


PRODUCTS = {"products": 132 * 1000, "mma f16": 10**11, "moved_bytes": 132 * 1000 * 32768}


def test_less_room_for_operands_is_slower():
    """What a latency hint does is in the shared memory that the compiler gives the operands."""
    four, three = (
        predicted(PRODUCTS, **{**RESOURCES, "static_shared_bytes": n * 32768 + 1000}) for n in (4, 3)
    )
    assert three.us > 1.2 * four.us
    assert three.slowest == "waiting for operands"


def test_an_operand_that_each_block_of_a_cluster_takes_counts_for_each():
    counts = {"moved_bytes": 10**9, "smaller_operand_bytes": 5 * 10**8}
    alone, shared = (predicted(counts, grid=(132 // n,), ctas=n).us - LAUNCH_US for n in (1, 2))
    assert shared / alone == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize("lacking", ["threads", "registers", "static_shared_bytes"])
def test_products_of_unknown_resources_are_not_predicted(lacking):
    known = replace(FACTS, executed=PRODUCTS, **RESOURCES)
    unknown = replace(known, **{lacking: None})
    assert predict([known], "sm_90") is not None
    assert predict([unknown], "sm_90") is None


def test_the_busiest_block_is_waited_for():
    counts = {"fp32": 132 * 10**6}
    even, uneven = (predicted({**counts, **more}).us for more in ({}, {"busiest fp32": 66 * 10**6}))
    assert uneven - LAUNCH_US == pytest.approx(66 * (even - LAUNCH_US), rel=1e-3)


def test_a_division_that_is_only_approximate_is_fewer_operations():
    whole, approximate = (
        counted(partial(slowed.gelu, kernel=slowed.gelu_divided_kernel, options=(how,)))
        for how in (False, True)
    )
    assert approximate["special"] < whole["special"]
    assert approximate["fp32"] < whole["fp32"]


@pytest.mark.parametrize("most", [2**15, 2**22])
def test_tiles_that_blocks_share_are_counted_the_same_each_time(monkeypatch, most):
    """Of a loop with very many passes some are looked at."""
    monkeypatch.setattr("pytest_cutile.tile.interpreter.executed._MOST_PASSES", most)
    (case,) = (case for case in FMHA.cases if case.name == "fp16-causal-4x32x4096x128")
    (launch,) = record_launches(compile_case(FMHA, case, "sm_121").run, "sm_121")
    job = export(launch, "sm_121")
    counts = [count_executed(job, parameters_of(launch)) for _ in range(3)]
    assert counts[0] is not None
    assert counts[0] == counts[1] == counts[2]
    arrays = 4 * 4 * 32 * 4096 * 128 * 2  # Q, K, V and O, of 2 bytes
    assert counts[0]["touched_bytes"] >= arrays
    if most == 2**22:  # all passes: K and V of a head stay in the L2
        assert counts[0]["touched_bytes"] < 1.1 * arrays


def test_longer_code_takes_longer_whatever_is_counted_of_it():
    """What operations compile to: without optimization, of what is not aligned, of `pow`."""
    counts = {"touched_bytes": 4 * 10**8}

    def facts(instructions: int) -> CaseFacts:
        resources = {**FEW_RESOURCES, "instruction_count": instructions}
        launch = replace(FACTS, **resources, grid=(131_072,), executed=counts)
        return CaseFacts(fingerprint=f"{instructions}", source="s", launches=(launch,))

    assert judged(facts(250), facts(300), "sm_90") == {}
    text = judged(facts(250), facts(750), "sm_90")[Effect.WORSE]
    assert "slower: instructions: " in text


def test_the_message_names_what_has_grown():
    """Memory takes most of the time, on both sides."""

    def facts(times: int) -> CaseFacts:
        launch = replace(FACTS, executed={"touched_bytes": 10**9 // times}, times=times)
        return CaseFacts(fingerprint=f"{times}", source="s", launches=(launch,))

    text = judged(facts(1), facts(100), "sm_90")[Effect.WORSE]
    assert text.startswith("predicted 1.9x slower: launches")
    assert judged(facts(100), facts(1), "sm_90")[Effect.BETTER].startswith("predicted 1.9x faster: launches")


def test_predicted_times_have_the_units_of_measured_ones():
    def facts(size: int) -> CaseFacts:
        launch = replace(FACTS, executed={"touched_bytes": size})
        return CaseFacts(fingerprint=f"{size}", source="s", launches=(launch,))

    text = judged(facts(10**9), facts(10**10), "sm_90")[Effect.WORSE]
    assert re.search(r": \d{3}\.\d us -> \d\.\d{1,3} ms$", text)


def test_a_baseline_without_counts_is_compared_without_a_prediction():
    current = CaseFacts(fingerprint="i", source="s", launches=(replace(FACTS, executed={"fp32": 10**12}),))
    bare = CaseFacts(fingerprint="j", source="s", launches=(FACTS,))
    assert judged(bare, current, "sm_90") == {}


def test_spills_are_no_part_of_a_prediction_which_then_never_says_faster():
    def facts(operations: int, spilled: int) -> CaseFacts:
        launch = replace(FACTS, executed={"fp32": operations}, stack_bytes=spilled, local_bytes=0)
        return CaseFacts(fingerprint=f"{spilled}", source="s", launches=(launch,))

    assert Effect.BETTER in judged(facts(10**12, 0), facts(10**11, 0), "sm_90")
    assert [*judged(facts(10**12, 0), facts(10**11, 64), "sm_90")] == [Effect.WORSE]
    slower = compare(facts(10**11, 0), facts(10**12, 64), arch="sm_90", margin=STATIC_MARGIN).of(Effect.WORSE)
    assert slower[0].quantity.startswith("predicted")


def test_values_inside_of_a_branch_do_not_pass_for_its_results():
    """They have the same numbers in Tile IR."""
    (case,) = (case for case in FMHA.cases if case.name == "fp16-2x4_2x130_333x128")
    launches = record_launches(compile_case(FMHA, case, "sm_90").run, "sm_90")
    counts = [count_executed(export(launch, "sm_90"), parameters_of(launch)) for launch in launches]
    # Two products over 2 x 4 heads, 130 queries and 333 keys of 128: at least what is not padding.
    assert sum(count["mma f16"] for count in counts if count is not None) >= 2 * 2 * 8 * 130 * 333 * 128
