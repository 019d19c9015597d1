"""Dropout on a CPU: the generator against published vectors, its statistics, argument checks, the mask."""

import itertools
import math

import cuda.tile as ct
import pytest

from kernels import dropout
from kernels._launch import line_grid
from pytest_cutile import Work
from pytest_cutile.interpreter import Options, interpret

torch = pytest.importorskip("torch")

# Random123 1.14.0, tests/kat_vectors, the lines "philox4x32 7": counter, key, result.
KNOWN_ANSWERS = [
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
    ),
]
each_vector = pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)

# Each statistical test below would fail once in 100 000 times if the words were truly random; the seeds are
# fixed, so that what passes once passes always. The quantile is the normal distribution's, two-sided.
FALSE_ALARM = 1e-5
SIGMAS = 4.4172
WORDS = 1 << 16
SEEDS = (0, 1, 2, 2**32, 2**32 + 1, 0x0123_4567_89AB_CDEF)


def chi_square_bounds(freedom: int) -> tuple[float, float]:
    """Both ends outside which a chi-square variable falls in `FALSE_ALARM`, by Wilson and Hilferty (1931)."""
    spread = SIGMAS * math.sqrt(2 / (9 * freedom))
    low, high = (freedom * (1 - 2 / (9 * freedom) + sign * spread) ** 3 for sign in (-1, 1))
    return low, high


# -- the generator ----------------------------------------------------------------------------------


@each_vector
def test_philox_in_torch_gives_the_published_words(counter, key, answer):
    words = dropout.philox_in_torch(
        tuple(torch.tensor([word]) for word in counter), seed=key[0] | key[1] << 32
    )
    assert tuple(word.item() for word in words) == answer


@ct.kernel
def philox_of_memory(counters: ct.Array, keys: ct.Array, words: ct.Array) -> None:
    counter = tuple(ct.bitcast(ct.load(counters, (i,), (1,)), ct.uint32) for i in ct.static_iter(range(4)))
    key = tuple(ct.bitcast(ct.load(keys, (i,), (1,)), ct.uint32) for i in ct.static_iter(range(2)))
    result = dropout.philox(counter, key)
    for i in ct.static_iter(range(4)):
        ct.store(words, (i,), ct.bitcast(result[i], ct.int32))


@each_vector
def test_philox_in_tile_code_gives_the_published_words(counter, key, answer):
    with interpret("sm_90"):
        counters, keys = (
            torch.tensor(words, dtype=torch.int64).to(torch.int32).cuda() for words in (counter, key)
        )
        words = torch.empty(4, dtype=torch.int32, device="cuda")
        ct.launch(torch.cuda.current_stream(), (1,), philox_of_memory, (counters, keys, words))
        assert tuple(word % 2**32 for word in words.tolist()) == answer


def test_words_of_a_range_are_those_of_the_whole():
    whole = dropout.words_in_torch(0, 64, 7, "cpu")
    for start, end in ((0, 1), (3, 4), (5, 18), (63, 64), (8, 8)):
        assert torch.equal(dropout.words_in_torch(start, end, 7, "cpu"), whole[start:end])


# -- statistics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("p", [0.5, 0.1, 1 / 3, 0.999])
def test_the_fraction_that_is_kept_is_binomial(p, seed):
    y = dropout.reference(torch.ones(WORDS, dtype=torch.float64), p, seed)
    kept = int((y != 0).sum())
    assert abs(kept - WORDS * (1 - p)) < SIGMAS * math.sqrt(WORDS * p * (1 - p))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_each_byte_is_uniform(shift, seed):
    words = dropout.words_in_torch(0, WORDS, seed, "cpu")
    counts = torch.bincount((words >> shift) & 0xFF, minlength=256).double()
    expected = WORDS / 256
    low, high = chi_square_bounds(255)
    assert low < ((counts - expected) ** 2 / expected).sum().item() < high


def independent(first, second) -> bool:
    """Whether two masks of one half each look independent: a chi-square test of their four combinations."""
    counts = torch.bincount(first.long() * 2 + second.long(), minlength=4).double()
    expected = len(first) / 4
    # With probabilities known to be one half, three combinations are free.
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return bool(statistic < chi_square_bounds(3)[1])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 8, 32, 128, 2048, 4096])
def test_neighbours_are_independent(lag, seed):
    keep = dropout.words_in_torch(0, WORDS, seed, "cpu") >= 2**31
    assert independent(keep[lag:], keep[:-lag])


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SEEDS, 2)))
def test_seeds_are_independent(one, other):
    keep = [dropout.words_in_torch(0, WORDS, seed, "cpu") >= 2**31 for seed in (one, other)]
    assert independent(*keep)


def test_the_tests_above_can_fail():
    keep = dropout.words_in_torch(0, WORDS, 0, "cpu") >= 2**31
    assert not independent(keep, keep)
    assert not independent(keep, ~keep)
    # One pair in twenty copied: a correlation of 0.05, which 65 536 pairs show at 13 standard deviations.
    other = dropout.words_in_torch(0, WORDS, 1, "cpu") >= 2**31
    assert not independent(keep, torch.where(torch.arange(WORDS) % 20 == 0, keep, other))


# -- the mask ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        dropout.DropoutConfig(tile_elements=4),
        dropout.DropoutConfig(tile_elements=256, num_worker_warps=8),
        dropout.DropoutConfig(tile_elements=64),
        dropout.DropoutConfig(tile_elements=8192, occupancy=None),
    ],
)
def test_the_mask_is_a_function_of_seed_and_element_alone(config):
    with interpret("sm_90"):
        x = torch.rand(2, 401, device="cuda") + 1
        kept = dropout.dropout(x, 0.3, seed=11, config=config) != 0
        expected = dropout.words_in_torch(0, 802, 11, "cuda").view(2, 401) >= round(0.3 * 2**32)
        assert torch.equal(kept, expected)


