"""Find the fastest configurations of the kernels in `kernels/` on the GPUs at hand.

    python -m benchmarks.tune_kernels matmul fmha [--case fp16] [--device 0,1] [--json tuned.json] [--write]

For each case of `benchmarks/suite/NAME.py`:

1. The committed configuration is checked against the float64 reference, with the gate's own bounds.
2. All others are compiled, launched and coarsely compared with it, in as many processes as there are cores.
   What fails, raises, hangs or kills its process is reported, and left out.
3. All that are left are timed once, interleaved, by the speed gate's timer (cold L2, CUDA graph); then the
   best six again beside the committed one, on buffers at several places. The best has to pass step 1.

At the end, for each entry of a table of configurations, the one that is best over all cases that use it:
printed to be pasted, or with --write put into the kernel's file, if its table has an entry of its own for
this GPU and the gain is more than what processes differ by.

Why not `cuda.tile.tune.exhaustive_search`: it compiles one configuration after the other, times one launch of
one kernel without the launcher around it (split-kv attention launches two), one candidate after the other,
each at the clock of its moment, and does not look at results. It is the right tool inside an application;
here figures have to be those that the speed gate will see, and a candidate that is fast because it is wrong
must not win.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_runs.measure import MakeTimer, geometric_mean, gpu_timer
from benchmarks.gpu_runs.runs import Job, add_options, positive, require_gpus, run_jobs
from benchmarks.gpu_runs.suites import difference, load_suite
from benchmarks.gpu_runs.tables import aligned
from benchmarks.tuner.case import start_tuning
from benchmarks.tuner.config_tables import entry_lines, find_entry, replace_entry

CASE_SECONDS = 600.0
"""After so long a case is given up."""
SHOWN = 5
"""Configurations shown of each case."""
WORTH_WRITING = 1.01
"""Gain of an entry over its cases from which it is written: less is within what processes differ by."""


def main(argv: Sequence[str] | None = None, *, make_timer: MakeTimer = gpu_timer) -> int:
    """Tune what the command line names; return 1 if a case could not be tuned."""
    options = _parse(argv)
    if make_timer is gpu_timer:
        require_gpus(options.device)
    processes = max(1, (options.processes or len(os.sched_getaffinity(0))) // len(options.device))
    start = partial(start_tuning, devices=options.device, make_timer=make_timer, processes=processes)
    document, complete = run_jobs(options, start, _show_case, case_seconds=CASE_SECONDS)
    _show_summary(document["cases"])
    _show_entries(document, write=options.write)
    return 0 if complete else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tune_kernels", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="file of benchmarks/suite: matmul, or matmul[fp16-1 for some"
    )
    add_options(parser)
    parser.add_argument(
        "--processes", type=positive, metavar="N", help="that compile; default: as many as cores"
    )
    parser.add_argument("--write", action="store_true", help="put better configurations into kernels/")
    return parser.parse_args(argv)


# -- what is printed --------------------------------------------------------------------------------


def _show_case(job: Job, found: Mapping[str, Any]) -> None:
    """Print the best configurations of a case."""
    rows, failures = found["rows"], found["failures"]
    seconds = found["seconds"]
    print(
        f"\n{job}   {len(rows)} timed, {len(failures)} failed; "
        f"checked in {seconds['checking']:.0f} s, timed in {seconds['timing']:.0f} s"
    )
    shown = [row for row in rows[:SHOWN] if not row["committed"]]
    shown += [row for row in rows if row["committed"]]
    if shown:
        print(aligned(("us", "rate", "faster by", "configuration"), [_cells(row, found) for row in shown]))
    for row in rows:
        if row["exceeded"]:
            print(f"  IMPOSSIBLE: {row['exceeded']} ({row['source']}): the work count or the timing is wrong")
    for failure in failures:
        what = difference(failure["config"], found["committed"])
        print(f"  {failure['stage']} failed, {what}: {failure['why']}")
    for problem in found["problems"]:
        print(f"  DOUBTFUL: {problem}")


def _cells(row: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, ...]:
    ratio = row.get("ratio")
    return (
        f"{row['us_per_launch']:.2f}",
        f"{row['rate']:.1f} {row['bound']}" if row["rate"] else "",
        f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else "",
        "as committed" if row["committed"] else difference(row["config"], found["committed"]),
    )


def _show_summary(cases: Sequence[Mapping[str, Any]]) -> None:
    """Print a line per case: the committed configuration and the best."""
    lines = []
    for found in cases:
        rows = found["rows"]
        committed = next((row for row in rows if row["committed"]), None)
        if not rows:
            continue
        lines.append(
            (
                f"{found['kernel']}[{found['case']}]",
                f"{committed['us_per_launch']:.2f}" if committed else "",
                *_cells(rows[0], found),
            )
        )
    if lines:
        print(
            "\n" + aligned(("case", "committed us", "best us", "rate", "faster by", "configuration"), lines)
        )


# -- what goes into the tables ----------------------------------------------------------------------


def _show_entries(document: Mapping[str, Any], *, write: bool) -> None:
    """Print, or write, the best configuration of each entry that the cases share."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for found in document["cases"]:
        if found["rows"]:
            key = json.dumps(found["committed"], sort_keys=True, default=str)
            groups[found["suite"], key].append(found)
    arch = document["environment"].get("arch", "sm_90")
    for (suite, _), cases in groups.items():
        best, gain = best_for_all(cases)
        print(f"\n{suite}: the configuration of {len(cases)} cases")
        for found in cases:
            gains = _gains(found)
            own = max(gains, key=lambda source: gains[source])
            facets = ", ".join(f"{key}={value}" for key, value in (found["facets"] or {}).items())
            print(
                f"  {found['case']} ({facets}): {gains.get(best, 0):.3f}x; at best {gains[own]:.3f}x, {own}"
            )
        comment = _comment(document, cases, best)
        module = load_suite(suite).module
        committed = cases[0]["committed"]
        entry = find_entry(module, arch, committed) if committed is not None else "the launcher did not say"
        lines = entry_lines(f'"{arch}"', best, comment)
        if gain < WORTH_WRITING:
            print(f"  no entry is better over all of them ({gain:.3f}x): keep the committed one")
        elif write and not isinstance(entry, str):
            replace_entry(module, entry, best, comment)
            print(f"  written to {entry.table}{list(entry.path)}, {gain:.3f}x:", *lines, sep="\n")
            print(
                f"  Its results were compared coarsely: pytest {Path(module.__file__).name} -m cutile_correct"
            )
        else:
            why = f" (not written: {entry})" if write else ""
            print(f"  {gain:.3f}x over all of them{why}:", *lines, sep="\n")


