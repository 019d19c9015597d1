"""Interpreted and on a GPU: every operation of cuTile and every case of kernels/, element by element.

    python -m research.interpreter_against_gpu --json FILE [--only TEXT] [--budget S] [--kernels-only]
    python -m research.interpreter_against_gpu --self-test --only "add RZ"   # no GPU: both interpreted

Runs each kernel with the same inputs on a GPU and interpreted, in a process for each core, and prints a line
for each: how many elements are not bit-equal (a NaN equals any other), the largest distance in units in the
last place, and the first elements that differ. Zeros of different sign differ. What one of the two cannot run
is listed with its reason, and the rest goes on. Cases of kernels/ come first: they take longest.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import pkgutil
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import kernels
from pytest_cutile import KernelSpec
from pytest_cutile.interpreter import Options, interpret
from pytest_cutile.tile.tensors import make_tensor
from research.operations import Example, all_examples
from tools.gpu_runs.gpu_state import raise_if_broken, use_one_of
from tools.gpu_runs.inputs import make_arguments
from tools.gpu_runs.processes import Handler, Pool
from tools.gpu_runs.runs import device_numbers, positive, write_document

_SHOWN = 5
_WRITTEN_EVERY = 25
TASK_SECONDS = 120.0
"""After so long in one comparison a process is killed, and the rest goes on."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Run = Callable[[], list[torch.Tensor]]


@dataclass(kw_only=True)
class Comparison:
    """What came of one kernel and its inputs."""

    name: str
    dtype: str
    elements: int = 0
    different: int = 0
    """Elements that are not bit-equal, NaN aside."""
    nan_here_only: int = 0
    """Elements that are NaN on one side alone."""
    largest_ulps: float = 0.0
    """Of the elements that are NaN on neither side; for integers the distance."""
    largest_relative_error: float = 0.0
    """Of the interpreted result, with the GPU's as the truth; finite elements alone."""
    largest_error_of_rms: float = 0.0
    """Of the interpreted result, as a share of the root mean square of the GPU's; finite elements alone."""
    examples: list[dict[str, str]] = field(default_factory=list)
    """The first elements that differ: place, inputs if they have that place, both results."""
    gpu_error: str = ""
    interpreter_error: str = ""
    gpu_s: float = 0.0
    interpreter_s: float = 0.0

    @property
    def verdict(self) -> str:
        """What to say of it in one word or two."""
        if self.gpu_error and self.interpreter_error:
            return "both refuse"
        if self.gpu_error or self.interpreter_error:
            return "GPU REFUSES" if self.gpu_error else "NOT INTERPRETED"
        return "equal" if not self.different else "differs"

    def __str__(self) -> str:
        text = f"{self.verdict:15}  {self.name:50} {self.dtype:28}"
        if self.gpu_error or self.interpreter_error:
            return f"{text} {(self.interpreter_error or self.gpu_error)[:150]}"
        if not self.different:
            return f"{text} {self.elements:8}"
        nan = f", {self.nan_here_only} NaN on one side" if self.nan_here_only else ""
        first = "; ".join(
            f"{example['inputs']} -> {example['gpu']} GPU, {example['interpreted']} interpreted"
            for example in self.examples[:2]
        )
        return (
            f"{text} {self.elements:8}, {self.different} differ by at most {self.largest_ulps:g} ulp "
            f"(relative {self.largest_relative_error:.2g}, of the rms {self.largest_error_of_rms:.2g}){nan}: "
            f"{first}"
        )


def compare(
    comparison: Comparison, gpu: torch.Tensor, interpreted: torch.Tensor, inputs: Sequence[torch.Tensor]
) -> None:
    """Add a pair of results to `comparison`."""
    gpu, interpreted = gpu.contiguous().reshape(-1), interpreted.contiguous().reshape(-1)
    comparison.elements += gpu.numel()
    if gpu.dtype == torch.bool:
        gpu, interpreted = gpu.to(torch.int8), interpreted.to(torch.int8)
    bits = _BITS[gpu.element_size()]
    differs = gpu.view(bits) != interpreted.view(bits)
    both = torch.ones_like(differs)
    if gpu.dtype.is_floating_point:
        nans = gpu.double().isnan(), interpreted.double().isnan()
        differs &= ~(nans[0] & nans[1])
        comparison.nan_here_only += int((nans[0] ^ nans[1]).sum())
        both = ~(nans[0] | nans[1])
    comparison.different += int(differs.sum())
    here = differs & both
    if here.any():
        left, right = gpu[here], interpreted[here]
        distances = [_distance(a, b) for a, b in _pairs_of_ranks(left, right)]
        comparison.largest_ulps = max(comparison.largest_ulps, *distances)
        truth, got = left.double(), right.double()
        finite = truth.isfinite() & got.isfinite() & (truth != 0)
        if finite.any():
            error = ((got - truth) / truth).abs()[finite].max()
            comparison.largest_relative_error = max(comparison.largest_relative_error, float(error))
        every = gpu.double()
        rms = every[every.isfinite()].square().mean().sqrt()
        distance = (got - truth).abs()[truth.isfinite() & got.isfinite()]
        if distance.numel() and rms > 0:
            comparison.largest_error_of_rms = max(
                comparison.largest_error_of_rms, float(distance.max() / rms)
            )
    for place in differs.nonzero().reshape(-1)[: _SHOWN - len(comparison.examples)].tolist():
        matching = [tensor.reshape(-1) for tensor in inputs if tensor.numel() == gpu.numel()]
        comparison.examples.append(
            {
                "place": str(place),
                "inputs": ", ".join(str(_number(tensor[place])) for tensor in matching),
                "gpu": str(_number(gpu[place])),
                "interpreted": str(_number(interpreted[place])),
            }
        )


