"""What a study is: launches to time on cases of a kernel, and the pages that follow from the times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

from pytest_cutile.words.spec import Case, KernelSpec
from pytest_cutile.words.timing import LaunchFunction, Measurement, Regime
from tools.gpu_runs.agreement import describe_difference


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Something that computes what the kernel of a study computes."""

    name: str
    launch: Callable[..., Any]
    """Takes the arguments that the spec's `inputs` makes."""
    is_peer: bool = False
    """Whether it is another library's: compared coarsely, because its precision is its own business."""
    spec: KernelSpec | None = None
    """Declares its own arithmetic, by reference and check, where it rounds more than the study's spec says.
    The gate's bounds then follow from this spec, for a peer too."""
    missing: str = ""
    """Why it cannot be timed here; empty if it can."""
    bind: Callable[..., LaunchFunction] | None = None
    """Takes the same arguments, and returns a launch on them: what it does by itself is not timed."""
    difference: Callable[[Any, Any, Any], str | None] = describe_difference
    """Of a peer: says how a result differs from what is expected, given the inputs; None if it agrees."""

    def on(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LaunchFunction:
        """Return the launch on some arguments."""
        return partial(self.launch, *args, **kwargs) if self.bind is None else self.bind(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender to time on one case."""

    case: Case
    contender: Contender
    beside: Contender | None = None
    """What it is interleaved and compared with."""
    spec: KernelSpec | None = None
    """Makes inputs, reference and work of the case; None: the study's."""

    @property
    def kernel(self) -> str:
        """Name of the row's own kernel; empty where the study has one for all."""
        return self.spec.name if self.spec else ""

    @property
    def key(self) -> str:
        name = f"{self.contender.name}[{self.case.name}]"
        return f"{self.kernel}: {name}" if self.spec else name


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one regime of the speed gate says of a row."""

    us: float
    """Time per launch."""
    tflops: float | None
    """None where the work counts no operations."""
    gb_per_s: float | None
    """None where it counts no bytes."""
    speedup: float | None = None
    """Time of `beside` over that of the contender, interleaved: above 1 the contender is faster."""
    speedup_error: float | None = None
    """Standard error of its logarithm."""


@dataclass(frozen=True, kw_only=True)
class TimedRow:
    """A row with its times, as it is stored."""

    key: str
    kernel: str = ""
    """Where the study has several."""
    case: str
    params: Mapping[str, Any]
    contender: str
    beside: str
    """Empty where it was timed alone."""
    bound: str
    """The limit that the work is nearest to: "TFLOPS" or "GB/s"."""
    burst: Timing | None
    """None where a launch is too long for a burst."""
    sustained: Timing | None
    """None where power does not limit the clock, or where nobody asked."""
    sustained_skipped: str
    """Why, for people."""
    share_of_limit: float | None
    clock_mhz: float | None
    sustained_clock_mhz: float | None
    sustained_watts: float | None
    why_on_stream: str = ""
    """Why it was timed on a stream and not in a CUDA graph: of its times, the speed-up alone can be compared
    with those of other rows. Empty where it was captured."""

    def timing(self, regime: Regime) -> Timing | None:
        return self.burst if regime is Regime.BURST else self.sustained

    @property
    def headline(self) -> Timing:
        """The first regime that was measured."""
        timing = self.burst or self.sustained
        if timing is None:
            raise ValueError(f"{self.key}: neither in bursts nor sustained")
        return timing


def timed_row(row: Row, measurement: Measurement, *, why_on_stream: str = "") -> TimedRow:
    """Return a row as it is stored."""

    def timing(regime: Regime) -> Timing | None:
        us = measurement.us(regime)
        if us is None:
            return None
        baseline_us = measurement.baseline_us(regime)
        ratio = measurement.log_ratio(regime)
        return Timing(
            us=us,
            tflops=measurement.tflops_at(us),
            gb_per_s=measurement.gb_per_s_at(us),
            speedup=None if baseline_us is None or ratio is None else exp(-ratio),
            speedup_error=measurement.standard_error(regime),
        )

    sustained, skipped = measurement.sustained, measurement.sustained_skipped
    return TimedRow(
        key=row.key,
        kernel=row.kernel,
        case=row.case.name,
        params=dict(row.case.params),
        contender=row.contender.name,
        beside=row.beside.name if row.beside else "",
        bound=measurement.bound,
        burst=timing(Regime.BURST),
        sustained=timing(Regime.SUSTAINED),
        sustained_skipped=skipped.reason if skipped else "",
        share_of_limit=measurement.share_of_limit,
        clock_mhz=measurement.clock_mhz,
        sustained_clock_mhz=sustained.current_clock_mhz if sustained else None,
        sustained_watts=sustained.current_watts if sustained else None,
        why_on_stream=why_on_stream,
    )


@dataclass(kw_only=True)
class BaseRecord:
    """What was measured in one environment; stored after every row."""

    study: str
    date: str
    quick: bool
    environment: Mapping[str, str]
    errors: dict[str, str] = field(default_factory=dict)
    """Rows that could not be measured, and why; the next run tries them again."""
    rows: list[Any] = field(default_factory=list)
    """Rows that were measured, each with its `key`, in the order of the study."""


@dataclass(kw_only=True)
class Record(BaseRecord):
    """Everything that a study timed."""

    planned: int = 0
    """How many rows the whole study has, of contenders that are there; 0 where that was not stored."""
    rows: list[TimedRow] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Contenders that are not there, and why."""

    def find(self, contender: str, case: str, kernel: str = "") -> TimedRow | None:
        """Return a contender's row on a case; None where it was not timed."""
        wanted = (kernel, contender, case)
        return next((row for row in self.rows if (row.kernel, row.contender, row.case) == wanted), None)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A measured story."""

    name: str
    summary: str
    """What it shows, in a line."""
    rows: Callable[[bool], Sequence[Row]]
    """`rows(quick)`: what to time, rows of one case beside each other."""
    pages: Callable[[Record], Mapping[str, str]]
    """`pages(record)`: text of each file, by its name."""
    sampled_flops: float = 5e12
    """Operations per launch up to which a few parts are checked by the gate's bounds; above, all coarsely."""
    spec: KernelSpec | None = None
    """Makes inputs, reference and work of the cases that are timed; None where each row has its own."""

    def spec_of(self, row: Row) -> KernelSpec:
        spec = row.spec or self.spec
        if spec is None:
            raise ValueError(f"{self.name}: neither the study nor the row {row.key} has a spec")
        return spec


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """A story told from files that are there, with no GPU."""

    name: str
    summary: str
    pages: Callable[[Sequence[Path]], Mapping[str, str]]
    """`pages(files)`: text of each file, by its name; of no files, what it tells by default."""
