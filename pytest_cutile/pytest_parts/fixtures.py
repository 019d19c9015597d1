"""What the fixtures `check_kernel` and `perf` give to test functions."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.guards.launching import ON_GPU, Launching
from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.correctness.signatures import function_name, parameter_names, positional_names
from pytest_cutile.gates.correct import gate_correct, refuse_other_work
from pytest_cutile.gates.declared import check_call
from pytest_cutile.gates.interpreted import Interpreting
from pytest_cutile.gates.outcome import GateFailed, GateOutcome
from pytest_cutile.gates.revisions.paired import with_own_imports
from pytest_cutile.gates.session import Session
from pytest_cutile.gates.speed.case import Launcher, SpeedCase
from pytest_cutile.gates.speed.gate import gate_speed
from pytest_cutile.gates.speed.suite import SpeedSuite
from pytest_cutile.gates.tuned_on_gpu import check_on_gpu
from pytest_cutile.pytest_parts.failure import Place
from pytest_cutile.tile.compiler.source import declaration_digest
from pytest_cutile.timing.measure.call import Call
from pytest_cutile.words.results import INTERPRETER, CorrectResult, names_of_test
from pytest_cutile.words.spec import Axes, CheckOptions, SpecError, Work, refuse_misspelled
from pytest_cutile.words.timing import Measurement
from pytest_cutile.words.verdicts import Reason, Verdict

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    import torch

_INPUTS_WIDTH = 60
"""Characters of a call's arguments that are shown."""


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckKernel:
    """`check_kernel(fn, *args, reference, ...)`: run a launcher under guard and compare it."""

    session: Session
    nodeid: str
    arch: str
    interpreting: Interpreting | None
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers the test's calls."""

    def __call__(
        self,
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
        sampled: bool = False,
        grad: bool = False,
        no_grad: Collection[str | int] = (),
        backward_once: bool = False,
        mutation_test: bool = False,
        **kwargs: Any,
    ) -> CheckReport:
        """Compare `fn(*args, **kwargs)` with `reference(*args, **kwargs)` in float64.

        The launcher `fn` returns the output tensor or a tuple of them; `reference` computes the exact ones
        from the same arguments. All others are the fields of `pytest_cutile.CheckOptions`, which explains
        them. Fails the test when the result is wrong; skips it as not-measured where it cannot run.
        """
        __tracebackhide__ = True
        settings, interpreting = self.session.settings, self.interpreting
        chosen = CheckOptions(
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
            vary_layout=(settings.check_layouts or None) if vary_layout is None else vary_layout,
            independent=independent,
            sliced=sliced,
            sampled=sampled,
            grad=grad,
            no_grad=no_grad,
            backward_once=backward_once,
            mutation_test=mutation_test or settings.mutation_test,
        )
        refuse_misspelled("check_kernel", kwargs, options=CheckOptions.names(), taken=parameter_names(fn))

        def check_with(launching: Launching) -> CheckReport:
            return check_call(settings, Call(fn, args, kwargs), reference, chosen, launching)

        def check() -> CheckReport:
            if interpreting is None:
                return check_on_gpu(
                    lambda: check_with(ON_GPU), self.arch, every=self.session.settings.every_input
                )
            report = refuse_other_work(interpreting.interpret(check_with, each_configuration=True))
            interpreting.refuse_known_faults(case)  # of a declared case, the gate static does so
            return report

        kernel, case = names_of_test(self.nodeid)
        subject = CorrectResult(
            key=self.nodeid,
            kernel=kernel,
            case=case,
            arch=self.arch,
            verdict=Verdict.PASS,
            on="" if interpreting is None else INTERPRETER,
            launcher=function_name(fn),
        )
        with GateOutcome(self.session, case, call=self._describe_call(fn, args)):
            return gate_correct(self.session, subject, check)

    def _describe_call(self, fn: Callable[..., Any], args: Sequence[Any]) -> str:
        """Return which call of the test this is: "call 3: double(x float32 [300])"."""
        from pytest_cutile.tile.tensors.trees import describe

        names = positional_names(fn, len(args))
        inputs = [f"{name} {describe(value)}" for name, value in zip(names, args, strict=True)]
        shown = textwrap.shorten(", ".join(inputs), _INPUTS_WIDTH, placeholder=" ...")
        return f"call {next(self.calls)}: {function_name(fn)}({shown})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Perf:
    """`perf(fn, *args, flops=..., bytes=...)`: time a launcher, compare it with its baseline, record it."""

    session: Session
    suite: SpeedSuite
    nodeid: str
    publish: Callable[[Measurement], None]
    """Takes the measurement for pytest-benchmark's table."""
    arch: str
    interpreting: Interpreting | None
    places: dict[str, Place | None]
    """Where each call was made, by its name: a slower case is known when the test is long over."""
    test_file: Path

    def __call__(
        self,
        fn: Callable[..., Any],
        *args: Any,
        flops: float | None = None,
        bytes: float | None = None,  # noqa: A002 - the contract's name
        tokens: float | None = None,
        dtype: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Measurement:
        """Time `fn(*args, **kwargs)` and gate it.

        Args:
            fn: The launcher. Check its result first (`check_kernel`): a wrong kernel has no speed.
            *args: Its arguments.
            flops: Floating-point operations per launch.
            bytes: Bytes per launch: each input read once, each output written once.
            tokens: Tokens of a language model per launch: the speed is shown in tokens/s.
            dtype: Dtype of the multiplied operands, which chooses the peak rate ("float16").
            name: Tells several calls in one test apart; part of the baseline's key.
            **kwargs: Keyword arguments of `fn`.

        Returns:
            The measurement. The test is skipped where nothing can be measured; it fails on a regression,
            after fresh processes have confirmed that, when all other tests are done.
        """
        __tracebackhide__ = True
        options = ("flops", "bytes", "tokens", "dtype", "name")
        refuse_misspelled("perf", kwargs, options=options, taken=parameter_names(fn))
        label = name or ""
        self._add_place(label, sys._getframe(1))  # noqa: SLF001
        counts = {"flops": flops, "bytes": bytes, "tokens": tokens}
        try:
            work = Work(**{unit: count for unit, count in counts.items() if count is not None}, dtype=dtype)
        except SpecError as error:
            wrong = str(error).removeprefix("Work: ")
            raise GateFailed(f"perf(): {wrong}", pytrace=False) from None
        suffix = f"#{label}" if label else ""
        kernel, case = names_of_test(self.nodeid)
        timed = _TimedCall(
            key=f"{self.nodeid}{suffix}",
            check_key=self.nodeid,
            kernel=kernel,
            case=f"{case}{suffix}",
            nodeid=self.nodeid,
            arch=self.arch,
            module=getattr(fn, "__module__", None) or "",
            work=work,
            interpreted=self.interpreting is not None,
            session=self.session,
            timed=Call(fn, args, kwargs),
        )
        is_right = self.session.checked.get(self.nodeid, Reason.UNCHECKED) is None
        with GateOutcome(self.session, case, is_right=is_right):
            measurement = gate_speed(self.session, self.suite, timed, self.publish)
        if measurement is None:
            raise RuntimeError("the speed gate neither measured nor failed")
        return measurement

    def _add_place(self, label: str, frame: FrameType) -> None:
        __tracebackhide__ = True
        if not label.isprintable():
            raise GateFailed(f"perf(): name={label!r} has control characters", pytrace=False)
        if label in self.places:
            raise GateFailed(
                "perf() was called twice in one test under the same name: give each call its own name=...",
                pytrace=False,
            )
        named = f", perf(name={label!r})" if label else ""
        self.places[label] = Place.of_call(frame, self.test_file, named)


@dataclass(frozen=True, kw_only=True)
class _TimedCall(SpeedCase):
    """What a test function times: nobody knows what it compiles before it runs."""

    session: Session
    timed: Call

    def call(self) -> Call:
        return self.timed

    def launcher_at(self, revision: str) -> Launcher | None:
        module = self.session.revision(revision)
        launcher = module.counterpart(self.timed.function)
        return None if launcher is None else with_own_imports(module, launcher)

    def source(self, revision: str) -> str:
        fn = self.timed.function
        launcher = self.session.revision(revision).counterpart(fn) if revision else fn
        return "" if launcher is None else declaration_digest([launcher], {})
