"""Does a kernel compute what its reference computes? `check_kernel` runs both and says."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from pytest_cutile.check.errors import KernelMismatch, ReferenceFailed, UncheckableOutput
from pytest_cutile.check.findings import SCATTERED
from pytest_cutile.check.judging import Judge, Judged, Terms
from pytest_cutile.check.launching import GuardedLauncher, Run, parameters_of
from pytest_cutile.check.noise import run_exactly
from pytest_cutile.check.parts import Part, check_axes, cut
from pytest_cutile.check.reference import ReferenceCall, check_independence
from pytest_cutile.check.refusals import is_refusal
from pytest_cutile.check.strength import strength_of
from pytest_cutile.core.tolerance import FLOAT32, FORMATS, Contract, FloatFormat
from pytest_cutile.gpu.dtypes import format_of, resolve_dtype
from pytest_cutile.gpu.trees import describe, named_leaves, named_tensors

if TYPE_CHECKING:
    import torch

    from pytest_cutile.core.spec import Axes
    from pytest_cutile.core.strength import Strength

__all__ = [
    "CheckReport",
    "KernelMismatch",
    "ReferenceFailed",
    "UncheckableOutput",
    "check_kernel",
    "run_check",
]

REFUSED = "refused: "
WIDE = 8
"""Bytes of a float64."""


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
    for a derived bound, for a reference that returned less than float64, and where `allowed` says it."""
    allowed: str = ""
    """What the given rtol and atol allow where right values are known exactly: "any of 21 integers"."""
    bound: str
    """What was allowed, in words: how the bound was derived, or the given rtol and atol."""
    tolerance: tuple[float, float] | None = None
    """rtol and atol that were given in place of the derived bound."""
    seconds: float
    """Time the whole check took, the reference included."""
    reference_runs: int
    """How often the reference ran: once, and for a derived bound a few times with noise; on each part of a
    large case so often."""
    outputs: str = ""
    """Dtype and shape of what the kernel returned: "(float16 [4, 8], int32 [4])"."""
    strength: Strength | None = None
    """What else the check would have caught, if that was asked for."""
    unguarded: tuple[str, ...] = ()
    """Inputs without NaN around them, and why: "x: requires grad"."""
    uncompared: tuple[str, ...] = ()
    """Arguments that the launcher may change and does not return, and the reference leaves alone: whatever is
    in them afterwards was compared with nothing."""
    deterministic: bool | None = None
    """Whether a second run returned the same bits; None: there was none."""
    parts: int = 1
    """In how many parts outputs were compared and the reference ran; see `independent`."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """In which other layouts of the inputs the launcher ran: "right", or that it refused, and how."""

    @property
    def refused(self) -> tuple[str, ...]:
        """The layouts that it refused: "padded rows: ValueError: x must be contiguous"."""
        return tuple(
            f"{layout}: {said.removeprefix(REFUSED)}"
            for layout, said in self.layouts.items()
            if said.startswith(REFUSED)
        )


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
    fast_acc: bool = False,
    mutates: Collection[str | int] = (),
    writes: Collection[str | int] = (),
    guard: bool = True,
    vary_layout: bool | None = None,
    independent: Axes | None = None,
    sliced: Collection[str | int] = (),
    strength: bool = False,
    **kwargs: Any,
) -> CheckReport:
    """Run `fn(*args, **kwargs)` under guard and compare its outputs with `reference` in float64.

    While `fn` runs, memory from torch.empty and its relatives holds NaN, so that elements which are never
    written are seen. What it allocates lies between canaries, and the inputs, which are copies, between NaN:
    what it writes beside them is seen, and what it reads there is NaN. Afterwards the inputs must be what
    they were, bit for bit. Small cases (8 MiB of inputs and outputs) run again: once with Inf around the
    inputs, where other bits that are right as well are only reported, and once for each other layout.

    The bound follows from the dtypes, from `reduction` and from the reference itself: it runs once exactly
    and three times (twelve for outputs of under 256 elements) with noise of one float32 rounding, and as
    often again where a matrix product has operands that tensor cores would round, and where `mid` or
    `exp_error` is given. Within the bound, all elements together may still not be off by more than noise
    explains, nor follow the exact value (`pytest_cutile.check.energy`).

    Memory: while `fn` runs, a copy of the inputs, with the gaps that their strides leave, and at most 2 MiB
    for each tensor. After that four float64 copies of the outputs, one of the inputs and what the reference
    takes; where `independent` lets a large case be cut, of one of its parts at a time, some 16th of it.

    Args:
        fn: the launcher; it returns a tensor, or a tuple, list or dict of them. Of one that returns None, the
            arguments in `writes` are the outputs (or in `mutates`, if there are none), in their order.
        *args: its arguments.
        reference: takes the same arguments, with floating tensors (also inside tuples, lists and dicts)
            upcast to float64, and returns the same structure without rounding it: float64 for floating
            outputs. Integer and bool outputs must be equal to its integer or bool results. Where `fn` returns
            None it may, too, and write into its own copies of the same arguments.
        reduction: length of the longest sum behind one output element.
        rtol: with `atol`, replaces the derived bound: |out - y| <= atol + rtol |y|; each is 0 unless given.
            Integers may differ by `atol` if that is 1 or more; `rtol` says nothing of them.
        atol: see `rtol`.
        precision: dtype that operands of matrix products are rounded to; "tfloat32" for float32 inputs that
            go through tensor cores. By default the floating input dtype of least precision.
        mid: dtype that the kernel rounds intermediate results to; by default they stay in float32 (float64
            for float64 outputs).
        exp_error: relative error of the kernel's exponentials, where they are worse than a few float32 ulps.
        fast_acc: whether products of 8-bit floats are summed in Hopper's tensor cores all along, with about
            14 bits, as `mma(..., use_fast_acc=True)` does. By default at most 128 are before float32 takes
            over. It changes nothing elsewhere.
        mutates: arguments that `fn` may change, by name or position. One that `reference` changes, too, is
            compared with that, if `fn` does not return it.
        writes: arguments that `fn` overwrites without reading them (`out`), likewise: they are poisoned, and
            one that it never touches is an error.
        guard: False gives `fn` the very tensors that were given, and plain allocations, poisoned: for one
            that finds its data by offsets into a storage instead of by its tensors.
        vary_layout: whether to run again with the inputs' values in other layouts, under the same bound:
            with padded rows, from an address that is a multiple of one element only, and with the last two
            axes exchanged in memory. A launcher may refuse one, by its own `raise` of a ValueError, TypeError
            or NotImplementedError. By default the first two, and only in small cases; interpreted, the
            first.
        independent: names of dimensions of arguments, and of outputs under "output", along which they may be
            cut: `{"a": ("m", None), "b": (None, "n"), "output": ("m", "n")}` for a matrix product. Cases
            of more than 8 MiB are then checked in parts (`pytest_cutile.check.parts`), after a trial whether
            the reference of a few neighbours is the reference of each; the noise of an element is then that
            of its part. A reference to which it matters where a part lies takes `origin=None`: of each tensor
            argument, by name, the index of the part's first element. Not with `strength`.
        sliced: arguments of which `reference` takes one slice of the first dimension at a time, by name or
            position, such as the weights of experts: it gets `x[i]`, `len(x)`, `x.shape`, `x.device` and
            `for each in x`. Each slice is upcast when it is taken, so that no float64 copy of all is made,
            and has noise of its own each time.
        strength: whether to try what else the check would have caught: right outputs are altered as bugs do
            and compared again, some forty times, and the reference runs up to 32 times on shortened inputs.
        **kwargs: keyword arguments of `fn` and of `reference`.

    Raises:
        KernelMismatch: outputs outside the bound, of another shape or structure, changed inputs, writes
            outside of them, none into an argument in `writes`, or outputs that depend on what lies there.
        ReferenceFailed: the reference raised, or returned floats of less than float64, tensors of another
            kind of dtype or on another device.
        UncheckableOutput: `fn` returned no tensor, one of an unsupported dtype, or an argument that is in
            neither `mutates` nor `writes`.
        ValueError: an option out of its range.
        TypeError: one of another type.
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
        fast_acc=fast_acc,
        mutates=mutates,
        writes=writes,
        guard=guard,
        vary_layout=vary_layout,
        independent=independent,
        sliced=sliced,
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
    fast_acc: bool = False,
    mutates: Collection[str | int] = (),
    writes: Collection[str | int] = (),
    guard: bool = True,
    vary_layout: bool | None = None,
    independent: Axes | None = None,
    sliced: Collection[str | int] = (),
    strength: bool = False,
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
        mid: see there.
        exp_error: see there.
        fast_acc: see there.
        mutates: see there.
        writes: see there.
        guard: see there.
        vary_layout: see there.
        independent: see there.
        sliced: see there.
        strength: see there.
        run: calls `fn` with its arguments and returns its outputs, and sees itself what is read and written
            where it should not be; by default it is called between bands, over poisoned memory.
    """
    started = time.perf_counter()
    if not callable(reference):
        raise TypeError(f"reference has to be a function of fn's arguments, got {describe(reference)}")
    if not isinstance(fast_acc, bool):
        raise TypeError(f"fast_acc has to be True or False, got {fast_acc!r}")
    launcher = GuardedLauncher(fn, args, kwargs, mutates=mutates, writes=writes, guard=guard, run=run)
    floating = _floating_dtypes(launcher.read)
    terms = Terms(
        reduction=_length("reduction", reduction),
        operands=_named_format("precision", precision) or _operand_format(floating),
        contract=Contract(mid=_mid(mid), exp_error=exp_error, fast_acc=fast_acc),
        tolerance=_tolerance(rtol, atol),
        wide=bool(floating) and all(each.itemsize == WIDE for each in floating),
        may_narrow=precision is not None or all(each.itemsize < WIDE for each in floating),
    )
    if independent is not None:
        check_axes(independent, _all_parameters(fn))
    outputs = launcher.launch()
    args, kwargs = launcher.before
    call = ReferenceCall(
        reference=reference,
        name=f"the reference {_name(reference)} of {_name(fn)}",
        args=dict(zip(launcher.labels, args, strict=False)),
        kwargs=kwargs,
        sliced=launcher.resolve("sliced", sliced),
    )
    if both := {*call.sliced} & launcher.may_change:
        raise ValueError(f"sliced names {sorted(both)}, of which the reference would change copies of slices")
    if launcher.written:
        call = call.writing(launcher.written)
    if not terms.wide and any(isinstance(each, float) for _, each in named_leaves(outputs, "")):
        call = call.measuring()
    parts = [Part()]
    if independent is not None and not strength and not launcher.is_small:
        parts = cut(independent, {**call.args, **kwargs}, outputs)
        if len(parts) > 1:
            check_independence(call, independent, outputs)
    judge = Judge(
        title=f"{_name(fn)} differs from its reference {_name(reference)}",
        reference=call,
        parts=parts,
        terms=terms,
        started=started,
    )
    judged = _judge_first(launcher, judge, outputs)
    uncompared = _judge_mutated(launcher.mutated, call, terms, _name(fn))
    deterministic = _judge_repeat(launcher, judge, outputs)
    layouts = _judge_layouts(launcher, judge, vary=vary_layout)
    return CheckReport(
        elements=judged.elements,
        worst_error=judged.worst_error,
        worst_ulps=judged.worst_ulps,
        energy=judged.energy,
        slope=judged.slope,
        looser=judged.looser,
        allowed=judged.allowed,
        bound=judged.bound,
        tolerance=terms.tolerance,
        seconds=time.perf_counter() - started,
        reference_runs=judge.runs,
        outputs=describe(outputs),
        strength=_strength(launcher, call.reference, judged) if strength else None,
        unguarded=launcher.unguarded,
        uncompared=uncompared,
        deterministic=deterministic,
        parts=len(parts),
        layouts=layouts,
    )


def _judge_first(launcher: GuardedLauncher, judge: Judge, outputs: Any) -> Judged:
    """Judge the outputs of the launch with the arguments as they were given."""
    try:
        return judge.judge(outputs)
    except KernelMismatch as mismatch:
        said = launcher.unwritten(outputs)
        if names := launcher.read_beside(outputs):
            said = f"what lies around input {', '.join(names)} reached the outputs: it is read out of bounds"
        text = f"{mismatch}"
        if SCATTERED in text:
            text = text.replace(SCATTERED, _describe_scattered(launcher, outputs))
        mismatch.args = (f"{text}\n{said}" if said else text,)
        raise


def _describe_scattered(launcher: GuardedLauncher, outputs: Any) -> str:
    """Say what few errors that are scattered may be; another launch may tell."""
    try:
        repeat = launcher.repeat(outputs)
    except KernelMismatch:
        repeat = None
    if repeat is None:
        return SCATTERED
    if repeat.same:
        return "few and scattered, and the same bits when run again: hardly a race"
    return "few and scattered, and other bits when run again: perhaps a race"


def _judge_mutated(mutated: Mapping[str, Any], call: ReferenceCall, terms: Terms, fn: str) -> tuple[str, ...]:
    """Judge the arguments that a launch may change where the reference changes them, too; return the others.

    Args:
        mutated: Arguments as the launch has left them.
        call: Of the reference.
        terms: Of the comparison.
        fn: Name of the launcher.
    """
    if not mutated:
        return ()
    own = call.leaving(mutated)
    changed = [*own.run(run_exactly)]
    if changed:
        title = f"{fn} leaves something else in {', '.join(changed)} than its reference"
        judge = Judge(title=title, reference=own, parts=[Part()], terms=terms, started=time.perf_counter())
        judge.judge({name: mutated[name] for name in changed})
    return tuple(name for name in mutated if name not in changed)


def _judge_repeat(launcher: GuardedLauncher, judge: Judge, outputs: Any) -> bool | None:
    """Launch again; return whether the bits are the same, or raise KernelMismatch if they are wrong."""
    repeat = launcher.repeat(outputs)
    if repeat is None:
        return None
    if not repeat.same:
        try:
            judge.judge(repeat.outputs)
        except KernelMismatch as mismatch:
            mismatch.args = (f"launched again, after a launch that was right: {mismatch}",)
            raise
    return repeat.same


def _judge_layouts(launcher: GuardedLauncher, judge: Judge, *, vary: bool | None) -> dict[str, str]:
    """Launch with the inputs in other layouts; return what came of each, or raise KernelMismatch."""
    said: dict[str, str] = {}
    for layout in launcher.layouts(vary):
        varied = launcher.vary(layout)
        if varied is None:
            continue
        try:
            judge.judge(launcher.launch_with(varied.values))
            said[layout] = "right"
        except KernelMismatch as mismatch:
            mismatch.args = (f"with inputs of {layout}: {mismatch}\n  {layout}: {varied.description}",)
            raise
        except Exception as error:
            if not is_refusal(error):
                error.add_note(f"with inputs of {layout}, as the check varies it: see vary_layout")
                raise
            said[layout] = f"{REFUSED}{type(error).__name__}: {error}".partition("\n")[0]
    return said


def _strength(launcher: GuardedLauncher, reference: Callable[..., Any], judged: Judged) -> Strength:
    """Return what else the check of these outputs would have caught."""
    args, kwargs = launcher.before
    before = dict(zip(launcher.labels, [*args, *kwargs.values()], strict=True))

    def rerun(inputs: Mapping[str, Any]) -> Any:
        values = [*{**before, **inputs}.values()]
        return run_exactly(
            reference, values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))
        )

    return strength_of(judged.checked, {name: before[name] for name in launcher.read}, rerun)


def _length(option: str, value: Any) -> int:
    """Return the length of a sum, which may be any kind of integer, such as numpy's."""
    try:
        length = operator.index(value)
    except TypeError:
        length = 0
    if isinstance(value, bool) or length < 1:
        raise ValueError(f"{option} is the length of a sum, an int of at least 1; got {value!r}")
    return length


