from __future__ import annotations

import itertools
import json
import types
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import cuda.tile as ct
import pytest
import torch
from transformers.models.qwen2 import modeling_qwen2

from models import contenders, tables
from models.__main__ import main, parse, shape_of
from models.bench import divergence, run_bench
from models.breakdown import KernelRun, break_down, kernel_names
from models.check.__main__ import main as check
from models.contenders import OURS, REFERENCE, Contender, TileGym, pytorch, sharing_weights
from models.generate import Generation, generate
from models.records import Mode, Record, Round, Row, Shape
from models.weights import build, make_config

SHAPE = Shape(batch=2, prompt=6, new_tokens=3)


class FakeClock:
    """Every mark is a millisecond behind the last one."""

    def __init__(self):
        self.now = 0.0

    def mark(self):
        self.now += 1e-3
        return self.now

    def seconds(self, marks):
        return [end - start for start, end in itertools.pairwise(marks)]

    def begin_peak(self):
        pass

    def peak_bytes(self):
        return 5_000_000_000


def record_of(**changes) -> Record:
    fields = {"model": "tiny-qwen2", "weights": "random", "shape": SHAPE, "date": "2026-11-25"}
    return Record(
        **{**fields, "command": "python -m models bench", "environment": {"gpu": "H200"}, **changes}
    )


@contextmanager
def broken(model):
    raise RuntimeError("no kernel for this model\nand more")
    yield model


def test_rounds_are_interleaved_and_a_contender_that_fails_leaves_the_others_alone(qwen2):
    compared = [
        Contender(name=REFERENCE, title="SDPA", active=pytorch),
        Contender(name="bad", title="broken", active=broken),
        Contender(name=OURS, title="ours", active=pytorch),
    ]
    said: list[str] = []
    stored: list[int] = []
    record = run_bench(
        qwen2,
        record_of(),
        compared,
        FakeClock(),
        rounds=2,
        graphs=False,
        profiled=False,
        say=said.append,
        store=lambda record: stored.append(sum(len(row.rounds) for row in record.rows)),
    )
    assert record.problems == {"bad, eager": "RuntimeError: no kernel for this model"}
    assert [cells[:3] for cells in tables.cells(record)] == [
        ("SDPA", "eager", "2000"),
        ("broken", "eager", "not measured"),
        ("ours", "eager", "2000"),
    ]
    rounds = [line.split(": ")[1] for line in said if "round" in line]
    assert rounds == ["sdpa, eager", "ours, eager", "ours, eager", "sdpa, eager"]
    assert stored == [0, 0, 0, 1, 2, 3, 4]
    (own,) = record.measured[1:]
    assert own.first_token_s == pytest.approx(1e-3)
    assert own.token_ms == pytest.approx(1.0)
    assert own.rate(SHAPE) == pytest.approx(6 / 3e-3)
    assert (own.kl, own.top1) == (0.0, 1.0)


def run_quietly(model, compared, **options):
    run = {"rounds": 2, "graphs": False, "profiled": False, "say": lambda _: None, **options}
    return run_bench(model, record_of(), compared, FakeClock(), **run)


def named(*names):
    return [each for each in contenders.contenders() if each.name in names]


def test_naive_generates_as_transformers_does_and_has_no_graph(qwen2, monkeypatch):
    captured = []

    def capture(generation):
        captured.append(generation)

    monkeypatch.setattr(Generation, "capture", capture)
    record = run_quietly(qwen2, named("naive", REFERENCE), rounds=0, graphs=True)
    assert [row.key for row in record.rows] == ["naive, eager", "sdpa, eager", "sdpa, graph"]
    assert len(captured) == 1
    naive, sdpa = run_quietly(qwen2, named("naive", REFERENCE)).measured
    assert (len(naive.rounds), naive.kl, naive.top1) == (len(sdpa.rounds), 0.0, 1.0)


def test_weights_are_moved_before_anything_is_captured():
    model = build("tiny-qwen2")
    weight, addresses = model.model.layers[0].self_attn.k_proj.weight, []
    before = weight.data_ptr()

    @contextmanager
    def recorded(model):
        addresses.append(weight.data_ptr())
        yield model

    compared = [Contender(name=REFERENCE, title="SDPA", active=recorded), *named(OURS)]
    run_quietly(model, compared)
    assert len(addresses) == 3
    assert {*addresses} == {weight.data_ptr()} != {before}


def test_torch_compile_makes_prefill_and_steps(qwen2, monkeypatch):
    lengths = []

    def compile_(forward, **_):
        def run(**inputs):
            lengths.append(inputs["input_ids"].shape[1])
            return forward(**inputs)

        return run

    monkeypatch.setattr(torch, "compile", compile_)
    record = run_quietly(qwen2, named("compiled", REFERENCE), rounds=1)
    assert [row.contender for row in record.measured] == [REFERENCE, "compiled"]
    prompt = record.shape.prompt
    assert lengths == [prompt, prompt, 1, prompt, 1, 1]  # to prepare, then a round


