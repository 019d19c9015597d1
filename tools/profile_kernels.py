"""Say what bounds a kernel and its peers, with the hardware counters that Nsight Compute (ncu) reads.

    python -m tools.profile_kernels 'fmha[fp16-4x32x1024x128' matmul --ways ours,torch,tilegym [--json F]

For each case of `tools/suite/NAME.py` and each way to compute it that is there: every kernel that one
call launches, with its time, how busy tensor cores, memory and caches were (shared memory is of the L1),
how many warps were resident, and how often the schedulers issued. The L2 is flushed before each pass, and
clocks are left as they are, as the timer does; times are those of a profiled launch all the same: take
figures from `tools.compare_kernels`.

Needs a GPU whose counters may be read: https://developer.nvidia.com/ERR_NVGPUCTRPERM.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.gpu_runs.suites import prepare, select
from tools.gpu_runs.tables import aligned

SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "LaunchStats", "Occupancy", "SchedulerStats")
# Nsight Compute's names: docs.nvidia.com/nsight-compute/ProfilingGuide, "Metrics Reference".
COLUMNS = {
    "ns": r"gpu__time_duration\.sum",
    "tensor": r"sm__\w*pipe_tensor\w*\.avg\.pct_of_peak_sustained_active",
    "SM": r"sm__throughput\.avg\.pct_of_peak_sustained_elapsed",
    "DRAM": r"(gpu__)?dram__?throughput\.avg\.pct_of_peak_sustained_elapsed",
    "L1": r"l1tex__throughput\.avg\.pct_of_peak_sustained_active",
    "L2": r"lts__throughput\.avg\.pct_of_peak_sustained_elapsed",
    "issued": r"smsp__issue_active\.avg\.per_cycle_active",
    "warps": r"sm__warps_active\.avg\.pct_of_peak_sustained_active",
    "waves": r"launch__waves_per_multiprocessor",
    "registers": r"launch__registers_per_thread",
}
"""Percent of the peak where not said otherwise; the largest of those that match, which generations call by
names of their own, and "n/a" where the GPU has none."""
CALLS_BEFORE = 3
"""The first calls compile, or try algorithms."""
TIMEOUT_S = 120.0
OURS = "ours"


def main(argv: Sequence[str] | None = None) -> int:
    """Profile what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help="file of tools/suite, or file[case")
    parser.add_argument("--ways", default="ours,torch,tilegym", help="ours, or names of peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all counters")
    parser.add_argument("--one", metavar="WAY", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        _, _, case = options.names[0].partition("[")
        _call(options.names[0].partition("[")[0], case, options.one)
        return 0
    if shutil.which("ncu") is None:
        raise SystemExit("ncu is not on the PATH: it comes with Nsight Compute and with the CUDA toolkit")
    profiles: list[dict[str, Any]] = []
    for suite, case in select(options.names, ""):
        for way in options.ways.split(","):
            kernels, why = _profile(suite, case, way)
            profiles.append({"suite": suite, "case": case, "way": way, "kernels": kernels, "missing": why})
            print(f"\n{suite}[{case}] {way}{': ' + why if why else ''}", flush=True)
            if kernels:
                print(aligned(("kernel", *COLUMNS), [row(kernel) for kernel in kernels]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(profiles, indent=1), encoding="utf-8")
    return 0


def _profile(suite: str, case: str, way: str) -> tuple[list[dict[str, str]], str]:
    """Return the counters of each kernel of one call, and why there are none."""
    command = [
        "ncu",
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--profile-from-start",
        "off",
        "--clock-control",
        "none",
    ]
    for section in SECTIONS:
        command += ["--section", section]
    command += [sys.executable, "-m", "tools.profile_kernels", f"{suite}[{case}", "--one", way]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return [], f"not done after {TIMEOUT_S:.0f} s"
    kernels = list(read_counters(done.stdout))
    if kernels:
        return kernels, ""
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return [], said[-1] if said else f"ncu ended with {done.returncode}"


def read_counters(text: str) -> Iterator[dict[str, str]]:
    """Yield the counters of each kernel from ncu's raw page as CSV, whose second line holds units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(lines))
    for values in rows[2:]:
        yield dict(zip(rows[0], values, strict=False))


def row(kernel: dict[str, str]) -> tuple[str, ...]:
    """Return the line of a kernel in the table."""

    def largest(pattern: str) -> str:
        matching = [value for name, value in kernel.items() if re.fullmatch(pattern, name)]
        figures = [float(value.replace(",", "")) for value in matching if value[:1].isdigit()]
        return f"{max(figures):.4g}" if figures else "n/a"

    return kernel.get("Kernel Name", "?")[:40], *map(largest, COLUMNS.values())


def _call(suite: str, case: str, way: str) -> None:
    """Compute a case one way, and let the profiler see the last call."""
    import torch

    torch.set_float32_matmul_precision("high")
    prepared = prepare(suite, case, "cuda")
    if way == OURS:
        launch = prepared.launcher()
    else:
        peers = prepared.suite.peers(prepared.inputs, dict(prepared.case.params))
        if way not in peers:
            raise SystemExit(f"{suite}[{case}] has no {way!r}; it has {', '.join(peers)}")
        launch = peers[way]  # type: ignore[assignment]
    for _ in range(CALLS_BEFORE):
        launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    sys.exit(main())
