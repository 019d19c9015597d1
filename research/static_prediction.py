"""How well the static gate predicts slowdowns: variants of three kernels, compiled, judged and timed.

    python -m research.static_prediction [--arch sm_90] [--no-gpu] [--json FILE]

Each variant is one change that an author might make to a tuned kernel: a hint, a tile, a line of source. The
gate's rule compares what it compiles to with the kernel as it is. On the GPU, kernel and variant are timed
by the gate's own timer, interleaved. A variant is slower when its time exceeds the kernel's by more than 3 %,
the margin of the speed gate, in every round.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import structs

import kernels
from pytest_cutile.compiler import (
    CompileError,
    Compiler,
    digest_code,
    digest_launches,
    export,
    record_launches,
)
from pytest_cutile.static.changes import Effect, StaticRule
from pytest_cutile.static.comparison import compare
from pytest_cutile.static.facts import CaseFacts
from pytest_cutile.static.inspection import Inspector

MARGIN = 0.03
ROUNDS = 5
SOURCES = Path(kernels.__path__[0])


@dataclass(frozen=True)
class Variant:
    """One change of a kernel."""

    name: str
    """What it does, in a few words."""
    config: dict[str, Any] = field(default_factory=dict)
    """Fields of the kernel's configuration that are replaced."""
    edits: tuple[tuple[str, str], ...] = ()
    """Texts of the kernel's file that are replaced."""


def edit(name: str, *pairs: tuple[str, str]) -> Variant:
    """Return a variant that changes the source."""
    return Variant(name=name, edits=pairs)


_LOAD_A = "(TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency)"
_LOAD_B = "(TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO, latency=latency)"


def _no_tma(load: str) -> tuple[str, str]:
    return load, load.replace("latency=latency", "latency=latency, allow_tma=False")


