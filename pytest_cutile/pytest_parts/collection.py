"""Collection of declared kernels: a module with a SPEC becomes tests, one per case and gate."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.gates.base import Gate, RunningTest, Task
from pytest_cutile.gates.declared import is_compiled, trace_origin
from pytest_cutile.gates.session import Session
from pytest_cutile.pytest_parts.collected import Collected
from pytest_cutile.pytest_parts.forked_tests import FORKED, put_first_of_own
from pytest_cutile.pytest_parts.run import PytestRun
from pytest_cutile.words.quantities import abridged
from pytest_cutile.words.settings import SearchBudget
from pytest_cutile.words.spec import KernelSpec, ModelSpec, SpecError

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr

CASES_AHEAD = 16
"""Cases that a worker of pytest-xdist compiles and reads together: the more, the later its first result."""


@dataclass(frozen=True)
class KernelLocation:
    """Where a name in `cutile_kernels` lives."""

    name: str
    """Dotted name of the module or package."""
    path: Path
    """The module's file, or the package's directory."""

    def files(self) -> Iterator[tuple[Path, str]]:
        """Yield each file that may declare kernels, and the name of its module."""
        for path in self.path.rglob("*.py") if self.path.is_dir() else (self.path,):
            if (name := self.module_of(path)) is not None:
                yield path.resolve(), name

    def module_of(self, path: Path) -> str | None:
        """Return the dotted name of the module at `path`, or None if it declares no kernels here."""
        path = path.resolve()
        if path.stem in ("__main__", "conftest") or path.stem.startswith("test_"):
            return None
        if path == self.path:
            return self.name
        if not path.is_relative_to(self.path):
            return None
        parts = list(path.relative_to(self.path).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        return ".".join([self.name, *parts])


def _find_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module; its packages are not imported, which may take seconds."""
    package, *inner = name.split(".")
    spec = importlib.util.find_spec(package)
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


def locate(name: str, rootpath: Path) -> KernelLocation:
    """Find a module or package that declares kernels, without importing it."""
    try:
        spec = _find_spec(name)
        if spec is None:
            # Projects that are not installed are run from their root: look there, as `python -m` does.
            sys.path.insert(0, str(rootpath))
            importlib.invalidate_caches()
            spec = _find_spec(name)
            if spec is None:
                sys.path.remove(str(rootpath))
    except Exception as error:  # a finder of somebody else's may raise anything
        raise pytest.UsageError(
            f"ini option cutile_kernels: {name!r}: {type(error).__name__}: {error}"
        ) from error
    if spec is not None and spec.submodule_search_locations:
        return KernelLocation(name, Path(next(iter(spec.submodule_search_locations))).resolve())
    if spec is not None and spec.origin:
        return KernelLocation(name, Path(spec.origin).resolve())
    hint = f"write {name[:-3].replace('/', '.')}; " if name.endswith(".py") else ""
    hint = "write one name on each line; " if {*name} & {" ", ","} else hint
    raise pytest.UsageError(
        f"ini option cutile_kernels: no module or package {name!r}; {hint}"
        f"it is looked for on sys.path and in {rootpath}"
    )


