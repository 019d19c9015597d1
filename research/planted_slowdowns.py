"""What the speed gate says of slowdowns that are planted in the code of `kernels/`. Needs a GPU.

    python -m research.planted_slowdowns [--rows 20] [--rms-rows 20] [--steps 1] [-k softmax] [--json FILE]
    python -m research.planted_slowdowns --tables

In a clone of HEAD, softmax and rms_norm normalise rows of a thousand twice, and matmul takes `--steps` more
steps along k, over padding; results stay right. The gate runs against the stored baselines, which gives its
verdicts, and then paired with HEAD, which shows by how much a case is really slower: in percent, the mean
over processes and its standard error. `--json` is written after each of the two runs, which take minutes
where much is slower. That runs fail is what they are for: exit status 0. `--tables` needs no GPU: it prints
the tables of research/reports/speed-gate.md from what H200s did (research/data).
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
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from pytest_cutile.speed.decide import paired_log_ratio
from research.speed_rule import wilson

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "research" / "data" / "h200-2026-11-21-planted.json"
OWN_GPU = DATA.with_name("h200-2026-11-22-planted.json")
UNCHANGED = "softmax[bf16-2048x32768]"
"""A case that ran another kernel than the one that is made slower, when `DATA` was measured."""
PLANTED = "softmax or rms_norm or matmul"
"""The kernels that are made slower."""
BINS = (0.0, 1.25, 1.75, 2.25, 3.0, 4.0, 6.0, 8.0, 16.0)
"""Percent."""


def edits(rows: int, rms_rows: int, steps: int) -> dict[str, list[tuple[str, str]]]:
    """Return what is replaced by what, by file."""
    more, rms_more = (f"* {1000 + count} // 1000" for count in (rows, rms_rows))
    return {
        "kernels/matmul.py": [
            ("ct.cdiv(A.shape[1], TILE_K), TILE_M", f"ct.cdiv(A.shape[1], TILE_K) + {steps}, TILE_M")
        ],
        "kernels/rms_norm.py": [
            ("i = ct.bid(0)", "i = ct.bid(0) % ct.cdiv(X.shape[0], TILE_M)"),
            ("(ct.cdiv(m, tile_m),)", f"(ct.cdiv(m, tile_m) {rms_more},)"),
        ],
        "kernels/softmax.py": [
            ("i = ct.bid(0)", "i = ct.bid(0) % ct.cdiv(X.shape[0], TILE_M)"),
            ("softmax_rows, ct.cdiv(m, tile_m)", f"softmax_rows, ct.cdiv(m, tile_m) {more}"),
        ],
    }


def plant(project: Path, rows: int, rms_rows: int, steps: int) -> None:
    """Make the kernels of `project` slower."""
    for name, pairs in edits(rows, rms_rows, steps).items():
        file = project / name
        text = file.read_text(encoding="utf-8")
        for old, new in pairs:
            if text.count(old) != 1:
                raise SystemExit(f"{name} has changed: it holds {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")


def run_gate(project: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Return what the gate said of each case.

    "verdict"; "change_pct", by how much it saw it slower; and where another revision was interleaved with it,
    "log_ratios", one for each process, as the gate takes them.
    """
    junit, dump = project / "junit.xml", project / "measured.jsonl"
    dump.unlink(missing_ok=True)
    path = os.pathsep.join([f"{project}", f"{ROOT}", os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "--arch", "native", "-p", "research.dump_measurements"]
    done = subprocess.run(
        [*command, "-m", "cutile_speed", f"--junit-xml={junit}", "kernels", *options],
        cwd=project,
        env=os.environ | {"PYTHONPATH": path.rstrip(os.pathsep), "DUMP_MEASUREMENTS": str(dump)},
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    by_key: dict[str, dict[str, Any]] = defaultdict(dict)
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314 (our own file)
        known = {each.get("name"): each.get("value") or "" for each in case.iter("property")}
        if "cutile.speed.verdict" in known:
            by_key[known["cutile.speed.key"]] |= {
                "verdict": known["cutile.speed.verdict"],
                "change_pct": 100 * float(known.get("cutile.speed.change", "nan")),
            }
    for line in dump.read_text().splitlines() if dump.exists() else []:
        measured = json.loads(line)
        if not measured["reference_workload"]:  # another revision was interleaved with it
            medians = [[statistics.median(samples) for samples in block] for block in measured["blocks"]]
            log_time = paired_log_ratio([math.log(own / other) for own, other in medians])
            by_key[measured["key"]].setdefault("log_ratios", []).append(log_time)
    return dict(by_key)


def show_planted(data: dict[str, Any]) -> None:
    """Print how many planted slowdowns were caught, by how large they are, with 95 % intervals."""
    rows = [
        (
            100 * math.expm1(statistics.mean(paired_log_ratio(each) for each in row["log_ratios_pct"]) / 100),
            row,
        )
        for row in data["planted"]
        if row["case"] != UNCHANGED
    ]
    print(f"{'really slower by':>16} {'cases x GPUs':>14} {'regression':>10} {'%':>20}   paired, HEAD")
    for low, high in pairwise(BINS):
        here = [(by, row) for by, row in rows if low <= by < high]
        if not here:
            continue
        hits = sum(row["verdict"] == "regression" for _, row in here)
        paired = [row["paired_verdict"] == "regression" for _, row in here if "paired_verdict" in row]
        of = f"{sum(paired)} of {len(paired)}" if paired else "not run"
        span = f"{low:g} to {high:g} %"
        print(f"{span:>16} {len(here):14d} {hits:10d} {wilson(hits, len(here)):>20}   {of}")
    for by, row in sorted(rows, key=lambda pair: pair[0]):
        if by >= BINS[2] and row["verdict"] != "regression":
            said = f"{row['verdict']}, paired with HEAD: {row.get('paired_verdict', 'not run')}"
            print(f"missed: {row['case']} on {row['gpu']}, {by:.1f} % slower: {said}")


def show_own_gpu(data: dict[str, Any]) -> None:
    """Print how many were caught against baselines of the same GPU."""
    print(f"\n{'slower by, own GPU':>20} {'cases':>6} {'regression':>10} {'%':>20}")
    for low, high in pairwise(BINS):
        here = [row["verdict"] == "regression" for row in data["planted"] if low <= row["change_pct"] < high]
        if here:
            span = f"{low:g} to {high:g} %"
            print(f"{span:>20} {len(here):6d} {sum(here):10d} {wilson(sum(here), len(here)):>20}")


def show_paired(data: dict[str, Any]) -> None:
    """Print how far ratios of two kernels scatter: from process to process, and from place to place."""
    by_case: dict[tuple[str, str], list[list[list[float]]]] = defaultdict(list)
    for part in (data["clean_paired"], data["planted"]):
        by_gpu: dict[tuple[str, str, str], list[list[float]]] = defaultdict(list)
        for row in part:
            by_gpu[row.get("plant", "unchanged"), row["case"], row["gpu"]] += row["log_ratios_pct"]
        for (plant_, case, _), processes in by_gpu.items():
            by_case[plant_, case].append(processes)
    print(f"\n{'kernels':44} {'case':42} {'mean':>6} {'processes':>9} {'places':>6} {'ratio':>5} {'n':>3}")
    for (name, case), gpus in sorted(by_case.items()):
        log_times = [[paired_log_ratio(each) for each in processes] for processes in gpus]
        n = sum(map(len, log_times))
        mean = statistics.mean(log_time for each in log_times for log_time in each)
        places = math.sqrt(statistics.mean(statistics.variance(each) for gpu in gpus for each in gpu))
        squares = sum(statistics.variance(each) * (len(each) - 1) for each in log_times if len(each) > 1)
        text = f"{name:44} {case:42} {mean:6.2f}"
        if n > len(log_times):
            scatter = math.sqrt(squares / (n - len(log_times)))
            text += f" {scatter:9.2f} {places:6.2f} {scatter / places * math.sqrt(8):5.1f} {n:3d}"
        print(text)


def show_workers(data: dict[str, Any]) -> None:
    """Print times under `pytest -n 4` over those of a serial run on the same GPU."""
    times: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in data["serial_and_n4"]:
        times[row["case"], row["gpu"]][row["how"]].append(row["us"])
    gpus = sorted({gpu for _, gpu in times})
    print(f"\n{'case':42} " + " ".join(f"{gpu:>8}" for gpu in gpus))
    for case in sorted({case for case, _ in times}):
        cells = []
        for gpu in gpus:
            here = times[case, gpu]
            both = here["n4"] and here["serial"]
            ratio = statistics.median(here["n4"]) / statistics.median(here["serial"]) if both else None
            cells.append("" if ratio is None else f"{ratio:.3f}")
        print((f"{case:42} " + " ".join(f"{cell:>8}" for cell in cells)).rstrip())


def main() -> None:
    """Plant, run twice, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20, help="thousandths of softmax's rows done twice")
    parser.add_argument("--rms-rows", type=int, help="likewise of rms_norm's rows; as many if not given")
    parser.add_argument("--steps", type=int, default=1, help="steps along k that matmul takes for nothing")
    parser.add_argument("--baseline", type=Path, default=ROOT / "baselines")
    parser.add_argument("-k", default=PLANTED, dest="which", help="which cases, as pytest's -k")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what the gate said and saw")
    parser.add_argument("--tables", action="store_true", help="print what was measured on H200s, and no more")
    options = parser.parse_args()
    if options.tables:
        data = json.loads(DATA.read_text(encoding="utf-8"))
        show_planted(data)
        show_own_gpu(json.loads(OWN_GPU.read_text(encoding="utf-8")))
        show_paired(data)
        show_workers(data)
        return
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(project)], check=True)  # noqa: S607
        rms_rows = options.rows if options.rms_rows is None else options.rms_rows
        plant(project, options.rows, rms_rows, options.steps)
        said = {"plant": f"--rows {options.rows} --rms-rows {rms_rows} --steps {options.steps}"}
        paired: dict[str, Any] = {}
        for name, baseline in (("stored", options.baseline.resolve()), ("git:HEAD", "git:HEAD")):
            paired[name] = run_gate(project, "-k", options.which, f"--perf-baseline={baseline}")
            if options.json:
                options.json.write_text(json.dumps(said | paired, indent=1) + "\n", encoding="utf-8")
    print(f"{'case':45s} {'slower by, %':>14s} {'processes':>9s}  {'git:HEAD':12s} stored")
    ratios = {case: each["log_ratios"] for case, each in paired["git:HEAD"].items() if "log_ratios" in each}
    for case, ratios_of_case in sorted(ratios.items(), key=lambda pair: statistics.mean(pair[1])):
        error = (
            statistics.stdev(ratios_of_case) / math.sqrt(len(ratios_of_case))
            if len(ratios_of_case) > 1
            else math.nan
        )
        by = f"{100 * math.expm1(statistics.mean(ratios_of_case)):.2f} ({100 * error:.2f})"
        verdicts = [paired[name].get(case, {}).get("verdict", "not run") for name in ("git:HEAD", "stored")]
        print(f"{case:45s} {by:>14s} {len(ratios_of_case):9d}  {verdicts[0]:12s} {verdicts[1]}")


if __name__ == "__main__":
    main()
