"""Time one case of a kernel beside all that computes the same, on one GPU, in one run.

Where several processes share the GPU, a case is prepared while others are, and timed alone
(`tools.comparison.gpu_access`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from pytest_cutile.words.settings import RUN_VARIABLE, SHARERS_VARIABLE
from pytest_cutile.words.timing import LaunchFunction, Timer, Uncapturable
from tools.comparison.gpu_access import GpuAccess, guard_cutile, guard_inductor
from tools.comparison.stream_timer import StreamTimer
from tools.gpu_runs.agreement import check_exactly, describe_difference
from tools.gpu_runs.gpu_state import free_memory, guarded, raise_if_broken, release_memory
from tools.gpu_runs.measure import (
    Blocks,
    MakeTimer,
    environment_of,
    figures,
    ratio_of,
    time_interleaved,
)
from tools.gpu_runs.processes import Handler, describe
from tools.gpu_runs.runs import Job
from tools.gpu_runs.suites import Prepared, prepare
from tools.suite._peers import InPlace, has_tilegym
from tools.tuner.candidates import share_cache

COPY = "copy"
"""Name of the peer that only moves as many bytes ("copy", or "copy-..."): its result is not compared, and it
does none of the arithmetic."""
SECONDS = 24.0
"""Of GPU time in a case's samples, after which fewer places of the buffers are enough: attention of 28 ms a
launch, beside three peers, gets all of them. (With 8 s it got three, whose ratios lay up to 18 % apart.)"""
WARM_UP_CALLS = 3
"""The first call of a peer compiles it, or tries algorithms."""


def start_comparing(
    number: int,
    *,
    devices: Sequence[int],
    processes: int,
    make_timer: MakeTimer,
    make_stream_timer: Callable[[Timer], Timer] = StreamTimer,
    without: Sequence[str],
) -> Handler:
    """Prepare one of the `processes` that compare on one GPU."""
    if processes > 1:
        # Compilers in each process by its share of the cores: TileGym leaves out what takes long to compile.
        share = len(os.sched_getaffinity(0)) // (processes * len(devices))
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(share, 2)))
    import torch

    from pytest_cutile.timing.gpu import nvml
    from pytest_cutile.timing.gpu.lock import GpuLock

    nvml.choose_gpu(devices[number % len(devices)])
    share_cache()
    # The kernels multiply float32 as tfloat32: so may the peers.
    torch.set_float32_matmul_precision("high")
    torch.set_grad_enabled(False)
    timer = make_timer()
    access = GpuAccess(GpuLock(timer.device.uuid, enabled=processes > 1), _synchronize)
    if processes > 1:
        if not timer.device.uuid:
            raise RuntimeError("the GPU has no UUID to lock it by: leave out --processes")
        # The others on the GPU are no strangers to it.
        os.environ[RUN_VARIABLE] = str(os.getppid())
        os.environ[SHARERS_VARIABLE] = str(processes)
        guard_cutile(access)
        guard_inductor(access)
    has_tilegym()  # what it does to `cuda.tile.launch` is undone before anything is launched
    handler = partial(_compare, timer, make_stream_timer(timer), tuple(without), access, processes)
    return guarded(handler, timer.device.torch_device)


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _compare(
    timer: Timer, stream_timer: Timer, without: Sequence[str], access: GpuAccess, processes: int, job: Job
) -> dict[str, Any]:
    """Compare a case; return the figures as plain data for a JSON file.

    Raises:
        Broken: a peer left the GPU in an error.
        Exception: our own launch is wrong, or raised.
    """
    with access.shared():
        release_memory()
        ready = _prepare(timer, without, job)
        if processes > 1:
            free_memory()
    with access.exclusive():
        compared = _time(timer, stream_timer, ready)
    if processes > 1:
        compared["environment"]["processes_per_gpu"] = str(processes)
    return compared


# -- preparing --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A case that can be timed."""

    job: Job
    """Which it is."""
    case: Prepared
    """With its arguments."""
    ours: LaunchFunction
    """Our launch, which is right."""
    peers: dict[str, LaunchFunction]
    """The others, warm."""
    differs: dict[str, str]
    """How the results of some differ."""
    missing: dict[str, str]
    """Why others are not there."""


