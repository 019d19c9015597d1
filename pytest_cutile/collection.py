"""Collection of declared kernels: a module with a SPEC becomes tests, one per case and gate."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.collected import Collected
from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.results import Gate
from pytest_cutile.core.spec import Case, KernelSpec, SpecError
from pytest_cutile.gates.compiling import Compilations, CompileCase
from pytest_cutile.gates.declared import compile_case
from pytest_cutile.gates.engine import Engine
from pytest_cutile.gates.static import StaticGate
from pytest_cutile.reports import gate_message

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr


@dataclass(frozen=True)
class KernelLocation:
    """Where a name in `cutile_kernels` lives."""

    name: str
    """Dotted name of the module or package."""
    path: Path
    """The module's file, or the package's directory."""

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


def locate_kernels(names: tuple[str, ...], rootpath: Path) -> list[KernelLocation]:
    """Find the modules and packages that declare kernels, without importing the modules themselves.

    Raises:
        pytest.UsageError: a name is not importable.
    """
    return [_locate(name, rootpath) for name in names]


def _locate(name: str, rootpath: Path) -> KernelLocation:
    try:
        spec = importlib.util.find_spec(name)
        if spec is None:
            # Projects that are not installed are run from their root: look there, as `python -m` does.
            sys.path.insert(0, str(rootpath))
            importlib.invalidate_caches()
            spec = importlib.util.find_spec(name)
            if spec is None:
                sys.path.remove(str(rootpath))
    except Exception as error:  # a parent package is imported, and may raise anything
        raise pytest.UsageError(
            f"ini option cutile_kernels: {name!r}: {type(error).__name__}: {error}"
        ) from error
    if spec is not None and spec.submodule_search_locations:
        return KernelLocation(name, Path(next(iter(spec.submodule_search_locations))).resolve())
    if spec is not None and spec.origin:
        return KernelLocation(name, Path(spec.origin).resolve())
    raise pytest.UsageError(
        f"ini option cutile_kernels: no module or package {name!r}; "
        f"it is looked for on sys.path and in {rootpath}"
    )


class KernelModule(pytest.Module):
    """A module that declares kernels. Its tests come from SPEC or SPECS, not from test functions."""

    engine: Engine
    module_name: str
    is_listed: bool

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the tests of every case: compile and static for each architecture, correct, then speed.

        A declaration that cannot be gated becomes one failing test, so that the other kernels go on.
        """
        try:
            module = self._import()
            specs = self._new_specs(_specs_of(module, required=self.is_listed))
            if self.engine.settings.search is not None:
                _check_domains(specs)
        except SpecError as error:
            self.engine.bad_declarations += 1
            item = BadDeclaration.from_parent(self, name="declaration", message=f"{self.path}: {error}")
            for selected in (*Gate, "search"):  # whatever is selected, this has to be seen
                item.add_marker(getattr(pytest.mark, f"cutile_{selected}"))
            yield item
            return
        self.obj = module
        self.engine.collected_modules.add(self.path.resolve())
        for spec in specs:
            for case in spec.cases:
                label = f"{spec.name}-{case.name}" if len(specs) > 1 else case.name
                yield from self._items(spec, case, label)
            if self.engine.settings.search is not None:
                name = f"search[{spec.name}]" if len(specs) > 1 else "search"
                search: KernelSearchTest = KernelSearchTest.from_parent(self, name=name)
                search.engine, search.spec = self.engine, spec
                search.add_marker(pytest.mark.cutile_search)
                yield search

    def _import(self) -> ModuleType:
        try:
            module = importlib.import_module(self.module_name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("cuda", "torch"):
                raise
            extra = "torch" if error.name == "torch" else "tileiras"
            raise SpecError(f"{error.name} is not installed: pip install 'pytest-cutile[{extra}]'") from error
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
            first, path = self.engine.declared.setdefault(spec.name, (spec, self.path))
            if path == self.path:
                new.append(spec)
            elif first is not spec:
                raise SpecError(
                    f"the kernel name {spec.name!r} is declared in {path} and in {self.path}; names are "
                    "baseline keys: rename one"
                )
        return new

    def _items(self, spec: KernelSpec, case: Case, label: str) -> Iterator[pytest.Item]:
        for arch in self.engine.architectures:
            yield self._item(Gate.COMPILE, spec, case, arch, f"{label}-{arch}", _compile)
        for arch in self.engine.architectures:
            yield self._item(Gate.STATIC, spec, case, arch, f"{label}-{arch}", _static)
        every = self.engine.settings.every_input
        for name in ("normal", *spec.named_inputs(case, every=every)):
            suffix = label if name == "normal" else f"{label}-{name}"
            item = self._item(Gate.CORRECT, spec, case, self.engine.gpu_arch, suffix, _correct)
            item.inputs = name
            yield item
        if case.speed:
            yield self._item(Gate.SPEED, spec, case, self.engine.gpu_arch, label, _speed)

    def _item(
        self, gate: Gate, spec: KernelSpec, case: Case, arch: str, suffix: str, test: Callable[..., None]
    ) -> DeclaredTest:
        item: DeclaredTest = DeclaredTest.from_parent(self, name=f"{gate}[{suffix}]", callobj=test)
        if hasattr(item, "_id"):
            # pytest 9.2 keeps names and parameters apart in ids, and --lf compares them so. There is no
            # public way to say which part of a name is a parameter, short of parametrizing.
            item._id = self.id.child(str(gate)).with_params(suffix)  # noqa: SLF001
        item.gate, item.spec, item.case, item.arch = gate, spec, case, arch
        item.module_name = self.module_name
        item.engine = self.engine
        item.add_marker(getattr(pytest.mark, f"cutile_{gate}"))
        if not case.runs_on(arch):
            item.add_marker(
                pytest.mark.skip(reason=f"{spec.name}[{case.name}] needs {case.min_arch} or newer")
            )
        return item


class BadDeclaration(pytest.Item):
    """Stands for a module whose declaration cannot be gated: fails and says why."""

    def __init__(self, *, message: str, **options: Any) -> None:
        super().__init__(**options)
        self._message = message

    def runtest(self) -> None:
        """Fail."""
        pytest.fail(self._message, pytrace=False)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any, **__: Any) -> str:
        """Show the message alone."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Point to the module."""
        return self.path, 0, self.name


