"""What tests of models share: transformers, and tiny models."""

import functools

import pytest

pytest.importorskip("transformers", reason="the extra `models` is not installed")


@pytest.fixture(scope="session")
def tiny():
    """A function that builds a tiny model, the same one each time: leave it as it was."""
    from models import build

    return functools.cache(build)
