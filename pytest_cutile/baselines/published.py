"""What NVIDIA published about cuTile kernels on DGX Spark and B300, as printed.

The document gives no address of its own; it names https://github.com/NVIDIA/TileGym as the code that was run.
`research/published_figures.py` has the FMHA figures, which are baselines; `pytest-cutile compare` shows the
rest beside what was measured. research/reports/published-figures.md says where the document
contradicts itself.
"""

from __future__ import annotations

from dataclasses import dataclass

DOCUMENT = 'NVIDIA, "cuTile Kernels", playbook for DGX Spark (February 2026)'
GB10 = "NVIDIA GB10"
"""The GPU of a DGX Spark, as NVML names it."""
B300 = "NVIDIA B300 SXM6 AC"
"""The GPU that the document calls B300, as NVML names it."""

BATCH, HEADS, HEAD_DIM = 4, 32, 128


def fmha_key(length: int, *, causal: bool = True) -> str:
    """Return the key of the case of `kernels/fmha.py` that has the published shape."""
    return f"fmha[fp16{'-causal' * causal}-{BATCH}x{HEADS}x{length}x{HEAD_DIM}]"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How much faster a kernel is on a B300 than on a GB10."""

    title: str
    """What the document calls it."""
    metric: str
    """TFLOPS or GB/s."""
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


RATIOS = (
    Ratio(
        title="FMHA (causal, 8192)",
        metric="TFLOPS",
        ratio=13.7,
        kernel="fmha",
        causal=True,
        key=fmha_key(8192),
    ),
    Ratio(
        title="FMHA (non-causal, 8192)",
        metric="TFLOPS",
        ratio=15.1,
        kernel="fmha",
        causal=False,
        key=fmha_key(8192, causal=False),
    ),
    Ratio(title="MatMul (8192)", metric="TFLOPS", ratio=18.9, kernel="matmul"),
    Ratio(title="BMM (batch8, 4096)", metric="TFLOPS", ratio=19.4),
    Ratio(title="Group GEMM (4096)", metric="TFLOPS", ratio=23.9),
    Ratio(title="RMSNorm (4096)", metric="GB/s", ratio=33.1, kernel="rms_norm"),
    Ratio(title="RoPE (16384)", metric="GB/s", ratio=22.8),
)
"""Table of the kernel benchmarks' scaling."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """CUDA time of one generation of Qwen2-7B (batch 16, 50 tokens) with cuTile kernels."""

    title: str
    gb10: float
    """In milliseconds."""
    b300: float
    """Likewise."""
    calls: int | None = None
    """Launches, as printed for the GB10; None where none are."""

    @property
    def ratio(self) -> float:
        """How much faster the B300 is."""
        return self.gb10 / self.b300


QWEN2_7B = (
    Pair(title="all CUDA kernels", gb10=43080, b300=2954),
    Pair(title="fmha_kernel", gb10=4185.9, b300=337.9, calls=28),
    Pair(title="swiglu_forward_kernel", gb10=2459.8, b300=226.3, calls=1400),
    Pair(title="attention_decode_kernel_grouped", gb10=2271.8, b300=111.0, calls=1372),
    Pair(title="rms_norm_kernel_static_persistent", gb10=634.7, b300=29.7, calls=57),
    Pair(title="rope_kernel", gb10=355.6, b300=16.7, calls=1400),
)
"""Tables of the end-to-end inference; the ratios that they print follow from the figures. The throughputs are
baselines, written by `research/published_baselines.py`."""


@dataclass(frozen=True, kw_only=True)
class Specification:
    """What the document says of a GPU."""

    arch: str
    sm_count: int
    memory_gb: int
    memory: str
    bandwidth_gb_s: int


SPECIFICATIONS = {
    GB10: Specification(arch="sm_121", sm_count=48, memory_gb=128, memory="LPDDR5x", bandwidth_gb_s=273),
    B300: Specification(arch="sm_103", sm_count=132, memory_gb=192, memory="HBM3e", bandwidth_gb_s=8000),
}
"""Table of the platform specifications, by NVML's name of the GPU."""
