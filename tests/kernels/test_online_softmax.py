"""The online softmax, interpreted on the CPU: a tile at a time gives what all at once does."""

import math

import cuda.tile as ct
import pytest

from kernels._online_softmax import add_scores, check_scale, finish_softmax, start_softmax
from kernels._tiles import LOG2_E
from pytest_cutile.interpreter import interpret

torch = pytest.importorskip("torch")

ROWS, KEYS, D, TILE_N = 16, 256, 32, 64
HIDDEN, LATE, EARLY = 3, 4, 5
"""Rows that see no key, none in the first tile, and none behind it."""


@ct.kernel
def attend(S, V, O, LSE, scale_log2, KEY_AXIS: ct.Constant[int], HEADROOM: ct.Constant[float]):  # noqa: E741, N803
    row_max, row_sum, acc = start_softmax(ROWS, D, KEY_AXIS)
    for j in range(KEYS // TILE_N):
        s = ct.load(S, (0, j), (ROWS, TILE_N))
        v = ct.load(V, (j, 0), (TILE_N, D))
        if KEY_AXIS == 0:
            s, v = ct.permute(s, (1, 0)), ct.permute(v, (1, 0))
        p, row_max, row_sum, acc = add_scores(s, row_max, row_sum, acc, scale_log2, KEY_AXIS, HEADROOM)
        acc = ct.mma(p, v, acc) if KEY_AXIS == 1 else ct.mma(v, p, acc)
    o, lse = finish_softmax(row_max, row_sum, acc)
    ct.store(O, (0, 0), o if KEY_AXIS == 1 else ct.permute(o, (1, 0)))
    ct.store(LSE, (0, 0), lse if KEY_AXIS == 1 else ct.permute(lse, (1, 0)))


def run(s, v, scale=0.7, key_axis=1, headroom=0.0):
    o, lse = torch.empty(ROWS, D), torch.empty(ROWS, 1)
    with interpret("sm_90"):
        args = (s, v, o, lse, scale * LOG2_E, key_axis, headroom)
        ct.launch(torch.cuda.current_stream(), (1,), attend, args)
    return o, lse


@pytest.fixture
def operands():
    torch.manual_seed(0)
    s, v = torch.randn(ROWS, KEYS) * 3, torch.randn(KEYS, D)
    s[HIDDEN] = s[LATE, :TILE_N] = s[EARLY, TILE_N:] = -math.inf
    return s, v


@pytest.mark.parametrize("key_axis", [0, 1])
@pytest.mark.parametrize("headroom", [0.0, 8.0])
def test_tiles_give_the_softmax_and_its_logarithm(operands, key_axis, headroom):
    s, v = operands
    o, lse = run(s, v, key_axis=key_axis, headroom=headroom)
    expected = (s.double() * 0.7).softmax(1).nan_to_num() @ v.double()
    torch.testing.assert_close(o.double(), expected, rtol=1e-5, atol=1e-5)
    expected_lse = (s.double() * 0.7).logsumexp(1, keepdim=True) * LOG2_E
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)
    assert lse[HIDDEN] == -math.inf
    assert not o[HIDDEN].any()


def test_parts_of_the_keys_give_the_whole(operands):
    """As the docstring of the module says, with a part that some rows see nothing of."""
    s, v = operands
    first, rest = s.clone(), s.clone()
    first[:, TILE_N:], rest[:, :TILE_N] = -math.inf, -math.inf
    whole, _ = run(s, v)
    parts = [run(first, v), run(rest, v)]
    top = torch.maximum(parts[0][1], parts[1][1])
    weights = [torch.exp2(lse - top) for _, lse in parts]
    merged = sum(w * o for w, (o, _) in zip(weights, parts, strict=True)) / sum(weights)
    seen = [row for row in range(ROWS) if row != HIDDEN]
    torch.testing.assert_close(merged[seen], whole[seen])


# -- range ------------------------------------------------------------------------------------------


def near(size):
    """Return scores that are `size` or `-size`, row by row, in units of base 2, give or take a few."""
    torch.manual_seed(0)
    signs = torch.tensor([1.0, -1.0]).repeat(ROWS // 2)[:, None]
    return size / (0.7 * LOG2_E) * signs + torch.randn(ROWS, KEYS) * 2


@pytest.mark.parametrize("headroom", [0.0, 8.0, 15.0])
@pytest.mark.parametrize("exponent", [11, 16, 20])
def test_weights_are_as_precise_as_the_range_says(exponent, headroom):
    """Of all keys at once, and of two parts, whose lse are rounded."""
    s, v = near(2.0**exponent), torch.randn(KEYS, D)
    error = 2.0 ** (exponent - 23)
    weights = (s.double() * 0.7).softmax(1)
    limit = error * (weights @ v.double().abs()) + 1e-6
    o, lse = run(s, v, headroom=headroom)
    assert bool(((o - weights @ v.double()).abs() <= limit).all())
    expected_lse = (s.double() * 0.7).logsumexp(1, keepdim=True) * LOG2_E
    assert (lse - expected_lse).abs().max() <= error

    half = KEYS // 2
    first, rest = s.clone(), s.clone()
    first[:, half:], rest[:, :half] = -math.inf, -math.inf
    outputs, lses = zip(*(run(part, v, headroom=headroom) for part in (first, rest)), strict=True)
    share = torch.softmax(torch.cat(lses, 1).double() * math.log(2), 1)
    merged = share[:, :1] * outputs[0] + share[:, 1:] * outputs[1]
    assert bool(((merged - weights @ v.double()).abs() <= limit).all())


@pytest.mark.parametrize("scale", [0.1, 1, 1e-37, 1e38, 2.0**-126])
def test_scale_of_a_normal_float32_is_taken(scale):
    scale_log2 = check_scale("any", scale)
    assert scale_log2 == scale * LOG2_E
    assert 2.0**-126 <= torch.tensor(scale_log2, dtype=torch.float32) < math.inf


@pytest.mark.parametrize("scale", [1e-46, 8e-39, 2.4e38, 1e300, 10**400])
def test_scale_that_float32_does_not_hold_is_refused(scale):
    with pytest.raises(
        ValueError, match=r"^any: scale must be 8.15e-39 to 2.36e\+38, got .*: .* a normal float32$"
    ):
        check_scale("any", scale)


@pytest.mark.parametrize("scale", [0, -0.1, math.nan, math.inf])
def test_scale_that_is_not_positive_is_refused(scale):
    with pytest.raises(ValueError, match=f"^any: scale must be a positive number, got {scale}$"):
        check_scale("any", scale)


@pytest.mark.parametrize("scale", [None, True, "0.1", 1j, torch.tensor(0.1)])
def test_scale_that_is_no_number_is_refused(scale):
    with pytest.raises(TypeError, match=f"^any: scale must be a number, got {type(scale).__name__}$"):
        check_scale("any", scale)
