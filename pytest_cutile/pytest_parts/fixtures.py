"""What the fixtures `check_kernel` and `perf` give to test functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.correctness.signatures import parameter_names
from pytest_cutile.gates.base import RunningTest
from pytest_cutile.gates.correct import gate_correct
from pytest_cutile.gates.declared import only_launch
from pytest_cutile.gates.explained import RunLaunch
from pytest_cutile.gates.interpreted import Interpreting
from pytest_cutile.gates.outcome import GateOutcome
from pytest_cutile.gates.speed import gate_speed
from pytest_cutile.results import names_of_test
from pytest_cutile.session import Session
from pytest_cutile.spec import CheckOptions, SpecError, Work
from pytest_cutile.speed.case import SpeedCase
from pytest_cutile.speed.measure.call import Call
from pytest_cutile.speed.measure.timing import Measurement
from pytest_cutile.speed.suite import SpeedSuite
from pytest_cutile.tensors.seeded import seed_from


@dataclass(frozen=True, kw_only=True)
class CheckKernel:
    """`check_kernel(fn, *args, reference, ...)`: run a launcher under guard and compare it."""

    session: Session
    test: RunningTest
    arch: str
    interpreting: Interpreting | None

    def __call__(
        self, fn: Callable[..., Any], *args: Any, reference: Callable[..., Any], **options: Any
    ) -> CheckReport:
        """Compare `fn(*args)` with `reference(*args in float64)`.

        Args:
            fn: The launcher; returns the output tensor or a tuple of them.
            *args: Its arguments.
            reference: Computes the exact outputs from the same arguments in float64.
            **options: Fields of `pytest_cutile.CheckOptions`: `reduction` (length of the longest sum),
                `rtol` and `atol` (instead of the derived bound), ...; others are arguments of `fn`.

        Fails the test when the result is wrong; skips it as not-measured where it cannot run.
        """
        __tracebackhide__ = True
        defaults: dict[str, Any] = {"mutation_test": self.session.settings.mutation_test}
        if self.session.settings.check_layouts:
            defaults["vary_layout"] = True
        chosen, kwargs = CheckOptions.split({**defaults, **options}, parameter_names(fn))
        interpreting = self.interpreting

        def check(run: RunLaunch | None = None) -> CheckReport:
            __tracebackhide__ = True
            if self.session.settings.sanitized:
                return only_launch(fn, args, kwargs)
            from pytest_cutile.correctness.check import run_check

            return run_check(fn, args, kwargs, reference=reference, options=chosen, run=run)

        nodeid = self.test.nodeid
        kernel, case = names_of_test(nodeid)
        with GateOutcome(self.session, case):
            return gate_correct(
                self.session,
                key=nodeid,
                kernel=kernel,
                case=case,
                arch=self.arch,
                check=check if interpreting is None else functools.partial(interpreting.check, check),
                interpreted=interpreting is not None,
                reproduce=self.test.reproduce,
                seed=seed_from(nodeid),
            )


@dataclass(frozen=True, kw_only=True)
class Perf:
    """`perf(fn, *args, flops=..., bytes=...)`: time a launcher, compare it with its baseline, record it."""

    session: Session
    suite: SpeedSuite
    test: RunningTest
    arch: str
    interpreting: Interpreting | None
    used: set[str] = field(default_factory=set)
    """Names of the calls that were made."""

    def __call__(
        self,
        fn: Callable[..., Any],
        *args: Any,
        flops: float | None = None,
        bytes: float | None = None,  # noqa: A002 - the contract's name
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
            dtype: Dtype of the multiplied operands, which chooses the peak rate ("float16").
            name: Tells several calls in one test apart; part of the baseline's key.
            **kwargs: Keyword arguments of `fn`.

        Returns:
            The measurement. The test is skipped where nothing can be measured; it fails on a regression,
            after fresh processes have confirmed that, when all other tests are done.
        """
        __tracebackhide__ = True
        label = name or ""
        if label in self.used:
            pytest.fail(
                "perf() was called twice in one test under the same name: give each call its own name=...",
                pytrace=False,
            )
        self.used.add(label)
        try:
            counts = {"flops": 0.0 if flops is None else flops, "bytes": 0.0 if bytes is None else bytes}
            work = Work(**counts, dtype=dtype)
        except SpecError as error:
            wrong = str(error).removeprefix("Work: ")
            raise pytest.fail.Exception(f"perf(): {wrong}", pytrace=False) from None
        nodeid, suffix = self.test.nodeid, f"#{label}" if label else ""
        kernel, case = names_of_test(nodeid)
        with GateOutcome(self.session, case):
            outcome = gate_speed(
                self.session,
                self.suite,
                SpeedCase(
                    key=f"{nodeid}{suffix}",
                    check_key=nodeid,
                    kernel=kernel,
                    case=f"{case}{suffix}",
                    nodeid=nodeid,
                    arch=self.arch,
                    work=work,
                    call=lambda: Call(fn, args, kwargs),
                    launcher_at=lambda revision: self.session.kernels_at(revision).counterpart(fn),
                    interpreted=self.interpreting is not None,
                ),
            )
        if outcome.measurement is not None:
            self.test.publish(outcome.measurement)
        if outcome.failure is not None:
            pytest.fail(outcome.failure, pytrace=False)
        if outcome.measurement is None:
            raise RuntimeError("the speed gate neither measured nor failed")
        return outcome.measurement
