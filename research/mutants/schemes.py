"""What others would say of the same outputs: tolerances in use, each as its users use it.

All compare with the float64 reference, rounded once into the output's dtype. That is a better reference than
their own tests have, which is in their favour: no alarm of theirs comes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.error_model.bounds import TORCH_DEFAULTS
from pytest_cutile.tile.tensors.dtypes import name_of

if TYPE_CHECKING:
    import torch

Outputs = Sequence["torch.Tensor"]

# (rtol, atol) by dtype; equality for the others.
# NVIDIA/TileGym, tests/common.py, the tolerances of `assert_close` where a test gives none.
TILEGYM = {
    "float32": (1e-5, 1e-8),
    "float16": (1e-2, 1e-2),
    "bfloat16": (1e-2, 2e-2),
    "float8_e4m3fn": (1e-1, 1e-1),
    "float8_e5m2": (5e-1, 5e-1),
}


def passes_table(
    table: Mapping[str, tuple[float, float]], outputs: Outputs, expected: Outputs, eager: Outputs | None
) -> bool:
    """Say whether |out - y| <= atol + rtol |y| everywhere, with the tolerance of each output's dtype."""
    import torch

    del eager
    for out, y in zip(outputs, expected, strict=True):
        rtol, atol = table.get(name_of(out.dtype), (0.0, 0.0))
        if not torch.allclose(out.double(), y.double(), rtol=rtol, atol=atol, equal_nan=True):
            return False
    return True


def passes_twice_eager(outputs: Outputs, expected: Outputs, eager: Outputs | None) -> bool:
    """Say whether no error is more than twice the largest that PyTorch makes in the inputs' dtype.

    Dao-AILab/flash-attention, tests/test_flash_attn.py. Where PyTorch has no operator for the dtype, 8-bit
    floats for instance, it computes in bfloat16.
    """
    if eager is None:
        return True
    for out, y, pt in zip(outputs, expected, eager, strict=True):
        if not out.numel():
            continue
        worst, allowed = (float((result.double() - y.double()).abs().max()) for result in (out, pt))
        if not worst <= 2 * allowed:  # NaN is not
            return False
    return True


SCHEMES: dict[str, Callable[[Outputs, Outputs, Outputs | None], bool]] = {
    "TileGym's table": partial(passes_table, TILEGYM),
    "torch.testing": partial(passes_table, TORCH_DEFAULTS),
    "twice PyTorch's error": passes_twice_eager,
}
"""Say whether outputs pass, by name: (outputs, reference rounded, PyTorch's own or None)."""


def as_eager(inputs: Any) -> Any:
    """Return inputs as eager PyTorch code takes them: one dtype of 16 bits where there is any, or float32."""
    import torch

    from pytest_cutile.tile.tensors.trees import map_tensors, named_tensors

    kinds = [tensor.dtype for _, tensor in named_tensors(inputs, "") if tensor.dtype.is_floating_point]
    narrow = [torch.bfloat16 if kind.itemsize == 1 else kind for kind in kinds]
    if not narrow:
        return inputs
    lowest = min(narrow, key=lambda kind: kind.itemsize)
    return map_tensors(lambda tensor: tensor.to(lowest) if tensor.dtype.is_floating_point else tensor, inputs)
