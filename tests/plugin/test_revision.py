"""Kernels of a git revision in the same process as the working tree's: which modules are seen, and when."""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.util
import inspect
import linecache
import os
import pickle
import py_compile
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pytest_cutile
from pytest_cutile.gates.revisions import trees as revision_trees
from pytest_cutile.gates.revisions.modules import Revision, RevisionError

KERNEL = """
import dataclasses

import pytest_cutile

from . import config
from .helpers import factor


@dataclasses.dataclass(frozen=True)
class Tiles:
    m: int = 1


def launch(x):
    from mykernels.lazy import offset

    return x * factor() + offset()


SPEC = pytest_cutile.KernelSpec(
    name="scale",
    launch=launch,
    reference=launch,
    inputs=lambda make_tensor: (),
    cases=[pytest_cutile.Case(name="only")],
)
"""

FILES = {
    "mykernels/__init__.py": "",
    "mykernels/scale.py": KERNEL,
    "mykernels/config.py": "SIZE = 1",
    "mykernels/helpers.py": "def factor():\n    return 2",
    "mykernels/lazy.py": "def offset():\n    return 100",
    "single.py": "import mykernels.helpers\n\ndef version():\n    return 'old'",
}
CHANGES = {
    "mykernels/helpers.py": "def factor():\n    return 3",
    "mykernels/lazy.py": "def offset():\n    return 200",
    "single.py": "# moved\n\n\ndef version():\n    return 'new'",
}
NAMES = {"mykernels", "single", "generated", "mynamespace", "removed", "added", "lone"}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


def commit(folder: Path, files: dict[str, str]) -> str:
    """Write files and commit everything; return the commit's id."""
    write(folder, files)
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=change")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A checkout with one commit, changed since, and on sys.path."""
    folder = tmp_path / "project"
    folder.mkdir()
    commit(folder, FILES)
    write(folder, CHANGES)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def look_at(tmp_path, monkeypatch):
    """Make revisions that are closed at the end, when all that was imported is forgotten, too."""
    modules = dict(sys.modules)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    with contextlib.ExitStack() as resources:

        def make(rootpath: Path, name: str = "HEAD", *, cache_dir: Path | None = tmp_path / "cache"):
            revision = Revision(name, rootpath=rootpath, cache_dir=cache_dir)
            resources.callback(revision.close)
            return revision

        yield make
    for name in sys.modules.keys() - modules.keys():
        if name.partition(".")[0] in NAMES:
            del sys.modules[name]


def file_of(module: str) -> Path:
    file = importlib.import_module(module).__file__
    assert file is not None
    return Path(file)


def launch_both(revision: Revision) -> tuple[int, int]:
    """Return what the launchers of the revision and of the working tree make of 1."""
    new = importlib.import_module("mykernels.scale").SPEC
    spec = revision.spec("mykernels.scale", "scale")
    assert spec is not None
    with revision.active():
        old = spec.launch(1)
    return old, new.launch(1)


# -- two versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["cache", "temporary"])
def test_two_versions_call_their_own_helpers(repository, look_at, tmp_path, kept):
    revision = look_at(repository, cache_dir=tmp_path / "cache" if kept else None)
    assert revision.commit == git(repository, "rev-parse", "HEAD")
    assert launch_both(revision) == (102, 203)
    assert launch_both(revision) == (102, 203)
    rootpath = revision.rootpath
    assert (rootpath / "mykernels" / "lazy.py").exists()
    revision.close()
    assert rootpath.exists() == kept


def test_modules_are_loaded_once(repository, look_at):
    revision = look_at(repository)
    spec = revision.spec("mykernels.scale", "scale")
    assert revision.spec("mykernels.scale", "scale") is spec
    assert revision.spec("mykernels.scale", "other") is None
    with revision.active():
        module = sys.modules["mykernels.scale"]
        assert importlib.import_module("mykernels.scale") is module
        assert importlib.import_module("mykernels").scale is module
    assert importlib.import_module("mykernels.scale") is not module
    assert importlib.import_module("mykernels").scale is not module


