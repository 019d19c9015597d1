import itertools

import pytest
import torch

from pytest_cutile.tile.tensors.dtypes import DTYPE_NAMES, resolve_dtype
from pytest_cutile.tile.tensors.make_tensor import layout_of, make_tensor
from pytest_cutile.tile.tensors.seeded import seed_from
from pytest_cutile.words.formats import FORMATS
from pytest_cutile.words.input_names import DISTRIBUTIONS, LAYOUTS


def make(shape, dtype, **options):
    return make_tensor(shape, dtype, **{"device": "cpu", "seed": 7, **options})


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("dist", ["normal", "uniform", "integers", "zeros", "ones"])
def test_every_dtype_and_distribution(dtype, dist):
    x = make((33, 20), dtype, dist=dist)
    assert x.dtype == getattr(torch, dtype)
    assert x.shape == (33, 20)
    assert x.is_contiguous()
    values = x.double()
    assert bool(values.isfinite().all())
    if dist in ("zeros", "ones"):
        assert bool((values == (dist == "ones")).all())
    else:
        assert values.std() > 0.3
    again = make((33, 20), dtype, dist=dist)
    assert torch.equal(again.double(), values)


FLOATS = [name for name in DTYPE_NAMES if "float" in name]


@pytest.mark.parametrize("dist", DISTRIBUTIONS)
def test_every_distribution_exists_for_every_dtype_and_shape(dist):
    shapes = [(), (0,), (1,), (3, 0), (1, 1), (5, 3, 2)]
    for dtype, shape in itertools.product(DTYPE_NAMES, shapes):
        x = make(shape, dtype, dist=dist)
        assert (tuple(x.shape), x.dtype) == (shape, getattr(torch, dtype))
        same = make(shape, dtype, dist=dist).double()
        assert torch.equal(x.double().nan_to_num(), same.nan_to_num())


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_that_reveal(dtype):
    fmt = FORMATS[dtype]
    normal = make((64, 50), dtype).double()
    outliers = make((64, 50), dtype, dist="outliers").double()
    changed = outliers != normal
    assert 8 <= int(changed.sum()) <= 16
    ratio = (outliers[changed] / normal[changed]).median()
    assert 50 < ratio < 70
    assert 0.7 < make((64, 50), dtype, dist="small").double().std() / (2 * fmt.unit_roundoff) < 1.3
    tiny = make((64, 50), dtype, dist="tiny").double().abs()
    assert 0.5 < (tiny < 2.0**fmt.min_exponent).double().mean() < 0.85
    assert tiny.max() < 2.0 ** (fmt.min_exponent + 3)
    assert tiny[tiny > 0].min() >= 2.0 ** (fmt.min_exponent + 1 - fmt.precision)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_offset_is_above_zero_and_negative_below_where_the_dtype_can_be(dtype, seed):
    above, below = (make((64, 50), dtype, dist=dist, seed=seed).double() for dist in ("offset", "negative"))
    signed = dtype in FLOATS or dtype.startswith("int")
    assert above.min() >= 1
    assert (below.max() <= -1) if signed else (below.min() >= 1)
    if dtype in FLOATS:
        assert (above.mean().round(), below.mean().round()) == (8, -8)


def test_products_of_an_offset_of_integers_do_not_wrap_to_zero():
    assert bool(make((64, 200), "int32", dist="offset").prod(1).int().all())
    assert bool(make((64, 200), "int32", dist="negative").prod(1).int().all())


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (0, 6, {1, 3, 5}, {1, 3, 5}),
        (-5, 1, {-5, -3, -1}, {-5, -3, -1}),
        (0, 1, {0}, {0}),
        (-4, 3, {1}, {-3, -1}),
    ],
)
def test_an_offset_of_integers_stays_in_the_range_that_is_asked_for(low, high, above, below):
    for dist, expected in (("offset", above), ("negative", below)):
        x = make((64, 50), "int32", dist=dist, low=low, high=high)
        assert low <= int(x.min())
        assert int(x.max()) < high
        assert {*x.flatten().tolist()} >= expected


def test_one_hot_is_one_in_each_row():
    x = make((7, 40, 30), "float16", dist="one_hot")
    assert bool(((x == 1).sum(-1) == 1).all())
    assert int((x == 0).sum()) == 7 * 40 * 29
    assert x.float().argmax(-1).unique().numel() > 20


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_element_is_nan_and_two_in_different_rows_are_infinite(dtype):
    x = make((9, 5), dtype, dist="nan").double()
    assert int(x.isnan().sum()) == 1
    x = make((9, 5), dtype, dist="inf").double()
    if dtype == "float8_e4m3fn":  # it has no Inf
        assert (x.max(), x.min()) == (448, -448)
    else:
        rows = x.isinf().nonzero()[:, 0]
        assert int((x == torch.inf).sum()) == int((x == -torch.inf).sum()) == 1
        assert rows[0] != rows[1]


def test_an_offset_leaves_room_before_the_first_element_that_is_nan():
    x = make((4, 6), "float16", offset=3)
    assert (x.storage_offset(), x.stride()) == (3, (6, 1))
    assert torch.equal(x, make((4, 6), "float16"))
    before = torch.as_strided(x, (3,), (1,), 0)
    assert bool(before.isnan().all())
    with pytest.raises(ValueError, match="offset is a number of elements"):
        make(3, "float16", offset=-1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(), (7,), (1,), (5, 6), (2, 3, 5, 8), (3, 0), (0, 4), (1, 1)])
