from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, Options, Run, check_order, interpret
from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.interpreter.frames import Frame
from pytest_cutile.tile.interpreter.memory import Memory
from tests.tile.interpreter import faulty_kernels as kernels

N = 16


def launch(grid: int | tuple[int, ...], kernel: Any, *arguments: Any) -> None:
    ct.launch(0, (grid,) if isinstance(grid, int) else grid, kernel, arguments)


def line_of(kernel: Any, mark: str = "# fault") -> int:
    function = cutile.kernel_function(kernel) if cutile.is_kernel(kernel) else kernel
    lines, first = inspect.getsourcelines(function)
    [found] = [first + at for at, line in enumerate(lines) if mark in line]
    return found


def fault_of(
    grid: int | tuple[int, ...], kernel: Any, *arguments: Any, options: Options | None = None
) -> KernelFault:
    """Launch, and return the fault, whose place has to be the line with the mark."""
    with interpret("sm_90", options), pytest.raises(KernelFault) as caught:
        launch(grid, kernel, *arguments)
    fault = caught.value
    assert fault.kernel == cutile.kernel_function(kernel).__name__
    assert fault.location is not None
    assert fault.location.file == kernels.__file__
    assert fault.location.line == line_of(kernel)
    return fault


def vector(n: int = 4 * N) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32)


# -- out of bounds ------------------------------------------------------------------------------------


def test_a_fault_tells_kernel_block_argument_element_and_source_line() -> None:
    fault = fault_of(4, kernels.gather_unchecked, vector(), vector(), 5, N)
    assert (fault.kind, fault.block) == ("out-of-bounds", (3, 0, 0))
    message, place, source, caret = str(fault).splitlines()
    assert message == (
        "gather_unchecked in block (3, 0, 0): loads element 64 of x, which is [64], counted from its start"
    )
    assert fault.location is not None
    assert place == f"  {kernels.__file__}:{fault.location.line}:{fault.location.column}"
    assert source == "    values = ct.gather(x, index + shift, check_bounds=False)  # fault"
    assert source[caret.index("^") :].startswith("ct.gather")
    assert str(pickle.loads(pickle.dumps(fault))) == str(fault)


def test_a_fault_in_a_helper_tells_where_that_was_called() -> None:
    with interpret("sm_90"), pytest.raises(KernelFault) as caught:
        launch(1, kernels.gather_in_helper, vector(N), vector(N), 1, N)
    assert caught.value.location is not None
    assert caught.value.location.line == line_of(kernels._take, "# fault of gather_in_helper")
    caller = line_of(kernels.gather_in_helper, "# caller")
    assert f"  called from {kernels.__file__}:{caller}:" in str(caught.value)


@pytest.mark.parametrize("shift", [-1, 1, 2**20])
def test_loads_and_stores_through_pointers_stay_in_their_array(shift: int) -> None:
    for kernel, verb in ((kernels.gather_unchecked, "loads"), (kernels.scatter_unchecked, "stores")):
        fault = fault_of(4, kernel, vector(), vector(), shift, N)
        assert fault.kind == "out-of-bounds"
        assert fault.message.startswith(f"{verb} element {shift if shift < 0 else max(64, shift)} ")
        launch_clean(4, kernel, vector(), vector(), 0, N)


def launch_clean(grid: int | tuple[int, ...], kernel: Any, *arguments: Any) -> Run:
    with interpret("sm_90") as interpreter:
        launch(grid, kernel, *arguments)
    return interpreter


def test_a_slice_of_a_larger_storage_ends_where_it_ends() -> None:
    storage = vector(6 * N)
    middle = storage[N : 5 * N]
    launch_clean(4, kernels.gather_unchecked, middle, vector(), 0, N)
    for shift, element in ((-1, -1), (1, 64)):
        fault = fault_of(4, kernels.gather_unchecked, middle, vector(), shift, N)
        assert f"loads element {element} of x, which is [64], counted from its start" in fault.message


