"""TileGym's benchmarks as a study: with a kernel on the CPU and a timer that believes it."""

import csv
import re
from typing import Any

import pytest
import torch

from kernels.mla import HEAD_DIM, ROPE_DIM
from studies.kernel_suite import contenders, main
from studies.kernel_suite.main import STUDY
from studies.kernel_suite.tilegym_tables import BENCHMARKS, Benchmark, tables_text
from studies.running.run import run_study
from studies.running.study import Record, TimedRow, Timing
from tests.tools.toy_kernel import FakeTimer
from tools.gpu_runs.suites import load_suite
from tools.suite._peers import has_tilegym

SUITE = "tests.tools.toy_suite"
TOY = Benchmark(
    file="bench_toy.py",
    table=lambda p: f"toy-{p['n'] // 1000}",
    sizes=lambda p: {"N": p["n"]},
    amount=lambda p: 4.0 * p["n"],
)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Leave the peer away that torch.compile makes: its import takes seconds."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.fixture
def toy(monkeypatch):
    """Let the toy suite be all that TileGym has."""
    monkeypatch.setattr(main, "SUITES", ("toy",))
    monkeypatch.setattr(main, "load_suite", lambda _: load_suite(SUITE))
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: object())
    monkeypatch.setitem(BENCHMARKS, "toy", [TOY])


@pytest.mark.usefixtures("toy")
def test_each_peer_is_interleaved_with_ours(tmp_path):
    record = run_study(STUDY, FakeTimer(), tmp_path)
    assert not record.errors
    assert [(row.contender, row.beside, row.headline.us) for row in record.rows] == [
        ("kernels", "", 120.0),
        ("tilegym", "kernels", 150.0),
        ("torch", "kernels", 132.0),
    ]
    text = (tmp_path / "kernel_suite.md").read_text()
    assert "| toy | 1.250 (1) | 1.100 (1) | - | - |" in text
    assert "| all | 1.250 (1) | 1.100 (1) | - | - |" in text
    assert "| fp16-64 | kernels | 120.00 | 0.5333 TFLOPS |" in text
    assert re.search(r"^\| +\| tilegym \| 150.00 \| 0.4267 TFLOPS \| 1.250 \|", text, re.MULTILINE)
    assert "toy[fp16-64]: 1.25x" in (tmp_path / "kernel_suite.svg").read_text()
    with (tmp_path / "rows.csv").open() as file:
        assert {line["kernel"] for line in csv.DictReader(file)} == {"toy"}


@pytest.mark.usefixtures("toy")
def test_what_a_peer_prepares_is_not_timed():
    (_, row, _) = main.rows(False)
    x = torch.ones(64, dtype=torch.float16)
    launch: Any = row.contender.on((), {"x": x})
    assert torch.equal(launch(), 2 * x)
    assert launch is not row.contender.on((), {"x": x})


def test_without_tilegym_it_is_missing():
    if has_tilegym():
        pytest.skip("it is installed")
    suite = load_suite("softmax")
    torch_peer, tilegym = contenders.peers_of(suite, suite.cases[0])
    assert (torch_peer.name, torch_peer.missing) == ("torch", "")
    assert (tilegym.name, tilegym.missing) == ("tilegym", "it is not installed")


def test_random_numbers_agree_by_their_share_of_zeros():
    suite = load_suite("dropout")
    peer = contenders.peers_of(suite, suite.cases[0])[0]
    one, other = (torch.nn.functional.dropout(torch.ones(1 << 16)) for _ in range(2))
    assert not torch.equal(one, other)
    assert peer.difference(one, other, ()) is None
    assert (
        peer.difference(torch.zeros(9), one, ())
        == f"a share of 1.000 is zero, not {(one == 0).float().mean():.3f}"
    )


# -- TileGym's own form -------------------------------------------------------------------------------


def timed(kernel, case, contender, us):
    return TimedRow(
        key=f"{kernel}: {contender}[{case.name}]",
        kernel=kernel,
        case=case.name,
        params=dict(case.params),
        contender=contender,
        beside="",
        bound="TFLOPS",
        burst=Timing(us=us, tflops=None, gb_per_s=None),
        sustained=None,
        sustained_skipped="",
        share_of_limit=None,
        clock_mhz=None,
        sustained_clock_mhz=None,
        sustained_watts=None,
    )


