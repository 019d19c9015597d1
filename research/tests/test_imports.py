"""Scripts of tools/ and research/ are run by hand, on machines that few have: here they are imported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["research", "tools"])
def test_every_script_can_be_imported(folder):
    """In a process of their own: some are plugins, which change what they import."""
    names = sorted(f"{folder}.{file.stem}" for file in (ROOT / folder).glob("*.py"))
    assert {"research": "research.planted_slowdowns", "tools": "tools.tune_kernels"}[folder] in names
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