def test_everything_is_restored(repository, look_at):
    importlib.import_module("mykernels.scale")
    revision = look_at(repository)
    revision.spec("mykernels.scale", "scale")
    before = dict(sys.modules), sys.path.copy(), sys.meta_path.copy()

    with pytest.raises(ZeroDivisionError), revision.active(), revision.active():  # noqa: PT012
        assert file_of("single") == revision.rootpath / "single.py"
        sys.path.append("elsewhere")
        raise ZeroDivisionError
    assert (sys.modules, sys.path, sys.meta_path) == before
    importlib.import_module("single")
    with revision.active():
        with revision.active():
            pass
        assert importlib.import_module("single").version() == "old"
    assert importlib.import_module("single").version() == "new"


def test_libraries_first_imported_by_the_revision_stay(repository, look_at, tmp_path, monkeypatch):
    write(tmp_path / "site", {"lone/__init__.py": "", "lone/part.py": ""})
    monkeypatch.syspath_prepend(tmp_path / "site")
    revision = look_at(repository)
    with revision.active():
        module = importlib.import_module("lone.part")
    assert importlib.import_module("lone").part is module


def test_functions_have_their_counterpart(repository, look_at):
    commit(repository, {"single.py": "def added(): pass", "conftest.py": "def helper(): pass"})
    write(
        repository,
        {
            "single.py": """
            import functools

            class Scale:
                def method(self): pass

                @staticmethod
                def static(): return "new"

            def version(): return "new"

            def added(): pass

            nameless = lambda: None

            @functools.cache
            def cached(): return "new"
            """,
        },
    )
    new = importlib.import_module("single")
    revision = look_at(repository, "HEAD~1")
    old = revision.counterpart(new.version)
    assert old is not None
    assert (old(), new.version()) == ("old", "new")
    assert revision.counterpart(new.added) is None
    with revision.active():
        assert revision.counterpart(new.version) is old
    assert revision.counterpart(old) is None

    revision = look_at(repository)
    assert revision.counterpart(new.version) is None
    assert revision.counterpart(new.added)() is None
    commit(repository, {})
    revision = look_at(repository)
    assert revision.counterpart(new.cached)() == "new"
    assert revision.counterpart(new.cached) is not new.cached
    assert revision.counterpart(new.Scale.static)() == "new"
    for other in (new.nameless, new.Scale().method, functools.partial(new.version), len, textwrap.dedent):
        assert revision.counterpart(other) is None


def test_what_looks_at_source_and_classes_sees_the_right_ones(repository, look_at):
    new = importlib.import_module("single")
    module = importlib.import_module("mykernels.scale")
    revision = look_at(repository)
    old = revision.counterpart(new.version)
    assert "'old'" in inspect.getsource(old)
    assert "'new'" in inspect.getsource(new.version)
    assert linecache.getline(old.__code__.co_filename, 4).strip() == "return 'old'"
    with revision.active():
        tiles = importlib.import_module("mykernels.scale").Tiles(m=4)
        assert pickle.loads(pickle.dumps(tiles)) == tiles
        assert inspect.getsourcefile(type(tiles)) == str(revision.rootpath / "mykernels" / "scale.py")
    assert type(tiles) is not module.Tiles
    assert pickle.loads(pickle.dumps(module.Tiles())) == module.Tiles()


def test_a_cutile_kernel_can_be_imported_twice(repository, look_at):
    text = """
    import cuda.tile as ct
    import cuda.tile

    @ct.kernel
    def copy(A, B):
        ct.store(B, (0,), ct.load(A, (0,), ({},)))

    assert cuda.tile is ct
    """
    # Folders of CUDA sources look like portions of the namespace package `cuda`.
    commit(repository, {"single.py": text.format(16), "cuda/copy.cu": "", "cuda/pieces.py": "TEXT = 'old'"})
    write(repository, {"single.py": text.format(32), "cuda/pieces.py": "TEXT = 'new'"})
    importlib.invalidate_caches()
    new = importlib.import_module("single")
    assert importlib.import_module("cuda.pieces").TEXT == "new"
    revision = look_at(repository)
    with revision.active():
        old = importlib.import_module("single")
        assert importlib.import_module("cuda.pieces").TEXT == "old"
    assert old.ct is new.ct
    assert old.ct.__spec__.origin == new.ct.__file__
    assert old.copy is not new.copy
    assert sys.modules["cuda"].pieces.TEXT == "new"
    assert sys.modules["cuda"].tile is new.ct
    del sys.modules["cuda.pieces"]


