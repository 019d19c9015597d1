"""Sweep configurations of the kernels in `kernels/` on the GPU at hand, beside what PyTorch offers.

    python -m benchmarks.tune_kernels --kernel matmul --out matmul.json

For each case that the speed gate times: check every configuration once against the float64 reference, then
time all of them and the peers round-robin, so that each sees the same clock. One sample is the replay of a
CUDA graph that flushes the L2, records an event, launches, and records another. A configuration that does
not compile, run or agree is reported and left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_cutile import Case

FLUSH_BYTES = 256 * 2**20
SETTLE_ROUNDS = 20
TIMED_ROUNDS = 60
BEST_SHOWN = 5

# Only gross errors matter here; the correctness gate has the sharp bounds. Relative to value and to rms.
TOLERANCE = {torch.float16: 2**-9, torch.bfloat16: 2**-6, torch.float32: 1e-4}

SWEEPS: dict[str, list[dict[str, Any]]] = {
    "matmul": [
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "occupancy": 2, "latency": 4},
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "occupancy": 2, "latency": None},
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "occupancy": 2, "latency": 2},
        {"tile_m": 128, "tile_n": 128, "tile_k": 32, "occupancy": 2, "latency": 4},
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "occupancy": 2, "latency": 4, "group_m": 4},
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "occupancy": 2, "latency": 4, "group_m": 16},
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "occupancy": 2, "latency": 4, "num_worker_warps": 8},
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "occupancy": 2, "latency": 4, "num_ctas": 2},
        {"tile_m": 128, "tile_n": 128, "tile_k": 128, "occupancy": 1, "latency": 4},
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "occupancy": 1, "latency": 6},
        {"tile_m": 128, "tile_n": 256, "tile_k": 64, "occupancy": 1, "latency": 4, "num_worker_warps": 8},
        {"tile_m": 256, "tile_n": 128, "tile_k": 64, "occupancy": 1, "latency": 4, "num_worker_warps": 8},
        {"tile_m": 128, "tile_n": 256, "tile_k": 64, "occupancy": 1, "num_worker_warps": 8, "num_ctas": 2},
        {"tile_m": 128, "tile_n": 64, "tile_k": 64, "occupancy": 3, "latency": 4},
        {"tile_m": 64, "tile_n": 256, "tile_k": 64, "occupancy": 2, "latency": 4},
        {"tile_m": 256, "tile_n": 64, "tile_k": 64, "occupancy": 2, "latency": 4},
    ],
    "softmax": [
        {},
        {"eight_warps_from": 1 << 30},
        {"eight_warps_from": 4096},
        {"eight_warps_from": 16384},
        {"occupancy": 2},
        {"occupancy": 4},
        {"occupancy": 8},
        {"tile_elements": 2048},
        {"tile_elements": 8192},
        {"tile_elements": 8192, "eight_warps_from": 16384},
        {"max_row": 8192, "chunk": 4096},
        {"chunk": 4096},
        {"chunk": 2048},
        {"chunk": 16384},
        {"max_row": 32768},
        {"max_row": 4096, "chunk": 4096},
        {"load_tma": True, "occupancy": 2},
        {"store_tma": True, "occupancy": 4},
        {"load_tma": True, "store_tma": True, "occupancy": 2},
    ],
    "rms_norm": [
        {},
        {"eight_warps_from": 1 << 30},
        {"eight_warps_from": 4096},
        {"eight_warps_from": 16384},
        {"occupancy": 2},
        {"occupancy": 4},
        {"occupancy": 8},
        {"tile_elements": 2048},
        {"tile_elements": 8192},
        {"tile_elements": 8192, "eight_warps_from": 16384},
        {"tile_elements": 2048, "eight_warps_from": 2048},
        {"blocks_per_sm": 2, "occupancy": 2},
        {"blocks_per_sm": 4, "occupancy": 4},
        {"blocks_per_sm": 2, "occupancy": 2, "eight_warps_from": 4096},
        {"load_tma": True, "occupancy": 2},
        {"store_tma": True, "occupancy": 4},
        {"load_tma": True, "blocks_per_sm": 2, "occupancy": 2},
    ],
}


@dataclass(kw_only=True)
class Candidate:
    """One thing to time: a configuration of our kernel, or a peer."""

    label: str
    """What the table calls it."""
    launch: Callable[[], Any]
    """Runs it once on the current stream."""
    config: dict[str, Any] | None = None
    """The whole configuration; None for a peer."""
    us_per_launch: list[float] = field(default_factory=list)
    """Samples, in the order taken."""
    replay: Callable[[], float] | None = None
    """Runs it once with a cold L2 and returns microseconds."""


def make_tensor(
    shape: tuple[int, ...], dtype: str, *, dist: str = "normal", low: float = 0.0, high: float = 1.0
) -> torch.Tensor:
    """Make what the kernels' `inputs` functions ask for, on the GPU."""
    tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
    return tensor.uniform_(low, high) if dist == "uniform" else tensor.normal_()


def list_peers(kernel: str, args: tuple[Any, ...]) -> Iterator[Candidate]:
    """Yield what PyTorch offers for the same arguments, and a copy of the same bytes as the ceiling."""
    if kernel == "matmul":
        a, b = args
        yield Candidate(label="torch.matmul (cuBLAS)", launch=lambda: torch.matmul(a, b))
        return
    x = args[0]
    if kernel == "softmax":
        yield Candidate(label="torch.softmax", launch=lambda: torch.softmax(x, 1))
    else:
        _, weight, eps = args
        yield Candidate(
            label="F.rms_norm",
            launch=lambda: torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps),
        )
    yield Candidate(label="copy (ceiling)", launch=lambda: torch.empty_like(x).copy_(x))