def _number(element: torch.Tensor) -> Any:
    return element.item() if element.dtype != torch.float8_e8m0fnu else element.float().item()


def _pairs_of_ranks(left: torch.Tensor, right: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield where each element stands among all values of its dtype; only the first and farthest matter."""
    return zip(_ranks(left), _ranks(right), strict=True)


def _ranks(values: torch.Tensor) -> list[int]:
    size = values.element_size()
    numbers = values.view(_BITS[size]).to(torch.int64).tolist()
    if not values.dtype.is_floating_point:
        signed = str(values.dtype).startswith("torch.int")
        return numbers if signed else [number % 256**size for number in numbers]
    top = 2 ** (8 * size - 1)  # both zeros have rank 0 and -1
    return [number if number >= 0 else -1 - (number + top) for number in numbers]


def _distance(a: int, b: int) -> float:
    return float(abs(a - b))


def _once(run: Run) -> tuple[list[torch.Tensor] | None, str, float]:
    start = time.perf_counter()
    try:
        results = run()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is recorded, and the rest goes on
        text = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")
        return None, text, time.perf_counter() - start
    return results, "", time.perf_counter() - start


def judge(name: str, dtype: str, gpu: Run, interpreted: Run, inputs: Sequence[torch.Tensor]) -> Comparison:
    """Run both and compare."""
    comparison = Comparison(name=name, dtype=dtype)
    left, comparison.gpu_error, comparison.gpu_s = _once(gpu)
    right, comparison.interpreter_error, comparison.interpreter_s = _once(interpreted)
    if left is not None and right is not None:
        for one, other in zip(left, right, strict=True):
            compare(comparison, one, other, inputs)
    return comparison


def launch(example: Example, inputs: Sequence[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Launch an example with copies of `inputs` on a device; return what it wrote, on the CPU."""
    import cuda.tile as ct

    arguments = [tensor.clone().to(device) for tensor in inputs]
    results = [
        torch.zeros(shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in example.outputs
    ]
    stream = torch.cuda.current_stream() if device == "cuda" else 0
    ct.launch(stream, example.grid, example.kernel, (*arguments, *results, *example.constants))
    return [tensor.cpu() for tensor in results]


def _interpret(arch: str, run: Run) -> Run:
    def interpreted() -> list[torch.Tensor]:
        # Races are looked for by other means: an atomic operation may come in any order here.
        with interpret(arch, Options(check_races=False)):
            return run()

    return interpreted


@dataclass(frozen=True, kw_only=True)
class Task:
    """One operation with its dtype, or one kernel with its case: what a process compares."""

    kernel: bool
    """Whether it is a case of kernels/."""
    name: str
    """The operation, or the kernel."""
    dtype: str
    """The dtype, or the name of the case."""


def tasks_for(arch: str, options: argparse.Namespace) -> list[Task]:
    """Return what the command line asks for."""
    of_kernels = [
        Task(kernel=True, name=spec.name, dtype=case.name)
        for spec in declared()
        for case in spec.cases
        if not case.speed and case.runs_on(arch)
    ]
    of_operations = [
        Task(kernel=False, name=example.operation, dtype=example.dtype) for example in all_examples()
    ]
    asked = (
        *(() if options.operations_only else of_kernels),
        *(() if options.kernels_only else of_operations),
    )
    return [task for task in asked if options.only in f"{task.name} {task.dtype}"]


def start_comparing(number: int, *, devices: Sequence[int], arch: str) -> Handler:
    """Prepare a process that compares, on one of `devices`, or interprets twice if there are none."""
    use_one_of(devices, number)
    make_tensor.GENERATED_ON_CPU = sys.maxsize  # both get the same inputs, however large
    examples = {(example.operation, example.dtype): example for example in all_examples()}
    specs = {spec.name: spec for spec in declared()}

    def do(task: Task) -> Comparison:
        if task.kernel:
            return of_case(specs[task.name], task.dtype, arch, self_test=not devices)
        return of_operation(examples[task.name, task.dtype], arch, self_test=not devices)

    return partial(_unless_lost, do, "cuda" if devices else "cpu")


def _unless_lost(do: Callable[[Task], Comparison], device: str, task: Task) -> Comparison:
    """Compare; raise Broken if the GPU answers nothing but errors then, as after an illegal address."""
    comparison = do(task)
    if comparison.gpu_error:
        raise_if_broken(device, comparison.gpu_error)
    return comparison


def of_operation(example: Example, arch: str, *, self_test: bool) -> Comparison:
    """Compare one operation."""
    inputs = list(example.inputs())
    interpreted = _interpret(arch, partial(launch, example, inputs, "cpu"))
    on_gpu = interpreted if self_test else partial(launch, example, inputs, "cuda")
    return judge(example.operation, example.dtype, on_gpu, interpreted, inputs)


def declared() -> list[KernelSpec]:
    """Return the specs of all modules of kernels/."""
    names = [
        module.name for module in pkgutil.iter_modules(kernels.__path__) if not module.name.startswith("_")
    ]
    modules = [importlib.import_module(f"kernels.{name}") for name in names]
    return [spec for module in modules for spec in getattr(module, "SPECS", None) or [module.SPEC]]


def of_case(spec: KernelSpec, name: str, arch: str, *, self_test: bool) -> Comparison:
    """Compare one correctness case of kernels/."""
    [case] = [case for case in spec.cases if case.name == name]

    def run() -> list[torch.Tensor]:
        args, kwargs = make_arguments(spec, case, device="cuda", seed_text=case.name)
        result = spec.launch(*args, **kwargs)
        return [tensor.cpu() for tensor in (result if isinstance(result, tuple | list) else (result,))]

    interpreted = _interpret(arch, run)
    return judge(spec.name, case.name, interpreted if self_test else run, interpreted, ())


def main(arguments: Sequence[str] | None = None) -> list[Comparison]:
    """Compare, print and write."""
    options = _parse(arguments)
    begun = time.monotonic()
    devices: Sequence[int] = () if options.self_test else options.device
    if options.self_test:
        device, arch = "interpreted twice", "sm_90"
    elif torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability(devices[0])
        device, arch = torch.cuda.get_device_name(devices[0]), f"sm_{major}{minor}"
    else:
        sys.exit("no GPU: try --self-test, or run this on a machine that has one")
    print(f"{device}, {arch}, torch {torch.__version__}")
    tasks = tasks_for(arch, options)
    comparisons: list[Comparison] = []

    def write() -> None:
        if options.json:
            content = {
                "device": device,
                "arch": arch,
                "torch": torch.__version__,
                "comparisons": [
                    {"verdict": comparison.verdict, **asdict(comparison)} for comparison in comparisons
                ],
            }
            write_document(options.json, content)

    start = partial(start_comparing, devices=devices, arch=arch)
    with Pool(min(options.processes, len(tasks)), start, task_seconds=TASK_SECONDS) as pool:
        for number, outcome in pool.run(tasks, until=begun + options.budget):
            task = tasks[number]
            lost = Comparison(name=task.name, dtype=task.dtype, gpu_error=outcome.error or "")
            comparison = outcome.value or lost
            print(comparison, flush=True)
            comparisons.append(comparison)
            if len(comparisons) % _WRITTEN_EVERY == 0:
                write()
    write()
    counts = Counter(comparison.verdict for comparison in comparisons)
    print(
        f"{len(comparisons)} of {len(tasks)} compared: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    )
    seconds = (
        sum(comparison.gpu_s for comparison in comparisons),
        sum(comparison.interpreter_s for comparison in comparisons),
    )
    print(
        f"{time.monotonic() - begun:.0f} s; of all processes: GPU, with compilation {seconds[0]:.0f} s, "
        f"interpreter {seconds[1]:.0f} s"
    )
    return comparisons


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write everything to, as it comes")
    parser.add_argument("--only", default="", help="operations, dtypes and cases whose line contains this")
    parser.add_argument("--operations-only", action="store_true")
    parser.add_argument("--kernels-only", action="store_true")
    parser.add_argument("--self-test", action="store_true", help="without a GPU: interpret both sides")
    parser.add_argument("--device", type=device_numbers, default=[0], metavar="0,1", help="GPUs to share")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="S", help="begin nothing later")
    parser.add_argument(
        "--processes", type=positive, default=len(os.sched_getaffinity(0)), metavar="N", help="cores"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
