"""Search for a case that fails: hypothesis varies sizes, dtypes, layouts and values of a declared kernel.

Wrong results count first. What raises, or does not compile, is seen by whoever calls the kernel so: it is
reported where no result was wrong. Sizes of 0 come last.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytest_cutile.correctness.errors import KernelMismatch
from pytest_cutile.correctness.guards.launching import ON_GPU, Launching
from pytest_cutile.correctness.rejections import is_layout_refusal, is_refusal
from pytest_cutile.correctness.signatures import parameters_of
from pytest_cutile.gates.correct import gate_correct
from pytest_cutile.gates.declared import check_inputs
from pytest_cutile.gates.interpreted import Interpreting
from pytest_cutile.gates.outcome import GateOutcome
from pytest_cutile.gates.user_code import user_code
from pytest_cutile.tile.interpreter.faults import KernelFault
from pytest_cutile.tile.tensors.seeded import MakeTensor
from pytest_cutile.tile.tensors.trees import tensors_in
from pytest_cutile.timing.gpu.context import breaks_the_context
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.input_names import LAYOUTS, NORMAL
from pytest_cutile.words.results import INTERPRETER, CorrectResult
from pytest_cutile.words.spec import Case, KernelSpec, SpecError
from pytest_cutile.words.verdicts import Reason, Verdict

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from pytest_cutile.correctness.report import CheckReport
    from pytest_cutile.gates.session import Session

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
TRY_ONES, DRAW_SIZES, DRAW_EMPTY = 0.25, 0.6, 0.8
"""Shares of the time at which each stage ends that has found nothing; the last one ends with the time."""
ALL_SIZES = 16
"""A failing example is made smaller by all sizes up to here, and by powers of 2 beyond."""

REASONS = 5
"""Reasons for refusing examples that are shown."""


class Failing(NamedTuple):
    """An example that fails, and what its check raised."""

    example: Case
    error: Exception


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


def small_cases(spec: KernelSpec, arch: str) -> list[Case]:
    """Return the cases that examples are made from: timed ones, which are large, if there are no others."""
    runnable = [case for case in spec.cases if case.runs_on(arch)]
    return [case for case in runnable if not case.speed] or runnable


def examples(spec: KernelSpec, arch: str, *, empty: bool) -> SearchStrategy[Case]:
    """Return a strategy for examples of `spec`: small cases, each checked with one kind of inputs.

    Each parameter varies on its own, over the strategy in the spec's `search`, or else around the values of
    its cases. With `empty`, sizes may be 0 where all cases have larger ones.
    """
    from hypothesis import strategies as st

    cases = small_cases(spec, arch)
    domain = domain_of(spec)
    names = dict.fromkeys(name for case in cases for name in case.params)
    for name in names:
        if name not in domain:
            values = [case.params[name] for case in cases if name in case.params]
            domain[name] = _around(values, empty=empty)
    always = [name for name in names if all(name in case.params for case in cases)]
    params = st.fixed_dictionaries(
        {name: domain[name] for name in always},
        optional={name: domain[name] for name in domain if name not in always},
    )

    return st.builds(
        example_of,
        params.map(lambda drawn: {name: drawn[name] for name in (*names, *domain) if name in drawn}),
        st.sampled_from((NORMAL, *spec.defined_inputs)),
        st.sampled_from(LAYOUTS),
        st.integers(0, SEEDS - 1),
    )


def example_of(
    params: Mapping[str, Any], inputs: str = NORMAL, layout: str = LAYOUTS[0], seed: int = 0
) -> Case:
    return Case(
        name=_name_of(params),
        params=params,
        speed=False,
        layout=layout,
        seed=seed,
        named_inputs=() if inputs == NORMAL else (inputs,),
    )


def ones(spec: KernelSpec, arch: str) -> Iterator[Case]:
    """Yield each small case with one of its sizes, and only that, set to 1."""
    domain, seen = domain_of(spec), set[str]()
    for case in small_cases(spec, arch):
        for params in _resized(case.params, lambda size: [1] * (size > 1), fixed=domain):
            example = example_of(params)
            if example.name not in seen:
                seen.add(example.name)
                yield example


def smaller(example: Case, *, fixed: Collection[str]) -> Iterator[Case]:
    """Yield simpler examples: with plain inputs, or with one size smaller, but for `fixed` parameters."""
    plain = example_of(example.params)
    if declaration(plain) != declaration(example):
        yield plain

    def sizes(size: int) -> Sequence[int]:
        powers = [2**exponent for exponent in range(ALL_SIZES.bit_length(), size.bit_length())]
        return [less for less in (*range(1, ALL_SIZES + 1), *powers) if less < size]

    for params in _resized(example.params, sizes, fixed=fixed):
        yield replace(example, name=_name_of(params), params=params)


def _resized(
    params: Mapping[str, Any], sizes: Callable[[int], Sequence[int]], *, fixed: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yield parameters with one number, also inside of a tuple, replaced by each of its `sizes`."""

    def others(value: Any) -> Iterator[Any]:
        if isinstance(value, int) and not isinstance(value, bool):
            yield from sizes(value)
        elif isinstance(value, tuple | list):
            for at, element in enumerate(value):
                yield from ((*value[:at], other, *value[at + 1 :]) for other in others(element))

    for name, value in params.items():
        if name not in fixed:
            yield from ({**params, name: other} for other in others(value))


