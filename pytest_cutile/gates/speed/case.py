"""What the speed gate is given (`SpeedCase`), asks fresh processes (`Request`) and says (`SpeedOutcome`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_cutile.words.results import Measured, SampleBlock, SpeedResult

if TYPE_CHECKING:
    from pytest_cutile.timing.measure.call import Call
    from pytest_cutile.words.spec import Work
    from pytest_cutile.words.timing import Measurement
    from pytest_cutile.words.verdicts import Judgement, Reason

Launcher = Callable[..., object]


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """What is measured; its methods answer for a case of whose code nothing is known.

    A revision is one of git, or "" for the working tree.
    """

    key: str
    """Key in the baseline file."""
    check_key: str
    """Key that the result of its correctness check is known by."""
    kernel: str
    case: str
    nodeid: str
    """The test, for the command that repeats it."""
    arch: str
    module: str
    """The module that has the launcher."""
    work: Work
    interpreted: bool = False
    """Whether launches are interpreted now: torch does not reach the GPU."""

    def call(self) -> Call:
        """Make the inputs; return the launch to time."""
        raise NotImplementedError

    def check(self) -> None:
        """Compare the result with the reference, before timing and once in a run; a test does so itself."""

    def is_deterministic(self) -> bool:
        """Say whether launches are known to leave the same bits each time."""
        return False

    def launcher_at(self, revision: str) -> Launcher | None:
        """Return the launcher as of a git revision; None if that lacks it."""

    def fingerprint(self, revision: str) -> str:
        """Return the fingerprint of what is compiled; "" where nobody knows that before it runs.

        Raises:
            Exception: it does not compile.
        """
        del revision
        return ""

    def source(self, revision: str) -> str:
        """Return the digest of the launcher as written; "" if the revision lacks it."""
        del revision
        return ""

    def shared_file(self, revision: str) -> str:
        """Return a file that the launcher of a git revision imports while it runs and git does not track."""
        del revision
        return ""

    def compiled_otherwise(self, revision: str) -> Sequence[str]:
        """Return what the compiler made otherwise than as of a git revision, in words."""
        del revision
        return ["not compared: what it launches is known beforehand of a KernelSpec only"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks a fresh process to measure of one case."""

    nodeid: str
    """The test that measures it."""
    revision: str
    """The baseline kernel's revision; empty for today's kernel alone."""
    sustained: bool
    """Whether the sustained regime is measured, too."""


@dataclass(frozen=True, kw_only=True)
class SpeedOutcome:
    """What the gate says of one case."""

    judgement: Judgement
    measurement: Measurement | None = None
    """The measurement that is shown."""
    failure: str | None = None
    """Message to fail the test with; None when it passes."""
    note: str | None = None
    """What was recorded, or why nothing was."""
    is_pending: bool = False
    """Whether fresh processes have to decide."""
    code_changes: tuple[str, ...] = ()
    """Differences of a slower case's compiled code from that of the baseline's commit, worst first."""

    def result(self, case: SpeedCase) -> SpeedResult:
        figures: dict[str, Any] = {}
        measurement, judgement = self.measurement, self.judgement
        if measurement is not None:
            figures = {
                "gpu": measurement.device.name,
                "gpu_id": measurement.device.gpu_id,
                "us_per_launch": measurement.headline_us,
                "sustained_us_per_launch": measurement.sustained_us,
                "rate": measurement.rate,
                "unit": measurement.unit,
                "share_of_limit": measurement.share_of_limit,
                "change": judgement.change,
                "measured": _measured(measurement),
                "tuning": measurement.tuning,
                "outputs_uncompared": measurement.outputs_uncompared,
            }
        return speed_result(
            case,
            reason=judgement.reason,
            detail=judgement.detail,
            recorded=self.note or "",
            code_changes=self.code_changes,
            **figures,
        )


def _measured(measurement: Measurement) -> Measured:
    sustained, skipped = measurement.sustained, measurement.sustained_skipped
    return Measured(
        flops=measurement.work.flops,
        bytes=measurement.work.bytes,
        tokens=measurement.work.tokens,
        dtype=measurement.work.dtype or "",
        blocks=tuple(
            SampleBlock(regime=regime, current_us=block.current_us, baseline_us=block.baseline_us)
            for regime in measurement.regimes
            for block in measurement.blocks(regime)
        ),
        clock_mhz=measurement.clock_mhz,
        sustained_clock_mhz=None if sustained is None else sustained.current_clock_mhz,
        sustained_watts=None if sustained is None else sustained.current_watts,
        sustained_skipped="" if skipped is None else skipped.reason,
        sustained_unknown=skipped is not None and not skipped.not_limited,
        problems=measurement.problems,
    )


def speed_result(case: SpeedCase, *, reason: Reason, **figures: Any) -> SpeedResult:
    return SpeedResult(
        key=case.key,
        kernel=case.kernel,
        case=case.case,
        arch=case.arch,
        verdict=reason.verdict,
        reason=reason,
        **figures,
    )