VARIANTS: dict[str, tuple[str, str, list[Variant]]] = {
    "matmul": (
        "fp16-4096x4096x4096",
        "GemmConfig",
        [
            Variant("no occupancy hint", {"occupancy": None}),
            Variant("occupancy 1", {"occupancy": 1}),
            Variant("occupancy 3", {"occupancy": 3}),
            Variant("no latency hint", {"latency": None}),
            Variant("latency 1", {"latency": 1}),
            Variant("latency 2", {"latency": 2}),
            Variant("latency 8", {"latency": 8}),
            Variant("tile 64x64x64", {"tile_m": 64, "tile_n": 64}),
            Variant("tile 128x64x64", {"tile_n": 64}),
            Variant("tile 64x128x64", {"tile_m": 64}),
            Variant("tile 128x128x32", {"tile_k": 32}),
            Variant("tile 128x128x128", {"tile_k": 128}),
            Variant(
                "tile 128x256x64, 1 block, 8 warps", {"tile_n": 256, "occupancy": 1, "num_worker_warps": 8}
            ),
            Variant(
                "tile 256x128x64, 1 block, 8 warps", {"tile_m": 256, "occupancy": 1, "num_worker_warps": 8}
            ),
            Variant("tile 128x256x64, 1 block", {"tile_n": 256, "occupancy": 1}),
            Variant("tile 256x256x64, 1 block", {"tile_m": 256, "tile_n": 256, "occupancy": 1}),
            Variant("8 worker warps", {"num_worker_warps": 8}),
            Variant("2 CTAs", {"num_ctas": 2}),
            Variant("group of 1", {"group_m": 1}),
            Variant("group of 4", {"group_m": 4}),
            edit("A without TMA", _no_tma(_LOAD_A)),
            edit("A and B without TMA", _no_tma(_LOAD_A), _no_tma(_LOAD_B)),
            Variant("store without TMA", {"store_tma": False}),
            edit("padding with -inf", (_LOAD_A, _LOAD_A.replace("ZERO", "NEG_INF"))),
            edit("operands as float32", ("ct.float32 else a.dtype", "ct.float32 else ct.float32")),
            edit("operands as tfloat32", ("ct.float32 else a.dtype", "ct.float32 else ct.tfloat32")),
            edit(
                "float16 sums", ("(TILE_M, TILE_N), dtype=ct.float32", "(TILE_M, TILE_N), dtype=ct.float16")
            ),
            edit("sum scaled", ("acc.astype(C.dtype)", "(acc * 0.5).astype(C.dtype)")),
        ],
    ),
    "softmax": (
        "bf16-16384x8192",
        "SoftmaxConfig",
        [
            Variant("no occupancy hint", {"occupancy": None}),
            Variant("occupancy 1", {"occupancy": 1}),
            Variant("occupancy 2", {"occupancy": 2}),
            Variant("occupancy 4", {"occupancy": 4}),
            Variant("occupancy 16", {"occupancy": 16}),
            Variant("8 warps", {"num_worker_warps": 8}),
            Variant("8 warps, no occupancy hint", {"num_worker_warps": 8, "occupancy": None}),
            Variant("in chunks of 8192", {"max_row": 4096}),
            Variant("in chunks of 2048", {"max_row": 4096, "chunk": 2048}),
            edit(
                "exp instead of exp2",
                (
                    "ct.exp2((x[j] - row_max) * LOG2_E)",
                    "ct.exp(x[j] - row_max)",
                ),
            ),
            edit(
                "a division per element",
                ("(e[j] * scale).astype", "(e[j] / ct.sum(total, 1, keepdims=True)).astype"),
            ),
            edit("exp2 twice", ("(e[j] * scale).astype", "(ct.exp2(e[j]) * scale).astype")),
            edit("tanh as well", ("(e[j] * scale).astype", "(ct.tanh(e[j]) * scale).astype")),
        ],
    ),
    "rms_norm": (
        "bf16-32768x4096",
        "RmsNormConfig",
        [
            Variant("no occupancy hint", {"occupancy": None}),
            Variant("occupancy 1", {"occupancy": 1}),
            Variant("occupancy 4", {"occupancy": 4}),
            Variant("occupancy 8", {"occupancy": 8}),
            Variant("4 warps", {"num_worker_warps": 4}),
            Variant("tiles of 16384", {"tile_elements": 16384}),
            Variant("tiles of 16384, 4 warps", {"tile_elements": 16384, "num_worker_warps": 4}),
            Variant("tiles of 32768, 4 warps", {"tile_elements": 32768, "num_worker_warps": 4}),
            edit("root and division", ("ct.rsqrt(mean_square + eps)", "(1.0 / ct.sqrt(mean_square + eps))")),
            edit(
                "a root per element",
                ("h[j] * scale * w", "h[j] * ct.rsqrt(mean_square + eps + 0.0 * h[j]) * w"),
            ),
            edit(
                "float64 sums",
                (
                    "ct.sum(squares, 1, keepdims=True)",
                    "ct.sum(squares.astype(ct.float64), 1, keepdims=True).astype(ct.float32)",
                ),
            ),
            edit("tanh as well", ("y = h[j] * scale", "y = ct.tanh(h[j]) * scale")),
        ],
    ),
}


@dataclass(kw_only=True)
class Row:
    """One line of the table."""

    kernel: str
    variant: str
    effect: str
    why: str
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None


def load(kernel: str, edits: tuple[tuple[str, str], ...], folder: Path) -> ModuleType:
    """Import a copy of a kernel's module with `edits` made to its text, or to that of the shared `_gemm`."""
    text, shared = ((SOURCES / f"{name}.py").read_text() for name in (kernel, "_gemm"))
    edited = shared
    for old, new in edits:
        if old in text:
            text = text.replace(old, new)
        elif old in edited:
            edited = edited.replace(old, new)
        else:
            sys.exit(f"{kernel}: {old!r} is not there any more")
    name = f"{kernel}_{abs(hash(edits)):x}"
    if edited != shared:
        import_text(f"{name}_gemm", edited, folder)
        text = text.replace("from kernels._gemm import", f"from {name}_gemm import")
    return import_text(name, text, folder)


