"""The summary of a profile: what bounds a case, beside its roofline and what it was compiled to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_cutile.reports.compiled import tensor_core_text
from pytest_cutile.tile.static.facts import LaunchFacts
from pytest_cutile.tile.static.roofline import predict
from pytest_cutile.tile.static.rules import occupancy_of
from pytest_cutile.timing.profiling.counters import KernelCounters
from pytest_cutile.timing.profiling.limits import UNITS, bound_of_launch, wait_shares
from pytest_cutile.timing.profiling.profiled_case import ProfiledCase
from pytest_cutile.words.document import (
    Column,
    Document,
    DocumentBlock,
    Facts,
    Paragraph,
    Row,
    Section,
    Table,
)
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.quantities import counted, format_ratio, format_share, format_time

WORTH_WORDS = 0.1
"""Share of the time of all launches from which a launch is described."""
_SHOWN_WAITS = 5
_CAUTION = (
    "Counters are of single launches with cold caches, at whatever clock the GPU had. "
    "Take speeds from the speed gate: pytest -m cutile_speed."
)


def profile_document(case: ProfiledCase, kernels: Sequence[KernelCounters]) -> Document:
    """Return the summary of a case's launches, in the order in which they ran."""
    total_us = sum(kernel.us or 0.0 for kernel in kernels)
    large = [kernel for kernel in kernels if (kernel.us or 0.0) >= WORTH_WORDS * total_us]
    blocks: list[DocumentBlock] = [_words(kernel, total_us) for kernel in large]
    blocks.append(Section("Roofline", [Facts([*_roofline(case, kernels, total_us)])]))
    blocks.append(Section("Counters", [counters_table(kernels)]))
    if waits := [*_waits(large)]:
        blocks.append(Section("What warps wait for, in percent of their time", waits))
    blocks.append(Section("Compiled code", [*_compiled(case)]))
    blocks.append(Paragraph(_CAUTION))
    return Document(f"{case.key} on {case.gpu} ({case.arch})", blocks)


def _words(kernel: KernelCounters, total_us: float) -> Paragraph:
    bound = bound_of_launch(kernel)
    time = ""
    if kernel.us is not None and total_us:
        time = f", {format_time(kernel.us)} ({format_share(kernel.us / total_us)} of all)"
    lead = f"{kernel.kernel}{time}: bound by {bound.what}."
    return Paragraph(" ".join(bound.reasons), lead=lead)


# -- parts ------------------------------------------------------------------------------------------


def _roofline(
    case: ProfiledCase, kernels: Sequence[KernelCounters], total_us: float
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield rates of the counted work over the profiled time, and what the GPU could do."""
    if not total_us:
        yield "time", ["not counted: it is in the section SpeedOfLight"]
        return
    yield "time", [f"{format_time(total_us)} in {counted(len(kernels), 'launched kernel')}"]
    platform = find_platform(case.gpu)
    peak = platform.tflops_limit(case.dtype) if platform else None
    bandwidth = platform.memory_bandwidth_gb_s if platform else None
    limits: dict[str, float] = {}
    for title, amount, unit, scale, limit in (
        ("arithmetic", case.flops, f"TFLOPS {case.dtype}".rstrip(), 1e-6, peak),
        ("memory", case.bytes, "GB/s", 1e-3, bandwidth),
    ):
        if not amount:
            continue
        rate = amount / total_us * scale
        text = f"{rate:.4g} {unit}"
        if limit:
            limits[title] = amount / limit * scale
            text += f": {format_share(rate / limit)} of {limit:.4g}"
        yield title, [text]
    if limits:
        slowest = max(limits, key=lambda title: limits[title])
        yield "least time", [f"{format_time(limits[slowest])}, by {slowest}"]
    ways = [(kernel, f"dram__bytes_{way}.sum") for kernel in kernels for way in ("read", "write")]
    if case.bytes and all(metric in kernel.values for kernel, metric in ways):
        moved = sum(kernel.values[metric] for kernel, metric in ways)
        ratio = format_ratio(moved / case.bytes)
        yield "traffic", [f"{moved:.4g} bytes from and to memory, {ratio} what the case counts"]


def counters_table(kernels: Sequence[KernelCounters]) -> Table:
    """Return how busy each part of the GPU was in each launch."""
    others = {
        "warps": r"sm__warps_active\.avg\.pct_of_peak_sustained_active",
        "waves": r"launch__waves_per_multiprocessor",
        "registers": r"launch__registers_per_thread",
    }
    columns = [Column("kernel", shrinks=True, verbatim=True), Column("us", right=True)]
    columns += [Column(title, right=True) for title in (*(unit.title for unit in UNITS), *others)]
    rows = []
    for kernel in kernels:
        shares = (unit.share(kernel) for unit in UNITS)
        cells = ["" if share is None else f"{100 * share:.0f} %" for share in shares]
        figures = (kernel.largest(pattern) for pattern in others.values())
        cells += ["" if figure is None else f"{figure:.4g}" for figure in figures]
        time = "" if kernel.us is None else f"{kernel.us:.4g}"
        rows.append(Row((kernel.kernel, time, *cells)))
    return Table(columns, rows)


def _waits(kernels: Sequence[KernelCounters]) -> Iterator[Paragraph]:
    for kernel in kernels:
        waits = [f"{format_share(share)} {text}" for text, share in wait_shares(kernel)[:_SHOWN_WAITS]]
        if waits:
            yield Paragraph("; ".join(waits), lead=f"{kernel.kernel}:")


def _compiled(case: ProfiledCase) -> Iterator[DocumentBlock]:
    if case.facts is None:
        yield Paragraph(f"Nothing is known of it: {case.facts_missing}")
        return
    for launch in case.facts.launches:
        yield Paragraph("; ".join(_launch_facts(launch, case.arch)), lead=f"{launch.kernel}:")
    prediction = predict(case.facts.launches, case.arch)
    if prediction is not None:
        least = f"{format_time(prediction.us)} at least, by {prediction.slowest}"
        yield Paragraph(f"The static gate predicts {least}.")
    yield from map(Paragraph, case.facts.missing)


def _launch_facts(launch: LaunchFacts, arch: str) -> Iterator[str]:
    grid = "x".join(map(str, launch.grid))
    yield f"grid {grid}{f', launched {launch.times} times' if launch.times > 1 else ''}"
    if None not in (launch.registers, launch.threads, launch.shared_bytes):
        yield (
            f"{launch.threads} threads of {launch.registers} registers, "
            f"{(launch.shared_bytes or 0) / 1024:.1f} KiB of shared memory"
        )
    fits = occupancy_of(launch, arch)
    if fits is not None:
        blocks, limits = counted(fits.blocks, "block"), " and ".join(fits.limited_by)
        yield f"{blocks} ({fits.warps} warps) fit a multiprocessor, limited by {limits}"
    if launch.stack_bytes:
        yield f"{launch.stack_bytes} bytes of registers spilled by each thread"
    if launch.instructions is not None:
        yield tensor_core_text(launch) or "no tensor-core instructions"
