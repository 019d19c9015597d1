"""Test the cache model with hardware counters: `python -m studies.sawtooth.counters [--output DIR]`.

Needs Nsight Compute (`ncu`), and a GPU whose counters may be read; without either it says what helps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cutile.platforms.lookup import find_platform, gpu_slug
from pytest_cutile.profiling.counters import KernelCounters
from pytest_cutile.profiling.ncu import ProfilingError, collect, find_ncu
from pytest_cutile.spec import Case
from pytest_cutile.tensors.seeded import MakeTensor
from studies.running.attention import case
from studies.running.run import RESULTS
from studies.sawtooth.cache import SECTOR_BYTES
from studies.sawtooth.kernel import SPEC
from studies.sawtooth.main import IN_ORDER, LENGTHS, QUICK_LENGTHS, TURNING, kv_mib, predict
from tools.gpu_runs.tables import markdown

METRICS = (
    "lts__t_sectors_srcunit_tex.sum",
    "lts__t_sectors_srcunit_tex_lookup_miss.sum",
    "lts__t_sectors_lookup_miss.sum",
    "dram__bytes_read.sum",
    "gpu__time_duration.sum",
)
"""What multiprocessors asked of the L2 and missed there, all that missed, and what came from memory: names of
Nsight Compute (docs.nvidia.com/nsight-compute/ProfilingGuide, "Metrics Reference")."""
CONTENDERS = {contender.name: contender for contender in (IN_ORDER, TURNING)}
TIMEOUT_S = 120.0


def launch_once(length: int, name: str) -> None:
    """Launch a contender, and let the profiler see the second launch: the first one compiles."""
    import torch

    make_tensor = partial(MakeTensor, device="cuda", seed=0, signed_rows=False)
    inputs = SPEC.make_inputs(make_tensor, case(length))
    CONTENDERS[name].launch(**inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    CONTENDERS[name].launch(**inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def compared(own: Case, name: str, gpu_name: str, counters: KernelCounters) -> dict[str, Any]:
    """Return what was counted for a launch beside what the model predicts, in bytes."""
    made: dict[str, Any] = {"case": own.name, "contender": name, "kv_mib": kv_mib(own)}
    made |= {metric: counters.values.get(metric) for metric in METRICS}
    gpu = find_platform(gpu_name)
    if gpu is not None and gpu.cuda_reports is not None:
        for copies in (1, 2):
            prediction = predict(gpu, own.params, copies=copies)
            traffic = prediction.turning if name == TURNING.name else prediction.in_order
            made[f"predicted_missed_{'half_' if copies > 1 else ''}l2"] = traffic.missed
    return made


def page(gpu_name: str, results: Sequence[Mapping[str, Any]], errors: Mapping[str, str]) -> str:
    """Return the table of what was counted beside what was predicted."""

    def mb(result: Mapping[str, Any], key: str, factor: float = 1.0) -> str:
        value = result.get(key)
        return "-" if value is None else f"{value * factor / 1e6:.0f}"

    lines = [
        (
            result["case"],
            result["contender"],
            f"{result['kv_mib']}",
            mb(result, METRICS[0], SECTOR_BYTES),
            mb(result, METRICS[1], SECTOR_BYTES),
            mb(result, "dram__bytes_read.sum"),
            mb(result, "predicted_missed_l2"),
            mb(result, "predicted_missed_half_l2"),
        )
        for result in results
    ]
    header = (
        "case",
        "",
        "K and V, MiB",
        "looked up, MB",
        "missed",
        "from memory",
        "predicted",
        "half the L2",
    )
    failed = "".join(f"\n\nNot counted: {key}: {why}" for key, why in errors.items())
    return f"""# Misses of the L2, counted and predicted

{gpu_name}, {datetime.now(UTC):%Y-%m-%d}, by `python -m studies.sawtooth.counters`. Megabytes of one launch;
results that are written count as missed in the prediction.

{markdown(header, lines)}{failed}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Count, and write the files after each launch; return 1 if anything could not be counted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, metavar="DIR", help="for the files (studies/results/GPU-DATE)")
    parser.add_argument("--quick", action="store_true", help="fewer lengths")
    parser.add_argument("--one", nargs=2, metavar=("LENGTH", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        launch_once(int(options.one[0]), options.one[1])
        return 0
    try:
        find_ncu()
    except ProfilingError as error:
        raise SystemExit(f"{error}") from error
    from pytest_cutile.gpu.nvml import find_gpu

    gpu_name = find_gpu().name
    day = f"{gpu_slug(gpu_name).removeprefix('nvidia-')}-{datetime.now(UTC):%Y-%m-%d}"
    folder = (options.output or RESULTS / day) / "sawtooth"
    folder.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    for length in QUICK_LENGTHS if options.quick else LENGTHS:
        for name in CONTENDERS:
            command = [sys.executable, "-m", "studies.sawtooth.counters", "--one", f"{length}", name]
            try:
                *_, last = collect(command, sections=(), metrics=METRICS, timeout_s=TIMEOUT_S)
                results.append(compared(case(length), name, gpu_name, last))
            except ProfilingError as error:
                errors[f"{name}[{length}]"] = str(error)
            (folder / "counters.json").write_text(json.dumps([results, errors], indent=1), encoding="utf-8")
            (folder / "counters.md").write_text(page(gpu_name, results, errors), encoding="utf-8")
            print(f"  {name}[{length}] {errors.get(f'{name}[{length}]') or results[-1]}", flush=True)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
