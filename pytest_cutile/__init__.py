"""pytest-cutile: a correctness and performance regression harness for cuTile kernels.

Importing this package is cheap: torch and cuda.tile are imported when a gate first needs them.
"""

from pytest_cutile.core.spec import Case, KernelSpec, SpecError, Work
from pytest_cutile.core.timing import Block, Control, Device, Measurement, Timer, TimingError

__version__ = "0.1.0"

__all__ = [
    "Block",
    "Case",
    "Control",
    "Device",
    "KernelSpec",
    "Measurement",
    "SpecError",
    "Timer",
    "TimingError",
    "Work",
    "__version__",
]
