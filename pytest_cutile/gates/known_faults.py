"""Finds launches that the installed tileiras is known to compile to something else than the kernel says."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_cutile.tile.compiler import Compiled, CompileJob, CompilerFault
from pytest_cutile.tile.compiler.job import source_line
from pytest_cutile.tile.compiler.toolchain import toolchain_versions
from pytest_cutile.words.document import Document, Facts
from pytest_cutile.words.platforms.known_faults import KNOWN_FAULTS, KnownFault, PastTheEnd
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.text import render_text
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session
    from pytest_cutile.tile.compiler.parameters import LaunchParameters
    from pytest_cutile.tile.interpreter.tile_stores import TileStore
    from pytest_cutile.tile.static.facts import LaunchFacts, Site

_IN_WORDS = {"store": "a store", "atomic": "an atomic store"}


@dataclass(frozen=True, kw_only=True)
class CompiledLaunch:
    """A launch, and the compilation of its kernel."""

    job: CompileJob
    parameters: LaunchParameters
    compiling: Future[Compiled]


class Miscompiled(CompilerFault):
    """tileiras is known to compile a launch to something else than the kernel says."""

    reason = Reason.MISCOMPILED


@dataclass(frozen=True, kw_only=True)
class FoundFault:
    """A known fault in a launch."""

    fault: KnownFault
    kernel: str
    store: TileStore

    def error(self, where: str) -> Miscompiled:
        """Return the error of a case, whose name and architecture are `where`."""
        fault, store = self.fault, self.store
        file, line = store.places[0]
        bytes_past = store.bytes_past(fault.past_the_end.piece_bytes)
        elements = counted(-(-bytes_past // store.item_bytes), "element")
        stores = f"{_IN_WORDS[store.operation]} of {self.kernel}"
        title = f"{where}: {stores} writes {elements} past the end of {store.parameter}"
        facts = Facts(
            [
                ("where", [f"{file}:{line}", source_line(file, line, None).strip()]),
                ("why", [f"{store.parameter} ends after {store.end_bytes} bytes. {fault.consequence}"]),
                ("fault", [f"{fault.name}, in tileiras since {fault.since}"]),
                ("installed", [f"tileiras {toolchain_versions()['tileiras']}"]),
                ("instead", [fault.remedy]),
                ("source", [*fault.sources]),
                ("note", ["nothing was run: compiled code and launch say so. The kernel is not at fault"]),
            ]
        )
        return Miscompiled(render_text(Document(title, [facts])))


def find_known_faults(session: Session, launches: Sequence[CompiledLaunch]) -> list[FoundFault]:
    """Return the known faults of the installed tileiras in launches that compile; none is a guess."""
    release = toolchain_versions()["tileiras"]
    matches: list[FoundFault] = []
    for fault in (fault for fault in KNOWN_FAULTS if fault.is_in(release)):
        for launch in launches:
            stores = _past_the_end(session, launch, fault.past_the_end)
            matches += [FoundFault(fault=fault, kernel=launch.job.kernel, store=store) for store in stores]
    return matches


def _past_the_end(session: Session, launch: CompiledLaunch, pattern: PastTheEnd) -> list[TileStore]:
    """Return the stores of a launch that have the pattern; what is quick to exclude is looked at first."""
    from pytest_cutile.tile.interpreter.tile_stores import may_go_past, tile_stores  # it imports torch

    if not may_go_past(launch.parameters, pattern.piece_bytes):
        return []
    stores = tile_stores(launch.job, launch.parameters)
    if not (past := [store for store in stores if store.bytes_past(pattern.piece_bytes)]):
        return []
    [reading] = session.inspector.submit([launch.compiling])
    facts, _ = reading.result()
    return [store for store in past if _is_compiled_so(store, stores, facts, pattern)]


def _is_compiled_so(
    store: TileStore, stores: Sequence[TileStore], facts: LaunchFacts, pattern: PastTheEnd
) -> bool:
    """Say whether a store became an instruction of the pattern.

    The compiler names instructions by source line. Where a line stores into several arrays, all of these
    stores have to go past the end: otherwise nobody knows which of them became the instruction.
    """
    if store.operation == "atomic":
        alike = [other for other in stores if other.operation == "atomic"]
        return _uses_atomics(facts, pattern) and _are_all_past(alike, store, pattern)
    sites = [site for site in _store_sites(facts) if (site.file, site.line) in store.places]
    alike = [other for other in stores if {*other.places} & {(site.file, site.line) for site in sites}]
    is_by = bool(sites) and all(_is_by(site.instruction, pattern) for site in sites)
    return is_by and _are_all_past(alike, store, pattern)


def _are_all_past(alike: Sequence[TileStore], store: TileStore, pattern: PastTheEnd) -> bool:
    return all(other.parameter == store.parameter or other.bytes_past(pattern.piece_bytes) for other in alike)


def _store_sites(facts: LaunchFacts) -> list[Site]:
    return [site for site in facts.sites or () if site.operation == "store"]


def _is_by(instruction: str, pattern: PastTheEnd) -> bool:
    return instruction.partition(" ")[0] == pattern.stores


def _uses_atomics(facts: LaunchFacts, pattern: PastTheEnd) -> bool:
    classes = (facts.instructions or {}).values()
    return any(pattern.atomics in mnemonics for mnemonics in classes)
