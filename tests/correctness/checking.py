"""Small tensors, a kernel that copies them with its reference, and what a check that fails says."""

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel
from pytest_cutile.tile.tensors.make_tensor import make_tensor


def tensor(*shape, dtype="float16", seed=1, **options):
    return make_tensor(shape, dtype, device="cpu", seed=seed, **options)


def copy(x):
    out = torch.empty_like(x)
    out.copy_(x)
    return out


def identity(x):
    return x


def failure(*args, error=KernelMismatch, **options):
    """Return what the error says that `check_kernel` raises."""
    with pytest.raises(error) as caught:
        check_kernel(*args, **options)
    return str(caught.value)


def story(text):
    """Return a message without its details, which follow the first empty line."""
    return text.partition("\n\n")[0]
