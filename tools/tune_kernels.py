"""Find the fastest configurations of the kernels in `kernels/` on the GPUs at hand.

    python -m tools.tune_kernels matmul fmha [--case fp16] [--device 0,1] [--json tuned.json] [--write]

For each case of `tools/suite/NAME.py`:

1. The committed configuration is checked against the float64 reference, with the gate's own bounds.
2. All others are compiled, launched and coarsely compared with it, in as many processes as there are cores.
   What fails, raises, hangs or kills its process is reported, and left out.
3. All that are left are timed once, interleaved, by the speed gate's timer (cold L2, CUDA graph); then the
   best six again beside the committed one, on buffers at several places. The best has to pass step 1.

At the end, for each entry of a table of configurations, the one that is best over all cases that use it, if
the gain is more than what processes differ by: shown as a change of the kernel's file, or with --write put
there. Where architectures share an entry, this one gets its own. Nothing is written with which launchers
would not choose it for the cases tuned, or would choose something else for any other.

Why not `cuda.tile.tune.exhaustive_search`: it compiles one configuration after the other, times one launch of
one kernel without the launcher around it (split-kv attention launches two), one candidate after the other,
each at the clock of its moment, and does not look at results. It is the right tool inside an application;
here figures have to be those that the speed gate will see, and a candidate that is fast because it is wrong
must not win.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tools.gpu_runs.measure import MakeTimer, geometric_mean, gpu_timer
from tools.gpu_runs.runs import Job, add_options, positive, require_gpus, run_jobs, select_jobs
from tools.gpu_runs.suites import Suite, difference, load_suite, plain_config
from tools.gpu_runs.tables import aligned
from tools.tuner.case import start_tuning
from tools.tuner.config_source import config_source, entry_lines
from tools.tuner.config_tables import (
    Place,
    Question,
    Rewriting,
    Tables,
    find_place,
    make_entry,
    replace_entry,
)
from tools.tuner.questions import declared_questions

CASE_SECONDS = 600.0
"""After so long a case is given up."""
SHOWN = 5
"""Configurations shown of each case."""
WORTH_WRITING = 1.01
"""Gain of an entry over its cases from which it is written: less is within what processes differ by."""


def main(argv: Sequence[str] | None = None, *, make_timer: MakeTimer = gpu_timer) -> int:
    """Tune what the command line names; return 1 if a case could not be tuned."""
    options = _parse(argv)
    jobs = select_jobs(options)  # a name that is none is said first
    if make_timer is gpu_timer:
        require_gpus(options.device)
    processes = max(1, (options.processes or len(os.sched_getaffinity(0))) // len(options.device))
    start = partial(start_tuning, devices=options.device, make_timer=make_timer, processes=processes)
    document, complete = run_jobs(jobs, options, start, _show_case, case_seconds=CASE_SECONDS)
    _show_summary(document["cases"])
    _show_entries(document, write=options.write)
    return 0 if complete else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.tune_kernels", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="file of tools/suite: matmul, or matmul[fp16-1 for some"
    )
    add_options(parser)
    parser.add_argument(
        "--processes", type=positive, metavar="N", help="that compile; default: as many as cores"
    )
    parser.add_argument("--write", action="store_true", help="put better configurations into kernels/")
    return parser.parse_args(argv)


# -- what is printed --------------------------------------------------------------------------------


def _show_case(job: Job, result: Mapping[str, Any]) -> None:
    """Print the best configurations of a case."""
    rows, failures = result["rows"], result["failures"]
    seconds = result["seconds"]
    print(
        f"\n{job}   {len(rows)} timed, {len(failures)} failed; "
        f"checked in {seconds['checking']:.0f} s, timed in {seconds['timing']:.0f} s"
    )
    shown = [row for row in rows[:SHOWN] if not row["committed"]]
    shown += [row for row in rows if row["committed"]]
    if shown:
        print(aligned(("us", "rate", "faster by", "configuration"), [_cells(row, result) for row in shown]))
    for row in rows:
        if row["exceeded"]:
            print(f"  IMPOSSIBLE: {row['exceeded']} ({row['source']}): the work count or the timing is wrong")
    for failure in failures:
        what = difference(failure["config"], result["committed"])
        print(f"  {failure['stage']} failed, {what}: {failure['why']}")
    for problem in result["problems"]:
        print(f"  DOUBTFUL: {problem}")


def _cells(row: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, ...]:
    ratio = row.get("ratio")
    return (
        f"{row['us_per_launch']:.2f}",
        f"{row['rate']:.1f} {row['bound']}" if row["rate"] else "",
        f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else "",
        "as committed" if row["committed"] else difference(row["config"], result["committed"]),
    )


def _show_summary(cases: Sequence[Mapping[str, Any]]) -> None:
    """Print a line per case: the committed configuration and the best."""
    lines = []
    for result in cases:
        rows = result["rows"]
        committed = next((row for row in rows if row["committed"]), None)
        if not rows:
            continue
        lines.append(
            (
                f"{result['kernel']}[{result['case']}]",
                f"{committed['us_per_launch']:.2f}" if committed else "",
                *_cells(rows[0], result),
            )
        )
    if lines:
        print(
            "\n" + aligned(("case", "committed us", "best us", "rate", "faster by", "configuration"), lines)
        )


# -- what goes into the tables ----------------------------------------------------------------------


@dataclass(kw_only=True)
class Tuned:
    """A case that was tuned, and what of it an entry of a table can hold."""

    result: Mapping[str, Any]
    """Its rows, failures and committed configuration."""
    question: Question
    """What its launcher asks."""
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By source of an entry, the figures of the configuration that the launcher chooses with it."""
    beyond: tuple[str, float] | None = None
    """The best configuration that no entry in this place yields, and its gain, if that is the best of all."""

    @property
    def gains(self) -> dict[str, float]:
        """How many times as fast as the committed one each entry is."""
        return {source: _gain(row) for source, row in self.rows.items()}