class KernelModule(pytest.Module):
    """A module that declares kernels. Its tests come from SPEC or SPECS, not from test functions."""

    run: PytestRun
    module_name: str
    is_listed: bool

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test for each task that gates make of a case.

        Raises:
            SpecError: the declaration cannot be gated. Of modules that lack the same package, only the first
                says so.
        """
        session, collected = self.run.session, self.run.collected
        try:
            module = self._import()
            specs = self._new_specs(_specs_of(module, required=self.is_listed))
            if session.settings.search is not None:
                from pytest_cutile.gates.search import domain_of

                for spec in specs:
                    domain_of(spec)
        except SpecError as error:
            if collected.bad_declarations.setdefault(f"{error}", self.path) != self.path:
                return
            raise
        self.obj = module
        collected.modules.add(self.path.resolve())
        for spec in specs:
            for case in spec.cases:
                label = f"{spec.name}-{case.name}" if len(specs) > 1 else case.name
                for gate in self.run.gates.values():
                    tasks = gate.tasks(spec, case, self.module_name)
                    yield from (self._item(gate, task, label) for task in tasks)
            if session.settings.search is not None and not isinstance(spec, ModelSpec):
                name = f"search[{spec.name}]" if len(specs) > 1 else "search"
                search: KernelSearchTest = KernelSearchTest.from_parent(self, name=name)
                search.cutile, search.spec, search.budget = session, spec, session.settings.search
                search.add_marker(pytest.mark.cutile_search)
                search.extra_keyword_matches.add(spec.name)
                yield search

    def repr_failure(  # type: ignore[override] # as of pytest.Collector, which has no `style`
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        error = excinfo.value
        if isinstance(error, SyntaxError) and error.filename:
            text, file, line = f"{type(error).__name__}: {error.msg}", error.filename, error.lineno or 1
        elif isinstance(error, SpecError):
            frames = traceback.walk_tb(error.__traceback__)
            lines = [line for frame, line in frames if frame.f_code.co_filename == str(self.path)]
            text = f"{self.path}: {error}"
            file, line = error.place or (str(self.path), lines[-1] if lines else 1)
        else:
            return super().repr_failure(excinfo)
        from pytest_cutile.pytest_parts.failure import Place, failure_repr

        return failure_repr(
            text, [Place(file, line, "in a module of kernels")], self.config.invocation_params.dir
        )

    def _import(self) -> ModuleType:
        try:
            module = importlib.import_module(self.module_name)
        except pytest.skip.Exception as skip:
            if self.run.settings.strict:  # without an error, nothing would show that its kernels are missing
                raise SpecError(f"the module skips itself: {skip} [--perf-strict]") from None
            raise
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("cuda", "torch"):
                raise
            extra = "torch" if error.name == "torch" else "tileiras"
            package = "cuda-tile" if error.name == "cuda" else error.name
            raise SpecError(f"{package} is not installed: pip install 'pytest-cutile[{extra}]'") from error
        if module.__file__ is None or Path(module.__file__).resolve() != self.path.resolve():
            raise SpecError(
                f"the module {self.module_name} was imported from {module.__file__}: another package of that "
                "name comes first on sys.path"
            )
        return module

    def _new_specs(self, specs: list[KernelSpec]) -> list[KernelSpec]:
        """Return the specs that no other module has declared; the same object elsewhere is a re-export."""
        new = []
        for spec in specs:
            first, path = self.run.collected.declared.setdefault(spec.name, (spec, self.path))
            if path == self.path:
                new.append(spec)
            elif first is not spec:
                raise SpecError(
                    f"the kernel name {spec.name!r} is declared in {path} and in {self.path}; names are "
                    "baseline keys: rename one"
                )
        return new

    def _item(self, gate: Gate, task: Task, label: str) -> DeclaredTest:
        suffix = f"{label}-{task.suffix}" if task.suffix else label
        is_forked = gate.is_forked(task)
        test = _run_measuring if gate.measures else _run_forked if is_forked else _run
        item: DeclaredTest = DeclaredTest.from_parent(self, name=f"{gate.name}[{suffix}]", callobj=test)
        if hasattr(item, "_id"):
            # pytest 9.2 keeps names and parameters apart in ids, and --lf compares them so. There is no
            # public way to say which part of a name is a parameter, short of parametrizing.
            item._id = self.id.child(gate.name).with_params(suffix)  # noqa: SLF001
        item.gate, item.task = gate, task
        if is_forked:
            put_first_of_own(FORKED, item.fixturenames, item._fixtureinfo.name2fixturedefs)  # noqa: SLF001
        item.add_marker(getattr(pytest.mark, f"cutile_{gate.name}"))
        case = task.case
        item.extra_keyword_matches |= {task.spec.name, case.name}  # for -k
        if not case.runs_on(task.arch):
            item.add_marker(
                pytest.mark.skip(reason=f"{task.spec.name}[{case.name}] needs {case.min_arch} or newer")
            )
        return item


class TestFunctions(pytest.Module):
    """The test functions of a module of kernels, mostly none: pytest collects any file that it is given."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except Exception:  # noqa: BLE001 - `KernelModule` says it, once
            return []


