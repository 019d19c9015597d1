"""The speed gate on a real GPU: record baselines, run unchanged kernels again and again, then slowed ones.

    python -m research.speed_gate [--record 4] [--unchanged 20] [--slowed 10] [--out DIR]

Works on a copy of the repository. Every pytest run is a process of its own. An unchanged run must not fail;
a run with a slowed kernel must fail in exactly the slowed cases. Prints a line per case with the range of the
change against the baseline, and one failure message as it is shown; exits with 1 if the gate was wrong once.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLOWED = re.compile(r"rms_norm|softmax\[fp32-4096x8192\]|matmul\[(fp16|bf16)")


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A slowdown of one case."""

    file: str
    """Module it is planted in."""
    what: str
    """What it is, for people."""
    edits: tuple[tuple[str, str], ...]
    """Texts of the module and what takes their place."""


PLANTS = (
    Plant(
        file="kernels/softmax.py",
        what="softmax, fp32: 5 % of the rows twice",
        edits=(
            (
                "    i = ct.bid(0)\n",
                "    i = ct.bid(0)\n    if X.dtype == ct.float32:\n"
                "        i = i % ct.cdiv(X.shape[0], TILE_M)\n",
            ),
            (
                "kernel, blocks = softmax_rows, ct.cdiv(m, tile_m)",
                "twentieths = 21 if x.element_size() == 4 else 20\n"
                "        kernel, blocks = softmax_rows, ct.cdiv(m, tile_m) * twentieths // 20",
            ),
        ),
    ),
    Plant(
        file="kernels/rms_norm.py",
        what="rms_norm: 5 % of the rows twice",
        edits=(
            ("i = ct.bid(0)", "i = ct.bid(0) % ct.cdiv(X.shape[0], TILE_M)"),
            ("(ct.cdiv(m, tile_m),)", "(ct.cdiv(m, tile_m) * 21 // 20,)"),
        ),
    ),
    Plant(
        file="kernels/matmul.py",
        what="matmul, fp16 and bf16: eight worker warps, a worse hint",
        edits=(
            (
                "tile_m=128, tile_n=128, tile_k=64, latency=4, occupancy=2, group_m=16",
                "tile_m=128, tile_n=128, tile_k=64, latency=4, occupancy=2, group_m=16, num_worker_warps=8",
            ),
        ),
    ),
)


def copy_repository(folder: Path, baselines: Path | None) -> Path:
    """Copy what a run needs into `folder`."""
    target = folder / "copy"
    for name in ("pytest_cutile", "kernels"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    if baselines is not None:
        shutil.copytree(baselines, target / "baselines")
    return target


def run(folder: Path, *options: str) -> tuple[str, int]:
    """Run the speed gate in `folder`."""
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "kernels", "-p", "pytest_cutile.plugin"),
            *("-m", "cutile_speed", "--arch", "native", "-v", *options),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return answer.stdout, answer.returncode


def rows(report: Path) -> dict[str, tuple[float, str]]:
    """Return change in percent and verdict by case, from the gate results in a JUnit report."""
    found = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own run
        values = {each.get("name"): each.get("value", "") for each in case.iter("property")}
        if "cutile.speed.change" in values:
            change, verdict = float(values["cutile.speed.change"]), values["cutile.speed.verdict"]
            found[values["cutile.speed.key"]] = (change * 100, verdict)
    return found


def repeat(folder: Path, times: int) -> tuple[dict[str, list[tuple[float, str]]], list[int], str]:
    """Run `times` times; return changes and verdicts by case, exit codes, and the last output."""
    seen: dict[str, list[tuple[float, str]]] = defaultdict(list)
    codes = []
    output = ""
    for _ in range(times):
        report = folder / "report.xml"
        output, code = run(folder, f"--junitxml={report}")
        codes.append(code)
        for case, row in rows(report).items():
            seen[case].append(row)
    return seen, codes, output


def show(title: str, seen: dict[str, list[tuple[float, str]]]) -> None:
    """Print a line per case."""
    print(f"\n{title}")
    print(f"{'case':44} {'runs':>4} {'lowest':>7} {'median':>7} {'highest':>7}  verdicts")
    for case, values in sorted(seen.items()):
        changes = [change for change, _ in values]
        verdicts = sorted({verdict for _, verdict in values})
        counts = ", ".join(f"{sum(v == verdict for _, v in values)} {verdict}" for verdict in verdicts)
        middle = statistics.median(changes)
        print(
            f"{case:44} {len(values):4} {min(changes):+6.1f}% {middle:+6.1f}% {max(changes):+6.1f}%  {counts}"
        )


def main() -> None:
    """Record, repeat, plant, repeat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--record", type=int, default=4, help="runs that record; 0 uses the repository's baselines"
    )
    parser.add_argument("--unchanged", type=int, default=20)
    parser.add_argument("--slowed", type=int, default=10)
    parser.add_argument("--out", type=Path, help="folder for the baseline file and the last outputs")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        clean = copy_repository(Path(name, "clean"), None if options.record else ROOT / "baselines")
        for _ in range(options.record):
            output, code = run(clean, "--update-baselines")
            if code:
                sys.exit(output)
        print(f"recorded {options.record} runs in {time.perf_counter() - start:.0f} s")
        seen, codes, output = repeat(clean, options.unchanged)
        wrong += sum(map(bool, codes))
        show(f"unchanged: {len(codes)} runs in a row, {sum(map(bool, codes))} failed", seen)
        slow = copy_repository(Path(name, "slow"), clean / "baselines")
        for plant in PLANTS:
            path = slow / plant.file
            text = path.read_text(encoding="utf-8")
            for old, new in plant.edits:
                if old not in text:
                    sys.exit(f"{plant.file} no longer holds {old!r}: renew this script")
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        seen, codes, failed = repeat(slow, options.slowed)
        missed = sum(
            (verdict != "regression") == bool(SLOWED.match(case))
            for case, values in seen.items()
            for _, verdict in values
        )
        wrong += missed
        show(f"slowed: {len(codes)} runs, {missed} wrong verdicts", seen)
        for plant in PLANTS:
            print(f"  planted: {plant.what}")
        if options.out is not None:
            shutil.copytree(clean / "baselines", options.out, dirs_exist_ok=True)
            (options.out / "unchanged.txt").write_text(output, encoding="utf-8")
            (options.out / "slowed.txt").write_text(failed, encoding="utf-8")
        match = re.search(r"^_+ speed\[.*?(?=^_+ speed\[|^=+)", failed, re.MULTILINE | re.DOTALL)
        print(f"\n{match[0].rstrip() if match else 'no failure message'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
