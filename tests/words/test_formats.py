import math

import pytest
import torch

from pytest_cutile.words.formats import BY_TILE_IR, FORMATS, FloatFormat

TORCH_HAS = [target for target in BY_TILE_IR.values() if hasattr(torch, target.name)]


@pytest.mark.parametrize("target", TORCH_HAS, ids=lambda target: target.name)
def test_formats_are_those_of_torch(target: FloatFormat):
    dtype = getattr(torch, target.name)
    info = torch.finfo(dtype)
    assert (info.bits, info.max) == (target.bits, target.max_finite)
    assert math.ldexp(1.0, 1 - target.precision) == info.eps
    assert math.ldexp(1.0, target.min_exponent) == info.smallest_normal
    infinite = torch.tensor(math.inf).to(dtype).double()
    assert bool(infinite.isinf()) == target.has_infinity


def test_names_are_of_one_format_each():
    named = [{target.name, target.short_name, *target.aliases} for target in BY_TILE_IR.values()]
    assert sum(map(len, named)) == len(set().union(*named))
    assert set(FORMATS) | {"float8_e8m0fnu", "float4_e2m1fn"} == {one.name for one in BY_TILE_IR.values()}
