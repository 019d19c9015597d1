"""What NVIDIA published about cuTile kernels on DGX Spark and B300, as printed.

The document gives no address of its own; it names https://github.com/NVIDIA/TileGym as the code that was run.
`python -m benchmarks.published_baselines` makes baselines of the FMHA figures, and `pytest-cutile compare`
shows the rest beside what was measured. docs/baselines.md says where the document contradicts itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_cutile.core.spec import Work

DOCUMENT = 'NVIDIA, "cuTile Kernels", playbook for DGX Spark (February 2026)'
GB10 = "NVIDIA GB10"
"""The GPU of a DGX Spark, as NVML names it."""
B300 = "NVIDIA B300 SXM6 AC"
"""The GPU that the document calls B300, as NVML names it."""

MARGIN = 0.10
"""Slowdown that a published figure can be trusted to show.

The document's own figures for one case differ by 5 %: 1159 over 88.9 TFLOPS is 13.0x, and its table of ratios
says 13.7x. Twice that leaves room for what else is different: TileGym's kernel ran, not ours, with CUDA 13.1;
it was timed by `triton.testing.do_bench_cudagraph`, which takes the mean and leaves the L2 warm (TileGym's
pull request 126 says so); and nothing is said about clocks, power or scatter. Rounding is at most 0.2 %, and
launch overhead is in neither their figures nor ours.
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One row of a table of FMHA figures: float16, causal, 4 batches of 32 heads of dimension 128."""

    length: int
    """Queries, and keys, of each head."""
    tflops: float
    """As printed, by NVIDIA's count (`nvidia_flops`)."""
    latency_ms: float | None = None
    """As printed, with fewer digits than `tflops`; None where it was not."""
    step: str = ""
    """Of the ladder of optimizations: its number and what it adds."""

    @property
    def key(self) -> str:
        """The case's key in a file of baselines."""
        return f"fmha-ladder[{self.step}]" if self.step else fmha_key(self.length)

    @property
    def time_us(self) -> float:
        """Time per launch that the printed TFLOPS stand for, in microseconds."""
        return nvidia_flops(self.length) / self.tflops * 1e-6


BATCH, HEADS, HEAD_DIM = 4, 32, 128


def fmha_key(length: int, *, causal: bool = True) -> str:
    """Return the key of the case of `kernels/fmha.py` that has the published shape."""
    return f"fmha[fp16{'-causal' * causal}-{BATCH}x{HEADS}x{length}x{HEAD_DIM}]"


def nvidia_flops(length: int) -> float:
    """Return NVIDIA's count for a causal case: half of the full square.

    So counts the playbook's `fmha_scaling_analysis.py`, and TileGym's `bench_fused_attention.py`.
    """
    return 0.5 * 4.0 * BATCH * HEADS * length * length * HEAD_DIM


def fmha_work(length: int) -> Work:
    """Return the work of a causal case as this project counts it: the diagonal is visible, too."""
    visible = length * (length + 1) // 2
    return Work(
        flops=4.0 * BATCH * HEADS * visible * HEAD_DIM,
        bytes=4 * BATCH * HEADS * length * HEAD_DIM * 2,
        dtype="float16",
    )


FMHA_GB10 = (
    Figure(length=1024, tflops=58.188262),
    Figure(length=2048, tflops=80.906892),
    Figure(length=4096, tflops=86.189532),
    Figure(length=8192, tflops=88.891086),
    Figure(length=16384, tflops=89.491869),
)
"""Sample output of `bench_fused_attention.py` on a DGX Spark."""
FMHA_B300 = (
    Figure(length=1024, tflops=465, latency_ms=0.074),
    Figure(length=2048, tflops=770, latency_ms=0.178),
    Figure(length=4096, tflops=999, latency_ms=0.550),
    Figure(length=8192, tflops=1159, latency_ms=1.897),
    Figure(length=16384, tflops=1254, latency_ms=7.014),
)
"""Table "B300 (sm_103)" of the performance results."""
LADDER_GB10 = (
    Figure(length=2048, tflops=62.8, latency_ms=2.19, step="1-basic"),
    Figure(length=2048, tflops=66.5, latency_ms=2.07, step="2-exp2"),
    Figure(length=2048, tflops=66.3, latency_ms=2.07, step="3-load_order"),
    Figure(length=2048, tflops=66.5, latency_ms=2.07, step="4-latency_hints"),
    Figure(length=2048, tflops=79.5, latency_ms=1.73, step="5-occupancy_2"),
    Figure(length=2048, tflops=81.1, latency_ms=1.69, step="6-approx_division"),
)
"""Table "DGX Spark (sm_121)" of the performance results; each step keeps those before it."""


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
    """A figure of Qwen2-7B (batch 16, 50 tokens) with cuTile kernels, on both platforms."""

    title: str
    """What it is of."""
    unit: str
    """Of the figures: "tokens/s", or "ms" of CUDA time."""
    gb10: float
    """On a GB10."""
    b300: float
    """On a B300."""

    @property
    def ratio(self) -> float:
        """How much faster the B300 is."""
        return self.b300 / self.gb10 if self.unit == "tokens/s" else self.gb10 / self.b300


QWEN2_7B = (
    Pair(title="throughput", unit="tokens/s", gb10=18.52, b300=257.33),
    Pair(title="all CUDA kernels", unit="ms", gb10=43080, b300=2954),
    Pair(title="fmha_kernel", unit="ms", gb10=4185.9, b300=337.9),
    Pair(title="swiglu_forward_kernel", unit="ms", gb10=2459.8, b300=226.3),
    Pair(title="attention_decode_kernel_grouped", unit="ms", gb10=2271.8, b300=111.0),
    Pair(title="rms_norm_kernel_static_persistent", unit="ms", gb10=634.7, b300=29.7),
    Pair(title="rope_kernel", unit="ms", gb10=355.6, b300=16.7),
)
"""Tables of the end-to-end inference; the ratios that they print follow from the figures."""


@dataclass(frozen=True, kw_only=True)
class Specification:
    """What the document says of a GPU."""

    arch: str
    """Architecture."""
    sm_count: int
    """Streaming multiprocessors."""
    memory_gb: int
    """Size of its memory."""
    memory: str
    """Kind of its memory."""
    bandwidth_gb_s: int
    """Bandwidth of its memory."""


SPECIFICATIONS = {
    GB10: Specification(arch="sm_121", sm_count=48, memory_gb=128, memory="LPDDR5x", bandwidth_gb_s=273),
    B300: Specification(arch="sm_103", sm_count=132, memory_gb=192, memory="HBM3e", bandwidth_gb_s=8000),
}
"""Table of the platform specifications, by NVML's name of the GPU."""