def test_what_lies_between_the_rows_of_a_view_is_outside() -> None:
    storage = torch.zeros(N, 10)
    view = storage[:, 2:6]  # its rows are 10 elements apart
    launch_clean(1, kernels.gather_column, view, vector(N), 3, N)
    fault = fault_of(1, kernels.gather_column, view, vector(N), 4, N)
    assert (
        "loads element 4 of x, which is [16, 4] with strides [10, 1], counted from its start" in fault.message
    )


@pytest.mark.parametrize("kernel", [kernels.load_tile, kernels.store_tile])
def test_a_tile_wholly_outside_is_a_fault_and_one_that_sticks_out_is_not(kernel: Any) -> None:
    launch_clean(4, kernel, vector(50), vector(50), 0, N)
    for shift, block, tile in ((1, 3, 4), (-1, 0, -1)):
        fault = fault_of(4, kernel, vector(50), vector(50), shift, N)
        assert (fault.kind, fault.block) == ("out-of-bounds", (block, 0, 0))
        name = "x" if kernel is kernels.load_tile else "y"
        assert f"tile [{tile}] of shape [16], wholly outside of {name} [50]" in str(fault)
    y = vector()
    launch_clean(4, kernels.load_padded, vector(50), y, 2, N)
    assert torch.equal(y, torch.cat([vector(50)[2 * N :], torch.zeros(4 * N - 18)]))
    with interpret("sm_90", Options(check_tiles=False, check_races=False, poison_padding=False)):
        launch(4, kernel, vector(50), vector(50), 1, N)


def test_a_tile_that_may_not_stick_out_does_not() -> None:
    launch_clean(4, kernels.load_tile_unchecked, vector(), vector(), N)
    fault = fault_of(4, kernels.load_tile_unchecked, vector(50), vector(), N)
    assert "partly outside of x [50]" in fault.message
    assert fault.block == (3, 0, 0)


def test_a_slice_reaches_no_further_than_its_array() -> None:
    x, y = torch.zeros(8, 10), torch.zeros(4, 4)
    for axis, start, stop in ((0, 4, 8), (1, 6, 10), (1, 8, 10), (0, 7, 8), (0, 8, 8)):
        launch_clean(1, kernels.load_slice, x, y, axis, start, stop, 4, 4)
    for axis, start, stop, index in ((0, 6, 10, 8), (1, 8, 12, 10)):
        fault = fault_of(1, kernels.load_slice, x, y, axis, start, stop, 4, 4)
        assert fault.kind == "out-of-bounds"
        assert f"loads index {index} along axis {axis} of x, which is [8, 10]" in fault.message


def test_a_pointer_that_is_no_multiple_of_its_element_is_misaligned() -> None:
    memory = Memory()
    base = memory.add("x", vector())
    frame = Frame.of_blocks(torch.arange(1))
    memory.load(frame, torch.tensor([base + 4]), torch.float32, None)
    with pytest.raises(
        KernelFault, match="loads 4 bytes at byte 6 of x, an address that is no multiple of 4"
    ):
        memory.load(frame, torch.tensor([base + 6]), torch.float32, None)


def test_an_address_of_nothing_is_in_no_array() -> None:
    memory = Memory()
    memory.add("x", vector())
    with pytest.raises(KernelFault, match="in no array"):
        memory.load(Frame.of_blocks(torch.arange(1)), torch.tensor([0]), torch.float32, None)


def test_nothing_is_accessed_in_arrays_without_elements() -> None:
    empty = torch.zeros(0)
    launch_clean(0, kernels.copy, empty, empty, N)
    index_masked = (2, kernels.store_overlapping, empty, empty, N, N)  # gather and scatter check bounds
    launch_clean(*index_masked)
    assert fault_of(1, kernels.gather_unchecked, empty, vector(), 0, N).kind == "out-of-bounds"


def test_a_tile_of_an_array_without_elements_is_outside() -> None:
    empty = torch.zeros(0)
    for kernel, name, arrays in (
        (kernels.load_from, "x", (empty, vector())),
        (kernels.store_into, "y", (vector(), empty)),
    ):
        fault = fault_of(1, kernel, *arrays, N)
        assert fault.kind == "out-of-bounds"
        assert f"tile [0] of shape [16], wholly outside of {name} [0]" in fault.message


