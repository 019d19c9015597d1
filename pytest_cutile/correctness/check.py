"""Does a kernel compute what its reference computes? The way of one check, from the launch to the report.

guards       launch the kernel on copies of its inputs, between redzones, with outputs poisoned
error_model  run the reference exactly, then with noise; derive the bound of each element from the spread
compare      compare outputs element by element, and many elements together
explain      say what is wrong, and which looser numerics policy would let the outputs pass
mutation     on request, say which mutants of right outputs the check would have killed
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_cutile.correctness.compare.elements import ComparedOutput
from pytest_cutile.correctness.compare.outputs import OutputsComparison, compare_outputs, floats_as
from pytest_cutile.correctness.error_model.noise import ReferenceRuns
from pytest_cutile.correctness.error_model.parts import WHOLE, Part, check_axes, cut, sample
from pytest_cutile.correctness.error_model.running import ReferenceCall, check_independence
from pytest_cutile.correctness.error_model.tolerance import Terms
from pytest_cutile.correctness.errors import (
    LATER_LAUNCH,
    SECOND_LAUNCH,
    KernelMismatch,
    ReferenceFailed,
    UncheckableOutput,
    with_facts,
)
from pytest_cutile.correctness.explain.findings import SCATTERED, explain_mismatch
from pytest_cutile.correctness.gradients import (
    EXPANDED,
    REPEATED,
    GradientCheck,
    NoSecondPass,
    is_upstream,
    with_gradients,
)
from pytest_cutile.correctness.guards.launch import GuardedLauncher, choose
from pytest_cutile.correctness.guards.launching import ON_GPU, Launching
from pytest_cutile.correctness.mutation.report import MutationReport
from pytest_cutile.correctness.mutation.run import TooCostly, run_mutants
from pytest_cutile.correctness.on_cpu import OnCpu, on_cpu, to_cpu
from pytest_cutile.correctness.other_arrays import with_tensors
from pytest_cutile.correctness.rejections import is_layout_refusal, is_refusal
from pytest_cutile.correctness.report import REFUSED, CheckReport
from pytest_cutile.correctness.run_stopped import raising_exit
from pytest_cutile.correctness.signatures import function_name, parameter_names
from pytest_cutile.tile.tensors.trees import describe, have_same_bits, named_leaves, tensors_in
from pytest_cutile.words.spec import CheckOptions

MOST_LAUNCHES = 4
"""Launches of a check up to which another one follows because of what the last one left in memory."""
OVERWRITES = (
    "  does backward overwrite what forward has kept?",
    "  let it work on a copy, or raise; backward_once=True says that it runs once by design",
)
"""What is said of a second backward pass that is wrong."""

__all__ = [
    "CheckReport",
    "KernelMismatch",
    "ReferenceFailed",
    "UncheckableOutput",
    "check_kernel",
    "run_check",
]


def check_kernel(
    fn: Callable[..., Any], *args: Any, reference: Callable[..., Any], **options: Any
) -> CheckReport:
    """Run `fn(*args, **kwargs)` under guard and compare its outputs with `reference` in float64.

    docs/explanation/correctness.md says what is compared, and what is guarded.

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
        **options: fields of `pytest_cutile.CheckOptions`, and keyword arguments of `fn` and of `reference`.

    Raises:
        KernelMismatch: the result is wrong, or memory was touched that may not be.
        ReferenceFailed: `reference` raised, returned something that cannot be compared, or draws random
            numbers; or it is not independent as `independent` says.
        UncheckableOutput: `fn` returned no tensor, one of an unsupported dtype, or an argument that is in
            neither `mutates` nor `writes`.
        ValueError: an option out of its range.
        TypeError: one of another type, or unknown.
    """
    chosen, kwargs = CheckOptions.split(options, parameter_names(fn))
    with raising_exit():
        return run_check(fn, args, kwargs, reference=reference, options=chosen)


def run_check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    reference: Callable[..., Any],
    options: CheckOptions,
    launching: Launching = ON_GPU,
) -> CheckReport:
    """Check as `check_kernel` does, with the arguments of `fn` apart; `launching` calls it.

    Raises RunStopped where `fn` or `reference` calls `pytest.exit`.
    """
    started = time.perf_counter()
    if not callable(reference):
        raise TypeError(f"reference has to be a function of fn's arguments, got {describe(reference)}")
    fn, args, kwargs = with_tensors(fn, args, kwargs)
    gradients = None
    if options.grad:
        gradients = with_gradients(
            fn, args, kwargs, reference=reference, options=options, launching=launching
        )
        fn, reference, options = gradients.fn, gradients.reference, gradients.options
        args, kwargs = gradients.args, gradients.kwargs
    launcher = GuardedLauncher(fn, args, kwargs, options, launching)
    terms = Terms.of(options, launcher.read)
    if options.independent is not None:
        check_axes(options.independent, parameter_names(fn))

    outputs = launcher.launch()
    call = _reference_call(reference, launcher, options, terms, outputs)
    check = _Check(
        title=f"{launcher.name} differs from its reference{_own_name(reference)}",
        launcher=launcher,
        runs=ReferenceRuns(call, _parts(call, launcher, options, outputs), terms),
        started=started,
        first=launcher.kept(outputs) if launcher.is_small else None,
    )
    comparison = check.compare_first(outputs)
    uncompared = check.compare_mutated()
    deterministic = check.compare_repeat(outputs)
    layouts = check.compare_layouts(vary=options.vary_layout)
    if launcher.can_interpret_again and "right" not in layouts.values():
        check.compare_again()
    while launching.leaves_other_memory and launcher.launches < MOST_LAUNCHES:
        # A workspace: what the next launch finds in it is new.
        check.compare_again(LATER_LAUNCH.format(launcher.launches + 1, launcher.launches))
    if gradients is not None and check.first is not None:
        layouts |= check.compare_backward(gradients)
    return CheckReport(
        elements=sum(out.numel() for out in comparison.outputs.values()),
        worst_error=comparison.largest(lambda result: 0.0 if result.worst is None else result.worst.error),
        worst_ulps=comparison.largest(lambda result: result.worst_ulps),
        energy=comparison.largest(lambda result: result.together.energy),
        slope=comparison.largest(lambda result: result.together.slope),
        looser=comparison.looser,
        allowed=comparison.allowed,
        bound="; ".join(dict.fromkeys(map(comparison.bound, comparison.outputs))),
        overflowed=comparison.overflowed,
        narrowed=comparison.narrowed,
        tolerance=terms.tolerance,
        seconds=time.perf_counter() - started,
        reference_runs=check.runs.count,
        outputs=describe(outputs),
        mutation=_run_mutants(launcher, call, comparison.wholes) if options.mutation_test else None,
        unguarded=tuple(launcher.inputs.notes),
        uncompared=uncompared,
        deterministic=deterministic,
        parts=len(check.runs.parts),
        layouts=layouts,
    )


def _own_name(reference: Callable[..., Any]) -> str:
    """Return a space and the name of a reference; "" if that says no more than that it is one."""
    name = function_name(reference)
    return "" if name == "reference" or name.endswith("<lambda>") else f" {name}"


def _reference_call(
    reference: Callable[..., Any],
    launcher: GuardedLauncher,
    options: CheckOptions,
    terms: Terms,
    outputs: Any,
) -> ReferenceCall:
    """Return the reference with the arguments from before the launch, returning what the launcher returns."""
    sliced = launcher.resolve("sliced", options.sliced)
    if both := {*sliced} & launcher.inputs.changing:
        raise ValueError(f"sliced names {sorted(both)}, of which the reference would change copies of slices")
    as_tensors = not terms.wide and any(isinstance(leaf, float) for _, leaf in named_leaves(outputs, ""))

    @functools.wraps(reference)
    def returning(*args: Any, **kwargs: Any) -> Any:
        result = reference(*args, **kwargs)
        if result is None and launcher.written:  # the reference may return nothing, too
            result = choose(launcher.by_name(args, kwargs), launcher.written)
        return floats_as(torch.float64, result) if as_tensors else result

    args, kwargs = launcher.split(launcher.inputs.before)
    return ReferenceCall(
        reference=returning,
        name=f"the reference{_own_name(reference)} of {launcher.name}",
        args=args,
        kwargs=kwargs,
        sliced=sliced,
    )


def _parts(call: ReferenceCall, launcher: GuardedLauncher, options: CheckOptions, outputs: Any) -> list[Part]:
    if options.independent is None or options.mutation_test or launcher.is_small:
        return [WHOLE]
    parts = cut(options.independent, call.arguments, outputs)
    if len(parts) > 1:
        check_independence(call, options.independent, outputs)
    return sample(parts) if options.sampled else parts


@dataclass(frozen=True, kw_only=True)
class _Check:
    """A launcher, and what the outputs of its launches are compared with."""

    title: str
    launcher: GuardedLauncher
    runs: ReferenceRuns
    started: float
    first: Any
    """The outputs of the first launch, to which no other one writes; None: no other one is compared."""

    def compare(self, outputs: Any) -> OutputsComparison:
        comparison = compare_outputs(outputs, self.runs, title=self.title)
        if comparison.failed:
            raise explain_mismatch(
                outputs,
                comparison,
                title=self.title,
                started=self.started,
                is_right_around_zero=self._is_right_around_zero,
            )
        return comparison

    def _is_right_around_zero(self) -> bool:
        """Launch with inputs that are moved to a mean of zero; return whether the outputs are right."""
        arguments = None if self.first is None else self.launcher.around_zero()
        if arguments is None:
            return False
        args, kwargs = self.launcher.split(arguments)
        call = on_cpu(replace(self.runs.call, args=args, kwargs=kwargs))
        if call is None:
            return False
        try:
            call.run(OnCpu())  # what the reference cannot take is not launched
            outputs = to_cpu(self.launcher.launch_with(arguments))
            runs = ReferenceRuns(call, [WHOLE], self.runs.terms)
            return not compare_outputs(outputs, runs).failed
        except Exception:  # noqa: BLE001 - the failure that is explained matters more
            return False

    def compare_first(self, outputs: Any) -> OutputsComparison:
        """Compare the first launch's outputs; a failure also says whether another launch shows its cause."""
        try:
            return self.compare(outputs)
        except KernelMismatch as mismatch:
            text, cause = f"{mismatch}", self.launcher.cause(outputs)
            if SCATTERED in text:
                text = text.replace(SCATTERED, self._describe_scattered(outputs))
            mismatch.args = (with_facts(text, cause) if cause else text,)
            raise

    def _describe_scattered(self, outputs: Any) -> str:
        with contextlib.suppress(KernelMismatch):
            if (repeat := self.launcher.repeat(outputs)) is not None:
                bits, race = ("the same", "hardly") if repeat[1] else ("other", "perhaps")
                return f"few and scattered, and {bits} bits when run again: {race} a race"
        # The interpreter looks for races itself, and would have found one.
        return "few and scattered" if self.launcher.can_interpret_again else SCATTERED

    def compare_mutated(self) -> tuple[str, ...]:
        """Compare the arguments that launch and reference both change; return those only the launch does."""
        mutated = self.launcher.mutated
        if not mutated:
            return ()
        call = _leaving(mutated, self.runs.call, self.launcher)
        changed = [*call.run()]
        if changed:
            title = f"{self.launcher.name} leaves something else in {', '.join(changed)} than its reference"
            runs = ReferenceRuns(call, [WHOLE], self.runs.terms)
            check = replace(self, title=title, runs=runs, started=time.perf_counter(), first=None)
            check.compare({name: mutated[name] for name in changed})
        return tuple(name for name in mutated if not (name in changed or is_upstream(name)))

    def compare_repeat(self, outputs: Any) -> bool | None:
        """Launch again; return whether the bits are the same, None for no launch."""
        repeat = self.launcher.repeat(outputs)
        if repeat is None:
            return None
        again, is_same = repeat
        if not is_same:
            with _naming_launch(SECOND_LAUNCH):
                self.compare(again)
        return is_same

    def compare_again(self, which: str = SECOND_LAUNCH) -> None:
        """Launch with the same arguments as before; a failure says `which` launch it is."""
        with _naming_launch(which):
            self._compare_if_other(self.launcher.relaunch())

    def _compare_if_other(self, outputs: Any) -> None:
        if not have_same_bits(self.first, outputs):  # the first ones were right
            self.compare(outputs)

    def compare_layouts(self, *, vary: bool | None) -> dict[str, str]:
        outcomes: dict[str, str] = {}
        for layout, arguments, description in self.launcher.layouts(vary):
            try:
                self._compare_if_other(self.launcher.launch_with(arguments))
                outcomes[layout] = "right"
            except KernelMismatch as mismatch:
                self._blame_second_launch()
                text = with_facts(f"{mismatch}", f"  {layout}: {description}")
                mismatch.args = (f"with inputs of {layout}: {text}",)
                raise
            except Exception as error:
                if not is_layout_refusal(error):
                    self._blame_second_launch()
                    error.add_note(f"with inputs of {layout}, as the check varies it: see vary_layout")
                    raise
                outcomes[layout] = f"{REFUSED}{type(error).__name__}: {error}".partition("\n")[0]
        return outcomes

    def compare_backward(self, gradients: GradientCheck) -> dict[str, str]:
        """Run backward twice, and once from the upstream gradients of `.sum()`; return what came of it."""
        outcomes: dict[str, str] = {}
        inputs, options = self.launcher.inputs, gradients.options
        if not options.backward_once:
            repeated = replace(gradients.fn, is_repeated=True)
            try:
                with _naming_launch(f"in {REPEATED} (retain_graph=True)", facts=OVERWRITES):
                    self._compare_if_other(self.launcher.relaunch(fn=repeated))
                outcomes[REPEATED] = "right"
            except NoSecondPass as refused:
                outcomes[REPEATED] = f"{REFUSED}{refused}".partition("\n")[0]
        expanded = gradients.expanded(inputs.before)
        if expanded is not None and options.vary_layout is not False and not inputs.entangled:
            args, kwargs = self.launcher.split(expanded)
            runs = ReferenceRuns(replace(self.runs.call, args=args, kwargs=kwargs), [WHOLE], self.runs.terms)
            try:
                with _naming_launch(f"with {EXPANDED}, as .sum().backward() gives it"):
                    replace(self, runs=runs, first=None).compare(self.launcher.launch_with(expanded))
                outcomes[EXPANDED] = "right"
            except Exception as error:
                if not is_refusal(error):
                    raise
                outcomes[EXPANDED] = f"{REFUSED}{type(error).__name__}: {error}".partition("\n")[0]
        return outcomes

    def _blame_second_launch(self) -> None:
        """Where another layout came with the second launch, raise what the latter does by itself.

        A result may be wrong at every other launch.
        """
        if self.launcher.can_interpret_again:
            self.compare_again()
            self.compare_again()


