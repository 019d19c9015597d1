"""What a kernel's author declares: `KernelSpec`, its `Case`s and the `Work` one launch does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cutile.core.architectures import ArchitectureError, generation, normalize_architecture

DTYPES = (
    *("float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)
"""Names of dtypes, as torch spells them; tfloat32 is float32 on tensor cores."""
_CASE_NAME = re.compile(r"[A-Za-z0-9_.=,+-]+")


class SpecError(ValueError):
    """A declaration that cannot be gated; the message names the spec, what is wrong and what to do."""


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

    def __post_init__(self) -> None:
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

    Raises:
        SpecError: no cases, a duplicate or unusable case name.
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
    check: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the fixture `check_kernel`: `precision`, `mid`, `exp_error`, `mutates`, `writes`,
    `guard`, `vary_layout`, or plain `rtol` and `atol`."""

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

    def reduction_of(self, case: Case) -> int:
        """Return the length of the longest sum behind one output element of `case`."""
        return self.reduction(**case.params) if callable(self.reduction) else self.reduction

    def work_of(self, case: Case) -> Work:
        """Return what one launch of `case` does; an empty `Work` when the spec does not say."""
        return self.work(**case.params) if self.work is not None else Work()
