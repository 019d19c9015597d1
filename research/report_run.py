"""Make a run that has something to show: a slower kernel, a wrong one, sound ones, and a history with a step.

    python -m research.report_run FOLDER [--select EXPRESSION]

In a clone of HEAD, `bmm` gets a narrower tile, and every other tile of `matmul` loses the end of its sum.
FOLDER gets `run.json` (`--kernel-json`), `benchmark.json` (pytest-benchmark), and the speed baselines, which
on a GPU accept the slower `bmm`.
`research.report_pictures` draws them. Without a GPU the kernels are interpreted, and nothing is timed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from research.planted_slowdowns import PLANTS, ROOT, Plant

SLOWER = next(plant for plant in PLANTS if plant.file == "kernels/bmm.py")
_SUM = "load_a, load_b, ct.cdiv(A.shape[1], TILE_K){}, TILE_M"
WRONG = Plant(
    name="every other tile of the result lacks the end of its sum",
    file="kernels/matmul.py",
    edits=((_SUM.format(""), _SUM.format(" - (row + col) % 2")),),
    cases="matmul",
)
SELECTED = "softmax or bmm or matmul and (520x600x63 or 192x320x448 or 511x313x1023 or 600x521x72)"
"""Cases of the run: enough for plots, few that fail."""

SESSIONS = 3
"""Recorded before the slower kernel, and one less after it was accepted."""


def commit(clone: Path, plant: Plant | None = None) -> None:
    """Make the plant, if there is one, and commit it: steps of a history lie between commits."""
    if plant is not None:
        file = clone / plant.file
        file.write_text(plant.changed(file.read_text(encoding="utf-8")), encoding="utf-8")
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    message = "nothing" if plant is None else plant.name
    command = ["git", *who, "commit", "-qa", "--allow-empty", "-m", message]
    subprocess.run(command, cwd=clone, check=True)


def run(clone: Path, *options: str) -> None:
    """Run pytest, whatever it says; print its last lines."""
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--arch",
        "sm_90",
        *options,
        "kernels",
    ]
    done = subprocess.run(command, cwd=clone, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    print(f"$ pytest {' '.join(options)}: status {done.returncode} after {seconds:.0f} s", flush=True)
    print("\n".join(done.stdout.splitlines()[-8:]), done.stderr[-2000:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--select", default=SELECTED, help="cases of the run, as for -k")
    parser.add_argument("--recorded", default="bmm and 2048", help="cases of the history, as for -k")
    parser.add_argument("--workers", default="8", help="as for -n")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        clone = Path(temporary) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)  # noqa: S607
        # In a shallow checkout, refs of this name keep the commits that baselines were recorded from.
        refs = "+refs/anchors/*:refs/anchors/*"
        fetch = ["git", "fetch", "-q", "--update-shallow", "origin", refs]
        subprocess.run(fetch, cwd=clone, check=True)
        record = ("-m", "cutile_speed", "-k", options.recorded, "--update-baselines", "--perf-all")
        for _ in range(SESSIONS):
            commit(clone)
            run(clone, *record)
        commit(clone, SLOWER)
        commit(clone, WRONG)
        run(clone, "-n", options.workers, "-k", options.select, "--kernel-json=run.json")
        benchmark = ["--benchmark-json=benchmark.json"] if find_spec("pytest_benchmark") else []
        run(clone, *record, "--reason", "planted: a tile of half the width", *benchmark)
        for _ in range(SESSIONS - 1):
            commit(clone)
            run(clone, *record)
        stored = (clone / "baselines").glob("sm_90-nvidia-*.json")
        for file in [clone / "run.json", clone / "benchmark.json", *stored]:
            if file.exists():
                text = file.read_text(encoding="utf-8").replace(sys.executable, "python")  # of this machine
                (folder / file.name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
