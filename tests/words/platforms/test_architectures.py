import pytest

from pytest_cutile.words.platforms.architectures import (
    ArchitectureError,
    architecture_of_capability,
    capability,
    normalize_architecture,
)


@pytest.mark.parametrize(
    "spelling", ["sm_90", "sm90", "SM_90", "Sm-90", "90", " sm_90 ", "sm_90a", "compute_90"]
)
def test_every_spelling_is_one_architecture(spelling):
    assert normalize_architecture(spelling) == "sm_90"


@pytest.mark.parametrize("spelling", ["", "hopper", "sm_", "sm_9", "sm_9000", "resnet50", "sm_90,sm_100"])
def test_what_names_no_architecture_is_an_error(spelling):
    with pytest.raises(ArchitectureError, match="names no GPU architecture"):
        normalize_architecture(spelling)


def test_compute_capability():
    assert architecture_of_capability(12, 1) == "sm_121"
    assert architecture_of_capability(9, 0) == "sm_90"


def test_an_architecture_has_a_capability() -> None:
    assert capability("sm_121") == (12, 1)
    assert capability("90a") == (9, 0)
