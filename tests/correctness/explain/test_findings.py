"""What the message of a failure says: each diagnosis beside the bug that it is for."""

import re
from types import SimpleNamespace

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel
from pytest_cutile.correctness.explain.diagnosis import find_inexact
from pytest_cutile.correctness.explain.findings import LINES, WIDTH, explain
from pytest_cutile.correctness.explain.output import WrongOutput
from tests.correctness.checking import tensor


def mismatch(kernel, *args, reference, **options):
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(kernel, *args, reference=reference, **options)
    lines = str(caught.value).splitlines()
    assert len(lines) <= LINES + 1
    assert max(map(len, lines[1:])) <= WIDTH  # the first one is a sentence, also in lists
    return caught.value


def message_of(bug, x):
    """Return the message about `bug(x)` where x is right."""
    return str(mismatch(lambda x: bug(x.clone()), x, reference=lambda x: x))


def at(value, *index):
    """Return a bug that stores `value` at an index."""

    def bug(x):
        x[index] = value
        return x

    return bug


def times(factor, *index):
    def bug(x):
        x[index] *= factor
        return x

    return bug


def swapped(x):
    x[:, [1, 2]] = x[:, [2, 1]]
    return x


def swapped_in_one_head(x):
    x[1, 2, [5, 9]] = x[1, 2, [9, 5]]
    return x


def stale_in_one_batch(x):
    x[0, :, :, 48:] = x[0, :, :, 32:48].clone()
    return x


def stale(x):
    x[..., 48:] = x[..., 32:48].clone()
    return x


def racing(x):
    x.view(-1)[torch.tensor([77, 901, 2222, 3333, 4900, 7007, 9999])] *= 0.5
    return x


EVERY = slice(None)
TAIL = slice(96, None)


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        (lambda x: x * 0, "the whole output is zero"),
        (lambda x: x * 1.01, "a constant factor: got / exact is about 1.01"),
        (lambda x: (x.view(torch.int16) - 1).view(x.dtype), "all errors are toward zero"),
        (lambda x: x.transpose(2, 3).reshape(x.shape), "dims 2 and 3 are exchanged (transposed?)"),
        (lambda x: x.transpose(0, 1).reshape(x.shape), "dims 0 and 1 are exchanged"),
        (lambda x: x.roll(1, -1), "right and in the wrong place: shifted by one along dim 3"),
        (lambda x: x.roll(-1, -2), "shifted by minus one along dim 2"),
        (lambda x: x.flip(1), "dim 1 is reversed"),
        (swapped, "dim 1: 1 holds what belongs to 2, 2 holds what belongs to 1"),
        (swapped_in_one_head, "dim 2: 5 holds what belongs to 9, 9 holds what belongs to 5"),
        (stale_in_one_batch, "dim 3: 48 to 63 hold what belongs to 32 to 47"),
        (stale, "dim 3: 48 to 63 hold what belongs to 32 to 47"),
        (times(2, EVERY, 2), "where: dim 1: only index 2 of 4"),
        (
            at(0, EVERY, EVERY, slice(32, None)),
            "dim 2: only the last 9 of 41 (the last partial tile, if tiles",
        ),
        (
            times(2, EVERY, EVERY, EVERY, slice(16, 32)),
            "dim 3: only 16 to 31 of 64 (one tile, if tiles have 16)",
        ),
        (racing, "few and scattered, and the same bits when run again: hardly a race"),
        (at(torch.inf, 0, 0, 0, 0), "failed: pattern of NaN and Inf"),
        (at(3.0, 0, 0, 0, 0), "failed: interval"),
    ],
)
def test_a_bug_is_named(bug, said):
    assert said in message_of(bug, tensor(2, 4, 41, 64))


def test_errors_of_two_units_in_the_last_place_are_no_truncation():
    assert "toward zero" not in message_of(lambda x: x * 0.999, tensor(2, 4, 41, 64))


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        (lambda x: x + torch.ones(64, 64).triu(1).half(), "only above the diagonal of"),
        (lambda x: x + torch.ones(64, 64).triu().half(), "only on and above the diagonal of"),
        (lambda x: x + torch.ones(64, 64).tril(-1).half(), "only below the diagonal of"),
        (lambda x: x + torch.eye(64).half(), "only on the diagonal of"),
    ],
)
def test_errors_beside_the_diagonal(bug, said):
    assert said in message_of(bug, tensor(3, 64, 64))


