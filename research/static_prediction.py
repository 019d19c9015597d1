"""How well the static gate predicts slowdowns: variants of kernels, compiled, judged and timed.

    python -m research.static_prediction [--arch sm_90] [--seconds 330] [--only REGEX] [--output FOLDER]
    python -m research.static_prediction --times FILE [--output FOLDER]     # with no GPU

Each variant of `research.static_variants` is one change that an author might make to a tuned kernel: a hint,
a tile, a line of source. The gate's rule compares what it compiles to with the kernel as it is. On the GPU,
kernel and variant are timed by the gate's own timer, interleaved. A variant is slower when its time exceeds
the kernel's by more than 3 %, the margin of the speed gate, in every round.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import structs

from pytest_cutile.gates.declared import call_of
from pytest_cutile.pytest_parts.options.ini import STATIC_MARGIN
from pytest_cutile.tile.compiler import Compiler, digest_code, record_launches
from pytest_cutile.tile.compiler.compilations import Compilation
from pytest_cutile.tile.compiler.fingerprint import digest_described
from pytest_cutile.tile.compiler.traced import trace_launch
from pytest_cutile.tile.interpreter.executed import count_executed
from pytest_cutile.tile.static.changes import Effect
from pytest_cutile.tile.static.comparison import compare
from pytest_cutile.tile.static.facts import CaseFacts
from pytest_cutile.tile.static.inspection import Inspector
from pytest_cutile.tile.static.roofline import predict
from pytest_cutile.tile.tensors.seeded import MakeTensor
from research.static_variants import CASES, CONFIGS, FIRST, LATER, MODULES, Variant

MARGIN = 0.03
ROUNDS = 3
AS_IT_IS = Variant("as it is")


@dataclass(kw_only=True)
class Row:
    """One line of the table."""

    kernel: str
    variant: str
    later: bool
    """Whether it was written after the rules were fixed."""
    effect: str = "no code"
    why: str = ""
    predicted: float | None = None
    """Its predicted time over that of the kernel."""
    ratio: float | None = None
    """Its measured time over that of the kernel: median, lowest and highest of the rounds."""
    lowest: float | None = None
    highest: float | None = None
    us: float | None = None
    """Its measured time per launch in microseconds, the median of the rounds."""

    @property
    def outcome(self) -> str:
        """Whether the judgement was right."""
        if self.ratio is None or self.lowest is None:
            return ""
        slower = self.lowest > 1 + MARGIN
        if self.effect == "worse":
            return "caught" if slower else "false alarm"
        if self.effect == "better" and slower:
            return "missed, better"
        return "missed" if slower else "right"


def module_of(kernel: str) -> ModuleType:
    """Import the module that declares a kernel."""
    return importlib.import_module(MODULES.get(kernel, f"kernels.{kernel}"))


def load(kernel: str, edits: Sequence[tuple[str, str]], folder: Path) -> ModuleType:
    """Import a copy of a kernel's module with `edits` made to its text, or to that of one that it uses."""
    text = source_of(module_of(kernel))
    taken_from = re.findall(r"^from kernels\.(\w+) import", text, re.MULTILINE)
    shared = {name: source_of(importlib.import_module(f"kernels.{name}")) for name in taken_from}
    edited = dict(shared)
    for old, new in edits:
        if old in text:
            text = text.replace(old, new)
            continue
        holder = next((name for name, source in edited.items() if old in source), None)
        if holder is None:
            raise ValueError(f"{kernel}: {old!r} is not there any more")
        edited[holder] = edited[holder].replace(old, new)
    name = f"{kernel}_{hashlib.sha256(repr(edits).encode()).hexdigest()[:12]}"
    for holder, source in edited.items():
        if source != shared[holder]:
            import_text(f"{name}_{holder}", source, folder)
            text = text.replace(f"from kernels.{holder} import", f"from {name}_{holder} import")
    return import_text(name, text, folder)


def source_of(module: ModuleType) -> str:
    """Return the text of a module."""
    assert module.__file__ is not None
    return Path(module.__file__).read_text()


