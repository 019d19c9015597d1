"""SwiGLU and SiLU-and-mul on a CPU: argument checks, tiles, work, references."""

import math

import cuda.tile as ct
import pytest

from kernels import silu_and_mul, swiglu
from kernels._launch import MIN_PIECE
from pytest_cutile import Work
from pytest_cutile.interpreter import Options, interpret
from pytest_cutile.tile.compiler import record_launches

torch = pytest.importorskip("torch")


def case_of(module, name):
    return next(case for case in module.SPEC.cases if case.name == name)


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        (None, torch.ones(3), TypeError, "a must be a torch.Tensor, got NoneType"),
        (torch.ones(3), torch.ones(3).half(), TypeError, "b has dtype torch.float16, but a has"),
        (torch.ones(3).double(), torch.ones(3).double(), TypeError, "a has dtype torch.float64; supported"),
        (torch.ones(2, 3), torch.ones(3), ValueError, r"b must have a's shape \[2, 3\], but is \[3\]"),
        (torch.ones(3), torch.ones(3, device="meta"), ValueError, "b is on meta, but a is on cpu"),
    ],
)
def test_swiglu_says_what_is_wrong(a, b, error, message):
    with pytest.raises(error, match="^swiglu: " + message):
        swiglu.swiglu(a, b)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([1.0, 2.0], TypeError, "x must be a torch.Tensor, got list"),
        (torch.ones(2, dtype=torch.int32), TypeError, "x has dtype torch.int32; supported are float16"),
        (torch.ones(2, 3), ValueError, r"must be even, got \[2, 3\]"),
        (torch.ones(()), ValueError, r"must be even, got \[\]"),
    ],
)
def test_silu_and_mul_says_what_is_wrong(x, error, message):
    with pytest.raises(error, match="^silu_and_mul: .*" + message):
        silu_and_mul.silu_and_mul(x)


def test_nothing_is_launched_for_nothing():
    assert swiglu.swiglu(torch.ones(2, 0), torch.ones(2, 0)).shape == (2, 0)
    assert silu_and_mul.silu_and_mul(torch.ones(0, 6)).shape == (0, 3)
    assert silu_and_mul.silu_and_mul(torch.ones(6, 0)).shape == (6, 0)


def test_a_scalar_is_one_element():
    with interpret("sm_90"):
        one = torch.ones((), device="cuda")
        assert swiglu.swiglu(one, one).item() == pytest.approx(1 / (1 + math.exp(-1)))


@pytest.mark.parametrize(
    ("m", "n", "elements", "tile"),
    [
        (1, 1 << 20, 2048, (1, 2048)),
        (4096, 2048, 2048, (1, 2048)),
        (4096, 14336, 4096, (2, 2048)),
        (4096, 11008, 2048, (8, 256)),
        # No divisor to speak of: a tile that sticks out.
        (4096, 5000, 2048, (1, 2048)),
        (4096, 100, 2048, (16, 128)),
        (3, 100, 2048, (4, 128)),
        (1, 1, 2048, (1, 1)),
        # One row has one last tile, so its tiles need not divide it.
        (1, 11008, 2048, (1, 2048)),
        (1, 3 * 11008, 2048, (1, 2048)),
        (1, 1280, 2048, (1, 2048)),
    ],
)
def test_tiles_divide_rows_where_they_can(m, n, elements, tile):
    assert swiglu.choose_tile(m, n, elements) == tile


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors:UserWarning")
def test_the_last_of_2_31_elements_are_checked():
    """Where the last tile ends, 2^31, has more than 32 bits."""
    size, tile = swiglu.MAX_INDEX - 1, 4096
    last = size // tile
    with interpret("sm_90", Options(only_block=(last, 0, 0))):
        # One element stands for all: what counts is which are asked for.
        a, b, y = (
            torch.full((1, 1), value, device="cuda").half().expand(1, size) for value in (20.0, 3.0, 0.0)
        )
        arguments = (a, b, y, 1, tile, 0, False)
        ct.launch(torch.cuda.current_stream(), (last + 1,), swiglu.swiglu_kernel, arguments)
        assert y[0, 0] == 60.0


