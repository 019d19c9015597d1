"""Which configurations are worth trying for an architecture: those of its nearest relative here."""

from __future__ import annotations

from pytest_cutile import nearest_architecture

_ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""Register accumulators; warpgroups and clusters; tensor memory."""


def search_space(arch: str) -> str | None:
    """Return the architecture whose configurations are tried for `arch`; None: those of the oldest."""
    return nearest_architecture(arch, _ARCHITECTURES)