def test_a_failed_compilation_or_capture_is_a_row_with_its_reason(qwen2, monkeypatch):
    def compile_(_forward, **_):
        def fail(**_):
            raise torch._dynamo.exc.InternalTorchDynamoError("no such operation\nat line 3")

        return fail

    def capture(_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(Generation, "capture", capture)
    record = run_quietly(qwen2, named("compiled", REFERENCE), graphs=True)
    assert record.problems == {
        "sdpa, graph": "RuntimeError: operation not permitted when stream is capturing",
        "compiled, eager": "InternalTorchDynamoError: no such operation",
    }
    assert [row.key for row in record.measured] == ["sdpa, eager"]


def test_a_contender_that_fails_in_a_round_keeps_what_was_measured_and_has_no_further_ones(qwen2):
    runs = itertools.count()

    @contextmanager
    def later(model):
        if next(runs) == 2:  # the first prepares
            raise torch.OutOfMemoryError("CUDA out of memory")
        yield model

    compared = [Contender(name="bad", title="bad", active=later), *named(REFERENCE)]
    bad, sdpa = run_quietly(qwen2, compared, rounds=4).rows
    assert (len(bad.rounds), len(sdpa.rounds)) == (1, 4)
    assert bad.problem == "OutOfMemoryError: CUDA out of memory"


def test_an_interrupted_run_keeps_its_rounds(qwen2):
    class Stopped(FakeClock):
        def mark(self):
            if self.now > 0.005:
                raise KeyboardInterrupt
            return super().mark()

    record = record_of()
    with pytest.raises(KeyboardInterrupt):
        run_bench(qwen2, record, named(REFERENCE), Stopped(), graphs=False, say=lambda _: None)
    (row,) = record.measured
    assert len(row.rounds) == 1
    assert qwen2.config._attn_implementation == "sdpa"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-deepseek-v2"])
def test_a_step_of_transformers_compiles_whole(name, monkeypatch):
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda *args, **kwargs: compile_(*args, **kwargs, backend="eager", fullgraph=True)
    )
    model = build(name, dtype=torch.float32)
    prompt = torch.randint(0, 256, (2, 9))
    expected, compiled = (Generation(model, prompt, new_tokens=4, compiled=each) for each in (False, True))
    assert [*generate(expected)] == [*generate(compiled)]
    assert torch.equal(expected.tokens, compiled.tokens)


def test_the_same_cache_is_filled_anew_by_every_contender(qwen2):
    other = sharing_weights(qwen2)
    for parameter in other.parameters():
        assert parameter.data_ptr() in {each.data_ptr() for each in qwen2.parameters()}
    tokens = torch.randint(0, 256, (1, 5))
    with torch.no_grad():
        assert torch.equal(other(tokens).logits, qwen2(tokens).logits)


def test_what_a_contender_changes_is_undone(qwen2):
    with pytorch(qwen2, attention="eager") as model:
        assert model.config._attn_implementation == "eager"
    assert qwen2.config._attn_implementation == "sdpa"


def test_without_tilegym_its_row_says_so(qwen2):
    record = run_bench(
        qwen2,
        record_of(),
        [Contender(name="tilegym", title="TileGym", active=TileGym())],
        FakeClock(),
        graphs=False,
        profiled=False,
        say=lambda _: None,
    )
    assert record.problems == {"tilegym, eager": "ModuleNotFoundError: No module named 'tilegym'"}


def test_what_tilegym_replaces_is_put_back(qwen2, monkeypatch):
    """Its import replaces `cuda.tile.launch` by a function that takes fewer arguments."""
    transformers: Any = types.ModuleType("tilegym.transformers")
    modeling: Any = modeling_qwen2
    launch, norm = ct.launch, modeling_qwen2.Qwen2RMSNorm

    class OtherNorm(modeling_qwen2.Qwen2RMSNorm):
        pass

    def patch(**_):
        modeling.Qwen2RMSNorm = OtherNorm

    transformers.apply_tilegym_kernel_to_qwen2 = patch

    def load_or_import(name):
        if name == "tilegym.transformers":
            ct.launch = None
            return transformers
        return import_module(name)

    monkeypatch.setattr(contenders, "import_module", load_or_import)
    with TileGym()(qwen2) as other:
        assert isinstance(other.model.norm, OtherNorm)
    assert ct.launch is launch
    assert modeling_qwen2.Qwen2RMSNorm is norm
    assert not isinstance(qwen2.model.norm, OtherNorm)


