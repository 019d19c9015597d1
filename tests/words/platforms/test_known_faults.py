import re
import tomllib
from importlib import resources

import pytest

from pytest_cutile.words.platforms import known_faults
from pytest_cutile.words.platforms.known_faults import KNOWN_FAULTS, KnownFault, PastTheEnd

FILE = tomllib.loads(
    resources.files(known_faults.__package__).joinpath("known_faults.toml").read_text(encoding="utf-8")
)


def test_every_key_of_the_file_is_known() -> None:
    assert set(FILE) == {"faults"}
    for entry in FILE["faults"]:
        assert set(entry) == set(KnownFault.__dataclass_fields__)
        assert set(entry["past_the_end"]) == set(PastTheEnd.__dataclass_fields__)


def test_names_differ_and_each_fault_has_a_source_and_a_range() -> None:
    assert len({fault.name for fault in KNOWN_FAULTS}) == len(KNOWN_FAULTS)
    for fault in KNOWN_FAULTS:
        assert fault.sources
        assert all(re.search(r"https://|\d{4}-\d\d-\d\d", source) for source in fault.sources)
        assert fault.is_in(fault.since)
        assert not fault.is_in(fault.before)


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("13.3.99", False),
        ("13.4", True),
        ("13.4.92", True),
        ("13.5.37", False),
        ("13.10", False),
        ("", False),
    ],
)
def test_releases_that_have_a_fault(release, expected) -> None:
    [fault] = [fault for fault in KNOWN_FAULTS if fault.name == "tma-store-past-the-end"]
    assert fault.is_in(release) is expected
