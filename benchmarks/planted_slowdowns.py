"""What the speed gate says of slowdowns that are planted in the code of `kernels/`. Needs a GPU.

    python -m benchmarks.planted_slowdowns [--rows 20] [--steps 1] [--baseline baselines] [-k "not fmha"]

In a clone of HEAD, softmax and rms_norm normalise `--rows` rows of a thousand twice, and matmul takes
`--steps` more steps along k, over padding; results stay right. The gate runs against the stored baselines,
which gives its verdicts, and then beside HEAD, which shows by how much each case is really slower: in
percent, the mean over processes and its standard error. That runs fail is what they are for: exit status 0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent


def edits(rows: int, steps: int) -> dict[str, list[tuple[str, str]]]:
    """Return what is replaced by what, by file."""
    more = f"* {1000 + rows} // 1000"
    return {
        "kernels/matmul.py": [
            ("range(ct.cdiv(A.shape[1], TILE_K))", f"range(ct.cdiv(A.shape[1], TILE_K) + {steps})")
        ],
        "kernels/rms_norm.py": [
            (
                "range(ct.bid(0), ct.cdiv(X.shape[0], TILE_M), ct.num_blocks(0))",
                f"range(ct.bid(0), ct.cdiv(X.shape[0], TILE_M) {more}, ct.num_blocks(0))",
            ),
            ("normalise(X, W, Y, i,", "normalise(X, W, Y, i % ct.cdiv(X.shape[0], TILE_M),"),
        ],
        "kernels/softmax.py": [
            ("X, (ct.bid(0), 0)", "X, (ct.bid(0) % ct.cdiv(X.shape[0], TILE_M), 0)"),
            ("Y, (ct.bid(0), 0)", "Y, (ct.bid(0) % ct.cdiv(X.shape[0], TILE_M), 0)"),
            ("softmax_rows, ct.cdiv(m, tile_m)", f"softmax_rows, ct.cdiv(m, tile_m) {more}"),
        ],
    }


def plant(project: Path, rows: int, steps: int) -> None:
    """Make the kernels of `project` slower."""
    for name, pairs in edits(rows, steps).items():
        file = project / name
        text = file.read_text(encoding="utf-8")
        for old, new in pairs:
            if text.count(old) != 1:
                raise SystemExit(f"{name} has changed: it holds {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")


def run_gate(project: Path, *options: str) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Return what the gate said of each case, and the logarithms of its ratios to another revision."""
    junit, dump = project / "junit.xml", project / "measured.jsonl"
    dump.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--arch", "native", "-p", "benchmarks.dump_measurements"]
    done = subprocess.run(
        [*command, "-m", "cutile_speed", f"--junit-xml={junit}", "kernels", *options],
        cwd=project,
        env=os.environ | {"PYTHONPATH": f"{project}:{ROOT}", "DUMP_MEASUREMENTS": str(dump)},
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    verdicts = {}
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314 (our own file)
        known = {each.get("name"): each.get("value") or "" for each in case.iter("property")}
        if "cutile.speed.verdict" in known:
            verdicts[known["cutile.speed.key"]] = known["cutile.speed.verdict"]
    ratios = defaultdict(list)
    for line in dump.read_text().splitlines() if dump.exists() else []:
        found = json.loads(line)
        if not found["control"]:  # another revision took turns with it
            medians = [[statistics.median(samples) for samples in block] for block in found["blocks"]]
            ratios[found["key"]].append(statistics.median([math.log(own / other) for own, other in medians]))
    return verdicts, ratios


def main() -> None:
    """Plant, run twice, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20, help="thousandths of the rows that are done twice")
    parser.add_argument("--steps", type=int, default=1, help="steps along k that matmul takes for nothing")
    parser.add_argument("--baseline", type=Path, default=ROOT / "baselines")
    parser.add_argument("-k", default="not fmha", dest="which", help="which cases, as pytest's -k")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(project)], check=True)  # noqa: S607
        plant(project, options.rows, options.steps)
        verdicts, _ = run_gate(project, "-k", options.which, f"--perf-baseline={options.baseline.resolve()}")
        _, ratios = run_gate(project, "-k", options.which, "--perf-baseline=git:HEAD")
    print(f"{'case':45s} {'slower by, %':>14s} {'processes':>9s}  verdict")
    for case, found in sorted(ratios.items(), key=lambda pair: statistics.mean(pair[1])):
        error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
        by = f"{100 * math.expm1(statistics.mean(found)):.2f} ({100 * error:.2f})"
        print(f"{case:45s} {by:>14s} {len(found):9d}  {verdicts.get(case, 'not run')}")


if __name__ == "__main__":
    main()
