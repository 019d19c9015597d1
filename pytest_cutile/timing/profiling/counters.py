"""The counters of launched kernels, from the raw page that Nsight Compute prints as CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass

TIME = "gpu__time_duration.sum"
_SPECIALIZATION = re.compile(r"_Kt\d+_.*")
"""What cuda-tile 1.7.0 appends to the name of a kernel's function: "rope_kernel_Kt2_A4bf16_1s1_7v8"."""


@dataclass(frozen=True, kw_only=True)
class KernelCounters:
    """What was counted during one launch."""

    kernel: str
    values: Mapping[str, float]
    """Each metric that is a number, by Nsight Compute's name, in base units: ns, bytes, percent."""

    @property
    def us(self) -> float | None:
        """Time of the launch in microseconds, while it was profiled."""
        ns = self.values.get(TIME)
        return None if ns is None else ns / 1000

    def largest(self, pattern: str) -> float | None:
        """Return the largest of the metrics whose whole names match; None where there is none.

        Generations of GPUs have different names for the same unit.
        """
        return max((v for name, v in self.values.items() if re.fullmatch(pattern, name)), default=None)


def function_name(kernel: str) -> str:
    """Return the name of a kernel's function, without the parameters that cuda-tile compiled it for."""
    return _SPECIALIZATION.sub("", kernel)


def read_counters(text: str) -> list[KernelCounters]:
    """Return the counters of each launch in what `ncu --csv --page raw --print-units base` prints.

    Other lines (ncu's own messages, output of the program) are skipped. Below the names are their units.
    """
    rows = [*csv.reader(line for line in text.splitlines() if line.startswith('"'))]
    if not rows or "Kernel Name" not in rows[0]:
        return []
    launches = [dict(zip(rows[0], row, strict=False)) for row in rows[2:]]
    return [
        KernelCounters(
            kernel=function_name(launch.get("Kernel Name", "")),
            values={
                name: value
                for name, cell in launch.items()
                if "__" in name and (value := _number(cell)) is not None
            },
        )
        for launch in launches
    ]


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None  # a name, or "n/a" where the GPU has no such counter