def magnitude(value: Any) -> tuple[int, float]:
    """Return how many numbers in the parameters of an example are 0, and the sum of all numbers."""
    if isinstance(value, int | float):
        return value == 0 and not isinstance(value, bool), abs(value)
    if isinstance(value, Mapping):
        value = [*value.values()]
    inner = [magnitude(element) for element in value] if isinstance(value, tuple | list) else []
    return sum(empty for empty, _ in inner), sum(total for _, total in inner)


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


def _around(values: Sequence[Any], *, empty: bool) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return st.booleans()
    if kinds == {int}:
        return _sizes_around(values, empty=empty)
    if kinds <= {tuple, list} and any(values):
        lengths = [len(value) for value in values]
        inner = _around([element for value in values for element in value], empty=empty)
        return st.lists(inner, min_size=min(lengths), max_size=max(lengths)).map(tuple)
    different = [value for at, value in enumerate(values) if value not in values[:at]]
    return st.sampled_from(different)


def _sizes_around(values: Sequence[int], *, empty: bool) -> SearchStrategy[int]:
    from hypothesis import strategies as st

    declared = sorted({*values})
    first, last = min(1, declared[0]), declared[-1]
    # Sizes above the largest declared one reach what no case reaches: the rest of its last tile, and the
    # tiles after that.
    farthest = BEYOND * max(last, 1)
    powers = [2**exponent for exponent in range(farthest.bit_length() + 1)]
    edges = {size + step for size in (*declared, *powers) for step in (-1, 0, 1)}
    return st.one_of(
        *[st.just(0)] * (empty and first > 0),
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
        self._started = math.inf
        """When the first example was done, which pays for what is imported."""
        self._share = TRY_ONES
        """Share of the time after which the stage ends unless it has found something."""
        self._passed = 0
        self._refusals: Counter[str] = Counter()
        """How many examples the launcher, or the inputs, did not take, by reason."""
        self._failing: dict[str, Failing] = {}
        """The examples that fail as the smallest one does, by declaration."""
        self._raising: list[Failing] = []
        """Examples that do not compile, or whose check raised otherwise: their results are not wrong."""
        self._smallest: Failing | None = None
        """The smallest that is reported, as far as is known."""
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
        from hypothesis.errors import Flaky

        stages: Sequence[tuple[float, Callable[[], None]]] = (
            (TRY_ONES, self._try_ones),
            (DRAW_SIZES, functools.partial(self._draw, empty=False)),
            (DRAW_EMPTY, functools.partial(self._draw, empty=True)),
            (1.0, self._take_raising),
        )
        certainty = ""
        for self._share, search in stages:
            try:
                search()
                certainty = "the smallest that fails"
            except (OutOfTime, Flaky):  # what fails only now and then was seen once, and is reported
                certainty = "cut short: there may be a smaller one"
            if self._smallest is not None:
                break
        refused = self._refusals.total()
        if self._smallest is not None:
            example, error = self._smallest
            raising = f", {len(self._raising)} raised" if self._raising else ""
            error.add_note(
                f"found by search (seed {self._seed}, {self._passed} examples passed, {refused} refused"
                f"{raising}); {certainty}.\nTo keep it, declare it:\n    {declaration(example)},"
            )
            raise error
        if self._report is None:
            why = "".join(f": {reason}" for reason, _ in self._refusals.most_common(1))
            raise GateSkipped(Reason.NOTHING_TRIED, f"{refused} examples, all refused{why}")
        return self._report

    # -- the stages -----------------------------------------------------------------------------------

    def _try_ones(self) -> None:
        """Try the cases with one size of 1: what an author forgets most, and the rest is as they declared."""
        if any(map(self._fails, ones(self._spec, self._arch))):
            self._make_smaller()

    def _draw(self, *, empty: bool) -> None:
        """Let hypothesis draw examples until one is wrong, and make that smaller."""
        from hypothesis import HealthCheck, Phase, find, settings
        from hypothesis.errors import NoSuchExample, Unsatisfiable

        options = settings(
            max_examples=10**9,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        strategy, random = examples(self._spec, self._arch, empty=empty), Random(self._seed)  # noqa: S311
        with suppress(NoSuchExample, Unsatisfiable):
            smallest = find(strategy, self._fails, settings=options, random=random)
            self._smallest = self._failing[declaration(smallest)]

    def _take_raising(self) -> None:
        """Report what raised, since nothing was wrong; one without sizes of 0 if there is one."""
        if self._raising:
            self._smallest = min(self._raising, key=lambda failing: magnitude(failing.example.params))
            self._make_smaller()

    def _make_smaller(self) -> None:
        domain = domain_of(self._spec)
        while self._smallest and any(map(self._fails, smaller(self._smallest.example, fixed=domain))):
            pass

    def _fails(self, example: Case) -> bool:
        """Check an example; return whether it is the smallest now: it fails, and as the one before."""
        if time.monotonic() > self._started + self._seconds * (1.0 if self._smallest else self._share):
            raise OutOfTime
        try:
            self._check(example)
        except NoExample as error:
            self._refusals[f"{error}".partition("\n")[0]] += 1
            return False
        except Exception as error:
            failing = Failing(example, error)
            if breaks_the_context(error):
                self._smallest = failing
                raise OutOfTime from error
            # A smaller example that fails in another way would hide this one.
            kind = type(self._smallest.error) if self._smallest else KernelMismatch | KernelFault
            if not isinstance(error, kind):
                self._raising.append(failing)
                return False
            self._failing[declaration(example)] = self._smallest = failing
            return True
        finally:
            self._started = min(self._started, time.monotonic())
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
