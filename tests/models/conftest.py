"""What tests of models share: tiny models."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("transformers") else ["test_*.py"]
"""Without the extra `models` nothing here can be imported."""


@pytest.fixture(scope="session")
def tiny():
    """A function that builds a tiny model, the same one each time: leave it as it was."""
    from models import build

    return functools.cache(build)


@pytest.fixture
def qwen2():
    """A small model in float32, of transformers alone: its numbers do not depend on the order of sums."""
    import torch

    from models import build

    return build("tiny-qwen2", dtype=torch.float32)


@contextmanager
def no_reads_by_host() -> Iterator[None]:
    """Raise where an operation reads a value of a tensor back to the host, for which a GPU has to be done."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoReads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
                raise AssertionError(f"{func} waits for the GPU")
            return func(*args, **(kwargs or {}))

    with NoReads():
        yield