def test_an_empty_slice_of_an_array_has_no_elements_to_miss() -> None:
    x, y = torch.zeros(8, 10), torch.zeros(4, 4)
    launch_clean(1, kernels.load_slice, x, y, 0, 3, 3, 4, 4)
    launch_clean(1, kernels.copy_empty_slice, vector(), vector(), N)


# -- two parameters, one element ----------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [kernels.read_back, kernels.gather_back])
@pytest.mark.parametrize("check_races", [True, False])
def test_what_is_written_through_one_parameter_is_read_through_another(
    kernel: Any, check_races: bool
) -> None:
    y, z = vector(), vector()
    launch_clean(4, kernel, y, y.clone(), z, N)
    launch_clean(4, kernel, y[:N], y[N:], z[N:], N) if kernel is kernels.gather_back else None
    if not check_races:
        with interpret("sm_90", Options(check_races=False)):
            launch(4, kernel, y, y, z, N)
        return
    for x in (y, y.view(torch.float32), y[: 4 * N - 1]):
        fault = fault_of(4, kernel, x, y, z, N)
        assert fault.kind == "aliasing"
        assert "reads y[0] after it was written through another parameter (at " in fault.message


@pytest.mark.parametrize(
    ("kernel", "element"),
    [
        (kernels.store_both, "y[0]"),
        (kernels.scatter_both, "y[1]"),
        (kernels.add_then_store, "y[0]"),
        (kernels.store_then_add, "y[0]"),
    ],
)
def test_two_parameters_may_not_write_one_element_also_if_it_is_the_same_value(
    kernel: Any, element: str
) -> None:
    y = vector()
    launch_clean(4, kernel, y, y.clone(), N)
    launch_clean(2, kernel, y[: 2 * N], y[2 * N :], N)
    for x in (y, y.view(torch.float32), y[: 4 * N - 1]):
        fault = fault_of(4, kernel, x, y, N)
        assert fault.kind == "aliasing"
        assert f" {element} after it was written through another parameter (at " in fault.message
    with interpret("sm_90", Options(check_races=False)):
        launch(4, kernel, y, y, N)


def test_parameters_may_share_what_is_only_updated_atomically() -> None:
    y = torch.zeros(4 * N)
    launch_clean(4, kernels.add_both, y, y, N)
    assert torch.equal(y, torch.full((4 * N,), 2.0))


def test_parameters_may_share_what_is_read_before_it_is_written() -> None:
    y = vector()
    launch_clean(4, kernels.read_before_store, y, y, vector(), N)
    assert torch.equal(y, vector() + 1)
    launch_clean(4, kernels.read_back_in_list, [y, y], vector(), N)  # of a list, cuTile promises nothing


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_scatter_stores_one_element_twice_also_if_it_is_the_same_value(value: float) -> None:
    x, y = torch.full((4 * N,), value), vector()
    launch_clean(4, kernels.scatter_divided, x, y, 1, N)
    fault = fault_of(4, kernels.scatter_divided, x, y, 2, N)
    assert (fault.kind, fault.block) == ("race", (0, 0, 0))
    assert "stores into y[0] twice in one operation: the final value depends on timing" in fault.message
    rows = torch.full((N, 4), value)
    launch_clean(1, kernels.scatter_rows, rows, torch.zeros(N, 4), 1, N)
    assert "stores into y[0, 0] twice" in fault_of(1, kernels.scatter_rows, rows, rows.clone(), 2, N).message
    with interpret("sm_90", Options(check_races=False)):
        launch(1, kernels.scatter_rows, rows, rows.clone(), 2, N)


# -- two blocks, one element --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_two_blocks_store_one_element_also_if_it_is_the_same_value(value: float) -> None:
    x, y = torch.full((4 * N,), value), vector()
    launch_clean(4, kernels.store_together, x, y, 1, N)
    fault = fault_of(4, kernels.store_together, x, y, 2, N)
    assert fault.kind == "race"
    assert "writes y[0], which block (" in fault.message
    with interpret("sm_90", Options(check_races=False)):
        launch(4, kernels.store_together, x, y, 2, N)


