"""Blocks that part and meet again compute what each would alone; references are plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, Options, interpret
from pytest_cutile.tile.interpreter import machine
from tests.tile.interpreter import small_kernels as kernels

N = 8


@pytest.fixture(params=["all blocks together", "one by one", "three at a time", "last first"])
def launch(request, monkeypatch) -> Iterator[Callable[..., None]]:
    """Launch in batches of different sizes: what comes out must not depend on them."""
    together = {"one by one": 1, "three at a time": 3}.get(request.param)
    if together is not None:
        monkeypatch.setattr("pytest_cutile.tile.interpreter.launch.batch_size", lambda _: together)
    with interpret("sm_90", Options(reverse=request.param == "last first")):
        yield lambda grid, kernel, *args: ct.launch(0, grid, kernel, args)


def rows(count: int) -> torch.Tensor:
    return torch.arange(count * N, dtype=torch.int32) % 23 - 7


def expect(out: torch.Tensor, expected: list[list[int]]) -> None:
    assert out.reshape(-1, N).tolist() == expected


def test_branches_inside_branches(launch):
    blocks = 25
    x, out = rows(blocks), torch.empty(blocks * N, dtype=torch.int32)
    launch((blocks,), kernels.branch_kernel, x, out, N)

    def of(i: int, value: int) -> int:
        if i % 3 == 0:
            return value + 1
        if i % 3 == 1:
            return value * 2 if i % 2 == 0 else value - 5
        return value

    expect(out, [[of(i, v) for v in row] for i, row in enumerate(x.reshape(-1, N).tolist())])


def test_nested_loops_of_different_lengths(launch):
    blocks = 37
    x, out = rows(5), torch.empty(blocks * N, dtype=torch.int32)
    launch((blocks,), kernels.nested_loops_kernel, x, out, N)
    expected = []
    for i in range(blocks):
        acc, count = torch.zeros(N, dtype=torch.int32), 0
        for a in range(i % 5):
            for b in range(a, i % 7, 2):
                acc = acc + x[a * N : (a + 1) * N] * b
                count += 1
            acc = acc + count
        expected.append(acc.tolist())
    expect(out, expected)


def _leave(i: int, acc: torch.Tensor) -> list[int] | None:
    if i == 4:
        return None
    for a in range(i + 3):
        if a % 4 == 2:
            continue
        if a == 6:
            break
        for b in range(10):
            if b > a:
                break
            acc = acc + b
            if acc.sum() > 2000:
                return [-1] * N
        acc = acc + a
    return acc.tolist()


def test_break_continue_and_return(launch):
    blocks = 12
    x, out = rows(blocks) * 4 + 190, torch.full((blocks * N,), -7, dtype=torch.int32)
    launch((blocks,), kernels.leaving_kernel, x, out, N)
    expected = [_leave(i, x[i * N : (i + 1) * N]) for i in range(blocks)]
    assert [-1] * N in expected
    assert sum(row != [-1] * N for row in expected) > 2
    expect(out, [[-7] * N if row is None else row for row in expected])


def test_while_loops_of_a_helper_with_branches(launch):
    blocks = 30
    out = torch.empty(blocks, dtype=torch.int32)
    launch((blocks,), kernels.while_kernel, out)

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert out.tolist() == [steps(i + 1) for i in range(blocks)]


def test_a_loop_without_end_is_left_by_break(launch):
    blocks = 20
    out = torch.empty(blocks, dtype=torch.int32)
    launch((blocks,), kernels.forever_kernel, out)
    expected = []
    for i in range(blocks):
        step, total = 1, 1
        while total <= i * 3:
            step += 2
            total += step
        expected.append(total * 100 + step)
    assert out.tolist() == expected


def test_tiles_and_scalars_are_carried(launch):
    blocks = 11
    x, y, out = rows(1), rows(1) + 1, torch.empty(blocks * N, dtype=torch.int32)
    launch((blocks,), kernels.carried_kernel, x, y, out, N)
    expected = []
    for i in range(blocks):
        first, second, scalar = x, y, 1
        for step in range(i):
            first, second = second, first + second
            if step % 2 == 1:
                scalar = scalar * 2 + i
        expected.append((first + scalar).tolist())
    expect(out, expected)


def test_lists_of_arrays(launch):
    blocks = 9
    arrays = [torch.arange(length, dtype=torch.float32) + length for length in (8, 3, 1, 6)]
    out = torch.empty(blocks * N)
    launch((blocks,), kernels.chosen_array_kernel, arrays, out, N)
    padded = [torch.nn.functional.pad(array, (0, N - len(array))) for array in arrays]
    expected = [sum(padded[: i % 4 + 1], torch.zeros(N)) + len(arrays[i % 4]) for i in range(blocks)]
    assert torch.equal(out, torch.cat(expected))


def test_tuples_constants_and_globals(launch):
    blocks = 6
    x, y, out = rows(blocks), rows(blocks) * 2 + 1, torch.empty(blocks * N, dtype=torch.int32)
    launch((blocks,), kernels.tuple_kernel, (x, y), out, 5, N)
    assert torch.equal(out, x * 5 + y * kernels.SCALE)


def test_slices_that_differ_by_block(launch):
    blocks = 10
    x = rows(blocks + 2).reshape(-1, N)
    out = torch.empty((blocks, N), dtype=torch.int32)
    launch((blocks,), kernels.sliced_kernel, x, out, N)
    expected = [x[i + 1] if i % 2 == 0 else x[i] + x[i + 1] for i in range(blocks)]
    assert torch.equal(out, torch.stack(expected))


def test_what_is_decided_at_compile_time(launch):
    blocks, many = 4, 5
    x, out = rows(blocks), torch.empty(blocks * N, dtype=torch.int32)
    launch((blocks,), kernels.static_kernel, x, out, many, N)
    expected = x
    for k in range(many):
        expected = expected + k if k % 2 == 0 else expected * 2
    assert torch.equal(out, expected)


@pytest.mark.parametrize("grid", [(7,), (3, 5), (4, 3, 2), (1, 1, 6)], ids=str)
def test_grids_of_one_to_three_axes(launch, grid):
    sizes = (*grid, 1, 1)[:3]
    out = torch.empty(sizes[::-1], dtype=torch.int32)
    launch(grid, kernels.grid_kernel, out)
    for z in range(sizes[2]):
        for y in range(sizes[1]):
            for x in range(sizes[0]):
                total = sum(step * (z + 1) for step in range(x + 2 * y + 3 * z))
                assert out[z, y, x] == total * 1000 + sizes[0] * 100 + sizes[1] * 10 + sizes[2]


@pytest.mark.parametrize("limit", [-3, 0, 1, 4, 100])
def test_a_loop_that_some_blocks_never_enter(launch, limit):
    blocks = 6
    x, out = rows(100), torch.empty(blocks * N, dtype=torch.int32)
    launch((blocks,), kernels.some_enter_kernel, x, out, limit, N)
    table = torch.cat([torch.full((1, N), -1, dtype=torch.int32), x.reshape(-1, N)])
    expect(out, [table[: max(0, limit - i) + 1].max(dim=0).values.tolist() for i in range(blocks)])


@pytest.mark.parametrize("step", [0, -1, 1, 3])
def test_steps_that_are_known_when_it_runs(launch, step):
    blocks = 5
    out = torch.zeros(blocks, dtype=torch.int32)
    if step > 0:
        launch((blocks,), kernels.stepping_kernel, out, step)
        assert out.tolist() == [sum(range(0, 10 + i, step)) for i in range(blocks)]
        return
    with pytest.raises(
        KernelFault, match=rf"stepping_kernel in block \(.*\): steps by {step}: .*\n.*small_kernels.py:"
    ) as found:
        launch((blocks,), kernels.stepping_kernel, out, step)
    assert found.value.location is not None
    assert found.value.block is not None


@pytest.mark.parametrize(
    ("kernel", "bits"),
    [(kernels.short_counting_kernel, 32), (kernels.counting_kernel, 64)],
    ids=["int32", "int64"],
)
def test_a_loop_up_to_the_last_number_ends(launch, kernel, bits):
    blocks, last = 5, 2 ** (bits - 1) - 1
    for lower, upper, step in ((last - 50, last, 30), (last - 4, last, last), (-last - 1, last, last)):
        out = torch.zeros(blocks, dtype=torch.int32)
        launch((blocks,), kernel, out, lower, upper, step)
        first = range(blocks) if bits == 32 else [0] * blocks
        assert out.tolist() == [len(range(lower + i, upper, step)) for i in first]


def test_an_empty_grid_runs_nothing(launch):
    out = torch.full((4,), 5, dtype=torch.int32)
    launch((0,), kernels.while_kernel, out)
    assert out.tolist() == [5] * 4


@pytest.mark.slow
@pytest.mark.parametrize("elements", [1, 20, 2**20])
def test_many_blocks_in_batches_of_any_size(monkeypatch, elements):
    blocks = 3000
    monkeypatch.setattr(machine, "BATCH_ELEMENTS", elements * N if elements > 1 else 300)
    out = torch.empty(blocks, dtype=torch.int32)
    with interpret("sm_90"):
        ct.launch(0, (blocks,), kernels.while_kernel, (out,))
    assert out[[0, 26, 2999]].tolist() == [0, 111, 48]


def test_values_are_dropped_after_their_last_use(launch, monkeypatch):
    most, run_op = 0, machine.Machine._run_op

    def counting(self, op, frame):
        nonlocal most
        run_op(self, op, frame)
        constants = {id(tile) for tile in self.constants.values()}
        most = max(most, sum(id(tile) not in constants for tile in frame.values.values()))

    monkeypatch.setattr(machine.Machine, "_run_op", counting)
    blocks, many = 9, 60
    x, out = rows(blocks), torch.full((blocks * N,), -7, dtype=torch.int32)
    launch((blocks,), kernels.unrolled_kernel, x, out, many, N)
    assert 2 <= most < 90
    expected = []
    for i, first in enumerate(x.reshape(-1, N)):
        tile = first
        for k in range(many):
            tile = tile * 3 + k
        for step in range(i if i % 2 == 0 else 0):
            tile = tile - first * step
        for k in range(many):
            tile = tile * 3 + k
        expected.append([-7] * N if i % 4 == 2 else tile.tolist())
    expect(out, expected)


@pytest.mark.parametrize(
    ("bound", "most", "message"),
    [
        ("MAX_ITERATIONS", 50, "after 50 iterations"),
        ("MAX_SECONDS", 0.2, r"after \d{4,} iterations, in 0.2 s"),
    ],
)
def test_a_loop_that_circles_is_found_by_its_iterations_or_time(monkeypatch, bound, most, message):
    monkeypatch.setattr(machine, bound, most)
    expected = (
        rf"^circling_kernel in block \(0, 0, 0\): a loop has not ended {message}.*\n.*small_kernels.py:\d+"
    )
    with interpret("sm_90"), pytest.raises(KernelFault, match=expected):
        ct.launch(0, (1,), kernels.circling_kernel, (torch.zeros(1, dtype=torch.int32),))
