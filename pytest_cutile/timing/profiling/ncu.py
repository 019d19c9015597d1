"""Runs Nsight Compute (ncu) on a command, and returns the counters of what the command launched."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_cutile.tile.compiler.toolchain import find_program, toolkit_folders
from pytest_cutile.timing.profiling.counters import KernelCounters, read_counters
from pytest_cutile.words.temporary import temporary_folder

# Names: docs.nvidia.com/nsight-compute, "Nsight Compute CLI" and "Profiling Guide".
SECTIONS = (
    *("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "LaunchStats"),
    *("Occupancy", "SchedulerStats", "WarpStateStats"),
)
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
TIMEOUT_S = 600.0
_OPTIONS = (
    *("--target-processes", "application-only"),  # compilers are no concern of it
    *("--profile-from-start", "off"),
    *("--clock-control", "none"),  # as the speed gate measures
)
_SHOWN_LINES = 15
_DOWNLOAD = "https://developer.nvidia.com/nsight-compute"
NO_PERMISSION = "ERR_NVGPUCTRPERM"
_PERMISSION = f"""\
the driver lets only administrators read the GPU's counters ({NO_PERMISSION}). One of these helps:
  run the command as root, or with the capability SYS_ADMIN (since driver 565 PERFMON is enough)
  in a container: docker run --cap-add=SYS_ADMIN ...
  for all users: add a file to /etc/modprobe.d, and reboot. Its line:
    options nvidia NVreg_RestrictProfilingToAdminUsers=0
https://developer.nvidia.com/{NO_PERMISSION}"""


class ProfilingError(RuntimeError):
    """Nothing was counted; the message says why, and what helps."""


def find_ncu() -> Path:
    """Return the path of ncu: on PATH, of a CUDA toolkit, or where its own installer puts it.

    Raises:
        ProfilingError: there is none.
    """
    own = sorted(map(str, Path("/opt/nvidia/nsight-compute").glob("*")), reverse=True)
    if (ncu := find_program("ncu", [*toolkit_folders(), *own])) is not None:
        return ncu
    raise ProfilingError(
        f"Nsight Compute (ncu) is not installed: it comes with the CUDA toolkit, or from {_DOWNLOAD}; "
        "put the folder of ncu on PATH"
    )


def collect(
    command: Sequence[str],
    *,
    sections: Sequence[str] = SECTIONS,
    metrics: Sequence[str] = METRICS,
    report: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[KernelCounters]:
    """Run `command` and count while it launches kernels, from cudaProfilerStart to cudaProfilerStop.

    Nsight Compute replays every launch until all counters are read. It flushes the caches before each replay.

    Args:
        command: a program that calls `torch.cuda.profiler.start` and `stop`.
        sections: groups of metrics by Nsight Compute's identifiers.
        metrics: further metrics by name.
        report: file that Nsight Compute's window opens (.ncu-rep); beside it stands the raw page (.csv).
            None keeps neither.
        timeout_s: after so long the command is killed.

    Raises:
        ProfilingError: there is no ncu, counters may not be read, or nothing was launched.
    """
    ncu = str(find_ncu())
    with temporary_folder() as folder:
        file = report or Path(folder) / "profile.ncu-rep"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        asked = [word for section in sections for word in ("--section", section)]
        if metrics:
            asked += ["--metrics", ",".join(metrics)]
        printed = _run([ncu, *_OPTIONS, *asked, "--export", str(file), *command], timeout_s)
        if NO_PERMISSION in printed:
            raise ProfilingError(_PERMISSION)
        if not file.exists():
            raise ProfilingError(f"Nsight Compute saw no launch:\n{_end_of(printed)}")
        options = ("--csv", "--page", "raw", "--print-units", "base")
        text = _run([ncu, "--import", str(file), *options], timeout_s)
        if report is not None:
            report.with_suffix(".csv").write_text(text, encoding="utf-8")
    kernels = read_counters(text)
    if not kernels:
        raise ProfilingError(f"Nsight Compute's report holds no launch:\n{_end_of(text)}")
    return kernels


def _end_of(printed: str) -> str:
    """Return the errors in what was printed, or else its last lines."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR: ", "==ERROR=="))]
    return "\n".join(f"  {line}" for line in (errors or lines)[-_SHOWN_LINES:])


def _run(command: Sequence[str], timeout_s: float) -> str:
    """Return all that a command prints; it ends with this process, or when its time is over."""
    with subprocess.Popen(  # noqa: S603 - no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # so that all it starts can be stopped with it
    ) as process:
        try:
            return process.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            raise ProfilingError(f"not profiled after {timeout_s:.0f} s: {command[0]} was stopped") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
