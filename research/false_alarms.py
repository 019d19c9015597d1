"""Every legitimate configuration of every kernel has to pass the check, whatever the inputs. For GPUs.

    python -m research.false_alarms [NAME...] [--device 0,1] [--seeds 3] [--budget 1800] [--json FILE]
    python -m research.false_alarms --accumulators --json FILE
    python -m research.false_alarms --interpreted softmax --budget 60    # does this program work?

Configurations are those of `tools/suite/NAME.py` (tiles, occupancies, split factors), inputs all that
have a name, for the small cases of a kernel and then for those that are timed. Each is launched and checked
as the gate `correct` does. What does not compile or does not fit on the GPU is no alarm, and is counted. The
order is: what the launcher chooses, with all inputs and seeds; then every configuration there is, each with a
case, all inputs and seeds; then with its other cases, at random; then the same with the timed cases. So any
budget sees some of everything, and a longer one sees more; `--others` leaves out what launchers choose.

"used" is the largest error in units of the bound. `--accumulators` measures what tensor cores lose instead:
products with float32 results, by dtype and K, in units of what the bounds assume. Exit status 1: an alarm.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cutile.correctness.check import KernelMismatch
from tools.gpu_runs.agreement import check_launch
from tools.gpu_runs.gpu_state import guarded, release_memory, use_one_of
from tools.gpu_runs.inputs import NORMAL, input_names, make_arguments
from tools.gpu_runs.processes import Handler, Pool
from tools.gpu_runs.runs import device_numbers, write_document
from tools.gpu_runs.suites import load_suite, plain_config, suite_names
from tools.gpu_runs.tables import aligned

TASK_SECONDS = 300.0
"""After so long a task is given up."""
LINES = 12
"""Of an alarm's message, kept."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One configuration of one case, to be checked with several inputs."""

    kernel: str
    """The kernel, and its suite."""
    case: str
    """Name of the case."""
    config: Any
    """The configuration; None is the one that the launcher chooses."""
    inputs: tuple[str, ...]
    """Names of the inputs."""
    seeds: range
    """Of the values, for each name."""
    arch: str | None
    """Architecture to interpret for; None is the GPU."""


def main(argv: Sequence[str] | None = None) -> int:
    """Check all that the command line names; return the exit status."""
    options = _parse(argv)
    devices = () if options.interpreted else options.device
    count = options.processes or (4 * len(devices) if devices else len(os.sched_getaffinity(0)))
    begun = time.monotonic()
    start = partial(start_checking, devices=devices)
    tasks: list[Any] = [*_products(options)] if options.accumulators else [*_tasks(options)]
    checks: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    with Pool(min(count, len(tasks)), start, task_seconds=TASK_SECONDS) as pool:
        for number, outcome in pool.run(tasks, until=begun + options.budget):
            if outcome.error is not None:
                errors[str(tasks[number])] = outcome.error
            else:
                checks += outcome.value
            if options.json and len(checks) % 50 == 0:
                write_document(options.json, {"found": checks, "errors": errors})
            if sys.stderr.isatty():
                done = f"{len(checks)} checks, {time.monotonic() - begun:.0f} s"
                print(f"\r{done}, of {len(tasks)} tasks the {number}th  ", end="", file=sys.stderr)
    if options.json:
        write_document(options.json, {"found": checks, "errors": errors})
    print(losses(checks) if options.accumulators else summary(checks))
    for task, error in errors.items():
        print(f"NOT DONE: {task}: {error.splitlines()[0]}")
    alarms = [check for check in checks if check.get("alarm")]
    for check in alarms:
        print(
            f"\nFALSE ALARM: {check['kernel']}[{check['case']}], inputs {check['inputs']}, "
            f"seed {check['seed']}"
        )
        print(f"config: {json.dumps(check['config'])}\n{check['alarm']}")
    return 1 if alarms else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m research.false_alarms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels; all, if none is named")
    parser.add_argument("--device", type=device_numbers, default=[0], metavar="0,1", help="GPUs to share")
    parser.add_argument("--seeds", type=int, default=2, help="different inputs of each name (2)")
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="N", help="others than were used before (0)"
    )
    parser.add_argument("--others", action="store_true", help="only configurations that no launcher chooses")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="S", help="begin nothing later")
    parser.add_argument("--processes", type=int, metavar="N", help="cores, or four to each GPU")
    parser.add_argument("--interpreted", action="store_true", help="on the CPU: small cases, as if on sm_90")
    parser.add_argument("--accumulators", action="store_true", help="measure what tensor cores lose")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every check")
    return parser.parse_args(argv)