def test_stores_through_pointers_that_overlap_are_a_race() -> None:
    launch_clean(4, kernels.store_overlapping, vector(), vector(), N, N)
    fault = fault_of(4, kernels.store_overlapping, vector(), vector(), N - 1, N)
    assert fault.kind == "race"
    assert "y[15]" in fault.message


def test_blocks_of_different_batches_race_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cutile.tile.interpreter.machine.BATCH_ELEMENTS", 1)
    fault = fault_of(4, kernels.store_together, vector(), vector(), 2, N)
    assert fault.block == (1, 0, 0)
    assert "which block (0, 0, 0) of the same launch writes as well" in fault.message
    for shift in (-1, 1):
        with interpret("sm_90"), pytest.raises(KernelFault, match="timing"):
            launch(4, kernels.add_neighbour, vector(), shift, 4, N)
    launch_clean(4, kernels.add_neighbour, vector(), 0, 4, N)


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_reading_what_another_block_writes_is_a_race_in_either_order(shift: int, reverse: bool) -> None:
    with (
        interpret("sm_90", Options(reverse=reverse)),
        pytest.raises(KernelFault, match=r"(reads|writes) y\[.*timing"),
    ):
        launch(4, kernels.add_neighbour, vector(), shift, 4, N)


@pytest.mark.parametrize("together", [1, 2, 100])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_race_names_the_other_block_and_its_line(
    together: int, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_cutile.tile.interpreter.launch.batch_size", lambda _: together)
    for writer in (3, 7):
        with interpret("sm_90"), pytest.raises(KernelFault) as caught:
            launch(8, kernels.store_what_all_read, torch.zeros(N), torch.zeros(8 * N), writer, atomic, N)
        fault = caught.value
        assert fault.kind == "race"
        named = re.search(
            r"which block \((\d), 0, 0\) of the same launch .* \(at (.*):(\d+):\d+\): ", str(fault)
        )
        assert named is not None, str(fault)
        assert fault.block is not None
        assert int(named[1]) != fault.block[0]
        lines, first = inspect.getsourcelines(cutile.kernel_function(kernels.store_what_all_read))
        assert "# other" in lines[int(named[3]) - first] or "# fault" in lines[int(named[3]) - first]


def test_a_kernel_may_work_in_place_and_be_launched_again() -> None:
    y = vector()
    with interpret("sm_90"):
        for _ in range(3):
            launch(4, kernels.add_in_place, y, N)
    assert torch.equal(y, vector() + 3)


def test_what_a_failed_launch_left_behind_is_no_fault_of_the_next() -> None:
    y = vector()
    with interpret("sm_90"):
        with pytest.raises(KernelFault):
            launch(4, kernels.store_together, y, y, 2, N)
        launch(2, kernels.store_together, vector(), y, 1, 2 * N)


def test_inputs_may_be_read_by_many_blocks() -> None:
    x, y = vector(), vector()
    launch_clean(4, kernels.average_neighbours, x, y, N)
    expanded = torch.ones(1).expand(4 * N)
    launch_clean(4, kernels.copy, expanded, y, N)
    launch_clean(4, kernels.gather_unchecked, expanded, y, 0, N)
    rows = torch.ones(8).expand(8, 8)
    launch_clean((2, 2), kernels.copy_2d, rows, torch.zeros(8, 8), 4, 4)
    assert torch.equal(y, torch.ones(4 * N))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool, torch.float8_e5m2, torch.float64])
def test_arguments_may_share_a_storage(dtype: torch.dtype) -> None:
    storage = torch.zeros(8 * N).to(dtype)
    launch_clean(4, kernels.copy, storage[: 4 * N], storage[4 * N :], N)
    launch_clean(4, kernels.copy, storage[: 4 * N], storage[: 4 * N], N)
    fault_of(4, kernels.swap_halves, storage[: 4 * N], storage, N)
    fault_of(4, kernels.swap_halves, storage[: 4 * N], storage[: 5 * N], N)


