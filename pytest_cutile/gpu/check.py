"""Does a kernel compute what its reference computes? `check_kernel` runs both and says."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.core.tolerance import FLOAT32, FORMATS, Contract, FloatFormat
from pytest_cutile.gpu.bounds import Bounds, accumulation_of
from pytest_cutile.gpu.compare import Comparison, compare
from pytest_cutile.gpu.dtypes import DTYPE_NAMES, carrier_of, format_of, name_of, resolve_dtype
from pytest_cutile.gpu.findings import also_wrong, explain, fit
from pytest_cutile.gpu.ladder import rungs, what_would_pass
from pytest_cutile.gpu.noise import allow, run_exactly, run_reference
from pytest_cutile.gpu.poison import poisoned_allocations
from pytest_cutile.gpu.strength import Checked, strength_of
from pytest_cutile.gpu.trees import describe, map_tensors, named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import torch

    from pytest_cutile.core.strength import Strength


LADDER_SECONDS = 20.0
"""Length of a check from which a failure is reported without looking for what would have passed."""


class KernelMismatch(AssertionError):  # noqa: N818 - it reads as a verdict in pytest's report
    """A kernel's outputs are not what its reference computes, or it changed its inputs."""

    output: torch.Tensor | None = None
    """The first output that is wrong, if its elements could be compared."""
    index: tuple[int, ...] = ()
    """Its worst element."""
    picture: str = ""
    """Where the errors of that output are, as an SVG document; empty if there are none to show."""


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
    energy: float
    """T2: largest energy of the mismatch in any part of an output, in units of what is allowed."""
    slope: float
    """T3: slope of the mismatch on the exact value, in units of what is allowed."""
    looser: float | None
    """How many times the derived bound the given rtol and atol allow, in the median over all elements; None
    for a derived bound, and for a reference that returned less than float64."""
    bound: str
    """What was allowed, in words: how the bound was derived, or the given rtol and atol."""
    seconds: float
    """Time the whole check took, the reference included."""
    reference_runs: int
    """How often the reference ran: once, and for a derived bound a few times with noise."""
    strength: Strength | None = None
    """What else the check would have caught, if that was asked for."""


def check_kernel(
    fn: Callable[..., Any],
    *args: Any,
    reference: Callable[..., Any],
    reduction: int = 1,
    rtol: float | None = None,
    atol: float | None = None,
    precision: torch.dtype | str | None = None,
    mid: torch.dtype | str | None = None,
    exp_error: float = 0.0,
    mutates: Collection[str | int] = (),
    strength: bool = False,
    **kwargs: Any,
) -> CheckReport:
    """Run `fn(*args, **kwargs)` under guard and compare its outputs with `reference` in float64.

    While `fn` runs, memory from torch.empty and its relatives holds NaN, so that elements which are never
    written are seen; afterwards the inputs must be what they were, bit for bit.

    The bound follows from the dtypes, from `reduction` and from the reference itself: it runs once exactly
    and three times (twelve for outputs of under 256 elements) with noise of one float32 rounding, and as
    often again where a matrix product has operands that tensor cores would round, and where `mid` or
    `exp_error` is given. Within the bound, all elements together may still not be off by more than noise
    explains, nor follow the exact value (`pytest_cutile.gpu.energy`). Memory: about six float64 copies of the
    outputs, and what the reference takes.

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
        mid: dtype that the kernel rounds intermediate results to; by default they stay in float32 (float64
            for float64 outputs).
        exp_error: relative error of the kernel's exponentials, where they are worse than a few float32 ulps.
        mutates: arguments that `fn` may change, by name or position.
        strength: whether to try what else the check would have caught: right outputs are altered as bugs do
            and compared again, some forty times, and the reference runs up to 32 times on shortened inputs.
        **kwargs: keyword arguments of `fn` and of `reference`.

    Raises:
        KernelMismatch: outputs outside the bound, of another shape or structure, or changed inputs.
        ReferenceFailed: the reference raised, or returned floats of less than float64, tensors of another
            kind of dtype or on another device.
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
        mid=mid,
        exp_error=exp_error,
        mutates=mutates,
        strength=strength,
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
    mid: torch.dtype | str | None = None,
    exp_error: float = 0.0,
    mutates: Collection[str | int] = (),
    strength: bool = False,
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
        mid: see there.
        exp_error: see there.
        mutates: see there.
        strength: see there.
        run: calls `fn` with its arguments and returns its outputs; by default over poisoned memory.
    """
    started = time.perf_counter()
    tolerance = _check_options(reduction, rtol, atol)
    contract = Contract(mid=_named_format("mid", mid), exp_error=exp_error)
    operands = _operand_format(args, kwargs, precision)
    title = f"{_name(fn)} differs from its reference {_name(reference)}"
    saved = map_tensors(_copy, tuple(args)), map_tensors(_copy, dict(kwargs))
    outputs = _launch(fn, args, kwargs, run or _run_poisoned)
    _check_inputs(fn, (args, kwargs), saved, mutates)
    try:
        truth = run_reference(reference, *saved, operands=operands, contract=contract)
    except Exception as error:
        raise ReferenceFailed(
            f"the reference {_name(reference)} of {_name(fn)} raised {type(error).__name__}: {error}"
        ) from error
    pairs = _pair(outputs, truth.outputs, title, exact_needed=tolerance is None)

    bounds = Bounds(
        truth=truth, reduction=reduction, operands=operands, contract=contract, tolerance=tolerance
    )
    looser = bounds.looseness(pairs)

    mismatch: KernelMismatch | None = None
    lines: list[str] = []
    wrong: list[str] = []
    bases: dict[str, None] = {}
    results: list[Comparison] = []
    checked: list[Checked] = []
    for name, out, exact in pairs:
        bound, basis = bounds.of(name, out)
        if looser is not None and bound is not None:
            basis += f"; it allows {looser:.3g} times as much (median over elements)"
        bases[basis] = None
        result = compare(out, exact, bound)
        results.append(result)
        checked.append(Checked(name=name, out=out, exact=exact, bound=bound))
        if not result.failed:
            continue
        wrong.append(name)
        if mismatch is None:
            found = explain(name, out, exact, result, basis=basis, reduction=reduction)
            lines, mismatch = found.lines, KernelMismatch()
            mismatch.picture = found.picture
            if result.outside is not None and result.worst is not None:
                mismatch.output, mismatch.index = out, result.worst.index
    if mismatch is not None:
        if tolerance is None and not any(each.pattern for each in results):
            lines += _climb(bounds, pairs, reference, saved, seconds=time.perf_counter() - started)
        mismatch.args = (f"{fit([title, *lines])}{also_wrong(wrong[1:])}",)
        raise mismatch
    return CheckReport(
        elements=sum(out.numel() for _, out, _ in pairs),
        worst_error=max((each.worst.error for each in results if each.worst is not None), default=0.0),
        worst_ulps=max((each.worst_ulps for each in results), default=0.0),
        energy=max((each.energy for each in results), default=0.0),
        slope=max((each.slope for each in results), default=0.0),
        looser=looser,
        bound="; ".join(bases),
        seconds=time.perf_counter() - started,
        reference_runs=truth.runs,
        strength=_strength(fn, reference, checked, saved) if strength else None,
    )


