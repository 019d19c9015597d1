"""Packages of kernels that a test writes and imports."""

import importlib
import itertools
from types import ModuleType

import pytest

from tests.tile.compiler.source_texts import HELPERS, KERNELS

_names = (f"source_case_{number}" for number in itertools.count())


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import the two files, changed, as a package of their own."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(*changes: tuple[str, str], kernels: str = KERNELS, helpers: str = HELPERS) -> ModuleType:
        texts = {"kernels": kernels, "helpers": helpers, "__init__": ""}
        for old, new in changes:
            [place] = [name for name, text in texts.items() if old in text]
            assert texts[place].count(old) == 1, f"{old!r} is in {place} more than once"
            texts[place] = texts[place].replace(old, new)
        folder = tmp_path / next(_names)
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(f"{folder.name}.kernels")

    return load