def _prepare(timer: Timer, without: Sequence[str], job: Job) -> _Ready:
    """Make the arguments, check our launch, and run every peer as often as it needs to be ready."""
    case = prepare(job.suite, job.case, timer.device.torch_device, arch=timer.device.arch)
    check_exactly(case)
    if case.suite.spec.check_of(case.case).get("mutates"):
        case = prepare(job.suite, job.case, timer.device.torch_device)
    ours = case.launcher()
    expected = ours()
    missing: dict[str, str] = dict.fromkeys(without, "left out on the command line")
    differs: dict[str, str] = {}
    peers: dict[str, LaunchFunction] = {}
    try:
        offered = case.suite.peers(case.inputs, dict(case.case.params))
    except Exception as error:  # noqa: BLE001 - our own figures are worth having without them
        offered, missing["peers"] = {}, describe(error)
    for name, launch in offered.items():
        if name in missing:
            continue
        if isinstance(launch, str):
            missing[name] = launch
            continue
        try:
            said = _warm_up(launch, None if _is_copy(name) else expected, case)
        except Exception as error:  # noqa: BLE001 - whatever a peer raises, the others are still of interest
            missing[name] = _why_missing(timer, name, error)
            continue
        peers[name] = launch
        if said is not None:
            differs[name] = said
    return _Ready(job=job, case=case, ours=ours, peers=peers, differs=differs, missing=missing)


def _warm_up(launch: LaunchFunction, expected: Any, case: Prepared) -> str | None:
    """Run a peer as often as it needs to be ready; return how its result differs."""
    result = None
    for _ in range(WARM_UP_CALLS):
        result = launch()
    if isinstance(launch, InPlace):
        result = launch.once()
    return describe_difference(result, expected, case.inputs) if expected is not None else None


def _why_missing(timer: Timer, name: str, error: Exception) -> str:
    """Return why a peer is missing that raised.

    Raises:
        Broken: it left the GPU in an error.
    """
    said = describe(error).partition("\n")[0]
    why = f"{name}: {said} (it leaves the GPU in an error: leave it out with --without)"
    raise_if_broken(timer.device.torch_device, why)
    return said


def _is_copy(name: str) -> bool:
    return name.partition("-")[0] == COPY


# -- timing -----------------------------------------------------------------------------------------


def _time(timer: Timer, stream_timer: Timer, ready: _Ready) -> dict[str, Any]:
    """Time a case beside its peers; return the figures."""
    import torch

    case, missing = ready.case, dict(ready.missing)
    lanes: dict[str, LaunchFunction] = {}
    on_stream: dict[str, LaunchFunction] = {}
    for name, launch in ready.peers.items():
        try:
            captured = _can_be_captured(timer, launch)
        except Exception as error:  # noqa: BLE001 - likewise
            missing[name] = _why_missing(timer, name, error)
            continue
        (lanes if captured else on_stream)[name] = launch
    work = case.suite.spec.work_of(case.case)

    def figures_of(name: str, blocks: Blocks, beside: Blocks) -> dict[str, Any]:
        done = replace(work, flops=0.0) if _is_copy(name) else work
        return {**figures(timer, done, blocks), "ratio": asdict(ratio_of(blocks, beside))}

    own, *others = time_interleaved(timer, [ready.ours, *lanes.values()], case.inputs, seconds=SECONDS)
    peers = {name: figures_of(name, blocks, own) for name, blocks in zip(lanes, others, strict=True)}
    if on_stream:
        beside, *others = time_interleaved(
            stream_timer, [ready.ours, *on_stream.values()], case.inputs, seconds=SECONDS
        )
        for name, blocks in zip(on_stream, others, strict=True):
            peers[name] = {**figures_of(name, blocks, beside), "on_stream": True}
    return {
        "kernel": case.suite.spec.name,
        "suite": ready.job.suite,
        "case": ready.job.case,
        "params": dict(case.case.params),
        "of_tilegym": case.case.name in case.suite.of_tilegym,
        "work": asdict(work),
        "ours": figures(timer, work, own),
        "peers": {
            name: {"on_stream": False, **peer, "differs": ready.differs.get(name)}
            for name, peer in peers.items()
        },
        "missing": missing,
        "problems": list(timer.problems()),
        "sm_clock_mhz": timer.sm_clock_mhz(),
        "uuid": timer.device.uuid,
        "l2_bytes": torch.cuda.get_device_properties(0).L2_cache_size if torch.cuda.is_available() else None,
        "environment": environment_of(timer),
    }


def _can_be_captured(timer: Timer, launch: LaunchFunction) -> bool:
    """Say whether a graph can be made of a launch, which is timed for a trial.

    Raises:
        TimingError: It cannot be timed for another reason.
    """
    try:
        timer.time_block([launch])
    except Uncapturable:
        return False
    return True
