"""SiLU of the first half of each row times its second half: the gate of a fused gate-and-up projection.

    y[..., n] = silu(x[..., n]) * x[..., N + n],    silu(a) = a / (1 + exp(-a))

x is `[..., 2 N]`, y is `[..., N]`, both float16, bfloat16 or float32. Everything between load and store is
float32.

How it works: the halves are views of x, and the kernel of `kernels/swiglu.py` does the rest. The rows of a
half are apart in memory, so they cannot be treated as one long row.

Source: the layout is that of `SiluAndMul` in vLLM (https://github.com/vllm-project/vllm,
vllm/model_executor/layers/activation.py), where one product makes both halves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernels import swiglu
from kernels._cases import laid_out
from kernels._dtypes import ITEMSIZE, SHORT
from kernels._launch import check_config, check_tensors, find_arch, on_its_gpu
from kernels.swiglu import SwigluConfig, launch_swiglu
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


# -- configuration ----------------------------------------------------------------------------------


# By architecture, by itemsize. H200, 2026-11-21, driver 580.159.04, cold L2, interleaved, against SwiGLU's 8
# blocks an SM: fp16 8192x4096 30.6 us (31.2), 4096x4096 and 16384x4096 1 % less, others as fast within 1 %.
# Float32 was not measured here. Other architectures have SwiGLU's, for every itemsize.
CONFIGS = {
    **{arch: dict.fromkeys((2, 4), config) for arch, config in swiglu.CONFIGS.items()},
    "sm_90": {2: SwigluConfig(occupancy=4), 4: SwigluConfig()},
}


def choose_config(arch: str, *, itemsize: int) -> SwigluConfig:
    """Return the configuration for `arch` and elements of `itemsize` bytes; where it has none, SwiGLU's."""
    return CONFIGS[arch][itemsize] if arch in CONFIGS else swiglu.choose_config(arch)


# -- launcher ---------------------------------------------------------------------------------------


@on_its_gpu
def silu_and_mul(x: torch.Tensor, *, config: SwigluConfig | None = None) -> torch.Tensor:
    """Multiply the SiLU of the first half of each row by the second half.

    Forward only: no gradient flows through it.

    Args:
        x: `[..., 2 N]`, float16, bfloat16 or float32. Copied only if its leading axes do not merge.
        config: Instead of the one chosen for this GPU.

    Returns:
        `[..., N]`, same dtype and device, contiguous.

    Raises:
        TypeError: Not a tensor, a dtype that is not supported, another kernel's configuration.
        ValueError: The last axis is odd, or there is none; more rows than one launch takes.
    """
    import torch

    check_tensors("silu_and_mul", {"x": x}, dtypes=("float16", "bfloat16", "float32"))
    check_config("silu_and_mul", config, SwigluConfig)
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(
            f"silu_and_mul: the last axis of x holds two halves, so it must be even, got {list(x.shape)}"
        )
    n = x.shape[-1] // 2
    y = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    rows = x.reshape(-1, 2 * n)
    arch = find_arch("silu_and_mul", x, CONFIGS)
    config = config or choose_config(arch, itemsize=x.element_size())
    launch_swiglu("silu_and_mul", rows[:, :n], rows[:, n:], y.view(-1, n), config)
    return y


# -- what it is gated with --------------------------------------------------------------------------


def reference(x: torch.Tensor) -> torch.Tensor:
    """Follow the formula in float64."""
    a, b = x.chunk(2, dim=-1)
    return a / (1 + (-a).exp()) * b


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    shape: tuple[int, ...],
    dtype: str,
    transposed: bool = False,
    scale: float = 1.0,
) -> tuple[torch.Tensor, ...]:
    """Make x of `shape`, its values `scale` times normal; `transposed` makes its columns contiguous."""
    x = make_tensor(shape[::-1], dtype).T if transposed else make_tensor(shape, dtype)
    return (x * scale if scale != 1.0 else x,)


def work(*, shape: tuple[int, ...], dtype: str, transposed: bool = False, scale: float = 1.0) -> Work:
    """Count bytes only: x read once, y, which is half as large, written once."""
    del transposed, scale  # the same work, whatever they are
    return Work(bytes=1.5 * math.prod(shape) * ITEMSIZE[dtype], dtype=dtype)


def _case(dtype: str, *shape: int, transposed: bool = False, scale: float = 1.0, speed: bool = False) -> Case:
    short = SHORT[dtype]
    name = f"{short}-{'x'.join(map(str, shape))}" + "-transposed" * transposed
    if scale != 1.0:
        name += f"-scale{scale:g}"
    params = {"shape": shape, "dtype": dtype, "transposed": transposed, "scale": scale}
    # Other values would leave the range that `scale` is about.
    named_inputs = () if scale != 1.0 else None
    return Case(name=name, params=params, speed=speed, named_inputs=named_inputs)


SPEC = KernelSpec(
    name="silu_and_mul",
    launch=silu_and_mul,
    reference=reference,
    inputs=inputs,
    work=work,
    undefined_inputs={
        "outliers": "of the SiLU of a gate below -87, a subnormal number, float32 keeps few digits"
    },
    independent={"x": ("rows", None), "output": ("rows", None)},
    cases=[
        # 400 to 700 MB: TileGym's hidden size, the gates of Llama 3 8B and of Llama 2 7B (256 * 43 columns).
        _case("float16", 32768, 4096, speed=True),
        _case("bfloat16", 8192, 2 * 14336, speed=True),
        _case("bfloat16", 8192, 2 * 11008, speed=True),
        _case("float32", 16384, 4096, speed=True),
        # Halves of less than a tile, of one tile and of several, to each side; the second half unaligned.
        _case("float16", 37, 512),
        _case("bfloat16", 19, 510),
        _case("float32", 21, 514),
        _case("float16", 5, 4096),
        _case("bfloat16", 3, 4098),
        _case("float32", 3, 4094),
        _case("float16", 33, 600),
        # Leading axes, one row, one pair, columns contiguous.
        _case("bfloat16", 3, 5, 1536),
        _case("float32", 2, 3, 5, 130),
        _case("float16", 154),
        _case("float32", 2),
        _case("float16", 96, 200, transposed=True),
        # Half of the exponentials huge, half tiny.
        _case("float32", 3, 1000, scale=20.0),
        _case("bfloat16", 3, 1000, scale=20.0),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("bfloat16", 23, 602), "padded"),
        laid_out(_case("float16", 29, 520), "shifted"),
    ],
)