def record_of(*rows):
    return Record(study="kernel_suite", date="today", quick=False, environment={}, rows=[*rows])


def parsed(text):
    """Return tables as rows of cells, by name."""
    tables: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        if line.endswith(("-TFLOPS:", "-GBps:")):
            table = tables.setdefault(line[:-1], [])
        elif line.strip():
            table.append(line.split())
    return tables


def test_tables_are_those_of_tilegym():
    cases = {case.name: case for case in load_suite("softmax").cases}
    small, large = cases["bf16-4096x1024"], cases["bf16-4096x2048"]
    tables = parsed(
        tables_text(
            record_of(
                timed("softmax", large, "kernels", 10.0),
                timed("softmax", large, "tilegym", 20.0),
                timed("softmax", large, "tilegym_use_tma", 16.0),
                timed("softmax", large, "torch", 40.0),
                timed("softmax", small, "kernels", 8.0),
            )
        )
    )
    assert tables["softmax-performance-bfloat16-tma-False-chunked-False-multi-wave-False-GBps"] == [
        ["N", "kernels", "CuTile", "PyTorch"],
        ["0", "1024.0", "2097.152000", "NaN", "NaN"],
        ["1", "2048.0", "3355.443200", "1677.721600", "838.860800"],
    ]
    tma = tables["softmax-performance-bfloat16-tma-True-chunked-False-multi-wave-False-GBps"]
    assert tma[-1][3] == "2097.152000"


NAMES = {
    "bmm": "bmm-batch2-transpose_aFalse-transpose_bTrue-float16-TFLOPS",
    "dropout": "dropout-p0.5-float32-GBps",
    "fmha": "fused-attention-batch4-head32-d128-fwd-causal=True-float8_e5m2-TFLOPS",
    "group_gemm": "group-gemm-num_groups16-transposeTrue-float16-TFLOPS",
    "matmul": "matmul-performance-float8_e5m2-persistent-True-TFLOPS",
    "mla": "mla-performance-bfloat16-causal-TFLOPS",
    "mla_decoding": "mla-decoding-performance-float16-head_dim=512-split_kv=True-GBps",
    "rms_norm": "rmsnorm-bfloat16-M4096-GBps",
    "rope": "rope-benchmark-bsz1-heads16-d64-float16-GBps",
    "silu_and_mul": "silu-and-mul-hidden2048-float32-GBps",
    "swiglu": "swiglu-batch8-M128-bfloat16-GBps",
}
"""One of the names that each script prints."""
TWICE = {"mla": 2.0}
"""How much more work TileGym's script counts: the masked half of attention."""


@pytest.mark.parametrize("kernel", BENCHMARKS)
def test_a_benchmark_names_sizes_and_counts_the_work_of_its_cases(kernel):
    suite = load_suite(kernel)
    assert suite.spec.name == kernel
    cases = main.cases_of(suite, quick=False)
    assert len(main.cases_of(suite, quick=True)) == 1
    tables = parsed(tables_text(record_of(*(timed(kernel, case, "kernels", 10.0) for case in cases))))
    assert kernel not in NAMES or NAMES[kernel] in tables
    shown = [case for case in cases if not case.params.get("use_fast_acc")]
    assert sum(len(table) - 1 for table in tables.values()) in (
        len(shown),
        len(BENCHMARKS[kernel]) * len(shown),
    )
    for case, benchmark in ((case, each) for case in shown for each in BENCHMARKS[kernel]):
        work = suite.spec.work_of(case)
        ours = work.flops if benchmark.unit == "TFLOPS" else work.bytes
        # Its causal attention is half of the square, without what the diagonal adds.
        assert benchmark.amount(case.params) == pytest.approx(ours * TWICE.get(kernel, 1.0), rel=2e-2)


def test_the_dimensions_of_latent_attention_are_those_of_the_kernel():
    assert (HEAD_DIM, ROPE_DIM) == (128, 64)
