"""The hooks that other plugins and conftests can implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_cutile.words.timing import Timer


@pytest.hookspec(firstresult=True)
def pytest_cutile_make_timer(config: pytest.Config) -> Timer | None:
    """Return the object that times launches (`pytest_cutile.Timer`), or None to leave it to others.

    The first result wins; without one, a timer for the first visible NVIDIA GPU is used. It decides on
    which device and architecture the gates `correct` and `speed` run, so that both can be driven with
    no GPU.
    """
