from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import softmax
from pytest_cutile.interpreter import Options, Run, interpret
from pytest_cutile.tile.interpreter.formatting import show_tile
from tests.pages import ROOT, files_of
from tests.tile.interpreter import faulty_kernels as kernels
from tests.tile.interpreter.test_faults import N, launch, line_of, vector

FILE = "interpreter/faulty_kernels.py"


def run(options: Options, grid: int | tuple[int, ...], kernel: Any, *arguments: Any) -> Run:
    with interpret("sm_90", options) as interpreter:
        launch(grid, kernel, *arguments)
    return interpreter


def matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 12), torch.randn(12, 8), torch.zeros(8, 8, dtype=torch.float16)


# -- values at a line ---------------------------------------------------------------------------------


def test_the_values_at_a_line_are_those_of_the_block_by_iteration() -> None:
    x, y, z = matrices()
    line = line_of(kernels.sum_products, "# watched")
    options = Options(watch=(f"{FILE}:{line}",), watch_blocks=((1, 0, 0), (0, 1, 0), (9, 9, 9)))
    watched = run(options, (2, 2), kernels.sum_products, x, y, z, 4).watched
    products = [value for value in watched.values if value.op == "mmaf"]
    assert [(value.block, value.iterations) for value in products] == [
        (block, (k,)) for k in range(3) for block in ((1, 0, 0), (0, 1, 0))
    ]
    for value in products:
        (i, j, _), (k,) = value.block, value.iterations
        expected = x[4 * i : 4 * i + 4, : 4 * k + 4] @ y[: 4 * k + 4, 4 * j : 4 * j + 4]
        torch.testing.assert_close(value.tile, expected)
    text = str(watched)
    assert "sum_products: acc = ct.mma(a, b, acc)  # watched" in text
    assert f"mma at {kernels.__file__}:{line}:15: tile<4x4xf32> in block (1, 0, 0), iteration 2" in text
    assert f"[{products[0].tile[0, 0]:.6g}, {products[0].tile[0, 1]:.6g}, " in text


def test_one_block_alone_is_watched_by_default() -> None:
    x, y, z = matrices()
    line = line_of(kernels.sum_products, "# watched")
    options = Options(watch=(f"faulty_kernels.py:{line}",), only_block=(1, 1, 0))
    watched = run(options, (2, 2), kernels.sum_products, x, y, z, 4).watched
    assert {value.block for value in watched.values} == {(1, 1, 0)}
    assert z[:4].abs().sum() == 0


def test_what_a_watched_line_calls_is_recorded_as_well() -> None:
    line = line_of(kernels.gather_in_helper, "# caller")
    watched = run(
        Options(watch=(f"{FILE}:{line}",)), 1, kernels.gather_in_helper, vector(N), vector(N), 0, N
    ).watched
    called = [value for value in watched.values if value.op == "load_ptr_tko"]
    assert [value.location.line for value in called] == [
        line_of(kernels._take, "# fault of gather_in_helper")
    ]
    assert torch.equal(called[0].tile, vector(N))


def test_a_watched_line_without_operations_says_which_lines_have_some() -> None:
    line = line_of(kernels.copy, "def copy")
    watched = run(Options(watch=(f"{FILE}:{line - 1}",)), 4, kernels.copy, vector(), vector(), N).watched
    assert not watched.values
    assert str(watched).startswith(
        f"no operation ran on {FILE}:{line - 1} in block (0, 0, 0); there are some on lines "
    )
    assert str(watched).endswith(f" and {line + 2}")
    with pytest.raises(ValueError, match="no line of source"), interpret("sm_90", Options(watch=("x",))):
        pass
    with interpret("sm_90") as interpreter, pytest.raises(ValueError, match="no line is watched"):
        _ = interpreter.watched


def test_watching_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cutile.tile.interpreter.watch.MAX_VALUES", 2)
    x, y, z = matrices()
    line = line_of(kernels.sum_products, "# watched")
    watched = run(Options(watch=(f"{FILE}:{line}",)), (2, 2), kernels.sum_products, x, y, z, 4).watched
    assert (len(watched.values), watched.dropped) == (2, 1)
    assert str(watched).endswith("... and 1 more, which were not kept")


def test_tiles_as_text() -> None:
    assert show_tile(torch.tensor(3)) == "  3"
    assert show_tile(torch.tensor([[1.0, math.nan]])) == "  [1, nan]\n  from 1 to 1, 1 NaN"
    assert show_tile(torch.tensor([True, False])) == "  [True, False]\n  1 of 2 true"
    large = show_tile(torch.arange(400, dtype=torch.int16).reshape(20, 20))
    assert large.splitlines()[0] == "  [0, 1, 2, ..., 17, 18, 19]"
    assert large.splitlines()[4] == "  ..."
    assert large.splitlines()[-1] == "  from 0 to 399"
    assert show_tile(torch.ones(2).to(torch.float8_e4m3fn)).splitlines()[0] == "  [1, 1]"


