"""What the fixtures `check_kernel` and `perf` give to test functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.correctness.signatures import parameter_names
from pytest_cutile.gates import Gates
from pytest_cutile.gates.correct import gate_correct
from pytest_cutile.gates.declared import only_launch
from pytest_cutile.gates.explained import RunLaunch
from pytest_cutile.gates.interpreted import Interpreting
from pytest_cutile.gates.outcome import GateOutcome
from pytest_cutile.gates.speed import gate_speed, suite_of
from pytest_cutile.results import names_of_test
from pytest_cutile.session import Session
from pytest_cutile.spec import CheckOptions, SpecError, Work
from pytest_cutile.speed.case import SpeedCase
from pytest_cutile.speed.measure.blocks import Call
from pytest_cutile.speed.measure.timing import Measurement
from pytest_cutile.tensors.seeded import seed_from


class CheckKernel:
    """`check_kernel(fn, *args, reference, ...)`: run a launcher under guard and compare it."""

    def __init__(
        self,
        session: Session,
        *,
        nodeid: str,
        arch: str,
        reproduce: Callable[[], str],
        interpreting: Interpreting | None = None,
    ) -> None:
        self._session = session
        self._interpreting = interpreting
        self._nodeid = nodeid
        self._kernel, self._case = names_of_test(nodeid)
        self._arch = arch
        self._reproduce = reproduce

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
        defaults: dict[str, Any] = {"mutation_test": self._session.settings.mutation_test}
        if self._session.settings.check_layouts:
            defaults["vary_layout"] = True
        chosen, kwargs = CheckOptions.split({**defaults, **options}, parameter_names(fn))
        interpreting = self._interpreting

        def check(run: RunLaunch | None = None) -> CheckReport:
            __tracebackhide__ = True
            if self._session.settings.sanitized:
                return only_launch(fn, args, kwargs)
            from pytest_cutile.correctness.check import run_check

            return run_check(fn, args, kwargs, reference=reference, options=chosen, run=run)

        with GateOutcome(self._session, self._case):
            return gate_correct(
                self._session,
                key=self._nodeid,
                kernel=self._kernel,
                case=self._case,
                arch=self._arch,
                check=check if interpreting is None else functools.partial(interpreting.check, check),
                interpreted=interpreting is not None,
                reproduce=self._reproduce,
                seed=seed_from(self._nodeid),
            )


class Perf:
    """`perf(fn, *args, flops=..., bytes=...)`: time a launcher, compare it with its baseline, record it."""

    def __init__(
        self,
        gates: Gates,
        session: Session,
        publish: Callable[[Measurement], None],
        *,
        nodeid: str,
        arch: str,
        interpreting: Interpreting | None = None,
    ) -> None:
        self._session = session
        self._interpreting = interpreting
        self._suite = suite_of(gates)
        self._publish = publish
        self._nodeid = nodeid
        self._kernel, self._case = names_of_test(nodeid)
        self._arch = arch
        self._used: set[str] = set()

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
        if label in self._used:
            pytest.fail(
                "perf() was called twice in one test under the same name: give each call its own name=...",
                pytrace=False,
            )
        self._used.add(label)
        try:
            counts = {"flops": 0.0 if flops is None else flops, "bytes": 0.0 if bytes is None else bytes}
            work = Work(**counts, dtype=dtype)
        except SpecError as error:
            wrong = str(error).removeprefix("Work: ")
            raise pytest.fail.Exception(f"perf(): {wrong}", pytrace=False) from None
        revision = self._session.revision_kernels
        with GateOutcome(self._session, self._case):
            outcome = gate_speed(
                self._session,
                self._suite,
                SpeedCase(
                    key=f"{self._nodeid}#{label}" if label else self._nodeid,
                    check_key=self._nodeid,
                    kernel=self._kernel,
                    case=f"{self._case}#{label}" if label else self._case,
                    nodeid=self._nodeid,
                    arch=self._arch,
                    work=work,
                    call=lambda: Call(fn, args, kwargs),
                    baseline=(lambda: revision.counterpart(fn)) if revision is not None else None,
                    interpreted=self._interpreting is not None,
                ),
            )
        if outcome.measurement is not None:
            self._publish(outcome.measurement)
        if outcome.failure is not None:
            pytest.fail(outcome.failure, pytrace=False)
        if outcome.measurement is None:
            raise RuntimeError("the speed gate neither measured nor failed")
        return outcome.measurement
