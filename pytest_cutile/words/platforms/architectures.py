"""Names of GPU architectures: one spelling, whatever the user typed."""

from __future__ import annotations

import re

_SPELLING = re.compile(r"(?:sm[_-]?|compute[_-]?)?(\d{2,3})[af]?", re.IGNORECASE)


class ArchitectureError(ValueError):
    """A text that names no GPU architecture."""


def normalize_architecture(text: str) -> str:
    """Return `text` in cuTile's spelling: "sm90", "SM_90", "90" and "sm_90a" are "sm_90".

    Raises:
        ArchitectureError: `text` names no architecture.
    """
    match = _SPELLING.fullmatch(text.strip())
    if match is None:
        from pytest_cutile.words.platforms.lookup import architectures_of

        expected = " or ".join(architectures_of(text)) or "a name such as sm_121"
        raise ArchitectureError(f"{text!r} names no GPU architecture (expected {expected})")
    return f"sm_{match[1]}"


def generation(arch: str) -> int:
    """Return the number of a normalised name, by which architectures are ordered: "sm_121" is 121."""
    return int(arch.removeprefix("sm_"))


def architecture_of_capability(major: int, minor: int) -> str:
    """Return the architecture of a CUDA compute capability: (12, 1) is "sm_121"."""
    return f"sm_{major}{minor}"


def capability(arch: str) -> tuple[int, int]:
    """Return the CUDA compute capability of an architecture: "sm_121" is (12, 1)."""
    return divmod(generation(normalize_architecture(arch)), 10)
