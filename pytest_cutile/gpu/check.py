"""Does a kernel compute what its reference computes? `check_kernel` runs both and says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_cutile.core.tolerance import FLOAT32, FLOAT64, FORMATS, FloatFormat, model_for
from pytest_cutile.gpu.compare import Bound, GivenTolerance, compare
from pytest_cutile.gpu.dtypes import format_of, name_of, resolve_dtype
from pytest_cutile.gpu.errors import KernelMismatch, ReferenceFailed, UncheckableOutput
from pytest_cutile.gpu.findings import explain, fit
from pytest_cutile.gpu.launching import GuardedLauncher, Run
from pytest_cutile.gpu.noise import Reference, Spread, run_reference
from pytest_cutile.gpu.trees import describe, named_tensors

if TYPE_CHECKING:
    import torch

__all__ = [
    "CheckReport",
    "KernelMismatch",
    "ReferenceFailed",
    "UncheckableOutput",
    "check_kernel",
    "run_check",
]


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What a check that passed has seen."""

    elements: int
    """Elements compared, over all outputs."""
    worst_error: float
    """Largest error beyond the output's own rounding, in units of the bound: 1.0 is where it would fail."""
    worst_ulps: float
    """Largest distance from the correctly rounded value, in units of the output dtype's spacing there."""
    bound: str
    """What was allowed, in words: how the bound was derived, or the given rtol and atol."""
    seconds: float
    """Time the whole check took, the reference included."""
    reference_runs: int
    """How often the reference ran: once, and for a derived bound a few times with noise."""
    unguarded: tuple[str, ...] = ()
    """Inputs without NaN around them, and why: "x: requires grad"."""
    deterministic: bool | None = None
    """Whether a second run returned the same bits; None: there was none."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """In which other layouts of the inputs the launcher ran: "right", or that it refused, and how."""


def check_kernel(
    fn: Callable[..., Any],
    *args: Any,
    reference: Callable[..., Any],
    reduction: int = 1,
    rtol: float | None = None,
    atol: float | None = None,
    precision: torch.dtype | str | None = None,
    mutates: Collection[str | int] = (),
    writes: Collection[str | int] = (),
    guard: bool = True,
    vary_layout: bool | None = None,
    **kwargs: Any,
) -> CheckReport:
    """Run `fn(*args, **kwargs)` under guard and compare its outputs with `reference` in float64.

    While `fn` runs, memory from torch.empty and its relatives holds NaN, so that elements which are never
    written are seen. What it allocates lies between canaries, and the inputs, which are copies, between NaN:
    what it writes beside them is seen, and what it reads there is NaN. Afterwards the inputs must be what
    they were, bit for bit. Small cases (8 MiB of inputs and outputs) run again: once to see whether the bits
    are the same, which is only reported, and once for each other layout of the inputs.

    The bound follows from the dtypes, from `reduction` and from the reference itself: it runs once exactly
    and three times (twelve for outputs of under 256 elements) with noise of one float32 rounding, and as
    often again where a matrix product has operands that tensor cores would round. Memory: about six float64
    copies of the outputs, and what the reference takes; for the guards a copy of the inputs, with the gaps
    that their strides leave, and at most 2 MiB for each tensor.

    Args:
        fn: the launcher; it returns a tensor, or a tuple, list or dict of them.
        *args: its arguments.
        reference: takes the same arguments, with floating tensors (also inside tuples, lists and dicts)
            upcast to float64, and returns the same structure without rounding it: float64 for floating
            outputs. Integer and bool outputs must be equal to its integer or bool results.
        reduction: length of the longest sum behind one output element.
        rtol: with `atol`, replaces the derived bound: |out - y| <= atol + rtol |y|; each is 0 unless given.
        atol: see `rtol`.
        precision: dtype that operands of matrix products are rounded to; "tfloat32" for float32 inputs that
            go through tensor cores. By default the floating input dtype of least precision.
        mutates: arguments that `fn` may change, by name or position.
        writes: arguments that `fn` overwrites without reading them (`out`), likewise: they are poisoned.
        guard: False gives `fn` the very tensors that were given, and plain allocations, poisoned: for one
            that finds its data by offsets into a storage instead of by its tensors.
        vary_layout: whether to run again with the inputs' values in other layouts, under the same bound:
            with padded rows, from an address that is a multiple of one element only, and with the last two
            axes exchanged in memory. A launcher may refuse one with a ValueError or TypeError. By default
            the first two, and only in small cases; interpreted, the first.
        **kwargs: keyword arguments of `fn` and of `reference`.

    Raises:
        KernelMismatch: outputs outside the bound, of another shape or structure, changed inputs, or writes
            outside of them.
        ReferenceFailed: the reference raised, or returned floats of less than float64.
        UncheckableOutput: `fn` returned no tensor, or one of an unsupported dtype.
        ValueError: an option out of its range.
    """
    return run_check(
        fn,
        args,
        kwargs,
        reference=reference,
        reduction=reduction,
        rtol=rtol,
        atol=atol,
        precision=precision,
        mutates=mutates,
        writes=writes,
        guard=guard,
        vary_layout=vary_layout,
    )


def run_check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    reference: Callable[..., Any],
    reduction: int = 1,
    rtol: float | None = None,
    atol: float | None = None,
    precision: torch.dtype | str | None = None,
    mutates: Collection[str | int] = (),
    writes: Collection[str | int] = (),
    guard: bool = True,
    vary_layout: bool | None = None,
    seed: int | None = None,
    run: Run | None = None,
) -> CheckReport:
    """Do what `check_kernel` does, with the arguments of `fn` apart from the options of the check.

    Args:
        fn: see `check_kernel`, as for the rest.
        args: positional arguments of `fn`.
        kwargs: keyword arguments of `fn`.
        reference: see there.
        reduction: see there.
        rtol: see there.
        atol: see there.
        precision: see there.
        mutates: see there.
        writes: see there.
        guard: see there.
        vary_layout: see there.
        seed: of the inputs; only for the message of a failure.
        run: calls `fn` with its arguments and returns its outputs, and sees itself what is read and written
            where it should not be; by default it is called between bands, over poisoned memory.
    """
    started = time.perf_counter()
    tolerance = _check_options(reduction, rtol, atol)
    operands = _operand_format(args, kwargs, precision)
    title = f"{_name(fn)} differs from its reference {_name(reference)}"
    launcher = GuardedLauncher(fn, args, kwargs, mutates=mutates, writes=writes, guard=guard, run=run)
    outputs = launcher.launch()
    try:
        truth = run_reference(reference, *launcher.before, operands=operands, estimate=tolerance is None)
    except Exception as error:
        raise ReferenceFailed(
            f"the reference {_name(reference)} of {_name(fn)} raised {type(error).__name__}: {error}"
        ) from error

    def judge(outputs: Any) -> _Judged:
        return _judge(
            outputs, truth, title, tolerance=tolerance, reduction=reduction, operands=operands, seed=seed
        )

    try:
        judged = judge(outputs)
    except KernelMismatch as mismatch:
        if names := launcher.read_beside(outputs):
            said = f"what lies around input {', '.join(names)} reached the outputs: it is read out of bounds"
            mismatch.args = (f"{mismatch}\n{said}",)
        raise
    deterministic = launcher.repeats(outputs)
    layouts = _judge_layouts(launcher, judge, vary=vary_layout)
    return CheckReport(
        elements=judged.elements,
        worst_error=judged.worst_error,
        worst_ulps=judged.worst_ulps,
        bound=judged.bound,
        seconds=time.perf_counter() - started,
        reference_runs=truth.runs,
        unguarded=launcher.unguarded,
        deterministic=deterministic,
        layouts=layouts,
    )


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What the comparison of right outputs has seen; see `CheckReport`."""

    elements: int
    worst_error: float
    worst_ulps: float
    bound: str


