"""Retired words stay retired: one meaning per name, and the field's words for it."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RETIRED = {
    r"weather": "session effect",
    r"duets?": "paired measurement",
    r"kernels? of\s+then": "baseline kernel",
    r"speakers?": "sentinel cases",
    r"births?|born": "origin",
    r"canar(y|ies)": "redzone",
    r"rungs?": "tolerance relaxation",
    r"untouched": "unchanged",
    r"no-worse": "not-worse",
    r"see\s+there": "the name of the function",
    r"HeldReports?|held reports?": "deferred reports",
    r"alterations?": "mutant",
    r"Unmeasured": "MeasurementFailed",
    r"Blocked": "GateSkipped",
    r"Engine": "Session",
    r"Control|timer\.control": "ReferenceWorkload, reference_workload",
    r"(?<!multi_gpu_)boards?": "GPU, for one physical device",
    r"partner(_median)?_us": "interleaved_us",
    r"check.strength|strength=|report\.strength": "mutation_test, mutation",
    r"held\s+against": "compared with",
    r"(take|taking|takes|took) turns with": "interleaved with",
}
"""A pattern of whole words, and what to write instead."""
SHARED_NAMES = {
    "Block",  # of Tile IR; of samples
    "Run",  # of the interpreter, public; in a baseline
}
"""Names of two classes or aliases. The list is to get shorter: who searches a name wants one definition."""
PRONOUNS = {"found", "each", "told", "those"}
"""Names of variables that leave open what the variable holds."""
CODE = ("pytest_cutile", "models", "studies", "research", "tools", "kernels", "examples")
"""The folders whose variables are named by nouns."""
DATA = (".json", ".jsonl", ".lock", ".svg", ".webp")


def texts() -> "list[Path]":
    """Return the tracked text files, but for data, this list, and the changelog, which tells of renames."""
    if not (ROOT / ".git").exists():
        pytest.skip("an exported tree: git does not say which files are the project's")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    files = [ROOT / name for name in listed if name and not name.endswith(DATA)]
    return [file for file in files if file.is_file() and file not in (Path(__file__), ROOT / "CHANGELOG.md")]


@pytest.fixture(scope="module")
def contents() -> "dict[str, str]":
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in texts()}


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_is_not_used(contents, word):
    pattern = re.compile(rf"(?<![a-zA-Z])({word})(?![a-zA-Z])")
    uses = [
        f"{name}:{text.count(chr(10), 0, use.start()) + 1}: {use[0]!r}"
        for name, text in contents.items()
        for use in pattern.finditer(text)
    ]
    assert not uses, f"write {RETIRED[word]!r} instead of:\n" + "\n".join(uses)


def test_a_class_or_an_alias_has_a_name_of_its_own():
    names = Counter(
        name
        for file in (ROOT / "pytest_cutile").rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        for name in _types(node)
        if not name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == SHARED_NAMES


def _types(node: ast.stmt) -> "Iterator[str]":
    """Yield the names of the classes and aliases that a statement of a module defines."""
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = (target.id for target in targets if isinstance(target, ast.Name))
        yield from (name for name in names if name[:1].isupper() and not name.isupper())


def test_a_variable_is_named_by_a_noun():
    uses = [
        f"{file.relative_to(ROOT)}:{line}: {name!r}"
        for folder in CODE
        for file in (ROOT / folder).rglob("*.py")
        for name, line in _variables(ast.parse(file.read_text(encoding="utf-8")))
        if name in PRONOUNS
    ]
    assert not uses, "write what the variable holds instead of:\n" + "\n".join(uses)


def _variables(tree: ast.Module) -> "Iterator[tuple[str, int]]":
    """Yield the name and the line of each assigned variable, each assigned attribute and each parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
