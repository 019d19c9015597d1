"""A benchmark of a model as lines, tables, CSV and a page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from models.breakdown import Breakdown
from models.contenders import OURS
from models.records import Mode, Record, Row, Shape
from pytest_cutile.reports.html.plots import Dot, PlottedLine, lines_plot, picture
from pytest_cutile.reports.html.templates import text_of
from pytest_cutile.timing.profiling.counters import function_name
from pytest_cutile.words.platforms.published import DOCUMENT
from pytest_cutile.words.quantities import format_share
from pytest_cutile.words.statistics import median
from research.published_figures import GENERATED_BATCH, GENERATED_TOKENS, GENERATIONS
from tools.gpu_runs.runs import write_document
from tools.gpu_runs.tables import aligned, markdown


class Goal(NamedTuple):
    """What our kernels with CUDA graphs are to reach on one H200."""

    batch: int
    prompt: int
    token_ms: float
    prefill: float = 1.1
    """Speed over the best other contender's."""
    decode: float = 1.0
    """Likewise."""


# Reading weights and cache takes 4.5 and 1.2 ms on an H200.
GOALS = {
    "qwen2-7b": Goal(batch=16, prompt=4096, token_ms=6.0),
    "deepseek-v2-lite": Goal(batch=1, prompt=2048, token_ms=2.5),
}
LONGEST_NAME = 60
KERNELS_SHOWN = 12
_FUNCTOR = re.compile(r"::(\w*(?:Functor|_kernel_cuda)\w*)")
"""What PyTorch's loop over elements does with each; the innermost says most."""
_TITLES = (
    *("", "mode", "tokens/s", "spread", "first token, ms", "ms a token", "x best PyTorch", "peak GB"),
    *("KL, nats", "top 1"),
)


def line_of(row: Row, shape: Shape) -> str:
    """Return the newest round of a row."""
    newest = row.rounds[-1]
    rate, first_ms = newest.tokens_per_s(shape), newest.first_token_s * 1e3
    text = f"{row.key}: {rate:.4g} tokens/s, first token {first_ms:.4g} ms"
    return text + (f", {median(newest.step_ms):.4g} ms a token" if newest.step_ms else "")


def best_pytorch(record: Record) -> float | None:
    """Return the fewest milliseconds a token of PyTorch's own ways; None where none was measured."""
    own = [row.token_ms for row in record.measured if row.contender not in (OURS, "tilegym")]
    return min(own, default=None)


def cells(record: Record) -> list[tuple[str, ...]]:
    best = best_pytorch(record)
    empty = ("not measured", *("-" for _ in _TITLES[3:]))
    return [
        (row.title, row.mode.value, *empty)
        if not row.rounds
        else (
            row.title,
            row.mode.value,
            f"{row.rate(record.shape):.4g}",
            format_share(row.spread(record.shape)),
            f"{row.first_token_s * 1e3:.4g}",
            f"{row.token_ms:.4g}",
            "-" if best is None else f"{best / row.token_ms:.3f}",
            "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.1f}",
            "-" if row.kl is None else f"{row.kl:.2g}",
            "-" if row.top1 is None else format_share(row.top1),
        )
        for row in record.rows
    ]


def table(record: Record) -> str:
    return aligned(_TITLES, cells(record))


def kernel_cells(breakdown: Breakdown, most: int = KERNELS_SHOWN) -> list[tuple[str, ...]]:
    """Return the slowest kernels: name, calls, milliseconds and share, and whether they are ours."""
    shown = [
        (
            short(kernel.name),
            f"{kernel.calls:g}",
            f"{kernel.ms:.4g}",
            format_share(kernel.share),
            "ours" * kernel.is_ours,
        )
        for kernel in breakdown.kernels[:most]
    ]
    if rest := breakdown.kernels[most:]:
        ms, calls = sum(kernel.ms for kernel in rest), sum(kernel.calls for kernel in rest)
        share = sum(kernel.share for kernel in rest)
        shown.append((f"{len(rest)} others", f"{calls:g}", f"{ms:.4g}", format_share(share), ""))
    return [*shown, ("all", f"{breakdown.calls:g}", f"{breakdown.ms:.4g}", "", "")]


