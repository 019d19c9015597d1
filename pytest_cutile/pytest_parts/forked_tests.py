"""Which tests run in a fork, and from which of their fixtures on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _pytest.outcomes import Skipped  # pytest.skip.Exception, as a type

from pytest_cutile.pytest_parts.run import FORK_REPORTS

if TYPE_CHECKING:
    import pytest

FORKED = "_cutile_forked"
"""The fixture from which on a test runs in a fork."""


class RunsInFork(Skipped):
    """Ends the setup of a test before its own fixtures: a fork is to run it."""


def is_forked(item: pytest.Item, call: pytest.CallInfo[None]) -> bool:
    """Say whether a fork runs a test, as its setup has said."""
    begins = call.excinfo is not None and isinstance(call.excinfo.value, RunsInFork)
    return begins or FORK_REPORTS in item.stash


def put_first_of_own(name: str, names: list[str], definitions: Mapping[str, Sequence[Any]]) -> None:
    """Put a fixture before the first of the test's own, behind those that are set up for several tests.

    Args:
        name: The fixture, one of `names`.
        names: The test's fixtures in the order in which they are set up; changed in place.
        definitions: The definitions of each, the one in force last.
    """
    names.remove(name)
    own = [
        other for other in names if not definitions.get(other) or definitions[other][-1].scope == "function"
    ]
    names.insert(names.index(own[0]) if own else len(names), name)
