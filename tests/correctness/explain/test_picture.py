"""Pictures and maps of where errors sit."""

import math

import pytest
import torch

from pytest_cutile.correctness.compare.elements import _levels
from pytest_cutile.correctness.explain.places import Picture, map_errors, map_shares

PICTURE = Picture(
    title="output[<0>, :, :]",
    shape=(3, 10),
    cell=(1, 2),
    values=((0.0, 0.05, 0.3, 0.7, 1.0), (0.0, 0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0, 1.0)),
)


def test_shades():
    assert PICTURE.as_text() == ["| .-*#|", "|     |", "|### #|"]
    assert PICTURE.caption == "output[<0>, :, :], 3 x 10, a character for 1 x 2"


def test_a_map_has_the_largest_error_of_each_cell():
    levels = torch.zeros(3, 4, 130, dtype=torch.uint8)
    levels[0, 0, 0] = 10  # one element: another matrix has more
    levels[2, 1, 0], levels[2, 1, 2], levels[2, 1, 129] = 3, 4, 9
    errors = map_errors(levels, "output", unit="times the bound")
    assert errors.matrix == "output[2, :, :], with most errors"
    assert (errors.shape, errors.cell) == ((4, 130), (1, 3))
    assert errors.rows == ("." * 44, f"3{'.' * 42}8", "." * 44, "." * 44)
    assert [errors.scale[int(digit)] for digit in "38"] == ["30", "10000"]


@pytest.mark.parametrize(
    ("error", "level"),
    [(1.01, 1), (3.1, 1), (3.2, 2), (9.9, 2), (10.1, 3), (1e4, 9), (1e30, 9), (math.inf, 10)],
)
def test_levels_of_errors(error, level):
    assert int(_levels(torch.tensor([error], dtype=torch.float64))) == level


def test_a_map_of_shares():
    wrong = torch.tensor([[0, 1, 1], [0, 0, 1]], dtype=torch.bool).repeat_interleave(64, 0)
    wrong[::2, 0] = True
    errors = map_shares(wrong, "output", unit="of the elements")
    assert errors.cell == (2, 1)
    assert {*errors.rows} == {"599", "5.9"}


def test_no_map_has_more_than_64_cells_a_side():
    errors = map_errors(torch.ones(1000, 1, 65, 4097, dtype=torch.uint8)[:2], "x", unit="")
    assert (len(errors.rows), {*map(len, errors.rows)}) == (33, {64})
