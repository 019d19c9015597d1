"""Search for a case that fails: hypothesis varies sizes, dtypes, layouts and values of a declared kernel."""

from __future__ import annotations

import functools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_cutile.correctness.guards.launching import ON_GPU, Launching
from pytest_cutile.correctness.rejections import is_layout_refusal, is_refusal
from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.correctness.signatures import parameters_of
from pytest_cutile.errors import GateSkipped
from pytest_cutile.gates.correct import gate_correct
from pytest_cutile.gates.declared import check_inputs
from pytest_cutile.gates.interpreted import Interpreting
from pytest_cutile.gates.outcome import GateOutcome
from pytest_cutile.gates.user_code import user_code
from pytest_cutile.gpu.context import breaks_the_context
from pytest_cutile.input_names import LAYOUTS, NORMAL
from pytest_cutile.results import INTERPRETER, CorrectResult
from pytest_cutile.session import Session
from pytest_cutile.spec import Case, KernelSpec, SpecError
from pytest_cutile.tensors.seeded import MakeTensor
from pytest_cutile.tensors.trees import tensors_in
from pytest_cutile.verdicts import Reason, Verdict

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

INTERPRETED_BYTES = 1 << 20
"""Most bytes of inputs of an interpreted example: many small examples find more than a few large ones."""
LAUNCHED_BYTES = 256 << 20
"""Most bytes of inputs of an example that is launched on a GPU."""
INTERPRETED_FLOPS = 1e8
"""Most floating-point operations of an interpreted example."""
BEYOND = 4
"""Sizes reach so many times beyond the largest that a case has."""
SEEDS = 1000
"""Seeds that values are drawn with."""


REASONS = 5
"""Reasons for refusing examples that are shown."""


class OutOfTime(BaseException):
    """Ends a search. No `Exception`: hypothesis would take it for a failure of the kernel."""


class NoExample(Exception):  # noqa: N818 - not an error: the combination is none that the kernel takes
    """A launcher, or what makes its inputs, does not take these parameters."""


def inputs_of(example: Case) -> str:
    """Return the name of the inputs that an example is checked with: "normal", or the one that it names."""
    return (*(example.named_inputs or ()), NORMAL)[0]


def declaration(example: Case) -> str:
    """Return the text that declares an example: "Case(name='m1', params={'m': 1}, ...)"."""
    parts = [f"name={example.name!r}", f"params={dict(example.params)!r}", "speed=False"]
    if example.layout != LAYOUTS[0]:
        parts.append(f"layout={example.layout!r}")
    parts += [f"seed={example.seed!r}", f"named_inputs={example.named_inputs!r}"]
    return f"Case({', '.join(parts)})"


# -- what may vary -----------------------------------------------------------------------------------


def examples(spec: KernelSpec, arch: str) -> SearchStrategy[Case]:
    """Return a strategy for examples of `spec`: small cases, each checked with one kind of inputs.

    Each parameter varies on its own, over the strategy in the spec's `search`, or else around the values of
    its cases. Timed cases, which are large, are left out if there are others.
    """
    from hypothesis import strategies as st

    runnable = [case for case in spec.cases if case.runs_on(arch)]
    cases = [case for case in runnable if not case.speed] or runnable
    domain = domain_of(spec)
    names = dict.fromkeys(name for case in cases for name in case.params)
    for name in names:
        if name not in domain:
            domain[name] = _around([case.params[name] for case in cases if name in case.params])
    always = [name for name in names if all(name in case.params for case in cases)]
    params = st.fixed_dictionaries(
        {name: domain[name] for name in always},
        optional={name: domain[name] for name in domain if name not in always},
    )

    def make(params: dict[str, Any], inputs: str, layout: str, seed: int) -> Case:
        return Case(
            name=_name_of(params),
            params=params,
            speed=False,
            layout=layout,
            seed=seed,
            named_inputs=() if inputs == NORMAL else (inputs,),
        )

    return st.builds(
        make,
        params,
        st.sampled_from((NORMAL, *spec.defined_inputs)),
        st.sampled_from(LAYOUTS),
        st.integers(0, SEEDS - 1),
    )


