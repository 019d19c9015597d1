"""The study: steps of the ladder and TileGym, each interleaved with PyTorch's attention, by sequence length.

Its files `fmha_scaling_results.json` and `.md` have the form of those of NVIDIA's `fmha_scaling_analysis.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels import fmha
from pytest_cutile.reports.html.plots import Dot, PlottedLine, lines_plot
from pytest_cutile.words.platforms.published import DOCUMENT
from pytest_cutile.words.timing import Regime
from research.published_figures import FMHA_B300, FMHA_GB10
from studies.fmha_ladder._declare import B, D, H, sequence
from studies.fmha_ladder.steps import step
from studies.running.files import drawing, origin, timing_cells, to_json
from studies.running.peers import CAUSAL_SDPA as TORCH
from studies.running.peers import TILEGYM, import_tilegym
from studies.running.study import Contender, Record, Row, Study, TimedRow
from tools.gpu_runs.tables import markdown

if TYPE_CHECKING:
    from markupsafe import Markup

LENGTHS = (1024, 2048, 4096, 8192, 16384)
QUICK_LENGTHS = (1024, 4096)
STEPS = (1, 2, 4, 6, 9, 13)
"""Of the ladder: those of NVIDIA's script (basic, exp2, memory, full), and those that add most to them."""
PLOTTED = {
    TORCH.name: "PyTorch",
    **{step(number).contender.name: f"step {number}" for number in (1, 6, 9, 13)},
    TILEGYM.name: "TileGym",
}
"""Names in plots, which have six colours."""
CONTENDERS = (TORCH, *(step(number).contender for number in STEPS), TILEGYM)


def rows(quick: bool) -> Sequence[Row]:
    import_tilegym()
    return [
        Row(case=sequence(length), contender=contender, beside=None if contender is TORCH else TORCH)
        for length, contender in product(QUICK_LENGTHS if quick else LENGTHS, CONTENDERS)
    ]


def pages(record: Record) -> Mapping[str, str]:
    return {
        "fmha_scaling_results.json": to_json(document(record)),
        "fmha_scaling_results.md": page(record),
        "fmha_scaling.svg": drawing("FMHA by sequence length", plots(record)),
    }


# -- figures ----------------------------------------------------------------------------------------


def lengths_of(record: Record) -> list[int]:
    return sorted({int(row.params["n"]) for row in record.rows})


def rows_at(record: Record, length: int) -> list[tuple[Contender, TimedRow]]:
    """Return what was timed at a length, in the order of `CONTENDERS`."""
    rows = [(contender, record.find(contender.name, sequence(length).name)) for contender in CONTENDERS]
    return [(contender, row) for contender, row in rows if row is not None]


def common_regime(record: Record, length: int) -> Regime:
    """Return the first regime in which everything was timed at a length: long launches fit no burst."""
    timed = [row for _, row in rows_at(record, length)]
    return next((regime for regime in Regime if all(row.timing(regime) for row in timed)), Regime.SUSTAINED)


def speedups(record: Record, length: int, regime: Regime) -> dict[str, float]:
    """Return how many times as fast as PyTorch each contender was, by name."""
    return {
        contender.name: 1.0 if contender is TORCH else timing.speedup or 0.0
        for contender, row in rows_at(record, length)
        if (timing := row.timing(regime)) is not None
    }


def best_step(record: Record, length: int, regime: Regime) -> tuple[str, float] | None:
    """Return the fastest of the steps, and its speed-up; None where no step was timed."""
    steps = {name: value for name, value in speedups(record, length, regime).items() if name in STEP_NUMBERS}
    return max(steps.items(), key=lambda item: item[1], default=None)


STEP_NUMBERS = {step(number).contender.name: number for number in STEPS}


# -- NVIDIA's files ---------------------------------------------------------------------------------


def document(record: Record) -> dict[str, Any]:
    arch = record.environment.get("arch", "")
    config = fmha.choose_config(arch, head_dim=D, causal=True, itemsize=2, keys=LENGTHS[0])
    return {
        "config": {
            "batch": B,
            "n_heads": H,
            "head_dim": D,
            "tile_m": config.tile_m,
            "tile_n": config.tile_n,
            "occupancy": config.occupancy,
            "num_ctas": 1,
            "platform": f"{record.environment.get('gpu')} ({arch})",
        },
        "date": record.date,
        "environment": dict(record.environment),
        "results": [_length_document(record, length) for length in lengths_of(record)],
    }