# -- NaN and Inf --------------------------------------------------------------------------------------

FIND = Options(find_nonfinite=True)


def test_the_operation_that_makes_the_first_nan_is_named() -> None:
    x = vector()
    x[N : 2 * N] = -math.inf  # block 1: -inf - -inf
    nonfinite = run(FIND, 4, kernels.take_exp2, x, vector(), N).nonfinite
    first = nonfinite.first("NaN")
    assert first is not None
    assert (first.kind, first.op, first.block, first.index) == ("computed", "subf", (1, 0, 0), (0,))
    assert first.operands[0] == ("lhs", "-inf")
    assert first.location is not None
    assert first.location.line == line_of(kernels.take_exp2, "# nan")
    assert "subtraction makes NaN of lhs = -inf" in str(first)
    assert "shifted = tile - largest  # nan" in str(first)
    assert nonfinite.first("Inf") is None  # it is not stored
    assert run(FIND, 4, kernels.load_padded, vector(50) / 0, vector(), 2, N).nonfinite.first("Inf")
    [infinite] = nonfinite.origins("Inf")
    assert (infinite.kind, infinite.element, infinite.block) == ("loaded", "x[16]", (1, 0, 0))
    assert "loads Inf from x[16]" in str(infinite)


def test_an_overflow_and_a_division_by_zero_make_the_first_inf() -> None:
    x, y, z = vector(), vector() + 1, vector().half()
    y[37] = 0
    nonfinite = run(FIND, 4, kernels.divide, x, y, vector(), N).nonfinite
    first = nonfinite.first("Inf")
    assert first is not None
    assert (first.op, first.block, first.index) == ("divf", (2, 0, 0), (5,))
    assert dict(first.operands) == {"lhs": "37", "rhs": "0"}
    assert nonfinite.first("NaN") is None
    first = run(FIND, 4, kernels.copy, vector() * 2000, z, N).nonfinite.first("Inf")
    assert first is not None
    assert first.operands == (("source", "66000"),)
    assert (first.op, first.block, first.index) == ("ftof", (2, 0, 0), (1,))


def test_a_nan_among_the_inputs_is_loaded_not_made() -> None:
    x, y, z = matrices()
    x[6, 9] = math.nan
    nonfinite = run(FIND, (2, 2), kernels.sum_products, x, y, z, 4).nonfinite
    assert [(origin.kind, origin.element) for origin in nonfinite.origins("NaN")] == [("loaded", "x[6, 9]")]


def test_minus_infinity_as_padding_or_initial_value_is_no_origin() -> None:
    for shape in ((5, 300), (3, 40000), (37, 256)):  # rows in one tile, and in chunks
        with interpret("sm_90", FIND) as interpreter:
            softmax.softmax(torch.randn(shape, device="cuda"))
        assert interpreter.nonfinite.first("NaN") is None
        assert interpreter.nonfinite.first("Inf") is None


def test_a_nan_that_is_never_stored_is_no_origin_of_one_that_is() -> None:
    x, y = torch.ones(37, 256), torch.empty(37, 256)
    x[35, 3] = math.inf  # in the last block, whose last rows are padding
    with interpret("sm_90", FIND) as interpreter:
        y = softmax.softmax(x)
    assert y[35].isnan().all()
    first = interpreter.nonfinite.first("NaN")
    assert first is not None
    assert (first.op, first.block, first.index) == ("subf", (2, 0, 0), (3, 3))
    assert first.operands == (("lhs", "inf"), ("rhs", "inf"))


def test_a_nan_in_padding_that_a_sum_spreads_is_an_origin_with_the_inf_it_is_of() -> None:
    x, y = torch.randn(3, 100), torch.empty(3, 100)
    first = run(FIND, 3, kernels.centre, x, y, 128).nonfinite.first("NaN")
    assert y.isnan().all()
    assert first is not None
    assert (first.kind, first.op, first.block, first.index) == ("computed", "subf", (0, 0, 0), (0, 100))
    assert first.operands == (("lhs", "-inf"), ("rhs", "-inf"))
    line = line_of(kernels.centre, "# padded")
    assert first.infinity.startswith("the padding of the load at ")
    assert f"faulty_kernels.py:{line}:" in first.infinity
    assert f"\n  its Inf comes from {first.infinity}" in str(first)


def test_the_inf_that_a_nan_is_of_may_be_an_input() -> None:
    x = vector()
    x[N + 3] = math.inf
    first = run(FIND, 4, kernels.take_exp2, x, vector(), N).nonfinite.first("NaN")
    assert first is not None
    assert first.infinity.startswith("x[19], loaded at ")