def test_errors_above_the_diagonal_that_ends_at_the_last_element():
    text = message_of(lambda x: x + torch.ones(20, 50).triu(31).half(), tensor(20, 50))
    assert "only above the diagonal that ends at the last element" in text


def test_a_corner_is_no_diagonal():
    text = message_of(times(2, slice(0, 10), slice(40, None)), tensor(50, 50))
    assert "diagonal" not in text
    assert "dim 0: only the first 10 of 50; dim 1: only the last 10 of 50" in text


@pytest.mark.parametrize(("first", "second"), [(1, 2), (100, 700), (998, 999)])
def test_exchanged_rows_are_named_wherever_they_are(first, second):
    def bug(x):
        x[[first, second]] = x[[second, first]]
        return x

    text = message_of(bug, tensor(1000, 48))
    assert f"dim 0: {first} holds what belongs to {second}, {second} holds what belongs to {first}" in text


def test_a_few_errors_on_one_side_are_no_diagonal():
    rows, columns = torch.tensor([[60, 3], [40, 20], [33, 5], [50, 40], [20, 2], [62, 61]]).unbind(1)

    def bug(x):
        x[rows, columns] += 3
        return x

    assert "diagonal" not in message_of(bug, tensor(64, 64))


def test_scattered_errors_of_one_size_are_no_constant_factor():
    places = torch.arange(1, 4096, 211)
    assert len(places) > 16

    def bug(x):
        x.view(-1)[places] *= 0.94
        return x

    error = mismatch(lambda x: bug(x.clone()), tensor(64, 64), reference=lambda x: x)
    assert "few and scattered" in str(error).splitlines()[0]
    assert "a constant factor" not in str(error)
    assert error.clarity == 0
    assert error.wrong_share == len(places) / 4096


def test_zeros_belong_to_no_other_index():
    def lost(x):
        x[-128:] = 0
        return x

    first = message_of(lost, tensor(4096)).splitlines()[0]
    assert "only in the last 128 of 4,096 of dim 0: 128 wrong elements are zero" in first


def test_a_factor_that_differs_from_row_to_row_is_no_constant_factor():
    factors = torch.full((64, 1), 0.98)
    factors[::16] = 0.9  # of few rows, so that most have the same
    text = message_of(lambda x: x * factors.to(x.dtype), tensor(64, 64))
    assert "a constant factor" not in text


def test_truncation_to_eight_bits_is_no_constant_factor():
    def truncated(x):
        nearest = x.to(torch.float8_e4m3fn)
        beyond = nearest.float().abs() > x.abs()
        lower = (nearest.view(torch.int8) - 1).view(torch.float8_e4m3fn)
        return torch.where(beyond, lower.float(), nearest.float()).to(torch.float8_e4m3fn)

    text = str(mismatch(truncated, tensor(64, 64, dtype="float32"), reference=lambda x: x))
    assert "all errors are toward zero" in text
    assert "a constant factor" not in text


@pytest.mark.parametrize(
    ("kernel", "said", "terms"),
    [
        (lambda a, b: a @ b - a[:, 64:96] @ b[64:96], "were missing", 32),
        (lambda a, b: a @ b + a[:, 64:128] @ b[64:128], "were counted twice", 64),
        (lambda a, b: a @ torch.cat((b[:-64], b[-128:-64])), "were wrong", 64),
    ],
)
def test_a_part_of_every_sum(kernel, said, terms):
    a, b = tensor(64, 512), tensor(512, 80, seed=2)
    text = str(
        mismatch(
            lambda a, b: kernel(a.float(), b.float()).half(),
            a,
            b,
            reference=lambda a, b: a @ b,
            reduction=512,
        )
    )
    line = text.splitlines()[0]
    found = re.search(rf"as if (\S+) of the 512 terms of each sum {said}", line)
    assert found is not None
    assert float(found[1]) == pytest.approx(terms, rel=0.15)


def padded_softmax(x):
    e = torch.nn.functional.pad(x, (0, 24)).float().exp()
    return (e / e.sum(1, keepdim=True))[:, : x.shape[1]].half()


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (lambda a, b: a[:, 32:] @ b[32:], "the first 32 of the 200 terms of each sum are missing"),
        (lambda a, b: a[:, :-8] @ b[:-8], "the last 8 of the 200 terms of each sum are missing"),
        (
            lambda a, b: a @ b + a[:, :64] @ b[:64],
            "the first 64 of the 200 terms of each sum are counted twice",
        ),
    ],
)
@pytest.mark.parametrize("rows", [slice(None), slice(48, None)])
def test_a_lost_or_repeated_tile_is_named_also_of_a_few_rows(kernel, said, rows):
    a, b = tensor(64, 200), tensor(200, 80, seed=2)

    def bug(a, b):
        out = a.float() @ b.float()
        out[rows] = kernel(a[rows].float(), b.float())
        return out.half()

    error = mismatch(bug, a, b, reference=lambda a, b: a @ b, reduction=200)
    first = str(error).splitlines()[0]
    assert said in first
    assert ("only in the last 16 of 64 of dim 0" in first) == (rows.start is not None)
    assert error.clarity == 2


