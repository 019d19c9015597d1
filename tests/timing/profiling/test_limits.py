"""What bounds a launch is said from its counters alone."""

import pytest

from pytest_cutile.timing.profiling.counters import read_counters
from pytest_cutile.timing.profiling.limits import bound_of_launch, wait_shares
from tests.timing.profiling.examples import NAMES, raw_page


def bound(**counters):
    (kernel,) = read_counters(raw_page(counters))
    return bound_of_launch(kernel)


def test_counters_are_read_in_base_units_and_what_is_no_number_is_left_out():
    first, second = read_counters(
        raw_page({"name": "softmax", "us": 1234.5, "dram": 91.2}, {"us": 2.0, "l2": 40})
    )
    assert (first.kernel, first.us) == ("softmax", 1234.5)
    assert first.values[NAMES["dram"]] == 91.2
    assert NAMES["l2"] not in first.values
    assert second.us == 2.0


def test_a_kernel_has_its_functions_name_without_what_it_was_compiled_for():
    name = "softmax_rows_Kt1_A2f16_1v8l0_2i16t1_p16_A2f16_1v8l0_2i16t1_p16_I16_I256_I1_I256_B0"
    (kernel,) = read_counters(raw_page({"name": name, "us": 4.0}))
    assert kernel.kernel == "softmax_rows"


@pytest.mark.parametrize("text", ["", "==ERROR== no", '"a","b"\n"c","d"\n'])
def test_what_is_no_raw_page_has_no_launches(text):
    assert read_counters(text) == []


def test_of_several_names_for_a_unit_the_busiest_counts():
    text = raw_page({"us": 100.0, "tensor": 10.0})
    other = "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active"
    text = "\n".join(
        f'{line},"{extra}"' if line.startswith('"') else line
        for line, extra in zip(text.splitlines(), ["", other, "%", "88"], strict=False)
    )
    (kernel,) = read_counters(text)
    assert bound_of_launch(kernel).what == "tensor cores"


@pytest.mark.parametrize(
    ("counters", "what"),
    [
        ({"us": 30.0, "dram": 91.0, "l2": 50.0}, "memory"),
        ({"us": 300.0, "tensor": 70.0, "dram": 20.0}, "mostly tensor cores"),
        ({"us": 300.0, "tensor": 60.0, "xu": 85.0}, "special functions"),
        ({"us": 300.0, "issued": 0.9, "l1": 40.0}, "instruction issue"),
        ({"us": 300.0, "dram": 30.0, "tensor": 59.0}, "latency"),
        ({"us": 3.0, "dram": 12.0}, "the launch itself"),
        ({"us": 3.0, "dram": 85.0}, "memory"),
        ({"us": 3.0}, "unknown"),
    ],
)
def test_the_busiest_unit_bounds_a_launch_or_else_latency_does(counters, what):
    assert bound(**counters).what == what


def test_latency_is_explained_by_what_warps_wait_for():
    counters = {"us": 300.0, "dram": 30.0, "long_scoreboard": 6.0, "barrier": 3.0, "selected": 1.0}
    assert bound(**counters).reasons == (
        "No unit is busy: memory 30 %.",
        "Warps wait for data from memory or the L2 (60 %), at barriers, for other warps of the block (30 %).",
    )
    assert wait_shares(read_counters(raw_page({"us": 1.0}))[0]) == []


@pytest.mark.parametrize(
    ("waves", "said"),
    [(0.25, "fills 25 % of the places"), (1.09, "1.09 waves of blocks, which fill 55 % of the places of 2")],
)
def test_places_that_stay_empty_are_told(waves, said):
    assert said in " ".join(bound(us=300.0, dram=30.0, waves=waves).reasons)


@pytest.mark.parametrize("waves", [1.0, 1.9, 7.5])
def test_waves_that_are_nearly_full_are_not_told(waves):
    assert "waves" not in " ".join(bound(us=300.0, dram=30.0, waves=waves).reasons)