# -- what there is to check -------------------------------------------------------------------------


def _tasks(options: argparse.Namespace) -> Iterator[Task]:
    """Yield tasks, in the order in which they are begun."""
    arch = "sm_90" if options.interpreted else _gpu_arch(options.device[0])
    shuffle = random.Random(options.first_seed)  # noqa: S311 - the same order each time
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for timed in (False,) if options.interpreted else (False, True):
        chosen, once, others = [], [], []
        for kernel in options.names or suite_names():
            suite = load_suite(kernel)
            names = input_names(suite.spec)
            by_config: dict[Any, list[Task]] = defaultdict(list)
            for case in suite.spec.cases:
                if case.speed != timed or not case.runs_on(arch):
                    continue
                task = Task(
                    kernel=kernel,
                    case=case.name,
                    config=None,
                    inputs=names,
                    seeds=seeds,
                    arch=arch if options.interpreted else None,
                )
                chosen.append(task)
                for config in dict.fromkeys(suite.configs(arch, **case.params)):
                    by_config[config].append(replace(task, config=config))
            for tasks in by_config.values():
                shuffle.shuffle(tasks)
                once.append(tasks[0])
                others += [
                    replace(task, inputs=(NORMAL, shuffle.choice(names)), seeds=seeds[:1])
                    for task in tasks[1:]
                ]
        for tasks in (chosen, once, others):
            shuffle.shuffle(tasks)
        yield from () if options.others else chosen
        yield from once
        yield from others


def _gpu_arch(device: int) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


# -- in a process of a GPU --------------------------------------------------------------------------


def start_checking(number: int, *, devices: Sequence[int]) -> Handler:
    """Prepare a process that checks, on one of `devices`, or interpreted if there are none."""
    use_one_of(devices, number)
    return guarded(_do, "cuda" if devices else "cpu")


def _do(task: Task | Product) -> list[dict[str, Any]]:
    if isinstance(task, Product):
        return [measure_loss(task)]
    try:
        return list(check(task))
    finally:
        release_memory()


def check(task: Task) -> Iterator[dict[str, Any]]:
    """Yield what each check of a task said: how much of the bound was used, or the alarm."""
    spec = load_suite(task.kernel).spec
    case = next(case for case in spec.cases if case.name == task.case)
    named = [(name, seed) for name in task.inputs for seed in task.seeds]
    for name, seed in dict.fromkeys(named):
        row: dict[str, Any] = {
            "kernel": task.kernel,
            "case": task.case,
            "config": plain_config(task.config),
            "inputs": name,
            "seed": f"{task.kernel}[{task.case}]#{seed}",
        }
        with _device(task):
            try:
                args, kwargs = make_arguments(spec, case, device="cuda", seed_text=row["seed"], name=name)
                report = check_launch(spec, case, args, kwargs, config=task.config)
            except KernelMismatch as mismatch:
                yield {**row, "alarm": "\n".join(str(mismatch).splitlines()[:LINES])}
            except Exception as error:
                if not _is_unusable(error):
                    raise
                yield {**row, "unusable": f"{type(error).__name__}: {error}".partition("\n")[0]}
                return
            else:
                yield {**row, "elements": report.elements, "used": report.worst_error, "bound": report.bound}


def _device(task: Task) -> AbstractContextManager[Any]:
    if task.arch is None:
        return nullcontext()
    from pytest_cutile.interpreter import interpret

    return interpret(task.arch)


def _is_unusable(error: Exception) -> bool:
    """Say whether a configuration does not suit the case or the GPU, by what cuTile and the driver raise."""
    text = f"{type(error).__module__}.{type(error).__name__}: {error}".lower()
    return any(word in text for word in ("cuda.tile", "compil", "out of memory", "too many resources"))


