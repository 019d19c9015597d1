"""A project that merely has the plugin installed pays next to nothing, and sees no warning."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.plugin.conftest import KERNEL, PRODUCT

pytestmark = pytest.mark.slow

SHOW_MODULES = """
import json, sys

def test_nothing(): pass

def test_modules():
    heavy = {"torch", "cuda.tile", "pynvml", "numpy", "msgspec", "filelock", "yaml"}
    ours = [name for name in sys.modules if name.startswith("pytest_cutile.")]
    light = ("plugin", "pytest_parts", "words.settings", "words.verdicts", "reports.formats")
    starts = tuple(f"pytest_cutile.{name}" for name in light)
    more = {name for name in ours if not name.startswith(starts)}
    more -= {"pytest_cutile.gates", "pytest_cutile.reports", "pytest_cutile.words"}
    print("LOADED", json.dumps(sorted(more | heavy & set(sys.modules))))
"""


PYTHON = sys.executable
"""Not what `tests/plugin/conftest.py` replaces it by, which has imported everything."""


def run(pytester, *args, **environment):
    """Run pytest in a process of its own, with every warning an error."""
    return subprocess.run(
        [PYTHON, "-W", "error", "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *args],
        cwd=pytester.path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_heavy_is_imported(pytester):
    pytester.makepyfile(SHOW_MODULES)
    result = run(pytester, "-s")
    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "LOADED" in line]
    assert json.loads(line.partition("LOADED ")[2]) == []
    assert "cuTile kernels" not in result.stdout


BOUNDARY = (
    *("plugin", "gates.session", "cli", "words.spec", "pytest_parts.collection", "pytest_parts.fixtures"),
    *("gates.declared", "gates.interpreted", "correctness.report", "correctness.errors"),
    "tile.tensors.seeded",
)
"""What plugin start-up and the collection of declared kernels import."""


def test_the_start_up_path_does_not_import_torch():
    code = "".join(f"import pytest_cutile.{name}\n" for name in BOUNDARY)
    code += "import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([PYTHON, "-c", code], check=False).returncode == 0


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without(pytester, names, *args, **environment):
    """Run pytest where packages are not installed."""
    (pytester.path / "missing.py").write_text(WITHOUT.format(names=names))
    path = os.pathsep.join([str(pytester.path), os.environ.get("PYTHONPATH", "")])
    return run(pytester, "-p", "missing", *args, PYTHONPATH=path, **environment)


ALL = ("torch", "pynvml", "cuda", "numpy")
WITHOUT_PLUGINS = ("-p", "no:benchmark", "-p", "no:xdist", "-p", "no:cacheprovider")


@pytest.mark.parametrize(
    ("names", "args"),
    [
        *((names, ()) for names in ((), ("torch",), ("pynvml",), ("cuda",), ALL)),
        *((names, WITHOUT_PLUGINS) for names in ((), ALL)),
    ],
    ids=lambda value: "-".join(value) or "nothing",
)
def test_no_warnings_whatever_is_missing(pytester, names, args):
    pytester.makepyfile("def test_nothing(): pass\ndef test_arch(arch): assert arch == 'sm_121'\n")
    result = run_without(pytester, names, *args, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout
    assert not re.search(r"\d+ warning|Warning", result.stdout + result.stderr)


def test_kernels_are_collected_as_on_windows_or_macos(pytester):
    """Pretended: no flock, no NVML, no cuda-tile. One kernel imports cuda.tile, the other one does not."""
    pytester.makepyfile(scale=KERNEL, tiled="import cuda.tile\n")
    pytester.makeini("[pytest]\ncutile_kernels =\n    scale\n    tiled\n")
    names = ("fcntl", "pynvml", "cuda")
    options = (*WITHOUT_PLUGINS, "--continue-on-collection-errors")
    result = run_without(pytester, names, *options, CUDA_VISIBLE_DEVICES="")
    missing = "cuda-tile is not installed"
    for text in (
        "1 failed, 3 skipped",
        "1 error",
        f"E   tiled.py: {missing}: pip install 'pytest-cutile[tileiras]'",
        f"E   {missing}, so no kernel can be compiled: pip install 'pytest-cutile[tileiras]'",
        f"not measured: 1 correct: no GPU of sm_121, and no interpreter: {missing}",
        "not measured: 1 speed: no GPU: nvidia-ml-py is not installed, so GPUs cannot be found",
        "not measured: 1 static: there is no compiled kernel, see the gate compile",
    ):
        assert text in result.stdout, result.stdout + result.stderr


def test_kernels_without_torch_say_how_to_get_it(pytester):
    pytester.makepyfile(mm=PRODUCT)
    pytester.makeini("[pytest]\ncutile_kernels = mm\n")
    options = (*WITHOUT_PLUGINS, "--arch", "sm_90,sm_121")
    result = run_without(pytester, ("torch",), *options, CUDA_VISIBLE_DEVICES="")
    missing = "torch is not installed: pip install 'pytest-cutile[torch]'"
    for text in (
        "1 failed, 5 skipped",
        f"E   {missing}",
        f"not measured: 1 compile: {missing} (mm[n256] for sm_90 failed for that)",
        f"not measured: 1 correct: {missing}",
        "not measured: 2 static: there is no compiled kernel, see the gate compile",
    ):
        assert text in result.stdout, result.stdout + result.stderr
    assert "No module named" not in result.stdout


def test_a_gate_without_torch_says_how_to_get_it(pytester):
    pytester.makepyfile("def test_tensor(make_tensor): make_tensor((2,), 'float32')\n")
    result = run_without(pytester, ("torch",))
    assert result.returncode == 1
    assert "pip install 'pytest-cutile[torch]'" in result.stdout
