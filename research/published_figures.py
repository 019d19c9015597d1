"""What NVIDIA published about FMHA with cuTile on DGX Spark and B300, as printed."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_cutile.words.platforms.published import B300, GB10
from pytest_cutile.words.spec import Work

BATCH, HEADS, HEAD_DIM = 4, 32, 128

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
    kernel: str = "fmha"
    """The kernel of this project that it is a baseline of; a step is one of `studies/fmha_ladder`."""

    @property
    def key(self) -> str:
        """The case's key in a file of baselines."""
        return f"{self.kernel}[fp16-causal-{BATCH}x{HEADS}x{self.length}x{HEAD_DIM}]"

    @property
    def time_us(self) -> float:
        """Time per launch that the printed TFLOPS stand for, in microseconds."""
        return nvidia_flops(self.length) / self.tflops * 1e-6


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
    Figure(length=2048, tflops=62.8, latency_ms=2.19, kernel="fmha_01_basic"),
    Figure(length=2048, tflops=66.5, latency_ms=2.07, kernel="fmha_02_exp2"),
    Figure(length=2048, tflops=66.3, latency_ms=2.07, kernel="fmha_03_load_order"),
    Figure(length=2048, tflops=66.5, latency_ms=2.07, kernel="fmha_04_latency"),
    Figure(length=2048, tflops=79.5, latency_ms=1.73, kernel="fmha_05_occupancy"),
    Figure(length=2048, tflops=81.1, latency_ms=1.69, kernel="fmha_06_approx_division"),
)
"""Table "DGX Spark (sm_121)" of the performance results; each step keeps those before it."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Throughput of a whole generation: 16 prompts of unstated length, and 50 new tokens for each."""

    gpu: str
    """As NVML names it."""
    title: str
    """The document's name of the configuration."""
    tokens_per_s: float
    """As printed: all new tokens over the time of prefill and decoding."""
    printed: str
    """What the document prints."""
    kernel: str = "qwen2-7b"
    """What it is a baseline of, beside the declared cases of that model."""
    model: str = "qwen2-7b"
    """Key of `models.weights.CONFIGS`."""

    @property
    def key(self) -> str:
        """The case's key in a file of baselines."""
        return f"{self.kernel}[generate-{GENERATED_BATCH}x{GENERATED_TOKENS}]"

    @property
    def work(self) -> Work:
        return Work(tokens=GENERATED_BATCH * GENERATED_TOKENS)

    @property
    def time_us(self) -> float:
        """Time of the whole generation, in microseconds."""
        return self.work.tokens / self.tokens_per_s * 1e6


GENERATED_BATCH, GENERATED_TOKENS = 16, 50
GENERATIONS = (
    Generation(
        gpu=GB10,
        title="Qwen2-7B_naive_bfloat16",
        tokens_per_s=15.66,
        printed="15.66 tokens/s, 51.10 s, 51151.0 ms of CUDA time",
        kernel="qwen2-7b_naive",
    ),
    Generation(
        gpu=GB10,
        title="Qwen2-7B_cutile_attn",
        tokens_per_s=18.52,
        printed="18.52 tokens/s, 43.20 s, 43079.7 ms of CUDA time",
    ),
    Generation(gpu=B300, title="cuTile", tokens_per_s=257.33, printed="257.33 tok/s"),
)
"""Sample results of the end-to-end inference on a DGX Spark, and the table that compares both platforms."""
