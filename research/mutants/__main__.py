"""Mutants of the kernels in `kernels/`: which does the gate `correct` kill, and which do other tolerances?

    python -m research.mutants --interpreted                          # on the CPU, as if on sm_90
    python -m research.mutants --device 0,1 --json mutants.json       # on GPUs
    python -m research.mutants --interpreted --gate-only --shares 9   # fewer named inputs for each case
    python -m research.mutants --list fmha                            # mutants whose name contains it

Each mutant is a small replacement in one file (`research/mutants/of_*.py`). It is tried in a package of its
own, in a process that may die, twice:

- launched without any guard, on the inputs of the kernel's own cases, and its outputs judged by tolerances in
  use elsewhere (`research/mutants/schemes.py`) and by the gate's comparison alone;
- by `pytest kernels/NAME.py -m cutile_correct`: the gate, with its inputs and guards (interpreted: with those
  of the interpreter, too).

Kernels without a bug are tried first: whatever they are accused of is a false alarm. On GPUs, what the small
cases do not show is tried with those that are timed. A scheme kills a mutant if it fails any case that it
passes without the bug; "flagged" counts such cases among those whose output is another than without it. Exit
status 1: a false alarm of the gate, a mutant that could not be tried, or one with a witness that survives.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cutile.words.spec import SHARES
from research.mutants.corpus import MUTANTS
from research.mutants.mutant import Mutant
from research.mutants.schemes import SCHEMES
from research.mutants.trial import BROKE, COMPARISON, FOUND, GATE, Trial, start_trying
from tools.gpu_runs.processes import Pool
from tools.gpu_runs.runs import device_numbers, write_document
from tools.gpu_runs.tables import aligned, markdown

ALL = (*SCHEMES, COMPARISON, GATE)
ENDS = (BROKE, "its process died", "not done after")
"""How errors begin that a bug may be the reason of; others are this program's."""
TRIAL_SECONDS = 900.0
"""After so long a mutant counts as hung: nothing was found out about it."""


