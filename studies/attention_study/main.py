"""The study: our operator beside PyTorch's back ends and unfused attention, by length, dimension and dtype.

Tables and figures have the numbers that they have in TiledAttention, whose cases these are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels._dtypes import SHORT
from pytest_cutile.reports.html.plots import Dot, PlottedLine, lines_plot
from pytest_cutile.words.spec import Case
from studies.attention_study import half_kernel, launching
from studies.running.attention import case
from studies.running.files import drawing, origin
from studies.running.peers import BACKENDS, SDPA, UNFUSED, backend_attention
from studies.running.study import Contender, Record, Row, Study, TimedRow
from tools.gpu_runs.tables import markdown

if TYPE_CHECKING:
    import torch
    from markupsafe import Markup

SOURCE = "https://github.com/thisistaimur/TiledAttention"
B, H = 1, 8
LENGTHS, QUICK_LENGTHS = (512, 1024, 2048, 4096, 8192), (1024, 4096)
DIMS, QUICK_DIMS = (64, 96, 128, 160), (64, 128)
D = 128
"""Dimensions of a head wherever that is not what varies."""
TILED_LENGTHS, QUICK_TILED_LENGTHS = {"Short S": 1024, "Mid S": 4096, "Long S": 8192}, {"Short S": 1024}
TILES = ((32, 64), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256))
"""Queries and keys of a tile."""
WARP_GROUP_ROWS = 64
"""Rows of a product that four warps of a Hopper compute together (PTX ISA, wgmma)."""
PUBLISHED_TILES = {
    "Short S": ("64x128", "64x64", 3.36),
    "Mid S": ("64x128", "64x64", 10.06),
    "Long S": ("64x128", "64x64", 11.96),
}
"""TiledAttention's table 4, of a GB10: best, runner-up, and how much slower it is in percent."""