def test_backward_drops_what_forward_dropped():
    with interpret("sm_90"):
        x, gradient = (torch.rand(3, 100, device="cuda") + 1 for _ in range(2))
        y = dropout.dropout(x, 0.5, seed=5)
        dx = dropout.dropout(gradient.half(), 0.5, seed=5)
        assert torch.equal(y != 0, dx != 0)


def test_what_is_dropped_is_zero_whatever_it_was():
    with interpret("sm_90"):
        x = torch.full((100,), math.inf, device="cuda")
        y = dropout.dropout(x, 0.5, seed=5)
        assert set(y.tolist()) == {0.0, math.inf}


def test_extreme_probabilities():
    x = torch.ones(5)
    assert torch.equal(dropout.dropout(x, 1.0, seed=3), torch.zeros(5))
    assert torch.equal(dropout.reference(x.double(), 1.0, 3), torch.zeros(5).double())
    assert torch.equal(dropout.reference(x.double(), 0.0, 3), x.double())
    # So close to one that every word but the largest is dropped.
    assert dropout.reference(torch.ones(1000).double(), 1 - 1e-12, 3).count_nonzero() == 0


# -- argument checks, work, configurations ----------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "p", "seed", "error", "message"),
    [
        (None, 0.5, 0, TypeError, "x must be a torch.Tensor, got NoneType"),
        (torch.ones(3).double(), 0.5, 0, TypeError, "x has dtype torch.float64; supported are float16"),
        (torch.ones(3), -0.1, 0, ValueError, "p must be a probability between 0 and 1, got -0.1"),
        (torch.ones(3), 1.5, 0, ValueError, "p must be a probability between 0 and 1, got 1.5"),
        (torch.ones(3), math.nan, 0, ValueError, "p must be a probability between 0 and 1, got nan"),
        (torch.ones(3), torch.tensor(0.5), 0, TypeError, "p must be a number, got Tensor"),
        (torch.ones(3), "0.5", 0, TypeError, "p must be a number, got str"),
        (torch.ones(3), True, 0, TypeError, "p must be a number, got bool"),
        (torch.ones(3), 0.5, 1.0, TypeError, "seed must be an integer, got float"),
        (torch.ones(3), 0.5, True, TypeError, "seed must be an integer, got bool"),
        (torch.ones(3), 0.5, torch.tensor(3), TypeError, "seed must be an integer, got Tensor"),
        (torch.ones(3), 0.5, -1, ValueError, r"seed must be in \[0, 2\^64\), got -1"),
        (torch.ones(3), 0.5, 2**64, ValueError, r"seed must be in \[0, 2\^64\), got 18446744073709551616"),
        (torch.ones(1).expand(2**31), 0.5, 0, ValueError, "x has 2147483648 elements; at most 2147483647"),
    ],
)
def test_dropout_says_what_is_wrong(x, p, seed, error, message):
    with pytest.raises(error, match="^dropout: " + message):
        dropout.dropout(x, p, seed=seed)


def test_numbers_may_be_numpys():
    np = pytest.importorskip("numpy")
    with interpret("sm_90"):
        x = torch.ones(300, device="cuda")
        expected = dropout.dropout(x, 0.5, seed=3)
        for integer in (np.int64, np.uint64):
            assert torch.equal(dropout.dropout(x, np.float32(0.5), seed=integer(3)), expected)


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors:UserWarning")
def test_the_last_of_2_31_elements_are_checked():
    """Where the last tile ends, 2^31, has more than 32 bits."""
    size, tile = dropout.MAX_ELEMENTS, 4096
    last = size // tile
    with interpret("sm_90", Options(only_block=(last, 0, 0))):
        # One element stands for all: what counts is which are asked for.
        x, y = (torch.full((1,), value, device="cuda").half().expand(size) for value in (3.0, 0.0))
        grid, axis = line_grid("dropout", last + 1, "tiles", "")
        arguments = (x, y, 1, 0, 0, 2.0, tile, axis)
        ct.launch(torch.cuda.current_stream(), grid, dropout.dropout_kernel, arguments)
        assert y[0] == 6.0


def test_nothing_is_launched_for_nothing():
    assert dropout.dropout(torch.ones(2, 0, 3), seed=0).shape == (2, 0, 3)


def test_work_equals_what_a_hand_computes():
    # 2 * 67108864 * 2; 2 * 3*5*7*11 * 2
    expected = {"fp16-67108864-p0.5": 268435456, "bf16-3x5x7x11-p0.5": 4620}
    for case in dropout.SPEC.cases:
        if case.name in expected:
            assert dropout.SPEC.work_of(case) == Work(
                bytes=expected.pop(case.name), dtype=case.params["dtype"]
            )
    assert not expected


def test_tiles_are_whole_counters():
    for arch in (*dropout.CONFIGS, "sm_999"):
        for itemsize, elements in itertools.product((2, 4), (2**20, 2**30)):
            config = dropout.choose_config(arch, elements=elements, itemsize=itemsize)
            assert config.tile_elements % dropout.WORDS == 0


def test_many_elements_have_smaller_tiles_above_all_of_32_bits():
    def tile(exponent, itemsize):
        return dropout.choose_config("sm_90", elements=2**exponent, itemsize=itemsize).tile_elements

    assert (tile(21, 4), tile(22, 4), tile(24, 4)) == (4096, 1024, 1024)
    assert (tile(22, 2), tile(24, 2)) == (4096, 2048)
