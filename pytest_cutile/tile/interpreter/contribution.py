"""What the cuTile launches of a launcher contribute to its outputs. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

NEXT_TO_NOTHING = 1e-3
"""Share of an output, in what launches or torch computed of it, below which launches contribute nothing: a
launcher whose kernel touches a few elements of torch's result has them by accident or as a pretext."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """Who made the elements of a launcher's outputs, and of the arguments that it changed."""

    elements: int
    from_launches: int
    """Elements that a launch wrote, or that torch made of such."""
    by_torch: int
    """Elements that torch computed, and not of what a launch wrote."""
    largest_share: float
    """Largest share, over the outputs, of what launches computed in all that launches and torch computed."""
    functions: tuple[str, ...] = ()
    """The torch functions that computed outputs last: ("softmax",)."""
    kernels: tuple[str, ...] = ()
    """The kernels that were launched."""

    @property
    def share(self) -> float | None:
        """The share of launches in what they or torch computed; None where neither did."""
        made = self.from_launches + self.by_torch
        return self.from_launches / made if made else None

    @property
    def is_nothing(self) -> bool:
        """Whether torch did the work."""
        return self.by_torch > 0 and self.largest_share < NEXT_TO_NOTHING

    def message(self, launcher: str) -> str:
        """Say that torch did the work."""
        functions = ", ".join(f"torch's {name}" for name in self.functions) or "torch"
        elements = f"of {self.elements:,} elements of the outputs"
        return (
            f"{launcher}: PyTorch computed the result, and the cuTile launches contribute nothing to it\n"
            f"  {self.by_torch:,} {elements} are what {functions} computed\n"
            f"  {self.from_launches:,} {elements} come from launches of {', '.join(self.kernels)}: written "
            "or changed by them, or computed from what they wrote\n"
            "return what the kernel writes, or what torch computes from that"
        )