def _in_half(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    return launching.attend(q, k, v, causal=causal, accumulator="float16")


def _tiled(tile_m: int, tile_n: int, *, by_groups: bool) -> Contender:
    """Return the operator with some tiles; `by_groups`: a warp group for each 64 queries, and the overlap."""
    schedule: dict[str, Any] = {"num_worker_warps": tile_m // 16, "overlap": True} if by_groups else {}

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
        return launching.attend(q, k, v, causal=causal, tile_m=tile_m, tile_n=tile_n, **schedule)

    said = f", {tile_m // 16} warps, overlap" if by_groups else ""
    return Contender(name=f"tiles {tile_m}x{tile_n}{said}", launch=launch)


OURS = Contender(name="cutile sdpa", launch=launching.attend)
HALF = Contender(name="cutile sdpa, float16 sums", launch=_in_half, spec=half_kernel.SPEC)
FUSED = [backend_attention(backend) for backend in BACKENDS if backend != "MATH"]
MATH = backend_attention("MATH")
TILED = [
    _tiled(tile_m, tile_n, by_groups=by_groups)
    for (tile_m, tile_n), by_groups in product(TILES, (False, True))
    if not by_groups or tile_m % WARP_GROUP_ROWS == 0
]


def case_of(n: int, *, d: int = D, dtype: str = "float16", causal: bool = False) -> Case:
    return case(n, b=B, h=H, d=d, dtype=dtype, causal=causal)


def rows(quick: bool) -> Sequence[Row]:
    """Return what to time: ours beside PyTorch's choice everywhere, the rest for heads of `D` in float16."""
    lengths, dims = (QUICK_LENGTHS, QUICK_DIMS) if quick else (LENGTHS, DIMS)
    cases = [case_of(n, d=d) for n, d in product(lengths, dims)]
    if not quick:
        cases += [case_of(n, dtype="bfloat16") for n in lengths]
        cases += [case_of(n, causal=True) for n in lengths]
    tiled = {case_of(n).name for n in (QUICK_TILED_LENGTHS if quick else TILED_LENGTHS).values()}
    return [row for own in cases for row in _rows_of(own, is_tiled=own.name in tiled)]


def _rows_of(own: Case, *, is_tiled: bool) -> Iterator[Row]:
    yield Row(case=own, contender=SDPA)
    yield Row(case=own, contender=OURS, beside=SDPA)
    if own.params["d"] != D or own.params["dtype"] != "float16":
        return
    for peer in (*FUSED, MATH, UNFUSED):
        yield Row(case=own, contender=peer)
    if is_tiled:
        yield Row(case=own, contender=HALF)
        for contender in TILED:
            yield Row(case=own, contender=contender)


# -- figures of a row -------------------------------------------------------------------------------


def million_tokens_per_s(row: TimedRow) -> float:
    """Return queries of all heads in a microsecond, as TiledAttention counts tokens."""
    tokens: int = row.params["b"] * row.params["h"] * row.params["n"]
    return tokens / row.headline.us


def tflops(row: TimedRow) -> float:
    return row.headline.tflops or 0.0


def bandwidth_proxy(row: TimedRow) -> float:
    """Return GB/s as if Q, K, V and O were each moved once."""
    return row.headline.gb_per_s or 0.0


def lengths_of(record: Record) -> list[int]:
    return sorted({int(row.params["n"]) for row in record.rows})


# -- pages ------------------------------------------------------------------------------------------


def pages(record: Record) -> Mapping[str, str]:
    return {
        "table3_reproducibility.md": f"# Table 3: reproducibility\n\n{table3(record)}\n",
        "table4_tiling_sensitivity.md": f"# Table 4: best tiles by regime\n\n{table4(record)}\n",
        "figure3_throughput_vs_s.svg": figure3(record),
        "figure4_regime_map.svg": figure4(record),
        "figure5_bw_proxy.svg": figure5(record),
        "figure6_explicit_and_backend_matrix.svg": figure6(record),
        "attention_study.md": page(record),
    }


def page(record: Record) -> str:
    return f"""# Attention as an operator of PyTorch's

Attention of {B} batch of {H} heads, in bursts (cold L2, full clock). Numbers of tables and figures are
those of [TiledAttention]({SOURCE}), whose cases these are. README.md of this study explains them.

{origin(record)}

## Table 3: reproducibility

{table3(record)}

## Figure 3: throughput by length, heads of {D}

![Tokens per second by length](figure3_throughput_vs_s.svg)

## Figure 4: regime map

{regime_map(record)}

Throughput of our operator in percent of PyTorch's own choice, float16, no mask.

![Percent of PyTorch's by length](figure4_regime_map.svg)

## Figure 5: bandwidth proxy

![Bytes of Q, K, V and O in a second, by length](figure5_bw_proxy.svg)

## Figure 6: unfused attention, and PyTorch's back ends

{backend_table(record)}

![TFLOPS by length](figure6_explicit_and_backend_matrix.svg)

## Table 4: best tiles by regime

{table4(record)}
{sustained(record)}"""


def sustained(record: Record) -> str:
    """Return the regime map and the back ends launch after launch; empty where ours was not timed so."""
    rows = [replace(row, burst=None) for row in record.rows if row.sustained]
    if OURS.name not in {row.contender for row in rows}:
        return ""
    only = replace(record, rows=rows)
    return f"""
## Sustained

Launch after launch, where power limits the clock: throughput of our operator in percent of PyTorch's, then
TFLOPS.

{regime_map(only)}

{backend_table(only)}
"""


def table3(record: Record) -> str:
    """Return what the figures depend on."""
    lines = [(name, value) for name, value in record.environment.items()]
    lines += [
        ("date", record.date),
        ("timing", "events in a CUDA graph, L2 flushed before each launch, median of the fastest block"),
        ("check", "each launch compared with a float64 reference before it is timed"),
        ("cases", f"B={B}, H={H}, S={', '.join(map(str, lengths_of(record)))}"),
    ]
    return markdown(("item", "value"), lines)


def table4(record: Record) -> str:
    """Return the fastest two settings for each regime, beside the default and the published shapes."""
    lines, faster = [], []
    for regime, n in TILED_LENGTHS.items():
        times = tile_times(record, n)
        default = record.find(OURS.name, case_of(n).name)
        best_published, second_published, lost = PUBLISHED_TILES[regime]
        if len(times) > 1:
            (best, best_us), (second, second_us) = sorted(times.items(), key=lambda item: item[1])[:2]
            default_us = default.headline.us if default else None
            lines.append(
                (
                    regime,
                    f"S={n}, D={D}",
                    best,
                    f"{best_us:.1f}",
                    second,
                    f"{100 * (1 - best_us / second_us):.2f}",
                    f"{default_us:.1f}" if default_us else "-",
                    f"{best_us / default_us:.2f}" if default_us else "-",
                    f"{best_published}, {second_published}: {lost} %",
                )
            )
            faster += [f"S={n}"] if default_us and default_us < best_us else []
    header = (
        *("regime", "shapes", "best tiles", "us", "runner-up", "throughput lost, %"),
        *("default, us", "default's speed-up", "published, GB10"),
    )
    where = f"The default is faster than every other setting at {', '.join(faster)}." if faster else ""
    return f"{markdown(header, lines)}\n\n{VARIED} {where}".rstrip()


VARIED = """\
Each shape is timed twice: with warps and occupancy left to the compiler, and with four warps for each 64
queries, of which a step computes exponentials while the next product runs. The default is the operator
without tiles, with all settings of `kernels/fmha.py`, persistent blocks among them."""


def tile_times(record: Record, n: int) -> dict[str, float]:
    """Return the time of each setting of tiles and warps at a length, in microseconds."""
    rows = {contender.name: record.find(contender.name, case_of(n).name) for contender in TILED}
    return {name.removeprefix("tiles "): row.headline.us for name, row in rows.items() if row is not None}


def regime_map(record: Record) -> str:
    """Return our throughput in percent of PyTorch's, by length and head dimension."""
    lines = [
        (f"{n}", *(f"{100 * value:.1f}" if (value := ratio(record, n, d)) else "-" for d in DIMS))
        for n in lengths_of(record)
    ]
    return markdown(("length", *(f"D={d}" for d in DIMS)), lines)


def ratio(record: Record, n: int, d: int) -> float | None:
    """Return how many times as fast as PyTorch's own choice our operator was, the two interleaved."""
    row = record.find(OURS.name, case_of(n, d=d).name)
    return row.headline.speedup if row else None


COMPARED = (OURS, SDPA, *FUSED, MATH, UNFUSED, HALF)


def backend_table(record: Record) -> str:
    lines = []
    for causal, n in product((False, True), lengths_of(record)):
        cells = [record.find(contender.name, case_of(n, causal=causal).name) for contender in COMPARED]
        if any(cells):
            lines.append(
                (f"{n}{' causal' * causal}", *(f"{tflops(row):.1f}" if row else "-" for row in cells))
            )
    return markdown(("TFLOPS at length", *(contender.name for contender in COMPARED)), lines)


# -- plots ------------------------------------------------------------------------------------------


def _line(
    record: Record,
    contender: Contender,
    value: Callable[[TimedRow], float],
    *,
    name: str = "",
    **of_case: Any,
) -> PlottedLine:
    rows = [(n, record.find(contender.name, case_of(n, **of_case).name)) for n in lengths_of(record)]
    values = [(n, value(row)) for n, row in rows if row]
    dots = [Dot(x=n, y=y, title=f"{contender.name}, {n}: {y:.4g}") for n, y in values if y]
    return PlottedLine(name=name or _short(contender), dots=dots)


def _short(contender: Contender) -> str:
    """Return a contender's name for a plot: "auto" of "SDPA auto"."""
    return contender.name.removeprefix("SDPA ").removeprefix("cutile ")


def _plot(lines: Sequence[PlottedLine], what: str) -> Markup:
    return lines_plot(lines, x_title="length", y_title=what, label=f"{what} by length")


def figure3(record: Record) -> str:
    lines = [
        _line(
            record, contender, million_tokens_per_s, name=f"{_short(contender)} {SHORT[dtype]}", dtype=dtype
        )
        for dtype, contender in product(("float16", "bfloat16"), (OURS, SDPA))
    ]
    return drawing("Figure 3: throughput by length", {f"D={D}, no mask": _plot(lines, "million tokens/s")})


def figure4(record: Record) -> str:
    def percent(row: TimedRow) -> float:
        return 100 * (row.headline.speedup or 0.0)

    lines = [_line(record, OURS, percent, name=f"D={d}", d=d) for d in DIMS]
    return drawing("Figure 4: regime map", {"float16, no mask": _plot(lines, "% of PyTorch SDPA")})


def figure5(record: Record) -> str:
    lines = [_line(record, contender, bandwidth_proxy) for contender in (OURS, SDPA)]
    return drawing("Figure 5: bandwidth proxy", {"float16, no mask": _plot(lines, "GB/s")})


def figure6(record: Record) -> str:
    groups = {"unfused": (OURS, SDPA, MATH, UNFUSED), "back ends": (OURS, SDPA, *FUSED)}
    return drawing(
        "Figure 6: unfused attention, and back ends",
        {
            f"{name}, {'causal' if causal else 'no mask'}": _plot(
                [_line(record, contender, tflops, causal=causal) for contender in group], "TFLOPS"
            )
            for (name, group), causal in product(groups.items(), (False, True))
        },
    )


STUDY = Study(
    name="attention_study",
    summary="an operator of PyTorch's beside SDPA's back ends, by length, dimension, dtype and tiles",
    spec=launching.SPEC,
    rows=rows,
    pages=pages,
)