@dataclass(kw_only=True)
class TrialResult:
    """What trying one mutant showed, or, without one, the kernel as it is."""

    kernel: str
    """The kernel."""
    mutant: Mutant | None
    """The bug; None for the kernel as it is."""
    digests: dict[str, str] = field(default_factory=dict)
    """A hash of the outputs, by case; empty if the launch failed."""
    schemes: dict[str, dict[str, str | None]] = field(default_factory=lambda: {name: {} for name in ALL})
    """None for a pass, or what a failure said, by scheme and case."""
    error: str | None = None
    """What went wrong with the trial."""
    original: TrialResult | None = None
    """The result of the same kernel without the bug."""

    def add(self, plain: Mapping[str, Any], error: str | None) -> None:
        """Add what a process has found."""
        self.digests |= plain.get("digests", {})
        for name, cases in plain.get("schemes", {}).items():
            self.schemes[name] |= cases
        self.error = error or self.error

    def flagged(self, scheme: str) -> list[str]:
        """Return the cases that a scheme fails with the bug and passes without it."""
        clean = self.original.schemes[scheme] if self.original is not None else {}
        return [
            case
            for case, said in self.schemes[scheme].items()
            if said is not None and clean.get(case) is None
        ]

    def is_killed_by(self, scheme: str) -> bool:
        """Return whether a scheme flags any case, or the process broke before any result."""
        return bool(self.flagged(scheme)) or (self.broke and not self.schemes[scheme])

    @property
    def broke(self) -> bool:
        """Whether its process died, hung or lost its GPU."""
        return self.error is not None and self.error.startswith(ENDS)

    def changed(self) -> list[str]:
        """Return the cases whose outputs differ from those of the kernel without a bug."""
        before = self.original.digests if self.original is not None else {}
        return [case for case, digest in self.digests.items() if digest != before.get(case)]

    def first_said(self) -> str:
        """Return what the gate said first, in one line."""
        if self.error is not None:
            return self.error
        said = next((text for text in self.schemes[GATE].values() if text is not None), "")
        lines = [*said.splitlines(), "", ""]
        # The first line of a mismatch names the functions, the second one says what is wrong.
        return lines[1 if "differs from its reference" in lines[0] else 0].strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Try what the command line names; return the exit status."""
    options = _parse(argv)
    mutants = [mutant for mutant in MUTANTS if _is_asked(mutant, options)]
    if options.list:
        print(aligned(("name", "file", "imitates"), [(m.name, m.path, m.imitates) for m in mutants]))
        return 0
    if not mutants:
        raise SystemExit(f"no mutant has any of {' '.join(options.names)} in its name; --list shows them")
    originals, results = try_all(mutants, options)
    if options.markdown:
        options.markdown.write_text(report(originals, results, markdown) + "\n", encoding="utf-8")
    print(report(originals, results, aligned))
    wrong = [result for result in originals.values() if result.is_killed_by(GATE)]
    wrong += [
        result for result in results if result.mutant and result.mutant.harmless and result.is_killed_by(GATE)
    ]
    survived = [
        result
        for result in results
        if result.mutant and result.mutant.witness and not result.is_killed_by(GATE)
    ]
    untried = [
        result for result in (*originals.values(), *results) if result.error is not None and not result.broke
    ]
    for result in untried:
        print(f"NOT TRIED: {result.mutant.name if result.mutant else result.kernel}: {result.error}")
    for result in wrong:
        print(f"FALSE ALARM: {result.mutant.name if result.mutant else result.kernel}: {result.first_said()}")
    return 1 if wrong or survived or untried else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m research.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only mutants whose name contains one")
    parser.add_argument("--list", action="store_true", help="show their names and try none")
    parser.add_argument(
        "--witness", action="store_true", help="the gate alone, in one case of each that has one"
    )
    parser.add_argument("--interpreted", action="store_true", help="interpret on the CPU, with no GPU")
    parser.add_argument(
        "--gate-only", action="store_true", help="ask the gate alone, until it kills a mutant"
    )
    parser.add_argument(
        "--shares", type=int, default=SHARES, metavar="N", help="cases that share the named inputs"
    )
    parser.add_argument("--arch", default="sm_90", help="to interpret for (sm_90)")
    parser.add_argument("--device", type=device_numbers, default=[0], metavar="0,1", help="GPUs to share")
    parser.add_argument("--processes", type=int, metavar="N", help="cores, or four to each GPU")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all that was found, after every mutant"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    options = parser.parse_args(argv)
    options.gate_only |= options.witness
    return options


def _is_asked(mutant: Mutant, options: argparse.Namespace) -> bool:
    if (options.witness and not mutant.witness) or (options.interpreted and mutant.gpu_only):
        return False
    return not options.names or any(name in mutant.name for name in options.names)


def try_all(
    mutants: Sequence[Mutant], options: argparse.Namespace
) -> tuple[dict[str, TrialResult], list[TrialResult]]:
    """Try kernels without a bug, then mutants; return what was found of both."""
    devices = () if options.interpreted else options.device
    count = options.processes or (4 * len(devices) if devices else len(os.sched_getaffinity(0)))
    kernels = dict.fromkeys(mutant.kernel for mutant in mutants)
    originals = {kernel: TrialResult(kernel=kernel, mutant=None) for kernel in kernels}
    results = [
        TrialResult(kernel=mutant.kernel, mutant=mutant, original=originals[mutant.kernel])
        for mutant in mutants
    ]
    # Kernels without a bug are tested elsewhere.
    everything = results if options.gate_only else [*originals.values(), *results]
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        Pool(
            min(count, len(everything)), partial(start_trying, devices=devices), task_seconds=TRIAL_SECONDS
        ) as pool,
    ):
        arch = options.arch if options.interpreted else None

        def trial(number: int, result: TrialResult) -> Trial:
            place = Path(folder) / f"{number}"
            place.mkdir()
            cases = (result.mutant.witness,) if options.witness and result.mutant else ()
            return Trial(
                kernel=result.kernel,
                mutant=result.mutant,
                folder=str(place),
                arch=arch,
                cases=cases,
                gate_only=options.gate_only,
                shares=options.shares,
            )

        def save() -> None:
            if options.json:
                write_document(options.json, as_document(originals, results))

        _run(pool, [(result, trial(number, result)) for number, result in enumerate(everything)], save)
        if devices and not options.gate_only:
            left = [result for result in everything if not result.is_killed_by(GATE)]
            trials = [
                (result, replace(trial(len(everything) + number, result), timed=True))
                for number, result in enumerate(left)
            ]
            _run(pool, trials, save)
    return originals, results


def _run(pool: Pool, trials: Sequence[tuple[TrialResult, Trial]], save: Callable[[], None]) -> None:
    begun = time.monotonic()
    for done, (number, outcome) in enumerate(pool.run([trial for _, trial in trials]), start=1):
        result, trial = trials[number]
        saved = Path(trial.folder) / FOUND
        plain = outcome.value or (json.loads(saved.read_text()) if saved.exists() else {})
        result.add(plain, outcome.error)
        save()
        name = result.mutant.name if result.mutant else f"{result.kernel} without a bug"
        said = "killed" if result.is_killed_by(GATE) else "survived"
        print(f"{done} of {len(trials)}, {time.monotonic() - begun:.0f} s: {name}: {said}", file=sys.stderr)


# -- reports ----------------------------------------------------------------------------------------


def report(originals: Mapping[str, TrialResult], results: Sequence[TrialResult], table: Any) -> str:
    """Return the tables, as `table` (of `tools.gpu_runs.tables`) makes them."""
    harmful = [result for result in results if result.mutant and not result.mutant.harmless]
    rows: list[tuple[str, ...]] = []
    for scheme in ALL:
        killed = sum(result.is_killed_by(scheme) for result in harmful)
        changed = sum(len(result.changed()) for result in harmful)
        flagged = sum(len({*result.changed()} & {*result.flagged(scheme)}) for result in harmful)
        clean = [
            said
            for result in (*originals.values(), *(result for result in results if result not in harmful))
            for said in result.schemes[scheme].values()
        ]
        alarms = sum(said is not None for said in clean)
        rows.append(
            (
                scheme,
                f"{killed} of {len(harmful)}",
                f"{100 * flagged / max(1, changed):.0f} % of {changed}",
                f"{alarms} of {len(clean)}",
            )
        )
    head: tuple[str, ...] = ("scheme", "mutants killed", "changed outputs flagged", "false alarms")
    parts = [table(head, rows)]
    rows = []
    for result in results:
        if result.mutant is None:
            continue
        counts = [f"{len(result.flagged(scheme))}/{len(result.schemes[scheme])}" for scheme in ALL]
        said = (result.mutant.harmless and "harmless") or result.first_said()
        rows.append((result.mutant.name, str(len(result.changed())), *counts, said))
    head = ("mutant", "changed", *ALL, "what the gate said first")
    parts.append(table(head, rows))
    survived = [result.mutant.name for result in harmful if result.mutant and not result.is_killed_by(GATE)]
    parts.append(f"survived the gate: {', '.join(survived) or 'none'}")
    return "\n\n".join(parts)


def as_document(originals: Mapping[str, TrialResult], results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return all results for a JSON file."""

    def plain(result: TrialResult) -> dict[str, Any]:
        return {
            "kernel": result.kernel,
            "mutant": result.mutant.name if result.mutant else None,
            "imitates": result.mutant.imitates if result.mutant else None,
            "changed": result.changed() if result.mutant else [],
            "schemes": result.schemes,
            "error": result.error,
        }

    return {
        "kernels": [plain(result) for result in originals.values()],
        "mutants": [plain(result) for result in results],
    }


if __name__ == "__main__":
    sys.exit(main())