def best_for_all(cases: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """Return the configuration, as source, with the largest geometric mean of gains over `cases`, and that.

    Only what is right and was timed in every case counts.
    """
    gains = [_gains(found) for found in cases]
    common = set.intersection(*(set(each) for each in gains))
    if not common:
        return "", 0.0
    means = {source: geometric_mean([each[source] for each in gains]) for source in sorted(common)}
    best = max(means, key=lambda source: means[source])
    return best, means[best]


def _gains(found: Mapping[str, Any]) -> dict[str, float]:
    """Return how many times as fast as the committed one each configuration is, by its source."""
    wrong = {json.dumps(failure["config"], sort_keys=True, default=str) for failure in found["failures"]}
    return {
        row["source"] or "": row["ratio"]["value"] if "ratio" in row else row["quick_ratio"]
        for row in found["rows"]
        if json.dumps(row["config"], sort_keys=True, default=str) not in wrong
    }


def _comment(document: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], best: str) -> str:
    """Return what was measured, for the comment above an entry: time with it, and before."""
    gpu = document["environment"].get("gpu", "").removeprefix("NVIDIA ")
    parts = []
    for found in cases[:SHOWN]:
        mine = next((row for row in found["rows"] if row["source"] == best), None)
        before = next((row for row in found["rows"] if row["committed"]), None)
        if mine is not None:
            was = f" ({before['us_per_launch']:.4g})" if before is not None and before is not mine else ""
            parts.append(f"{found['case']} {mine['us_per_launch']:.4g} us{was}")
    if len(cases) > SHOWN:
        parts.append(f"and {len(cases) - SHOWN} more")
    figures = ", ".join(parts)
    return f"{gpu}, {document['date']}, cold L2, interleaved, against the entry before: {figures}."


if __name__ == "__main__":
    sys.exit(main())
