"""Collection of declared kernels: a module with a SPEC becomes tests, one per case and gate."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.core.results import Gate
from pytest_cutile.core.spec import Case, KernelSpec, SpecError
from pytest_cutile.gates.compiling import Compilations
from pytest_cutile.gates.declared import compile_case
from pytest_cutile.gates.engine import Engine

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
        """Return the dotted name of the module at `path`, or None if it does not belong here."""
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
    except (ImportError, ValueError) as error:
        raise pytest.UsageError(f"ini option cutile_kernels: {name!r}: {error}") from error
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
        """Yield the tests of every case: compile for each architecture, then correct, then speed."""
        module = self._import()
        self.obj = module
        specs = _specs_of(module, self.path, required=self.is_listed)
        for spec in specs:
            first = self.engine.declared.setdefault(spec.name, self.path)
            if first != self.path:
                raise self.CollectError(
                    f"the kernel name {spec.name!r} is declared in {first} and in {self.path}; names are "
                    "baseline keys: rename one"
                )
        for spec in specs:
            for case in spec.cases:
                yield from self._items(spec, case)

    def _import(self) -> ModuleType:
        try:
            return importlib.import_module(self.module_name)
        except SpecError as error:
            raise self.CollectError(f"{self.path}: {error}") from error
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in ("cuda", "torch"):
                extra = "torch" if error.name == "torch" else "tileiras"
                raise self.CollectError(
                    f"{self.path}: {error.name} is not installed: pip install 'pytest-cutile[{extra}]'"
                ) from error
            raise

    def _items(self, spec: KernelSpec, case: Case) -> Iterator[pytest.Item]:
        for arch in self.engine.architectures:
            yield self._item(Gate.COMPILE, spec, case, arch, f"{case.name}-{arch}", _compile)
        yield self._item(Gate.CORRECT, spec, case, self.engine.gpu_arch, case.name, _correct)
        if case.speed:
            yield self._item(Gate.SPEED, spec, case, self.engine.gpu_arch, case.name, _speed)

    def _item(
        self, gate: Gate, spec: KernelSpec, case: Case, arch: str, suffix: str, test: Callable[..., None]
    ) -> pytest.Item:
        item: DeclaredTest = DeclaredTest.from_parent(self, name=f"{gate}[{suffix}]", callobj=test)
        item.gate, item.spec, item.case, item.arch = gate, spec, case, arch
        item.add_marker(getattr(pytest.mark, f"cutile_{gate}"))
        return item


class DeclaredTest(pytest.Function):
    """One gate of one case of a declared kernel."""

    gate: Gate
    spec: KernelSpec
    case: Case
    arch: str

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any
    ) -> str | TerminalRepr:
        """Show a gate's own message as it is: there is no frame of the user's in its traceback."""
        if isinstance(excinfo.value, pytest.fail.Exception) and not excinfo.value.pytrace:
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Point reports at the kernel's launcher, not at this plugin."""
        code = getattr(self.spec.launch, "__code__", None)
        here = code is not None and Path(code.co_filename) == self.path
        return self.path, code.co_firstlineno - 1 if code is not None and here else 0, self.name


def start_compilations(items: Iterable[pytest.Item], compilations: Compilations) -> None:
    """Start compiling for every collected test of the gate `compile`, so that all cores have work."""
    compilations.start(
        compile_case(item.spec, item.case, item.arch)
        for item in items
        if isinstance(item, DeclaredTest) and item.gate is Gate.COMPILE
    )


def _specs_of(module: ModuleType, path: Path, *, required: bool) -> list[KernelSpec]:
    found: Any = getattr(module, "SPECS", None)
    if found is None:
        found = [module.SPEC] if hasattr(module, "SPEC") else []
    specs = list(found)
    for spec in specs:
        if not isinstance(spec, KernelSpec):
            raise KernelModule.CollectError(
                f"{path}: SPEC must be a pytest_cutile.KernelSpec (SPECS a list of them), "
                f"got {type(spec).__name__}"
            )
    if required and not specs:
        raise KernelModule.CollectError(
            f"{path} is listed in the ini option cutile_kernels but declares no SPEC (or SPECS): "
            "nothing of it would be gated"
        )
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise KernelModule.CollectError(
            f"{path}: two specs have the same name; names are baseline keys and must be unique: {names}"
        )
    return specs


def _compile(_cutile_gates: Any) -> None:
    __tracebackhide__ = True
    _cutile_gates.compile()


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
