"""The study: blocks that turn around beside blocks that do not, by length, mask and number of SMs.

Beside the measured times stands what `cache.py` predicts: bytes that the L2 misses, and what they can cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kernels import fmha
from kernels._configs import vary
from kernels._launch import count_sms, find_arch
from pytest_cutile.reports.html.plots import Dot, PlottedLine, lines_plot
from pytest_cutile.words.platforms.data import Platform
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.spec import Case
from pytest_cutile.words.timing import Regime
from studies.running.attention import case, work
from studies.running.files import drawing, origin, timing_cells, to_json
from studies.running.study import Contender, Record, Row, Study
from studies.sawtooth.cache import Traffic, Walk, traffic
from studies.sawtooth.kernel import CONFIGS, SPEC, choose_config, sawtooth
from tools.gpu_runs.tables import markdown

if TYPE_CHECKING:
    import torch
    from markupsafe import Markup

LENGTHS = (32768, 65536, 131072, 262144)
"""K and V of one head of 128 dimensions in 16 bits: 16 to 128 MiB. L2s are 24 (GB10) to 126 MiB (B300)."""
QUICK_LENGTHS = (32768, 131072)
CAUSAL_LENGTHS = (65536, 131072)
PREDICTED_LENGTHS, PREDICTED_CAUSAL_LENGTHS = LENGTHS, CAUSAL_LENGTHS
SM_LENGTH = 131072
"""Length at which fewer multiprocessors are tried."""
SHARES = (2, 4)
"""One in so many multiprocessors."""
GPUS = ("NVIDIA GB10", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B300 SXM6 AC")
REACHED = 0.6
"""Share of the dense float16 peak that attention reaches: 600 of 989 TFLOPS on an H200 (kernels/fmha.py)."""


@dataclass(frozen=True, kw_only=True)
class Walker(Contender):
    """The kernel in one direction."""

    turning: bool
    one_in: int
    """The share of the multiprocessors that walk: one in so many."""


def _walker(name: str, *, turning: bool, one_in: int = 1) -> Walker:
    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
        config = choose_config(find_arch("sawtooth", q, CONFIGS))
        sms = None if one_in == 1 else max(1, count_sms() // one_in)
        return sawtooth(q, k, v, causal=causal, config=vary(config, turning=turning, sms=sms))

    return Walker(name=name, launch=launch, turning=turning, one_in=one_in)


IN_ORDER = _walker("in order", turning=False)
TURNING = _walker("turning", turning=True)
FMHA = Contender(name="kernels.fmha", launch=fmha.fmha)
FEWER = {
    one_in: tuple(
        _walker(f"{word}, 1/{one_in} of the SMs", turning=turning, one_in=one_in)
        for word, turning in (("in order", False), ("turning", True))
    )
    for one_in in SHARES
}


def rows(quick: bool) -> Sequence[Row]:
    lengths = QUICK_LENGTHS if quick else LENGTHS
    made = [
        row for length in lengths for row in _rows_of(case(length), fewer=length == SM_LENGTH and not quick)
    ]
    if not quick:
        made += [row for length in CAUSAL_LENGTHS for row in _rows_of(case(length, causal=True), fewer=False)]
    return made


def _rows_of(own: Case, *, fewer: bool) -> Iterator[Row]:
    yield Row(case=own, contender=IN_ORDER)
    yield Row(case=own, contender=TURNING, beside=IN_ORDER)
    yield Row(case=own, contender=FMHA, beside=IN_ORDER)
    for in_order, turning in FEWER.values() if fewer else ():
        yield Row(case=own, contender=in_order, beside=IN_ORDER)
        yield Row(case=own, contender=turning, beside=in_order)


# -- prediction -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the model says of a case on a GPU, in order and turning."""

    in_order: Traffic
    turning: Traffic
    compute_s: float
    """By `REACHED` of the GPU's peak."""
    bytes_per_s: float
    """Of its memory."""

    @property
    def saved(self) -> float:
        """Share of the avoidable misses that turning avoids; 0 where there are none."""
        avoidable = self.in_order.avoidable
        return 1 - self.turning.avoidable / avoidable if avoidable > 0 else 0.0

    @property
    def most_speedup(self) -> float:
        """Speed-up if no load overlapped with a product: loads that overlap gain less by missing less."""
        slow, fast = (
            self.compute_s + traffic.missed / self.bytes_per_s for traffic in (self.in_order, self.turning)
        )
        return slow / fast


