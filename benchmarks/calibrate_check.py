"""Run emulated kernels through `check_kernel`: false alarms on honest ones, bugs caught and missed.

    python -m benchmarks.calibrate_check [--seeds N] [NAME]

Needs no GPU. Exits with 1 on a false alarm. "used" is the largest part of the bound that an honest kernel
needed; a bug counts as caught if it is with every seed.

2026-11-21, torch 2.13 on a CPU, everything emulated:

| workloads | seeds | false alarms | used | caught | missed with some seed |
|---|---|---|---|---|---|
| matmul, 24: fp16 to fp32, tf32, e4m3; K to 8192 | 3 | 0/444 | 0.49 | 185/186 | fp16 sum, tf32 |
| softmax, 12: fp16, bf16, fp32; N to 8192 | 10 | 0/360 | 0.16 | 103/104 | last column missing |
| softmax, 4: e4m3 | 10 | 0/120 | 0.00 | 27/36 | fp16 sum, missing column, ... |
| rms_norm, 9: fp16, bf16, fp32; N to 8192 | 10 | 0/270 | 0.08 | 79/84 | no eps |
| rms_norm, 3: e4m3 | 10 | 0/90 | 0.00 | 25/30 | eps, mean over n - 1 |
| attention, 10: fp16, bf16; S to 1024 | 2 | 0/100 | 0.56 | 116/122 | truncating cast |
| attention, 6: e4m3 | 2 | 0/48 | 0.56 | 54/74 | 1 %, truncating cast, e5m2 probabilities |

What is missed in attention is smaller than the rounding of the probabilities, which is allowed element by
element; only a test over many elements (the mismatch's energy, its slope) can see it.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.emulated_attention import attention
from benchmarks.emulated_kernels import Workload, matmul, rms_norm, softmax
from pytest_cutile.gpu.check import CheckReport, KernelMismatch, check_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def workloads() -> Iterator[Workload]:
    """Yield what is calibrated."""
    for kind in ("float16", "bfloat16", "float32", "tfloat32", "float8_e4m3fn"):
        outs = {"tfloat32": ("float32",), "float8_e4m3fn": ("float16", "float8_e4m3fn")}.get(kind, (kind,))
        for out in outs:
            for k in (128, 1024, 8192):
                yield matmul(kind, out, k)
    yield matmul("float16", "float32", 8192)
    yield matmul("bfloat16", "bfloat16", 4096, dist="positive")
    yield matmul("float32", "float32", 4096, dist="positive")
    yield matmul("tfloat32", "float32", 4096, dist="positive")
    yield matmul("float16", "float8_e5m2", 1024)
    yield matmul("bfloat16", "bfloat16", 1024, dist="integers")
    for kind in ("float16", "bfloat16", "float32", "float8_e4m3fn"):
        for n in (127, 1024, 8192):
            yield softmax(kind, n)
        yield softmax(kind, 1024, spread=5.0)
    for kind in ("float16", "bfloat16", "float32", "float8_e4m3fn"):
        for n in (128, 8192):
            yield rms_norm(kind, n)
        yield rms_norm(kind, 1024, size=2.0**-8)
    for kind in ("float16", "bfloat16", "float8_e4m3fn"):
        for causal in (True, False):
            yield attention(kind, 192, causal=causal)
            yield attention(kind, 1024, causal=causal)
        yield attention(kind, 512, spread=2.0)
    yield attention("float8_e4m3fn", 512, out="bfloat16")


def check(workload: Workload, kernel: Callable[..., object], seed: int) -> CheckReport | None:
    """Return the report of a check that passed; None if it failed."""
    try:
        return check_kernel(
            kernel,
            *workload.inputs(seed),
            reference=workload.reference,
            reduction=workload.reduction,
            precision=workload.precision,
        )
    except KernelMismatch:
        return None


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", nargs="?", default="", help="only workloads whose name contains this")
    parser.add_argument("--seeds", type=int, default=3, help="inputs per workload")
    options = parser.parse_args()
    started = time.perf_counter()
    alarms = honest = caught = bugs = 0
    print(f"{'workload':<52} {'false':>9} {'used':>6} {'caught':>8}  missed")
    for workload in workloads():
        if options.name not in workload.name:
            continue
        used, alarmed = 0.0, []
        found = dict.fromkeys(workload.bugs, 0)
        for seed in range(0, 10 * options.seeds, 10):
            for name, kernel in workload.honest.items():
                report = check(workload, kernel, seed)
                if report is None:
                    alarmed.append(name)
                else:
                    used = max(used, report.worst_error)
            for name, kernel in workload.bugs.items():
                found[name] += check(workload, kernel, seed) is None
        tried = options.seeds * len(workload.honest)
        missed = [f"{name} {hits}/{options.seeds}" for name, hits in found.items() if hits < options.seeds]
        complete = len(found) - len(missed)
        alarm = f"  FALSE ALARM: {', '.join(sorted(set(alarmed)))}" if alarmed else ""
        line = (
            f"{workload.name:<52} {len(alarmed):>3} /{tried:>4} {used:>6.3f} {complete:>3} /{len(found):>3}"
        )
        print(f"{line}  {', '.join(missed)}{alarm}".rstrip(), flush=True)
        alarms, honest = alarms + len(alarmed), honest + tried
        caught, bugs = caught + complete, bugs + len(found)
    seconds = time.perf_counter() - started
    summary = f"false alarms {alarms} of {honest}; bugs caught with every seed {caught} of {bugs}"
    print(f"{summary}; {seconds:.0f} s")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
