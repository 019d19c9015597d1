"""The report of `--check-strength`: weak cases first, what no case of a kernel catches, counts. Pure text."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from pytest_cutile.core.report import WIDTH, SummaryLine, align, fit
from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.strength import Outcome, Probe, Strength, never_caught

_FIGURES = frozenset({"caught", *Outcome})
_Row = tuple[str, str, Strength]


def strength_report(results: Iterable[GateResult], *, verbose: bool = False) -> list[SummaryLine]:
    """Return what the checks of the cases that passed would have caught; nothing if nobody asked.

    Args:
        results: of all gates.
        verbose: whether to show strong cases one by one, and every weakness.
    """
    found = {
        (result.kernel, result.case, result.key): Strength.from_dict(result.strength)
        for result in results
        if result.gate == Gate.CORRECT and result.strength is not None
    }
    cases = [(kernel, case, strength) for (kernel, case, _), strength in sorted(found.items(), key=_name)]
    if not cases:
        return []
    weak = [each for each in cases if each[2].weaknesses]
    lines = [
        SummaryLine(f"{len(weak)} of {len(cases)} cases are weak: these alterations would have passed", None)
        if weak
        else SummaryLine(f"{len(cases)} cases, none weak", True)
    ]
    lines += _weak_cases(weak, verbose=verbose)
    lines += _strong_cases([each for each in cases if not each[2].weaknesses], verbose=verbose)
    for kernel, strengths in _by_kernel(cases).items():
        if missed := never_caught([strength for _, strength in strengths]):
            lines += _wrapped(f"{kernel}: no case catches ", ", ".join(_places(missed)))
    return [*lines, SummaryLine("", None), *_counts([strength for _, _, strength in cases])]


def _name(item: tuple[tuple[str, str, str], Strength]) -> tuple[str, str, str]:
    return item[0]


def _by_kernel(cases: Iterable[_Row]) -> dict[str, list[tuple[str, Strength]]]:
    found: dict[str, list[tuple[str, Strength]]] = defaultdict(list)
    for kernel, name, strength in cases:
        found[kernel].append((name, strength))
    return found


def _weak_cases(cases: Iterable[_Row], *, verbose: bool) -> list[SummaryLine]:
    """Say for each kernel what its weak cases let through: all of it, or an example of each kind."""
    lines = []
    for kernel, strengths in _by_kernel(cases).items():
        found: dict[tuple[str, str], list[tuple[str, Probe]]] = defaultdict(list)
        for name, strength in strengths:
            for probe in strength.weaknesses:
                found[probe.alteration, probe.outcome].append((name, probe))
        lines.append(SummaryLine(f"{kernel}: {len(strengths)} weak case{'s' * (len(strengths) > 1)}", None))
        for probes in found.values():
            names = {*dict(probes)}
            name, first = probes[0]
            many = f"{len(names)} cases, such as {name}" if len(names) > 1 else name
            texts = [f"{each} ({name})" for name, each in probes] if verbose else [f"{first} ({many})"]
            for text in texts:
                lines += _wrapped("    ", text)
    return lines


def _places(probes: Iterable[Probe]) -> Iterable[str]:
    """Yield each alteration with its inputs, if it is one of inputs."""
    places: dict[str, list[str]] = defaultdict(list)
    for probe in probes:
        places[probe.alteration] += [probe.where] if probe.of_input else []
    for alteration, where in places.items():
        yield alteration + (f" ({'; '.join(where)})" if where else "")


def _strong_cases(cases: Sequence[_Row], *, verbose: bool) -> list[SummaryLine]:
    if not cases:
        return []
    rows = [(kernel, name, _share([strength])) for kernel, name, strength in cases]
    if not verbose:
        joined: dict[str, list[Strength]] = defaultdict(list)
        for kernel, _, strength in cases:
            joined[kernel].append(strength)
        rows = [
            (kernel, f"{len(each)} case{'s' if len(each) > 1 else ''}", _share(each))
            for kernel, each in joined.items()
        ]
    table = align(fit([("kernel", "not weak", "caught"), *rows]), rule=True, right=_FIGURES)
    return [SummaryLine(text, True if row > 1 else None) for row, text in enumerate(table)]


def _share(strengths: Sequence[Strength]) -> str:
    return f"{sum(each.caught for each in strengths)} of {sum(len(each.probes) for each in strengths)}"


def _counts(strengths: Sequence[Strength]) -> list[SummaryLine]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for strength in strengths:
        for probe in strength.probes:
            counts[probe.alteration][probe.outcome] += 1
    rows = [
        (alteration, *(str(outcomes[each]) if outcomes[each] else "" for each in Outcome))
        for alteration, outcomes in counts.items()
    ]
    lines = align([("alteration", *Outcome), *rows], rule=True, right=_FIGURES)
    if left_out := sum(each.left_out for each in strengths):
        lines.append(f"{left_out} alterations of inputs were left out: each costs a run of the reference")
    return [SummaryLine(text, None) for text in lines]


def _wrapped(head: str, text: str) -> list[SummaryLine]:
    lines = textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent="      ")
    return [SummaryLine(line, None) for line in lines]