def _judge(
    outputs: Any,
    truth: Reference,
    title: str,
    *,
    tolerance: tuple[float, float] | None,
    reduction: int,
    operands: FloatFormat,
    seed: int | None,
) -> _Judged:
    """Compare all outputs of a launch, or raise KernelMismatch."""
    pairs = _pair(outputs, truth.outputs, title, exact_needed=tolerance is None)

    lines: list[str] = []
    first: tuple[torch.Tensor, tuple[int, ...]] | None = None
    bases: dict[str, None] = {}
    worst_error = worst_ulps = 0.0
    for name, out, exact in pairs:
        bound, basis = _bound(name, out, truth, tolerance, reduction=reduction, operands=operands)
        bases[basis] = None
        result = compare(out, exact, bound)
        worst_error = max(worst_error, result.worst.error if result.worst else 0.0)
        worst_ulps = max(worst_ulps, result.worst_ulps)
        if result.outside is not None and lines:
            lines.append(f"{name} ({describe(out)}) is wrong too: {int(result.outside.sum()):,} elements")
        elif result.outside is not None:
            lines = explain(name, out, exact, result, basis=basis)
            first = (out, result.worst.index) if result.worst is not None else None
    if lines:
        mismatch = KernelMismatch(
            fit([title, *lines], last=None if seed is None else f"seed of the inputs: {seed}")
        )
        if first is not None:
            mismatch.output, mismatch.index = first
        raise mismatch
    return _Judged(
        elements=sum(out.numel() for _, out, _ in pairs),
        worst_error=worst_error,
        worst_ulps=worst_ulps,
        bound="; ".join(bases),
    )