def test_kernels_are_counted_per_token_and_ours_are_known_by_their_names():
    runs = one_by_one(("rope_kernel_0x12", 10.0), ("gemm", 80.0), ("rope_kernel_0x12", 10.0), ("gemm", 80.0))
    runs.append(KernelRun("copy", 180.0, 200.0))
    breakdown = break_down(runs, repeats=2, names=("rope_kernel",))
    assert [(kernel.name, kernel.calls, kernel.ms) for kernel in breakdown.kernels] == [
        ("gemm", 1.0, 0.08),
        ("rope_kernel_0x12", 1.0, 0.01),
        ("copy", 0.5, 0.01),
    ]
    assert breakdown.coverage == pytest.approx((0.1, 0.4))
    assert break_down([]).coverage == (0, 0)
    assert {"rope_kernel", "fmha_kernel", "attention_decode_kernel"} <= {*kernel_names()}


def one_by_one(*runs: tuple[str, float]) -> list[KernelRun]:
    """Kernels by name and time, each of which begins when the one before has ended."""
    ends = itertools.accumulate(us for _, us in runs)
    return [KernelRun(name, end - us, end) for (name, us), end in zip(runs, ends, strict=True)]


def test_a_kernel_that_waits_beside_another_has_only_the_time_of_its_own():
    waits = [
        KernelRun("merge", 10.0, 108.0),
        KernelRun("attend", 0.0, 100.0),
        KernelRun("inside", 20.0, 30.0),
    ]
    breakdown = break_down(waits)
    assert {kernel.name: kernel.ms for kernel in breakdown.kernels} == {
        "attend": 0.1, "merge": pytest.approx(0.008), "inside": 0.0
    }  # fmt: skip


def test_divergence_is_that_of_the_worst_prompt():
    logits = torch.zeros(2, 4)
    other = torch.tensor([[0.0] * 4, [1.0, 0.0, 0.0, 0.0]])
    kl, top1 = divergence(logits, other)
    expected = other[1].double().exp().sum().log() - 0.25 - torch.tensor(4.0).double().log()
    assert kl == pytest.approx(float(expected))
    assert top1 == 1.0


def measured_record() -> Record:
    def row(contender: str, title: str, mode: Mode, ms: float) -> Row:
        rounds = [
            Round(first_token_s=0.5, step_ms=(ms, ms, ms)),
            Round(first_token_s=0.52, step_ms=(ms, ms, ms)),
        ]
        return Row(contender=contender, title=title, mode=mode, rounds=rounds, peak_bytes=30_000_000_000)

    record = record_of(model="qwen2-7b", shape=Shape(batch=16, prompt=4096, new_tokens=4))
    record.rows = [row("sdpa", "SDPA", Mode.GRAPH, 8.0), row(OURS, "ours", Mode.GRAPH, 5.0)]
    own = record.rows[1]
    own.prefill = break_down(
        one_by_one(("fmha_kernel_Kt2_A4bf16_1s1", 300.0), ("void gemm(int)", 700.0)), names=["fmha"]
    )
    own.decode = break_down(one_by_one(("fmha_kernel", 4000.0)), names=["fmha"])
    record.rows.append(
        Row(
            contender="eager-attention",
            title="eager attention",
            mode=Mode.EAGER,
            problem="out of memory: about 90 GB of 80 GB",
        )
    )
    return record


def test_the_page_has_the_table_the_goal_the_kernels_and_what_was_published():
    page = tables.page(measured_record())
    for text in (
        "| ours | graph | 121.9 | 2 % | 510 | 5 | 1.600 | 30.0 |",
        "- prefill: 1.00 times the speed of the best other, SDPA (graph); goal 1.1: missed",
        "- decode: 1.60 times the speed of the best other, SDPA (graph); goal 1: reached",
        "- 5 ms a token; goal on an H200 6: reached",
        "- prefill: 0.3 ms in our kernels, 0.7 in PyTorch's, which are mostly cuBLAS's, and 509 without a",
        "- a step reads 17.9 GB of weights and cache: 3.58 TB/s",
        "| eager attention | eager | not measured | - |",
        "Not measured: eager-attention, eager: out of memory: about 90 GB of 80 GB.",
        "prefill, graph: our kernels have 30 % of the GPU's time and 50 % of its launches",
        "decode, graph: our kernels have 100 % of the GPU's time and 100 % of its launches",
        "no kernel runs for 20 % of the time",
        "| gemm | 1 | 0.7 | 70 % |",
        "| fmha_kernel | 1 | 0.3 | 30 % | ours |",
        "| NVIDIA GB10 | Qwen2-7B_cutile_attn | 18.52 |",
    ):
        assert text in page
    slower = measured_record()
    slower.rows[1].rounds = [Round(first_token_s=0.5, step_ms=(7.0,))]
    assert "7 ms a token; goal on an H200 6: missed" in tables.goal_lines(slower)
    slower.shape = Shape(batch=1, prompt=16, new_tokens=4)
    assert not tables.goal_lines(slower)


