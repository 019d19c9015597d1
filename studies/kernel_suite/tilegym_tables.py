"""The tables that TileGym's benchmarks print, by kernel: their names, sizes and counts of work.

Facts of tests/benchmark/bench_*.py in https://github.com/NVIDIA/TileGym at commit 75a1430 (2026-08-18). A
table is one of `triton.testing.perf_report`: its name, then columns of sizes and of a rate for each library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from studies.kernel_suite.contenders import OURS, TILEGYM, TORCH
from studies.running.study import Record, TimedRow
from tools.gpu_runs.tables import aligned

Params: TypeAlias = Mapping[str, Any]
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e5m2": 1}
COLUMNS = {OURS: "kernels", TILEGYM: "CuTile", TORCH: "PyTorch"}
"""Titles of the columns: TileGym calls its own kernels CuTile."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A script of TileGym's."""

    file: str
    table: Callable[[Params], str]
    """Name of a case's table, without its unit."""
    sizes: Callable[[Params], Mapping[str, int]]
    """Columns of sizes."""
    amount: Callable[[Params], float]
    """Operations or bytes of a launch, as the script counts them."""
    unit: str = "GBps"
    variant: str = TILEGYM
    """Name of the peer in `tools/suite` that does what the script times."""
    column: str = COLUMNS[TILEGYM]
    """Title of its column."""


def _dtype(params: Params) -> str:
    return str(params["dtype"])


