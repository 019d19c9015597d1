"""Padding by zero that a kernel takes for values shows with one of the inputs of a case."""

import functools

import pytest
import torch

from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.tile.tensors.make_tensor import make_tensor
from pytest_cutile.words.input_names import NORMAL, REVEALING

REDUCTIONS = {
    "max": lambda x, dim: x.amax(dim),
    "min": lambda x, dim: x.amin(dim),
    "argmax": lambda x, dim: x.argmax(dim),
    "argmin": lambda x, dim: x.argmin(dim),
    "product": lambda x, dim: x.prod(dim).to(x.dtype),
    "not below 0": lambda x, dim: (x >= 0).sum(dim),
    "below 1": lambda x, dim: (x < 1).sum(dim),
    "all": lambda x, dim: (x != 0).all(dim),
}
HARMLESS = {("uint8", "max"), ("uint8", "argmax")}
SEEN = [
    (dtype, reduction)
    for dtype in ("float32", "int32", "uint8")
    for reduction in REDUCTIONS
    if (dtype, reduction) not in HARMLESS
]


def padded(x, *, reduction, dim):
    padding = (0, 0, 0, 28) if dim == 0 else (0, 28)
    return REDUCTIONS[reduction](torch.nn.functional.pad(x, padding), dim)


@pytest.mark.parametrize(("shape", "dim"), [((1, 100), 1), ((2, 100), 1), ((100, 16), 0)])
@pytest.mark.parametrize(("dtype", "reduction"), SEEN)
def test_padding_by_zero_is_seen(dtype, shape, dim, reduction):
    def is_seen(inputs):
        x = make_tensor(shape, dtype, device="cpu", seed=1, dist=inputs)
        try:
            check_kernel(
                functools.partial(padded, reduction=reduction, dim=dim),
                x,
                reference=lambda x: REDUCTIONS[reduction](x, dim),
            )
        except KernelMismatch:
            return True
        return False

    assert any(map(is_seen, (NORMAL, "integers", "offset", "negative")))
    assert {"integers", "offset", "negative"} <= {*REVEALING}
