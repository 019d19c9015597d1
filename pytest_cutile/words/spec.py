"""What a kernel's author declares: `KernelSpec`, its `Case`s and the `Work` one launch does."""

from __future__ import annotations

import difflib
import inspect
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, TypeAlias

from pytest_cutile.words.errors import ShownWithoutTraceback
from pytest_cutile.words.formats import FORMATS
from pytest_cutile.words.input_names import DISTRIBUTIONS, LAYOUTS, REVEALING
from pytest_cutile.words.platforms.architectures import ArchitectureError, generation, normalize_architecture

DTYPES = (
    *FORMATS,
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)
"""Names of dtypes, as torch spells them; tfloat32 is float32 on tensor cores."""
SHARES = 5
"""Cases of a kernel that share the named inputs: research/reports/run-time.md says what more and fewer kill.
Dtypes often alternate from case to case, two to four of them: with five shares each meets each name."""
_CASE_NAME = re.compile(r"[A-Za-z0-9_.=,+-]+")


def _declaration_place() -> tuple[str, int]:
    """Return file and line in the module that makes a case, by itself or through functions."""
    frame = sys._getframe()  # noqa: SLF001
    while frame.f_back is not None and frame.f_globals.get("__name__") in {__name__, "dataclasses"}:
        frame = frame.f_back
    innermost = inner = frame
    while frame.f_code.co_name != "<module>":
        if frame.f_back is None or frame.f_globals.get("__name__", "").startswith("pytest_cutile."):
            return innermost.f_code.co_filename, innermost.f_lineno  # the module is asked for it
        inner, frame = frame, frame.f_back
    if inner.f_code.co_name in {"<genexpr>", "<listcomp>"}:
        frame = inner
    return frame.f_code.co_filename, frame.f_lineno


class SpecError(ShownWithoutTraceback, ValueError):
    """A declaration that cannot be gated; the message names the spec, what is wrong and what to do."""

    def __init__(self, message: str, place: tuple[str, int] | None = None) -> None:
        super().__init__(message)
        self.place = place
        """File and line of the case that is wrong; None: the traceback tells."""