def import_text(name: str, text: str, folder: Path) -> ModuleType:
    """Import `text` as the module `name`."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Workbench:
    """Compiles and times variants of one kernel's case."""

    def __init__(self, kernel: str, arch: str, folder: Path) -> None:
        self._kernel = kernel
        self._arch = arch
        self._folder = folder
        self._spec = module_of(kernel).SPEC
        [self._case] = [case for case in self._spec.cases if case.name == CASES[kernel]]

    def launcher(self, variant: Variant) -> Callable[[Any], None]:
        """Return what launches `variant` on inputs of the case."""
        module = load(self._kernel, variant.edits, self._folder)
        choose = module.choose_config
        module.choose_config = lambda *args, **sizes: dataclasses.replace(  # type: ignore[attr-defined]
            choose(*args, **sizes), **CONFIGS.get(self._kernel, {}), **variant.config
        )

        def launch(inputs: Any) -> None:
            for _ in range(variant.times):
                call_of(module.SPEC.launch, inputs)()

        return launch

    def make_inputs(self) -> Any:
        """Make the case's inputs; without data while launches are recorded."""
        return self._spec.make_inputs(functools.partial(MakeTensor, device="cuda", seed=0), self._case)

    def start(self, variant: Variant, compiler: Compiler) -> list[Compilation]:
        """Trace a variant and start to compile it."""
        launch = self.launcher(variant)
        launches = record_launches(lambda: launch(self.make_inputs()), self._arch)
        traced = [trace_launch(recorded, self._arch) for recorded in launches]
        return [Compilation(launch=one, compiling=compiler.submit(one.job)) for one in traced]


def facts_of(compilations: Sequence[Compilation], inspector: Inspector) -> CaseFacts:
    """Wait for a variant, and read what it was compiled to."""
    compiling = [compilation.compiling for compilation in compilations]
    inspected = [future.result() for future in inspector.submit(compiling)]
    codes = [digest_code(future.result().cubin, future.result().symbol) for future in compiling]
    return CaseFacts(
        fingerprint=digest_described(
            zip(codes, [compilation.launch.described for compilation in compilations], strict=True)
        ),
        source="",
        launches=tuple(
            structs.replace(
                facts,
                grid=compilation.launch.grid,
                executed=count_executed(compilation.launch.job, compilation.launch.parameters),
            )
            for (facts, _), compilation in zip(inspected, compilations, strict=True)
        ),
    )


def judge(row: Row, base: CaseFacts, current: CaseFacts, arch: str) -> None:
    """Enter the gate's judgement and the predicted times."""
    comparison = compare(base, current, arch=arch, margin=STATIC_MARGIN)
    effects = [f"{effect}" for effect in Effect if comparison.of(effect)]
    same = base.fingerprint == current.fingerprint
    row.effect = "unchanged" if same else next(iter(effects), "different")
    shown = comparison.of(Effect.WORSE) or comparison.of(Effect.BETTER)
    row.why = "; ".join(change.quantity.partition(",")[0] for change in shown)
    times = predict(base.launches, arch), predict(current.launches, arch)
    if times[0] is not None and times[1] is not None:
        row.predicted = times[1].us / times[0].us


def measure(row: Row, base: Any, variant: Any, inputs: Any, timer: Any) -> None:
    """Time a variant beside the kernel."""
    ratios, times = [], []
    for _ in range(ROUNDS):
        launches = [functools.partial(launch, inputs) for launch in (base, variant)]
        before, after = map(statistics.median, timer.time_block(launches))
        ratios.append(after / before)
        times.append(after)
    row.us = statistics.median(times)
    row.lowest, row.ratio, row.highest = min(ratios), statistics.median(ratios), max(ratios)


def make_timer() -> Any:
    """Return the speed gate's timer of the GPU at hand."""
    from pytest_cutile.timing.gpu.nvml import find_gpu
    from pytest_cutile.timing.measure.timer import CudaGraphTimer

    return CudaGraphTimer(find_gpu())


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's coefficient of pairs; ties share their mean rank."""

    def ranks(values: Sequence[float]) -> list[float]:
        ordered = sorted(values)
        return [(2 * ordered.index(value) + ordered.count(value) - 1) / 2 for value in values]

    first, second = (ranks(values) for values in zip(*pairs, strict=True))
    return statistics.correlation(first, second)


def table(rows: Sequence[Row]) -> list[str]:
    """Return a line for each variant, then counts."""
    lines = []
    for row in rows:
        times = "" if row.ratio is None else f"{row.ratio:7.3f} {row.lowest:7.3f}-{row.highest:.3f}"
        predicted = "" if row.predicted is None else f"{row.predicted:.2f}"
        lines.append(
            f"{row.kernel:16}  {row.variant:34}  {times:23}  {predicted:>6}  "
            f"{row.effect:9}  {row.outcome:14}  {row.why[:60]}".rstrip()
        )
    for title, half in (
        ("before the rules", [row for row in rows if not row.later]),
        ("after the rules", [row for row in rows if row.later]),
        ("all", rows),
    ):
        counts = Counter(row.outcome or "not timed" for row in half)
        pairs = [(row.predicted, row.ratio) for row in half if row.predicted and row.ratio]
        varied = len({predicted for predicted, _ in pairs}) > 1 and len({ratio for _, ratio in pairs}) > 1
        said = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
        rank = f"; rank correlation {rank_correlation(pairs):.2f} of {len(pairs)}" if varied else ""
        lines.append(f"{title}: {len(half)} variants: {said}{rank}")
    return lines