def domain_of(spec: KernelSpec) -> dict[str, Any]:
    """Return the strategies that a spec has for some of its parameters."""
    domain = dict(spec.search()) if spec.search is not None else {}
    declared = {name for case in spec.cases for name in case.params}
    taken = parameters_of(spec.inputs)[1:]  # behind make_tensor
    known = declared | {parameter.name for parameter in taken}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        return domain
    if unknown := {*domain} - known:
        raise SpecError(
            f"KernelSpec {spec.name!r}: search has {sorted(unknown)}; "
            f"the parameters of its cases and its inputs are {', '.join(sorted(known))}"
        )
    return domain


def _around(values: Sequence[Any]) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return st.booleans()
    if kinds == {int}:
        return _sizes_around(values)
    if kinds <= {tuple, list} and any(values):
        lengths = [len(value) for value in values]
        inner = _around([element for value in values for element in value])
        return st.lists(inner, min_size=min(lengths), max_size=max(lengths)).map(tuple)
    different = [value for at, value in enumerate(values) if value not in values[:at]]
    return st.sampled_from(different)


def _sizes_around(values: Sequence[int]) -> SearchStrategy[int]:
    from hypothesis import strategies as st

    declared = sorted({*values})
    first, last = min(0, declared[0]), declared[-1]
    # Sizes above the largest declared one reach what no case reaches: the rest of its last tile, and the
    # tiles after that.
    farthest = BEYOND * max(last, 1)
    powers = [2**exponent for exponent in range(farthest.bit_length() + 1)]
    edges = {size + step for size in (*declared, *powers) for step in (-1, 0, 1)}
    return st.one_of(
        st.integers(first, last),
        st.sampled_from(declared),
        st.sampled_from(sorted(size for size in edges if first <= size <= last + 1)),
        st.sampled_from(sorted(size for size in {*edges, farthest} if last < size)),
    )


def _name_of(params: Mapping[str, Any]) -> str:
    """Return a name for a case with these parameters: "m1-n3-bfloat16"."""
    parts = []
    for name, value in params.items():
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, bool):
            parts += [name] * value
        elif value is not None:
            parts.append(f"{name}{value}")
    return (
        "-".join(filter(None, (re.sub("[^A-Za-z0-9_.]+", "_", part).strip("_") for part in parts))) or "found"
    )


# -- the search --------------------------------------------------------------------------------------


