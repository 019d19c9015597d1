"""Attention as an operator of PyTorch's, and the study of it with a pretended timer."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch

from kernels import fmha
from pytest_cutile.correctness.check import KernelMismatch, run_check
from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.tensors.seeded import MakeTensor
from pytest_cutile.words.spec import CheckOptions
from studies.attention_study import half_kernel, launching, main, operator, try_compile
from studies.attention_study.half_kernel import SUMMED
from studies.attention_study.operator import sdpa
from studies.running.attention import case
from studies.running.peers import BACKENDS, UNFUSED, backend_attention
from studies.running.run import run_study
from tests.studies.pretended import PretendedTimer, on_the_cpu
from tools.gpu_runs.agreement import check_launch

CHOSEN = fmha.choose_config("sm_90", head_dim=128, causal=False, itemsize=2, keys=1024)


def made(*shape, dtype=torch.float16):
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=dtype) for _ in range(3)]


def exact(q, k, v, **more):
    return fmha.reference(q.double(), k.double(), v.double(), **more)


# -- the operator -----------------------------------------------------------------------------------


def test_the_operator_launches_with_what_it_is_told():
    q, k, v = made(1, 2, 70, 96)
    with interpret(arch="sm_90") as run:
        out = sdpa(q, k, v, causal=True, scale=0.2, tile_m=32, tile_n=16, opt_level=2)
    torch.testing.assert_close(out.double(), exact(q, k, v, causal=True, scale=0.2), rtol=0, atol=2e-3)
    assert out.is_contiguous()
    assert [(launch.kernel, launch.grid) for launch in run.launches] == [("fmha_kernel", (6,))]


def test_float16_sums_are_a_kernel_of_their_own():
    q, k, v = made(1, 2, 40, 64)
    with interpret(arch="sm_90") as run:
        out = sdpa(q, k, v, accumulator="float16", synchronize="around")
    torch.testing.assert_close(out.double(), exact(q, k, v), rtol=0, atol=1e-2)
    assert [launch.kernel for launch in run.launches] == ["half_kernel"]


@pytest.fixture
def on_torch(monkeypatch):
    """Let the operator's launcher be PyTorch's attention; return the controls that it got."""
    got = []

    def attend(q, k, v, *, causal, scale, **controls):
        got.append(controls)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    monkeypatch.setattr(operator, "attend", attend)
    return got


def test_torch_compile_keeps_the_operator_whole(on_torch):
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=keep, fullgraph=True)
    def layer(q, k, v):
        return sdpa(q * 2, k, v, causal=True, tile_n=64) + 1

    q, k, v = made(1, 2, 33, 64, dtype=torch.bfloat16)
    expected = torch.nn.functional.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1
    torch.testing.assert_close(layer(q, k, v), expected)
    called = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert called.count(torch.ops.cutile.sdpa.default) == 1
    assert len(called) == 3
    assert on_torch[-1]["tile_n"] == 64


def test_without_a_gpu_there_is_nothing_to_try(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="there is no GPU"):
        try_compile.main()


@pytest.mark.usefixtures("on_torch")
def test_the_operator_is_registered_as_pytorch_wants_it():
    none = [None] * 6
    args = (*made(1, 2, 8, 64), False, None, *none, "float32", "never")
    torch.library.opcheck(torch.ops.cutile.sdpa.default, args, test_utils=("test_schema", "test_faketensor"))


def test_the_fake_result_has_the_shape_of_the_queries():
    q, k = (torch.empty(2, *rest, 96, device="meta", dtype=torch.float16) for rest in ((8, 5), (2, 7)))
    out = sdpa(q, k, k)
    assert (out.shape, out.device.type) == (q.shape, "meta")
    with pytest.raises(ValueError, match="sdpa: v must have k's shape"):
        sdpa(q, k, q)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("q", "k", "more", "error", "message"),
    [
        ((1, 2, 8, 300), (1, 2, 8, 300), {}, ValueError, "the head dimension is at most 256, got 300"),
        ((1, 3, 8, 64), (1, 2, 8, 64), {}, ValueError, "3 heads, which is no multiple of the 2 heads"),
        ((2, 2, 8, 64), (1, 2, 8, 64), {}, ValueError, "as many batches, and one head dimension"),
        ((1, 2, 8, 64), (1, 2, 8, 64), {"accumulator": "x"}, ValueError, "accumulator must be one of"),
        ((1, 2, 8, 64), (1, 2, 9, 64), {"accumulator": "float16"}, ValueError, "need one shape"),
        ((1, 2, 8, 64), (1, 2, 8, 64), {"tile_m": 63}, ValueError, "tile_m must be a power of"),
        ((1, 2, 8, 64), (1, 2, 8, 64), {"opt_level": 4}, ValueError, "opt_level must be 0 to 3, got 4"),
        ((1, 2, 8, 64), (1, 2, 8, 64), {"scale": -1.0}, ValueError, "scale must be a positive number"),
        ((1, 2, 8, 64), (1, 2, 8, 64), {"dtype": torch.int32}, TypeError, "dtype torch.int32"),
    ],
)
def test_the_fake_refuses_what_a_launch_refuses(device, q, k, more, error, message):
    options = {"dtype": torch.float16, **more}
    dtype = options.pop("dtype")
    q, k = (torch.zeros(shape, dtype=dtype, device=device) for shape in (q, k))
    with interpret(arch="sm_90"), pytest.raises(error, match=message):
        sdpa(q, k, k, **options)


def test_the_lowest_level_of_optimisation_is_a_control():
    config = launching.vary_config(CHOSEN, opt_level=0)
    assert config.opt_level == 0


def test_controls_are_checked():
    q, k, v = made(1, 1, 8, 64)
    with pytest.raises(ValueError, match="accumulator must be one of float32, float16, got 'int8'"):
        launching.attend(q, k, v, accumulator="int8")
    with pytest.raises(ValueError, match="synchronize must be one of never, after, around, got 'often'"):
        launching.attend(q, k, v, synchronize="often")
    with pytest.raises(ValueError, match="the head dimension is at most 256, got 320"):
        launching.attend(*made(1, 1, 8, 320))
    with interpret(arch="sm_90"):
        with pytest.raises(ValueError, match=r"sums in float16 are for float16, got torch\.bfloat16"):
            launching.attend(*made(1, 1, 8, 64, dtype=torch.bfloat16), accumulator="float16")
        with pytest.raises(ValueError, match="sums in float16 need one shape"):
            launching.attend(q, k[:, :, :4], v[:, :, :4], accumulator="float16")


def test_tiles_of_ones_own_leave_hints_to_the_compiler():
    table = launching.vary_config(CHOSEN)
    assert (table.occupancy, table.num_worker_warps, table.opt_level) == (2, 4, 3)
    own = launching.vary_config(CHOSEN, tile_n=64, num_ctas=2)
    assert (own.tile_m, own.tile_n, own.occupancy, own.num_ctas) == (64, 64, None, 2)


# -- the study --------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    """Let each case be one head of a few keys."""
    values = {"H": 1, "LENGTHS": (32,), "DIMS": (64, 128), "TILED_LENGTHS": {"Mid S": 32}}
    for name, value in values.items():
        monkeypatch.setattr(main, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_the_study_has_the_tables_and_figures_of_its_source(tmp_path):
    times = {row.contender.name: 100.0 for row in main.STUDY.rows(False)}
    times |= {"cutile sdpa": 80.0, "tiles 64x128": 90.0, "SDPA math": 400.0}
    times |= {"tiles 128x64, 8 warps, overlap": 95.0}
    record = run_study(on_the_cpu(main.STUDY), PretendedTimer(times), tmp_path)
    assert not record.errors
    assert any(row.sustained for row in record.rows)
    table4 = (tmp_path / "table4_tiling_sensitivity.md").read_text()
    best = "| Mid S | S=32, D=128 | 64x128 | 90.0 | 128x64, 8 warps, overlap | 5.26 | 80.0 | 1.12 |"
    assert f"{best} 64x128, 64x64: 10.06 % |" in table4
    assert "Each shape is timed twice: with warps and occupancy left to the compiler" in table4
    assert table4.endswith("The default is faster than every other setting at S=32.\n")
    text = (tmp_path / "attention_study.md").read_text()
    bursts, sustained = text.split("## Sustained")
    assert "| 32 | 125.0 | 125.0 |" in bursts  # the regime map
    assert "| 32 | 125.0 | 125.0 |" in sustained
    assert "| 32 | " in sustained.partition("TFLOPS at length")[2]
    (row,) = [line for line in bursts.splitlines() if line.startswith("| 32 causal |")]
    assert len(row.split("|")) == len(main.COMPARED) + 3
    titles = re.findall("<title>(.*?)</title>", (tmp_path / "figure3_throughput_vs_s.svg").read_text())
    assert titles[0] == "cutile sdpa, 32: 0.4"  # 32 tokens of one head in 80 us
    assert len(titles) == 2 * 2
    assert "| driver | 1.2 |" in (tmp_path / "table3_reproducibility.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_the_contenders_are_right_where_they_run(tmp_path):
    """On the CPU, PyTorch has no back end but math and its own; ours are interpreted."""
    timed = {"cutile sdpa", "cutile sdpa, float16 sums", "tiles 64x64", "SDPA math", "unfused", "SDPA auto"}
    rows = [row for row in main.STUDY.rows(False) if row.case == main.case_of(32, causal=False)]
    rows = [replace(row, beside=None) for row in rows if row.contender.name in timed]
    names = {row.contender.launch.__name__ for row in rows}
    study = replace(main.STUDY, rows=lambda _: rows)
    with interpret(arch="sm_90"):
        record = run_study(study, PretendedTimer(dict.fromkeys(names, 100.0)), tmp_path)
    assert not record.errors
    assert {row.contender for row in record.rows} == timed


def without_scale(attend):
    return lambda q, k, v, causal: attend(q * 8, k, v, causal=causal)  # heads of 64: the scale is 1/8


def with_one_key_more(attend):
    """Let each query see one key beyond its own position."""

    def launch(q, k, v, causal):
        late = torch.nn.functional.pad(q, (0, 0, 1, 0))
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return attend(late, k, v, causal=causal)[..., 1:, :].contiguous()

    return launch


def in_float16(a, b):
    """Return `a @ b` as tensor cores sum in float16: each sum of 16 products is rounded."""
    total = torch.zeros(())
    for x, y in zip(a.float().split(SUMMED, -1), b.float().split(SUMMED, -2), strict=True):
        total = (total + x @ y).half()
    return total


def attend_in_float16(q, k, v, causal):
    scores = in_float16(q, k.mT).float() / 8
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    p = torch.softmax(scores.masked_fill(hidden, -torch.inf) if causal else scores, -1)
    return in_float16(p.half(), v)


@pytest.mark.parametrize(
    ("contender", "launch"),
    [(main.HALF, attend_in_float16), (UNFUSED, UNFUSED.launch)],
    ids=["half", "unfused"],
)
def test_coarser_arithmetic_is_right_by_its_own_declaration_and_bugs_in_it_are_not(contender, launch):
    own = case(24, d=64, causal=True)
    inputs = contender.spec.make_inputs(partial(MakeTensor, device="cpu", seed=0), own)
    check_launch(replace(contender.spec, launch=launch), own, (), inputs)
    for plant in (without_scale, with_one_key_more):
        with pytest.raises(KernelMismatch, match="differs from its reference"):
            check_launch(replace(contender.spec, launch=plant(launch)), own, (), inputs)


def test_sums_in_float16_are_declared_with_a_rounding_of_each():
    """Their error grows with the keys, and so does the noise of a reference that adds up as they do."""
    torch.manual_seed(0)
    q, k, v = (torch.zeros(1, 1, length, 16).half() for length in (16, 1024, 1024))
    v.uniform_()
    options = CheckOptions(mid="float16", reduction=1024, vary_layout=False)
    by_steps, by_formula = (
        run_check(
            attend_in_float16, (q, k, v), {"causal": False}, reference=reference, options=options
        ).energy
        for reference in (half_kernel.reference, fmha.reference)
    )
    assert by_formula > 4 * by_steps


@pytest.mark.parametrize("causal", [True, False])
def test_unfused_attention_is_attention(causal):
    q, k, v = made(1, 2, 33, 64)
    out = UNFUSED.launch(q, k, v, causal=causal)
    torch.testing.assert_close(out.double(), exact(q, k, v, causal=causal), rtol=0, atol=3e-3)


def test_each_back_end_of_pytorchs_is_asked_for_by_name(monkeypatch):
    asked = []
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *_, **__: asked.append(torch.nn.attention._cur_sdpa_kernel_backends()),
    )
    for backend in BACKENDS:
        backend_attention(backend).launch(*made(1, 1, 8, 64), causal=False)
    assert [[each.name for each in backends] for backends in asked] == [[name] for name in BACKENDS]