def test_the_inf_that_a_nan_is_of_is_followed_only_through_its_own_elements() -> None:
    x, y = torch.randn(3, 100), torch.empty(3, 100)
    x[1, 7] = 100.0
    first = run(FIND, 3, kernels.share, x, y, 128).nonfinite.first("NaN")
    assert y[1].isnan().any()
    assert first is not None
    # The padding has another Inf, of which exp makes 0.
    assert first.infinity.startswith("exp at ")
    assert f"faulty_kernels.py:{line_of(kernels.share, '# too large')}:" in first.infinity


def test_padding_that_is_not_stored_is_no_origin() -> None:
    assert run(FIND, 4, kernels.copy, vector(50), vector(50), N).nonfinite.first("NaN") is None
    x = vector()
    x[7] = math.nan
    first = run(FIND, 4, kernels.sum_tiles, x, vector(4), N).nonfinite.first("NaN")
    assert first is not None
    assert (first.kind, first.element) == ("loaded", "x[7]")


def test_a_number_that_is_passed_may_be_nan() -> None:
    first = run(FIND, 4, kernels.scale, vector(), vector(), math.nan, N).nonfinite.first("NaN")
    assert first is not None
    assert str(first) == "scale: NaN is passed to the kernel as a number"


# -- who wrote an element -----------------------------------------------------------------------------

TRACE = Options(trace_writes=True)


@pytest.mark.parametrize("block", range(4))
def test_an_element_leads_through_branches_and_early_returns(block: int) -> None:
    x, y, out = (torch.arange(32.0) + 100 * number for number in range(3))
    interpreter = run(TRACE, 4, kernels.branching, x, y, out, 8)
    trace = interpreter.trace_element(out, (8 * block + 1,))
    loads = [tile.source for tile in trace.tiles if tile.op == "load_view_tko"]
    assert loads == [f"{'y' if block > 1 else 'x'}[{8 * block + 1}]"]
    assert ("mulf" in [tile.op for tile in trace.tiles]) == (block != 1)


def test_an_element_leads_to_the_last_turn_of_a_while_loop() -> None:
    x, out = torch.arange(16.0), torch.zeros(16)
    trace = run(TRACE, 2, kernels.repeating, x, out, 8).trace_element(out, (9,))
    loop, added, before, *_ = trace.tiles
    assert [loop.op, added.op, added.role] == ["loop", "addf", "last iteration"]
    assert torch.equal(before.tile, x[8:] + 3.0)


def test_an_element_leads_to_its_block_its_line_and_the_tiles_it_came_from() -> None:
    x, y, z = matrices()
    interpreter = run(TRACE, (2, 2), kernels.sum_products, x, y, z, 4)
    trace = interpreter.trace_element(z, (5, 2))
    assert (trace.block, trace.op, trace.element) == ((1, 0, 0), "store_view_tko", "z[5, 2]")
    assert trace.location is not None
    assert trace.location.line == line_of(kernels.sum_products, "# stored")
    stored, scaled, acc, *_ = trace.tiles
    assert [tile.op for tile in (stored, scaled, acc)] == ["ftof", "mulf", "for"]
    assert torch.equal(stored.tile, z[4:8, :4])
    assert stored.position == acc.position == (1, 2)
    product = trace.tiles[3]
    assert (product.role, product.op, product.position) == ("last iteration", "mmaf", (1, 2))
    loads = [tile for tile in trace.tiles if tile.op == "load_view_tko"]
    assert [tile.role for tile in loads] == ["lhs", "rhs"]
    assert torch.equal(loads[0].tile, x[4:8, 8:12])
    assert torch.equal(loads[1].tile, y[8:12, :4])
    torch.testing.assert_close(acc.tile, x[4:8] @ y[:, :4])
    assert f"[1, 2] = {float(z[5, 2]):.6g}" in str(trace)
    assert "sum_products wrote z[5, 2] last in block (1, 0, 0)" in str(trace)
    through_a_view = interpreter.trace_element(z[4:, 1:].t(), (1, 1))
    assert through_a_view.element == "z[5, 2]"


def test_the_last_launch_that_wrote_an_element_is_the_one_that_is_named() -> None:
    with interpret("sm_90", TRACE) as interpreter:
        y = torch.empty(4 * N)
        launch(4, kernels.copy, vector(), y, N)
        launch(2, kernels.average_neighbours, vector(), y, N)
        second, first = (interpreter.trace_element(y, (at,)) for at in (20, 40))
    assert (first.kernel, first.launch, first.block) == ("copy", 0, (2, 0, 0))
    assert first.tiles[0].source == "x[40]"
    assert (second.kernel, second.launch, second.block) == ("average_neighbours", 1, (1, 0, 0))
    assert {tile.source for tile in second.tiles} == {"", "x[19]", "x[21]"}
    assert "loaded from x[19]" in str(second)


