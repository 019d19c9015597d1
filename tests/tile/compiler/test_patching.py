"""What is replaced for launch code, and what is not replaced while modules are imported."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import SimpleNamespace

import pytest

from pytest_cutile.tile.compiler.trace.patching import Replacements


@pytest.mark.parametrize(("module", "seen"), [("colorsys", "replaced"), ("module_of_nobody", "original")])
def test_pythons_own_modules_are_imported_without_a_pause(monkeypatch, module, seen):
    """A thread that compiles imports some: launch code of another thread would see no GPU meanwhile."""
    torch = SimpleNamespace(answer="original")
    answers = []
    finder = SimpleNamespace(find_spec=lambda *_: answers.append(torch.answer))
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with Replacements([(torch, "answer", "replaced")]), contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(module)
    assert answers == [seen]
    assert torch.answer == "original"