def _climb(
    bounds: Bounds,
    pairs: list[tuple[str, torch.Tensor, torch.Tensor]],
    reference: Callable[..., Any],
    saved: tuple[Sequence[Any], Mapping[str, Any]],
    *,
    seconds: float,
) -> list[str]:
    """Return the line that says what would have passed, or why that is not known."""
    formats = [found for _, out, _ in pairs if (found := format_of(out.dtype)) is not None]
    if not formats:
        return []
    if seconds > LADDER_SECONDS:
        return [f"  looser contracts were not tried: this check took {seconds:.0f} s without them"]

    def passes(contract: Contract) -> bool:
        truth = allow(bounds.truth, contract, reference, *saved)
        return replace(bounds, truth=truth, contract=contract).pass_all(pairs)

    accumulation = min((accumulation_of(each) for each in formats), key=lambda each: each.precision)
    contracts = rungs(bounds.contract, accumulation, exponentials=bounds.truth.has_exponentials)
    return [f"  {what_would_pass(contracts, passes, lambda: bounds.pass_torch(pairs))}"]


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
    if (stated := _named_format("precision", precision)) is not None:
        return stated
    tensors = (tensor for _, tensor in named_tensors((tuple(args), dict(kwargs)), "input"))
    formats = [found for tensor in tensors if (found := format_of(tensor.dtype)) is not None]
    return min(formats, key=lambda each: each.precision, default=FLOAT32)


def _named_format(option: str, dtype: torch.dtype | str | None) -> FloatFormat | None:
    """Return the format of a dtype that was given as an option of the check."""
    if dtype is None or dtype in ("tf32", "tfloat32"):
        return None if dtype is None else FORMATS["tfloat32"]
    found = format_of(resolve_dtype(dtype))
    if found is None:
        raise ValueError(f"{option} must be a floating-point dtype or 'tfloat32', got {dtype!r}")
    return found


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
                + ("; return torch.view_as_real of it" if tensor.is_complex() else "")
            )
    for device in {tensor.device for tensor in found if tensor.is_cuda}:
        torch.cuda.synchronize(device)  # an error of the launch belongs here, not to the comparison
    return outputs


def _strength(
    fn: Callable[..., Any],
    reference: Callable[..., Any],
    checked: Sequence[Checked],
    saved: tuple[Sequence[Any], Mapping[str, Any]],
) -> Strength:
    """Return what else the check of these outputs would have caught."""
    args, kwargs = saved
    labels = [*_parameter_names(fn, len(args)), *kwargs]

    def rerun(inputs: Mapping[str, Any]) -> Any:
        values = [*inputs.values()]
        return run_exactly(
            reference, values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))
        )

    return strength_of(checked, dict(zip(labels, [*args, *kwargs.values()], strict=True)), rerun)


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
        given = right[name]
        if out.dtype.is_floating_point and given.dtype.is_floating_point:
            if exact_needed and given.dtype.itemsize < 8:  # noqa: PLR2004
                raise ReferenceFailed(
                    f"the reference returned {name} as {name_of(given.dtype)}: it has to compute and return "
                    "float64, without rounding to the kernel's dtype, or rtol and atol have to be given"
                )
        elif _kind(out.dtype) != _kind(given.dtype):
            raise ReferenceFailed(
                f"the reference returned {name} as {name_of(given.dtype)}, the kernel as "
                f"{name_of(out.dtype)}: floating outputs are compared with float64, "
                "integers exactly with integers, bool with bool"
            )
        if given.device != out.device:
            raise ReferenceFailed(
                f"the reference returned {name} on {given.device}, the kernel on {out.device}: "
                "return it on the device of the arguments, which are where the kernel's are"
            )
    return [(name, out, right[name]) for name, out in left.items()]


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "floating"
    return "complex" if dtype.is_complex else {"bool": "bool"}.get(name_of(dtype), "integer")


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
