"""Results of gates, in a form that travels with pytest's reports (also between xdist's processes).

Each gate has a subclass of `Result` whose tag is the gate's name. It is defined here, because xdist's
controller reads results and imports no gate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from pytest_cutile.words.quantities import format_change, format_share, format_time
from pytest_cutile.words.statistics import LONGEST_US, SHORTEST_US
from pytest_cutile.words.verdicts import UNDECIDED, Reason, Verdict

# Bounds of what can be measured, checked where a file is read. Beyond them nothing can be drawn, and a
# baseline would pass everything, or nothing.
Microseconds = Annotated[float, Meta(gt=SHORTEST_US, lt=LONGEST_US)]
RelativeSpread = Annotated[float, Meta(ge=0, lt=1)]
Amount = Annotated[float, Meta(ge=0, lt=1e30)]
"""Amount of work per launch, rate, or limit."""
INTERPRETER = "interpreter"
REGIMES_DIFFER = 0.02
"""Difference of the rates in bursts and sustained, as a fraction, from which both are shown."""
FAILED_IN_WORDS = {
    Reason.WRONG_VALUES: "wrong result",
    Reason.COMPILE_ERROR: "does not compile",
    Reason.COMPILER_FAULT: "compiler at fault",
    Reason.NOTHING_LAUNCHED: "launches nothing",
    Reason.MISCOMPILED: "miscompiled",
    Reason.NO_COMPILER: "no compiler",
    Reason.RAISED: "raised",
    Reason.TIMED_OUT: "timed out",
    Reason.UNCHECKABLE: "nothing to compare",
}
"""Reasons of failures that tables say in other words than their code."""


CAUSE = 2
"""The least `Result.clarity` of a failure whose first line names the cause."""


class Result(msgspec.Struct, frozen=True, kw_only=True, tag_field="gate", omit_defaults=True):
    """The outcome of one gate for one case on one architecture."""

    key: str
    """Unique name of the case: "softmax[bf16-4096x8192]", or a test's node id."""
    kernel: str
    """The kernel's name; for a test function that uses the fixtures, the name of its file."""
    case: str
    """The case's name; for a test function its name with parameters."""
    arch: str
    """Architecture under test."""
    verdict: Verdict
    reason: Reason | None = None
    """Why; None: a plain pass of the gate `correct` or `compile`."""
    detail: str = ""
    """One sentence for people."""
    gpu: str = ""
    """GPU that was used, as NVML names it; empty where none was."""
    gpu_id: str = ""
    """The machine and the GPU whose figures these are: "h200-box GPU-d91fcf89"; empty where they agree."""
    change: float | None = None
    """Relative change against the baseline; +0.05 is 5 % worse."""
    recorded: str = ""
    """With --update-baselines: what was recorded, or why nothing was."""
    tuning: str = ""
    """What a launcher that tunes chose, or how many of its configurations have a drawback."""
    configurations: tuple[str, ...] = ()
    """What is wrong with configurations of a launcher that tunes, or not known; a line for each."""
    clarity: int = 0
    """How clear a failure's first line makes the cause; from `CAUSE` on, it names the cause."""

    not_in_junit: ClassVar[frozenset[str]] = frozenset({"gate"})
    """Fields that `to_properties` leaves out."""

    @property
    def subject(self) -> tuple[str, str]:
        """Gate and kernel; for a test function of the gate `correct`, the launcher that it checks."""
        return self.gate, self.kernel

    @property
    def rank(self) -> tuple[float, ...]:
        """How much its failure tells: of several failures of one cause, the one with the highest is shown."""
        return (self.clarity,)

    @property
    def cause(self) -> tuple[str, ...]:
        """What results of one root cause have in common, of whatever gate: a run tells it once."""
        if self.reason is Reason.RAISED:
            return "raised", self.kernel, _without_numbers(self.detail)
        if self.verdict in UNDECIDED:
            return f"{self.verdict}", self.arch, self.detail
        return self._cause

    @property
    def _cause(self) -> tuple[str, ...]:
        """The root cause where the gate itself says what is wrong. By default the case's own."""
        return self.gate, self.key, self.arch

    @property
    def symptom(self) -> str:
        """What tells failures of one root cause apart; "" where nothing does."""
        return ""

    precedence: ClassVar[int] = 0
    """Which of several failures names a case: the one with the highest, because it explains the others."""
    titled: ClassVar[frozenset[str]] = frozenset()
    """Titles of figures that are not understood without them."""
    stands_alone: ClassVar[bool] = False
    """Whether its verdict, if it has one, is that of a case in which nothing failed."""

    @property
    def gate(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def of_case(self) -> tuple[str, str]:
        """Name and key of the declared case, whatever inputs it was checked with."""
        return self.case, self.key

    @property
    def case_id(self) -> tuple[str, ...]:
        """Gate, declared case, architecture and GPU: the same with whatever inputs it was checked."""
        return (self.gate, self.kernel, *self.of_case, self.arch, self.gpu)

    @property
    def is_recorded(self) -> bool:
        """Whether it has no baseline because this run made the first one."""
        return (
            bool(self.recorded)
            and "not recorded" not in self.recorded
            and self.verdict is Verdict.NO_BASELINE
        )

    @property
    def figures(self) -> dict[str, str]:
        """The cells of its columns in tables of cases, by title; "" where a figure is unknown."""
        return {}

    @property
    def words(self) -> str:
        """The verdict in words for tables: "wrong result", "compiles", "regression (worse-code)"."""
        if self.is_recorded:
            return "recorded"
        if self.verdict is not Verdict.FAIL or self.reason is None:
            return self.verdict
        return FAILED_IN_WORDS.get(self.reason, f"{self.gate}: {self.reason}")

    @property
    def outcome(self) -> str:
        """What -v adds to PASSED or FAILED: "38.8 us, 3459 GB/s, 72 %, +0.3 %, pass"; "" if nothing."""
        figures = [
            f"{title} {text}" if title in self.titled else text
            for title, text in self.figures.items()
            if text
        ]
        is_plain = not figures and self.verdict is Verdict.PASS
        return "" if is_plain else ", ".join([*figures, self.words])

    def to_builtins(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @staticmethod
    def from_builtins(data: Mapping[str, Any]) -> Result:
        """Rebuild a result of any gate; msgspec.ValidationError if it is none."""
        types = {subclass.__struct_config__.tag: subclass for subclass in Result.__subclasses__()}
        if data.get("gate") not in types:
            raise msgspec.ValidationError(f"no gate has results named {data.get('gate')!r}")
        return msgspec.convert(data, types[data["gate"]])

    def to_properties(self) -> list[tuple[str, str]]:
        """Return the fields as named texts for JUnit files: ("cutile.speed.us_per_launch", "38.81")."""
        return [
            (f"cutile.{self.gate}.{name}", _as_text(value))
            for name, value in self.to_builtins().items()
            if name not in self.not_in_junit
        ]


class ErrorMap(msgspec.Struct, frozen=True, kw_only=True):
    """Where the errors of a wrong output are: the largest error in each cell of a grid over a matrix."""

    matrix: str
    """Which matrix: "output[2, :, :], with most errors"."""
    shape: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
    """Its rows and columns."""
    cell: tuple[Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=1)]]
    """Rows and columns of a cell; the last cells may have fewer."""
    rows: tuple[str, ...]
    """A character for each cell: "." where nothing is wrong, else a digit, which is a place in `scale`."""
    scale: tuple[str, ...]
    """What the digits mean, as lower limits in `unit`: ("1", "3", "10", ...)."""
    unit: str
    """"times the bound"."""
    worst: str = ""
    """The element with the largest error, in words."""

    def __post_init__(self) -> None:
        if any(int(mark) >= len(self.scale) for row in self.rows for mark in row if mark.isdecimal()):
            raise ValueError(f"rows name a place that the scale of {len(self.scale)} lacks")

    @property
    def caption(self) -> str:
        (rows, columns), (tall, wide) = self.shape, self.cell
        return f"{self.matrix}, {rows} x {columns}: {self.unit}, the most in each cell of {tall} x {wide}"

    def in_lines(self, most: int) -> ErrorMap:
        """Return the map with rows of cells joined, so that there are at most so many."""
        together = max(1, -(-len(self.rows) // most))
        # A digit is more than the dot of cells without errors.
        rows = tuple(
            "".join(map(max, zip(*self.rows[first : first + together], strict=True)))
            for first in range(0, len(self.rows), together)
        )
        tall, wide = self.cell
        return msgspec.structs.replace(self, rows=rows, cell=(tall * together, wide))


class CorrectResult(Result, frozen=True, kw_only=True, tag="correct"):
    """Does the kernel compute what its reference computes?"""

    precedence = 2
    not_in_junit = Result.not_in_junit | {"errors"}

    on: str = ""
    """`INTERPRETER` when the kernel ran on the CPU, interpreted; empty when it ran on a GPU."""
    inputs: str = ""
    """Name of its inputs, which is part of its case's name; empty for normal ones."""
    launcher: str = ""
    """Name of the function that a test function checks; empty for declared cases."""
    tolerance: str = ""
    """rtol and atol, where they were given in place of the derived bound: "rtol=0, atol=0.01"."""
    looser: float | None = None
    """How many times the derived bound they allow, in the median over all elements."""
    allowed: str = ""
    """What they allow where right values are known exactly."""
    outputs: str = ""
    """Dtypes of what the kernel returned: "(float16, int32)"."""
    from_launches: float | None = None
    """Interpreted: share of the outputs' elements that cuTile launches wrote, or that torch computed from
    such, in those that either computed."""
    narrowed: tuple[str, ...] = ()
    """Outputs with fewer significant bits than every floating input, in words."""
    uncompared: tuple[str, ...] = ()
    """Arguments that the launcher may change and that were compared with nothing."""
    refused: tuple[str, ...] = ()
    """Other layouts of its inputs that the launcher refused, and how."""
    wrong_share: float = 0.0
    """Share of elements outside the bound, in the first output that is wrong."""
    searched: str = ""
    """What a search has tried, and on further lines why examples were refused."""
    advice: str = ""
    """Looser numerics policy that would let a wrong result pass; empty where none was tried."""
    errors: ErrorMap | None = None
    mutation: dict[str, Any] | None = None
    """Which mutants the check kills, in `MutationReport.to_dict`'s form; only when asked for."""

    @property
    def subject(self) -> tuple[str, str]:
        return self.gate, self.launcher or self.kernel

    @property
    def rank(self) -> tuple[float, ...]:
        """A named cause tells most, then normal inputs: special ones may show a small part of an error."""
        return self.clarity >= CAUSE, not self.inputs, self.clarity, self.wrong_share

    @property
    def _cause(self) -> tuple[str, ...]:
        """Its kernel or launcher, and how that failed: inputs and cases of one kernel share a bug."""
        by_compiler = self.reason in (Reason.COMPILE_ERROR, Reason.COMPILER_FAULT)
        said = _without_numbers(self.detail) if by_compiler else ""
        return *self.subject, f"{self.reason}", said

    @property
    def symptom(self) -> str:
        """What is wrong, without numbers: two bugs of a kernel differ in it, or one with other inputs."""
        return "" if self.reason is Reason.RAISED else _without_numbers(self.detail)

    @property
    def of_case(self) -> tuple[str, str]:
        suffix = f"-{self.inputs}" if self.inputs else ""
        return self.case.removesuffix(suffix), self.key.replace(f"{suffix}]", "]") if suffix else self.key

    @property
    def words(self) -> str:
        """The verdict in words; of a failure with special inputs, which ones."""
        if self.verdict is Verdict.PASS:
            return "correct (cpu)" if self.on else "correct"
        words = super().words.removeprefix(f"{self.gate}: ")  # "correct: raised" would read as if it were
        return f"{words} ({self.inputs} inputs)" if self.inputs and self.verdict is Verdict.FAIL else words

    @property
    def outcome(self) -> str:
        """The verdict in words without the inputs, which are in its test's name; "" for a pass on a GPU."""
        words = "" if self.verdict is Verdict.PASS else self.words.removesuffix(f" ({self.inputs} inputs)")
        return ", ".join(filter(None, (words, "on the CPU, interpreted" if self.on else "")))


class CompileResult(Result, frozen=True, kw_only=True, tag="compile"):
    """Does the real compiler accept the kernel?"""

    precedence = 3

    @property
    def _cause(self) -> tuple[str, ...]:
        """What the compiler said of the kernel, for whatever case and architecture."""
        return self.gate, self.kernel, _without_numbers(self.detail)

    @property
    def words(self) -> str:
        return "compiles" if self.verdict is Verdict.PASS else super().words


class StaticResult(Result, frozen=True, kw_only=True, tag="static"):
    """Is the compiled kernel as good as its baseline?"""

    not_in_junit = Result.not_in_junit | {"facts"}

    @property
    def _cause(self) -> tuple[str, ...]:
        """Its kernel, and what compiled to something worse; predicted times differ from case to case."""
        worse = (text for text in self.changes if text.startswith("worse: "))
        return self.gate, self.kernel, *(text for text in worse if not text.startswith("worse: predicted "))

    changes: tuple[str, ...] = ()
    """What is worse, better or different than in the baseline; a line for each."""
    toolchain: str = ""
    """How the toolchain differs from the one that made the baseline; empty when it does not."""
    facts: dict[str, Any] | None = None
    """What was compiled, the JSON of `CaseFacts`; only when a report was asked for."""

    @property
    def words(self) -> str:
        if self.verdict in (Verdict.FAIL, Verdict.NOT_MEASURED):
            return super().words
        return f"regression ({self.reason})" if self.verdict is Verdict.REGRESSION else self.outcome

    @property
    def outcome(self) -> str:
        return "recorded" if self.is_recorded else f"{self.reason or self.verdict}"


class SampleBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Samples that were taken side by side, in microseconds per launch."""

    regime: str
    """"burst" or "sustained"."""
    current_us: tuple[Microseconds, ...]
    baseline_us: tuple[Microseconds, ...] = ()
    """Times of the baseline kernel, interleaved with the current one; empty without one."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process measured of a case, and the work that it counts."""

    flops: Amount = 0.0
    """Per launch, as are `bytes` and `tokens`: see `spec.Work`."""
    bytes: Amount = 0.0
    tokens: Amount = 0.0
    dtype: str = ""
    blocks: tuple[SampleBlock, ...] = ()
    clock_mhz: float | None = None
    """Clock of the SMs right after the bursts."""
    sustained_clock_mhz: float | None = None
    sustained_watts: float | None = None
    sustained_skipped: str = ""
    """Why the sustained regime was not measured."""
    sustained_unknown: bool = False
    """Whether nothing tells that power does not limit the kernel: a slowdown under load would not be seen."""
    problems: tuple[str, ...] = ()
    """What disturbed the GPU."""


class SpeedResult(Result, frozen=True, kw_only=True, tag="speed"):
    """Is the kernel as fast as its baseline?"""

    precedence = 1
    stands_alone = True
    titled = frozenset({"sustained"})
    not_in_junit = Result.not_in_junit | {"measured", "code_changes"}

    us_per_launch: Microseconds | None = None
    """Time per launch in microseconds: in bursts, or sustained where a launch is too long for bursts."""
    sustained_us_per_launch: Microseconds | None = None
    """Time per launch, launch after launch; None where power cannot limit it."""
    rate: Amount | None = None
    """TFLOPS, GB/s or tokens/s, as `unit` says."""
    unit: str = ""
    share_of_limit: Amount | None = None
    """Share of the chip's limit in that unit; of tokens/s, that of the operations or bytes behind them."""
    measured: Measured | None = None
    """The samples behind these figures."""
    outputs_uncompared: str = ""
    """Why the outputs of timed launches were not compared with those of a first launch; empty: they were."""
    code_changes: tuple[str, ...] = ()
    """Differences of a slower case's compiled code from that of the baseline's commit, worst first."""

    @property
    def _sustained_rate(self) -> float | None:
        """The sustained rate where it differs from `rate` by more than `REGIMES_DIFFER`."""
        if not (self.rate and self.us_per_launch and self.sustained_us_per_launch):
            return None
        sustained = self.rate * self.us_per_launch / self.sustained_us_per_launch
        return sustained if abs(sustained / self.rate - 1) > REGIMES_DIFFER else None

    @property
    def figures(self) -> dict[str, str]:
        def text(value: float | None, format_: Callable[[float], str]) -> str:
            return "" if value is None or self.us_per_launch is None else format_(value)

        return {
            "time/launch": text(self.us_per_launch, format_time),
            "rate": text(self.rate, lambda rate: f"{rate:.4g} {self.unit}"),
            "sustained": text(self._sustained_rate, "{:.4g}".format),
            "limit": text(self.share_of_limit, format_share),
            "change": text(self.change, format_change),
        }

    @property
    def outcome(self) -> str:
        return super().outcome or f"{self.reason or ''}"


def _without_numbers(message: str) -> str:
    """Return what messages about cases of other sizes and architectures have in common."""
    return re.sub(r"\d+", "#", message)


def _as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "; ".join(value)
    return json.dumps(value) if isinstance(value, dict) else f"{value}"


def names_of_test(nodeid: str) -> tuple[str, str]:
    """Return the kernel and case names of a test function: its file's stem and its own name."""
    function = nodeid.partition("[")[0]
    return PurePosixPath(nodeid.partition("::")[0]).stem, nodeid[function.rfind("::") + 2 :]
