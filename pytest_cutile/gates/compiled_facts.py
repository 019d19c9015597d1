"""What a case is compiled to: what the gate `static` compares, and what explains a slower case."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from pytest_cutile.tile.compiler.compilations import Compilation, wait_for
from pytest_cutile.tile.static.configurations import drawbacks_of
from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts, Note, Site, SpillLine

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session
    from pytest_cutile.tile.compiler.configurations import Configuration
    from pytest_cutile.tile.compiler.traced import CompileCase
    from pytest_cutile.tile.static.inspection import Inspected

_Remark = TypeVar("_Remark", Site, Note, SpillLine)
_SHOWN_TEXT = 48


def inspections(session: Session, cases: Sequence[CompileCase]) -> list[Future[Inspected]]:
    """Start to read what cases are compiled to, many kernels at once; one future for each launch."""
    return _reading(session, [one for case in cases for one in session.compilations.of(case)])


def _reading(session: Session, compilations: Sequence[Compilation]) -> list[Future[Inspected]]:
    return session.inspector.submit([compilation.compiling for compilation in compilations])


def compiled_facts(session: Session, case: CompileCase) -> CaseFacts:
    """Wait for a case and return what was compiled."""
    session.compilations.result(case)  # says first what does not compile
    launches, missing = _launch_facts(session, session.compilations.of(case))
    return CaseFacts(
        fingerprint=session.compilations.fingerprint(case),
        source=session.compilations.source(case),
        launches=_joined(launches),
        torch_bytes=session.compilations.torch_bytes(case),
        missing=missing,
    )


def remarks_on_configurations(session: Session, case: CompileCase) -> tuple[str, ...]:
    """Return what speaks against configurations of a launcher that tunes, a line for each."""
    configurations = session.compilations.configurations(case)
    _reading(session, [one for configuration in configurations for one in configuration.compilations])
    facts = {
        configuration.name: _launch_facts(session, configuration.compilations)[0]
        for configuration in configurations
        if not configuration.rejected
    }
    drawbacks = drawbacks_of(facts, arch=case.arch, margin=session.settings.static_margin)
    return (*rejections(configurations), *drawbacks)


def rejections(configurations: Sequence[Configuration]) -> list[str]:
    """Return which configurations do not compile, and why, a line for each."""
    return [
        f"{configuration.name}: does not compile: {configuration.rejected}".partition("\n")[0]
        for configuration in configurations
        if configuration.rejected
    ]


def _launch_facts(
    session: Session, compilations: Sequence[Compilation]
) -> tuple[list[LaunchFacts], tuple[str, ...]]:
    """Wait for launches; return what is known of each, and what could not be had."""
    reading = _reading(session, compilations)
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
    return launches, tuple(dict.fromkeys(line for _, missing in inspected for line in missing))


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