class DeclaredTest(pytest.Function):
    """One gate of one case of a declared kernel."""

    gate: Gate
    task: Task

    @property
    def spec(self) -> KernelSpec:
        """The kernel, after which pytest-benchmark's tables are grouped."""
        return self.task.spec

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Point reports at the declaration of the case, not at this plugin."""
        file, line = self.task.case.place
        return Path(file), line - 1, self.name


class KernelSearchTest(pytest.Item):
    """The search for failing cases of a declared kernel."""

    cutile: Session
    spec: KernelSpec
    budget: SearchBudget

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Point reports at the first case: the search begins with it."""
        file, line = self.spec.cases[0].place
        return Path(file), line - 1, self.name

    def runtest(self) -> None:
        from pytest_cutile.gates.search import KernelSearch

        __tracebackhide__ = True
        arch = self.cutile.target.gpu_arch
        KernelSearch(self.cutile, spec=self.spec, arch=arch, **self.budget._asdict()).run()


def known_kernels(run: PytestRun) -> set[str] | None:
    """Return the names of all declared kernels; None if not all modules were collected, or one has failed.

    A run that records imports the modules that were not collected: a kernel that was renamed is no new one.
    """
    collected = run.collected
    names = set(collected.declared)
    for path, name in (file for location in run.locations for file in location.files()):
        if path in collected.modules:
            continue
        if not run.settings.update_baselines:
            return None
        try:
            names.update(spec.name for spec in _specs_of(importlib.import_module(name), required=False))
        except (Exception, pytest.skip.Exception):  # noqa: BLE001 - whatever a module raises
            return None
    return names or None