def test_arguments_of_different_dtypes_may_share_a_storage() -> None:
    with interpret("sm_90"):
        storage = torch.empty(8 * N, dtype=torch.float32)
        halves = storage.view(torch.bfloat16)
        storage[: 4 * N] = 1.0
        launch(4, kernels.copy, storage[: 4 * N], halves[8 * N : 12 * N], N)
        launch(2, kernels.copy, halves[8 * N : 10 * N], storage[: 2 * N], N)
        with pytest.raises(KernelFault, match="nothing has written"):
            launch(4, kernels.copy, halves[12 * N :], storage[: 4 * N], N)
        # Two halves of one float, written by two blocks, and read by a third as a whole.
        with pytest.raises(KernelFault, match="timing"):
            launch(4, kernels.copy, storage[: 4 * N], halves[: 4 * N], N)


# -- atomics ------------------------------------------------------------------------------------------


def test_atomic_sums_of_many_blocks_are_no_race() -> None:
    total = torch.zeros(1)
    launch_clean(4, kernels.split_sum, vector(), total, N)
    assert float(total) == float(vector().sum())


def test_a_block_that_waited_for_the_others_may_read_what_they_wrote() -> None:
    with interpret("sm_90"):
        total, partial = torch.empty(1), torch.empty(4)
        count = torch.zeros(1, dtype=torch.int32)
        launch(4, kernels.split_sum_last_block, vector(), partial, count, total, 4, N, 4)
    assert float(total) == float(vector().sum())


def test_an_atomic_sum_into_what_nobody_wrote_is_a_fault() -> None:
    with interpret("sm_90"), pytest.raises(KernelFault, match=r"total\[0\].*nothing has written"):
        launch(4, kernels.split_sum, vector(), torch.empty(1), N)


def test_an_atomic_sum_into_what_another_block_stores_is_a_race() -> None:
    assert fault_of(4, kernels.sum_into_stored, vector(), torch.zeros(1), N).kind == "race"


def test_an_atomic_sum_stays_in_its_array() -> None:
    launch_clean(4, kernels.add_unchecked, vector(), torch.zeros(2), 1)
    fault = fault_of(4, kernels.add_unchecked, vector(), torch.zeros(2), 2)
    assert "updates element 2 of total, which is [2], counted from its start" in fault.message


def test_a_relaxed_atomic_orders_nothing() -> None:
    ready = torch.zeros(1, dtype=torch.int32)
    fault = fault_of(2, kernels.add_loaded, vector(), torch.zeros(2), torch.zeros(1), ready, N)
    assert fault.kind == "race"
    assert "reads partial[0], which block (0, 0, 0) of the same launch writes" in fault.message


def counter(n: int = 1) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int32)


ONE_BY_ONE = pytest.mark.parametrize("one_by_one", [False, True])


