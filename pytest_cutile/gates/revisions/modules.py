"""The project's modules as they were in a git revision, in the same process as those of the working tree.

The tree of the revision lies in a folder of its own. While the revision is active, sys.modules holds its
modules in place of the working tree's, sys.path leads to its folders, and an import hook prevents imports
from the working tree by another way, such as an editable install.

The project's modules are those whose file git does not ignore, submodules' among them. Both revisions share
everything else: libraries, files that git ignores (a generated `_version.py`, a built extension), conftest
modules, and pytest-cutile itself. Modules of tests are the project's like any other.

Limits. The swap concerns the whole process: no other thread may import anything meanwhile. What finds a class
by the name of its module (pickle, `inspect.getsource` of a class) finds the revision's only while it is
active; functions need no such care. What a module registers with a library under a name (an operator of
torch.library) exists once, for whichever module came last. A revision whose modules lay in folders that
sys.path does not lead to now counts as not having them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.util
import operator
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_cutile.gates.revisions.git import Repository, RevisionError
from pytest_cutile.gates.revisions.trees import extracted_tree
from pytest_cutile.words.spec import KernelSpec

__all__ = ["Revision", "RevisionError"]

_NEVER_SWAPPED = {__name__.partition(".")[0], "pytest", "_pytest", "pluggy", "__main__", "__mp_main__"}


class Revision:
    """The project's modules as they were in a git revision."""

    def __init__(
        self,
        name: str,
        *,
        rootpath: Path,
        cache_dir: Path | None,
        importing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Extract the revision.

        Args:
            name: a branch, a tag, a commit, or any other expression that git resolves to one.
            rootpath: the project under test; a checkout, or a folder inside of one.
            cache_dir: folder that keeps trees of revisions from run to run; None keeps nothing.
            importing: what is entered while a module is imported.

        Raises:
            RevisionError: there is no such revision, no git, or no place to extract it to.
        """
        repository = Repository(rootpath)
        self.name = name
        self._importing = importing
        self.commit = repository.commit(name)
        """The full id of its commit."""
        self._resources = contextlib.ExitStack()
        tree = self._resources.enter_context(extracted_tree(repository, self.commit, cache_dir))
        self.rootpath = tree / repository.prefix
        """The project in the revision's tree; absent if the revision lacks it."""
        self._trees = _Trees(repository.top, tree, repository.files())
        self._modules: dict[str, ModuleType] = {}
        self._elsewhere: dict[str, ModuleType] = {}
        """Modules whose files are in neither tree: most are, and swapping need not look at them again."""
        self._specs: dict[tuple[str, str], KernelSpec | None] = {}
        self._shared_files: dict[str, str] = {}
        self._hidden: dict[str, ModuleType] | None = None

    def close(self) -> None:
        """Release the tree. What was imported can still be called, but imports nothing more."""
        self._resources.close()

    def __str__(self) -> str:
        short = self.commit[:12]
        return short if self.commit.startswith(self.name) else f"{self.name} ({short})"

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let imports and sys.modules see the revision's modules in place of the working tree's.

        Reentrant. No other revision may be active.
        """
        if self._hidden is not None:
            yield
            return
        swapped = self._modules_to_swap()
        shared = _right_below(swapped)
        hidden = self._hidden = swapped | shared
        known, path = set(sys.modules), list(sys.path)
        finder = _Finder(self._trees, swapped=swapped, shared=shared)
        sys.meta_path.insert(0, finder)
        try:
            for name in hidden:
                del sys.modules[name]
            sys.modules.update(self._modules)
            sys.path[:] = [self._trees.to_revision(entry) for entry in path]
            importlib.invalidate_caches()
            yield
            self._check_origins()
        finally:
            self._hidden = None
            self._modules = {
                name: module
                for name, module in {**self._modules_of_trees(), **_loaded(hidden)}.items()
                if name in hidden or self._is_revision(module) or self._is_leak(name, module)
            }
            for name in self._modules:
                del sys.modules[name]
            sys.modules.update(hidden)
            _bind(sys.modules.keys() - known, hidden)
            sys.meta_path.remove(finder)
            sys.path[:] = path
            importlib.invalidate_caches()

    def owns(self, name: str) -> bool:
        """Return whether the revision has loaded a module of this name, or one below it."""
        return any(
            f"{module}.".startswith(f"{name}.") or f"{name}.".startswith(f"{module}.")
            for module in self._modules
        )

    def spec(self, module: str, name: str) -> KernelSpec | None:
        """Return the kernel that the revision's `module` declares under `name`, or None."""
        if (module, name) not in self._specs:
            imported = self._import(module)
            specs = getattr(imported, "SPECS", None) or [getattr(imported, "SPEC", None)]
            named = (spec for spec in specs if isinstance(spec, KernelSpec) and spec.name == name)
            self._specs[module, name] = next(named, None)
        return self._specs[module, name]

    def counterpart(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return the revision's callable of the same module and name as `function`.

        None if there is none, or if `function` is a lambda, a closure, a method of an instance, or not of the
        project.
        """
        module_name = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", None)
        if not isinstance(module_name, str) or not isinstance(name, str) or _is_shared(module_name):
            return None
        module = (self._hidden or {}).get(module_name) or sys.modules.get(module_name)
        if module is None or not self._is_working(module) or _attribute(module, name) != function:
            return None
        counterpart = _attribute(self._import(module_name), name)
        return counterpart if callable(counterpart) else None

    def shared_file(self, module: str) -> str:
        """Return a file of the checkout that is today's for the revision's `module`, too; "" without one.

        The module imports it, perhaps by others and within functions, and git does not track it. A generated
        version is no kernel's business.
        """
        if module not in self._shared_files:
            shared: list[str] = []
            with self.active(), _no_operator_registered_again():
                self._follow(module, dict.fromkeys(_NEVER_SWAPPED, False), shared)
            self._shared_files[module] = next(iter(shared), "")
        return self._shared_files[module]

    def _follow(self, name: str, is_followed: dict[str, bool], shared: list[str]) -> bool:
        """Say whether a module is the revision's; follow its imports, and add shared files to `shared`."""
        if name not in is_followed:
            package = name.rpartition(".")[0]
            is_found = not package or self._follow(package, is_followed, shared)
            spec = _find_spec(name) if is_found else None
            file = spec.origin if spec is not None and spec.has_location else ""
            is_followed[name] = spec is not None and (not file or self._trees.is_revision(file))
            if spec is not None and file and is_followed[name]:
                for imported in _imports(file, name if spec.submodule_search_locations else package):
                    self._follow(imported, is_followed, shared)
            elif file and self._trees.is_untracked(file) and "version" not in Path(file).stem:
                shared.append(self._trees.shown(file))
        return is_followed[name]

    def _import(self, name: str) -> ModuleType | None:
        with self.active(), _no_operator_registered_again(), self._importing():
            try:
                module = importlib.import_module(name)
            except (Exception, SystemExit, pytest.skip.Exception) as error:
                missing = error.name if isinstance(error, ModuleNotFoundError) else None
                if missing is not None and f"{name}.".startswith(f"{missing}."):
                    return None
                raise RevisionError(
                    f"the module {name} of {self} cannot be imported: {type(error).__name__}: {error}"
                ) from error
            self._check_origins()
            return module if self._is_revision(module) else None

    def _check_origins(self) -> None:
        for name, module in self._modules_of_trees().items():
            if self._is_leak(name, module):
                raise RevisionError(
                    f"the module {name} of {self} was imported from {module.__file__}, which belongs to "
                    "the working tree; if an import hook or an editable install leads there, put the "
                    "project's folder on sys.path instead (ini option pythonpath)"
                )

    # -- whose module is it? --------------------------------------------------------------------------

    def _modules_of_trees(self) -> dict[str, ModuleType]:
        """Return the loaded modules that may be of one of the trees."""
        modules = {}
        for name, module in list(sys.modules.items()):
            if self._elsewhere.get(name) is module:
                continue
            if _file(module) is None or self._is_working(module) or self._is_revision(module):
                modules[name] = module
            else:
                self._elsewhere[name] = module
        return modules

    def _is_working(self, module: ModuleType) -> bool:
        return any(map(self._trees.is_working, _places(module)))

    def _is_revision(self, module: ModuleType) -> bool:
        return any(map(self._trees.is_revision, _places(module)))

    def _is_leak(self, name: str, module: ModuleType) -> bool:
        return not _is_shared(name) and self._is_working(module) and _file(module) is not None

    def _modules_to_swap(self) -> dict[str, ModuleType]:
        """Return the project's modules, and the namespace packages around them."""
        modules = {
            name: module
            for name, module in self._modules_of_trees().items()
            if not _is_shared(name) and self._is_working(module)
        }
        for parent in {parent for name in modules for parent in _parents(name)}:
            if parent in sys.modules and _file(sys.modules[parent]) is None:
                modules[parent] = sys.modules[parent]
        return modules


@contextlib.contextmanager
def _no_operator_registered_again() -> Iterator[None]:
    """Let `torch.library.custom_op` refuse an operator that the process has: it would replace today's."""
    custom_ops: Any = sys.modules.get("torch._library.custom_ops")
    definition = getattr(custom_ops, "CustomOpDef", None)
    if definition is None:  # nothing is registered yet
        yield
        return
    original = definition.__init__

    def define(self: Any, namespace: str, name: str, *args: Any, **kwargs: Any) -> None:
        if f"{namespace}::{name}" in custom_ops.OPDEFS:
            raise RevisionError(
                f"it registers the operator {namespace}::{name} of torch.library, which a process has once: "
                "such a kernel cannot be measured interleaved with its baseline"
            )
        original(self, namespace, name, *args, **kwargs)

    definition.__init__ = define
    try:
        yield
    finally:
        definition.__init__ = original


class _Trees:
    """Paths of the project in the working tree and in the tree of the revision."""

    def __init__(self, working: Path, revision: Path, files: Iterable[Path]) -> None:
        self._working = working
        self._revision = revision
        # Strings: every module is asked for whenever trees are swapped, and a Path takes ten times as long.
        self._real: dict[str, str] = {}
        self._listed: set[str] = {str(working)}
        for file in files:
            self._listed.add(str(file))
            for folder in map(str, file.parents):
                if folder in self._listed:
                    break
                self._listed.add(folder)

    def is_working(self, path: str) -> bool:
        """Return whether `path` is a file of the project in the working tree, or a folder with one."""
        return self._resolve(path) in self._listed and not self.is_revision(path)

    def is_untracked(self, path: str) -> bool:
        """Return whether `path` lies in the working tree, and is neither the project's nor installed."""
        real = Path(self._resolve(path))
        installed = (sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
        return (
            real.is_relative_to(self._working)
            and not (self.is_working(path) or self.is_revision(path))
            and not any(map(real.is_relative_to, installed))
        )

    def shown(self, path: str) -> str:
        return str(Path(self._resolve(path)).relative_to(self._working))

    def is_revision(self, path: str) -> bool:
        real = self._resolve(path)
        return real == str(self._revision) or real.startswith(f"{self._revision}{os.sep}")

    def to_revision(self, path: str) -> str:
        """Return the revision's path of a file or folder of the project; any other path unchanged."""
        real = Path(self._resolve(path))
        if self.is_revision(path) or not real.is_relative_to(self._working):
            return path
        moved = self._revision / real.relative_to(self._working)
        return str(moved) if str(real) in self._listed or moved.exists() else path

    def to_working(self, path: str) -> str:
        """Return the working tree's path of a file or folder of the revision."""
        return str(self._working / Path(self._resolve(path)).relative_to(self._revision))

    def _resolve(self, path: str) -> str:
        path = os.path.abspath(path)  # noqa: PTH100 - relative paths and links may change their meaning
        if path not in self._real:
            self._real[path] = os.path.realpath(path)
        return self._real[path]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what other finders find, but in the revision where they find it in the working tree."""

    def __init__(
        self, trees: _Trees, *, swapped: dict[str, ModuleType], shared: dict[str, ModuleType]
    ) -> None:
        self._trees = trees
        self._swapped = swapped
        self._shared = shared

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loaded = ModuleSpec(fullname, _Loaded(self._shared[fullname])) if fullname in self._shared else None
        if _is_shared(fullname):
            return loaded
        places = sys.path if path is None else [self._trees.to_revision(entry) for entry in path]
        elsewhere = self._find_elsewhere(fullname, None if path is None else places, target)
        spec = self._moved(elsewhere)
        if spec is not None and any(map(self._trees.is_revision, _spec_places(spec))):
            return spec
        if loaded is not None:
            return loaded
        if spec is not None and not self._is_project(fullname):
            return spec
        spec = self._find_ignored(fullname, places)
        if spec is None and elsewhere is not None:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return spec

    def _find_elsewhere(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        return next((spec for spec in specs if spec is not None), None)

    def _moved(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        if spec is None or not any(map(self._trees.is_working, _spec_places(spec))):
            return spec
        # A package's file is one level deeper than a module's, or the folder of a namespace package.
        level = 1 if spec.has_location and spec.submodule_search_locations is not None else 0
        folders = [str(Path(self._trees.to_revision(place)).parents[level]) for place in _spec_places(spec)]
        return PathFinder.find_spec(spec.name, folders)

    def _find_ignored(self, name: str, path: Sequence[str]) -> ModuleSpec | None:
        """Find a module that git ignores among the project's files in the working tree."""
        folders = [self._trees.to_working(entry) for entry in path if self._trees.is_revision(entry)]
        spec = PathFinder.find_spec(name, folders)
        return None if spec is None or any(map(self._trees.is_working, _spec_places(spec))) else spec

    def _is_project(self, name: str) -> bool:
        return name in self._swapped and _file(self._swapped[name]) is not None


class _Loaded(importlib.abc.Loader):
    """Imports a module that is loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = getattr(module, "__spec__", None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the interface of loaders
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back."""
        module.__spec__ = self._spec


def _find_spec(name: str) -> ModuleSpec | None:
    """Find a module without importing any but its packages; None where that fails."""
    try:
        return importlib.util.find_spec(name)
    except Exception:  # noqa: BLE001 - a package's code may raise anything
        return None


def _imports(file: str, package: str) -> Iterator[str]:
    """Yield the names that a module imports, as far as its source tells."""
    tree = ast.parse(Path(file).read_bytes()) if file.endswith(".py") else ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # relative to more than there is
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _is_shared(name: str) -> bool:
    return name.partition(".")[0] in _NEVER_SWAPPED or name.rpartition(".")[2] == "conftest"


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def _file(module: ModuleType) -> str | None:
    # Not by getattr: modules that are imported when they are first asked for anything stay as they are.
    file = vars(module).get("__file__")
    return file if isinstance(file, str) else None


def _places(module: ModuleType) -> list[str]:
    """Return a module's file, or the folders of a namespace package."""
    if not isinstance(module, ModuleType):  # sys.modules may hold anything
        return []
    file = _file(module)
    if file is not None:
        return [file]
    try:
        return [place for place in vars(module).get("__path__", []) if isinstance(place, str)]
    except KeyError:  # a namespace package whose parent somebody removed from sys.modules
        return []


def _spec_places(spec: ModuleSpec) -> list[str]:
    if spec.has_location and spec.origin is not None:
        return [spec.origin]
    return [place for place in spec.submodule_search_locations or [] if Path(place).is_absolute()]


def _loaded(names: Iterable[str]) -> dict[str, ModuleType]:
    return {name: sys.modules[name] for name in names if name in sys.modules}


def _attribute(module: ModuleType | None, qualname: str) -> Any:
    try:
        return operator.attrgetter(qualname)(module)
    except AttributeError:
        return None


def _right_below(packages: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Return the other modules that are attributes of these packages.

    An import made them attributes, so for another set of packages they have to be imported again.
    """
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name not in packages and name.rpartition(".")[0] in packages
    }


def _bind(names: Iterable[str], packages: dict[str, ModuleType]) -> None:
    """Make modules attributes of their packages, where an import has not."""
    for name in names:
        parent, _, child = name.rpartition(".")
        if parent in packages:
            setattr(packages[parent], child, sys.modules[name])
