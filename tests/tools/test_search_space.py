"""Which configurations the tuner tries for an architecture."""

import pytest

from pytest_cutile.words.platforms.data import read_tables
from tests.words.platforms.test_data import SM_95, changed
from tools.suite import bmm
from tools.suite._search_space import search_space


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("sm_80", "sm_80"),
        ("sm_89", "sm_80"),
        ("sm_90", "sm_90"),
        ("sm_100", "sm_100"),
        ("sm_103", "sm_100"),
        ("sm_110", "sm_100"),
        ("sm_121", "sm_80"),
        ("sm_107", None),
    ],
)
def test_an_architecture_is_searched_as_its_relative_is(arch, expected):
    assert search_space(arch) == expected


def test_a_new_architecture_needs_no_change_of_the_suites(monkeypatch):
    tables = read_tables(changed("[architectures.sm_100]\n", SM_95))
    monkeypatch.setattr("pytest_cutile.words.platforms.lookup.hardware", lambda: tables)
    case = {"batch": 4, "m": 1024, "n": 1024, "k": 1024}
    assert list(bmm.configs("sm_95", **case)) == list(bmm.configs("sm_90", **case))