def short(name: str) -> str:
    """Return a kernel's name without return type, arguments, long templates and cuTile's signature."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    if "elementwise_kernel" in name and (functors := _FUNCTOR.findall(name)):
        return f"elementwise: {functors[-1]}"
    name = function_name(name.partition("(")[0])
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


KERNEL_TITLES = ("kernel", "calls", "ms", "share", "")


def breakdowns(record: Record) -> dict[str, Breakdown]:
    """Return what was profiled by title: one prefill, or one decode step."""
    profiles = {}
    for row in record.measured:
        if row.prefill is not None:
            profiles[f"{row.title}: prefill, {row.mode.value}"] = row.prefill
        if row.decode is not None:
            profiles[f"{row.title}: one decode step, {row.mode.value}"] = row.decode
    return {title: breakdown for title, breakdown in profiles.items() if breakdown.kernels}


def coverage_lines(record: Record) -> list[str]:
    """Return which shares of the GPU's time and of launches our kernels have."""
    lines = []
    for row in record.measured:
        if row.contender != OURS or row.prefill is None or row.decode is None or not row.decode.kernels:
            continue
        idle = format_share(max(0.0, 1 - row.decode.ms / row.token_ms))
        lines += [
            f"prefill, {row.mode.value}: {_shares(row.prefill)}",
            f"decode, {row.mode.value}: {_shares(row.decode)}; no kernel runs for {idle} of the time",
        ]
    return lines


def _shares(breakdown: Breakdown) -> str:
    time, launches = map(format_share, breakdown.coverage)
    return f"our kernels have {time} of the GPU's time and {launches} of its launches"


def goal_lines(record: Record) -> list[str]:
    """Return which goals were reached, and where the time of a step goes; nothing where there are none."""
    goal, own = GOALS.get(record.model), record.find(OURS, Mode.GRAPH)
    shape = record.shape.batch, record.shape.prompt
    if goal is None or own is None or not own.rounds or shape != (goal.batch, goal.prompt):
        return []
    ways: list[tuple[str, float, Callable[[Row], float]]] = [
        ("prefill", goal.prefill, lambda row: row.first_token_s),
        ("decode", goal.decode, lambda row: row.token_ms),
    ]
    lines = []
    for phase, least, time_of in ways:
        others = [row for row in record.measured if row.contender != OURS]
        if others:
            best = min(others, key=time_of)
            speed = time_of(best) / time_of(own)
            lines.append(
                f"{phase}: {speed:.2f} times the speed of the best other, {best.title} ({best.mode}); "
                f"goal {least:g}: {_verdict(reached=speed >= least)}"
            )
    verdict = _verdict(reached=own.token_ms <= goal.token_ms)
    lines.append(f"{own.token_ms:.3g} ms a token; goal on an H200 {goal.token_ms:g}: {verdict}")
    return lines + _whereabouts(record, own)


def _verdict(*, reached: bool) -> str:
    return "reached" if reached else "missed"


def _whereabouts(record: Record, row: Row) -> list[str]:
    """Return where the time of a prefill and of a step goes."""
    from models.counts import decode_work

    lines = []
    phases = (("prefill", row.prefill, row.first_token_s * 1e3), ("a step", row.decode, row.token_ms))
    for phase, breakdown, ms in phases:
        if breakdown is not None and breakdown.kernels:
            ours = sum(kernel.ms for kernel in breakdown.kernels if kernel.is_ours)
            others, idle = breakdown.ms - ours, max(0.0, ms - breakdown.ms)
            lines.append(
                f"{phase}: {ours:.3g} ms in our kernels, {others:.3g} in PyTorch's, which are mostly "
                f"cuBLAS's, and {idle:.3g} without a kernel"
            )
    read = decode_work(record.model, batch=record.shape.batch, prompt=record.shape.prompt).bytes or 0.0
    return [
        *lines,
        f"a step reads {read / 1e9:.3g} GB of weights and cache: {read / row.token_ms / 1e9:.3g} TB/s",
    ]