class _ToldByGates(pytest.Item):
    """A test that this plugin made: a gate tells all of its failure."""

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any
    ) -> str | TerminalRepr:
        """Show a gate's own message as it is: there is no frame of the user's in its traceback."""
        if isinstance(excinfo.value, pytest.fail.Exception) and not excinfo.value.pytrace:
            return gate_message(str(excinfo.value), self.path)
        return super().repr_failure(excinfo, *args, **kwargs)


class DeclaredTest(_ToldByGates, pytest.Function):
    """One gate of one case of a declared kernel."""

    gate: Gate
    spec: KernelSpec
    case: Case
    arch: str
    module_name: str
    engine: Engine
    inputs: str = "normal"
    """Name of the inputs that it is checked with."""

    @property
    def compiled(self) -> CompileCase:
        """What is compiled for it."""
        return compile_case(self.spec, self.case, self.arch, duet=self.engine.duet, module=self.module_name)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Point reports at the kernel's launcher, not at this plugin."""
        code = getattr(inspect.unwrap(self.spec.launch), "__code__", None)
        here = code is not None and Path(code.co_filename) == self.path
        return self.path, code.co_firstlineno - 1 if code is not None and here else 0, self.name


class KernelSearchTest(_ToldByGates):
    """The search for failing cases of a declared kernel."""

    engine: Engine
    spec: KernelSpec

    def runtest(self) -> None:
        """Search for as long as was asked for."""
        from pytest_cutile.gates.search import KernelSearch

        __tracebackhide__ = True
        budget = self.engine.settings.search
        if budget is None:
            raise RuntimeError("a search is collected only where one was asked for")
        search = KernelSearch(self.engine, spec=self.spec, arch=self.engine.gpu_arch)
        search.run(seconds=budget.seconds, seed=budget.seed)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Point to the module."""
        return self.path, 0, self.name


def collected_all_kernels(engine: Engine, locations: Iterable[KernelLocation]) -> bool:
    """Say whether every module that may declare kernels was collected."""
    files = (
        path
        for each in locations
        for path in (each.path.rglob("*.py") if each.path.is_dir() else (each.path,))
        if each.module_of(path) is not None
    )
    return all(path.resolve() in engine.collected_modules for path in files)


def stale_entries(engine: Engine, collected: Collected, *, all_kernels: bool) -> list[str]:
    """Return a line for each baseline of which no case is left.

    Args:
        engine: of the run.
        collected: by which a test function is known that is gone; so is one whose file is.
        all_kernels: whether all declared kernels were collected; else nobody knows which of them are gone.
    """
    declared = {
        f"{spec.name}[{case.name}]": case.speed for spec, _ in engine.declared.values() for case in spec.cases
    }
    speeds = {key for key, speed in declared.items() if speed}

    def is_gone(key: str) -> bool:
        file, is_test, _ = key.partition("::")
        if not is_test:
            return all_kernels
        return not (engine.settings.rootpath / file).exists() or collected.lacks(key)

    found = []
    for path, keys, present in _recorded(engine, speeds, {*declared}):
        gone = sorted(key for key in keys if key not in present and is_gone(key))
        if gone:
            more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""  # noqa: PLR2004
            names = f"{', '.join(gone[:3])}{more}"
            found.append(f"stale: {engine.shown(path)} has {names}: no such case is left; delete it")
    return found


def _recorded(
    engine: Engine, speeds: set[str], declared: set[str]
) -> Iterator[tuple[Path, Iterable[str], set[str]]]:
    """Yield each file of baselines of this run, the keys that were recorded, and those of today's cases."""
    try:
        if engine.device is not None and (path := engine.baseline_file) is not None:
            entries = engine.baselines.entries if engine.baselines is not None else {}
            yield path, [key for key, entry in entries.items() if entry.published is None], speeds
        for arch in engine.architectures:
            file, static = engine.static_baselines(arch), engine.static_file(arch)
            if file is not None and static is not None:
                yield static, file.entries, declared
    except BaselineError:  # the gates say it
        return