def write(folder: Path, rows: Sequence[Row], device: str) -> None:
    """Write all rows as JSON, and the table."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"device": device, "rows": [{**dataclasses.asdict(row), "outcome": row.outcome} for row in rows]}
    (folder / "static_prediction.json").write_text(json.dumps(data, indent=1))
    (folder / "static_prediction.txt").write_text("\n".join(table(rows)) + "\n")


def take_times(rows: Sequence[Row], file: Path) -> str:
    """Enter the times of an earlier run; return its GPU."""
    data = json.loads(file.read_text())
    known = {(row["kernel"], row["variant"]): row for row in data["rows"]}
    for row in rows:
        if (timed := known.get((row.kernel, row.variant))) is not None:
            row.ratio, row.lowest, row.highest = timed["ratio"], timed["lowest"], timed["highest"]
    return f"{data['device']} ({file.name})"


def compile_all(
    benches: Mapping[str, Workbench], rows: Sequence[tuple[Row, Variant]], arch: str, compiler: Compiler
) -> None:
    """Compile every variant, all at once, and judge it."""
    inspector = Inspector(cache_dir=None, jobs=os.cpu_count() or 1)
    started: list[tuple[Row, Any]] = []
    bases = {kernel: bench.start(AS_IT_IS, compiler) for kernel, bench in benches.items()}
    for row, variant in rows:
        try:
            compilations = benches[row.kernel].start(variant, compiler)
        except Exception as error:  # noqa: BLE001 - one that cannot be traced leaves the others
            row.why = f"[{type(error).__name__}: {error}]"[:90]
        else:
            started.append((row, compilations * variant.times if len(compilations) == 1 else compilations))
    facts = {kernel: facts_of(compilations, inspector) for kernel, compilations in bases.items()}
    for row, compilations in started:
        try:
            judge(row, facts[row.kernel], facts_of(compilations, inspector), arch)
        except Exception as error:  # noqa: BLE001 - likewise
            row.why = f"[{type(error).__name__}: {error}]"[:90]
    inspector.close()


def time_all(
    benches: Mapping[str, Workbench], rows: Sequence[tuple[Row, Variant]], timer: Any, until: float
) -> None:
    """Time every variant that compiles, kernel by kernel, until the time is up."""
    for kernel, bench in benches.items():
        base, inputs = bench.launcher(AS_IT_IS), bench.make_inputs()
        for row, variant in rows:
            if row.kernel != kernel or row.effect == "no code" or time.monotonic() > until:
                continue
            try:
                measure(row, base, bench.launcher(variant), inputs, timer)
            except Exception as error:  # noqa: BLE001 - one that cannot run leaves the others
                row.why += f" [{type(error).__name__}: {error}]"[:90]


def main(timer_of: Callable[[], Any] = make_timer) -> None:
    """Compile, judge, time, print."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", default="sm_90", help="architecture to compile for; with a GPU, its own")
    parser.add_argument("--no-gpu", action="store_true", help="judge only")
    parser.add_argument(
        "--times", type=Path, help="judge against times that were measured before, with no GPU"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="variants whose 'kernel: name' has it")
    parser.add_argument("--seconds", type=float, default=330, help="after which no further variant is timed")
    parser.add_argument("--output", type=Path, help="folder to write the rows and the table to")
    options = parser.parse_args()
    rows = [
        (Row(kernel=kernel, variant=variant.name, later=later), variant)
        for later, table_of in ((False, FIRST), (True, LATER))
        for kernel, variants in table_of.items()
        for variant in variants
        if re.search(options.only, f"{kernel}: {variant.name}")
    ]
    device = ""
    with tempfile.TemporaryDirectory() as folder:
        chosen = dict.fromkeys(row.kernel for row, _ in rows)
        benches = {kernel: Workbench(kernel, options.arch, Path(folder)) for kernel in chosen}
        with Compiler(
            cache_dir=None, jobs=os.cpu_count() or 1, timeout_s=120, gpu_arch=options.arch
        ) as compiler:
            compile_all(benches, rows, options.arch, compiler)
        print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
        if options.times is not None:
            device = take_times([row for row, _ in rows], options.times)
        elif not options.no_gpu:
            import torch

            timer = timer_of()
            device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
            time_all(benches, rows, timer, started + options.seconds)
    judged = [row for row, _ in rows]
    print("\n".join(table(judged)))
    print(f"{device}, {time.monotonic() - started:.0f} s")
    if options.output is not None:
        write(options.output, judged, device)


if __name__ == "__main__":
    main()
