"""What tests of models share: tiny models."""

import functools
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("transformers") else ["test_*.py"]
"""Without the extra `models` nothing here can be imported."""


@pytest.fixture(scope="session")
def tiny():
    """A function that builds a tiny model, the same one each time: leave it as it was."""
    from models import build

    return functools.cache(build)
