"""Counters in the form of `ncu --csv --page raw --print-units base`, and a script in the place of ncu."""

import stat
import sys
from pathlib import Path
from typing import Any

NAMES = {
    "us": "gpu__time_duration.sum",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "xu": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "issued": "smsp__issue_active.avg.per_cycle_active",
    "waves": "launch__waves_per_multiprocessor",
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
    "long_scoreboard": "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "barrier": "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "selected": "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio",
}
"""Short names of metrics."""

SCRIPT = """\
#!{python}
import pathlib, subprocess, sys

here, words = pathlib.Path(__file__).parent, sys.argv[1:]
with (here / "calls").open("a") as file:
    print(*words, file=file)
if "--import" in words:
    print((here / "counters.csv").read_text())
elif (here / "says").exists():
    print((here / "says").read_text())
elif not subprocess.run(words[words.index({python!r}):]).returncode:
    pathlib.Path(words[words.index("--export") + 1]).write_text("a report")
"""


def raw_page(*kernels: dict[str, Any]) -> str:
    """Return CSV with the metrics of each kernel by their short names, and "us" in nanoseconds."""
    columns = list(dict.fromkeys(name for kernel in kernels for name in kernel if name in NAMES))
    lines = [
        ["ID", "Kernel Name", "Grid Size", *(NAMES[name] for name in columns)],
        [""] * (3 + len(columns)),
    ]
    for number, kernel in enumerate(kernels):
        cells = [f"{kernel[name] * 1000:,}" if name == "us" else kernel.get(name, "n/a") for name in columns]
        lines.append([f"{number}", kernel.get("name", "a_kernel"), "(256, 1, 1)", *cells])
    quoted = [",".join(f'"{cell}"' for cell in line) for line in lines]
    return "\n".join(["==PROF== Disconnected from process 7", *quoted, ""])


class FakeNcu:
    """A script in the place of ncu, that runs the program and has counted what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        script = folder / "ncu"
        script.write_text(SCRIPT.format(python=sys.executable))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def counts(self, *kernels: dict[str, Any]) -> None:
        (self.folder / "counters.csv").write_text(raw_page(*kernels))

    def says(self, text: str) -> None:
        """Let it print this and profile nothing."""
        (self.folder / "says").write_text(text)

    @property
    def calls(self) -> list[str]:
        """The arguments of each call."""
        return (self.folder / "calls").read_text().splitlines()
