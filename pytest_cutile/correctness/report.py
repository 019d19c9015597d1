"""The report of a check. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_cutile.correctness.mutation.report import MutationReport

REFUSED = "refused: "


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What a check that passed has seen."""

    elements: int = 0
    worst_error: float = 0.0
    """Largest error beyond the output's own rounding, in units of the bound: 1.0 is where it would fail."""
    worst_ulps: float = 0.0
    """Largest distance from the correctly rounded value, in units of the output dtype's spacing there."""
    energy: float = 0.0
    """Largest energy of the mismatch in any part of an output, in units of what is allowed."""
    slope: float = 0.0
    """Slope of the mismatch on the exact value, in units of what is allowed."""
    looser: float | None = None
    """How many times the derived bound the given rtol and atol allow, in the median over all elements; None
    for a derived bound, for a reference that returned less than float64, and where `allowed` says it."""
    allowed: str = ""
    """What the given rtol and atol allow where right values are known exactly: "any of 21 integers"."""
    bound: str = "nothing was compared"
    """What was allowed, in words: how the bound was derived, or the given rtol and atol."""
    tolerance: tuple[float, float] | None = None
    seconds: float = 0.0
    reference_runs: int = 0
    """How often the reference ran, exactly and with noise; on each part of a large case so often."""
    outputs: str = ""
    """Dtype and shape of what the kernel returned: "(float16 [4, 8], int32 [4])"."""
    mutation: MutationReport | None = None
    """Which mutants the check kills; None without `mutation_test`."""
    unguarded: tuple[str, ...] = ()
    """Inputs without NaN around them, and why: "x: requires grad"."""
    overflowed: tuple[str, ...] = ()
    """Outputs of 8 bits that overflowed to NaN or Inf where the reference is finite, in words."""
    narrowed: tuple[str, ...] = ()
    """Outputs with fewer significant bits than every floating input, in words."""
    uncompared: tuple[str, ...] = ()
    """Arguments that the launcher may change and does not return, and the reference leaves alone: they were
    compared with nothing."""
    deterministic: bool | None = None
    """Whether a second run returned the same bits; None: there was none."""
    from_launches: float | None = None
    """Share of the outputs' elements that a cuTile launch wrote, or that torch computed from such, in those
    that either computed; None: unknown, as on a GPU."""
    other_work: str = ""
    """That PyTorch computed the result and the launches contribute nothing to it, in words; or empty."""
    parts: int = 1
    """In how many parts outputs were compared and the reference ran; see `independent`."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """In which other layouts of the inputs the launcher ran: "right", or that it refused, and how."""

    tuning: str = ""
    """Configuration that a launcher that tunes has chosen."""
    checked_configurations: int = 0
    """Number of configurations whose outputs were compared, if a launcher that tunes has several."""
    configurations: tuple[str, ...] = ()
    """Configurations of a launcher that tunes which do not compile or were not checked, a line for each."""

    @property
    def refused(self) -> tuple[str, ...]:
        """The layouts that it refused: "padded rows: ValueError: x must be contiguous"."""
        return tuple(
            f"{layout}: {outcome.removeprefix(REFUSED)}"
            for layout, outcome in self.layouts.items()
            if outcome.startswith(REFUSED)
        )
