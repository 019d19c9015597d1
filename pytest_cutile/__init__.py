"""pytest-cutile: a correctness and performance regression harness for cuTile kernels.

Importing this package is cheap: a public name's module is imported when the name is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_cutile.correctness.report import CheckReport
    from pytest_cutile.pytest_parts.fixtures import CheckKernel, Perf
    from pytest_cutile.tile.tensors.seeded import MakeTensor
    from pytest_cutile.words.platforms.lookup import nearest_architecture, related_architectures
    from pytest_cutile.words.spec import Case, CheckOptions, KernelSpec, ModelSpec, SpecError, Work
    from pytest_cutile.words.timing import (
        Block,
        Device,
        Measurement,
        ReferenceWorkload,
        Regime,
        Skipped,
        Sustained,
        Timer,
        TimingError,
        TooLong,
    )

__all__ = [
    "Block",
    "Case",
    "CheckKernel",
    "CheckOptions",
    "CheckReport",
    "Device",
    "KernelSpec",
    "MakeTensor",
    "Measurement",
    "ModelSpec",
    "Perf",
    "ReferenceWorkload",
    "Regime",
    "Skipped",
    "SpecError",
    "Sustained",
    "Timer",
    "TimingError",
    "TooLong",
    "Work",
    "__version__",
    "nearest_architecture",
    "related_architectures",
]

__version__: str

_MODULES = {
    "pytest_cutile.correctness.report": ("CheckReport",),
    "pytest_cutile.pytest_parts.fixtures": ("CheckKernel", "Perf"),
    "pytest_cutile.tile.tensors.seeded": ("MakeTensor",),
    "pytest_cutile.words.platforms.lookup": ("nearest_architecture", "related_architectures"),
    "pytest_cutile.words.spec": ("Case", "CheckOptions", "KernelSpec", "ModelSpec", "SpecError", "Work"),
    "pytest_cutile.words.timing": (
        *("Block", "Device", "Measurement", "ReferenceWorkload", "Regime", "Skipped", "Sustained"),
        *("Timer", "TimingError", "TooLong"),
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name, or look up `__version__` in the installed distribution."""
    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
        return value
    if name == "__version__":
        from pytest_cutile.words.version import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
