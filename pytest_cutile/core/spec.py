"""What a kernel's author declares: `KernelSpec`, its `Case`s and the `Work` one launch does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_cutile.core.architectures import ArchitectureError, generation, normalize_architecture
from pytest_cutile.core.inputs import DISTRIBUTIONS, LAYOUTS, REVEALING

DTYPES = (
    *("float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)
"""Names of dtypes, as torch spells them; tfloat32 is float32 on tensor cores."""
SHARES = 3
"""Cases of a kernel that share the named inputs: each with all of them took three times as long as normal
ones alone, each with a third less than twice (735, 298 and 80 checks of four kernels, interpreted)."""
CHECK_OPTIONS = (
    *("precision", "mid", "exp_error", "fast_acc", "mutates", "writes"),
    *("guard", "vary_layout", "sliced", "strength", "rtol", "atol"),
)
"""Options of `check_kernel` that a spec has no fields for."""
_CASE_NAME = re.compile(r"[A-Za-z0-9_.=,+-]+")


class SpecError(ValueError):
    """A declaration that cannot be gated; the message names the spec, what is wrong and what to do."""


Axes: TypeAlias = Mapping[str, Sequence[str | None]]
"""Names of dimensions, by argument; those of the outputs under "output"."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one launch has to do, whatever the implementation: the numerators of TFLOPS and GB/s."""

    flops: float = 0.0
    """Floating-point operations per launch (a multiply-add counts two); 0 for a memory-bound kernel."""
    bytes: float = 0.0
    """Bytes per launch: each input read once, each output written once."""
    dtype: str | None = None
    """Dtype of the multiplied operands ("float16", "tfloat32", "float8_e4m3fn"): it chooses the peak rate."""

    def __post_init__(self) -> None:
        for name in ("flops", "bytes"):
            value = float(getattr(self, name))
            if not (math.isfinite(value) and value >= 0):
                raise SpecError(f"Work: {name} must be a finite count, got {value}")
            object.__setattr__(self, name, value)
        if self.dtype is not None:
            dtype = str(self.dtype).removeprefix("torch.")
            if dtype not in DTYPES:
                raise SpecError(f"Work: unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
            object.__setattr__(self, "dtype", dtype)


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
    """How the tensors that `inputs` makes without strides lie in memory: of `core.inputs.LAYOUTS`."""
    seed: int | None = None
    """Seed of the inputs' values; by default it is derived from the test's id, and where the kernel is timed
    from its name and the case's."""
    named_inputs: Sequence[str] | None = None
    """Names of the inputs that it is checked with besides normal ones. By default its share of those that its
    spec defines, or none where `speed` says that it is timed, since such cases are large."""

    def __post_init__(self) -> None:
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


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """A declared kernel: pytest collects each of its cases under every gate.

    The module that holds it is listed in the ini option `cutile_kernels` and exposes it as `SPEC`
    (or several as `SPECS`).

    Cases with `speed=False`, which ought to be small, are checked for correctness several times: with normal
    values, and with some of `core.inputs.REVEALING`, as far as they are not among `undefined_inputs`, and of
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
    check: Callable[..., Mapping[str, Any]] | Mapping[str, Any] = field(default_factory=dict)
    """Further options of the fixture `check_kernel`, or `check(**case.params)`: `precision`, `mid`,
    `exp_error`, `fast_acc`, `mutates`, `writes`, `guard`, `vary_layout`, `sliced`, or plain `rtol` and
    `atol`."""
    independent: Callable[..., Axes] | Axes | None = None
    """Names of dimensions of the arguments, and of the outputs under "output", or
    `independent(**case.params)`, along which the reference of a part is that part of the reference: large
    cases are checked in such parts. See `check_kernel`, which also says how a reference learns where its
    part lies (`origin`)."""
    special_inputs: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Inputs that reveal what independent random tensors cannot, by name: `special_inputs[name](inputs)` gets
    what `inputs` made and returns it changed, in place or not: {"zero_queries": zero_queries}."""
    undefined_inputs: Mapping[str, str] = field(default_factory=dict)
    """Those of `core.inputs.REVEALING` for which the kernel defines no result, each with the reason."""
    search: Callable[[], Mapping[str, Any]] | None = None
    """Returns hypothesis strategies for some of the parameters, by name: what `--search` may choose. Others
    are varied around the values that the cases have."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple(self.cases))
        if not self.name:
            raise SpecError("a KernelSpec needs a name: it is part of baseline keys")
        if not self.cases:
            raise SpecError(
                f"KernelSpec {self.name!r} declares no cases, so nothing would be gated: "
                "give it at least one Case"
            )
        seen: set[str] = set()
        for case in self.cases:
            if not isinstance(case, Case):
                raise SpecError(f"KernelSpec {self.name!r}: cases must be pytest_cutile.Case, got {case!r}")
            if not _CASE_NAME.fullmatch(case.name):
                raise SpecError(
                    f"KernelSpec {self.name!r}: case name {case.name!r} cannot be part of a test id: "
                    "use letters, digits and any of _ . = , + -"
                )
            if case.name in seen:
                raise SpecError(
                    f"KernelSpec {self.name!r} has two cases named {case.name!r}: "
                    "case names are baseline keys and must be unique"
                )
            seen.add(case.name)
        self._check_input_names(seen)
        if not callable(self.check):
            self._known(self.check)

    def _check_input_names(self, cases: set[str]) -> None:
        for name in self.special_inputs:
            if not _CASE_NAME.fullmatch(name) or name in DISTRIBUTIONS:
                raise SpecError(
                    f"KernelSpec {self.name!r}: special_inputs {name!r}: the name is one of "
                    f"{', '.join(DISTRIBUTIONS)}, or cannot be part of a test id: choose another"
                )
        for name, reason in self.undefined_inputs.items():
            if name not in REVEALING or not reason.strip():
                raise SpecError(
                    f"KernelSpec {self.name!r}: undefined_inputs {name!r}: {reason!r}: expected one of "
                    f"{', '.join(REVEALING)}, and why the kernel defines no result for it"
                )
        for case in self.cases:
            if unknown := {*(case.named_inputs or ())} - {*self.defined_inputs}:
                raise SpecError(
                    f"KernelSpec {self.name!r}: case {case.name!r}: named_inputs has {sorted(unknown)}; "
                    f"defined are {', '.join(self.defined_inputs)}"
                )
            for name in self.named_inputs(case, every=True):
                if f"{case.name}-{name}" in cases:
                    raise SpecError(
                        f"KernelSpec {self.name!r}: case {case.name}-{name} has the name under which case "
                        f"{case.name} is checked with {name!r} inputs: rename it"
                    )

    def named_inputs(self, case: Case, *, every: bool = False) -> tuple[str, ...]:
        """Return the names of the inputs that `case` is checked with besides normal ones.

        Cases share the work: of three, each has a third of `defined_inputs`, and the next three have them in
        another order, so that a name meets other dtypes and shapes.

        Args:
            case: one of `cases`.
            every: whether each case has all of them.
        """
        if case.named_inputs is not None:
            return tuple(case.named_inputs)
        sharing = [each for each in self.cases if not each.speed and each.named_inputs is None]
        if case not in sharing:
            return ()
        shares = 1 if every else min(SHARES, len(sharing))
        at = sharing.index(case)
        return self.defined_inputs[(at + at // shares) % shares :: shares]

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
        """Return along which dimensions `case` may be checked in parts."""
        return self.independent(**case.params) if callable(self.independent) else self.independent

    def check_of(self, case: Case) -> Mapping[str, Any]:
        """Return the further options of `check_kernel` for `case`.

        Raises:
            SpecError: they are no mapping, the spec has fields for some of them, or some are unknown.
        """
        return self._known(self.check(**case.params) if callable(self.check) else self.check)

    def _known(self, options: Any) -> Mapping[str, Any]:
        """Return options of a check, all of which there are."""
        if not isinstance(options, Mapping):
            raise SpecError(
                f"KernelSpec {self.name!r}: check must be, or return, a mapping of options; got {options!r}"
            )
        if own := {"reference", "reduction", "independent"} & {*options}:
            raise SpecError(
                f"KernelSpec {self.name!r}: check has {sorted(own)}, which are fields of the spec itself"
            )
        if unknown := {*map(str, options)} - {*CHECK_OPTIONS}:
            known = ", ".join(CHECK_OPTIONS)
            raise SpecError(f"KernelSpec {self.name!r}: check has {sorted(unknown)}; options are {known}")
        return options

    def work_of(self, case: Case) -> Work:
        """Return what one launch of `case` does; an empty `Work` when the spec does not say."""
        return self.work(**case.params) if self.work is not None else Work()
