from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from models import agreement, operators
from models.agreement import divergence, forced_logits, in_float32, verify
from models.contenders import ours, pytorch
from models.counts import cache_bytes, parameters
from models.specs import SPECS
from models.weights import make_config
from pytest_cutile import ModelSpec
from pytest_cutile.interpreter import interpret

TOKENS = torch.randint(0, 256, (2, 18), generator=torch.Generator().manual_seed(3))


def test_logits_are_those_of_one_pass(qwen2):
    logits = forced_logits(qwen2, TOKENS, decoded=2)
    with torch.no_grad():
        whole = qwen2(TOKENS).logits
    torch.testing.assert_close(logits.prefill, whole[:, :16])
    torch.testing.assert_close(logits.decode, whole[:, 16:])


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-deepseek-v2"])
def test_a_model_runs_in_float32_without_a_second_one(name, tiny):
    model = tiny(name)
    before = {key: parameter.data_ptr() for key, parameter in model.named_parameters()}
    with in_float32(model), torch.no_grad():
        logits = model(TOKENS).logits
    assert logits.dtype == torch.float32
    assert {key: parameter.data_ptr() for key, parameter in model.named_parameters()} == before
    with torch.no_grad():
        assert model(TOKENS).logits.dtype == torch.bfloat16


def test_honest_models_agree(tiny):
    text = verify(tiny("tiny-qwen2"), TOKENS, decoded=2, active=pytorch)
    assert text.startswith("prefill: KL divergence ")
    assert "; decode: KL divergence" in text


@pytest.mark.slow
def test_a_scale_that_is_off_by_a_tenth_in_one_layer_is_found_there(tiny):
    model = tiny("tiny-qwen2")

    @contextmanager
    def scaled(model):
        attention = model.model.layers[1].self_attn
        before = attention.scaling
        attention.scaling = 1.1 * before
        yield model
        attention.scaling = before

    with pytest.raises(
        AssertionError, match=r"prefill.*the first wrong part is model\.layers\.1\.self_attn, in the prefill"
    ):
        verify(model, TOKENS, decoded=2, active=scaled)


def test_a_fault_of_decoding_alone_is_found_there(tiny, monkeypatch):
    monkeypatch.setattr(agreement, "_where", lambda *_, **__: "somewhere")
    model = tiny("tiny-qwen2")

    @contextmanager
    def forgetful(model):
        def forward(*args, past_key_values=None, **kwargs):
            output = type(model).forward(model, *args, past_key_values=past_key_values, **kwargs)
            if output.logits.shape[1] == 1:
                output.logits = output.logits.roll(1, dims=0)
            return output

        model.forward = forward
        yield model
        del model.forward

    with pytest.raises(AssertionError, match=r"decode: KL divergence.*; somewhere"):
        verify(model, TOKENS, decoded=2, active=forgetful)


def test_nan_is_wrong():
    assert not divergence(torch.zeros(1, 1, 4), torch.full((1, 1, 4), torch.nan)).kl <= 1.0


def test_one_position_of_many_may_choose_another_expert():
    right = torch.randn(1, 32, 16, generator=torch.Generator().manual_seed(1))
    other = right.clone()
    other[0, 5] = other[0, 5].flip(0)
    assert divergence(right, other).kl == 0
    assert divergence(right, right.flip(-1)).kl > 0.5


def test_counts_are_those_of_the_real_models():
    dense, experts, head = parameters("qwen2-7b")
    embedding = 152064 * 3584
    assert experts == 0
    assert head == embedding
    assert dense + head + embedding == 7_615_616_512  # Qwen/Qwen2-7B on the Hugging Face hub
    assert cache_bytes(make_config("deepseek-v2-lite")) == 27 * (512 + 64) * 2
    names = {spec.name: [case.name for case in spec.cases] for spec in SPECS}
    assert names["qwen2"] == ["tiny-prefill-2x16", "7b-prefill-16x4096", "7b-decode-16x4096"]
    for spec in SPECS:
        assert isinstance(spec, ModelSpec)
        tiny, prefill, decode = (spec.work_of(case) for case in spec.cases)
        assert tiny.flops < 5e9  # is interpreted unasked
        assert prefill.tokens == prefill.amounts["tokens/s"] > decode.tokens
        assert not decode.flops  # bound by memory
    # 16 billion parameters; a token uses 2.4 billion of them.
    dense, experts, head = parameters("deepseek-v2-lite")
    assert 15.4e9 < dense + experts + 2 * head < 16e9


@pytest.mark.slow
def test_the_gate_catches_a_planted_fault_and_names_its_layer(tiny, monkeypatch):
    wrong = operators.rope
    monkeypatch.setattr(operators, "rope", lambda q, k, cos, sin, pairs: wrong(q, k, cos, sin, not pairs))
    with (
        interpret("sm_90"),
        pytest.raises(
            AssertionError, match=r"first wrong part is model\.layers\.0\.self_attn, in the prefill"
        ),
    ):
        verify(tiny("tiny-qwen2"), TOKENS, decoded=2, active=ours)