def _length_document(record: Record, length: int) -> dict[str, Any]:
    regime = common_regime(record, length)
    values = speedups(record, length, regime)
    timings = {
        contender.name: timing
        for contender, row in rows_at(record, length)
        if (timing := row.timing(regime)) is not None
    }
    best = best_step(record, length, regime)
    tilegym = timings.get(TILEGYM.name)
    return {
        "seq_len": length,
        "regime": regime.value,
        "steps": [
            {
                "step": STEP_NUMBERS.get(name, 0),
                "name": name,
                "latency_ms": timing.us / 1000,
                "tflops": timing.tflops,
                "speedup_vs_baseline": values[name],
            }
            for name, timing in timings.items()
            if name != TILEGYM.name
        ],
        "best_step": STEP_NUMBERS[best[0]] if best else None,
        "best_speedup": best[1] if best else None,
        "tilegym_latency_ms": tilegym.us / 1000 if tilegym else None,
        "tilegym_tflops": tilegym.tflops if tilegym else None,
        "tilegym_speedup": values.get(TILEGYM.name),
    }


INTRODUCTION = f"""\
Causal attention of {B}x{H}xNx{D} in float16. A speed-up is the time of {TORCH.name} over a contender's, the
two interleaved. Steps are those of the study fmha_ladder: 1 to 6 in tiles of 64x64, from 9 on in the tiles
that `kernels/fmha.py` has for this architecture."""


def page(record: Record) -> str:
    parts = ["# FMHA by sequence length", INTRODUCTION, origin(record)]
    for regime in Regime:
        parts += [
            f"## {regime.value.capitalize()}: speed-up over {TORCH.name}",
            _speedup_table(record, regime),
        ]
    parts += ["![Speed-up and TFLOPS by length, in both regimes](fmha_scaling.svg)"]
    for length in lengths_of(record):
        parts += [f"## Sequence length {length}", _length_table(record, length)]
    parts += ["## Published for TileGym's kernel, TFLOPS", _published_table(), f"{DOCUMENT}, warm L2."]
    return "\n\n".join(parts) + "\n"


def _speedup_table(record: Record, regime: Regime) -> str:
    lines = []
    for length in lengths_of(record):
        values, best = speedups(record, length, regime), best_step(record, length, regime)
        cells = (
            f"{values[contender.name]:.3f}" if contender.name in values else "-"
            for contender in CONTENDERS[1:]
        )
        lines.append((f"{length}", *cells, f"{best[0]} ({best[1]:.3f})" if best else "-"))
    return markdown(("length", *(contender.name for contender in CONTENDERS[1:]), "best step"), lines)


def _length_table(record: Record, length: int) -> str:
    lines = [
        (contender.name, *timing_cells(row.burst), *timing_cells(row.sustained))
        for contender, row in rows_at(record, length)
    ]
    return markdown(
        ("", "burst, ms", "TFLOPS", "speed-up", "sustained, ms", "TFLOPS", "speed-up"),
        lines,
    )


def _published_table() -> str:
    lines = [
        (f"{spark.length}", f"{spark.tflops:.1f}", f"{b300.tflops:.0f}")
        for spark, b300 in zip(FMHA_GB10, FMHA_B300, strict=True)
    ]
    return markdown(("length", "DGX Spark", "B300"), lines)


# -- plots ------------------------------------------------------------------------------------------


def plots(record: Record) -> dict[str, Markup]:
    return {
        f"{regime.value.capitalize()}: {'speed-up' if relative else 'TFLOPS'}": plot(
            record, regime, relative=relative
        )
        for regime, relative in product(Regime, (True, False))
    }


def plot(record: Record, regime: Regime, *, relative: bool) -> Markup:
    what = f"times as fast as {TORCH.name}" if relative else "TFLOPS"
    lines = [
        PlottedLine(name=shown, dots=list(_dots(record, name, regime, relative=relative)))
        for name, shown in PLOTTED.items()
    ]
    label = f"{what} by sequence length, {regime}"
    return lines_plot(lines, x_title="sequence length", y_title=what, label=label)


def _dots(record: Record, name: str, regime: Regime, *, relative: bool) -> Iterator[Dot]:
    for length in lengths_of(record):
        row = record.find(name, sequence(length).name)
        timing = row.timing(regime) if row else None
        if timing is not None:
            y = speedups(record, length, regime)[name] if relative else timing.tflops or 0.0
            yield Dot(x=length, y=y, title=f"{name}, {length}: {y:.4g}")


STUDY = Study(
    name="fmha_scaling",
    summary="attention from 1024 to 16384 keys: steps of the ladder beside PyTorch and TileGym",
    spec=step(1).spec,
    rows=rows,
    pages=pages,
)
