"""What travels with a report."""

import pytest

from pytest_cutile.core.results import names_of_test


@pytest.mark.parametrize(
    ("nodeid", "names"),
    [
        ("a/test_p.py::test_x", ("test_p", "test_x")),
        ("a/test_p.py::TestIt::test_x[a::b]#again", ("test_p", "test_x[a::b]#again")),
        ("test_p.py::test_x#again", ("test_p", "test_x#again")),
    ],
)
def test_a_test_function_is_named_by_its_file_and_itself(nodeid, names):
    assert names_of_test(nodeid) == names
