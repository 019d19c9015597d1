"""Benchmark a language model on the GPU: `python -m models list`, `python -m models bench NAME`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from models import tables
from models.bench import run_bench
from models.clock import GpuClock, HostClock
from models.contenders import contenders
from models.device import INTERPRETED_ARCH, on_gpu
from models.records import Record, Shape
from models.weights import CONFIGS, build
from tools.gpu_runs.measure import environment_of
from tools.gpu_runs.runs import positive, todays_name
from tools.gpu_runs.tables import aligned

RESULTS = Path(__file__).resolve().parent / "results"
PRESETS = {
    # As the playbook runs them, and with the prompts of the figures that the goals are about.
    "qwen2-7b": Shape(batch=16, prompt=4096, new_tokens=50),
    "deepseek-v2-lite": Shape(batch=1, prompt=2048, new_tokens=100),
    "llama-3.1-8b": Shape(batch=16, prompt=4096, new_tokens=50),
    "qwen3-8b": Shape(batch=16, prompt=4096, new_tokens=50),
}
TINY = Shape(batch=2, prompt=16, new_tokens=4)
QUICK_PROMPT = 512
ROUNDS, QUICK_ROUNDS = 3, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line names; return 1 if something could not be measured."""
    options = parse(argv)
    if options.command == "list":
        for name in CONFIGS:
            shape = PRESETS.get(name, TINY)
            print(f"{name:18} {shape.batch} x {shape.prompt} tokens, {shape.new_tokens} new")
        return 0
    return bench(options)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m models", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="models, and what is generated")
    one = commands.add_parser("bench", help="tokens per second of one model, by all contenders")
    one.add_argument("model", choices=list(CONFIGS), metavar="NAME", help="as in python -m models list")
    one.add_argument("--model", dest="weights", metavar="PATH|HUB_ID", help="real weights (random ones)")
    one.add_argument("--batch", type=positive, metavar="N", help="prompts at once")
    one.add_argument("--prompt", type=positive, metavar="N", help="tokens of each prompt")
    one.add_argument("--tokens", type=positive, metavar="N", help="new tokens for each prompt")
    one.add_argument("--rounds", type=positive, metavar="N", help=f"generations that count ({ROUNDS})")
    names = [contender.name for contender in contenders()]
    one.add_argument("--only", type=_names, metavar="NAME,...", help=f"some of {', '.join(names)}")
    one.add_argument(
        "--quick",
        action="store_true",
        help=f"prompts of {QUICK_PROMPT}, {QUICK_ROUNDS} rounds, no torch.compile unless named by --only",
    )
    one.add_argument("--coverage", action="store_true", help="show the shares that our kernels have")
    one.add_argument("--no-profile", action="store_true", help="do not count kernels")
    one.add_argument(
        "--output", type=Path, metavar="DIR", help="for the files (models/results/GPU-DATE/NAME)"
    )
    options = parser.parse_args(argv)
    if options.command == "bench" and options.tokens == 1:
        parser.error("--tokens has to be at least 2: the prefill makes the first, and decoding the others")
    if options.command == "bench" and options.coverage and options.no_profile:
        parser.error("--coverage needs the profile that --no-profile leaves out")
    return options


def bench(options: argparse.Namespace) -> int:
    """Run `python -m models bench`."""
    import torch

    has_gpu, place = torch.cuda.is_available(), on_gpu(options.model)
    chosen = [
        contender
        for contender in contenders()
        if (
            contender.name in options.only
            if options.only
            else not (options.quick and contender.slow_to_start)
        )
    ]
    shape = shape_of(options)
    gpu = torch.cuda.get_device_name() if has_gpu else "cpu"
    folder = options.output or RESULTS / todays_name(gpu, quick=options.quick) / options.model
    record = Record(
        model=options.model,
        weights=options.weights or "random",
        shape=shape,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        command=command_of(options),
        environment=environment(has_gpu=has_gpu),
    )
    print(f"{options.model}: {shape.batch} x {shape.prompt} tokens, {shape.new_tokens} new, into {folder}")
    try:
        with place:
            try:
                model = build(options.model, weights=options.weights, device="cuda")
                folder.mkdir(parents=True, exist_ok=True)  # before anything is measured
            except (ValueError, OSError, MemoryError) as error:
                raise SystemExit(f"{options.model}: {error}") from error
            run_bench(
                model,
                record,
                chosen,
                GpuClock() if has_gpu else HostClock(),
                rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
                graphs=has_gpu,
                profiled=has_gpu and not options.no_profile,
                say=_print_now,
                store=lambda record: tables.store(folder, record),
            )
    finally:
        if record.rows:
            report(record, folder, coverage=options.coverage)
    return 1 if record.problems else 0


def report(record: Record, folder: Path, *, coverage: bool) -> None:
    """Print the tables, and write the pages."""
    print(f"\n{tables.table(record)}")
    for name, why in record.problems.items():
        print(f"not measured: {name}: {why}")
    for title, breakdown in tables.breakdowns(record).items():
        shown = aligned(tables.KERNEL_TITLES, tables.kernel_cells(breakdown))
        print(f"\n{title}\n{shown}")
    print("\n".join(["", *(tables.coverage_lines(record) if coverage else ()), *tables.goal_lines(record)]))
    print("\n".join(["wrote", *(f"  {file}" for file in tables.write_pages(folder, record))]))


def shape_of(options: argparse.Namespace) -> Shape:
    preset = PRESETS.get(options.model, TINY)
    prompt = min(preset.prompt, QUICK_PROMPT) if options.quick else preset.prompt
    return Shape(
        batch=options.batch or preset.batch,
        prompt=options.prompt or prompt,
        new_tokens=options.tokens or preset.new_tokens,
    )


def command_of(options: argparse.Namespace) -> str:
    """Return the command line, with what differs from the defaults."""
    values: dict[str, Any] = {
        "--model": options.weights,
        "--batch": options.batch,
        "--prompt": options.prompt,
        "--tokens": options.tokens,
        "--rounds": options.rounds,
        "--only": ",".join(options.only or ()) or None,
    }
    words = [f"{name} {value}" for name, value in values.items() if value is not None]
    flags = ["--quick"] * options.quick + ["--no-profile"] * options.no_profile
    return " ".join(["python -m models bench", options.model, *words, *flags])


def environment(*, has_gpu: bool) -> dict[str, str]:
    """Return what the figures depend on: GPU, driver, compiler, and libraries."""
    if has_gpu:
        from pytest_cutile.timing.gpu.nvml import find_gpu
        from pytest_cutile.timing.measure.timer import CudaGraphTimer

        facts = environment_of(CudaGraphTimer(find_gpu()))
    else:
        facts = {"gpu": f"none, interpreted for {INTERPRETED_ARCH}", "torch": metadata.version("torch")}
    return {**facts, "transformers": metadata.version("transformers")}


def _names(text: str) -> list[str]:
    known = [contender.name for contender in contenders()]
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def _print_now(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
