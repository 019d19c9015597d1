"""What is loaded and stored where, against indexing by hand."""

from __future__ import annotations

import math

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.interpreter import KernelFault, Options, interpret
from tests.tile.interpreter import kernels_access as kernels

ROWS, COLUMNS = 4, 8


def matrix(rows: int = 10, columns: int = 13) -> torch.Tensor:
    return torch.arange(1.0, rows * columns + 1).reshape(rows, columns)


def stream() -> torch.cuda.Stream:
    return torch.cuda.current_stream()


@pytest.mark.parametrize(
    ("mode", "value"),
    [("ZERO", 0.0), ("NEG_ZERO", -0.0), ("NAN", math.nan), ("POS_INF", math.inf), ("NEG_INF", -math.inf)],
)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
def test_padding_is_what_is_beyond_the_array(mode: str, value: float, layout: str) -> None:
    x = matrix()
    with interpret("sm_90"):
        if layout == "transposed":
            x = x.t().contiguous().cuda().t()
        elif layout == "sliced":
            x = torch.cat([x, x], dim=1).cuda()[:, :13]
        else:
            x = x.cuda()
        out = torch.zeros(12, 16, device="cuda")
        ct.launch(
            stream(), (3, 2), kernels.load_padded(getattr(ct.PaddingMode, mode)), (x, out, ROWS, COLUMNS)
        )
    expected = torch.full((12, 16), value)
    expected[:10, :13] = matrix()
    assert torch.equal(out.cpu().view(torch.int32), expected.view(torch.int32))


def test_undetermined_padding_is_nothing_to_rely_on() -> None:
    with interpret("sm_90"):
        out = torch.zeros(12, 16, device="cuda")
        kernel = kernels.load_padded(ct.PaddingMode.UNDETERMINED)
        ct.launch(stream(), (3, 2), kernel, (matrix().cuda(), out[:10, :13], ROWS, COLUMNS))
        assert torch.equal(out[:10, :13].cpu(), matrix())
        with pytest.raises(
            KernelFault, match=r"stores into out\[10, 0\] what depends on undetermined padding"
        ):
            ct.launch(stream(), (3, 2), kernel, (matrix().cuda(), out, ROWS, COLUMNS))


def test_undetermined_padding_may_be_zero_as_it_often_is() -> None:
    with interpret("sm_90", Options(poison_padding=False)):
        out = torch.ones(12, 16, device="cuda")
        kernel = kernels.load_padded(ct.PaddingMode.UNDETERMINED)
        ct.launch(stream(), (3, 2), kernel, (matrix().cuda(), out, ROWS, COLUMNS))
    assert out.sum().item() == matrix().sum().item()


def test_a_partial_tile_is_stored_up_to_the_end_of_the_array() -> None:
    with interpret("sm_90"):
        whole = torch.zeros(12, 16, device="cuda")
        ct.launch(
            stream(), (3, 2), kernels.store_kernel, (matrix(12, 16).cuda(), whole[:10, :13], ROWS, COLUMNS)
        )
    expected = torch.zeros(12, 16)
    expected[:10, :13] = matrix(12, 16)[:10, :13]
    assert torch.equal(whole.cpu(), expected)


def test_axes_may_run_in_another_order() -> None:
    x = matrix(16, 10)
    with interpret("sm_90"):
        out = torch.zeros(12, 16, device="cuda")
        ct.launch(stream(), (3, 2), kernels.transposed_load_kernel, (x.cuda(), out, ROWS, COLUMNS))
    expected = torch.zeros(12, 16)
    expected[:10] = x.t()
    assert torch.equal(out.cpu(), expected)


def indices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(-2, 12, (64,), generator=generator, dtype=torch.int32)
    columns = torch.randint(-2, 15, (64,), generator=generator, dtype=torch.int32)
    return rows, columns, torch.rand(64, generator=generator) < 0.7