@pytest.fixture
def batches(one_by_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run blocks together, or one after another."""
    if one_by_one:
        monkeypatch.setattr("pytest_cutile.tile.interpreter.machine.BATCH_ELEMENTS", 1)


@ONE_BY_ONE
@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("at", [0, 1])
def test_an_atomic_before_it_does_not_excuse_a_race(at: int) -> None:
    fault = fault_of(4, kernels.store_after_count, counter(4), vector(), at, 0, N)
    assert fault.kind == "race"
    assert "y[0]" in fault.message
    launch_clean(4, kernels.store_after_count, counter(4), vector(), at, 1, N)
    assert fault_of(3, kernels.store_after_histogram, counter(N), vector(N), N).kind == "race"


@ONE_BY_ONE
@pytest.mark.usefixtures("batches")
def test_blocks_that_read_an_unfinished_total() -> None:
    with interpret("sm_90"), pytest.raises(KernelFault, match=r"(reads|updates) total\[0\], which block"):
        launch(4, kernels.divide_by_total, vector(), torch.zeros(1), vector(), N)
    fault = fault_of(2, kernels.divide_by_total_relaxed, vector(), torch.zeros(1), vector(), N)
    assert re.match(r"reads total\[0\], which block \([01], 0, 0\) of the same launch updates", fault.message)


@ONE_BY_ONE
@pytest.mark.usefixtures("batches")
def test_atomics_and_plain_accesses_of_one_element_are_a_race() -> None:
    with interpret("sm_90"), pytest.raises(KernelFault, match=r"(reads|updates) total\[0\], which"):
        launch(4, kernels.read_then_add, torch.zeros(1), torch.zeros(4))
    fault = fault_of(4, kernels.store_into_sum, torch.zeros(1))
    assert "writes total[0], which block (0, 0, 0) of the same launch updates atomically" in fault.message
    launch_clean(1, kernels.read_then_add, torch.zeros(1), torch.zeros(1))


@ONE_BY_ONE
@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("reverse", [False, True])
def test_blocks_that_wait_for_each_other_do_not_race(reverse: bool) -> None:
    with interpret("sm_90", Options(reverse=reverse)):
        sums, count, y = torch.zeros(N), counter(), torch.zeros(N)
        for _ in range(2):
            launch(4, kernels.last_block_takes_sums, vector(), sums, count, y, 4, N)
        assert torch.equal(y, vector().reshape(4, N).sum(0))
        y = torch.zeros(N)
        launch(4, kernels.sum_under_lock, vector(), counter(), y, N)
        assert torch.equal(y, vector().reshape(4, N).sum(0))
        y = vector()
        launch(3, kernels.take_tickets, counter(), y, 4, N)
        assert torch.equal(y, vector() + 1)
        x = torch.zeros(N)
        launch(4, kernels.read_before_count, x, counter(), vector(), 4, N)
        assert torch.equal(x, torch.ones(N))


def test_what_is_passed_along_is_ordered_by_releases_and_acquires(monkeypatch: pytest.MonkeyPatch) -> None:
    order = ct.MemoryOrder
    monkeypatch.setattr("pytest_cutile.tile.interpreter.machine.BATCH_ELEMENTS", 1)
    y = torch.zeros(N)
    launch_clean(4, kernels.passing(order.RELEASE, order.ACQUIRE), y, counter(4), N)
    assert torch.equal(y, torch.full((N,), 4.0))
    for release, acquire in (
        (order.RELEASE, order.RELAXED),
        (order.RELAXED, order.ACQUIRE),
        (order.RELAXED, order.RELAXED),
        (order.ACQUIRE, order.ACQUIRE),
        (order.RELEASE, order.RELEASE),
    ):
        assert fault_of(4, kernels.passing(release, acquire), y, counter(4), N).kind == "race"


@ONE_BY_ONE
@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("reverse", [False, True])
def test_what_a_block_knows_it_passes_on(reverse: bool) -> None:
    with interpret("sm_90", Options(reverse=reverse)):
        x, y = torch.empty(16 * N), torch.zeros(4 * N)
        launch(16, kernels.count_in_two_steps, x, counter(4), counter(), y, 2, N)
        assert float(y.sum()) == 16 * N
        x = torch.zeros(16 * N)
        with pytest.raises(KernelFault, match=r"(reads|writes) x\[.*timing"):
            launch(16, kernels.count_in_two_steps, x, counter(4), counter(), y, 1, N)


def test_a_store_after_the_lock_was_given_back_is_a_race() -> None:
    assert fault_of(4, kernels.store_after_unlock, counter(), vector(), 0, N).kind == "race"
    launch_clean(4, kernels.store_after_unlock, counter(), vector(), 1, N)


def test_loads_and_stores_that_acquire_and_release_order_blocks() -> None:
    for make in (counter, lambda: counter(2)[::2]):
        launch_clean(2, kernels.pass_by_load_and_store, vector(N), make(), vector(N), True, N)
        fault = fault_of(2, kernels.pass_by_load_and_store, vector(N), make(), vector(N), False, N)
        assert fault.kind == "race"


def test_many_elements_at_once_order_blocks_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cutile.tile.interpreter.machine.BATCH_ELEMENTS", 1)
    monkeypatch.setattr("pytest_cutile.tile.interpreter.happens_before._MOST_LOCATIONS", 2)
    y, order = torch.zeros(N), ct.MemoryOrder
    launch_clean(8, kernels.passing(order.RELEASE, order.ACQUIRE), y, counter(8), N)
    assert torch.equal(y, torch.full((N,), 8.0))


# -- what nothing has written -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8])
def test_reading_what_nothing_has_written_is_a_fault(dtype: torch.dtype) -> None:
    x = vector().to(dtype)
    with interpret("sm_90"):
        y = torch.empty(4 * N, dtype=dtype)
        with pytest.raises(KernelFault) as caught:
            launch(4, kernels.add_into, x, y, N)
        assert caught.value.kind == "uninitialized"
        assert "stores into y[0] what depends on y[0] of [64], which nothing has written (loaded at " in str(
            caught.value
        )
        assert caught.value.location is not None
        assert caught.value.location.line == line_of(kernels.add_into)
        y.zero_()
        launch(4, kernels.add_into, x, y, N)
    assert torch.equal(y, x)
    with interpret("sm_90", Options(check_uninitialized=False)):
        launch(4, kernels.add_into, x, torch.empty(4 * N, dtype=dtype), N)


def test_what_one_launch_wrote_the_next_may_read() -> None:
    with interpret("sm_90") as interpreter:
        y = torch.empty(4 * N)
        launch(3, kernels.copy, vector(), y, N)
        with pytest.raises(KernelFault, match=r"nothing has written 16 of 64 elements of y, \[48\] first"):
            interpreter.check_written([y], ["y"])
        interpreter.check_written([y[: 3 * N]], ["y"])
        launch(3, kernels.add_in_place, y, N)
        with pytest.raises(KernelFault, match=r"depends on y\[48\] of \[64\], which nothing has written"):
            launch(4, kernels.add_in_place, y, N)
        launch(4, kernels.copy, vector(), y, N)
        interpreter.check_written([y], ["y"])


def test_what_the_host_wrote_in_part_is_written_in_part() -> None:
    with interpret("sm_90") as interpreter:
        y = torch.empty(4 * N)
        y[: 2 * N] = 0
        with pytest.raises(KernelFault, match=r"nothing has written 32 of 64 elements of y, \[32\] first"):
            interpreter.check_written([y], ["y"])
        launch(2, kernels.add_in_place, y, N)
        launch(1, kernels.copy, vector(N), y[2 * N : 3 * N], N)
        y.numpy()[3 * N :] = 7  # of which torch knows nothing
        launch(4, kernels.add_in_place, y, N)
        interpreter.check_written([y], ["y"])
        small = torch.empty(4 * N, dtype=torch.int16)
        small[0] = 0  # zeros are what small integers are filled with, so that all counts as written
        launch(4, kernels.add_in_place, small, N)
        for dtype in (torch.int32, torch.int64):
            counts = torch.empty(4 * N, dtype=dtype)
            counts[:N] = 0
            launch(1, kernels.add_in_place, counts, N)
            with pytest.raises(KernelFault, match=rf"y\[{N}\] of \[{4 * N}\], which nothing has written"):
                launch(4, kernels.add_in_place, counts, N)


def test_uninitialized_tensors_of_every_kind_can_be_made() -> None:
    with interpret("sm_90") as interpreter:
        leaf = torch.empty(N, requires_grad=True, device="cuda")
        with torch.inference_mode():
            result = torch.empty(N, device="cuda")
            launch(1, kernels.copy, vector(N).cuda(), result, N)
            interpreter.check_written([result], ["result"])
            with pytest.raises(KernelFault, match="nothing has written"):
                interpreter.check_written([torch.empty(N)], ["result"])
        assert leaf.isnan().all()
        strided = torch.empty_strided((4, 4), (1, 4), dtype=torch.float16)
        launch(1, kernels.copy_2d, torch.ones(4, 4), strided, 4, 4)
        interpreter.check_written([strided, strided.t(), torch.empty(0)], ["a", "b", "c"])


def test_a_view_knows_what_was_written_through_its_base() -> None:
    with interpret("sm_90") as interpreter:
        base = torch.empty(8, 8)
        launch((2, 2), kernels.copy_2d, torch.ones(8, 8), base[:, 4:], 4, 2)
        interpreter.check_written([base[:, 4:]], ["right"])
        with pytest.raises(KernelFault, match=r"32 of 64 elements of base, \[0, 0\] first"):
            interpreter.check_written([base], ["base"])
        with pytest.raises(KernelFault, match=r"on x\[0, 0\] of \[8, 5\] with strides \[8, 1\]"):
            launch((2, 2), kernels.copy_2d, base[:, 3:], torch.zeros(8, 5), 4, 4)


# -- assumptions --------------------------------------------------------------------------------------


def test_a_claim_of_the_kernels_author_has_to_hold() -> None:
    launch_clean(1, kernels.assume_even, vector(), vector(), 4, N)
    fault = fault_of(1, kernels.assume_even, vector(), vector(), 5, N)
    assert (fault.kind, fault.block) == ("assumption", (0, 0, 0))
    assert "5 is assumed to be divisible by 2" in fault.message


def test_arguments_of_any_alignment_are_no_fault() -> None:
    storage = vector(8 * N)
    for offset in range(5):
        launch_clean(4, kernels.copy, storage[offset : offset + 4 * N], vector(), N)
    # A stride along an axis of length 1, of which cuda-tile 1.7.0 assumes too much.
    single = storage.as_strided((1, 8), (13, 1), 3)
    launch_clean((1, 2), kernels.copy_2d, single, torch.zeros(1, 8), 1, 4)


# -- order --------------------------------------------------------------------------------------------


def test_a_result_that_depends_on_the_order_of_the_blocks() -> None:
    def write() -> dict[str, torch.Tensor]:
        y = torch.zeros(N)
        launch(3, kernels.write_last, y, N)
        return {"y": y}

    with pytest.raises(KernelFault) as caught:
        check_order(write, "sm_90", options=Options(check_races=False))
    assert caught.value.kind == "order"
    assert str(caught.value).startswith(
        "write_last in block (2, 0, 0): result['y'][0] is 2, and 0 with the blocks in reverse, "
        "as are 16 of 16 elements: which one depends on timing\n"
    )
    assert caught.value.location is not None
    assert caught.value.location.line == line_of(kernels.write_last, "ct.store")
    with pytest.raises(KernelFault, match="timing"):
        check_order(write, "sm_90")


def test_a_result_that_depends_on_how_far_the_other_blocks_are() -> None:
    def divide() -> torch.Tensor:
        y = torch.zeros(2 * N)
        launch(2, kernels.divide_by_total, torch.ones(2 * N), torch.zeros(1), y, N)
        return y

    with pytest.raises(KernelFault) as caught:
        check_order(divide, "sm_90", options=Options(check_races=False))
    assert caught.value.kind == "order"


def test_a_result_whose_last_bits_depend_on_the_order_shows_them() -> None:
    def add() -> torch.Tensor:
        y = torch.zeros(1)
        launch(64, kernels.split_sum, torch.randn(64 * N) * 1e4, y, N)
        return y

    with pytest.raises(KernelFault, match=r"result\[0\] is \S+, and \S+ with") as caught:
        check_order(add, "sm_90")
    words = str(caught.value).split()
    at = words.index("is")
    assert words[at + 1].rstrip(",") != words[at + 3]


def test_a_result_that_does_not_depend_on_the_order() -> None:
    def add() -> tuple[torch.Tensor, int]:
        y = torch.randn(4 * N)
        y[0] = float("nan")
        launch(4, kernels.add_in_place, y, N)
        return y, 3

    result, three = check_order(add, "sm_90")
    assert three == 3
    assert result.shape == (4 * N,)


def test_storages_that_are_too_large_to_follow_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cutile.tile.interpreter.shadow.MAX_UNITS", N)
    launch_clean(4, kernels.store_together, vector(), vector(), 2, N)
    with interpret("sm_90"):
        launch(4, kernels.add_into, vector(), torch.empty(4 * N), N)
