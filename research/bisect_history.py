"""Bisect a history of 64 commits in which one makes a kernel worse, and time that.

    python -m research.bisect_history [--gate static|speed] [--arch sm_90]

Commit 41 of a product of matrices takes tiles that spill. The gate `static` needs no GPU.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).parent / "screens" / "project"
COMMITS, WORSE = 64, 41
TILES = ("64, 64, 32", "256, 256, 64")


def make_history(folder: Path) -> list[str]:
    """Make the repository; return its commits."""
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    file = folder / "matmul.py"
    text = file.read_text()
    if text.count(TILES[0]) != 1:
        raise SystemExit(f"{file} has changed: it holds {TILES[0]!r} {text.count(TILES[0])} times")

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    commits = []
    for number in range(1, COMMITS + 1):
        now = text if number < WORSE else text.replace(*TILES)
        file.write_text(f"{now}\n# change {number}\n")
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
        commits.append(git("rev-parse", "HEAD"))
    return commits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gate", choices=("speed", "static"), default="static")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--case", default="matmul[fp16-4096]", help="of the gate")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "history"
        commits = make_history(folder)
        command = [sys.executable, "-P", "-m", "pytest_cutile.cli", "bisect", options.case]
        command += ["--good", commits[0], "--gate", options.gate, "--arch", options.arch]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, check=False, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - began
    print(done.stdout)
    is_found = f"first bad commit: {commits[WORSE - 1][:7]}" in done.stdout
    print(f"{'found' if is_found else 'MISSED'}: commit {WORSE} of {COMMITS}, in {seconds:.0f} s")
    return 0 if is_found else 1


if __name__ == "__main__":
    sys.exit(main())