# -- files ------------------------------------------------------------------------------------------


def store(folder: Path, record: Record) -> None:
    """Write `bench.json`, after every step of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    write_document(folder / "bench.json", msgspec.to_builtins(record))


def load(file: Path) -> Record:
    return msgspec.json.decode(file.read_bytes(), type=Record)


def write_pages(folder: Path, record: Record) -> list[Path]:
    """Write the files that people read; return them."""
    pages = {"bench.csv": as_csv(record), "bench.md": page(record), "bench.svg": plot(record)}
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def as_csv(record: Record) -> str:
    """Return a line for each round."""
    text = io.StringIO()
    titles = ("contender", "mode", "round", "tokens_per_s", "first_token_s", "ms_per_token", "peak_bytes")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    for row in record.measured:
        for number, round_ in enumerate(row.rounds, 1):
            figures = (round_.tokens_per_s(record.shape), round_.first_token_s, median(round_.step_ms))
            writer.writerow([row.contender, row.mode.value, number, *figures, row.peak_bytes])
    return text.getvalue()


EXPLANATION = """\
Tokens/s counts all new tokens over prefill and decoding. Contenders are interleaved; the spread is half the
range of the rounds. KL and top 1 compare the logits of the first new token with those of PyTorch's SDPA: the
row of eager attention shows what rounding alone does."""


def page(record: Record) -> str:
    shape = record.shape
    environment = ", ".join(f"{name} {value}" for name, value in record.environment.items())
    generated = f"{shape.batch} x {shape.prompt} tokens of prompt, {shape.new_tokens} new tokens each"
    parts = [
        f"# {record.model}",
        f"{generated}, greedy, weights: {record.weights}. {EXPLANATION}",
        f"Measured {record.date} on {environment}, by `{record.command}`.",
        markdown(_TITLES, cells(record)),
        *(f"Not measured: {name}: {why}." for name, why in record.problems.items()),
        "\n".join(f"- {line}" for line in goal_lines(record)),
        "![Time of each token](bench.svg)",
    ]
    if lines := coverage_lines(record):
        parts += ["## Coverage", "\n".join(f"- {line}" for line in lines)]
    for title, breakdown in breakdowns(record).items():
        parts += [f"## {title}", markdown(KERNEL_TITLES, kernel_cells(breakdown))]
    parts += _published(record)
    return "\n\n".join(filter(None, parts)) + "\n"


def _published(record: Record) -> list[str]:
    rows = [
        (figure.gpu, figure.title, f"{figure.tokens_per_s:g}")
        for figure in GENERATIONS
        if figure.model == record.model
    ]
    if not rows:
        return []
    what = f"batch {GENERATED_BATCH}, {GENERATED_TOKENS} new tokens; the length of the prompt is not stated"
    return ["## Published", markdown(("GPU", "configuration", "tokens/s"), rows), f"{DOCUMENT}: {what}."]


def plot(record: Record) -> str:
    """Return the time of each token, the median over rounds, for every row."""
    lines = [_line(row) for row in record.measured]
    label = f"{record.model}: milliseconds of each decode step"
    shown = lines_plot(lines, x_title="token", y_title="ms", label=label, is_log=False)
    drawn = [("Time of each token", shown)] if shown else []
    return str(picture(record.model, drawn, text_of("page.css")))


def _line(row: Row) -> PlottedLine:
    steps: Sequence[tuple[float, ...]] = [*zip(*(round_.step_ms for round_ in row.rounds), strict=False)]
    dots = [
        Dot(x=number, y=median(times), title=f"{row.key}, token {number}: {median(times):.4g} ms")
        for number, times in enumerate(steps, 2)
    ]
    return PlottedLine(name=row.key, dots=dots)