def predict(gpu: Platform, params: Mapping[str, Any], *, copies: int = 1, one_in: int = 1) -> Prediction:
    """Return what the model says of a case; `copies` of each byte are in the L2.

    Raises:
        ValueError: The size of the GPU's L2 is not known.
    """
    if gpu.cuda_reports is None:
        raise ValueError(f"{gpu.names[0]}: nothing says how large its L2 is")
    config = choose_config(gpu.arch)
    walk = Walk(
        heads=params["b"] * params["h"],
        n=params["n"],
        d=params["d"],
        causal=params["causal"],
        blocks=max(1, gpu.sm_count // one_in) * (config.occupancy or 1),
        tile_m=config.tile_m,
    )
    l2_bytes = gpu.cuda_reports.l2_mib * 2**20 / copies
    return Prediction(
        in_order=traffic(walk, l2_bytes=l2_bytes),
        turning=traffic(replace(walk, turning=True), l2_bytes=l2_bytes),
        compute_s=work(**params).flops / (REACHED * gpu.dense_tflops["float16"] * 1e12),
        bytes_per_s=gpu.memory_bandwidth_gb_s * 1e9,
    )


# -- pages ------------------------------------------------------------------------------------------


def pages(record: Record) -> Mapping[str, str]:
    return {
        "sawtooth.md": page(record),
        "prediction.json": to_json(prediction_document()),
        "sawtooth.svg": drawing(
            "Blocks that turn around",
            {
                **{f"Speed-up of turning, {regime}": speedup_plot(record, regime) for regime in Regime},
                "Misses, predicted by one L2": miss_plot(copies=1),
                "Misses, predicted by half of the L2": miss_plot(copies=2),
            },
        ),
    }


def known_gpus() -> list[Platform]:
    return [gpu for name in GPUS if (gpu := find_platform(name)) is not None and gpu.cuda_reports]


def predicted_cases() -> list[Case]:
    return [case(n) for n in PREDICTED_LENGTHS] + [case(n, causal=True) for n in PREDICTED_CAUSAL_LENGTHS]


def prediction_document() -> list[dict[str, Any]]:
    return [
        {
            "gpu": gpu.names[0],
            "l2_mib": gpu.cuda_reports.l2_mib if gpu.cuda_reports else None,
            "copies": copies,
            "case": own.name,
            "compulsory_bytes": made.in_order.compulsory,
            "missed_bytes_in_order": made.in_order.missed,
            "missed_bytes_turning": made.turning.missed,
            "saved": made.saved,
            "most_speedup": made.most_speedup,
        }
        for gpu in known_gpus()
        for copies in (1, 2)
        for own in predicted_cases()
        for made in (predict(gpu, own.params, copies=copies),)
    ]


def page(record: Record) -> str:
    lines = [
        (row.contender, row.case, row.beside, *timing_cells(row.burst), *timing_cells(row.sustained))
        for row in record.rows
    ]
    header = ("", "case", "beside", "burst, ms", "TFLOPS", "speed-up", "sustained, ms", "TFLOPS", "speed-up")
    return f"""# Blocks that turn around

Attention of one head. A speed-up is the time of what stands under `beside` over the row's own, the two
interleaved. README.md of this study explains model and kernel.

{origin(record)}

## Measured

{markdown(header, lines)}

## Predicted

Megabytes that the L2 misses, by the model of `studies/sawtooth/cache.py`, and the most that turning can gain.
Saved is the share of the misses that a larger L2 would not have. The H100 counted in README.md ("Model and
counters") keeps two copies of what all SMs read, one in each partition of the L2: half of it counts.

{prediction_table()}

![Speed-up by length, and predicted misses](sawtooth.svg)
"""


def prediction_table() -> str:
    header = (
        *("GPU", "L2, MiB", "keys", "K and V, MiB"),
        *("one L2: in order, MB", "turning, MB", "saved", "gain, at most"),
        *("half of it: in order, MB", "turning, MB", "saved", "gain, at most"),
    )
    lines = [
        (
            gpu.names[0].removeprefix("NVIDIA "),
            f"{gpu.cuda_reports.l2_mib if gpu.cuda_reports else 0}",
            f"{own.params['n']}{' causal' * own.params['causal']}",
            f"{kv_mib(own)}",
            *_prediction_cells(predict(gpu, own.params)),
            *_prediction_cells(predict(gpu, own.params, copies=2)),
        )
        for gpu in known_gpus()
        for own in predicted_cases()
    ]
    return markdown(header, lines)


def _prediction_cells(made: Prediction) -> tuple[str, str, str, str]:
    return (
        f"{made.in_order.missed / 1e6:.0f}",
        f"{made.turning.missed / 1e6:.0f}",
        f"{made.saved:.2f}",
        f"{made.most_speedup - 1:.3f}",
    )


def kv_mib(own: Case) -> int:
    """Return how large K and V of a case are together, in 16 bits."""
    return int(2 * own.params["b"] * own.params["h"] * own.params["n"] * own.params["d"] * 2 / 2**20)


def speedup_plot(record: Record, regime: Regime) -> Markup:
    lines = [
        PlottedLine(name=name, dots=list(_speedups(record, regime, causal=causal)))
        for name, causal in (("all keys", False), ("causal", True))
    ]
    return lines_plot(
        lines,
        x_title="Ki keys",
        y_title="speed-up of turning",
        label=f"{regime}: speed-up of turning by keys",
        shown_y=(0.95, 1.05),
    )


def _speedups(record: Record, regime: Regime, *, causal: bool) -> Iterator[Dot]:
    for length in LENGTHS:
        row = record.find(TURNING.name, case(length, causal=causal).name)
        timing = row.timing(regime) if row else None
        if timing is not None and timing.speedup:
            y = timing.speedup
            yield Dot(x=length / 1024, y=y, title=f"{length} keys: {y:.4g}")


def miss_plot(*, copies: int) -> Markup:
    lines = [
        PlottedLine(name=gpu.names[0].split()[1], dots=list(_saved(gpu, copies=copies)))
        for gpu in known_gpus()
    ]
    title = "avoidable misses saved"
    return lines_plot(lines, x_title="Ki keys", y_title=title, label=f"predicted: {title} by keys")


def _saved(gpu: Platform, *, copies: int) -> Iterator[Dot]:
    for length in PREDICTED_LENGTHS:
        made = predict(gpu, case(length).params, copies=copies)
        yield Dot(x=length / 1024, y=made.saved, title=f"{gpu.names[0]}, {length} keys: {made.saved:.3g}")


STUDY = Study(
    name="sawtooth",
    summary="attention that walks the keys forward and backward in turn: misses of the L2, and time",
    spec=SPEC,
    rows=rows,
    sampled_flops=1e12,  # one head with a mask has no parts: longer ones took a minute each
    pages=pages,
)
