"""The whole model beside honest implementations: what is compared, and what is wrong."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from models import operators
from models.check import Logits, check_whole, compare_logits, run_honestly, run_steps, verify, whole
from models.check.whole import in_float32
from models.contenders import ours, pytorch
from pytest_cutile.interpreter import interpret

pytestmark = pytest.mark.slow

TOKENS = torch.randint(0, 256, (2, 18), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("static", [False, True])
def test_logits_are_those_of_one_pass(qwen2, static):
    logits = run_steps(qwen2, TOKENS, 16, static=static)
    with torch.no_grad():
        together = qwen2(TOKENS).logits
    torch.testing.assert_close(logits.prefill, together[:, :16])
    torch.testing.assert_close(logits.decode, together[:, 16:])


def test_in_float32_all_honest_implementations_are_the_same(qwen2):
    before = qwen2.model.layers[0].mlp.up_proj.weight.clone()
    sdpa, *others = run_honestly(qwen2, TOKENS, 16).values()
    assert len(others) == 3
    for other in others:
        torch.testing.assert_close(vars(other), vars(sdpa))
    assert torch.equal(qwen2.model.layers[0].mlp.up_proj.weight, before)


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
    text = verify(tiny("tiny-qwen2"), TOKENS, 16, active=pytorch)
    assert text.startswith("prefill: KL divergence ")
    assert "; decode: KL divergence" in text
    assert text.endswith("(by sdpa, eager, sums in another order, no cache)")


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
        verify(model, TOKENS, 16, active=scaled)


def test_a_fault_of_decoding_alone_is_found_there(tiny, monkeypatch):
    monkeypatch.setattr(whole, "_where", lambda *_, **__: "somewhere")
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
        verify(model, TOKENS, 16, active=forgetful)


def check_of(logits, *, honest=0.1):
    """Check `logits`, `[positions, vocabulary]`, whose exact values are 0, beside an honest one."""
    exact = torch.zeros_like(logits)
    off = torch.zeros_like(logits)
    off[..., 0] = honest

    def both(values):
        return Logits(prefill=values, decode=values)

    return check_whole(both(exact), {"sdpa": both(off)}, both(logits))


def test_allowed_is_a_multiple_of_the_largest_divergence_of_honest_implementations():
    off = torch.zeros(6, 4)
    off[..., 0] = 0.1
    assert [check.is_right for check in check_of(1.5 * off)] == [
        True,
        True,
    ]  # the divergence grows with the square
    prefill, decode = check_of(1.7 * off)
    assert not prefill.is_right
    assert str(decode).startswith(
        "decode: KL divergence 0.00279 nats of 0.00238 allowed, 0.00279 of 0.286 at the worst position, top-1"
    )


def test_a_position_that_is_far_off_is_wrong_among_many():
    logits = torch.zeros(100, 4)
    logits[3, 2] = 0.5  # of another expert
    assert check_of(logits)[0].is_right
    logits[3, 2] = 2.0
    assert not check_of(logits)[0].is_right


def test_nan_is_wrong_at_one_position_of_many():
    logits = torch.zeros(6, 4)
    assert check_of(logits)[0].is_right
    logits[3, 2] = torch.nan
    check, _ = check_of(logits)
    assert not check.is_right
    assert "allowed, nan of " in str(check)


def test_another_likeliest_token_is_wrong_even_if_it_is_nearly_as_likely():
    logits = torch.zeros(100, 4)
    logits[:30, 1] = 0.01
    check, _ = check_of(logits)
    assert check.kernels.kl < check.allowed_kl
    assert not check.is_right
    assert "top-1 agreement 70% of at least 96%" in str(check)


def test_one_position_of_many_may_choose_another_expert():
    right = torch.randn(1, 32, 16, generator=torch.Generator().manual_seed(1))
    other = right.clone()
    other[0, 5] = other[0, 5].flip(0)
    assert compare_logits(right, other).kl == 0
    assert compare_logits(right, other).worst_kl > 0.5
    assert compare_logits(right, right.flip(-1)).kl > 0.5


def test_the_gate_catches_a_planted_fault_and_names_its_layer(tiny, monkeypatch):
    right = operators.rope
    monkeypatch.setattr(operators, "rope", lambda q, k, cos, sin, pairs: right(q, k, cos, sin, not pairs))
    with (
        interpret("sm_90"),
        pytest.raises(
            AssertionError, match=r"first wrong part is model\.layers\.0\.self_attn, in the prefill"
        ),
    ):
        verify(tiny("tiny-qwen2"), TOKENS, 16, active=ours)