class KernelSearch:
    """The search for a failing case of one declared kernel, as a test runs it."""

    def __init__(self, session: Session, *, spec: KernelSpec, arch: str, seconds: float, seed: int) -> None:
        """Prepare; `seconds` are for finding and shrinking together, from the end of the first example."""
        self._session = session
        self._spec = spec
        self._arch = arch
        self._seconds = seconds
        self._seed = seed
        self._interpreted = session.target.interprets(arch)
        self._deadline = math.inf
        self._passed = 0
        self._refusals: Counter[str] = Counter()
        """How many examples the launcher, or the inputs, did not take, by reason."""
        self._failing: dict[str, Exception] = {}
        """What was raised for each example that fails, by its declaration."""
        self._smallest: Case | None = None
        """The smallest that fails, as far as is known."""
        self._report: CheckReport | None = None

    def run(self) -> None:
        """Search; fail with the smallest example that was found, as a case to paste."""
        results = self._session.results
        subject = CorrectResult(
            key=f"{self._spec.name}[search]",
            kernel=self._spec.name,
            case="search",
            arch=self._arch,
            verdict=Verdict.PASS,
            on=INTERPRETER if self._interpreted else "",
        )
        with GateOutcome(self._session, subject.key):
            gate_correct(self._session, subject, self._search)
            results[-1] = msgspec.structs.replace(results[-1], searched=self._describe_passed())

    def _search(self) -> CheckReport:
        """Try examples until one fails or time is over; look for the smallest that fails the same way."""
        from hypothesis import HealthCheck, Phase, find, settings
        from hypothesis.errors import Flaky, NoSuchExample, Unsatisfiable

        options = settings(
            max_examples=10**9,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        strategy, random = examples(self._spec, self._arch), Random(self._seed)  # noqa: S311
        certainty = "the smallest that fails"
        try:
            self._smallest = find(strategy, self._fails, settings=options, random=random)
        except (NoSuchExample, Unsatisfiable):
            pass
        except (OutOfTime, Flaky):  # what fails only now and then was seen once, and is reported
            certainty = "cut short: there may be a smaller one"
        refused = self._refusals.total()
        if self._smallest is not None:
            declared = declaration(self._smallest)
            error = self._failing[declared]
            error.add_note(
                f"found by search (seed {self._seed}, {self._passed} examples passed, {refused} refused); "
                f"{certainty}.\nTo keep it, declare it:\n    {declared},"
            )
            raise error
        if self._report is None:
            why = "".join(f": {reason}" for reason, _ in self._refusals.most_common(1))
            raise GateSkipped(Reason.NOTHING_TRIED, f"{refused} examples, all refused{why}")
        return self._report

    def _fails(self, example: Case) -> bool:
        from hypothesis import reject

        if time.monotonic() > self._deadline:
            raise OutOfTime
        try:
            self._check(example)
        except NoExample as error:
            self._refusals[f"{error}".partition("\n")[0]] += 1
            reject()
        except Exception as error:
            # A smaller example that fails in another way would hide this one.
            first = next(iter(self._failing.values()), error)
            if type(error) is not type(first):
                return False
            self._failing[declaration(example)] = error
            self._smallest = example
            if breaks_the_context(error):
                raise OutOfTime from error
            return True
        finally:  # the first example pays for what is imported
            self._deadline = min(self._deadline, time.monotonic() + self._seconds)
        self._passed += 1
        return False

    def _describe_passed(self) -> str:
        refused = f"{self._refusals.total()} were refused"
        passed = f"{self._passed} examples of {self._spec.name} passed, {refused}"
        lines = [f"{count} refused: {reason}" for reason, count in self._refusals.most_common(REASONS)]
        more = len(self._refusals) - REASONS
        lines += [f"... for {more} other reasons"] * (more > 0)
        return "\n  ".join([f"searched with seed {self._seed}: {passed}", *lines])

    def _check(self, case: Case) -> None:
        """Check one example as the gate `correct` does, but for its compilation."""
        spec, inputs_name, settings = self._spec, inputs_of(case), self._session.settings
        self._session.progress(f"searching {spec.name}: {inputs_name} {case.name}")
        with _refusing(), user_code():
            work = spec.work_of(case)
        self._refuse_large(work.bytes, work.flops)

        def check_with(launching: Launching) -> CheckReport:
            device = "cuda"
            if not launching.is_interpreted:
                device = self._session.gpu.usable_device(self._arch).torch_device
            make = functools.partial(MakeTensor, device=device, seed=case.seed or 0)
            with _refusing(), user_code():
                inputs = spec.make_inputs(make, case, inputs_name)
            self._refuse_large(sum(tensor.nbytes for tensor in tensors_in(inputs)))
            return check_inputs(spec, case, inputs, launching=launching, name=inputs_name, settings=settings)

        refuses = is_refusal if case.layout == LAYOUTS[0] else is_layout_refusal
        with _refusing(lambda error: isinstance(error, GateSkipped) or refuses(error)), user_code():
            if self._interpreted:
                self._report = Interpreting(self._session, self._arch, compiles=False).interpret(check_with)
            else:
                self._report = check_with(ON_GPU)

    def _refuse_large(self, size_bytes: float, flops: float = 0.0) -> None:
        if self._interpreted and (size_bytes > INTERPRETED_BYTES or flops > INTERPRETED_FLOPS):
            raise NoExample("it is more work than a search interprets")
        if size_bytes > LAUNCHED_BYTES:
            raise NoExample("it is larger than what a search launches")


@contextmanager
def _refusing(is_refused: Callable[[Exception], bool] = lambda _: True) -> Iterator[None]:
    """Take exceptions for the refusal of an example."""
    try:
        yield
    except Exception as error:
        if isinstance(error, NoExample) or not is_refused(error):
            raise
        raise NoExample(f"{type(error).__name__}: {error}") from error
