"""Run pytest on a sound project and on each planted bug, on a terminal of 100 columns; write what it shows.

    python -m research.screens FOLDER [NAME ...]

Needs no GPU. Two screens pretend one, with the timer of the plugin's tests: the kernel is plain torch.
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

from tests.plugin.conftest import ENVIRONMENT, IN_THIS_PROCESS, KERNEL, TIMER

PROJECT = Path(__file__).parent / "project"
WORK = Path(tempfile.gettempdir(), "screens")
COLUMNS = "100"


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
    "clean-gpu": Planted(times=(40.0, 40.1)),
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
    "slower": Planted(times=(40.0, 42.4)),
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
    if screen.times:
        folder.mkdir(parents=True)
        (folder / "conftest.py").write_text(TIMER + IN_THIS_PROCESS)
        (folder / "scale.py").write_text(KERNEL)
        (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\ncutile_kernels = scale\n")
    else:
        shutil.copytree(PROJECT, folder)
    if screen.times:
        recorded, now = screen.times
        gates = ("-m", "cutile_correct or cutile_speed")
        _write_times(folder, recorded)
        _pytest(folder, ("--update-baselines", *gates))
        _write_times(folder, now)
    elif screen.recorded:
        _pytest(folder, ("--update-baselines", "-m", "cutile_static"))
    if screen.file:
        file = folder / screen.file
        text = file.read_text()
        if text.count(screen.old) != 1:
            raise ValueError(f"{screen.file} has {screen.old!r} {text.count(screen.old)} times")
        file.write_text(text.replace(screen.old, screen.new))


def _write_times(folder: Path, us: float) -> None:
    state = {"burst": [us], "baseline_burst": [40.0], "sustained": [None], "baseline_sustained": [50.0]}
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
    text = re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|.)", "", written.decode())
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))


def main() -> None:
    """Write the screens that are asked for, or all of them."""
    target, *names = sys.argv[1:]
    Path(target).mkdir(parents=True, exist_ok=True)
    for name in names or SCREENS:
        screen = SCREENS[name]
        make_project(WORK / name, screen)
        args = screen.args or (("-m", "cutile_correct or cutile_speed") if screen.times else ())
        shown = _pytest(WORK / name, args)
        command = " ".join(["$ pytest", *(f"'{arg}'" if " " in arg else arg for arg in args)])
        (Path(target) / f"{name}.txt").write_text(f"{command}\n{shown}")
        print(f"{name}: {len(shown.splitlines())} lines", flush=True)


if __name__ == "__main__":
    main()