def capture(launch: Callable[[], Any], flush: torch.Tensor, pool: Any) -> Callable[[], float]:
    """Capture [flush, event, launch, event] and return a function that replays it: microseconds."""
    begin, end = (
        torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        flush.zero_()
        begin.record()
        launch()
        end.record()

    def replay() -> float:
        graph.replay()
        end.synchronize()
        return float(begin.elapsed_time(end) * 1e3)

    return replay


def check(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise AssertionError where `out` is not `expected`."""
    tolerance = TOLERANCE[out.dtype]
    rms = expected.square().mean().sqrt().item()
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance * rms)


def tune_case(kernel: str, module: Any, case: Case, flush: torch.Tensor) -> dict[str, Any]:
    """Check and time every configuration of one case; print the best; return everything."""
    started = time.perf_counter()
    args = module.SPEC.inputs(make_tensor, **case.params)
    expected = module.SPEC.reference(
        *(arg.double() if isinstance(arg, torch.Tensor) else arg for arg in args)
    )
    capability = "".join(map(str, torch.cuda.get_device_capability()))
    itemsize = args[0].element_size()
    chosen = (
        module.choose_config(f"sm_{capability}", itemsize=itemsize)
        if kernel == "matmul"
        else module.choose_config(f"sm_{capability}", width=args[0].shape[-1], itemsize=itemsize)
    )

    candidates: list[Candidate] = []
    failures: dict[str, str] = {}
    pool = torch.cuda.graph_pool_handle()
    default = type(chosen)() if kernel != "matmul" else None
    seen = set()
    for overrides in ({"chosen": True}, *SWEEPS[kernel]):
        if "chosen" in overrides:
            config, label = chosen, "as committed"
        else:
            config = type(chosen)(**overrides) if default is None else replace(default, **overrides)
            if kernel == "matmul" and itemsize == 4:
                config = replace(config, tile_k=config.tile_k // 2)
            label = " ".join(f"{key}={value}" for key, value in overrides.items()) or "defaults"
        if config in seen:
            continue
        seen.add(config)
        candidate = Candidate(
            label=label,
            config=asdict(config),
            launch=partial(module.SPEC.launch, *args, config=config),
        )
        try:
            check(candidate.launch(), expected)
            candidate.replay = capture(candidate.launch, flush, pool)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the others are still of interest
            failures[label] = f"{type(error).__name__}: {str(error).strip()[:300]}"
            continue
        candidates.append(candidate)
    del expected
    for peer in list_peers(kernel, args):
        peer.launch()
        peer.replay = capture(peer.launch, flush, pool)
        candidates.append(peer)

    for round_index in range(SETTLE_ROUNDS + TIMED_ROUNDS):
        for candidate in candidates:
            microseconds = candidate.replay() if candidate.replay else 0.0
            if round_index >= SETTLE_ROUNDS:
                candidate.us_per_launch.append(microseconds)

    return report(module.SPEC.work_of(case), case, candidates, failures, time.perf_counter() - started)


def report(
    work: Any, case: Case, candidates: list[Candidate], failures: dict[str, str], wall_s: float
) -> dict[str, Any]:
    """Print a case's table, best first, and return its rows for the JSON."""
    amount, unit = (work.flops / 1e6, "TFLOPS") if work.flops else (work.bytes / 1e3, "GB/s")
    rows = [
        {
            "label": candidate.label,
            "config": candidate.config,
            "median_us_per_launch": (median := statistics.median(candidate.us_per_launch)),
            "spread_percent": 100 * statistics.stdev(candidate.us_per_launch) / median,
            "rate": amount / median,
            "unit": unit,
        }
        for candidate in candidates
    ]
    rows.sort(key=lambda row: row["median_us_per_launch"])
    print(f"\n{case.name}   ({len(rows)} timed, {len(failures)} failed, {wall_s:.0f} s)")
    ours = [row for row in rows if row["config"]][:BEST_SHOWN]
    for row in rows:
        if row in ours or row["config"] is None or row["label"] == "as committed":
            print(
                f"  {row['median_us_per_launch']:9.2f} us  {row['rate']:8.1f} {unit}"
                f"  +-{row['spread_percent']:4.1f} %  {row['label']}"
            )
    for label, message in failures.items():
        print(f"  FAILED {label}: {message.splitlines()[0]}")
    sys.stdout.flush()
    return {"case": case.name, "rows": rows, "failures": failures, "wall_s": wall_s}


def main() -> None:
    """Parse the command line, tune, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernel", required=True, choices=sorted(SWEEPS))
    parser.add_argument("--case", help="only the cases whose name contains this")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    module = importlib.import_module(f"kernels.{options.kernel}")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    results = []
    for case in module.SPEC.cases:
        if case.speed and (not options.case or options.case in case.name):
            results.append(tune_case(options.kernel, module, case, flush))
            torch.cuda.empty_cache()
    if options.out:
        document = {"gpu": torch.cuda.get_device_name(), "kernel": options.kernel, "cases": results}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
