"""Does a kernel compute what its reference computes? `check_kernel` runs both and says."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cutile.core.tolerance import EXACT, FLOAT32, FLOAT64, FORMATS, FloatFormat, model_for
from pytest_cutile.gpu.compare import Bound, GivenTolerance, compare
from pytest_cutile.gpu.dtypes import DTYPE_NAMES, carrier_of, format_of, name_of, resolve_dtype
from pytest_cutile.gpu.findings import explain, fit
from pytest_cutile.gpu.noise import Reference, Spread, run_reference
from pytest_cutile.gpu.poison import poisoned_allocations
from pytest_cutile.gpu.trees import describe, map_tensors, named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import torch


class KernelMismatch(AssertionError):  # noqa: N818 - it reads as a verdict in pytest's report
    """A kernel's outputs are not what its reference computes, or it changed its inputs."""

    output: torch.Tensor | None = None
    """The first output that is wrong, if its elements could be compared."""
    index: tuple[int, ...] = ()
    """Its worst element."""


class ReferenceFailed(RuntimeError):  # noqa: N818 - likewise
    """The reference raised, or returned something that nothing can be compared with."""


class UncheckableOutput(TypeError):  # noqa: N818 - likewise
    """A kernel returned no tensor, or one of a dtype that cannot be compared."""


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


def check_kernel(
    fn: Callable[..., Any],
    *args: Any,
    reference: Callable[..., Any],
    reduction: int = 1,
    rtol: float | None = None,
    atol: float | None = None,
    precision: torch.dtype | str | None = None,
    mutates: Collection[str | int] = (),
    **kwargs: Any,
) -> CheckReport:
    """Run `fn(*args, **kwargs)` under guard and compare its outputs with `reference` in float64.

    While `fn` runs, memory from torch.empty and its relatives holds NaN, so that elements which are never
    written are seen; afterwards the inputs must be what they were, bit for bit.

    The bound follows from the dtypes, from `reduction` and from the reference itself: it runs once exactly
    and three times (twelve for outputs of under 256 elements) with noise of one float32 rounding, and as
    often again where a matrix product has operands that tensor cores would round. Memory: about six float64
    copies of the outputs, and what the reference takes.

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
        **kwargs: keyword arguments of `fn` and of `reference`.

    Raises:
        KernelMismatch: outputs outside the bound, of another shape or structure, or changed inputs.
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
    seed: int | None = None,
    inputs: str = "normal",
    run: Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any] | None = None,
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
        seed: of the inputs; only for the message of a failure.
        inputs: what they are called, likewise: one of `core.inputs.DISTRIBUTIONS` or of a spec's own.
        run: calls `fn` with its arguments and returns its outputs; by default over poisoned memory.
    """
    started = time.perf_counter()
    tolerance = _check_options(reduction, rtol, atol)
    operands = _operand_format(args, kwargs, precision)
    title = f"{_name(fn)} differs from its reference {_name(reference)}"
    saved = map_tensors(_copy, tuple(args)), map_tensors(_copy, dict(kwargs))
    outputs = _launch(fn, args, kwargs, run or _run_poisoned)
    _check_inputs(fn, (args, kwargs), saved, mutates)
    try:
        truth = run_reference(reference, *saved, operands=operands, estimate=tolerance is None)
    except Exception as error:
        raise ReferenceFailed(
            f"the reference {_name(reference)} of {_name(fn)} raised {type(error).__name__}: {error}"
        ) from error
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
            fit([title, *lines], last=None if seed is None else f"inputs: {inputs}, seed {seed}")
        )
        if first is not None:
            mismatch.output, mismatch.index = first
        raise mismatch
    return CheckReport(
        elements=sum(out.numel() for _, out, _ in pairs),
        worst_error=worst_error,
        worst_ulps=worst_ulps,
        bound="; ".join(bases),
        seconds=time.perf_counter() - started,
        reference_runs=truth.runs,
    )


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


def _run_poisoned(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with poisoned_allocations():
        return fn(*args, **kwargs)


def _launch(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    run: Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any],
) -> Any:
    import torch

    outputs = run(fn, args, kwargs)
    found = [tensor for _, tensor in named_tensors(outputs, "output")]
    if not found:
        raise UncheckableOutput(
            f"{_name(fn)} returned {describe(outputs)}: return the output tensor, or a tuple of them, "
            "to have them compared"
        )
    for tensor in found:
        if name_of(tensor.dtype) not in DTYPE_NAMES:
            raise UncheckableOutput(
                f"{_name(fn)} returned a tensor of {name_of(tensor.dtype)}; "
                f"only {', '.join(DTYPE_NAMES)} are compared"
            )
    for device in {tensor.device for tensor in found if tensor.is_cuda}:
        torch.cuda.synchronize(device)  # an error of the launch belongs here, not to the comparison
    return outputs


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _check_inputs(
    fn: Callable[..., Any],
    given: tuple[Sequence[Any], Mapping[str, Any]],
    saved: tuple[Sequence[Any], Mapping[str, Any]],
    mutates: Collection[str | int],
) -> None:
    """Raise KernelMismatch if an argument that is not in `mutates` has other bits than before."""
    import torch

    args, kwargs = given
    labels = [*_parameter_names(fn, len(args)), *kwargs]
    allowed = {labels[each] if isinstance(each, int) and each < len(labels) else each for each in mutates}
    if unknown := allowed - set(labels):
        raise ValueError(f"mutates names {sorted(map(str, unknown))}, but the arguments are {labels}")
    after, before = [*args, *kwargs.values()], [*saved[0], *saved[1].values()]
    for label, now, then in zip(labels, after, before, strict=True):
        if label in allowed:
            continue
        for (name, left), (_, right) in zip(
            named_tensors(now, label), named_tensors(then, label), strict=True
        ):
            carrier = carrier_of(left.dtype) if not left.is_complex() else None
            a, b = (left, right) if carrier is None else (left.detach().view(carrier), right.view(carrier))
            if not torch.equal(a, b):
                raise KernelMismatch(
                    f"{_name(fn)} changed its input {name} ({describe(left)}): "
                    f"{int((a != b).sum()):,} of {left.numel():,} elements have other bits than before\n"
                    f"if it is meant to, say so with mutates=[{label!r}]"
                )


def _parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first `count` positional parameters, by position where they have none."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in parameters if each.kind in kinds]
    return [*names[:count], *(f"argument {position}" for position in range(len(names), count))]


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
    if truth.exact:
        bound = Bound(target=target, model=EXACT, accumulation=Spread.none(out), operands=None)
        return bound, "correctly rounded: all products and sums of these inputs are exact"
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
