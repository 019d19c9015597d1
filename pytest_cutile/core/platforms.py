"""What each GPU can do at most: the limits that a measured figure is compared with, and never exceeds.

Every figure is dense (no 2:4 sparsity) and comes from the document in `source`; `note` says what was derived
and how. Where documents disagree, the higher value stands: a limit that is too low would call an honest
measurement impossible. Names are those of NVIDIA's driver (the list of supported GPUs in the README of
open-gpu-kernel-modules 595.45.04), which NVML and `torch.cuda.get_device_name` report; they match exactly,
because "NVIDIA GeForce RTX 4090 D" and "NVIDIA GeForce RTX 4090 Laptop GPU" are other chips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One GPU model, or several that share every limit."""

    names: tuple[str, ...]
    """Device names, exactly as NVML and torch report them: ("NVIDIA H200",)."""
    arch: str
    """Architecture in cuTile's spelling: "sm_90"."""
    sm_count: int
    """Streaming multiprocessors that CUDA reports."""
    memory: str | None = None
    """Size and kind of its memory: "141 GB HBM3e"; None where documents disagree, or boards differ."""
    memory_bandwidth_gb_s: float
    """Peak DRAM bandwidth, 1e9 bytes per second. Reads out of the L2 can be faster."""
    dense_tflops: Mapping[str, float]
    """Peak rate by dtype of the multiplied operands, 1e12 operations per second: tensor cores, except
    "float32" (CUDA cores) and "float64" (the faster of the two). No key: no published figure."""
    boost_clock_mhz: int | None = None
    """SM clock that the tensor-core rates are given at; None where NVIDIA publishes none."""
    reaches_max_clock: str = ""
    """Measurement that found it at NVML's highest SM clock under load, unless its power was capped. Empty
    where there is none: many GPUs never get there, so that a lower clock tells nothing."""
    source: str
    """Document (title and address) that the figures come from."""
    note: str = ""
    """What was derived and how, and which value was taken where documents disagree."""

    def tflops_limit(self, dtype: str, *, max_sm_clock_mhz: float | None = None) -> float | None:
        """Return the rate in TFLOPS that no kernel on `dtype` operands can exceed; None where unknown.

        Published rates hold at the published boost clock, but a GPU may clock higher for a while (an H200
        is rated at 1830 MHz and reaches 1980). Pass the highest SM clock of the measurement, or of the GPU,
        and the limit grows with it; it never shrinks below the published rate.
        """
        rate = self.dense_tflops.get(dtype)
        if rate is None or max_sm_clock_mhz is None or self.boost_clock_mhz is None:
            return rate
        return rate * max(1.0, max_sm_clock_mhz / self.boost_clock_mhz)


def find_platform(gpu_name: str) -> Platform | None:
    """Return the platform of a device name as NVML or torch reports it, or None if it is not in the table."""
    return _BY_NAME.get(_fold(gpu_name))


def representative(arch: str) -> Platform | None:
    """Return the GPU that stands for `arch` ("sm_90") where there is none, or None if the table has none.

    Its SM count is what launch code sees while it is traced without a GPU.
    """
    return next((platform for platform in PLATFORMS if platform.arch == arch), None)


def gpu_slug(gpu_name: str) -> str:
    """Return a device name in the form used in file names: "NVIDIA H200" is "nvidia-h200".

    Raises:
        ValueError: `gpu_name` has no letter or digit.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")
    if not slug:
        raise ValueError(f"GPU name {gpu_name!r} has no letter or digit, so no file can be named after it")
    return slug


def _fold(gpu_name: str) -> str:
    return " ".join(gpu_name.split()).casefold()


def _rates(
    *,
    fp32: float,
    tf32: float,
    fp16: float,
    bf16: float | None = None,
    fp8: float | None = None,
    int8: float | None = None,
    fp64: float | None = None,
) -> Mapping[str, float]:
    """Return rates by cuTile's dtype names; bf16 is as fast as fp16, and int8 as fp8, unless given."""
    rates = {
        "float16": fp16,
        "bfloat16": fp16 if bf16 is None else bf16,
        "tfloat32": tf32,
        "float8_e4m3fn": fp8,
        "float8_e5m2": fp8,
        "int8": fp8 if int8 is None else int8,
        "float32": fp32,
        "float64": fp64,
    }
    return MappingProxyType({dtype: rate for dtype, rate in rates.items() if rate is not None})