Axes: TypeAlias = Mapping[str, Sequence[str | None]]
"""Names of dimensions, by argument; those of the outputs under "output"."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one launch has to do, whatever the implementation: the numerators of TFLOPS, GB/s and tokens/s."""

    flops: float = 0.0
    """Floating-point operations per launch (a multiply-add counts two); 0 for a memory-bound kernel."""
    bytes: float = 0.0
    """Bytes per launch: each input read once, each output written once."""
    tokens: float = 0.0
    """Tokens of a language model that one launch takes in or generates; 0 for a kernel. A speed is then shown
    in tokens/s."""
    dtype: str | None = None
    """Dtype of the multiplied operands ("float16", "tfloat32", "float8_e4m3fn"): it chooses the peak rate."""

    def __post_init__(self) -> None:
        for name in ("flops", "bytes", "tokens"):
            value = getattr(self, name)
            if not _is_count(value):
                raise SpecError(f"Work: {name} must be a finite count, got {value!r:.40}")
            object.__setattr__(self, name, float(value))
        if self.dtype is not None:
            dtype = str(self.dtype).removeprefix("torch.")
            if dtype not in DTYPES:
                raise SpecError(f"Work: unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
            object.__setattr__(self, "dtype", dtype)

    @property
    def amounts(self) -> dict[str, float]:
        """What is counted, by the unit of its rate per second: {"TFLOPS": 0.137}."""
        amounts = {"tokens/s": self.tokens, "TFLOPS": self.flops * 1e-12, "GB/s": self.bytes * 1e-9}
        return {unit: amount for unit, amount in amounts.items() if amount}


def _is_count(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of a check, for `check_kernel` and `KernelSpec.check`.

    Raises:
        ValueError: a value out of its range.
        TypeError: `exp_error` is no number, or what turns something on or off is no bool.
    """

    reduction: int = 1
    """Length of the longest sum behind one output element."""
    rtol: float | None = None
    """With `atol`, replaces the derived bound: `abs(out - y) <= atol + rtol * abs(y)`; 0 by default."""
    atol: float | None = None
    """Absolute tolerance beside `rtol`. Integers may differ by `atol` alone, if that is 1 or more."""
    precision: Any = None
    """Dtype that operands of matrix products are rounded to; "tfloat32" for float32 inputs that go through
    tensor cores. By default the floating input dtype of least precision."""
    mid: Any = None
    """Dtype that the kernel rounds intermediate results to; by default they stay in float32 (float64 for
    float64 outputs)."""
    exp_error: float = 0.0
    """Relative error of the kernel's exponentials, where they are worse than a few float32 ulps."""
    fast_acc: bool = False
    """Whether products of 8-bit floats are summed in Hopper's tensor cores all along, with about 14 bits, as
    `mma(..., use_fast_acc=True)` does. By default at most 128 are before float32 takes over. It changes
    nothing elsewhere."""
    mutates: Collection[str | int] = ()
    """Arguments that the launcher may change, by name or position. One that the reference changes, too, is
    compared with that, if the launcher does not return it."""
    writes: Collection[str | int] = ()
    """Arguments that the launcher overwrites without reading them (`out`), likewise: they are poisoned, and
    one that it never touches is an error."""
    guard: bool = True
    """False gives the launcher the very tensors that were given, and plain allocations, poisoned: for one
    that finds its data by offsets into a storage instead of by its tensors."""
    vary_layout: bool | None = None
    """Whether to run again with the inputs' values in other layouts, under the same bound: with padded rows,
    from an address that is a multiple of one element only, and with the last two axes exchanged in memory. A
    launcher may refuse one, by its own `raise` of a ValueError, TypeError or NotImplementedError, or by
    `.view`, which never copies. By default the first two, and only in small cases; interpreted, the first."""
    independent: Axes | None = None
    """Names of dimensions of arguments, and of outputs under "output", along which they may be cut:
    `{"a": ("m", None), "b": (None, "n"), "output": ("m", "n")}` for a matrix product. Cases of more than
    8 MiB are then checked in parts (`error_model.parts`), after a trial whether the reference of a few
    neighbours is the reference of each; the noise of an element is then that of its part. A reference to
    which it matters where a part lies takes `origin=None`: of each tensor argument, by name, the index of the
    part's first element. Not with `mutation_test`."""
    sliced: Collection[str | int] = ()
    """Arguments of which the reference takes one slice of the first dimension at a time, by name or position,
    such as the weights of experts: it gets `x[i]`, `len(x)`, `x.shape`, `x.device` and `for each in x`. Each
    slice is upcast when it is taken, so that no float64 copy of all is made, and has noise of its own."""
    sampled: bool = False
    """Whether only a few parts of a case that is checked in parts are compared, as before a measurement of
    speed alone. All guards stay."""
    grad: bool = False
    """Whether the launcher is differentiable by autograd (a `torch.autograd.Function` around kernels): then
    gradients of all floating arguments that the reference depends on are compared with those of the
    reference, too, from upstream gradients that are random. `reduction` is the length of the longest sum
    behind an element of an output or of a gradient. `mutates` may name upstream gradients as messages do,
    "gradient of output[0]": backward may then change them. Not with `sliced`; `independent` is not used."""
    no_grad: Collection[str | int] = ()
    """With `grad`, arguments that have no gradient by design, such as the tables of a rotary embedding: by
    name or position."""
    backward_once: bool = False
    """With `grad`, whether backward may run but once after forward, because it overwrites what forward has
    kept. By default it runs twice in small cases, as with `retain_graph=True`, and may only refuse that by
    an exception."""
    mutation_test: bool = False
    """Whether to run mutation tests: right outputs are mutated as bugs do and compared again, some forty
    times, and the reference runs up to 32 times on shortened inputs."""

    def __post_init__(self) -> None:
        try:
            length = operator.index(self.reduction)
        except TypeError:
            length = 0
        if isinstance(self.reduction, bool) or length < 1:
            raise ValueError(
                f"reduction is the length of a sum, an int of at least 1; got {self.reduction!r}"
            )
        object.__setattr__(self, "reduction", length)
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not (isinstance(value, Real) and 0 <= value < float("inf")):
                raise ValueError(f"{name} must be finite and not negative, got {value!r}")
        if not isinstance(self.exp_error, Real):
            raise TypeError(f"exp_error is a relative error, a number; got {self.exp_error!r}")
        for name in ("fast_acc", "guard", "sampled", "grad", "backward_once", "mutation_test", "vary_layout"):
            value = getattr(self, name)
            if not (isinstance(value, bool) or (value is None and name == "vary_layout")):
                raise TypeError(f"{name} has to be True or False, got {value!r}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(option.name for option in fields(cls))

    @classmethod
    def split(
        cls, keywords: Mapping[str, Any], taken: Collection[str]
    ) -> tuple[CheckOptions, dict[str, Any]]:
        """Return the options among keyword arguments of `check_kernel`, and the arguments of its launcher.

        Raises TypeError as `refuse_misspelled` does.
        """
        names = cls.names()
        others = {name: value for name, value in keywords.items() if name not in names}
        refuse_misspelled("check_kernel", others, options=names, taken=taken)
        return cls(**{name: value for name, value in keywords.items() if name in names}), others


def _nearest(name: str, options: Collection[str]) -> str:
    """Return a question after the option that is spelled most like `name`; empty if none is."""
    close = difflib.get_close_matches(name, options, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def refuse_misspelled(
    fixture: str, keywords: Iterable[str], *, options: Collection[str], taken: Collection[str]
) -> None:
    """Raise TypeError for a keyword that is spelled nearly like an option of a fixture.

    `taken` are all arguments of the launcher, which are right; empty if they are not known.
    """
    for name in keywords:
        if taken and name not in taken and (near := _nearest(name, options)):
            raise TypeError(f"{fixture} has no option {name!r}, nor has the launcher: {near}")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One shape, dtype and option set that a kernel is gated with."""

    name: str
    """Readable and unique in its spec; part of the test's id and the baseline's key: "bf16-4096x8192"."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the spec's `inputs`, `work` and `reduction`."""
    speed: bool = True
    """Whether the speed gate times it. False for odd or small shapes that only correctness needs."""
    min_arch: str | None = None
    """The oldest architecture that can run it ("sm_90" for 8-bit floats); on older ones it is skipped."""
    layout: str = "contiguous"
    """How the tensors that `inputs` makes without strides lie in memory: of `input_names.LAYOUTS`."""
    seed: int | None = None
    """Seed of the inputs' values; by default it is derived from the test's id, and where the kernel is timed
    from its name and the case's."""
    named_inputs: Sequence[str] | None = None
    """Names of the inputs that it is checked with besides normal ones. By default its share of those that its
    spec defines, or none where `speed` says that it is timed, since such cases are large."""
    place: tuple[str, int] = field(init=False, repr=False, compare=False)
    """File and line of the declaration, where failures are shown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", _declaration_place())
        if self.layout not in LAYOUTS:
            raise SpecError(
                f"Case {self.name!r}: layout must be one of {', '.join(LAYOUTS)}; got {self.layout!r}"
            )
        if self.min_arch is not None:
            try:
                object.__setattr__(self, "min_arch", normalize_architecture(self.min_arch))
            except ArchitectureError as error:
                raise SpecError(f"Case {self.name!r}: min_arch {error}") from error

    def runs_on(self, arch: str) -> bool:
        """Return whether `arch` ("sm_121") is `min_arch` or newer."""
        return self.min_arch is None or generation(arch) >= generation(self.min_arch)


_FIELDS = ("reduction", "independent", "grad")
"""Options of the check that are fields of a `KernelSpec`."""


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """A declared kernel: pytest collects each of its cases under every gate.

    The module that holds it is listed in the ini option `cutile_kernels` and exposes it as `SPEC`
    (or several as `SPECS`).

    Cases with `speed=False`, which ought to be small, are checked for correctness several times: with normal
    values, and with some of `input_names.REVEALING`, as far as they are not among `undefined_inputs`, and of
    `special_inputs`. Every name is used with some case.

    Raises:
        SpecError: no cases, a duplicate or unusable name of a case or of inputs.
    """

    name: str
    """The kernel's name: in the summary and in baseline keys ("softmax")."""
    launch: Callable[..., Any]
    """The launcher as users call it: takes what `inputs` makes, returns the output or a tuple of them."""
    reference: Callable[..., Any]
    """Same arguments, with floating-point tensors converted to float64; returns the exact outputs."""
    inputs: Callable[..., Any]
    """`inputs(make_tensor, **case.params)`: the arguments, as a tuple or a dict of keyword arguments."""
    cases: Sequence[Case]
    """What is gated."""
    work: Callable[..., Work] | None = None
    """`work(**case.params)`: what one launch does. Without it the speed gate compares times alone."""
    reduction: Callable[..., int] | int = 1
    """Length of the longest sum behind one output element, or `reduction(**case.params)`."""
    check: Callable[..., CheckOptions | Mapping[str, Any]] | CheckOptions | Mapping[str, Any] = field(
        default_factory=dict
    )
    """Further options of the check, as `CheckOptions` or by name, or `check(**case.params)`; not those that
    have fields here (`reduction`, `independent`, `grad`)."""
    independent: Callable[..., Axes] | Axes | None = None
    """Along which dimensions large cases are checked in parts (`CheckOptions`), or
    `independent(**case.params)`."""
    special_inputs: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Inputs that reveal what independent random tensors cannot, by name: `special_inputs[name](inputs)` gets
    what `inputs` made and returns it changed, in place or not: {"zero_queries": zero_queries}."""
    undefined_inputs: Mapping[str, str] = field(default_factory=dict)
    """Those of `input_names.REVEALING` for which the kernel defines no result, each with the reason."""
    grad: bool = False
    """Whether the launcher is differentiable by autograd: its gradients are checked (`CheckOptions`), and
    its backward kernels compiled. The forward pass alone is timed."""
    no_grad: Collection[str | int] = ()
    """With `grad`, arguments that have no gradient by design (`CheckOptions`)."""
    search: Callable[[], Mapping[str, Any]] | None = None
    """Returns hypothesis strategies for some of the parameters, by name: what `--search` may choose. Others
    are varied around the values that the cases have."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple(self.cases))
        if not self.name:
            raise SpecError("a KernelSpec needs a name: it is part of baseline keys")
        if not self.name.isprintable():
            raise self._error("control characters cannot be part of a test id: rename it")
        if not self.cases:
            raise SpecError(
                f"KernelSpec {self.name!r} declares no cases, so nothing would be gated: "
                "give it at least one Case"
            )
        seen: set[str] = set()
        for case in self.cases:
            if not isinstance(case, Case):
                raise self._error(f"cases must be pytest_cutile.Case, got {case!r}")
            if not _CASE_NAME.fullmatch(case.name):
                raise self._error(
                    f"case name {case.name!r} cannot be part of a test id: "
                    "use letters, digits and any of _ . = , + -"
                )
            if case.name in seen:
                raise self._error(
                    f"two cases named {case.name!r}: case names are baseline keys and must be unique"
                )
            seen.add(case.name)
        self._check_input_names(seen)
        if not callable(self.check):
            self._named_options(self.check)
        for field_name in ("inputs", "work", "reduction", "check", "independent"):
            self._check_params(field_name)

    def _error(self, text: str, place: tuple[str, int] | None = None) -> SpecError:
        return SpecError(f"KernelSpec {self.name!r}: {text}", place)

    def _check_params(self, field_name: str) -> None:
        function = getattr(self, field_name)
        if not callable(function):
            return
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some builtins do not say what they take
            return
        first = (None,) if field_name == "inputs" else ()
        for case in self.cases:
            try:
                signature.bind(*first, **case.params)
            except TypeError as error:
                given = ", ".join(case.params) or "none"
                wrong = f"its params ({given}) do not fit {field_name}{signature}: {error}"
                raise self._error(f"case {case.name!r}: {wrong}", case.place) from None

    def _check_input_names(self, cases: set[str]) -> None:
        for name in self.special_inputs:
            if not _CASE_NAME.fullmatch(name) or name in DISTRIBUTIONS:
                raise self._error(
                    f"special_inputs {name!r}: the name is one of "
                    f"{', '.join(DISTRIBUTIONS)}, or cannot be part of a test id: choose another"
                )
        for name, reason in self.undefined_inputs.items():
            if name not in REVEALING or not reason.strip():
                raise self._error(
                    f"undefined_inputs {name!r}: {reason!r}: expected one of "
                    f"{', '.join(REVEALING)}, and why the kernel defines no result for it"
                )
        for case in self.cases:
            if unknown := {*(case.named_inputs or ())} - {*self.defined_inputs}:
                raise self._error(
                    f"case {case.name!r}: named_inputs has {sorted(unknown)}; "
                    f"defined are {', '.join(self.defined_inputs)}"
                )
            for name in self.named_inputs(case, every=True):
                if f"{case.name}-{name}" in cases:
                    raise self._error(
                        f"case {case.name}-{name} has the name under which case "
                        f"{case.name} is checked with {name!r} inputs: rename it"
                    )

    def named_inputs(self, case: Case, *, every: bool = False) -> tuple[str, ...]:
        """Return the names of the inputs that `case` is checked with besides normal ones.

        Cases share the work: of five, each has a fifth of `defined_inputs`; with `every`, each has all.
        """
        if case.named_inputs is not None:
            return tuple(case.named_inputs)
        sharing = [case for case in self.cases if not case.speed and case.named_inputs is None]
        if case not in sharing:
            return ()
        shares = 1 if every else min(SHARES, len(sharing))
        return self.defined_inputs[sharing.index(case) % shares :: shares]

    @property
    def defined_inputs(self) -> tuple[str, ...]:
        """Names of all inputs besides normal ones for which the kernel defines a result."""
        return (*(name for name in REVEALING if name not in self.undefined_inputs), *self.special_inputs)

    def make_inputs(self, make: Callable[..., Callable[..., Any]], case: Case, name: str = "normal") -> Any:
        """Return the arguments of a launch.

        Args:
            make: `make(dist=..., layout=...)` returns what `inputs` is called with.
            case: whose parameters they have.
            name: "normal", or one of `defined_inputs`.
        """
        change = self.special_inputs.get(name)
        made = self.inputs(make(dist="normal" if change else name, layout=case.layout), **case.params)
        return made if change is None else change(made)

    def reduction_of(self, case: Case) -> int:
        """Return the length of the longest sum behind one output element of `case`: 1 even of nothing."""
        return (self.reduction(**case.params) or 1) if callable(self.reduction) else self.reduction

    def independent_of(self, case: Case) -> Axes | None:
        return self.independent(**case.params) if callable(self.independent) else self.independent

    def check_of(self, case: Case) -> Mapping[str, Any]:
        """Return the options that `check` has for `case`, by name."""
        return self._named_options(self.check(**case.params) if callable(self.check) else self.check)

    def check_options(self, case: Case, **defaults: Any) -> CheckOptions:
        """Return all options of the check of `case`; `defaults` are those that `check` may override.

        Raises:
            SpecError: `check` has what is no option, is unknown, or is a field of the spec, or a value that
                the option does not take.
        """
        own: dict[str, Any] = {
            "reduction": self.reduction_of(case),
            "independent": self.independent_of(case),
            "grad": self.grad,
        }
        if self.no_grad:
            own["no_grad"] = self.no_grad
        try:
            return CheckOptions(**{**defaults, **self.check_of(case), **own})
        except (TypeError, ValueError) as error:
            raise self._error(f"case {case.name!r}: {error}", case.place) from None

    def _named_options(self, options: Any) -> Mapping[str, Any]:
        if isinstance(options, CheckOptions):
            default = CheckOptions()
            values = {name: getattr(options, name) for name in CheckOptions.names()}
            options = {name: value for name, value in values.items() if value != getattr(default, name)}
        if not isinstance(options, Mapping):
            raise self._error(
                f"check must be, or return, CheckOptions or a mapping of options; got {options!r}"
            )
        if own := {"reference", *_FIELDS} & {*options}:
            raise self._error(f"check has {sorted(own)}, which are fields of the spec itself")
        known = [name for name in CheckOptions.names() if name not in _FIELDS]
        for name in map(str, options):
            if name not in known:
                near = _nearest(name, CheckOptions.names())
                raise self._error(f"check has {[name]}; {near} options are {', '.join(known)}")
        return options

    def work_of(self, case: Case) -> Work:
        """Return what one launch of `case` does; an empty `Work` when the spec does not say."""
        return self.work(**case.params) if self.work is not None else Work()


def _no_reference(*_: Any, **__: Any) -> Any:
    raise SpecError("a ModelSpec has no reference: `verify` compares")


@dataclass(frozen=True, kw_only=True)
class ModelSpec(KernelSpec):
    """A program of many kernels, such as a language model: gated as a whole, under `correct` and `speed`.

    Its kernels are compiled, and compared with their static baselines, by specs of their own. What a launch
    of it compiles is not known beforehand: every run measures it.
    """

    reference: Callable[..., Any] = _no_reference
    verify: Callable[..., str]
    """Takes what `inputs` makes, runs the program, and compares with what is right: returns in words what was
    compared and allowed, and raises AssertionError where the program is wrong."""

    @property
    def defined_inputs(self) -> tuple[str, ...]:
        return tuple(self.special_inputs)