# -- what the revision and the working tree do not have in common -------------------------------------


def test_modules_added_and_removed_since(repository, look_at):
    commit(repository, {"removed.py": "import single\nTEXT = single.version()", "mykernels/gone.py": "X = 1"})
    (repository / "removed.py").unlink()
    (repository / "mykernels" / "gone.py").unlink()
    write(repository, {"added.py": "def f(): pass", "mykernels/later.py": KERNEL})
    importlib.invalidate_caches()
    added = importlib.import_module("added")
    importlib.import_module("mykernels.later")
    revision = look_at(repository)
    assert revision.spec("mykernels.later", "scale") is None
    assert revision.spec("added", "scale") is None
    assert revision.counterpart(added.f) is None
    with revision.active():
        assert importlib.import_module("removed").TEXT == "new"
        assert importlib.import_module("mykernels.gone").X == 1
        assert importlib.util.find_spec("nowhere") is None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("added")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("removed")
    assert importlib.import_module("added") is added


def test_a_module_that_is_not_in_the_revision_is_not_another_of_that_name(
    repository, look_at, tmp_path, monkeypatch
):
    write(tmp_path / "site", {"added.py": KERNEL})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    write(repository, {"added.py": "WHERE = 'project'"})
    importlib.invalidate_caches()
    assert importlib.import_module("added").WHERE == "project"
    assert look_at(repository).spec("added", "scale") is None


def test_a_package_may_have_been_a_module(repository, look_at):
    (repository / "single.py").unlink()
    write(repository, {"single/__init__.py": "def version(): return 'package'"})
    importlib.invalidate_caches()
    new = importlib.import_module("single")
    assert new.version() == "package"
    assert look_at(repository).counterpart(new.version)() == "old"


def test_what_git_ignores_is_shared(repository, look_at):
    commit(
        repository,
        {
            ".gitignore": "_*.py\n!__init__.py",
            "mykernels/__init__.py": "from mykernels._version import version",
            "mykernels/config.py": "import mykernels._loaded\nNUMBER = mykernels._loaded.NUMBER",
        },
    )
    write(repository, {"mykernels/_version.py": "version = '1.0'", "mykernels/_loaded.py": "NUMBER = 7"})
    importlib.invalidate_caches()
    loaded = importlib.import_module("mykernels._loaded")
    spec = loaded.__spec__
    with look_at(repository).active():
        package = importlib.import_module("mykernels.config")
        assert package.NUMBER == 7
        assert sys.modules["mykernels._loaded"] is loaded
        assert importlib.import_module("mykernels").version == "1.0"
    assert loaded.__spec__ is spec
    assert importlib.import_module("mykernels")._loaded is loaded


def test_a_module_that_fails_to_import_is_named(repository, look_at):
    sha = commit(repository, {"single.py": "1 / 0", "mykernels/scale.py": "import not_installed"})
    revision = look_at(repository)
    message = rf"the module single of HEAD \({sha[:12]}\) cannot be imported: ZeroDivisionError: division"
    with pytest.raises(RevisionError, match=message):
        revision.spec("single", "any")
    with pytest.raises(RevisionError, match=r"mykernels\.scale .* No module named 'not_installed'"):
        revision.spec("mykernels.scale", "scale")
    commit(repository, {"single.py": "import pytest\npytest.skip('no', allow_module_level=True)"})
    with pytest.raises(RevisionError, match="Skipped: no"):
        look_at(repository).spec("single", "any")


def test_the_plugin_itself_and_conftests_are_never_swapped(look_at, pytestconfig):
    revision = look_at(pytestconfig.rootpath)
    conftest = sys.modules["tests.plugin.conftest"]
    with revision.active():
        assert sys.modules["pytest_cutile"] is pytest_cutile
        gates = file_of("pytest_cutile.gates.declared")
        assert gates.is_relative_to(Path(pytest_cutile.__file__).parent)
        assert importlib.import_module("tests.plugin.conftest") is conftest
        launch = importlib.import_module("kernels._launch")
        assert file_of("kernels._launch") == revision.rootpath / "kernels" / "_launch.py"
    assert importlib.import_module("kernels._launch") is not launch
    assert sys.modules["tests.plugin.test_revision"] is sys.modules[__name__]


