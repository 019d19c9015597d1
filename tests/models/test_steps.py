"""Tiny models with kernels, interpreted: every kernel runs, and prefill and decoding are right."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models import apply
from models.check import (
    check_layers,
    check_whole,
    first_wrong,
    make_cache,
    record,
    run_exactly,
    run_honestly,
    run_steps,
)
from pytest_cutile.tile.interpreter.api import interpret

pytestmark = pytest.mark.slow

PROMPT, STEPS, BATCH = 17, 2, 2
DENSE = {"rms_norm_kernel", "rope_kernel", "swiglu_kernel", "fmha_kernel"}
LATENT = {
    *("rms_norm_kernel", "rope_kernel", "swiglu_kernel", "mla_kernel"),
    *("route_kernel", "count_kernel", "place_kernel", "gate_up_kernel", "down_kernel", "combine_kernel"),
}


def tokens_of(model):
    return torch.randint(0, model.config.vocab_size, (BATCH, PROMPT + STEPS))


def run_kernels(model, tokens, *, static):
    """Return logits, the names of the kernels that ran, and what the layers got and returned."""
    with interpret(arch="sm_90") as run, apply(model), record(model) as calls:
        logits = run_steps(model, tokens, PROMPT, static=static)
    return logits, {launch.kernel for launch in run.launches}, calls


@pytest.mark.parametrize(
    ("name", "static", "kernels"),
    [
        ("tiny-qwen2", False, DENSE | {"attention_decode_kernel"}),
        pytest.param("tiny-qwen2", True, DENSE | {"bounded_attention_decode_kernel"}, marks=pytest.mark.slow),
        pytest.param("tiny-llama", False, DENSE | {"attention_decode_kernel"}, marks=pytest.mark.slow),
        pytest.param("tiny-qwen3", True, DENSE | {"bounded_attention_decode_kernel"}, marks=pytest.mark.slow),
        pytest.param("tiny-deepseek-v2", False, LATENT | {"mla_decoding_kernel"}, marks=pytest.mark.slow),
        ("tiny-deepseek-v2", True, LATENT | {"bounded_mla_decoding_kernel"}),
    ],
)
def test_logits_are_as_near_to_float32_as_honest_ones(name, static, kernels, tiny):
    model = tiny(name)
    tokens = tokens_of(model)
    logits, ran, _ = run_kernels(model, tokens, static=static)
    assert ran == kernels
    exact, honest = run_exactly(model, tokens, PROMPT), run_honestly(model, tokens, PROMPT)
    checks = check_whole(exact, honest, logits)
    assert [check.phase for check in checks if check.is_right] == ["prefill", "decode"], [*map(str, checks)]


def test_fused_products_are_fewer_and_nearly_the_same(tiny):
    model, counts = tiny("tiny-qwen2"), list[int]()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts[-1] += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return func(*args, **(kwargs or {}))

    @torch.no_grad()
    def run(*, fuse_linear):
        counts.append(0)
        chosen = apply(model, rms_norm=False, attention=False, fuse_linear=fuse_linear)
        with interpret(arch="sm_90"), chosen, Count():
            return model(torch.arange(5)[None], use_cache=False).logits.float()

    assert nearly(run(fuse_linear=True), run(fuse_linear=False))
    assert counts[1] - counts[0] == 2 * (2 + 1)  # in each layer q, k and v are one, and gate and up


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-deepseek-v2"])
def test_each_layer_is_right_by_the_bounds_of_the_check(name, tiny):
    model = tiny(name)
    _, _, calls = run_kernels(model, tokens_of(model), static=True)
    checks = list(check_layers(model, calls))
    assert first_wrong(checks) is None
    parts = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    assert [(check.step, check.name) for check in checks] == [
        (step, f"model.layers.{layer}.{part}")
        for step in range(1 + STEPS)
        for layer in range(2)
        for part in parts
    ]


def nearly(logits, others):
    """Return whether logits, of a standard deviation of 2, differ by no more than roundings of 16 bits."""
    return (logits - others).abs().max() < 0.15


@pytest.mark.parametrize(("name", "static"), [("tiny-qwen2", False), ("tiny-deepseek-v2", True)])
def test_prompts_padded_on_the_left(name, static, tiny):
    model = tiny(name)
    tokens = tokens_of(model)
    mask = torch.ones_like(tokens)
    mask[0, :6] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)

    @torch.no_grad()
    def run():
        cache = make_cache(model, PROMPT + STEPS, static=static)
        pieces = [slice(0, PROMPT), *(slice(i, i + 1) for i in range(PROMPT, PROMPT + STEPS))]
        return torch.cat(
            [
                model(
                    tokens[:, piece],
                    attention_mask=mask[:, : piece.stop],
                    position_ids=positions[:, piece],
                    past_key_values=cache,
                ).logits
                for piece in pieces
            ],
            1,
        ).float()

    before = run()
    with interpret(arch="sm_90"), apply(model):
        logits = run()
    seen = mask.bool()
    assert nearly(logits[seen], before[seen])


@pytest.mark.parametrize(("name", "static"), [("tiny-qwen2", True), ("tiny-deepseek-v2", False)])
def test_a_prompt_in_two_pieces(name, static, tiny):
    model = tiny(name)
    tokens = tokens_of(model)

    @torch.no_grad()
    def run():
        cache = make_cache(model, PROMPT, static=static)
        pieces = (tokens[:, :9], tokens[:, 9:PROMPT])
        return torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], 1).float()

    before = run()
    with interpret(arch="sm_90"), apply(model):
        assert nearly(run(), before)


@pytest.mark.parametrize("implementation", ["dynamic", "static"])
def test_generate_works_as_before(implementation, tiny):
    model = tiny("tiny-qwen2")
    tokens = tokens_of(model)[:, :9]
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    options = {
        "attention_mask": mask,
        "max_new_tokens": 3,
        "do_sample": False,
        "pad_token_id": 0,
        "cache_implementation": implementation,
        "return_dict_in_generate": True,
        "output_logits": True,
        "disable_compile": True,
    }
    before = model.generate(tokens, **options)
    with interpret(arch="sm_90"), apply(model):
        after = model.generate(tokens, **options)
    assert nearly(after.logits[0], before.logits[0])
    assert torch.equal(after.sequences, before.sequences)


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("tiny-qwen2", {"rope", "rms_norm", "add_rms_norm", "swiglu", "attention_decode"}),
        pytest.param(
            "tiny-deepseek-v2",
            {"rope", "rms_norm", "add_rms_norm", "swiglu", "mla_decode", "moe_route", "moe_experts"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_step_of_decoding_is_one_graph(name, operators, tiny):
    model = tiny(name)
    tokens = tokens_of(model)
    cache = make_cache(model, PROMPT + STEPS, static=True)
    graphs = []

    class Captured(Exception):  # noqa: N818 - not an error
        pass

    def capture(graph, _inputs):
        graphs.append(graph)
        raise Captured

    with torch.no_grad(), apply(model):
        with interpret(arch="sm_90"):
            model(tokens[:, :PROMPT], past_key_values=cache)
        step = torch.compile(model, backend=capture, fullgraph=True)
        with pytest.raises(Exception, match="Captured"):
            step(tokens[:, PROMPT : PROMPT + 1], past_key_values=cache)
    called = {
        str(node.target).split(".")[1]
        for node in graphs[0].graph.nodes
        if "cutile_models" in str(node.target)
    }
    assert called == operators


def test_a_mask_of_all_pairs_is_refused(tiny):
    model = tiny("tiny-qwen2")
    tokens = tokens_of(model)[:, :3]
    with interpret(arch="sm_90"), apply(model), pytest.raises(ValueError, match="takes no mask of all pairs"):
        model(tokens, attention_mask=torch.ones(2, 1, 3, 3, dtype=torch.bool))
