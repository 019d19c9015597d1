"""A case whose verdict waits for fresh processes: a frozen value, replaced as evidence comes in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_cutile.baselines.entries import Entry
from pytest_cutile.results import SpeedResult
from pytest_cutile.speed.case import SpeedCase, SpeedOutcome
from pytest_cutile.speed.comparisons import Comparison, PairedComparison, StoredComparison
from pytest_cutile.speed.measure.timing import Measurement
from pytest_cutile.verdicts import Judgement


@dataclass(frozen=True)
class Stratum:
    """Cases that share a session effect."""

    bound: str
    """The limit they are nearest to: "TFLOPS" or "GB/s"."""
    other_gpu: bool
    """Whether all their stored runs are of other GPUs, which differ by more than sessions do."""


@dataclass(frozen=True, kw_only=True)
class PendingCase:
    """A case that fresh processes have to decide, or that is to be recorded."""

    number: int
    """Key of the case within its suite."""
    case: SpeedCase
    comparison: Comparison | None
    """None when it is only to be recorded."""
    records: bool
    screening: Measurement
    """Left out of the evidence of a suspect, which was selected because it looked slow (winner's curse)."""
    judgement: Judgement
    repeats: tuple[Measurement, ...] = ()
    """One measurement for each fresh process."""
    outcome: SpeedOutcome | None = None
    """None until it is decided."""
    paired: PairedComparison | None = None
    """Set while fresh processes measure it interleaved with the baseline kernel."""
    test_failed: bool = False
    """Whether its test failed for reasons of its own: nothing of it is recorded then."""

    gate_view: PendingCase | None = None
    """The case as the gate judged it against the baseline kernel, where that decided what is recorded."""
    code_is_no_slower: bool = False
    """Whether the baseline kernel is as slow on this GPU."""
    change_of_code: float | None = None
    """By what fraction it is slower than the baseline kernel; None if they were not paired."""
    is_recorded: bool = False
    """Whether the baseline file holds its measurements now."""

    def without_recording(self, number: int) -> PendingCase:
        """Return the case as it was screened, to be judged as without `--update-baselines`."""
        return PendingCase(
            number=number,
            case=self.case,
            comparison=self.comparison,
            records=False,
            screening=self.screening,
            judgement=self.judgement,
        )

    @property
    def is_measured(self) -> bool:
        """Whether all measurements have been made."""
        return self.outcome is not None and self.outcome.failure is None

    @property
    def revision(self) -> str:
        """Commit of the baseline kernel it is paired with; empty if it is not."""
        return self.paired.revision if self.paired is not None else ""

    @property
    def deciding(self) -> Comparison | None:
        return self.paired or self.comparison

    @property
    def stored(self) -> Entry | None:
        """The baseline whose stored runs it is compared with, if it is."""
        return self.comparison.entry if isinstance(self.comparison, StoredComparison) else None

    @property
    def on_other_gpu(self) -> bool:
        """Whether its stored runs are all of other GPUs."""
        return isinstance(self.comparison, StoredComparison) and self.comparison.other_gpu

    @property
    def stratum(self) -> Stratum:
        return Stratum(self.screening.bound, self.on_other_gpu)

    @property
    def stored_commit(self) -> str:
        """The commit that its baseline was recorded at, with "+" where the checkout had changes; or empty."""
        if not isinstance(self.comparison, StoredComparison):
            return ""
        return self.comparison.selected.provenance.get("commit", "")

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return (self.screening, *self.repeats)

    @property
    def problems(self) -> tuple[str, ...]:
        """What disturbed the GPU. A low clock does not count where both kernels of a pair had it."""
        observed = (
            measurement.problems if self.paired else measurement.doubts for measurement in self.measurements
        )
        return tuple(dict.fromkeys(problem for problems in observed for problem in problems))

    @property
    def shown(self) -> Measurement:
        """The measurement that the verdict shows: the median one."""
        deciding = self.deciding
        if isinstance(deciding, PairedComparison):
            ordered = sorted(self.repeats or [self.screening], key=lambda one: deciding.change([one]))
        else:
            ordered = sorted(self.repeats or [self.screening], key=lambda one: one.median_us)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def decided(self) -> SpeedOutcome:
        """The outcome, or what is known if the run ended before there was one."""
        return self.outcome or SpeedOutcome(judgement=self.judgement, measurement=self.screening)

    @property
    def result(self) -> SpeedResult:
        return self.decided.result(self.case)

    def closed(self, judgement: Judgement, *, failure: str | None = None) -> PendingCase:
        outcome = SpeedOutcome(judgement=judgement, measurement=self.shown, failure=failure)
        return replace(self, judgement=judgement, outcome=outcome)
