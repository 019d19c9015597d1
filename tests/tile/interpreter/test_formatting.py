"""What messages call operations."""

import pytest

from pytest_cutile.tile.interpreter.formatting import _WORDS, plain_name
from pytest_cutile.tile.interpreter.opcodes import FORMATS

KNOWN = {operation_format.name for operation_format in FORMATS.values()}
WITHOUT_A_TILE = {"print_tko", "memory_fence_alias_tko", "gdc_wait_tko", "gdc_launch_dependents_tko"}


def test_words_are_for_operations_that_there_are() -> None:
    assert _WORDS.keys() <= KNOWN


@pytest.mark.parametrize("name", sorted(KNOWN - WITHOUT_A_TILE))
def test_no_message_has_the_internal_name_of_a_memory_operation(name: str) -> None:
    assert "_tko" not in plain_name(name)


def test_what_cutile_calls_alike_keeps_its_name() -> None:
    assert (plain_name("load_view_tko"), plain_name("divf"), plain_name("exp2")) == (
        "load",
        "division",
        "exp2",
    )