def test_padding_that_counts_in_a_sum_is_named():
    error = mismatch(padded_softmax, tensor(16, 40), reference=lambda x: x.softmax(1), reduction=40)
    padding = "as if each sum of 40 terms went over 24 more inputs, all of them 0: is the padding masked?"
    assert padding in str(error)
    assert error.clarity == 2


def test_coarse_intermediate_results_are_told_by_their_bits():
    def rounded(a, b):
        acc = torch.zeros(64, 80)
        for k in range(0, 512, 32):
            acc = (acc + a[:, k : k + 32].float() @ b[k : k + 32].float()).bfloat16().float()
        return acc.half()

    text = str(
        mismatch(
            rounded, tensor(64, 512), tensor(512, 80, seed=2), reference=lambda a, b: a @ b, reduction=512
        )
    )
    noise = r"errors like noise, typically 0\.\d+ % of a value: is a sum kept, or a value rounded, in bfl"
    assert re.search(noise, text)


def test_the_histogram_counts_every_element():
    x = tensor(20, 30, dtype="float32", dist="uniform", low=1.0, high=2.0)

    def bug(x):
        x[0, :5] += 3 * 2.0**-23
        x[1] += 100 * 2.0**-23
        x[2, 0] = torch.nan
        return x

    assert "  ulps from the right value: 0: 564, 3-4: 5, 17-256: 30, NaN or Inf: 1" in message_of(bug, x)


def test_the_picture_shows_the_matrix_with_most_errors():
    def bug(x):
        x[0, 0, 0, 0] *= 2
        x[1, 2, :, 96:] *= 2
        return x

    lines = message_of(bug, tensor(2, 3, 12, 100)).splitlines()
    start = lines.index("  output[1, 2, :, :], with most errors, 12 x 100, a character for 2 x 4:")
    assert lines[start + 1 : start + 7] == ["    |" + " " * 24 + "#|"] * 6
    assert lines[start + 7] == "    ' .-*#' = none, some, > 10%, > 50%, all wrong"


@pytest.mark.parametrize("bug", [lambda x: x * 2, at(9.0, 0, 0)])
def test_no_picture_of_a_single_place_or_of_everything(bug):
    assert "a character for" not in message_of(bug, tensor(12, 100))


def test_errors_that_are_wrong_only_together():
    x = tensor(20, 100)
    x[x == 0] = 1
    comparison = SimpleNamespace(outside=None, worst=None, failed=("slope",))
    comparison.together = SimpleNamespace(excesses=())
    out = (x.view(torch.int16) - (torch.arange(100) < 50).short()).view(x.dtype)
    wrong = find_inexact(out, x.double())
    output = WrongOutput(name="output", out=out, exact=x.double(), wrong=wrong)
    said = explain(output, comparison, basis="derived")  # type: ignore[arg-type]
    assert "all 2,000 elements are within the bound; 1,000 are not correctly rounded" in said.facts[0]
    assert "  where: dim 1: only the first 50 of 100" in said.facts
    assert said.details[0] == "  failed: slope"
    assert said.details[-1] == "  bound: derived"


@pytest.mark.parametrize("shape", [(), (1,), (70,), (1, 1), (3, 1), (1, 70), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "int32", "bool", "float64"])
def test_any_shape_and_dtype_can_be_told(shape, dtype):
    x = tensor(*shape, dtype=dtype, dist="ones")
    error = mismatch(torch.zeros_like, x, reference=lambda x: x)
    assert "are outside the bound" in str(error)
    assert error.errors is not None
    assert {*"".join(error.errors.rows)} - {"."}


def test_a_race_is_told_by_another_launch():
    launches = iter(range(100))

    def kernel(x):
        y = x.clone()
        generator = torch.Generator().manual_seed(next(launches))
        y.view(-1)[torch.randperm(y.numel(), generator=generator)[:7]] += 3
        return y

    x = tensor(2, 4, 41, 64)
    assert "few and scattered, and other bits when run again: perhaps a race" in message_of(kernel, x)
