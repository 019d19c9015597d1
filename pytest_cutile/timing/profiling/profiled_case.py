"""What the process that launches a profiled case tells of it, as a file."""

from __future__ import annotations

from msgspec import Struct

from pytest_cutile.tile.static.facts import CaseFacts


class ProfiledCase(Struct, frozen=True, kw_only=True):
    """A declared case on the GPU that it was profiled on."""

    key: str
    gpu: str
    arch: str
    flops: float
    """FLOP of one launch, as its Work counts them; 0 where it counts none."""
    bytes: float
    dtype: str = ""
    """Dtype of the multiplied operands."""
    facts: CaseFacts | None = None
    facts_missing: str = ""