# -- layouts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [".", "sub/project", "src"])
def test_the_project_may_lie_anywhere_in_its_repository(tmp_path, look_at, monkeypatch, place):
    top = tmp_path / "repository"
    project = top / place
    project.mkdir(parents=True)
    commit(top, {f"{place}/{name}": text for name, text in FILES.items()})
    write(project, CHANGES)
    monkeypatch.syspath_prepend(project)
    rootpath = top if place == "src" else project
    revision = look_at(rootpath)
    assert launch_both(revision) == (102, 203)
    assert (revision.rootpath / "README").parent.is_relative_to(tmp_path / "cache" / "revisions")
    assert (revision.rootpath / ("src" if place == "src" else "") / "single.py").exists()


def test_the_current_directory_and_links_on_sys_path(repository, look_at, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(repository)
    for entry in ("", str(link)):
        monkeypatch.chdir(repository)
        monkeypatch.setattr(sys, "path", [entry, *(path for path in sys.path if path != str(repository))])
        for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
            del sys.modules[name]
        assert launch_both(look_at(link)) == (102, 203)


def test_namespace_packages(repository, look_at):
    text = "from .part import TEXT\ndef f(): return TEXT"
    commit(repository, {"mynamespace/a/kernel.py": text, "mynamespace/a/part.py": "TEXT = 'old'"})
    write(repository, {"mynamespace/a/part.py": "TEXT = 'new'"})
    importlib.invalidate_caches()
    new = importlib.import_module("mynamespace.a.kernel")
    revision = look_at(repository)
    old = revision.counterpart(new.f)
    assert (old(), new.f()) == ("old", "new")
    assert list(sys.modules["mynamespace"].__path__) == [str(repository / "mynamespace")]


class EditableFinder(importlib.abc.MetaPathFinder):
    """Finds top-level packages at fixed places, as the finders of editable installs do."""

    def __init__(self, **places: Path) -> None:
        self.places = places

    def find_spec(self, fullname, _path, _target=None):
        folder = self.places.get(fullname)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


@pytest.mark.parametrize("first", [True, False])
def test_editable_installs(repository, look_at, monkeypatch, first):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(repository)])
    finder = EditableFinder(mykernels=repository / "mykernels", added=repository / "added")
    sys.meta_path.insert(0 if first else len(sys.meta_path), finder)
    write(repository, {"added/__init__.py": "def f(): pass"})
    revision = look_at(repository)
    assert launch_both(revision) == (102, 203)
    assert revision.counterpart(importlib.import_module("added").f) is None


def test_a_module_of_the_working_tree_is_not_taken_for_the_revision(repository, look_at):
    text = """
    import importlib.util
    import sys

    spec = importlib.util.spec_from_file_location("lone", {!r})
    sys.modules["lone"] = importlib.util.module_from_spec(spec)
    """
    commit(repository, {"single.py": text.format(str(repository / "lone.py")), "lone.py": ""})
    revision = look_at(repository)
    message = f"the module lone of HEAD .* was imported from {repository / 'lone.py'}"
    with pytest.raises(RevisionError, match=message):
        revision.spec("single", "any")
    with pytest.raises(RevisionError, match=message), revision.active():
        importlib.import_module("single")
    assert "lone" not in sys.modules


# -- git ----------------------------------------------------------------------------------------------


def test_revisions_are_named_as_git_does(repository, look_at):
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "--annotate", "--message=v1", "v1")
    second = commit(repository, {"single.py": "def version(): return 'second'"})
    git(repository, "branch", "feature/x")
    for name in ("v1", "HEAD~1", first, first[:10]):
        assert look_at(repository, name).commit == first
    assert look_at(repository, "feature/x").commit == second
    assert look_at(repository).commit == second


@pytest.mark.parametrize("name", ["", " ", "-x", "--help", "nosuch", "HEAD:single.py", "main..main"])
def test_unknown_revisions(repository, look_at, name):
    with pytest.raises(RevisionError, match=r"git finds no commit .*git fetch|names no git revision"):
        look_at(repository, name)