def _tolerance(rtol: float | None, atol: float | None) -> tuple[float, float] | None:
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (isinstance(value, Real) and 0 <= value < float("inf")):
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    return None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)


def _floating_dtypes(read: Mapping[str, Any]) -> set[torch.dtype]:
    """Return the real floating dtypes of inputs; those of single numbers only if there are no others."""
    tensors = [tensor for _, tensor in named_tensors(dict(read), "input")]
    tensors = [each for each in tensors if each.dtype.is_floating_point or each.is_complex()]
    large = [each for each in tensors if each.numel() > 1]
    return {each.dtype.to_real() if each.is_complex() else each.dtype for each in large or tensors}


def _operand_format(floating: Iterable[torch.dtype]) -> FloatFormat:
    """Return what tensor cores round operands to: the coarsest floating input dtype."""
    formats = [found for dtype in floating if (found := format_of(dtype)) is not None]
    return min(formats, key=lambda each: each.precision, default=FLOAT32)


def _named_format(option: str, dtype: torch.dtype | str | None) -> FloatFormat | None:
    """Return the format of a dtype that was given as an option of the check."""
    if dtype is None or dtype in ("tf32", "tfloat32"):
        return None if dtype is None else FORMATS["tfloat32"]
    found = format_of(resolve_dtype(dtype))
    if found is None:
        raise ValueError(f"{option} must be a floating-point dtype or 'tfloat32', got {dtype!r}")
    return found


def _mid(dtype: torch.dtype | str | None) -> FloatFormat | None:
    """Return the format that intermediate results are rounded to."""
    found = _named_format("mid", dtype)
    if found is FORMATS["float64"]:
        raise ValueError("mid is what intermediate results are rounded to, and nothing is to float64")
    return found


def _all_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of what a function takes; none where they are not known, or there may be others."""
    parameters = parameters_of(function)
    more = any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters)
    return [] if more else [each.name for each in parameters]


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
