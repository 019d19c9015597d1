"""Tune one case on one GPU: check all candidates, time them all, then the best of them again and longer."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cutile.words.timing import LaunchFunction, Timer, TimingError
from tools.gpu_runs.agreement import check_exactly
from tools.gpu_runs.gpu_state import guarded, release_memory
from tools.gpu_runs.measure import (
    Blocks,
    MakeTimer,
    environment_of,
    figures,
    ratio_of,
    time_interleaved,
)
from tools.gpu_runs.processes import Handler, Pool, describe
from tools.gpu_runs.runs import Job
from tools.gpu_runs.suites import Choice, Prepared, plain_config, prepare, watched_choice
from tools.tuner.candidates import (
    CHECK_SECONDS,
    Candidate,
    check_all,
    count_processes,
    share_cache,
    start_checking,
)
from tools.tuner.config_source import config_source

FINALISTS = 6
"""Candidates that are timed again beside the committed configuration."""
GROUP = 24
"""Candidates in one CUDA graph of the quick round."""


@dataclass(kw_only=True)
class Lane:
    """A configuration that computes the right thing."""

    config: Any
    """The configuration; None: the committed one, where the launcher does not say which it is."""
    launch: LaunchFunction
    """Launches it."""
    committed: bool = False
    """Whether it is what the launcher chooses by itself."""
    quick: float = 0.0
    """The committed one's time over this one's, in the quick round."""
    blocks: Blocks = field(default_factory=list)
    """Samples of the last round that it was in."""
    final: bool = False
    """Whether that was the final round."""


def start_tuning(number: int, *, devices: Sequence[int], make_timer: MakeTimer, processes: int) -> Handler:
    """Prepare the process that times on one GPU, and its `processes` that compile for it."""
    from pytest_cutile.timing.gpu import nvml

    nvml.choose_gpu(devices[number])
    share_cache()
    timer = make_timer()
    pool = Pool(
        processes,
        partial(start_checking, device=timer.device.torch_device),
        task_seconds=CHECK_SECONDS,
    )
    return guarded(partial(_tune, timer, pool), timer.device.torch_device)


def _tune(timer: Timer, pool: Pool, job: Job) -> dict[str, Any]:
    """Tune a case; return the rows as plain data for a JSON file."""
    started = time.perf_counter()
    release_memory()
    case = prepare(job.suite, job.case, timer.device.torch_device, arch=timer.device.arch)
    choice, failures = _check_committed(case)
    if case.suite.spec.check_of(case.case).get("mutates"):
        case = prepare(job.suite, job.case, timer.device.torch_device)
    configs = _candidates(case, timer.device.arch, choice.config)
    with tempfile.TemporaryDirectory(prefix="cutile-tuner-") as folder:
        lanes = _check_candidates(pool, case, configs, Path(folder), failures)
    if not failures or failures[0]["stage"] != "committed":
        lanes.insert(0, Lane(config=choice.config, launch=case.launcher(), committed=True))
    compiled = time.perf_counter()
    lanes = _time(timer, case, lanes, failures)
    return {
        "kernel": case.suite.spec.name,
        "suite": job.suite,
        "case": job.case,
        "params": dict(case.case.params),
        "facets": choice.facets,
        "chooser": choice.chooser,
        "chosen": len(choice.configs),
        "committed": plain_config(choice.config),
        "work": asdict(case.suite.spec.work_of(case.case)),
        "rows": _rows(timer, case, lanes),
        "failures": failures,
        "problems": list(timer.problems()),
        "sm_clock_mhz": timer.sm_clock_mhz(),
        "uuid": timer.device.uuid,
        "environment": environment_of(timer),
        "seconds": {"checking": compiled - started, "timing": time.perf_counter() - compiled},
    }


# -- which candidates are right ---------------------------------------------------------------------


def _check_committed(case: Prepared) -> tuple[Choice, list[dict[str, Any]]]:
    """Check what the launcher chooses by itself against the reference; return it and what failed."""
    with watched_choice(case.suite.module) as choice:
        try:
            check_exactly(case)
        except Exception as error:  # noqa: BLE001 - the search goes on without it
            return choice, [_failure(choice.config, "committed", describe(error))]
    return choice, []


def _candidates(case: Prepared, arch: str, committed: Any) -> list[Any]:
    """Return the configurations to try, each once, without the committed one."""
    candidates: list[Any] = []
    for config in case.suite.configs(arch, **case.case.params):
        if config != committed and config not in candidates:
            candidates.append(config)
    return candidates


def _check_candidates(
    pool: Pool, case: Prepared, configs: Sequence[Any], folder: Path, failures: list[dict[str, Any]]
) -> list[Lane]:
    """Return those that are right; each is launched here as soon as it is known to be."""
    import torch

    from pytest_cutile.tile.tensors.trees import named_tensors

    # What the committed configuration returns has been checked; if that failed, the reference's own word.
    outputs = case.exact() if failures else case.launcher()()
    expected = [tensor.detach().cpu() for _, tensor in named_tensors(outputs, "output")]
    file = folder / "expected.pt"
    torch.save(expected, file)
    at_once = count_processes(case, [t for _, t in named_tensors(outputs, "output")], cores=len(pool))
    del outputs
    candidates = [
        Candidate(suite=case.suite.name, case=case.case.name, config=config, expected=str(file))
        for config in configs
    ]
    done: queue.Queue[tuple[int, str | None] | BaseException | None] = queue.Queue()

    def collect() -> None:
        # In a thread, so that no process waits for its next candidate while this one launches the last.
        try:
            for item in check_all(pool, candidates, at_once=at_once):
                done.put(item)
        except BaseException as error:  # noqa: BLE001 - raised again below
            done.put(error)
        else:
            done.put(None)

    threading.Thread(target=collect, daemon=True).start()
    right: dict[int, Lane] = {}
    while (item := done.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        number, why = item
        launch = case.launcher(configs[number])
        try:
            if why is None:
                launch()  # reads the cubin that the other process left in the cache
        except Exception as error:  # noqa: BLE001 - one candidate less
            why = describe(error)
        if why is None:
            right[number] = Lane(config=configs[number], launch=launch)
        else:
            failures.append(_failure(configs[number], "check", why))
    return [right[number] for number in sorted(right)]


def _failure(config: Any, stage: str, why: str) -> dict[str, Any]:
    lines = why.strip().splitlines() or [""]
    return {"config": plain_config(config), "stage": stage, "why": lines[0], "detail": "\n".join(lines[1:20])}


# -- which is the fastest ---------------------------------------------------------------------------


def _time(timer: Timer, case: Prepared, lanes: list[Lane], failures: list[dict[str, Any]]) -> list[Lane]:
    """Time all, then the best again; return them, the fastest first."""
    if not lanes:
        return []
    first, *others = lanes  # the committed one, if it is right
    try:
        timer.time_block([first.launch])  # the clock rises before anything counts
    except TimingError as error:
        failures.append(_failure(first.config, "timing", str(error)))
        return []
    for start in range(0, max(1, len(others)), GROUP):
        group = [first, *others[start : start + GROUP]]
        samples = time_interleaved(timer, [lane.launch for lane in group], case.inputs, blocks=1)
        for lane, blocks in zip(group, samples, strict=True):
            lane.quick = ratio_of(samples[0], blocks).value
            lane.blocks = blocks
    others.sort(key=lambda lane: -lane.quick)
    final = [first, *others[:FINALISTS]]
    samples = time_interleaved(timer, [lane.launch for lane in final], case.inputs)
    for lane, blocks in zip(final, samples, strict=True):
        lane.blocks, lane.final = blocks, True
    final.sort(key=lambda lane: -ratio_of(first.blocks, lane.blocks).value)
    while final and not final[0].committed:
        # Candidates were compared coarsely: the one that is kept has to stand the gate's own check.
        try:
            check_exactly(
                prepare(case.suite.name, case.case.name, timer.device.torch_device), final[0].config
            )
            break
        except Exception as error:  # noqa: BLE001 - the next one may stand it
            failures.append(_failure(final.pop(0).config, "final check", describe(error)))
    return [*final, *others[FINALISTS:]]


def _rows(timer: Timer, case: Prepared, lanes: list[Lane]) -> list[dict[str, Any]]:
    """Return a row for each configuration that was timed."""
    work = case.suite.spec.work_of(case.case)
    first = next((lane for lane in lanes if lane.committed), None)
    rows = []
    for lane in lanes:
        row = {
            "config": plain_config(lane.config),
            "source": None if lane.config is None else config_source(lane.config),
            "committed": lane.committed,
            "final": lane.final,
            "quick_ratio": lane.quick,
            **figures(timer, work, lane.blocks),
        }
        if first is not None and lane.final:
            row["ratio"] = asdict(ratio_of(first.blocks, lane.blocks))
        rows.append(row)
    return rows