def summary(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return a table: outputs, elements and the largest share of the bound, by kernel and dtype."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for check in checks:
        groups[check["kernel"], check["case"].partition("-")[0]].append(check)
    groups["all", ""] = list(checks)
    rows = []
    for (kernel, dtype), group in groups.items():
        passed = [check for check in group if "used" in check]
        configs = {json.dumps([check["kernel"], check["config"]]) for check in passed if check["config"]}
        with_cases = {json.dumps([check["kernel"], check["case"], check["config"]]) for check in passed}
        rows.append(
            (
                kernel,
                dtype,
                str(len(group)),
                str(len(configs)),
                str(len(with_cases)),
                str(sum(check["elements"] for check in passed)),
                f"{max((check['used'] for check in passed), default=0.0):.3f}",
                str(sum("unusable" in check for check in group)),
                str(sum("alarm" in check for check in group)),
            )
        )
    head = (
        *("kernel", "dtype", "checks", "configs", "case x config", "elements", "used", "unusable"),
        "false alarms",
    )
    return aligned(head, rows)


# -- what tensor cores lose -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Product:
    """One matrix product with a float32 result, whose error is that of the accumulation."""

    dtype: str
    """Of the operands."""
    k: int
    """Length of the sums."""
    fast: bool
    """Whether 8-bit floats are added up in the tensor cores (`use_fast_acc`)."""
    signs: bool
    """Whether terms have both signs; if not, sums grow as K, and truncation shows in full."""
    seed: int
    """Of the values."""


def _products(options: argparse.Namespace) -> Iterator[Product]:
    for k in (64, 256, 1024, 4096, 16384):
        for dtype in ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"):
            for fast in (False, True) if dtype.startswith("float8") else (False,):
                for signs in (True, False):
                    for seed in range(options.first_seed, options.first_seed + options.seeds):
                        yield Product(dtype=dtype, k=k, fast=fast, signs=signs, seed=seed)


def measure_loss(task: Product) -> dict[str, Any]:
    """Return the largest error of a product of `[512, k]` and `[k, 512]`, in three units.

    With y exact, u = 2^-24, P = max(|y|, sqrt(sum of squares of the terms)), the magnitude of partial sums:

        random    |error| / (u sqrt(K/3) P)               float32 additions that round
        drift     |error| / (u K/16 P)                    tensor cores that truncate once per 16 terms
        short     |error| / (2^-13 (K/64 P + K/4 |y|))    the accumulator of 22 bits
    """
    import torch

    from kernels.matmul import matmul
    from pytest_cutile.tile.tensors.make_tensor import make_tensor

    dist: dict[str, Any] = {"dist": "normal"} if task.signs else {"dist": "uniform", "low": 0.0, "high": 1.0}
    a = make_tensor((512, task.k), task.dtype, device="cuda", seed=2 * task.seed, **dist)
    b = make_tensor((512, task.k), task.dtype, device="cuda", seed=2 * task.seed + 1, **dist).T
    if task.dtype == "float32":
        for operand in (a, b):
            operand.view(torch.int32).bitwise_and_(~0x1FFF)  # tfloat32 values, as in kernels/matmul.py
    out = matmul(a, b, out_dtype=torch.float32, use_fast_acc=task.fast).double()
    x, z = a.double(), b.double()
    y = x @ z
    partial_sums = torch.maximum(y.abs(), (x.square() @ z.square()).sqrt())
    error, k, unit = (out - y).abs(), task.k, 2.0**-24

    def largest(scale: torch.Tensor) -> float:
        return float((error / scale).max())

    return {
        "dtype": task.dtype,
        "k": k,
        "fast": task.fast,
        "signs": task.signs,
        "seed": task.seed,
        "elements": out.numel(),
        "random": largest(unit * math.sqrt(k / 3) * partial_sums),
        "drift": largest(unit * k / 16 * partial_sums),
        "short": largest(2.0**-13 * (k / 64 * partial_sums + k / 4 * y.abs())),
    }


def losses(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the largest errors over all seeds."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for check in checks:
        groups[check["dtype"], check["fast"], check["signs"], check["k"]].append(check)
    rows = [
        (
            dtype + " fast" * fast,
            "both" if signs else "one",
            str(k),
            *(f"{max(check[unit] for check in rows):.3g}" for unit in ("random", "drift", "short")),
        )
        for (dtype, fast, signs, k), rows in sorted(groups.items())
    ]
    return aligned(("operands", "signs", "K", "random", "drift", "short"), rows)


if __name__ == "__main__":
    sys.exit(main())