def _show_entries(document: Mapping[str, Any], *, write: bool) -> None:
    """Print, and write, the best configuration of each entry that the cases share."""
    arch = document["environment"].get("arch", "sm_90")
    by_suite: dict[str, list[Tuned]] = defaultdict(list)
    for result in document["cases"]:
        if result["rows"]:
            question = Question(
                case=result["case"],
                arch=arch,
                facets=result["facets"] or {},
                chooser=result.get("chooser") or "choose_config",
            )
            by_suite[result["suite"]].append(Tuned(result=result, question=question))
    for name, cases in by_suite.items():
        suite = load_suite(name)
        file = Path(inspect.getsourcefile(suite.module) or "")
        tables = Tables(file)
        groups: dict[Place | str, list[Tuned]] = defaultdict(list)
        for case in cases:
            groups[_place_of(tables, case)].append(case)
        others: list[Question] = []
        for place, group in groups.items():
            tables = Tables(file)  # as it is after the entries before
            _keep_entries(tables, place, group)
            best, gain = best_for_all([case.gains for case in group])
            _show_group(name, place, group, best)
            if gain < WORTH_WRITING:
                print(f"  no entry is better over all of them ({gain:.3f}x): keep the committed one")
                continue
            comment = _comment(document, group, best)
            if isinstance(place, str):
                print(f"  {gain:.3f}x over all of them (no entry to write: {place}):")
                print(*entry_lines(f'"{arch}"', best, comment), sep="\n")
                continue
            others = others or _others(suite, arch, cases)
            ours = {case.question.case for case in group}
            rewriting = replace_entry(
                tables,
                place,
                tables.evaluate(best),
                comment,
                tuned=[(case.question, tables.evaluate(case.rows[best]["source"])) for case in group],
                others=[question for question in others if question.case not in ours],
            )
            _finish(rewriting, place, f"{gain:.3f}x over all of them", write=write)


def _place_of(tables: Tables, case: Tuned) -> Place | str:
    """Return the entry that a case uses, or why it has none."""
    if case.result["committed"] is None:
        return "the launcher did not say what it chose"
    if case.result.get("chosen", 1) > 1:
        return f"the launcher chose {case.result['chosen']} configurations for {case.result['case']}"
    place = find_place(tables, case.question)
    if isinstance(place, Place):
        chosen = plain_config(tables.ask(case.question).config)
        if chosen != case.result["committed"]:
            return f"{tables.file} has changed since {case.result['case']} was tuned"
    return place