def import_text(name: str, text: str, folder: Path) -> ModuleType:
    """Import `text` as the module `name`."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} cannot be imported")
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
        case_name, self._config_class, self.variants = VARIANTS[kernel]
        spec = importlib.import_module(f"kernels.{kernel}").SPEC
        [self._case] = [case for case in spec.cases if case.name == case_name]
        self._inputs = spec.inputs

    def launcher(self, variant: Variant) -> Any:
        """Return the kernel's launcher as `variant` has it."""
        module = load(self._kernel, variant.edits, self._folder)
        choose = module.choose_config
        module.choose_config = lambda *args, **sizes: dataclasses.replace(
            choose(*args, **sizes), **variant.config
        )
        return module.SPEC.launch

    def make_inputs(self, device: str = "cuda") -> tuple[Any, ...]:
        """Make the case's inputs."""
        import torch

        def make(shape: Any, dtype: str, **_: Any) -> Any:
            return torch.randn(shape, device=device).to(getattr(torch, dtype))

        made = self._inputs(make, **self._case.params)
        return tuple(made.values() if isinstance(made, dict) else made)

    def facts(self, variant: Variant, compiler: Compiler, inspector: Inspector) -> CaseFacts:
        """Compile a variant and read what came of it."""
        launch = self.launcher(variant)
        launches = record_launches(lambda: launch(*self.make_inputs()), self._arch)
        compiling = [compiler.submit(export(each, self._arch)) for each in launches]
        inspected = [future.result() for future in inspector.submit(compiling)]
        codes = [digest_code(future.result().cubin, future.result().symbol) for future in compiling]
        return CaseFacts(
            fingerprint=digest_launches(zip(codes, launches, strict=True)),
            source="",
            launches=tuple(
                structs.replace(facts, grid=each.grid)
                for (facts, _), each in zip(inspected, launches, strict=True)
            ),
        )

    def time(self, base: Any, variant: Any, timer: Any) -> list[float]:
        """Return the ratio of times, variant to kernel, of each round."""
        inputs = self.make_inputs()
        ratios = []
        for _ in range(ROUNDS):
            launches = [functools.partial(launch, *inputs) for launch in (base, variant)]
            before, after = map(statistics.median, timer.time_block(launches))
            ratios.append(after / before)
        return ratios


def judge(bench: Workbench, arch: str, compiler: Compiler, inspector: Inspector, kernel: str) -> list[Row]:
    """Return a row with the gate's judgement for each variant."""
    base = bench.facts(Variant("as it is"), compiler, inspector)
    rows = []
    for variant in bench.variants:
        try:
            current = bench.facts(variant, compiler, inspector)
        except CompileError as error:
            rows.append(Row(kernel=kernel, variant=variant.name, effect="no code", why=error.message[:60]))
            continue
        comparison = compare(base, current, arch=arch, rule=StaticRule())
        effects = [f"{effect}" for effect in Effect if comparison.of(effect)]
        same = base.fingerprint == current.fingerprint
        effect = "unchanged" if same else next(iter(effects), "different")
        why = "; ".join(change.quantity.partition(",")[0] for change in comparison.of(Effect.WORSE))
        rows.append(Row(kernel=kernel, variant=variant.name, effect=effect, why=why))
    return rows


def outcome(row: Row) -> str:
    """Say whether the judgement was right."""
    if row.ratio is None or row.lowest is None:
        return ""
    slower = row.lowest > 1 + MARGIN
    if row.effect == "worse":
        return "caught" if slower else "false alarm"
    return "missed" if slower else "right"


def main() -> None:
    """Compile, judge, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", default="sm_90", help="architecture to compile for; with a GPU, its own")
    parser.add_argument("--no-gpu", action="store_true", help="judge only")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args()
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Compiler(cache_dir=None, jobs=4, timeout_s=300) as compiler,
    ):
        inspector = Inspector(cache_dir=None, jobs=4)
        for kernel in VARIANTS:
            bench = Workbench(kernel, options.arch, Path(folder))
            judged = judge(bench, options.arch, compiler, inspector, kernel)
            rows += judged
            if options.no_gpu:
                continue
            from pytest_cutile.gpu.nvml import find_gpu
            from pytest_cutile.speed.measure.timer import CudaGraphTimer

            timer = CudaGraphTimer(find_gpu())
            base = bench.launcher(Variant("as it is"))
            for variant, row in zip(bench.variants, judged, strict=True):
                if row.effect == "no code":
                    continue
                try:
                    ratios = sorted(bench.time(base, bench.launcher(variant), timer))
                except Exception as error:  # noqa: BLE001 - one variant that cannot run leaves the others
                    row.why += f" [{type(error).__name__}: {error}]"[:60]
                    continue
                row.lowest, row.ratio, row.highest = ratios[0], ratios[len(ratios) // 2], ratios[-1]
        inspector.close()
    for row in rows:
        times = "" if row.ratio is None else f"{row.ratio:6.3f} ({row.lowest:.3f}-{row.highest:.3f})"
        print(f"{row.kernel:8}  {row.variant:34}  {times:22}  {row.effect:9}  {outcome(row):11}  {row.why}")
    print(dict(Counter(outcome(row) for row in rows)))
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
