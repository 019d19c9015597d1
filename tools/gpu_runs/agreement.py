"""Do two launches compute the same? Coarsely for many configurations, sharply for the one that is kept."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.check import CheckReport, KernelMismatch, run_check
from pytest_cutile.tile.tensors.trees import describe, named_tensors
from pytest_cutile.words.spec import Case, KernelSpec
from tools.gpu_runs.inputs import as_arguments
from tools.gpu_runs.suites import Prepared

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 24
"""Elements compared at a time, so that many processes can compare on one GPU."""
LEAST_TOLERANCE = 1e-4
"""Of float32 results, whose sums and exponentials differ by more than a rounding."""
SHARP_FLOPS = 4e12
"""Operations per launch up to which the gate's own bounds are used: they need the float64 reference up to
a dozen times, which takes an H200 some seconds."""


def check_exactly(case: Prepared, config: Any = None) -> None:
    """Compare a launch with its float64 reference: by the gate's bounds where affordable, else coarsely.

    Args:
        case: with its arguments.
        config: None is the one that the launcher chooses.

    Raises:
        KernelMismatch: it is wrong.
        Exception: whatever launch or reference raise.
    """
    spec = case.suite.spec
    if spec.work_of(case.case).flops > SHARP_FLOPS:
        said = describe_difference(case.launcher(config)(), case.exact(), case.inputs)
        if said is not None:
            raise KernelMismatch(said)
        return
    args, kwargs = as_arguments(case.inputs)
    check_launch(spec, case.case, args, kwargs, config=config)


def check_launch(
    spec: KernelSpec,
    case: Case,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    config: Any = None,
    sampled: bool = False,
) -> CheckReport:
    """Compare a launch with its float64 reference, as the gate `correct` does, in one layout of its inputs.

    Args:
        spec: the kernel.
        case: which of its cases.
        args: positional arguments of its launch.
        kwargs: keyword arguments.
        config: None is the one that the launcher chooses.
        sampled: whether a few parts of a large case are enough.

    Raises:
        KernelMismatch: it is wrong.
        Exception: whatever launch or reference raise.
    """
    more = {} if config is None else {"config": config}

    @functools.wraps(spec.launch)
    def launch(*args: Any, **kwargs: Any) -> Any:
        return spec.launch(*args, **kwargs, **more)

    return run_check(
        launch,
        args,
        kwargs,
        reference=spec.reference,
        # Another layout would compile another kernel, which nobody times.
        options=spec.check_options(case, sampled=sampled, vary_layout=False),
    )


def describe_difference(got: Any, expected: Any, inputs: Any) -> str | None:
    """Say how two results differ, coarsely; None if they do not.

    Each element has to agree within a few roundings of the coarsest dtype involved, relative to its value
    and to the root mean square of its row or of all, whichever is larger: enough to see a tile that is
    missing, read twice or misplaced. Of its row, because the first rows of causal attention are much larger
    than the others, and an element near zero in them is as noisy as its neighbours.

    Args:
        got: a tensor, or a tree of them. Where one side has more tensors, the others are not compared.
        expected: likewise.
        inputs: their dtypes say how coarse the arithmetic is.
    """
    left, right = list(named_tensors(got, "output")), list(named_tensors(expected, "output"))
    if not left or not right:
        return f"returned {describe(got)}, not {describe(expected)}"
    rounding = max((_eps(tensor) for _, tensor in named_tensors(inputs, "input")), default=0.0)
    for (name, own), (_, other) in zip(left, right, strict=False):
        if own.numel() != other.numel():
            return f"{name} is {describe(own)}, not {describe(other)}"
        tolerance = max(LEAST_TOLERANCE, rounding, 4 * _eps(own), 4 * _eps(other))
        if (wrong := _count_differences(own, other, tolerance)) > 0:
            return f"{name}: {wrong:,} of {own.numel():,} elements differ by more than {tolerance:.2g}"
    return None


def _eps(tensor: torch.Tensor) -> float:
    import torch

    return float(torch.finfo(tensor.dtype).eps) if tensor.dtype.is_floating_point else 0.0


def _count_differences(own: torch.Tensor, other: torch.Tensor, tolerance: float) -> int:
    if not own.numel():
        return 0
    columns = other.shape[-1] if other.ndim else 1
    own, other = own.detach().reshape(-1, columns), other.detach().reshape(-1, columns)
    rows = max(1, CHUNK // columns)
    squares = sum(float(part.float().nan_to_num(0, 0, 0).square().sum()) for part in other.split(rows))
    rms = math.sqrt(squares / other.numel())
    wrong = 0
    for a, b in zip(own.split(rows), other.split(rows), strict=True):
        x, y = a.float(), b.to(a.device).float()
        of_row = y.nan_to_num(0, 0, 0).square().mean(1, keepdim=True).sqrt_()
        close = (x - y).abs() <= tolerance * (y.abs() + of_row.clamp(min=rms))
        wrong += int((~(close | (x == y) | (x.isnan() & y.isnan()))).sum())
    return wrong