def cases_of(items: Iterable[pytest.Item], gate: Gate) -> list[CompileCase]:
    """Return what the collected tests of a gate compile; what an architecture cannot run is left out."""
    return [
        item.compiled
        for item in items
        if isinstance(item, DeclaredTest) and item.gate is gate and item.case.runs_on(item.arch)
    ]


def start_compilations(
    items: Iterable[pytest.Item], compilations: Compilations, static_gate: StaticGate
) -> None:
    """Start compiling, and reading, for every collected test that needs it, so that all cores have work."""
    items = list(items)
    compilations.start(cases_of(items, Gate.COMPILE))
    static_gate.start(cases_of(items, Gate.STATIC))


def split_untouched(
    items: Iterable[pytest.Item],
    compilations: Compilations,
    static_gate: StaticGate,
    *,
    gates: Container[Gate] = frozenset(Gate),
    start_at: float = 0.0,
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into those to run and those of declared cases that compile to what the baselines say.

    Args:
        items: the tests.
        compilations: of this run.
        static_gate: of this run.
        gates: of which gates tests are left out.
        start_at: where in the list to begin compiling, as a fraction: processes that begin at different
            places and share a cache share the work.

    Raises:
        BaselineError: the baselines cannot be used.
        RevisionError: a module of the revision to compare with cannot be imported.
    """
    items = list(items)
    cases = {
        id(item): item.compiled
        for item in items
        if isinstance(item, DeclaredTest) and item.gate in gates and item.case.runs_on(item.arch)
    }
    bases = [case.base() for case in cases.values() if case.base is not None]
    wanted = [*cases.values(), *(base for base in bases if base is not None)]
    first = int(len(wanted) * start_at)
    compilations.start(wanted[first:] + wanted[:first])
    changed: list[pytest.Item] = []
    untouched: list[pytest.Item] = []
    for item in items:
        case = cases.get(id(item))
        same = case is not None and static_gate.is_untouched(case)
        (untouched if same else changed).append(item)
    return changed, untouched


def _specs_of(module: ModuleType, *, required: bool) -> list[KernelSpec]:
    found = getattr(module, "SPECS", None)
    if found is None:
        found = [module.SPEC] if hasattr(module, "SPEC") else []
    elif not isinstance(found, list | tuple) or not found:
        raise SpecError(f"SPECS must be a list of pytest_cutile.KernelSpec, not empty; got {found!r}")
    for spec in found:
        if not isinstance(spec, KernelSpec):
            raise SpecError(
                f"SPEC must be a pytest_cutile.KernelSpec (SPECS a list of them), got {type(spec).__name__}"
            )
    if required and not found:
        raise SpecError(
            "it is listed in the ini option cutile_kernels but declares no SPEC (or SPECS): "
            "nothing of it would be gated"
        )
    names = [spec.name for spec in found]
    if len(set(names)) != len(names):
        raise SpecError(f"two specs have the same name; names are baseline keys and must be unique: {names}")
    return list(found)


def _check_domains(specs: Iterable[KernelSpec]) -> None:
    from pytest_cutile.gates.search import domain_of

    for spec in specs:
        domain_of(spec)


def _compile(_cutile_gates: Any) -> None:
    __tracebackhide__ = True
    _cutile_gates.compile()


def _static(_cutile_gates: Any) -> None:
    __tracebackhide__ = True
    outcome = _cutile_gates.static()
    if outcome.failure is not None:
        pytest.fail(outcome.failure, pytrace=False)


def _correct(_cutile_gates: Any) -> None:
    __tracebackhide__ = True
    _cutile_gates.correct()


def _speed(_cutile_gates: Any, _cutile_benchmark: Any) -> None:
    __tracebackhide__ = True
    outcome = _cutile_gates.speed()
    if outcome.measurement is not None:
        _cutile_benchmark(outcome.measurement)
    if outcome.failure is not None:
        pytest.fail(outcome.failure, pytrace=False)
