"""What a case is compiled to: what the gate `static` compares, and what explains a slower case."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from pytest_cutile.compiler.compilations import Compilation, wait_for
from pytest_cutile.compiler.traced import CompileCase
from pytest_cutile.session import Session
from pytest_cutile.static.facts import CaseFacts, LaunchFacts, Note, Site, SpillLine
from pytest_cutile.static.inspection import Inspected

_Remark = TypeVar("_Remark", Site, Note, SpillLine)
_SHOWN_TEXT = 48


def inspections(session: Session, cases: Sequence[CompileCase]) -> list[Future[Inspected]]:
    """Start to read what cases are compiled to, many kernels at once; one future for each launch."""
    compiling = [compilation.compiling for case in cases for compilation in session.compilations.of(case)]
    return session.inspector.submit(compiling)


def compiled_facts(session: Session, case: CompileCase) -> CaseFacts:
    """Wait for a case and return what was compiled."""
    session.compilations.result(case)  # says first what does not compile
    compilations, reading = session.compilations.of(case), inspections(session, [case])
    wait_for(reading, lambda: session.progress(session.inspector.progress))
    inspected = [future.result() for future in reading]
    root = session.settings.rootpath
    launches = [
        replace(
            facts,
            grid=compilation.launch.grid,
            executed=_executed(session, compilation, facts.kernel),
            sites=None if facts.sites is None else _relative([*map(_with_text, facts.sites)], root),
            notes=_relative(facts.notes, root),
            spill_lines=_relative(facts.spill_lines, root),
        )
        for (facts, _), compilation in zip(inspected, compilations, strict=True)
    ]
    return CaseFacts(
        fingerprint=session.compilations.fingerprint(case),
        source=session.compilations.source(case),
        launches=_joined(launches),
        torch_bytes=session.compilations.torch_bytes(case),
        missing=tuple(dict.fromkeys(line for _, missing in inspected for line in missing)),
    )


def _executed(session: Session, compilation: Compilation, kernel: str) -> Mapping[str, int] | None:
    """Return what a launch executes; None, with a remark about the run, where it cannot be counted."""
    try:
        return session.executed.count(compilation.launch.job, compilation.launch.parameters)
    except Exception as error:  # noqa: BLE001 - the other facts of an unusual kernel are as good as ever
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        session.uncounted.setdefault(kernel, why)
        return None


def _relative(remarks: Sequence[_Remark], root: Path) -> tuple[_Remark, ...]:
    files = [Path(remark.file) for remark in remarks]
    shown = [path.relative_to(root) if path.is_relative_to(root) else path for path in files]
    return tuple(replace(remark, file=f"{path}") for remark, path in zip(remarks, shown, strict=True))


def _with_text(site: Site) -> Site:
    """Add the line of source. Not earlier: what is remembered of a compiled kernel holds no names."""
    linecache.checkcache(site.file)
    text = " ".join(linecache.getline(site.file, site.line).split())  # no tabs, which baselines refuse
    return replace(site, text=text[:_SHOWN_TEXT])


def _joined(launches: Iterable[LaunchFacts]) -> tuple[LaunchFacts, ...]:
    """Return launches without repeats, each with how often it is there."""
    different: list[LaunchFacts] = []
    times: list[int] = []
    for launch in launches:
        if launch in different:
            times[different.index(launch)] += 1
        else:
            different.append(launch)
            times.append(1)
    return tuple(replace(launch, times=n) for launch, n in zip(different, times, strict=True))
