"""One process's measurement of one case: blocks of samples, each with the buffers at another place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.report import above_limit_message
from pytest_cutile.core.spec import Work
from pytest_cutile.core.statistics import usable
from pytest_cutile.core.timing import Block, Control, Launch, Measurement, Timer, TimingError, bound_of
from pytest_cutile.core.verdicts import Reason
from pytest_cutile.gates.engine import Engine
from pytest_cutile.gpu.placement import placed_anew

PLACEMENTS, LEAST_PLACEMENTS = 8, 3
"""Places that the buffers are tried at, and how many are enough for kernels of milliseconds."""
GPU_SECONDS = 0.1
"""GPU time after which no further place is tried, as far as the samples tell: a part of it is not kept."""
KEPT = 0.6
"""Share of the GPU time that is in the samples; the rest flushes the L2 and leads in."""


class Unmeasured(Exception):  # noqa: N818 - carries a reason code
    """A case whose speed could not be measured, or whose figure cannot be; the message is for people."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Call:
    """A launcher and its arguments."""

    function: Callable[..., object]
    """The launcher."""
    args: tuple[Any, ...] = ()
    """Positional arguments."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments."""

    def __call__(self) -> object:
        """Launch it."""
        __tracebackhide__ = True
        return self.function(*self.args, **self.kwargs)

    def on(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Launch:
        """Return the launch with other arguments."""
        args, kwargs = arguments
        return functools.partial(self.function, *args, **kwargs)


def measure(
    engine: Engine, key: str, work: Work, call: Call, *, base: Callable[..., object] | None = None
) -> Measurement:
    """Time `call`, its buffers at `PLACEMENTS` places one after the other, alone on the GPU.

    Args:
        engine: of this run.
        key: of the case, for messages.
        work: what one launch does.
        call: the launcher and its arguments.
        base: another revision's launcher, to take turns with it on the same arguments; else a control does.

    Raises:
        Unmeasured: it cannot be timed, or the times make no sense.
    """
    timer = engine.timer
    platform = find_platform(timer.device.name)
    engine.progress(f"timing {key}")
    try:
        with engine.gpu_lock.alone():
            control = timer.control(bound_of(work, platform)) if base is None else None
            seen: dict[str, None] = {}

            def block() -> Block:
                timed = _block(timer, call, base, control)
                # What disturbs one place may be gone at the next.
                seen.update(dict.fromkeys(timer.problems()))
                return timed

            blocks = _blocks(block)
            clock = timer.sm_clock_mhz()
            engine.unseen.update(dict.fromkeys(timer.unseen()))
    except TimingError as error:
        raise Unmeasured(Reason.NOT_TIMED, f"{key}: {error}") from error
    measurement = Measurement(
        device=timer.device,
        blocks=blocks,
        work=work,
        platform=platform,
        control=control.name if control is not None else "",
        clock_mhz=clock,
        problems=tuple(seen),
    )
    validate(key, measurement, beside=base is not None)
    return measurement


def _blocks(measure_block: Callable[[], Block]) -> tuple[Block, ...]:
    """Return blocks until there are enough, or they have taken long enough."""
    blocks: list[Block] = []
    spent = 0.0
    while len(blocks) < LEAST_PLACEMENTS or (len(blocks) < PLACEMENTS and spent < GPU_SECONDS):
        block = measure_block()
        blocks.append(block)
        spent += (sum(block.samples_us) + sum(block.partner_us)) * 1e-6 / KEPT
    return tuple(blocks)


def _block(timer: Timer, call: Call, base: Callable[..., object] | None, control: Control | None) -> Block:
    with placed_anew((call.args, call.kwargs)) as arguments:
        launches = [call.on(arguments)]
        if base is not None:
            launches.append(Call(base).on(arguments))
        elif control is not None:
            launches.append(control.launch)
        lanes = timer.time_block(launches)
    if len(lanes) != len(launches):
        raise TimingError(f"the timer returned times of {len(lanes)} launches, not of {len(launches)}")
    own, *partners = lanes
    return Block(
        samples_us=tuple(float(value) for value in own),
        partner_us=tuple(float(value) for lane in partners for value in lane),
    )


def validate(key: str, measurement: Measurement, *, beside: bool = False) -> None:
    """Refuse times that cannot be.

    Args:
        key: of the case.
        measurement: of it.
        beside: whether another revision took turns with it.

    Raises:
        Unmeasured: there are none, or some are not finite and positive, or above what the chip can do.
    """
    for block in measurement.blocks:
        paired = [block.partner_us] if block.partner_us or measurement.control or beside else []
        for samples in (block.samples_us, *paired):
            if not usable(samples):
                shown = ", ".join(f"{value}" for value in samples[:4]) or "nothing"
                raise Unmeasured(
                    Reason.BAD_SAMPLES,
                    f"{key}: the timer returned {shown} as times per launch (of {len(samples)} samples): "
                    "not finite and positive. Nothing is compared or recorded; check the timer.",
                )
    if not measurement.blocks:
        raise Unmeasured(Reason.BAD_SAMPLES, f"{key}: nothing was measured")
    if measurement.exceeded is not None:
        raise Unmeasured(Reason.ABOVE_LIMIT, above_limit_message(key, measurement))


def to_plain(measurement: Measurement) -> dict[str, Any]:
    """Return what one process measured, in plain built-in types, for another process."""
    return {
        "blocks": [[list(block.samples_us), list(block.partner_us)] for block in measurement.blocks],
        "control": measurement.control,
        "clock_mhz": measurement.clock_mhz,
        "problems": list(measurement.problems),
    }


def from_plain(data: Mapping[str, Any], like: Measurement) -> Measurement:
    """Rebuild another process's measurement of the same case on the same GPU as `like`."""
    return replace(
        like,
        blocks=tuple(Block(samples_us=tuple(own), partner_us=tuple(other)) for own, other in data["blocks"]),
        control=str(data["control"]),
        clock_mhz=data["clock_mhz"],
        problems=tuple(data["problems"]),
    )
