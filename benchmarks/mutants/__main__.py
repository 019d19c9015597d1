"""Bugs planted in the kernels of `kernels/`: which does the gate `correct` catch, and which do others?

    python -m benchmarks.mutants --interpreted                          # on the CPU, as if on sm_90
    python -m benchmarks.mutants --device 0,1 --json mutants.json       # on GPUs
    python -m benchmarks.mutants --list fmha                            # mutants whose name contains it

Each mutant is a small replacement in one file (`benchmarks/mutants/of_*.py`). It is tried in a package of its
own, in a process that may die, twice:

- launched without any guard, on the inputs of the kernel's own cases, and its outputs judged by tolerances in
  use elsewhere (`benchmarks/mutants/schemes.py`) and by the gate's comparison alone;
- by `pytest kernels/NAME.py -m cutile_correct`: the gate, with its inputs and guards (interpreted: with those
  of the interpreter, too).

Kernels without a bug are tried first: whatever they are accused of is a false alarm. On GPUs, what the small
cases do not show is tried with those that are timed. A scheme catches a mutant if it fails any case that it
passes without the bug; "flagged" counts such cases among those whose output is another than without it. Exit
status 1: a false alarm of the gate, a mutant that could not be tried, or one with a witness that is missed.
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

from benchmarks.gpu_runs.processes import Pool
from benchmarks.gpu_runs.runs import device_numbers, write_document
from benchmarks.gpu_runs.tables import aligned, markdown
from benchmarks.mutants.corpus import MUTANTS
from benchmarks.mutants.mutant import Mutant
from benchmarks.mutants.schemes import SCHEMES
from benchmarks.mutants.trial import BROKE, COMPARISON, FOUND, GATE, Trial, start_trying

ALL = (*SCHEMES, COMPARISON, GATE)
ENDS = (BROKE, "its process died", "not done after")
"""How errors begin that a bug may be the reason of; others are this program's."""
TRIAL_SECONDS = 900.0
"""After so long a mutant counts as hung: nothing was found out about it."""


@dataclass(kw_only=True)
class Found:
    """What was found out about one mutant, or, without one, about a kernel as it is."""

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
    control: Found | None = None
    """What was found of the same kernel without the bug."""

    def take(self, plain: Mapping[str, Any], error: str | None) -> None:
        """Add what a process has found."""
        self.digests |= plain.get("digests", {})
        for name, cases in plain.get("schemes", {}).items():
            self.schemes[name] |= cases
        self.error = error or self.error

    def flagged(self, scheme: str) -> list[str]:
        """Return the cases that a scheme fails with the bug and passes without it."""
        clean = self.control.schemes[scheme] if self.control is not None else {}
        return [
            case
            for case, said in self.schemes[scheme].items()
            if said is not None and clean.get(case) is None
        ]

    def is_caught_by(self, scheme: str) -> bool:
        """Say whether a scheme flags any case; what breaks the process fails a test that got so far."""
        return bool(self.flagged(scheme)) or (self.broke and not self.schemes[scheme])

    @property
    def broke(self) -> bool:
        """Whether its process died, hung or lost its GPU."""
        return self.error is not None and self.error.startswith(ENDS)

    def changed(self) -> list[str]:
        """Return the cases whose outputs differ from those of the kernel without a bug."""
        before = self.control.digests if self.control is not None else {}
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
    mutants = [each for each in MUTANTS if _is_asked(each, options)]
    if options.list:
        print(aligned(("name", "file", "imitates"), [(m.name, m.path, m.imitates) for m in mutants]))
        return 0
    if not mutants:
        raise SystemExit(f"no mutant has any of {' '.join(options.names)} in its name; --list shows them")
    controls, found = try_all(mutants, options)
    if options.markdown:
        options.markdown.write_text(report(controls, found, markdown) + "\n", encoding="utf-8")
    print(report(controls, found, aligned))
    wrong = [each for each in controls.values() if each.is_caught_by(GATE)]
    wrong += [each for each in found if each.mutant and each.mutant.harmless and each.is_caught_by(GATE)]
    missed = [each for each in found if each.mutant and each.mutant.witness and not each.is_caught_by(GATE)]
    untried = [each for each in (*controls.values(), *found) if each.error is not None and not each.broke]
    for each in untried:
        print(f"NOT TRIED: {each.mutant.name if each.mutant else each.kernel}: {each.error}")
    for each in wrong:
        print(f"FALSE ALARM: {each.mutant.name if each.mutant else each.kernel}: {each.first_said()}")
    return 1 if wrong or missed or untried else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only mutants whose name contains one")
    parser.add_argument("--list", action="store_true", help="show their names and try none")
    parser.add_argument(
        "--witness", action="store_true", help="the gate alone, in one case of each that has one"
    )
    parser.add_argument("--interpreted", action="store_true", help="interpret on the CPU, with no GPU")
    parser.add_argument("--arch", default="sm_90", help="to interpret for (sm_90)")
    parser.add_argument("--device", type=device_numbers, default=[0], metavar="0,1", help="GPUs to share")
    parser.add_argument("--processes", type=int, metavar="N", help="cores, or four to each GPU")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all that was found, after every mutant"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    return parser.parse_args(argv)


