"""Say what bounds a kernel and its peers, by the hardware counters that Nsight Compute (ncu) reads.

    python -m tools.profile_kernels 'fmha[fp16-4x32x1024x128' matmul --ways ours,torch,tilegym [--json F]

For each case of `tools/suite/NAME.py` and each way to compute it: every kernel that one call launches, how
busy the parts of the GPU were, and what bounds the largest. `pytest-cutile profile` does so for any declared
case, beside roofline and compiled code, and keeps the report. Take times from `tools.compare_kernels`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_cutile.reports.profile import counters_table
from pytest_cutile.timing.profiling.counters import KernelCounters
from pytest_cutile.timing.profiling.limits import bound_of_launch
from pytest_cutile.timing.profiling.ncu import ProfilingError, collect, find_ncu
from pytest_cutile.words.text import render_lines
from tools.gpu_runs.suites import prepare, select

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
        suite, _, case = options.names[0].partition("[")
        _call(suite, case, options.one)
        return 0
    try:
        find_ncu()
    except ProfilingError as error:
        raise SystemExit(f"{error}") from error
    profiles: list[dict[str, Any]] = []
    for suite, case in select(options.names, ""):
        for way in options.ways.split(","):
            kernels, why = _profile(suite, case, way)
            print(f"\n{suite}[{case}] {way}{': ' + why if why else ''}", flush=True)
            if kernels:
                print(text_of(kernels), flush=True)
            counters = [{"kernel": kernel.kernel, **kernel.values} for kernel in kernels]
            profiles.append({"suite": suite, "case": case, "way": way, "kernels": counters, "missing": why})
            if options.json:
                options.json.write_text(json.dumps(profiles, indent=1), encoding="utf-8")
    return 0


def _profile(suite: str, case: str, way: str) -> tuple[list[KernelCounters], str]:
    """Return the counters of each kernel of one call, and why there are none."""
    command = [sys.executable, "-m", "tools.profile_kernels", f"{suite}[{case}", "--one", way]
    try:
        return collect(command, timeout_s=TIMEOUT_S), ""
    except ProfilingError as error:
        return [], f"{error}"


def text_of(kernels: Sequence[KernelCounters]) -> str:
    """Return how busy the GPU was in each kernel, and what bounds the largest."""
    largest = max(kernels, key=lambda kernel: kernel.us or 0.0)
    bound = bound_of_launch(largest)
    lines = [line.text for line in render_lines([counters_table(kernels)])]
    return "\n".join([*lines, f"{largest.kernel}: bound by {bound.what}. {' '.join(bound.reasons)}"])


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
            raise SystemExit(f"ERROR: {suite}[{case}] has no {way!r}; it has {', '.join(peers)}")
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