def _judge_layouts(
    launcher: GuardedLauncher, judge: Callable[[Any], _Judged], *, vary: bool | None
) -> dict[str, str]:
    """Launch with the inputs in other layouts; return what came of each, or raise KernelMismatch."""
    said: dict[str, str] = {}
    for layout in launcher.layouts(vary):
        varied = launcher.vary(layout)
        if varied is None:
            continue
        try:
            judge(launcher.launch_with(varied.values))
            said[layout] = "right"
        except KernelMismatch as mismatch:
            mismatch.args = (f"with inputs of {layout}: {mismatch}\n  {layout}: {varied.description}",)
            raise
        except UncheckableOutput:
            raise
        except (TypeError, ValueError) as error:
            said[layout] = f"refused: {type(error).__name__}: {error}".partition("\n")[0]
        except Exception as error:
            error.add_note(f"with inputs of {layout}, as the check varies it: see vary_layout")
            raise
    return said


def _check_options(reduction: int, rtol: float | None, atol: float | None) -> tuple[float, float] | None:
    if not isinstance(reduction, int) or reduction < 1:
        raise ValueError(f"reduction is the length of a sum, an int of at least 1; got {reduction!r}")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    return None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)


def _operand_format(
    args: Sequence[Any], kwargs: Mapping[str, Any], precision: torch.dtype | str | None
) -> FloatFormat:
    """Return what tensor cores round operands to: `precision`, else the coarsest floating input dtype."""
    if precision is not None:
        if precision in ("tf32", "tfloat32"):
            return FORMATS["tfloat32"]
        found = format_of(resolve_dtype(precision))
        if found is None:
            raise ValueError(f"precision must be a floating-point dtype or 'tfloat32', got {precision!r}")
        return found
    tensors = (tensor for _, tensor in named_tensors((tuple(args), dict(kwargs)), "input"))
    formats = [found for tensor in tensors if (found := format_of(tensor.dtype)) is not None]
    return min(formats, key=lambda each: each.precision, default=FLOAT32)


def _pair(
    outputs: Any, exact: Any, title: str, *, exact_needed: bool
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return every output with its exact value, or raise if they cannot be compared."""
    left, right = dict(named_tensors(outputs, "output")), dict(named_tensors(exact, "output"))
    shapes = [tuple(each.shape) for each in left.values()], [tuple(each.shape) for each in right.values()]
    if left.keys() != right.keys() or shapes[0] != shapes[1]:
        raise KernelMismatch(
            f"{title} in structure or shape:\n  got       {describe(outputs)}\n  reference {describe(exact)}"
        )
    for name, out in left.items():
        kind = right[name].dtype
        if out.dtype.is_floating_point and kind.is_floating_point and exact_needed and kind.itemsize < 8:  # noqa: PLR2004
            raise ReferenceFailed(
                f"the reference returned {name} as {name_of(kind)}: it has to compute and return float64, "
                "without rounding to the kernel's dtype, or rtol and atol have to be given"
            )
        if kind.is_complex or (kind.is_floating_point and not out.dtype.is_floating_point):
            raise ReferenceFailed(
                f"the reference returned {name} as {name_of(kind)}, the kernel as {name_of(out.dtype)}: "
                "integer and bool outputs are compared exactly, with integers or bool"
            )
    return [(name, out, right[name].to(out.device)) for name, out in left.items()]


def _bound(
    name: str,
    out: torch.Tensor,
    truth: Reference,
    tolerance: tuple[float, float] | None,
    *,
    reduction: int,
    operands: FloatFormat,
) -> tuple[Bound | GivenTolerance | None, str]:
    """Return the bound of one output, and what it is in words."""
    import torch

    target = format_of(out.dtype)
    if target is None:
        return None, "equal (integers and bool)"
    if tolerance is not None:
        rtol, atol = tolerance
        return (
            GivenTolerance(rtol=rtol, atol=atol, target=target),
            f"rtol={rtol:g}, atol={atol:g}, as given in place of the derived bound",
        )
    accumulation = FLOAT64 if target is FLOAT64 else FLOAT32
    hopper = out.is_cuda and torch.cuda.get_device_capability(out.device)[0] == 9  # noqa: PLR2004
    multiplied = operands if truth.has_products else None
    basis = f"derived from reduction={reduction}, {accumulation.name} accumulation"
    if multiplied is not None:
        basis += f", {multiplied.name} operands"
    return (
        Bound(
            target=target,
            model=model_for(reduction, accumulation=accumulation, operands=multiplied, hopper=hopper),
            accumulation=truth.accumulation.get(name) or Spread.none(out),
            operands=truth.operands.get(name),
        ),
        basis,
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