def test_an_element_beside_a_tile_that_sticks_out_is_not_taken_for_the_part_that_does() -> None:
    x, y = torch.randn(1, 100), torch.empty(1, 100)
    trace = run(TRACE, 1, kernels.copy_row, x, y, 128).trace_element(y, (0, 0))
    stored = trace.tiles[0]
    assert (stored.position, stored.source) == ((0, 0), "x[0, 0]")
    assert stored.tile[0, 0] == x[0, 0]


def test_softmax_leads_back_to_its_sums() -> None:
    with interpret("sm_90", TRACE) as interpreter:
        x = torch.randn(37, 256, device="cuda")
        y = softmax.softmax(x)
        trace = interpreter.trace_element(y, (20, 100))
    by_op = {tile.op: tile for tile in trace.tiles}
    exponential, inverse = by_op["exp2"], by_op["divf"]
    assert exponential.position == (4, 100)
    assert inverse.position == (4, 0)
    product = exponential.tile[4, 100] * inverse.tile[4, 0]
    torch.testing.assert_close(product, y[20, 100])


def test_blocks_whose_loops_end_sooner_have_their_own_last_iteration() -> None:
    x, y = vector(), torch.zeros(4 * N)
    interpreter = run(TRACE, 4, kernels.sum_tiles_before, x, y, N)
    for block in range(1, 4):
        trace = interpreter.trace_element(y, (block * N + 5,))
        [load] = [tile for tile in trace.tiles if tile.op == "load_view_tko"]
        assert load.source == f"x[{(block - 1) * N + 5}]"
    first = interpreter.trace_element(y, (5,))
    assert [tile.op for tile in first.tiles] == ["for"]


def test_constants_are_shown_in_one_line() -> None:
    y = vector()
    trace = run(TRACE, 4, kernels.add_seven, vector(), y, N).trace_element(y, (20,))
    assert [tile.op for tile in trace.tiles] == ["addf", "load_view_tko", "constant"]
    assert str(trace).splitlines()[-1] == "    rhs = 7"


def test_the_lines_and_blocks_that_wrote_a_tensor_are_listed() -> None:
    with interpret("sm_90", TRACE) as interpreter:
        y, z = torch.zeros(8 * N), torch.zeros(N)
        launch(4, kernels.copy, vector(), y, N)
        launch(1, kernels.add_seven, vector(), y[N : 2 * N], N)
        copied, added = interpreter.writers(y).split("add_seven: ")
        assert copied.startswith("copy: 3 of 4 blocks, (0, 0, 0) to (3, 0, 0), stored into it")
        assert added.startswith("block (0, 0, 0) of 1 stored into it")
        assert f"faulty_kernels.py:{line_of(kernels.add_seven, '# seven')}:" in added
        assert interpreter.writers(y[N : 2 * N].view(4, 4).t()) == f"add_seven: {added}"
        assert interpreter.writers(z) == "no kernel has stored into it"


def test_what_no_kernel_wrote_cannot_be_traced() -> None:
    with interpret("sm_90", TRACE) as interpreter:
        y = torch.zeros(4 * N)
        launch(3, kernels.copy, vector(), y, N)
        for tensor, index, message in (
            (y, (60,), r"no kernel has written element \[60\]"),
            (vector(), (0,), "no kernel has written"),
            (y, (64,), r"there is no element \[64\]"),
            (y, (1, 1), r"there is no element \[1, 1\]"),
        ):
            with pytest.raises(LookupError, match=message):
                interpreter.trace_element(tensor, index)
    with interpret("sm_90") as interpreter, pytest.raises(ValueError, match="writers are not recorded"):
        interpreter.trace_element(y, (0,))


def test_faults_are_the_same_when_writers_are_followed() -> None:
    for options in (TRACE, FIND):
        with interpret("sm_90", options), pytest.raises(Exception, match="timing"):
            launch(4, kernels.store_together, vector(), vector(), 2, N)


# -- by hand ------------------------------------------------------------------------------------------


def test_the_script_of_the_docs_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = "docs/how-to/interpret-without-a-gpu.md"
    file = tmp_path / "invert.py"
    file.write_text(files_of(page)[file.name])
    runpy.run_path(str(file))
    printed = capsys.readouterr().out
    for expected in (
        f"load at {file}:11:9: tile<64xf32> in block (0, 0, 0)",
        "division makes Inf of lhs = 1, rhs = 0 (element [0] of the tile, in block (0, 0, 0))",
        "invert_kernel wrote Y[70] last in block (1, 0, 0)",
        "nothing has written 58 of 250 elements of y, [192] first, [249] last",
    ):
        assert expected in printed
    for name in Options.__dataclass_fields__:
        assert f"| `{name}=" in (ROOT / page).read_text()