def stale_entries(
    session: Session, collected: Collected, kernels: Collection[str] | None
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the name of each set of baselines, and its keys of which no case is left, as far as is known.

    `kernels` are all that are declared; None: not all are known.
    """

    def is_gone(key: str) -> bool:
        file, is_test, _ = key.partition("::")
        if not is_test:
            kernel = key.partition("[")[0]
            return kernel in collected.declared or (kernels is not None and kernel not in kernels)
        # Path.exists raises where a name is too long, or a folder cannot be read.
        return not os.path.exists(session.settings.rootpath / file) or collected.lacks(key)  # noqa: PTH110

    for name, keys in _not_declared(session, collected):
        yield name, sorted(filter(is_gone, keys))


def _not_declared(session: Session, collected: Collected) -> Iterator[tuple[str, Collection[str]]]:
    """Yield the name of each set of baselines, and the keys that are recorded in it and not declared."""
    specs = [spec for spec, _ in collected.declared.values()]
    cases = {f"{spec.name}[{case.name}]": case for spec in specs for case in spec.cases}
    try:
        store = session.baselines
        if store is None:
            return
        if session.gpu.device is not None:
            entries = session.speed_baselines.entries if session.speed_baselines is not None else {}
            recorded = {key for key, entry in entries.items() if entry.published is None}
            yield session.speed_baselines_name, recorded - {key for key, case in cases.items() if case.speed}
        for arch in session.target.architectures:
            baselines = store.static(arch)
            if baselines is not None:
                yield store.static_name(arch), baselines.entries.keys() - cases.keys()
    except BaselineError:  # the gates say it
        return


def tasks_of(items: Iterable[pytest.Item]) -> list[Task]:
    """Return the tasks of tests of declared kernels, but for what an architecture cannot run."""
    tasks = [item.task for item in items if isinstance(item, DeclaredTest)]
    return [task for task in tasks if task.case.runs_on(task.arch)]


def finish_collection(run: PytestRun, session: pytest.Session) -> None:
    """Note the selected tasks, refuse a run without kernels, and remark on baselines without a case."""
    cutile, settings, collected = run.session, run.settings, run.collected
    cutile.selected = frozenset(
        (task.gate, task.spec.name, task.case.name, task.arch) for task in tasks_of(session.items)
    )
    if settings.server_folder is not None:
        return
    if not session.config.option.collectonly:
        _start_fork_server(cutile, tasks_of(session.items))
    everything = session.config.args_source is not pytest.Config.ArgsSource.ARGS
    failed = bool(session.testsfailed)
    if settings.kernels and everything and not (collected.declared or failed):
        raise pytest.UsageError(
            f"ini option cutile_kernels: no module of {', '.join(settings.kernels)} declares SPEC or SPECS "
            "(a pytest_cutile.KernelSpec), so no kernel would be gated"
        )
    kernels = None if failed else known_kernels(run)
    stale = dict(stale_entries(cutile, collected, kernels))
    cutile.kernels = frozenset(kernels or collected.declared)
    cutile.stale = frozenset(key for keys in stale.values() for key in keys)
    run.results.remarks = [
        f"stale: {name} has {abridged(keys, 3)}: no such case is left; delete it, or rename it"
        for name, keys in stale.items()
        if keys
    ]


def _start_fork_server(session: Session, tasks: Sequence[Task]) -> None:
    """Put a process aside for tracing, before a launcher runs in this one."""
    compiled = {(task.spec.name, task.case.name): task for task in tasks if is_compiled(task)}
    launchers = {task.spec.name: task.spec.launch for task in compiled.values()}.values()
    if compiled:
        session.start_fork_server(functools.partial(trace_origin, session, compiled), launchers)


def prepare_once(run: PytestRun, item: pytest.Item) -> None:
    """Let each gate start what a test and those after it need, unless that has been done."""
    if isinstance(item, DeclaredTest) and item not in run.prepared:
        prepare(run, item)


def prepare(run: PytestRun, item: pytest.Item) -> None:
    """Let each gate start what the selected tests need; a worker of pytest-xdist, what the next ones need."""
    items: Sequence[pytest.Item] = item.session.items
    if run.settings.xdist_worker:  # it gets tests one by one, most likely in this order
        items = [*next_cases(items[items.index(item) :])]
    run.prepared.update(items)
    tasks = tasks_of(item for item in items if not run.has_run(item.nodeid))
    for name, gate in run.gates.items():
        gate.prepare([task for task in tasks if task.gate == name])


def next_cases(items: Iterable[pytest.Item]) -> Iterator[DeclaredTest]:
    """Yield the tests of the first cases in `items`, up to the end of their module."""
    module, cases = None, set()
    for item in items:
        module = module or item.parent
        if item.parent is not module or not isinstance(item, DeclaredTest):
            return
        cases.add((item.task.spec.name, item.task.case.name))
        if len(cases) > CASES_AHEAD:
            return
        yield item


def _specs_of(module: ModuleType, *, required: bool) -> list[KernelSpec]:
    specs = getattr(module, "SPECS", None)
    if specs is None:
        specs = [module.SPEC] if hasattr(module, "SPEC") else []
    elif not isinstance(specs, list | tuple) or not specs:
        got = type(specs).__name__ if specs else repr(specs)
        raise SpecError(f"SPECS must be a list of pytest_cutile.KernelSpec, not empty; got {got}")
    for spec in specs:
        if not isinstance(spec, KernelSpec):
            raise SpecError(
                f"SPEC must be a pytest_cutile.KernelSpec (SPECS a list of them), got {type(spec).__name__}"
            )
    if required and not specs:
        raise SpecError(
            "it is listed in the ini option cutile_kernels but declares no SPEC (or SPECS): "
            "nothing of it would be gated"
        )
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise SpecError(f"two specs have the same name; names are baseline keys and must be unique: {names}")
    return list(specs)


def _run(request: pytest.FixtureRequest) -> None:
    __tracebackhide__ = True
    _run_gate(request.node, RunningTest(nodeid=request.node.nodeid))


def _run_forked(_cutile_forked: None, request: pytest.FixtureRequest) -> None:
    __tracebackhide__ = True
    _run_gate(request.node, RunningTest(nodeid=request.node.nodeid))


def _run_measuring(_cutile_benchmark: Any, request: pytest.FixtureRequest) -> None:
    __tracebackhide__ = True
    _run_gate(request.node, RunningTest(nodeid=request.node.nodeid, publish=_cutile_benchmark))


def _run_gate(item: DeclaredTest, test: RunningTest) -> None:
    from pytest_cutile.gates.outcome import GateOutcome

    __tracebackhide__ = True
    with GateOutcome(item.gate.session, item.task.key):
        item.gate.run(item.task, test)