def _elements(shape: Sequence[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _mnk(m: int, n: int, k: int) -> Mapping[str, int]:
    return {"M": m, "N": n, "K": k}


def _product(params: Params) -> float:
    m, n, k = (int(params[name]) for name in "mnk")
    return 2.0 * m * n * k


def _matmul(suffix: str, variant: str, file: str) -> Benchmark:
    return Benchmark(
        file=file,
        table=lambda p: f"matmul-performance-{_dtype(p)}{suffix}",
        sizes=lambda p: _mnk(p["m"], p["n"], p["k"]),
        amount=_product,
        unit="TFLOPS",
        variant=variant,
    )


def _softmax(variant: str) -> Benchmark:
    flags = [
        f"{flag.replace('_', '-')}-{variant == f'{TILEGYM}_use_{flag}'}"
        for flag in ("tma", "chunked", "multi_wave")
    ]
    return Benchmark(
        file="bench_softmax.py",
        table=lambda p: f"softmax-performance-{_dtype(p)}-{'-'.join(flags)}",
        sizes=lambda p: {"N": p["n"]},
        amount=lambda p: 2.0 * p["m"] * p["n"] * ITEMSIZE[_dtype(p)],
        variant=variant,
    )


def _rms_norm(mode: str) -> Benchmark:
    return Benchmark(
        file="bench_rmsnorm.py",
        table=lambda p: f"rmsnorm-{_dtype(p)}-M{p['shape'][0]}",
        sizes=lambda p: {"N": p["shape"][1]},
        amount=lambda p: (2.0 * _elements(p["shape"]) + p["shape"][1]) * ITEMSIZE[_dtype(p)],
        variant=f"{TILEGYM}_{mode}",
        column=f"CuTile-{mode}",  # TileGym's has spaces, which its own reader of tables takes for columns
    )


BENCHMARKS: Mapping[str, Sequence[Benchmark]] = {
    "attention_decode": [
        Benchmark(
            file="../ops/test_flash_decode.py",  # no script: the sizes of its test_perf, and a name of ours
            table=lambda p: f"flash-decode-group{p['h'] // p['h_kv']}-{_dtype(p)}",
            sizes=lambda p: {"kv_seq_len": p["n"]},
            amount=lambda p: 2.0 * p["b"] * p["d"] * (p["n"] * p["h_kv"] + p["h"]) * ITEMSIZE[_dtype(p)],
        )
    ],
    "bmm": [
        Benchmark(
            file="bench_bmm.py",
            table=lambda p: (
                f"bmm-batch{p['batch']}-transpose_a{'a' in p['transposed']}"
                f"-transpose_b{'b' in p['transposed']}-{_dtype(p)}"
            ),
            sizes=lambda p: _mnk(p["m"], p["n"], p["k"]),
            amount=lambda p: p["batch"] * _product(p),
            unit="TFLOPS",
        )
    ],
    "dropout": [
        Benchmark(
            file="bench_dropout.py",
            table=lambda p: f"dropout-p{p['p']}-{_dtype(p)}",
            sizes=lambda p: {"M": _elements(p["shape"])},
            amount=lambda p: 2.0 * _elements(p["shape"]) * ITEMSIZE[_dtype(p)],
        )
    ],
    "fmha": [
        Benchmark(
            file="bench_fused_attention.py",
            table=lambda p: (
                f"fused-attention-batch{p['b']}-head{p['h']}-d{p['d']}-fwd-causal={p['causal']}-{_dtype(p)}"
            ),
            sizes=lambda p: {"N_CTX": p["n"]},
            amount=lambda p: 4.0 * p["b"] * p["h"] * p["n"] ** 2 * p["d"] * (0.5 if p["causal"] else 1.0),
            unit="TFLOPS",
        )
    ],
    "group_gemm": [
        Benchmark(
            file="bench_group_gemm.py",
            table=lambda p: f"group-gemm-num_groups{len(p['sizes'])}-transpose{p['transpose_b']}-{_dtype(p)}",
            sizes=lambda p: _mnk(*p["sizes"][0]),
            amount=lambda p: sum(2.0 * m * n * k for m, n, k in p["sizes"]),
            unit="TFLOPS",
        )
    ],
    "matmul": [
        _matmul("", TILEGYM, "bench_matrix_multiplication.py"),
        _matmul("-persistent-True", f"{TILEGYM}-persistent", "bench_persistent_matmul.py"),
    ],
    "mla": [
        Benchmark(
            file="bench_mla.py",
            table=lambda p: f"mla-performance-{_dtype(p)}-causal",
            sizes=lambda p: {"seq_len": p["n"]},
            # It counts the masked half, too.
            amount=lambda p: 2.0 * p["b"] * p["h"] * p["n"] ** 2 * (2 * 128 + 64),
            unit="TFLOPS",
        )
    ],
    "mla_decoding": [
        Benchmark(
            file="bench_mla_decoding.py",
            table=lambda p: f"mla-decoding-performance-{_dtype(p)}-head_dim={p['d']}-split_kv=True",
            sizes=lambda p: {"kv_seq_len": p["n"]},
            amount=lambda p: (p["h"] * (2 * p["d"] + 64) + p["n"] * (p["d"] + 64)) * 2.0 * p["b"],
        )
    ],
    "rms_norm": [_rms_norm(mode) for mode in ("static_persistent", "multi_wave_reload", "multi_wave_cached")],
    "rope": [
        Benchmark(
            file="bench_rope.py",
            table=lambda p: f"rope-benchmark-bsz{p['batch']}-heads{p['heads']}-d{p['width']}-{_dtype(p)}",
            sizes=lambda p: {"SEQ_LEN": p["tokens"]},
            # Each angle is there twice.
            amount=lambda p: (
                2.0
                * p["tokens"]
                * p["width"]
                * p["batch"]
                * (p["heads"] + p["heads_kv"] + 1)
                * ITEMSIZE[_dtype(p)]
            ),
        )
    ],
    "silu_and_mul": [
        Benchmark(
            file="bench_silu_and_mul.py",
            table=lambda p: f"silu-and-mul-hidden{p['shape'][1] // 2}-{_dtype(p)}",
            sizes=lambda p: {"M": p["shape"][0]},
            amount=lambda p: 1.5 * _elements(p["shape"]) * ITEMSIZE[_dtype(p)],
        )
    ],
    "softmax": [
        _softmax(variant)
        for variant in (TILEGYM, *(f"{TILEGYM}_use_{flag}" for flag in ("tma", "chunked", "multi_wave")))
    ],
    "swiglu": [
        Benchmark(
            file="bench_swiglu.py",
            table=lambda p: f"swiglu-batch{p['shape'][0]}-M{p['shape'][1]}-{_dtype(p)}",
            sizes=lambda p: {"N": p["shape"][2]},
            amount=lambda p: 3.0 * _elements(p["shape"]) * ITEMSIZE[_dtype(p)],
        )
    ],
}
"""By the name of the suite, which is the kernel's."""


def tables_text(record: Record) -> str:
    """Return all tables in bursts or, of launches that are too long for them, sustained."""
    parts = []
    for kernel, benchmarks in BENCHMARKS.items():
        tables: dict[str, dict[tuple[int, ...], dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        for benchmark in benchmarks:
            shown = {OURS: COLUMNS[OURS], benchmark.variant: benchmark.column, TORCH: COLUMNS[TORCH]}
            for row in record.rows:
                if row.kernel == kernel and row.contender in shown and not row.params.get("use_fast_acc"):
                    sizes = benchmark.sizes(row.params)
                    line = tables[f"{benchmark.table(row.params)}-{benchmark.unit}"][tuple(sizes.values())]
                    line |= {name: f"{size:.1f}" for name, size in sizes.items()}
                    line[shown[row.contender]] = f"{_rate(benchmark, row):.6f}"
        parts += [_table(name, lines) for name, lines in tables.items()]
    return "\n".join(parts)


def _rate(benchmark: Benchmark, row: TimedRow) -> float:
    scale = 1e-6 if benchmark.unit == "TFLOPS" else 1e-3
    return benchmark.amount(row.params) / row.headline.us * scale


def _table(name: str, lines: Mapping[tuple[int, ...], Mapping[str, str]]) -> str:
    columns = list(dict.fromkeys(column for line in lines.values() for column in line))
    rows = [
        (f"{number}", *(line.get(column, "NaN") for column in columns))
        for number, (_, line) in enumerate(sorted(lines.items()))
    ]
    return f"{name}:\n{aligned(('', *columns), rows, indent='')}\n"
