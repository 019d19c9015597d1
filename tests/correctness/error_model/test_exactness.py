"""Products of small integers are exact: a kernel that multiplies them has to round them correctly."""

from typing import Any

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel
from pytest_cutile.tile.tensors.make_tensor import make_tensor

EXACT = "correctly rounded: all products and sums of these inputs are exact"


def operands(dtype, k, *, dist="integers", batch=()):
    return [
        make_tensor((*batch, *shape), dtype, device="cpu", seed=seed, dist=dist)
        for seed, shape in enumerate(((33, k), (k, 45)))
    ]


def multiply(a, b, *, wrong=False):
    kind = torch.float32 if a.dtype.itemsize == 1 else a.dtype
    c = (a.float() @ b.float()).to(kind)
    if wrong:
        c.view(torch.int16 if kind.itemsize == 2 else torch.int32)[..., 3, 4] += 1
    return c


def product(a, b):
    return a @ b


@pytest.mark.parametrize("dist", ["integers", "one_hot", "ones"])
@pytest.mark.parametrize(
    ("dtype", "k"), [("float16", 1023), ("bfloat16", 1023), ("float32", 1023), ("float8_e4m3fn", 65)]
)
def test_one_wrong_ulp_is_seen(dtype, k, dist):
    a, b = operands(dtype, k, dist=dist)
    report = check_kernel(multiply, a, b, reference=product, reduction=k)
    assert (report.bound, report.worst_ulps) == (EXACT, 0.0)
    with pytest.raises(KernelMismatch, match=EXACT):
        check_kernel(lambda a, b: multiply(a, b, wrong=True), a, b, reference=product, reduction=k)


def split(a, b):
    parts = [a[..., each].float() @ b[..., each, :].float() for each in (slice(77), slice(77, None))]
    return (parts[0] + parts[1]).half()


def looped(a, b):
    return torch.stack([left @ right.T.contiguous().T for left, right in zip(a, b, strict=True)])


def test_sums_in_any_order_and_batches_are_exact():
    a, b = operands("float16", 500, batch=(3,))
    assert check_kernel(split, a, b, reference=looped, reduction=500).bound == EXACT
    report = check_kernel(
        lambda a, b: (a.float() @ b.float()).sum(0), a, b, reference=lambda a, b: (a @ b).sum(0)
    )
    assert report.bound == EXACT


@pytest.mark.parametrize(
    ("reference", "kernel"),
    [
        (lambda a, b: (a @ b) * 0.3, lambda a, b: (a.float() @ b.float()) * 0.3),
        (lambda a, b: (a @ b) / 2, lambda a, b: (a.float() @ b.float()) / 2),
        (lambda a, b: torch.softmax(a @ b, -1), lambda a, b: torch.softmax(a.float() @ b.float(), -1)),
        # what torch does not see: numpy
        (
            lambda a, b: torch.from_numpy(a.numpy() @ b.numpy() * 0.3),
            lambda a, b: a.float() @ b.float() * 0.3,
        ),
    ],
    ids=["scaled", "divided", "softmax", "numpy"],
)
def test_other_functions_are_not_exact(reference, kernel):
    a, b = operands("float16", 100)
    assert check_kernel(kernel, a, b, reference=reference, reduction=100).bound != EXACT


def test_sums_that_the_accumulator_may_not_hold_are_not_exact():
    a, b = operands("float8_e4m3fn", 2000)  # magnitudes of partial sums above 2^13
    assert check_kernel(multiply, a, b, reference=product, reduction=2000).bound != EXACT
    a, b = ((1 << 11) * each for each in operands("float32", 64))
    assert check_kernel(multiply, a, b, reference=product, reduction=64).bound != EXACT


def chain(a, b):
    return (a @ b) @ b.T


def rounded_chain(a, b):
    return ((a.float() @ b.float()).half().float() @ b.float().T).half()


def test_operands_that_the_tensor_cores_round_are_not_exact():
    a, b = operands("float16", 100)
    a *= 5  # products with b then need more than float16's 11 bits
    assert check_kernel(rounded_chain, a, b, reference=chain, reduction=100).bound != EXACT


@pytest.mark.parametrize("dist", ["normal", "nan", "inf", "outliers"])
def test_other_values_are_not_exact(dist):
    a, b = operands("float16", 100, dist=dist)
    assert check_kernel(multiply, a, b, reference=product, reduction=100).bound != EXACT


def split_in_bfloat16(a, b, *, parts=4):
    """Partial sums are stored in bfloat16, as a kernel does that splits K."""
    pairs = zip(a.chunk(parts, 1), b.chunk(parts, 0), strict=True)
    return sum((left.float() @ right.float()).bfloat16().float() for left, right in pairs).bfloat16()


@pytest.mark.parametrize("dist", ["integers", "one_hot", "ones"])
@pytest.mark.parametrize("k", [64, 512])
def test_partial_sums_that_a_policy_rounds_are_not_exact(dist, k):
    a, b = operands("bfloat16", k, dist=dist)
    options: dict[str, Any] = {"reference": product, "reduction": k, "mid": "bfloat16"}
    report = check_kernel(split_in_bfloat16, a, b, **options)
    assert report.bound.endswith('mid="bfloat16"')
    with pytest.raises(KernelMismatch):  # columns that nobody computed
        check_kernel(
            lambda a, b: split_in_bfloat16(a, b).index_fill(1, torch.arange(16), 2.0 * k), a, b, **options
        )
    if dist == "integers":
        with pytest.raises(KernelMismatch):
            check_kernel(lambda a, b: split_in_bfloat16(a[:, :-1], b[:-1]), a, b, **options)


def test_large_partial_sums_of_small_results_are_rounded_too():
    a, b = operands("bfloat16", 256)
    b = torch.cat([b[:128], b[:128]])
    a = torch.cat([a[:, :128], -a[:, :128] + (torch.arange(128) == 5)], 1)
    options: dict[str, Any] = {"reference": product, "reduction": 256, "mid": "bfloat16"}
    check_kernel(lambda a, b: split_in_bfloat16(a, b, parts=2), a, b, **options)
    with pytest.raises(KernelMismatch):
        check_kernel(lambda a, b: split_in_bfloat16(a, b) + 40, a, b, **options)
    with pytest.raises(KernelMismatch, match='would pass with mid="bfloat16"'):
        check_kernel(lambda a, b: split_in_bfloat16(a, b, parts=2), a, b, reference=product, reduction=256)
