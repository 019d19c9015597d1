"""Interpreted and on a GPU: every operation of cuTile and every case of kernels/, element by element.

    python -m research.interpreter_against_gpu --json FILE [--only TEXT] [--part K/N] [--kernels-only]
    python -m research.interpreter_against_gpu --self-test --only "add RZ"   # no GPU: both interpreted

Runs each kernel with the same inputs on the current GPU and interpreted, and prints a line for each: how many
elements are not bit-equal (a NaN equals any other), the largest distance in units in the last place, and the
first elements that differ. Zeros of different sign differ. What one of the two cannot run is listed with its
reason, and the rest goes on.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import pkgutil
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

import kernels
from pytest_cutile import Case, KernelSpec
from pytest_cutile.interpreter import Options, interpret
from research.operations import Example, all_examples
from tools.gpu_runs.inputs import make_arguments

_SHOWN = 5
_WRITTEN_EVERY = 25
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_T = TypeVar("_T")
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
            f"{each['inputs']} -> {each['gpu']} GPU, {each['interpreted']} interpreted"
            for each in self.examples[:2]
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
        matching = [each.reshape(-1) for each in inputs if each.numel() == gpu.numel()]
        comparison.examples.append(
            {
                "place": str(place),
                "inputs": ", ".join(str(_number(each[place])) for each in matching),
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

    arguments = [each.clone().to(device) for each in inputs]
    results = [
        torch.zeros(shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in example.outputs
    ]
    stream = torch.cuda.current_stream() if device == "cuda" else 0
    ct.launch(stream, example.grid, example.kernel, (*arguments, *results, *example.constants))
    return [each.cpu() for each in results]


def _interpret(arch: str, run: Run) -> Run:
    def interpreted() -> list[torch.Tensor]:
        # Races are looked for by other means: an atomic operation may come in any order here.
        with interpret(arch, Options(check_races=False)):
            return run()

    return interpreted


@dataclass(frozen=True)
class Part:
    """Every `count`-th example, from the `first`-th on: several processes share the work."""

    first: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that "2/8" names: the second of eight."""
        match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        if match is None or int(match[1]) > int(match[2]):
            raise argparse.ArgumentTypeError(f"expected K/N with 1 <= K <= N, got {text!r}")
        return cls(int(match[1]) - 1, int(match[2]))

    def of(self, examples: Iterable[_T]) -> Iterator[_T]:
        """Yield this part of them."""
        return itertools.islice(examples, self.first, None, self.count)


def of_operations(arch: str, only: str, part: Part, *, self_test: bool) -> Iterator[Comparison]:
    """Compare the operations whose line contains `only`."""
    for example in part.of(
        example for example in all_examples() if only in f"{example.operation} {example.dtype}"
    ):
        inputs = list(example.inputs())

        def interpreted(example: Example = example, inputs: Sequence[torch.Tensor] = inputs) -> Any:
            return launch(example, inputs, "cpu")

        def on_gpu(example: Example = example, inputs: Sequence[torch.Tensor] = inputs) -> Any:
            return launch(example, inputs, "cuda")

        yield judge(
            example.operation,
            example.dtype,
            _interpret(arch, interpreted) if self_test else on_gpu,
            _interpret(arch, interpreted),
            inputs,
        )


def declared() -> list[KernelSpec]:
    """Return the specs of all modules of kernels/."""
    names = [
        module.name for module in pkgutil.iter_modules(kernels.__path__) if not module.name.startswith("_")
    ]
    modules = [importlib.import_module(f"kernels.{name}") for name in names]
    return [spec for module in modules for spec in getattr(module, "SPECS", None) or [module.SPEC]]


def of_kernels(arch: str, only: str, part: Part, *, self_test: bool) -> Iterator[Comparison]:
    """Compare the correctness cases of kernels/ whose line contains `only`."""
    for spec, case in part.of(
        (kernel, each)
        for kernel in declared()
        for each in kernel.cases
        if not each.speed and each.runs_on(arch) and only in f"{kernel.name} {each.name}"
    ):

        def run(spec: KernelSpec = spec, case: Case = case) -> list[torch.Tensor]:
            args, kwargs = make_arguments(spec, case, device="cuda", seed_text=case.name)
            result = spec.launch(*args, **kwargs)
            return [each.cpu() for each in (result if isinstance(result, tuple | list) else (result,))]

        yield judge(
            spec.name,
            case.name,
            _interpret(arch, run) if self_test else run,
            _interpret(arch, run),
            (),
        )


def _gpu_is_lost() -> bool:
    """Return whether an error has left this process without its GPU, as an illegal address does."""
    try:
        torch.zeros(1, device="cuda").cpu()
    except RuntimeError:
        return True
    return False


def main(arguments: Sequence[str] | None = None) -> list[Comparison]:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write everything to")
    parser.add_argument("--only", default="", help="operations, dtypes and cases whose line contains this")
    parser.add_argument(
        "--part", type=Part.parse, default=Part(), metavar="K/N", help="every N-th line from the K-th on"
    )
    parser.add_argument("--operations-only", action="store_true")
    parser.add_argument("--kernels-only", action="store_true")
    parser.add_argument("--self-test", action="store_true", help="without a GPU: interpret both sides")
    options = parser.parse_args(arguments)
    if options.self_test:
        device, arch = "interpreted twice", "sm_90"
    elif torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        device, arch = torch.cuda.get_device_name(), f"sm_{major}{minor}"
    else:
        sys.exit("no GPU: try --self-test, or run this on a machine that has one")
    print(f"{device}, {arch}, torch {torch.__version__}")
    comparisons: list[Comparison] = []

    def write() -> None:
        if options.json:
            content = {
                "device": device,
                "arch": arch,
                "torch": torch.__version__,
                "comparisons": [{"verdict": each.verdict, **asdict(each)} for each in comparisons],
            }
            options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    for left_out, of in ((options.kernels_only, of_operations), (options.operations_only, of_kernels)):
        if left_out:
            continue
        for each in of(arch, options.only, options.part, self_test=options.self_test):
            print(each, flush=True)
            comparisons.append(each)
            if len(comparisons) % _WRITTEN_EVERY == 0:
                write()
            if each.gpu_error and not options.self_test and _gpu_is_lost():
                print("the GPU answers no more: leave this one out, and run the rest")
                write()
                return comparisons
    write()
    counts = Counter(each.verdict for each in comparisons)
    print(
        f"{len(comparisons)} compared: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    )
    seconds = (sum(each.gpu_s for each in comparisons), sum(each.interpreter_s for each in comparisons))
    print(f"GPU, with compilation {seconds[0]:.0f} s; interpreter {seconds[1]:.0f} s")
    return comparisons


if __name__ == "__main__":
    main()
