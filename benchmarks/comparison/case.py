"""Time one case of a kernel beside all that computes the same, on one GPU, in one run."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import cuda.tile as ct

from benchmarks.comparison.stream_timer import StreamTimer
from benchmarks.gpu_runs.agreement import check_exactly, describe_difference
from benchmarks.gpu_runs.gpu_state import guarded, raise_if_broken, release_memory
from benchmarks.gpu_runs.measure import (
    Blocks,
    MakeTimer,
    environment_of,
    figures,
    plain_ratio,
    plain_work,
    ratio_of,
    time_in_turns,
)
from benchmarks.gpu_runs.processes import Handler, describe
from benchmarks.gpu_runs.runs import Job
from benchmarks.gpu_runs.suites import Prepared, prepare
from benchmarks.tuner.candidates import share_cache
from pytest_cutile.core.timing import Launch, Timer, TimingError

COPY = "copy"
"""Name of the peer that only moves as many bytes ("copy", or "copy-..."): its result is not compared, and it
does none of the arithmetic."""
WARM_UP_CALLS = 3
"""The first call of a peer compiles it, or tries algorithms."""


def start_comparing(
    number: int,
    *,
    devices: Sequence[int],
    make_timer: MakeTimer,
    make_stream_timer: Callable[[Timer], Timer] = StreamTimer,
    without: Sequence[str],
) -> Handler:
    """Prepare the process that compares on one GPU."""
    import torch

    from pytest_cutile.gpu import nvml

    nvml.choose_gpu(devices[number])
    share_cache()
    # The kernels multiply float32 as tfloat32: so may the peers.
    torch.set_float32_matmul_precision("high")
    torch.set_grad_enabled(False)
    _import_tilegym()
    timer = make_timer()
    handler = partial(_compare, timer, make_stream_timer(timer), tuple(without))
    return guarded(handler, timer.device.torch_device)


def _import_tilegym() -> None:
    """Import TileGym, if it is there, without what it does to others.

    It replaces `cuda.tile.launch`, to warn of experimental kernels, by a function that takes fewer arguments.
    """
    launch = ct.launch
    with contextlib.suppress(ImportError):
        importlib.import_module("tilegym")
    ct.launch = launch


def _compare(timer: Timer, stream_timer: Timer, without: Sequence[str], job: Job) -> dict[str, Any]:
    """Compare a case; return what was found as plain data for a JSON file.

    Raises:
        Broken: a peer left the GPU in an error.
        Exception: our own launch is wrong, or raised.
    """
    import torch

    release_memory()
    case = prepare(job.suite, job.case, timer.device.torch_device, arch=timer.device.arch)
    check_exactly(case)
    if case.suite.spec.check_of(case.case).get("mutates"):
        case = prepare(job.suite, job.case, timer.device.torch_device)
    ours = case.launcher()
    expected = ours()
    missing: dict[str, str] = dict.fromkeys(without, "left out on the command line")
    differs: dict[str, str] = {}
    lanes: dict[str, Launch] = {}
    on_stream: dict[str, Launch] = {}
    try:
        found = case.suite.peers(case.inputs, dict(case.case.params))
    except Exception as error:  # noqa: BLE001 - our own figures are worth having without them
        found, missing["peers"] = {}, describe(error)
    for name, launch in found.items():
        if name in missing:
            continue
        if isinstance(launch, str):
            missing[name] = launch
            continue
        try:
            said, captured = _try(timer, launch, None if _is_copy(name) else expected, case)
        except Exception as error:  # noqa: BLE001 - whatever a peer raises, the others are still of interest
            missing[name] = describe(error).partition("\n")[0]
            why = f"{name}: {missing[name]} (it leaves the GPU in an error: leave it out with --without)"
            raise_if_broken(timer.device.torch_device, why)
            continue
        (lanes if captured else on_stream)[name] = launch
        if said is not None:
            differs[name] = said
    del expected
    work = case.suite.spec.work_of(case.case)

    def figures_of(name: str, blocks: Blocks, beside: Blocks) -> dict[str, Any]:
        done = replace(work, flops=0.0) if _is_copy(name) else work
        return {**figures(timer, done, blocks), "ratio": plain_ratio(ratio_of(blocks, beside))}

    own, *others = time_in_turns(timer, [ours, *lanes.values()], case.inputs)
    peers = {name: figures_of(name, blocks, own) for name, blocks in zip(lanes, others, strict=True)}
    if on_stream:
        beside, *others = time_in_turns(stream_timer, [ours, *on_stream.values()], case.inputs)
        for name, blocks in zip(on_stream, others, strict=True):
            peers[name] = {**figures_of(name, blocks, beside), "on_stream": True}
    return {
        "kernel": case.suite.spec.name,
        "suite": job.suite,
        "case": job.case,
        "params": dict(case.case.params),
        "of_tilegym": case.case.name in case.suite.of_tilegym,
        "work": plain_work(work),
        "ours": figures(timer, work, own),
        "peers": {
            name: {"on_stream": False, **peer, "differs": differs.get(name)} for name, peer in peers.items()
        },
        "missing": missing,
        "problems": list(timer.problems()),
        "sm_clock_mhz": timer.sm_clock_mhz(),
        "uuid": timer.device.uuid,
        "l2_bytes": torch.cuda.get_device_properties(0).L2_cache_size if torch.cuda.is_available() else None,
        "environment": environment_of(timer),
    }


def _is_copy(name: str) -> bool:
    return name.partition("-")[0] == COPY


def _try(
    timer: Timer, launch: Callable[[], object], expected: Any, case: Prepared
) -> tuple[str | None, bool]:
    """Run a peer as often as it needs to be ready, and once in a graph.

    Returns:
        How its result differs, and whether a graph could be made of it.
    """
    result = None
    for _ in range(WARM_UP_CALLS):
        result = launch()
    said = describe_difference(result, expected, case.inputs) if expected is not None else None
    try:
        timer.time_block([launch])
    except TimingError:
        return said, False
    return said, True