def _keep_entries(tables: Tables, place: Place | str, group: Sequence[Tuned]) -> None:
    """Find out what of each case an entry can hold: what is right, and what the launcher chooses with it."""
    for case in group:
        rows = [row for row in right_rows(case.result) if row["source"]]
        if isinstance(place, str):
            case.rows = {row["source"]: row for row in rows}
            continue
        for row in rows:
            entry = make_entry(tables, place, case.question, tables.evaluate(row["source"]))
            if entry is not None:
                case.rows.setdefault(config_source(entry), row)
        best = max(rows, key=_gain, default=None)
        if best is not None and _gain(best) > max(case.gains.values(), default=0.0):
            case.beyond = best["source"], _gain(best)


def _others(suite: Suite, arch: str, tuned: Sequence[Tuned]) -> list[Question]:
    """Return what the launcher asks for all cases: for the tuned ones what it asked, for others as traced."""
    asked = {case.question.case: case.question for case in tuned}
    declared, silent = declared_questions(suite, arch)
    if silent:
        print(f"  not compared, because the launcher could not be asked: {', '.join(silent)}")
    return [*asked.values(), *(question for question in declared if question.case not in asked)]


def _show_group(name: str, place: Place | str, group: Sequence[Tuned], best: str) -> None:
    """Print what an entry is worth for each of its cases."""
    which = f"{place}, " if isinstance(place, Place) else ""
    print(f"\n{name}: {which}the configuration of {len(group)} cases")
    for case in group:
        gains = case.gains
        facets = ", ".join(f"{key}={value}" for key, value in case.question.facets.items())
        line = f"  {case.result['case']} ({facets}): {gains.get(best, 0):.3f}x"
        if gains:
            own = max(gains, key=lambda source: gains[source])
            line += f"; at best {gains[own]:.3f}x, {own}"
        if case.beyond:
            source, gain = case.beyond
            line += f"; {gain:.3f}x, {source}, which the launcher does not choose from this entry"
        print(line)


def _finish(rewriting: Rewriting, place: Place, gain: str, *, write: bool) -> None:
    """Print what an entry's replacement changes, and write it if it is to be written and can be."""
    file = rewriting.tables.file
    if rewriting.problem:
        print(f"  {gain} ({'not written' if write else 'not to be written'}: {rewriting.problem})")
        return
    if write:
        rewriting.write()
        print(f"  {gain}: written to {place} in {file}")
    else:
        print(f"  {gain}: --write puts it into {place} in {file}")
    print(*rewriting.difference(), sep="\n")
    if rewriting.also:
        print(f"  Not tuned here, and from the same entry: {', '.join(rewriting.also)}")
    if write:
        print(f"  Its results were compared coarsely: pytest {file.name} -m cutile_correct")


def best_for_all(gains: Sequence[Mapping[str, float]]) -> tuple[str, float]:
    """Return the source with the largest geometric mean of gains over all cases, and that.

    Only what is in every case counts.

    Args:
        gains: of each case, by source.
    """
    common = set.intersection(*(set(gain) for gain in gains))
    if not common:
        return "", 0.0
    means = {source: geometric_mean([gain[source] for gain in gains]) for source in sorted(common)}
    best = max(means, key=lambda source: means[source])
    return best, means[best]


def right_rows(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the configurations of a case that were timed and are right."""
    wrong = {json.dumps(failure["config"], sort_keys=True, default=str) for failure in result["failures"]}
    return [
        row for row in result["rows"] if json.dumps(row["config"], sort_keys=True, default=str) not in wrong
    ]


def _gain(row: Mapping[str, Any]) -> float:
    """Return how many times as fast as the committed one a configuration is."""
    return float(row["ratio"]["value"] if "ratio" in row else row["quick_ratio"])


def _comment(document: Mapping[str, Any], group: Sequence[Tuned], best: str) -> str:
    """Return what was measured, for the comment above an entry: time with it, and before."""
    gpu = document["environment"].get("gpu", "").removeprefix("NVIDIA ")
    parts = []
    for case in group[:SHOWN]:
        mine = case.rows[best]
        before = next((row for row in case.result["rows"] if row["committed"]), None)
        was = f" ({before['us_per_launch']:.4g})" if before is not None and before is not mine else ""
        parts.append(f"{case.result['case']} {mine['us_per_launch']:.4g} us{was}")
    if len(group) > SHOWN:
        parts.append(f"and {len(group) - SHOWN} more")
    figures = ", ".join(parts)
    return f"{gpu}, {document['date']}, cold L2, interleaved, against the entry before: {figures}."


if __name__ == "__main__":
    sys.exit(main())
