"""What speaks against configurations of a launcher that tunes, before any of them is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_cutile.tile.static.roofline import predict
from pytest_cutile.tile.static.rules import spilled_bytes
from pytest_cutile.words.quantities import format_time

if TYPE_CHECKING:  # the facts need msgspec, which a run without kernels does not import
    from pytest_cutile.tile.static.facts import LaunchFacts


def drawbacks_of(
    configurations: Mapping[str, Sequence[LaunchFacts]], *, arch: str, margin: float
) -> list[str]:
    """Return a line for each configuration that spills, or is predicted slower than another by the margin.

    Args:
        configurations: what each launches, by its name.
        arch: the architecture.
        margin: a fraction; 0.1 is 10 % slower.
    """
    predictions = {
        name: prediction
        for name, launches in configurations.items()
        if (prediction := predict(launches, arch)) is not None
    }
    fastest = min(predictions, key=lambda name: predictions[name].us, default="")
    lines = []
    for name, launches in configurations.items():
        against = []
        if spilled := spilled_bytes(launches):
            against.append(f"spills {spilled} bytes per thread")
        prediction = predictions.get(name)
        if prediction is not None and prediction.us > (best := predictions[fastest]).us * (1 + margin):
            against.append(
                f"predicted {prediction.us / best.us:.1f}x slower than {fastest} ({format_time(best.us)}): "
                f"{prediction.grown_since(best)}"
            )
        if against:
            lines.append(f"{name}: {'; '.join(against)}")
    return lines