def test_a_gather_leaves_out_what_is_masked_or_out_of_bounds() -> None:
    rows, columns, mask = indices()
    with interpret("sm_90"):
        out = torch.zeros(64, device="cuda")
        args = (matrix().cuda(), rows.cuda(), columns.cuda(), mask.cuda(), out, 16)
        ct.launch(stream(), (4,), kernels.gather_kernel, args)
    expected = [
        matrix()[i, j].item() if pick and 0 <= i < 10 and 0 <= j < 13 else 7.0
        for i, j, pick in zip(rows.tolist(), columns.tolist(), mask.tolist(), strict=True)
    ]
    assert out.tolist() == expected
    assert 7.0 in expected


def test_a_scatter_leaves_out_what_is_masked_or_out_of_bounds() -> None:
    rows, columns, mask = indices()
    places: dict[tuple[int, int], int] = {}
    for at, place in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        places.setdefault(place, at)  # each place once: two blocks must not write one
    once = torch.zeros(64, dtype=torch.bool)
    once[list(places.values())] = True
    mask &= once
    values = torch.arange(1.0, 65.0)
    expected = torch.zeros(10, 13)
    for i, j, pick, value in zip(
        rows.tolist(), columns.tolist(), mask.tolist(), values.tolist(), strict=True
    ):
        if pick and 0 <= i < 10 and 0 <= j < 13:
            expected[i, j] = value
    with interpret("sm_90"):
        x = torch.zeros(10, 13, device="cuda")
        args = (x, rows.cuda(), columns.cuda(), mask.cuda(), values.cuda(), 16)
        ct.launch(stream(), (4,), kernels.scatter_kernel, args)
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("step", [1, 3, 8, 11])
def test_tiles_may_overlap_or_leave_gaps(step: int) -> None:
    x = torch.arange(1.0, 31.0)
    blocks = -(-len(x) // step)
    with interpret("sm_90"):
        out = torch.zeros(blocks, 8, device="cuda")
        ct.launch(stream(), (blocks,), kernels.windows_kernel, (x.cuda(), out, 8, step))
    padded = torch.cat([x, torch.full((40,), -math.inf)])
    assert torch.equal(out.cpu(), torch.stack([padded[at * step : at * step + 8] for at in range(blocks)]))


def test_tiles_of_bool() -> None:
    x = torch.tensor([True, True, False, False] * 4)
    y = torch.tensor([True, False] * 8)
    with interpret("sm_90"):
        out = torch.zeros(16, dtype=torch.bool, device="cuda")
        ct.launch(stream(), (2,), kernels.bool_kernel, (x.cuda(), y.cuda(), out, 8))
    expected = [(b if a else True) != (a and b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert out.tolist() == expected


def test_blocks_print_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    with interpret("sm_90"):
        ct.launch(stream(), (2,), kernels.print_kernel, (torch.tensor([1.0, -2.5, 100.125, 4.0]).cuda(), 2))
    assert capsys.readouterr().out == (
        "block 0: [ 1.00, -2.50]|\nagain: -1.500000;\nblock 1: [100.12,  4.00]|\nagain: 104.125000;\n"
    )


def test_printf_writes_what_c_writes(capsys: pytest.CaptureFixture[str]) -> None:
    with interpret("sm_90"):
        ct.launch(stream(), (1,), kernels.hexadecimal_kernel, ())
    # As printed by glibc.
    assert capsys.readouterr().out == (
        "ff 010 +3 -0042 7    | 3000000000 1099511627776 %\n1.234500e+03 1E-05 0x1.8p-1 0x1.4p+0\n"
    )


def test_an_assertion_names_its_message_block_and_line() -> None:
    x = torch.ones(3 * 8)
    x[17] = 0
    with interpret("sm_90"), pytest.raises(KernelFault, match="all must be positive") as caught:
        ct.launch(stream(), (3,), kernels.assert_kernel, (x.cuda(), 8))
    assert (caught.value.kind, caught.value.block) == ("assertion", (2, 0, 0))
    assert caught.value.location is not None
    assert caught.value.location.file == kernels.__file__
    assert "ct.assert_(tile > 0" in str(caught.value)
