"""What NVIDIA published about cuTile kernels on DGX Spark and B300: `published.toml`, which has the sources.

`pytest-cutile compare` shows it beside what was measured.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources

import msgspec

GB10 = "NVIDIA GB10"
"""The GPU of a DGX Spark, as NVML names it."""
B300 = "NVIDIA B300 SXM6 AC"
"""The GPU that the document calls B300, as NVML names it."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How much faster a kernel is on a B300 than on a GB10."""

    title: str
    """What the document calls it."""
    metric: str
    ratio: float
    """B300 over GB10."""
    kernel: str = ""
    """The kernel of this project that does the same; empty where there is none."""
    causal: bool | None = None
    """Which cases of the kernel are meant, where it matters."""
    key: str = ""
    """The case that has this shape; empty where the document does not say the whole shape."""

    def is_about(self, kernel: str, case: str) -> bool:
        """Say whether it is about this kernel, whatever the shape."""
        return bool(self.kernel) and kernel == self.kernel and self.causal in (None, "causal" in case)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """CUDA time of one generation of Qwen2-7B (batch 16, 50 tokens) with cuTile kernels."""

    title: str
    gb10: float
    """In milliseconds."""
    b300: float
    calls: int | None = None
    """Launches, as printed for the GB10; None where none are."""

    @property
    def ratio(self) -> float:
        """How much faster the B300 is."""
        return self.gb10 / self.b300


@dataclass(frozen=True, kw_only=True)
class Specification:
    """What the document says of a GPU."""

    arch: str
    sm_count: int
    memory_gb: int
    memory: str
    bandwidth_gb_s: int


_FILE = tomllib.loads(resources.files(__package__).joinpath("published.toml").read_text(encoding="utf-8"))
DOCUMENT: str = _FILE["document"]
RATIOS = msgspec.convert(_FILE["ratios"], tuple[Ratio, ...])
QWEN2_7B = msgspec.convert(_FILE["qwen2_7b"], tuple[Pair, ...])
SPECIFICATIONS = msgspec.convert(_FILE["specifications"], dict[str, Specification])
"""By NVML's name of the GPU."""