@contextlib.contextmanager
def _naming_launch(which: str, *, facts: Sequence[str] = ()) -> Iterator[None]:
    """Have a failure say in `which` launch it came, and a wrong result `facts` about that."""
    try:
        yield
    except KernelMismatch as mismatch:
        mismatch.args = (with_facts(f"{mismatch}", *facts),)
        mismatch.on_launch(which)
        raise
    except Exception as error:
        error.add_note(which)
        raise


def _leaving(names: Collection[str], call: ReferenceCall, launcher: GuardedLauncher) -> ReferenceCall:
    """Return the call that returns what the reference leaves in those of `names` that it changes."""

    def versions(value: Any) -> list[int]:
        # torch counts what is written to a tensor, or to a view of it
        return [tensor._version for tensor in tensors_in(value)]  # noqa: SLF001

    @functools.wraps(call.reference)
    def leave(*args: Any, **kwargs: Any) -> dict[str, Any]:
        given = launcher.by_name(args, kwargs)
        before = {name: versions(given[name]) for name in names}
        call.reference(*args, **kwargs)
        return {name: given[name] for name in names if versions(given[name]) != before[name]}

    return replace(call, reference=leave)


def _run_mutants(
    launcher: GuardedLauncher, call: ReferenceCall, wholes: Sequence[ComparedOutput]
) -> MutationReport:
    call = replace(call, sliced=())
    on_the_cpu = on_cpu(call)

    def rerun(inputs: Mapping[str, Any]) -> Any:
        if on_the_cpu is None:
            raise TooCostly
        args, kwargs = launcher.split({**on_the_cpu.arguments, **inputs})
        return replace(on_the_cpu, args=args, kwargs=kwargs).run(OnCpu())

    inputs = call.arguments if on_the_cpu is None else on_the_cpu.arguments
    return run_mutants(wholes, {name: inputs[name] for name in launcher.read}, rerun)
