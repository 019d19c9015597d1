"""Run pytest on a sound project and on each planted bug, on a terminal of 100 columns; write what it shows.

    python -m research.screens FOLDER [NAME ...]

Needs no GPU. Two screens pretend one, with the timer of the plugin's tests, which launches nothing there.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.plugin.conftest import ENVIRONMENT, IN_THIS_PROCESS, TIMER
from tests.plugin.test_unchanged import NO_LAUNCHES

PROJECT = Path(__file__).parent / "project"
NO_CHECKS = """
from pytest_cutile.gates.speed import timed_case

timed_case.check_task = lambda *_, **__: None
"""
WORK = Path(tempfile.gettempdir(), "screens")
COLUMNS = "100"
ON_GPU = ("-m", "cutile_compile or cutile_static or cutile_speed")
"""What runs with the pretended GPU: everything that launches nothing."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug: a text of the sound project, and what stands there instead."""

    file: str = ""
    old: str = ""
    new: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further texts of the same file."""
    args: tuple[str, ...] = ()
    """Arguments of pytest."""
    recorded: bool = False
    """Whether the sound project's baselines are recorded first."""
    times: tuple[float, ...] = ()
    """With a pretended GPU: microseconds of a launch, recorded and now."""


SCREENS = {
    "clean": Planted(),
    "clean-recorded": Planted(recorded=True),
    "clean-recording": Planted(args=("--update-baselines",)),
    "clean-gpu": Planted(times=(240.0, 240.5), args=ON_GPU),
    "lost-tile": Planted(
        file="matmul.py", old="range(ct.cdiv(A.shape[1], TK))", new="range(ct.cdiv(A.shape[1], TK) - i // 3)"
    ),
    "missing-mask": Planted(file="softmax.py", old="PaddingMode.NEG_INF", new="PaddingMode.ZERO"),
    "off-by-one-tile": Planted(file="vectors.py", old="ct.load(X, (i,)", new="ct.load(X, (i + 1,)"),
    "bf16-accumulator": Planted(
        file="matmul.py",
        old="acc = ct.mma(a, b, acc)",
        new="acc = ct.mma(a, b, acc).astype(ct.bfloat16).astype(ct.float32)",
    ),
    "race": Planted(
        file="vectors.py", old="ct.atomic_add(S, 0, part)", new="ct.scatter(S, 0, ct.gather(S, 0) + part)"
    ),
    "out-of-bounds": Planted(
        file="vectors.py", old="ct.scatter(Y, at, x * 2)", new="ct.scatter(Y, at, x * 2, check_bounds=False)"
    ),
    "nan": Planted(file="softmax.py", old="ct.exp(x - ct.max(x, axis=1, keepdims=True))", new="ct.exp(x)"),
    "unwritten-tail": Planted(
        file="vectors.py", old="blocks = ct.cdiv(x.numel(), TILE)", new="blocks = x.numel() // TILE"
    ),
    "mutated-input": Planted(file="vectors.py", old="y = torch.empty_like(x)", new="y = x"),
    "compile-error": Planted(file="matmul.py", old="(TK, TN), padding", new="(TN, TN), padding"),
    "slower": Planted(
        file="matmul.py",
        old="64, 64, 32",
        new="32, 64, 32",
        times=(240.0, 254.4),
        args=("matmul.py", "-m", "cutile_speed"),
    ),
    "spilling": Planted(
        file="matmul.py",
        old="64, 64, 32",
        new="256, 256, 64",
        recorded=True,
        args=("-m", "not cutile_correct"),
    ),
}


def make_project(folder: Path, screen: Planted) -> None:
    """Write the project of a screen, with its bug, and record baselines where the screen needs them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PROJECT, folder)
    if screen.times:
        (folder / "conftest.py").write_text(TIMER + IN_THIS_PROCESS + NO_LAUNCHES + NO_CHECKS)
        (folder / ".gitignore").write_text("times.json\ntimed\n__pycache__\n.benchmarks\n")
        recorded, _ = screen.times
        _write_times(folder, recorded)
        _git(folder, "init", "-q", "-b", "main")
        _commit(folder)
        _pytest(folder, ("--update-baselines", *ON_GPU))
        _commit(folder)
    elif screen.recorded:
        _pytest(folder, ("--update-baselines", "-m", "cutile_static"))
    if screen.file:
        file = folder / screen.file
        text = file.read_text()
        if text.count(screen.old) != 1:
            raise ValueError(f"{screen.file} has {screen.old!r} {text.count(screen.old)} times")
        file.write_text(text.replace(screen.old, screen.new))
    if screen.times:
        _write_times(folder, screen.times[1])


def _git(folder: Path, *args: str) -> None:
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", *identity, *args], cwd=folder, check=True)  # noqa: S607


def _commit(folder: Path) -> None:
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "What there is")


def _write_times(folder: Path, us: float) -> None:
    state = {"burst": [us], "baseline_burst": [240.0], "sustained": [None], "baseline_sustained": [260.0]}
    more = {"environment": ENVIRONMENT, "problems": [], "workload_us": None}
    (folder / "times.json").write_text(json.dumps(state | more))


def _pytest(folder: Path, args: tuple[str, ...]) -> str:
    """Return what pytest writes to a terminal, as the terminal then shows it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "GITHUB"))}
    environment |= {"COLUMNS": COLUMNS, "CUDA_VISIBLE_DEVICES": "", "TERM": "xterm"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        written += chunk
    process.wait()
    os.close(ours)
    text = re.sub(r"\x1b7.*?\x1b8|\x1b(\[[0-9;?]*[A-Za-z]|.)", "", written.decode())  # also the status line
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))


def main() -> None:
    """Write the screens that are asked for, or all of them."""
    target, *names = sys.argv[1:]
    Path(target).mkdir(parents=True, exist_ok=True)
    for name in names or SCREENS:
        screen = SCREENS[name]
        make_project(WORK / name, screen)
        shown = _pytest(WORK / name, screen.args)
        command = " ".join(["$ pytest", *(f"'{arg}'" if " " in arg else arg for arg in screen.args)])
        (Path(target) / f"{name}.txt").write_text(f"{command}\n{shown}")
        print(f"{name}: {len(shown.splitlines())} lines", flush=True)


if __name__ == "__main__":
    main()
