"""Faults planted between a model and its kernels: the whole is wrong, and the first wrong layer is named."""

import pytest
import torch

from models import apply, operators
from models.check import (
    FACTOR,
    check_layers,
    check_whole,
    first_wrong,
    record,
    run_exactly,
    run_honestly,
    run_steps,
)
from models.generate import Generation
from pytest_cutile.tile.interpreter.api import interpret

pytestmark = pytest.mark.slow
PROMPT, STEPS = 9, 1


def other_convention(rope):
    return lambda q, k, cos, sin, interleaved: rope(q, k, cos, sin, not interleaved)


def no_scale(attend):
    return lambda *args: attend(*args[:-1], 1.0)


def swapped_experts(experts):
    swap = torch.tensor([1, 0, 2, 3, 4, 5, 6, 7], dtype=torch.int32)
    return lambda x, w1, w2, weights, ids: experts(x, w1, w2, weights, swap[ids.long()])


def one_key_too_few(attend):
    return lambda *args: attend(*args[:-2], args[-2] - torch.tensor([0, 1], dtype=torch.int32), args[-1])


def no_residual(norm):
    return lambda x, residual, weight, eps: (norm(x, torch.zeros_like(x), weight, eps)[0], x + residual)


def swapped_halves(swiglu):
    return lambda gate, up: swiglu(up, gate)


@pytest.mark.parametrize(
    ("name", "operator", "fault", "layer", "step"),
    [
        ("tiny-qwen2", "rope", other_convention, "model.layers.0.self_attn", 0),
        ("tiny-qwen2", "attention_prefill", no_scale, "model.layers.0.self_attn", 0),
        ("tiny-qwen2", "attention_decode", one_key_too_few, "model.layers.0.self_attn", 1),
        ("tiny-qwen2", "add_rms_norm", no_residual, "model.layers.0.post_attention_layernorm", 0),
        ("tiny-qwen2", "swiglu", swapped_halves, "model.layers.0.mlp", 0),
        ("tiny-deepseek-v2", "rope", other_convention, "model.layers.0.self_attn", 0),
        ("tiny-deepseek-v2", "mla_decode", no_scale, "model.layers.0.self_attn", 1),
        ("tiny-deepseek-v2", "mla_decode", one_key_too_few, "model.layers.0.self_attn", 1),
        ("tiny-deepseek-v2", "moe_experts", swapped_experts, "model.layers.1.mlp", 0),
    ],
)
def test_a_fault_is_found_in_the_layer_that_has_it(name, operator, fault, layer, step, monkeypatch, tiny):
    model = tiny(name)
    tokens = torch.randint(0, model.config.vocab_size, (2, PROMPT + STEPS))
    monkeypatch.setattr(operators, operator, fault(getattr(operators, operator)))
    with interpret(arch="sm_90"), apply(model), record(model) as calls:
        logits = run_steps(model, tokens, PROMPT, static=True)
    wrong = first_wrong(check_layers(model, calls))
    assert wrong is not None
    assert (wrong.name, wrong.step) == (layer, step)

    prefill, decode = check_whole(
        run_exactly(model, tokens, PROMPT), run_honestly(model, tokens, PROMPT), logits
    )
    assert prefill.is_right == (step == 1)
    faulty = decode if step else prefill
    assert not faulty.is_right
    # Far from where the limit is.
    assert faulty.kernels.kl > 10 * FACTOR * max(divergence.kl for divergence in faulty.honest.values())


def one_key_too_many(attend):
    return lambda *args: attend(*args[:-2], args[-2] + torch.tensor([0, 1], dtype=torch.int32), args[-1])


@pytest.mark.parametrize(
    ("name", "operator", "fault"),
    [
        ("tiny-qwen2", "attention_decode", None),
        ("tiny-qwen2", "attention_decode", one_key_too_few),
        ("tiny-qwen2", "attention_decode", one_key_too_many),
        ("tiny-deepseek-v2", "mla_decode", one_key_too_few),
    ],
)
def test_a_key_more_or_less_is_seen_behind_a_long_prompt(name, operator, fault, monkeypatch, tiny):
    model, prompt = tiny(name), 384
    generation = Generation(model, torch.randint(0, model.config.vocab_size, (1, prompt)), new_tokens=2)
    generation.prefill()
    if fault is not None:
        monkeypatch.setattr(operators, operator, fault(getattr(operators, operator)))
    with interpret(arch="sm_90"), apply(model), record(model, {0}, loud_ends=True) as calls:
        generation.step()
    checks = [*check_layers(model, [call for call in calls if call.name.endswith("self_attn")])]
    assert [check.problem is not None for check in checks] == [fault is not None]
