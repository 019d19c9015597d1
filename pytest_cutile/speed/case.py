"""What the speed gate is given (`SpeedCase`) and what it returns (`SpeedOutcome`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cutile.results import Measured, SampleBlock, SpeedResult
from pytest_cutile.spec import Work
from pytest_cutile.speed.measure.call import Call
from pytest_cutile.speed.measure.timing import Measurement
from pytest_cutile.verdicts import Judgement, Reason

Launcher = Callable[..., object]


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """What is measured: a declared kernel's case, or one call of the fixture `perf`."""

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
    declared: frozenset[str] = frozenset()
    """Keys of all cases that the kernel declares; none for a test function."""
    work: Work
    call: Callable[[], Call]
    """Makes the inputs; returns the launch to time."""
    launcher_at: Callable[[str], Launcher | None]
    """Returns the launcher as of a git revision, or None if that revision lacks it."""
    fingerprint: Callable[[str], str] | None = None
    """Returns the fingerprint as of a git revision ("": of the working tree), or raises if it does not
    compile. None where nobody knows what is compiled before it runs."""
    source: Callable[[str], str]
    """Returns the digest of the launcher as written, likewise; "" if the revision lacks it."""
    compiled_otherwise: Callable[[str], Sequence[str]] | None = None
    """Returns what the compiler made otherwise than as of a git revision, in words; likewise None."""
    check: Callable[[], object] | None = None
    """Compares the result with the reference; run before timing, once in a run."""
    interpreted: bool = False
    """Whether launches are interpreted now: torch does not reach the GPU."""


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
            }
        return speed_result(
            case,
            reason=judgement.reason,
            detail=judgement.detail,
            recorded=self.note or "",
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
