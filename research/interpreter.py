"""What interpreting costs: each case of kernels/, and how it grows with blocks, elements and loop lengths.

    python -m research.interpreter [--cases] [--growth] [--repeat 3] [--threads 1] [--json FILE]

Without --cases and --growth, both. Times are the least of some runs, in milliseconds of processor time of
all threads, so that other work on the machine disturbs them little. "first" is a launch with nothing cached;
"frontend" and "read" are its parts that a later launch with the same kernel and signature does not have:
cuda-tile's frontend, and reading its bytecode; "again" is such a later launch. The exponent says how time
grows: 1 is in proportion. "peak" is the largest memory of the process, which never falls.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import cuda.tile as ct
import torch

from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.compiler.export import _exported
from pytest_cutile.tile.interpreter import api
from pytest_cutile.tile.interpreter import launch as launching
from research.interpreter_against_gpu import declared
from tools.gpu_runs.inputs import make_arguments

ARCH = "sm_90"


def cpu_ms(run: Callable[[], object], repeat: int) -> float:
    """Return the least processor time of some runs, in milliseconds."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) * 1000


def peak_mb() -> float:
    """Return the largest memory that this process had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Parts:
    """Time spent in parts of launches, in milliseconds of processor time."""

    def __init__(self) -> None:
        self.frontend = 0.0
        self.read = 0.0

    def __enter__(self) -> Self:
        self._saved = api.export, launching.read_module
        api.export = self._timed("frontend", api.export)
        launching.read_module = self._timed("read", launching.read_module)
        return self

    def __exit__(self, *_: object) -> None:
        api.export, launching.read_module = self._saved

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.process_time()
            result = function(*args)
            setattr(self, part, getattr(self, part) + (time.process_time() - start) * 1000)
            return result

        return timed


def time_cases(repeat: int) -> list[dict[str, Any]]:
    """Time every correctness case of kernels/."""
    rows = []
    print(f"{'kernel':16} {'case':48}  first  frontend  read  again  peak MB")
    for spec in declared():
        for case in spec.cases:
            if case.speed:
                continue
            with interpret(ARCH):
                args, kwargs = make_arguments(spec, case, device="cuda", seed_text=case.name)
                launch = partial(spec.launch, *args, **kwargs)
                launch()  # what Python and torch do once
                forget()
                with Parts() as parts:
                    first = cpu_ms(launch, 1)
                again = cpu_ms(launch, repeat)
            row = {
                "kernel": spec.name,
                "case": case.name,
                "first_ms": first,
                "frontend_ms": parts.frontend,
                "read_ms": parts.read,
                "again_ms": again,
                "peak_mb": peak_mb(),
            }
            rows.append(row)
            print(
                f"{spec.name:16} {case.name:48} {first:6.1f}  {parts.frontend:8.1f}  {parts.read:4.1f}"
                f"  {again:5.1f}  {row['peak_mb']:7.0f}",
                flush=True,
            )
    for name in sorted({row["kernel"] for row in rows}):
        mine = [row for row in rows if row["kernel"] == name]
        first, again = (sum(row[key] for row in mine) for key in ("first_ms", "again_ms"))
        print(f"{name:16} {len(mine)} cases: {first:.0f} ms first, {again:.0f} ms again")
    return rows


def forget() -> None:
    """Forget what the process remembers of launches."""
    _exported.clear()
    launching._read.cache_clear()  # noqa: SLF001 - what it is for


@ct.kernel
def _scale(x, out, n: ct.Constant[int]):  # noqa: ANN001, ANN202
    i = ct.bid(0)
    tile = ct.load(x, (i,), (n,)).astype(ct.float32)
    ct.store(out, (i,), ct.exp(tile) * 2 + 1)


@ct.kernel
def _accumulate(x, out, steps: int, n: ct.Constant[int]):  # noqa: ANN001, ANN202
    i = ct.bid(0)
    acc = ct.zeros((n,), dtype=ct.float32)
    for _ in range(steps):
        acc += ct.load(x, (i,), (n,)) * 0.5
    ct.store(out, (i,), acc)


@ct.kernel
def _triangle(x, out, n: ct.Constant[int]):  # noqa: ANN001, ANN202
    i = ct.bid(0)
    acc = ct.zeros((n,), dtype=ct.float32)
    for k in range(i + 1):
        acc += ct.load(x, (k,), (n,))
    ct.store(out, (i,), acc)


@ct.kernel
def _row_sum(x, out, n: ct.Constant[int]):  # noqa: ANN001, ANN202
    i = ct.bid(0)
    ct.store(out, (i,), ct.sum(ct.load(x, (i, 0), (1, n)), axis=1))


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the power of the size with which time grows, by least squares of the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def time_growth(repeat: int) -> list[dict[str, Any]]:
    """Time kernels of one operation each while one size grows."""
    cases: dict[str, tuple[Sequence[int], Callable[[int], tuple[Any, ...]]]] = {
        "blocks (of 128 elements)": (
            (64, 256, 1024, 4096, 16384),
            lambda n: ((n,), _scale, (torch.randn(n * 128), torch.empty(n * 128), 128)),
        ),
        "blocks that end beyond the array": (
            (64, 256, 1024, 4096),
            lambda n: ((n,), _row_sum, (torch.randn(n, 100), torch.empty(n), 128)),
        ),
        "elements of a tile (64 blocks)": (
            (64, 256, 1024, 4096, 16384),
            lambda n: ((64,), _scale, (torch.randn(n * 64), torch.empty(n * 64), n)),
        ),
        "elements of a reduction (64 blocks)": (
            (64, 256, 1024, 4096, 16384),
            lambda n: ((64,), _row_sum, (torch.randn(64, n), torch.empty(64), n)),
        ),
        "steps of a loop (64 blocks)": (
            (16, 64, 256, 1024),
            lambda n: ((64,), _accumulate, (torch.randn(64 * 128), torch.empty(64 * 128), n, 128)),
        ),
        "blocks and steps (block i makes i steps)": (
            (16, 64, 256, 1024),
            lambda n: ((n,), _triangle, (torch.randn(n * 32), torch.empty(n * 32), 32)),
        ),
    }
    rows = []
    print("\nmilliseconds of a later launch as one size grows")
    for name, (sizes, make) in cases.items():
        times = []
        for size in sizes:
            grid, kernel, arguments = make(size)
            with interpret(ARCH):
                ct.launch(0, grid, kernel, arguments)

                def launch(grid: Any = grid, kernel: Any = kernel, arguments: Any = arguments) -> None:
                    ct.launch(0, grid, kernel, arguments)

                times.append(cpu_ms(launch, repeat))
        power = exponent(sizes[-3:], times[-3:])
        rows.append({"grows": name, "sizes": list(sizes), "ms": times, "exponent": power})
        shown = "  ".join(f"{size}: {value:.2f}" for size, value in zip(sizes, times, strict=True))
        print(f"{name:42} {shown}  exponent of the last three {power:.2f}", flush=True)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", action="store_true", help="only the cases of kernels/")
    parser.add_argument("--growth", action="store_true", help="only the growth")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    figures: dict[str, Any] = {"arch": ARCH, "threads": options.threads}
    if options.cases or not options.growth:
        figures["cases"] = time_cases(options.repeat)
    if options.growth or not options.cases:
        figures["growth"] = time_growth(options.repeat)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
