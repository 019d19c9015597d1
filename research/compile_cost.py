"""What the gates without a GPU cost: all cases and architectures, cold and warm, on one core and on all.

    python -m research.compile_cost [--gates compile,static] [--arch all] [--jobs 1,2] [--kernels kernels]

Each line is one pytest run of a gate in a process of its own; "cold" starts with an empty cache. The gate
`static` compiles, too: its first line contains what `compile` costs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time


def run(gate: str, arch: str, jobs: int, cache: str, kernels: str) -> tuple[float, int]:
    """Run the gate with `jobs` compilations at a time; return seconds and the number of tests."""
    cores = sorted(os.sched_getaffinity(0))[:jobs]
    start = time.perf_counter()
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", kernels, "--arch", arch, "-m", f"cutile_{gate}", "-q"),
            *("-o", f"cache_dir={cache}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    seconds = time.perf_counter() - start
    passed = re.search(r"(\d+) passed", answer.stdout)
    if answer.returncode or passed is None:
        sys.exit(answer.stdout)
    return seconds, int(passed[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", default="compile,static", help="which gates")
    parser.add_argument("--arch", default="all", help="architectures, as for pytest")
    parser.add_argument("--jobs", default=f"1,{len(os.sched_getaffinity(0))}", help="numbers of cores")
    parser.add_argument("--kernels", default="kernels", help="path to collect")
    options = parser.parse_args()
    print("gate     cores  cache  tests  seconds  per test")
    for gate in options.gates.split(","):
        for jobs in map(int, options.jobs.split(",")):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    seconds, tests = run(gate, options.arch, jobs, cache, options.kernels)
                    per_test = f"{seconds / tests * 1000:5.0f} ms"
                    print(f"{gate:7}  {jobs:5}  {state:5}  {tests:5}  {seconds:7.1f}  {per_test}", flush=True)


if __name__ == "__main__":
    main()