@pytest.mark.parametrize("config", [swiglu.SwigluConfig(tile_bytes=256), None])
def test_blocks_compute_every_tile(config):
    torch.manual_seed(0)
    with interpret("sm_90"):
        x = torch.randn(150, 2, 130, device="cuda")
        expected = torch.nn.functional.silu(x[..., :65]) * x[..., 65:]
        torch.testing.assert_close(silu_and_mul.silu_and_mul(x, config=config), expected)


@pytest.mark.parametrize(
    ("launch", "shapes", "constants"),
    [
        # One row: compiled once for all lengths.
        (swiglu.swiglu, [(64, 4096), (64, 4096)], (0, False)),
        # Rows that are apart: for their two tiles, of which none sticks out; for two rows to a tile, one may.
        (silu_and_mul.silu_and_mul, [(64, 8192)], (2, True)),
        (silu_and_mul.silu_and_mul, [(63, 8192)], (2, True)),
        (silu_and_mul.silu_and_mul, [(64, 2048)], (1, True)),
        (silu_and_mul.silu_and_mul, [(63, 2048)], (1, False)),
        (silu_and_mul.silu_and_mul, [(64, 6000)], (2, False)),
    ],
)
def test_a_kernel_is_compiled_for_rows_that_are_apart(launch, shapes, constants):
    def run():
        launch(*(torch.empty(shape, device="cuda", dtype=torch.float16) for shape in shapes))

    (launched,) = record_launches(run, "sm_90")
    assert launched.args[5:] == constants


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, -80.0, 100.0, math.inf, -math.inf, math.nan])
def test_silu_at_its_ends_is_torchs(value):
    with interpret("sm_90"):
        a = torch.full((4,), value, device="cuda")
        got = swiglu.swiglu(a, torch.ones_like(a))
        expected = torch.nn.functional.silu(torch.full((4,), value, dtype=torch.float64)).float()
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=0.0, equal_nan=True)


def test_silu_of_a_large_negative_number_is_tiny_not_nan():
    with interpret("sm_90"):
        a = torch.tensor([-100.0, -1e4, -3e38], device="cuda")
        got = swiglu.swiglu(a, torch.ones_like(a))
        # Below the smallest normal number, where the exponential has few digits or none.
        assert ((got <= 0) & (got > -(2.0**-126))).all()


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        # 3 * 4*4096*4096 * 2; 3 * 37*257 * 2
        (swiglu, "fp16-4x4096x4096", Work(bytes=402653184, dtype="float16")),
        (swiglu, "bf16-37x257", Work(bytes=57054, dtype="bfloat16")),
        # 21 * (514 + 257) * 4
        (silu_and_mul, "fp32-21x514", Work(bytes=64764, dtype="float32")),
    ],
)
def test_work_equals_what_a_hand_computes(module, name, expected):
    assert module.SPEC.work_of(case_of(module, name)) == expected


def test_references_agree_with_torch():
    torch.manual_seed(0)
    a, b = (torch.randn(5, 33, dtype=torch.float64) * 10 for _ in range(2))
    expected = torch.nn.functional.silu(a) * b
    torch.testing.assert_close(swiglu.reference(a, b), expected)
    torch.testing.assert_close(silu_and_mul.reference(torch.cat((a, b), 1)), expected)


def test_tiles_hold_the_shortest_pieces():
    for config in (*swiglu.CONFIGS.values(), swiglu.choose_config("sm_999")):
        assert config.tile_bytes >= 4 * MIN_PIECE


def test_halves_are_cut_as_swiglu_says_where_nothing_was_measured():
    assert silu_and_mul.CONFIGS.keys() == swiglu.CONFIGS.keys()
    for arch in ("sm_80", "sm_999"):
        assert silu_and_mul.choose_config(arch, itemsize=2) == swiglu.choose_config(arch)
