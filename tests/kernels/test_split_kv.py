"""How keys are cut into parts, and how parts are merged."""

import itertools
import math

import pytest

from kernels import _split_kv
from kernels._split_kv import MAX_WAVES, choose_part, merge_parts
from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.compiler import record_launches

torch = pytest.importorskip("torch")


def splits_of(rows, tiles, sms, blocks_per_sm, part_cost=0.01):
    return math.ceil(tiles / choose_part(rows, tiles, sms, blocks_per_sm, part_cost))


@pytest.mark.parametrize(
    ("rows", "tiles", "blocks_per_sm", "splits"),
    [
        (1, 1, 2, 1),
        # One row: as many parts as multiprocessors, or as tiles.
        (1, 256, 1, 128),
        (1, 7, 1, 7),
        # 128 blocks of a tile are hardly faster than 64 blocks of two, alone either way; 173 blocks would
        # have to share, and still 128 beat 86 of three.
        (1, 128, 2, 64),
        (1, 173, 2, 87),
        (1, 256, 2, 128),
        # Llama 3 8B with one sequence: 33 parts fit, and 32 parts are as short. 22 would leave some
        # multiprocessors two blocks and some one.
        (8, 64, 2, 32),
        # Two parts fill the places; more rows than places need none.
        (128, 128, 2, 2),
        (264, 128, 2, 1),
        (5000, 128, 2, 1),
    ],
)
def test_parts_fill_the_multiprocessors(rows, tiles, blocks_per_sm, splits):
    assert splits_of(rows, tiles, 132, blocks_per_sm) == splits


@pytest.mark.parametrize("blocks_per_sm", [1, 3])
def test_no_part_is_empty_and_none_is_needless(blocks_per_sm):
    slots = 132 * blocks_per_sm
    for rows, tiles in itertools.product([1, 3, 8, 100, 132, 133, 1000], [1, 2, 5, 31, 64, 1000]):
        part = choose_part(rows, tiles, 132, blocks_per_sm, 0.01)
        splits = math.ceil(tiles / part)
        assert 1 <= part <= tiles
        assert (splits - 1) * part < tiles <= splits * part
        assert splits == 1 or rows * splits <= MAX_WAVES * slots
        # Never longer than without any.
        assert math.ceil(rows * splits / slots) * part <= math.ceil(rows / slots) * tiles


def test_parts_that_cost_more_are_fewer():
    splits = [splits_of(1, 256, 132, 1, cost) for cost in (0.0, 0.01, 0.1, 1.0, 1e9)]
    assert splits == sorted(splits, reverse=True)
    assert splits[0] == 128
    assert splits[-1] == 1


# All at once, and in two and three rounds.
@pytest.mark.parametrize("splits", [1, 2, 5, 32, 33, 128, 129, 300])
@pytest.mark.parametrize(("d", "dtype"), [(64, torch.float16), (128, torch.bfloat16)])
@pytest.mark.parametrize("many_rows", [7, 6])  # 1 of 6 rows a block, and 2
def test_merge_weighs_parts_by_their_sums(monkeypatch, splits, d, dtype, many_rows):
    monkeypatch.setattr(_split_kv, "MANY_ROWS", many_rows)
    torch.manual_seed(0)
    parts = torch.randn(2, 3, splits, d)
    lse = torch.randn(2, 3, splits) * 5
    o = torch.empty(2, 3, d, dtype=dtype)
    with interpret("sm_90"):
        merge_parts(parts, lse, o, dependent=True)
    expected = (torch.softmax(lse.double() * math.log(2), -1)[..., None] * parts.double()).sum(2)
    torch.testing.assert_close(o.double(), expected, atol=1e-2, rtol=2**-7)


def test_merge_leaves_out_parts_that_saw_no_key():
    parts, lse = torch.randn(1, 4, 64), torch.tensor([[0.5, -math.inf, 2.0, -math.inf]])
    o = torch.empty(1, 64)
    with interpret("sm_90"):
        merge_parts(parts, lse, o, dependent=False)
    weights = torch.softmax(lse * math.log(2), -1)
    torch.testing.assert_close(o, weights @ parts[0])


@pytest.mark.parametrize(
    ("rows", "splits", "d", "grid", "tiles"),
    [
        # Few rows: one each, and few columns of many parts.
        (16, 2, 512, (16, 8), (1, 2, 64)),
        (16, 64, 128, (16, 4), (1, 64, 32)),
        (16, 256, 512, (16, 16), (1, 128, 32)),
        (128, 4, 256, (128, 1), (1, 4, 256)),
        # Many rows, and a number that four does not divide.
        (1024, 2, 512, (256, 4), (4, 2, 128)),
        (1024, 32, 512, (256, 16), (4, 32, 32)),
        (514, 2, 128, (257, 1), (2, 2, 128)),
    ],
)
def test_a_block_of_the_merge_has_as_much_as_was_measured(rows, splits, d, grid, tiles):
    def launch():
        parts, o = torch.empty(rows, splits, d, device="cuda"), torch.empty(rows, d, device="cuda")
        merge_parts(parts, torch.empty(rows, splits, device="cuda"), o, dependent=True)

    (launched,) = record_launches(launch, "sm_90")
    assert launched.grid[:2] == grid
    assert launched.args[4:7] == tiles