def _is_asked(mutant: Mutant, options: argparse.Namespace) -> bool:
    if (options.witness and not mutant.witness) or (options.interpreted and mutant.gpu_only):
        return False
    return not options.names or any(name in mutant.name for name in options.names)


def try_all(mutants: Sequence[Mutant], options: argparse.Namespace) -> tuple[dict[str, Found], list[Found]]:
    """Try kernels without a bug, then mutants; return what was found of both."""
    devices = () if options.interpreted else options.device
    count = options.processes or (4 * len(devices) if devices else len(os.sched_getaffinity(0)))
    kernels = dict.fromkeys(mutant.kernel for mutant in mutants)
    controls = {kernel: Found(kernel=kernel, mutant=None) for kernel in kernels}
    found = [
        Found(kernel=mutant.kernel, mutant=mutant, control=controls[mutant.kernel]) for mutant in mutants
    ]
    # In one case alone there is nothing to compare with, and kernels without a bug are tested elsewhere.
    everything = found if options.witness else [*controls.values(), *found]
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        Pool(
            min(count, len(everything)), partial(start_trying, devices=devices), task_seconds=TRIAL_SECONDS
        ) as pool,
    ):
        arch = options.arch if options.interpreted else None

        def trial(number: int, each: Found) -> Trial:
            place = Path(folder) / f"{number}"
            place.mkdir()
            cases = (each.mutant.witness,) if options.witness and each.mutant else ()
            return Trial(
                kernel=each.kernel,
                mutant=each.mutant,
                folder=str(place),
                arch=arch,
                cases=cases,
                gate_only=options.witness,
            )

        def save() -> None:
            if options.json:
                write_document(options.json, as_document(controls, found))

        _run(pool, [(each, trial(number, each)) for number, each in enumerate(everything)], save)
        if devices and not options.witness:
            left = [each for each in everything if not each.is_caught_by(GATE)]
            trials = [
                (each, replace(trial(len(everything) + number, each), timed=True))
                for number, each in enumerate(left)
            ]
            _run(pool, trials, save)
    return controls, found


def _run(pool: Pool, trials: Sequence[tuple[Found, Trial]], save: Callable[[], None]) -> None:
    begun = time.monotonic()
    for done, (number, outcome) in enumerate(pool.run([trial for _, trial in trials]), start=1):
        each, trial = trials[number]
        saved = Path(trial.folder) / FOUND
        plain = outcome.value or (json.loads(saved.read_text()) if saved.exists() else {})
        each.take(plain, outcome.error)
        save()
        name = each.mutant.name if each.mutant else f"{each.kernel} without a bug"
        said = "caught" if each.is_caught_by(GATE) else "not caught"
        print(f"{done} of {len(trials)}, {time.monotonic() - begun:.0f} s: {name}: {said}", file=sys.stderr)


# -- what is told -----------------------------------------------------------------------------------


def report(controls: Mapping[str, Found], found: Sequence[Found], table: Any) -> str:
    """Return the tables, as `table` (of `benchmarks.gpu_runs.tables`) makes them."""
    bugs = [each for each in found if each.mutant and not each.mutant.harmless]
    rows = []
    for scheme in ALL:
        caught = sum(each.is_caught_by(scheme) for each in bugs)
        changed = sum(len(each.changed()) for each in bugs)
        flagged = sum(len({*each.changed()} & {*each.flagged(scheme)}) for each in bugs)
        clean = [
            said
            for each in (*controls.values(), *(each for each in found if each not in bugs))
            for said in each.schemes[scheme].values()
        ]
        alarms = sum(said is not None for said in clean)
        rows.append(
            (
                scheme,
                f"{caught} of {len(bugs)}",
                f"{100 * flagged / max(1, changed):.0f} % of {changed}",
                f"{alarms} of {len(clean)}",
            )
        )
    head = ("scheme", "bugs caught", "changed outputs flagged", "false alarms")
    parts = [table(head, rows)]
    rows = []
    for each in found:
        if each.mutant is None:
            continue
        counts = [f"{len(each.flagged(scheme))}/{len(each.schemes[scheme])}" for scheme in ALL]
        said = (each.mutant.harmless and "harmless") or each.first_said()
        rows.append((each.mutant.name, str(len(each.changed())), *counts, said))
    head = ("mutant", "changed", *ALL, "what the gate said first")
    parts.append(table(head, rows))
    missed = [each.mutant.name for each in bugs if each.mutant and not each.is_caught_by(GATE)]
    parts.append(f"missed by the gate: {', '.join(missed) or 'none'}")
    return "\n\n".join(parts)


def as_document(controls: Mapping[str, Found], found: Sequence[Found]) -> dict[str, Any]:
    """Return all that was found, for a JSON file."""

    def plain(each: Found) -> dict[str, Any]:
        return {
            "kernel": each.kernel,
            "mutant": each.mutant.name if each.mutant else None,
            "imitates": each.mutant.imitates if each.mutant else None,
            "changed": each.changed() if each.mutant else [],
            "schemes": each.schemes,
            "error": each.error,
        }

    return {
        "kernels": [plain(each) for each in controls.values()],
        "mutants": [plain(each) for each in found],
    }


if __name__ == "__main__":
    sys.exit(main())
