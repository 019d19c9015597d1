"""One process's measurement of one case; `words/timing.py` says in which steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from pytest_cutile.timing.measure.call import Call, MeasurementFailed
from pytest_cutile.timing.measure.placement import placed_anew, placed_in_rotation
from pytest_cutile.timing.measure.timed_outputs import TimedOutputs
from pytest_cutile.words.document import Document, Paragraph
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.quantities import format_time
from pytest_cutile.words.spec import Work
from pytest_cutile.words.statistics import median, usable
from pytest_cutile.words.text import render_text
from pytest_cutile.words.timing import (
    Block,
    Measurement,
    Skipped,
    Sustained,
    Timer,
    TimingError,
    TooLong,
    bound_of,
)
from pytest_cutile.words.verdicts import Reason

PLACEMENTS, LEAST_PLACEMENTS = 8, 4
"""Placements of the buffers that are tried, and how many are enough for kernels of milliseconds. Their number
is even: a timer may exchange the order of two launches from block to block."""
GPU_SECONDS = 0.1
"""GPU time after which no further placement is tried, estimated from the samples."""
KEPT = 0.6
"""Share of the GPU time that is in the samples; the rest flushes the L2 and leads in."""


def measure(
    timer: Timer,
    key: str,
    work: Work,
    call: Call,
    *,
    baseline: Callable[..., object] | None = None,
    sustained: bool = True,
    deterministic: bool = False,
) -> Measurement:
    """Time `call` in bursts and, where that can differ, sustained. The caller holds the GPU's lock.

    A `baseline` launcher is interleaved with it, on the same arguments. Where `call` is known to be
    deterministic, timed launches have to leave the very bits of a first one.
    """
    platform = find_platform(timer.device.name)
    launchers = [call] if baseline is None else [call, replace(call, function=baseline)]
    problems: dict[str, None] = {}
    try:
        outputs = TimedOutputs(key, call, deterministic=deterministic)
        name, workload_us = _time_reference_workload(timer, bound_of(work, platform))
        burst = _measure_bursts(timer, launchers, outputs, problems)
        clock_mhz = timer.sm_clock_mhz()
        steady = (
            _measure_sustained(timer, launchers, outputs, problems, always=not burst)
            if sustained or not burst
            else None
        )
    except TimingError as error:
        raise MeasurementFailed(Reason.NOT_TIMED, f"{key}: {error}") from error
    measurement = Measurement(
        device=timer.device,
        work=work,
        platform=platform,
        burst=burst,
        sustained=steady if isinstance(steady, Sustained) else None,
        sustained_skipped=steady if isinstance(steady, Skipped) else None,
        clock_mhz=clock_mhz,
        problems=tuple(problems),
        reference_workload=name,
        workload_us=workload_us,
        tick_us=timer.tick_us,
        outputs_uncompared=outputs.skipped,
    )
    validate(key, measurement, is_paired=baseline is not None)
    return measurement


def _measure_bursts(
    timer: Timer, launchers: list[Call], outputs: TimedOutputs, problems: dict[str, None]
) -> tuple[Block, ...]:
    """Time bursts at several placements; return no block where the launches are too long for a burst."""
    blocks: list[Block] = []
    seconds = 0.0
    is_enough = False
    while not is_enough:
        call = launchers[0]
        with placed_anew((call.args, call.kwargs)) as arguments:
            launches = outputs.timed(launchers, arguments)
            try:
                times = timer.time_block(launches)
            except TooLong:
                return ()  # a launch near the limit may be over it at one placement alone
            if len(times) != len(launchers):
                raise TimingError(
                    f"the timer returned times of {len(times)} launches, not of {len(launchers)}"
                )
            current, *baseline = (tuple(map(float, samples)) for samples in times)
            block = Block(current_us=current, baseline_us=baseline[0] if baseline else ())
            blocks.append(block)
            # What disturbs one placement may be gone at the next.
            problems.update(dict.fromkeys(timer.problems()))
            seconds += (sum(block.current_us) + sum(block.baseline_us)) * 1e-6 / KEPT
            least = PLACEMENTS if seconds < GPU_SECONDS else LEAST_PLACEMENTS
            is_enough = len(blocks) >= least and len(blocks) % 2 == 0
            if is_enough:
                outputs.compare()
            outputs.forget()
            del launches  # with the graph of the burst, before the next placement
    return tuple(blocks)


def _measure_sustained(
    timer: Timer, launchers: list[Call], outputs: TimedOutputs, problems: dict[str, None], *, always: bool
) -> Sustained | Skipped:
    call = launchers[0]
    with placed_in_rotation((call.args, call.kwargs)) as copies:
        by_copy = [outputs.timed(launchers, arguments) for arguments in copies]
        steady = timer.time_sustained([*zip(*by_copy, strict=True)], always=always)
        if always and isinstance(steady, Skipped):
            raise TimingError(f"it is too long for a burst, and nothing else was measured: {steady.reason}")
        problems.update(dict.fromkeys(timer.problems()))
        if always:  # else a burst was compared
            outputs.compare()
    return steady


def _time_reference_workload(timer: Timer, bound: str) -> tuple[str, float | None]:
    """Return name and time of a reference workload, timed at its first use in this process.

    It is a convenience: a workload that cannot be made or timed is left out.
    """
    kept: dict[str, tuple[str, float | None]] = timer.__dict__.setdefault("_timed_reference_workloads", {})
    if bound not in kept:
        kept[bound] = ("", None)
        with contextlib.suppress(TimingError):
            if (workload := timer.reference_workload(bound)) is not None:
                (samples,) = timer.time_block([workload.launch])
                if usable(samples):
                    kept[bound] = (workload.name, median([*map(float, samples)]))
    return kept[bound]


def validate(key: str, measurement: Measurement, *, is_paired: bool = False) -> None:
    """Refuse impossible times: none, not finite, not positive, or above the chip's limit."""
    if not measurement.regimes:
        raise MeasurementFailed(Reason.BAD_SAMPLES, f"{key}: nothing was measured")
    for regime in measurement.regimes:
        for block in measurement.blocks(regime):
            has_pair = is_paired or bool(block.baseline_us)
            for samples in (block.current_us, block.baseline_us) if has_pair else (block.current_us,):
                if not usable(samples):
                    bad = [f"{value}" for value in samples if not usable([value])]
                    shown = ", ".join(bad[:4]) or "nothing"
                    raise MeasurementFailed(
                        Reason.BAD_SAMPLES,
                        f"{key}: the timer returned {shown} as times per launch (of {len(samples)} samples): "
                        "not between 0.1 ns and 1000 s. Nothing is compared or recorded; check the timer.",
                    )
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
            f"{format_time(measurement.fastest_us)} per launch for {counts}."
        ),
        Paragraph(hint),
        Paragraph(f"Source of the limit: {source}"),
    ]
    title = f"{key}: {measurement.exceeded} is above what {measurement.device.name} can do."
    return render_text(Document(title, blocks))
