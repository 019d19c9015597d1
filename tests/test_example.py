"""The project in examples/, as its user has it: the built wheel, in an environment of its own."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "row_softmax"


def run(*command: str | Path, cwd: Path, status: Sequence[int] = (0,)) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "COV"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_example_gates_its_kernel_with_the_installed_wheel(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("pytest_cutile-*.whl")
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    # torch first and constrained: pip takes the CPU build where one is offered.
    # Without --no-compile, pip compiles all of torch, which takes a quarter of the test.
    install = (python, "-m", "pip", "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt")
    for requirement in ("torch", f"{wheel}[tileiras,static]"):
        run(*install, requirement, cwd=tmp_path)

    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    recorded = run(python, "-m", "pytest", "--update-baselines", cwd=project)
    assert "compiled kernels recorded in baselines/sm_121-static.json" in recorded
    gated = run(python, "-m", "pytest", cwd=project)
    assert re.search(r"softmax +\d+ +\d+, \d+ not measured +\d+ +no ", gated)

    kernel = project / "row_softmax.py"
    kernel.write_text(
        kernel.read_text().replace("padding_mode=ct.PaddingMode.NEG_INF", "padding_mode=ct.PaddingMode.ZERO")
    )
    wrong = run(python, "-m", "pytest", cwd=project, status=[1])
    assert "row_softmax.py::correct[fp16-37x1000" in wrong
    assert "wrong result" in wrong


def test_the_example_is_the_kernel_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"```python\n# row_softmax\.py\n(.*?)```", readme, re.DOTALL)
    kept = (EXAMPLE / "row_softmax.py").read_text().partition('"""\n\n')[2]
    assert "".join(kept.split()) == "".join(shown.split())


GRADIENTS = ROOT / "examples" / "gradients"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("", "", "", "swiglu +4 +3, 1 not measured "),
        (
            "rms_norm.py",
            "range(part, X.shape[0], PARTS)",
            "range(part + PARTS, X.shape[0], PARTS)",
            "gradient of [xw]",
        ),
        ("rms_norm.py", "dx = r * (g - h", "dx = (g - h", "gradient of x"),
        ("swiglu.py", "dy * b * s * (1.0 + a * (1.0 - s))", "dy * b * s", "gradient of a"),
    ],
    ids=["right", "a row of blocks is lost", "a factor is missing", "a term is missing"],
)
def test_the_kernels_with_a_backward_pass(tmp_path: Path, file: str, old: str, new: str, said: str) -> None:
    project = tmp_path / "gradients"
    shutil.copytree(GRADIENTS, project, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    if file:
        text = (project / file).read_text()
        assert text.count(old) == 1
        (project / file).write_text(text.replace(old, new))
    options = ["-m", "cutile_correct", "--perf-baseline=none", *(["-x", file] if file else [])]
    text = run(sys.executable, "-m", "pytest", *options, cwd=project, status=[bool(file)])
    assert re.search(said, text), text