def test_kernels_keep_the_part_of_their_name_that_tells_them_apart():
    space, impl = "(anonymous namespace)::", "elementwise_kernel<4, at::native::gpu_kernel_impl<at::native::"
    names = {
        "at::native::CatArrayBatched<float, 4>": f"void at::native::{space}CatArrayBatched<float, 4>(float*)",
        "softmax_warp_forward<float, 8>": f"void {space}softmax_warp_forward<float, 8>(float*)",
        "elementwise: CUDAFunctor_add": "void at::native::vectorized_elementwise_kernel<4, "
        "at::native::CUDAFunctor_add<float>, std::array>(int)",
        "elementwise: direct_copy_kernel_cuda": f"void at::native::{impl}direct_copy_kernel_cuda(at::"
        "TensorIteratorBase&)::{lambda()#3}>(int)>(int)",
    }
    assert [tables.short(name) for name in names.values()] == [*names]


def test_files_are_written_and_read_back(tmp_path):
    record = measured_record()
    tables.store(tmp_path, record)
    assert tables.load(tmp_path / "bench.json") == record
    assert json.loads((tmp_path / "bench.json").read_text())["rows"][1]["mode"] == "graph"
    names = [file.name for file in tables.write_pages(tmp_path, record)]
    assert names == ["bench.csv", "bench.md", "bench.svg"]
    assert len((tmp_path / "bench.csv").read_text().splitlines()) == 5
    assert "ours, graph, token 2: 5 ms" in (tmp_path / "bench.svg").read_text()


def test_without_a_gpu_large_models_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"needs a GPU, and there is none\. .*tiny-qwen2"):
        main(["bench", "qwen2-7b"])
    with pytest.raises(SystemExit, match=r"qwen2-7b: needs a GPU, and there is none"):
        check(["tiny-qwen2", "qwen2-7b"])


def test_weights_of_another_architecture_are_refused(tmp_path):
    make_config("tiny-llama").save_pretrained(tmp_path)
    folder = tmp_path / "bench"
    with pytest.raises(
        SystemExit, match=r"tiny-qwen2: .* of the architecture llama, but tiny-qwen2 is qwen2"
    ):
        main(["bench", "tiny-qwen2", "--model", str(tmp_path), "--output", str(folder)])
    assert not folder.exists()


def test_bad_options_are_refused(capsys):
    for options, message in (
        (["bench", "qwen2-7b", "--only", "sdpa,our"], "unknown: our; known: naive, eager-attention, sdpa"),
        (["bench", "qwen2-7b", "--prompt", "0"], "no integer of at least 1"),
        (["bench", "qwen3"], "invalid choice"),
        (["bench", "qwen2-7b", "--tokens", "1"], "--tokens has to be at least 2"),
        (["bench", "qwen2-7b", "--coverage", "--no-profile"], "--coverage needs the profile"),
    ):
        with pytest.raises(SystemExit):
            parse(options)
        assert message in capsys.readouterr().err


def test_a_check_that_finds_something_wrong_fails(tmp_path, capsys):
    options = ["tiny-llama", "--batch", "1", "--prompt", "4", "--steps", "1", "--out", str(tmp_path)]
    assert check([*options, "--model", f"tiny-llama={tmp_path / 'nowhere'}"]) == 1
    said = f"WRONG: tiny-llama, build: ValueError: there is no folder {tmp_path / 'nowhere'}"
    assert said in capsys.readouterr().out.splitlines()
    for pair in ("tiny-qwen2=here", "tiny-llama"):
        with pytest.raises(SystemExit):
            check([*options, "--model", pair])
        assert f"NAME=PATH of a model that is checked, got {pair!r}" in capsys.readouterr().err


def test_what_cannot_be_stored_is_not_measured(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"tiny-qwen2: .*Not a directory: .*file"):
        main(["bench", "tiny-qwen2", "--output", str(tmp_path / "file" / "bench")])


def test_quick_runs_have_short_prompts():
    assert shape_of(parse(["bench", "qwen2-7b"])) == Shape(batch=16, prompt=4096, new_tokens=50)
    assert shape_of(parse(["bench", "qwen2-7b", "--quick"])).prompt == 512
    assert shape_of(parse(["bench", "qwen2-7b", "--quick", "--prompt", "64"])).prompt == 64
    assert shape_of(parse(["bench", "deepseek-v2-lite"])) == Shape(batch=1, prompt=2048, new_tokens=100)