_A100 = _rates(fp64=19.5, fp32=19.5, tf32=156, fp16=312, int8=624)
_A100_SOURCE = (
    "NVIDIA A100 Tensor Core GPU datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/"
    "a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_GH100 = _rates(fp64=67, fp32=67, tf32=494.7, fp16=989.4, fp8=1978.9)
_GH100_NVL = _rates(fp64=60, fp32=60, tf32=417.5, fp16=835.5, fp8=1670.5)
_H100_WHITEPAPER = (
    "NVIDIA H100 Tensor Core GPU Architecture whitepaper, table 1, "
    "https://www.techpowerup.com/gpu-specs/docs/nvidia-gh100-architecture.pdf"
)
_H100_PAGE = (
    "NVIDIA H100 Tensor Core GPU, product specifications, https://www.nvidia.com/en-us/data-center/h100/"
)
_H200_PAGE = (
    "NVIDIA H200 Tensor Core GPU, product specifications, https://www.nvidia.com/en-us/data-center/h200/"
)
_GH200_PAGE = (
    "NVIDIA GH200 Grace Hopper Superchip, product specifications, "
    "https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/"
)
_BLACKWELL = (
    "NVIDIA Blackwell datasheet 3384703, https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703"
)
_BLACKWELL_ULTRA = (
    "NVIDIA Blackwell Ultra datasheet, "
    "https://resources.nvidia.com/en-us-blackwell-architecture/blackwell-ultra-datasheet"
)
_GA102_WHITEPAPER = (
    "NVIDIA Ampere GA102 GPU Architecture whitepaper V2.0, appendices A and C, "
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/geforce/ampere/pdf/"
    "NVIDIA-ampere-GA102-GPU-Architecture-Whitepaper-V1.pdf"
)
_ADA_WHITEPAPER = (
    "NVIDIA Ada GPU Architecture whitepaper V2.01, appendix A, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
)
_HOPPER_NOTE = (
    "tensor-core rates are the published sparse ones / 2, given at 1830 MHz; fp32 and fp64 at 1980 MHz"
)
_GEFORCE_NOTE = (
    "fp16 and fp8 rates are those with fp16 accumulation: with fp32 accumulation this GPU runs at half of "
    "them, so 50 % is the most that such a kernel can show; bf16 and tf32 accumulate in fp32 only"
)

PLATFORMS: tuple[Platform, ...] = (
    # The first one of an architecture represents it.
    Platform(
        names=("NVIDIA A100-SXM4-80GB",),
        arch="sm_80",
        sm_count=108,
        memory="80 GB HBM2e",
        memory_bandwidth_gb_s=2039,
        dense_tflops=_A100,
        boost_clock_mhz=1410,
        source=_A100_SOURCE,
    ),
    Platform(
        names=("NVIDIA A100 80GB PCIe",),
        arch="sm_80",
        sm_count=108,
        memory="80 GB HBM2e",
        memory_bandwidth_gb_s=1935,
        dense_tflops=_A100,
        boost_clock_mhz=1410,
        source=_A100_SOURCE,
    ),
    Platform(
        names=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
        arch="sm_80",
        sm_count=108,
        memory="40 GB HBM2",
        memory_bandwidth_gb_s=1555,
        dense_tflops=_A100,
        boost_clock_mhz=1410,
        source=_A100_SOURCE,
    ),
    Platform(
        names=("NVIDIA RTX A6000",),
        arch="sm_86",
        sm_count=84,
        memory="48 GB GDDR6",
        memory_bandwidth_gb_s=768,
        dense_tflops=_rates(fp32=38.7, tf32=77.4, fp16=154.8, int8=309.7),
        boost_clock_mhz=1800,
        source=_GA102_WHITEPAPER,
    ),
    Platform(
        names=("NVIDIA GeForce RTX 3090",),
        arch="sm_86",
        sm_count=82,
        memory="24 GB GDDR6X",
        memory_bandwidth_gb_s=936,
        dense_tflops=_rates(fp32=35.6, tf32=35.6, bf16=71.2, fp16=142.3, int8=284.7),
        boost_clock_mhz=1695,
        source=_GA102_WHITEPAPER,
        note=_GEFORCE_NOTE,
    ),
    Platform(
        names=("Orin", "Orin (nvgpu)"),
        arch="sm_87",
        sm_count=16,
        memory_bandwidth_gb_s=204.8,
        dense_tflops=_rates(fp32=5.3, tf32=21.25, fp16=42.5, int8=85),
        boost_clock_mhz=1300,
        source=(
            "NVIDIA Jetson AGX Orin Series technical brief v1.2, https://www.nvidia.com/content/dam/en-zz/"
            "Solutions/gtcf21/jetson-orin/nvidia-jetson-agx-orin-technical-brief.pdf"
        ),
        note=(
            "int8 is the published 170 sparse TOPS / 2; fp16 is half of int8 and tf32 half of fp16, the "
            "ratios of the Ampere tensor core. Orin NX and Nano report the same name: for them these are "
            "loose limits"
        ),
    ),
    Platform(
        names=("NVIDIA GeForce RTX 4090",),
        arch="sm_89",
        sm_count=128,
        memory="24 GB GDDR6X",
        memory_bandwidth_gb_s=1008,
        dense_tflops=_rates(fp32=82.6, tf32=82.6, bf16=165.2, fp16=330.3, fp8=660.6),
        boost_clock_mhz=2520,
        source=_ADA_WHITEPAPER,
        note=_GEFORCE_NOTE,
    ),
    Platform(
        names=("NVIDIA L40S",),
        arch="sm_89",
        sm_count=142,
        memory="48 GB GDDR6",
        memory_bandwidth_gb_s=864,
        dense_tflops=_rates(fp32=91.6, tf32=183.25, fp16=366.5, fp8=733),
        boost_clock_mhz=2520,
        source="NVIDIA L40S datasheet, https://www.nvidia.com/en-us/data-center/l40s/",
        note=(
            "published dense fp16 is 362.05, and 733 sparse: 733 / 2 is taken, which 142 SMs at 2520 MHz give"
        ),
    ),
    Platform(
        names=("NVIDIA L4",),
        arch="sm_89",
        sm_count=58,
        memory="24 GB GDDR6",
        memory_bandwidth_gb_s=300,
        dense_tflops=_rates(fp32=30.3, tf32=60.6, fp16=121.2, fp8=242.5),
        boost_clock_mhz=2040,
        source="NVIDIA L4 datasheet, https://www.nvidia.com/en-us/data-center/l4/",
        note=(
            "tensor-core rates are the published sparse fp8 (485) / 2, / 4 and / 8, as printed but less "
            "rounded"
        ),
    ),
    Platform(
        names=("NVIDIA H200",),
        arch="sm_90",
        sm_count=132,
        memory="141 GB HBM3e",
        memory_bandwidth_gb_s=4800,
        dense_tflops=_GH100,
        boost_clock_mhz=1830,
        reaches_max_clock="1980 MHz in 156 of the 189 runs of baselines/sm_90-nvidia-h200.json",
        source=_H200_PAGE,
        note=_HOPPER_NOTE,
    ),
    Platform(
        names=("NVIDIA H200 NVL",),
        arch="sm_90",
        sm_count=132,
        memory="141 GB HBM3e",
        memory_bandwidth_gb_s=4800,
        dense_tflops=_GH100_NVL,
        boost_clock_mhz=1545,
        source=_H200_PAGE,
        note=(
            "tensor-core rates are the published sparse ones / 2; 132 SMs reach them at 1545 MHz (derived)"
        ),
    ),
    Platform(
        names=("NVIDIA H100 80GB HBM3",),
        arch="sm_90",
        sm_count=132,
        memory="80 GB HBM3",
        memory_bandwidth_gb_s=3350,
        dense_tflops=_GH100,
        boost_clock_mhz=1830,
        reaches_max_clock=(
            "1980 MHz at each of 24 looks at a copy, a softmax and an exponential, 1125 to 1440 MHz with its "
            "power capped at all 6 at a bfloat16 product (one board, driver 580.159.04, torch 2.11.0)"
        ),
        source=_H100_WHITEPAPER,
        note=_HOPPER_NOTE,
    ),
    Platform(
        names=("NVIDIA H100 NVL",),
        arch="sm_90",
        sm_count=132,
        memory="94 GB HBM3",
        memory_bandwidth_gb_s=3938,
        dense_tflops=_GH100_NVL,
        boost_clock_mhz=1545,
        source=_H100_PAGE,
        note=(
            "tensor-core rates are the published sparse ones / 2; 132 SMs reach them at 1545 MHz "
            "(derived); the product page rounds the bandwidth to 3.9 TB/s, the product brief says 3938 "
            "GB/s"
        ),
    ),
    Platform(
        names=("NVIDIA H100 PCIe",),
        arch="sm_90",
        sm_count=114,
        memory="80 GB HBM2e",
        memory_bandwidth_gb_s=2039,
        dense_tflops=_rates(fp64=51.2, fp32=51.2, tf32=378.2, fp16=756.5, fp8=1513),
        boost_clock_mhz=1620,
        source=_H100_WHITEPAPER,
        note=(
            "published as 2 TB/s; 5120 bits at the 1593 MHz of the product brief (PB-11133-001) make 2039 "
            "GB/s. Tensor-core rates are given at 1620 MHz, fp32 and fp64 at 1755 MHz"
        ),
    ),
    Platform(
        names=("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"),
        arch="sm_90",
        sm_count=132,
        memory="96 GB HBM3",
        memory_bandwidth_gb_s=4022,
        dense_tflops=_GH100,
        boost_clock_mhz=1830,
        source=_GH200_PAGE,
        note=(
            f"the 96 GB HBM3 model: published as 4 TB/s, 6144 bits at 2619 MHz make 4022 GB/s; {_HOPPER_NOTE}"
        ),
    ),
    Platform(
        names=("NVIDIA GH200 144G HBM3e",),
        arch="sm_90",
        sm_count=132,
        memory="144 GB HBM3e",
        memory_bandwidth_gb_s=4900,
        dense_tflops=_GH100,
        boost_clock_mhz=1830,
        source=_GH200_PAGE,
        note=_HOPPER_NOTE,
    ),
    Platform(
        names=("NVIDIA B200",),
        arch="sm_100",
        sm_count=148,
        memory="180 GB HBM3e",
        memory_bandwidth_gb_s=8000,
        dense_tflops=_rates(fp64=40, fp32=80, tf32=1125, fp16=2250, fp8=4500),
        source=_BLACKWELL,
        note=(
            "sparse rates / 2. The datasheet says 7.7 TB/s, 2.2 PFLOPS sparse tf32, 75 TFLOPS fp32 and 37 "
            "fp64; the earlier Blackwell Architecture Technical Brief says 8, 80 and 40, and half of fp16 "
            "is 1125"
        ),
    ),
    Platform(
        names=("NVIDIA GB200",),
        arch="sm_100",
        sm_count=152,
        memory="186 GB HBM3e",
        memory_bandwidth_gb_s=8000,
        dense_tflops=_rates(fp64=45, fp32=90, tf32=1250, fp16=2500, fp8=5000),
        source=_BLACKWELL,
        note=(
            "per GPU; sparse rates / 2. The datasheet says 80 TFLOPS fp32 and 40 fp64, the earlier "
            "Blackwell Architecture Technical Brief 90 and 45"
        ),
    ),
    Platform(
        names=("NVIDIA B300 SXM6 AC",),
        arch="sm_103",
        sm_count=148,
        memory_bandwidth_gb_s=8000,
        dense_tflops=_rates(fp64=1.25, fp32=75, tf32=1125, fp16=2250, fp8=4500, int8=153.5),
        source=_BLACKWELL_ULTRA,
        note=(
            "HGX B300 / 8 GPUs, sparse rates / 2. CUDA reports 148 SMs; the full chip has 160, and "
            "NVIDIA's DGX Spark playbook says 132. The bandwidth is published as 8 TB/s per GPU and as 62 "
            "TB/s for 8"
        ),
    ),
    Platform(
        names=("NVIDIA GB300",),
        arch="sm_103",
        sm_count=152,
        memory_bandwidth_gb_s=8000,
        dense_tflops=_rates(fp64=1.39, fp32=83.3, tf32=1250, fp16=2500, fp8=5000, int8=166.7),
        source=_BLACKWELL_ULTRA,
        note="GB300 NVL72 / 72 GPUs, sparse rates / 2; CUDA reports 152 SMs, the full chip has 160",
    ),
    Platform(
        names=("NVIDIA Thor",),
        arch="sm_110",
        sm_count=20,
        memory="128 GB LPDDR5X",
        memory_bandwidth_gb_s=273,
        dense_tflops=_rates(fp32=8.06, tf32=129.4, fp16=258.8, fp8=517.5),
        boost_clock_mhz=1570,
        source=(
            "NVIDIA Jetson Thor (T5000), product specifications, "
            "https://www.nvidia.com/en-us/autonomous-machines/embedded-systems/jetson-thor/"
        ),
        note=(
            "from the published 2070 sparse fp4 TFLOPS: dense fp8 is a quarter, fp16 half of fp8, tf32 "
            "half of fp16; fp32 is 2560 cores x 2 x 1.57 GHz. T4000 is smaller: for it these are loose "
            "limits"
        ),
    ),
    Platform(
        names=("NVIDIA GeForce RTX 5090",),
        arch="sm_120",
        sm_count=170,
        memory="32 GB GDDR7",
        memory_bandwidth_gb_s=1792,
        dense_tflops=_rates(fp32=104.8, tf32=104.8, bf16=209.5, fp16=419, fp8=838),
        boost_clock_mhz=2407,
        source=(
            "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A, https://images.nvidia.com/aem-dam/"
            "Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
        ),
        note=_GEFORCE_NOTE,
    ),
    Platform(
        names=(
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        ),
        arch="sm_120",
        sm_count=188,
        memory="96 GB GDDR7",
        memory_bandwidth_gb_s=1792,
        dense_tflops=_rates(fp32=126, tf32=251.9, fp16=503.8, fp8=1007.6),
        boost_clock_mhz=2617,
        source=(
            "NVIDIA RTX Blackwell PRO GPU Architecture whitepaper, "
            "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/rtx-pro-6000/"
        ),
        note=(
            "figures of the Workstation Edition; Max-Q and Server Edition have the same SMs at lower "
            "clocks, and the Server Edition's datasheet says 1597 GB/s: for them these are loose limits"
        ),
    ),
    Platform(
        names=("NVIDIA GB10",),
        arch="sm_121",
        sm_count=48,
        memory="128 GB LPDDR5x",
        memory_bandwidth_gb_s=273,
        dense_tflops=_rates(fp32=31, tf32=125, fp16=250, fp8=250),
        source="NVIDIA DGX Spark User Guide, hardware, https://docs.nvidia.com/dgx/dgx-spark/hardware.html",
        note=(
            "NVIDIA publishes 1 PFLOPS sparse fp4 and 31 TFLOPS fp32 (Hot Chips 2025). Dense fp8 is a "
            "quarter of the fp4 figure; fp16 is no slower: NVIDIA's aiconfigurator records 213 TFLOPS "
            "fp16 and 214 fp8, measured; tf32 is taken as half of fp16. Loose limits for fp32 "
            "accumulation. Hot Chips gave the chip's memory interface as 301 GB/s; every GB10 system is "
            "sold with 273"
        ),
    ),
)

_BY_NAME = {_fold(name): platform for platform in PLATFORMS for name in platform.names}
