"""What the plugin costs a project that merely has it installed: CPU time of pytest with and without it.

    python -m research.start_up [--runs N]

Runs pytest on one empty test in processes of its own, alternating with and without the plugin, and
prints the medians and the difference of user and system time. Needs the package installed (its entry point
is what is measured).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="runs of each kind")
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing(): pass\n", encoding="utf-8")
        for _ in range(runs + 1):
            for kind, options in (("without", ["-p", "no:cutile"]), ("with", [])):
                start = _children_s()
                subprocess.run(
                    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
                    cwd=folder,
                    env={**os.environ, "PYTEST_ADDOPTS": ""},
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
                times[kind].append(_children_s() - start)
    medians = {
        kind: statistics.median(values[1:]) * 1000 for kind, values in times.items()
    }  # first: cold files
    differences = [
        (after - before) * 1000 for before, after in zip(times["without"][1:], times["with"][1:], strict=True)
    ]
    low, _, high = statistics.quantiles(differences, n=4)
    print(f"without the plugin {medians['without']:7.1f} ms")
    print(f"with the plugin    {medians['with']:7.1f} ms")
    print(f"difference         {statistics.median(differences):7.1f} ms (quartiles {low:.1f} to {high:.1f})")


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