def test_layouts_hold_the_same_values(layout, shape):
    strides, offset = layout_of(shape, layout)
    x = make(shape, "float32", strides=strides, offset=offset)
    assert torch.equal(x, make(shape, "float32"))


def test_layouts_are_what_they_are_called():
    assert layout_of((2, 5, 8), "contiguous") == (None, 0)
    assert layout_of((2, 5, 8), "padded") == ((55, 11, 1), 0)
    assert layout_of((2, 5, 7), "padded") == ((45, 9, 1), 0)
    assert layout_of((2, 5, 8), "transposed") == ((40, 1, 5), 0)
    assert layout_of((2, 5, 8), "shifted") == ((40, 8, 1), 1)
    assert layout_of((8,), "padded") == layout_of((8,), "transposed") == ((2,), 0)


def test_another_seed_gives_other_values():
    assert not torch.equal(make(100, "float32"), make(100, "float32", seed=8))


def test_normal_and_uniform_have_the_documented_moments():
    normal = make(100_000, "float32")
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    uniform = make(100_000, "float32", dist="uniform")
    assert uniform.min() >= -1
    assert uniform.max() < 1
    assert abs(uniform.std() - 3**-0.5) < 0.01
    ranged = make(100_000, "float32", dist="uniform", low=2, high=5)
    assert ranged.min() >= 2
    assert ranged.max() < 5


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_integers_are_exact_and_reach_both_ends(dtype):
    x = make(2000, dtype, dist="integers").double()
    assert sorted(x.unique().tolist()) == list(range(-8, 9))


def test_integers_follow_low_and_high():
    assert make(1000, "int32", low=3, high=6).unique().tolist() == [3, 4, 5]
    assert make(1000, "uint8").unique().tolist() == list(range(9))
    assert make(1000, "bool").unique().tolist() == [False, True]


def test_fp8_saturates():
    x = make(1000, "float8_e4m3fn", dist="uniform", low=-1e4, high=1e4).double()
    assert x.min() == -448
    assert x.max() == 448


@pytest.mark.parametrize(
    ("alias", "dtype"),
    [
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
        ("torch.float32", torch.float32),
        ("half", torch.float16),
    ],
)
def test_names_of_dtypes(alias, dtype):
    assert resolve_dtype(alias) == dtype
    assert make(3, alias).dtype == dtype


def test_strides_lay_the_tensor_out_in_a_poisoned_buffer():
    x = make((4, 3), "float16", strides=(1, 8))
    assert x.stride() == (1, 8)
    assert torch.equal(x, make((4, 3), "float16"))
    buffer = x.as_strided((20,), (1,))
    assert buffer.isnan().sum() == 8
    repeated = make((4, 3), "float16", strides=(0, 1))
    assert torch.equal(repeated[0], repeated[3])
    assert repeated.untyped_storage().nbytes() == 6


@pytest.mark.parametrize("strides", [None, (1, 8)])
def test_meta_tensors_have_a_layout_and_no_values(strides):
    x = make_tensor((4, 3), "bf16", device="meta", seed=0, strides=strides)
    assert x.is_meta
    assert x.shape == (4, 3)
    assert x.stride() == (strides or (3, 1))
    assert x.dtype == torch.bfloat16


def test_scalars_empty_and_grad():
    assert make((), "float32").shape == ()
    assert make((0, 4), "float32", strides=(4, 1)).numel() == 0
    assert make(4, "float32", requires_grad=True).requires_grad


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("4", "float32"), {}, TypeError, "shape must be an int or a sequence of ints, got '4'"),
        (((4, 2.0), "float32"), {}, TypeError, "shape must hold ints"),
        (((4, -1), "float32"), {}, ValueError, "must not be negative"),
        ((4, "float33"), {}, ValueError, "'float33' is no dtype of a cuTile array"),
        ((4, torch.complex64), {}, ValueError, "is no dtype of a cuTile array"),
        ((4, 32), {}, TypeError, "dtype must be a torch.dtype or its name"),
        ((4, "float32"), {"dist": "cauchy"}, ValueError, "dist must be one of normal"),
        ((4, "float32"), {"low": 0.0}, ValueError, 'low and high go with dist="uniform"'),
        ((4, "float32"), {"dist": "uniform", "low": 2.0}, ValueError, "low must be below high"),
        ((4, "int32"), {"low": 0.5}, ValueError, "whole numbers"),
        ((4, "uint8"), {"low": -1}, ValueError, "uint8 does not hold every integer"),
        ((4, "float8_e5m2"), {"dist": "integers", "high": 20}, ValueError, "exactly: keep them in [-8, 8]"),
        (((4, 4), "float32"), {"strides": (4,)}, ValueError, "different lengths"),
        (((4, 4), "float32"), {"strides": (2, 1)}, ValueError, "overlap"),
        (((4, 4), "float32"), {"strides": (-4, 1)}, ValueError, "must not be negative"),
        ((4, "int32"), {"requires_grad": True}, ValueError, "requires_grad needs a floating-point dtype"),
    ],
)
def test_errors_name_what_is_wrong(arguments, options, error, message):
    with pytest.raises(error) as caught:
        make(*arguments, **options)
    assert message in str(caught.value)


def test_seeds_are_the_same_in_every_process():
    assert seed_from("tests/test_x.py::test[a]") == 387854461058118373
    assert seed_from("a") != seed_from("b")
    assert 0 <= seed_from("") < 2**63
