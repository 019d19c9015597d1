"""One process's measurement of one case: blocks of samples, one for each placement of the buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_cutile.platforms.lookup import find_platform
from pytest_cutile.quantities import format_time
from pytest_cutile.reports.document import Document, Paragraph
from pytest_cutile.reports.text import render_text
from pytest_cutile.spec import Work
from pytest_cutile.speed.measure.placement import placed_anew
from pytest_cutile.speed.measure.timing import (
    Block,
    Launch,
    Measurement,
    ReferenceWorkload,
    Timer,
    TimingError,
    bound_of,
)
from pytest_cutile.statistics import usable
from pytest_cutile.verdicts import Reason

PLACEMENTS, LEAST_PLACEMENTS = 8, 3
"""Placements of the buffers that are tried, and how many are enough for kernels of milliseconds."""
GPU_SECONDS = 0.1
"""GPU time after which no further placement is tried, estimated from the samples."""
KEPT = 0.6
"""Share of the GPU time that is in the samples; the rest flushes the L2 and leads in."""


class MeasurementFailed(Exception):  # noqa: N818 - carries a reason code
    """A speed that could not be measured, or a figure that is impossible; the message is for people."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Call:
    """A launcher and its arguments."""

    function: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> object:
        __tracebackhide__ = True
        return self.function(*self.args, **self.kwargs)

    def on(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Launch:
        args, kwargs = arguments
        return functools.partial(self.function, *args, **kwargs)


def measure(
    timer: Timer, key: str, work: Work, call: Call, *, baseline: Callable[..., object] | None = None
) -> Measurement:
    """Time `call` with its buffers at up to `PLACEMENTS` places. The caller holds the GPU's lock.

    Args:
        timer: of the GPU.
        key: of the case, for messages.
        work: what one launch does.
        call: the launcher and its arguments.
        baseline: the baseline launcher, interleaved with `call` on the same arguments; None: the reference
            workload is.

    Raises:
        MeasurementFailed: it cannot be timed, or the times make no sense.
    """
    platform = find_platform(timer.device.name)
    blocks: list[Block] = []
    problems: dict[str, None] = {}
    seconds = 0.0
    try:
        workload = timer.reference_workload(bound_of(work, platform)) if baseline is None else None
        while len(blocks) < LEAST_PLACEMENTS or (len(blocks) < PLACEMENTS and seconds < GPU_SECONDS):
            block = _measure_block(timer, call, baseline, workload)
            blocks.append(block)
            # What disturbs one placement may be gone at the next.
            problems.update(dict.fromkeys(timer.problems()))
            seconds += (sum(block.samples_us) + sum(block.interleaved_us)) * 1e-6 / KEPT
        clock_mhz = timer.sm_clock_mhz()
    except TimingError as error:
        raise MeasurementFailed(Reason.NOT_TIMED, f"{key}: {error}") from error
    measurement = Measurement(
        device=timer.device,
        blocks=tuple(blocks),
        work=work,
        platform=platform,
        reference_workload=workload.name if workload is not None else "",
        clock_mhz=clock_mhz,
        problems=tuple(problems),
    )
    validate(key, measurement, is_paired=baseline is not None)
    return measurement


def _measure_block(
    timer: Timer, call: Call, baseline: Callable[..., object] | None, workload: ReferenceWorkload | None
) -> Block:
    with placed_anew((call.args, call.kwargs)) as arguments:
        launches = [call.on(arguments)]
        if baseline is not None:
            launches.append(Call(baseline).on(arguments))
        elif workload is not None:
            launches.append(workload.launch)
        times = timer.time_block(launches)
    if len(times) != len(launches):
        raise TimingError(f"the timer returned times of {len(times)} launches, not of {len(launches)}")
    own, *interleaved = times
    return Block(
        samples_us=tuple(float(value) for value in own),
        interleaved_us=tuple(float(value) for samples in interleaved for value in samples),
    )


def validate(key: str, measurement: Measurement, *, is_paired: bool = False) -> None:
    """Refuse impossible times: none, not finite, not positive, or above the chip's limit."""
    for block in measurement.blocks:
        interleaved = (
            [block.interleaved_us]
            if block.interleaved_us or measurement.reference_workload or is_paired
            else []
        )
        for samples in (block.samples_us, *interleaved):
            if not usable(samples):
                shown = ", ".join(f"{value}" for value in samples[:4]) or "nothing"
                raise MeasurementFailed(
                    Reason.BAD_SAMPLES,
                    f"{key}: the timer returned {shown} as times per launch (of {len(samples)} samples): "
                    "not finite and positive. Nothing is compared or recorded; check the timer.",
                )
    if not measurement.blocks:
        raise MeasurementFailed(Reason.BAD_SAMPLES, f"{key}: nothing was measured")
    if measurement.exceeded is not None:
        raise MeasurementFailed(Reason.ABOVE_LIMIT, above_limit_message(key, measurement))


def above_limit_message(key: str, measurement: Measurement) -> str:
    work = measurement.work
    source = measurement.platform.source if measurement.platform else "unknown"
    counts = f"{work.flops:.4g} flops and {work.bytes:.4g} bytes"
    hint = (
        "Check that work is counted for what is computed (a causal mask halves it), that the kernel does all "
        "of it, and that its data is several times the L2 cache. Nothing is compared or recorded."
    )
    blocks = [
        Paragraph(
            "The measurement or the work count is wrong: "
            f"{format_time(measurement.median_us)} per launch for {counts}."
        ),
        Paragraph(hint),
        Paragraph(f"Source of the limit: {source}"),
    ]
    title = f"{key}: {measurement.exceeded} is above what {measurement.device.name} can do."
    return render_text(Document(title, blocks))


def to_plain(measurement: Measurement) -> dict[str, Any]:
    """Return what one process measured, in plain built-in types, for another process."""
    return {
        "blocks": [[list(block.samples_us), list(block.interleaved_us)] for block in measurement.blocks],
        "reference_workload": measurement.reference_workload,
        "clock_mhz": measurement.clock_mhz,
        "problems": list(measurement.problems),
    }


def from_plain(data: Mapping[str, Any], like: Measurement) -> Measurement:
    """Rebuild another process's measurement of the same case on the same GPU as `like`."""
    return replace(
        like,
        blocks=tuple(
            Block(samples_us=tuple(own), interleaved_us=tuple(other)) for own, other in data["blocks"]
        ),
        reference_workload=str(data["reference_workload"]),
        clock_mhz=data["clock_mhz"],
        problems=tuple(data["problems"]),
    )