def test_a_folder_without_git(tmp_path, look_at, repository, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    with pytest.raises(RevisionError, match=r"plain is in no git checkout.*not a git repository"):
        look_at(tmp_path / "plain")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RevisionError, match="git is not installed"):
        look_at(repository)


def test_variables_of_a_git_hook_do_not_lead_elsewhere(repository, look_at, monkeypatch):
    sha = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", ".git")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    assert look_at(repository / "mykernels").commit == sha


# Later Pythons have the filter, and complain where it is not given.
BEFORE_3_12 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="pretends Python 3.11.2")


@pytest.mark.parametrize("python", ["today's", pytest.param("3.11.2", marks=BEFORE_3_12)])
def test_links_out_of_the_tree_are_left_out(repository, look_at, monkeypatch, python):
    if python == "3.11.2":
        monkeypatch.delattr("tarfile.data_filter", raising=False)
    (repository / "absolute").symlink_to("/etc/passwd")
    (repository / "outside").symlink_to("../elsewhere")
    (repository / "inside.py").symlink_to("single.py")
    commit(repository, {})
    rootpath = look_at(repository).rootpath
    assert sorted(path.name for path in rootpath.glob("[!.]*")) == ["inside.py", "mykernels", "single.py"]


# -- the folder of extracted trees --------------------------------------------------------------------


def test_a_tree_is_extracted_once(repository, look_at, monkeypatch):
    rootpath = look_at(repository).rootpath
    (rootpath / "mark").touch()
    monkeypatch.setattr("pytest_cutile.gates.revisions.git.Repository.extract", None)
    assert (look_at(repository).rootpath / "mark").exists()


def test_a_tree_that_was_edited_is_restored_while_others_use_it(repository, look_at):
    """A search and replace over the project finds the trees in its cache, too, and their bytecode."""
    used = look_at(repository)
    py_compile.compile(str(used.rootpath / "single.py"))
    for path in [path for path in used.rootpath.rglob("*") if path.is_file()]:
        path.write_bytes(path.read_bytes().replace(b"old", b"new"))
    (used.rootpath / "mykernels" / "lazy.py").unlink()
    revision = look_at(repository)
    assert revision.rootpath == used.rootpath
    with revision.active():
        assert importlib.import_module("single").version() == "old"
    assert launch_both(used) == (102, 203)


def test_nothing_is_left_of_a_tree_that_cannot_be_extracted(repository, look_at, tmp_path, monkeypatch):
    def fail(*_args):
        raise OSError("disk full")

    monkeypatch.setattr("pytest_cutile.gates.revisions.git.Repository.extract", fail)
    with pytest.raises(RevisionError, match="cannot be written: disk full"):
        look_at(repository)
    assert not list((tmp_path / "cache" / "revisions").iterdir())


def test_old_trees_are_removed_unless_in_use(repository, look_at, tmp_path):
    first = look_at(repository)
    os.utime(first.rootpath, (0, 0))
    for number in range(6):
        commit(repository, {"number": str(number)})
        revision = look_at(repository)
        os.utime(revision.rootpath, (number, number))
        revision.close()
    folder = tmp_path / "cache" / "revisions"
    trees = {path.name for path in folder.iterdir()}
    assert len(trees) == revision_trees._TREES_KEPT + 1
    assert {first.commit, revision.commit} <= trees


@pytest.mark.parametrize("edited", [False, True])
def test_several_processes_extract_at_once(repository, look_at, tmp_path, edited):
    if edited:
        (look_at(repository, cache_dir=tmp_path).rootpath / "single.py").write_text("")
    script = f"""
    import sys
    from pathlib import Path

    sys.path.insert(0, {str(repository)!r})
    import single
    from pytest_cutile.gates.revisions.modules import Revision

    sys.stdin.readline()
    revision = Revision("HEAD", rootpath=Path({str(repository)!r}), cache_dir=Path({str(tmp_path)!r}))
    print(revision.counterpart(single.version)(), single.version())
    revision.close()
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(pytest_cutile.__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate() == ("old new\n", "")
    assert len(list((tmp_path / "revisions").iterdir())) == 1
