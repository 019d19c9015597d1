"""Models by name, their configurations and random weights."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from models import build, weights
from models.errors import DoesNotFit, Unsupported
from models.weights import CONFIGS, make_config

NAME = "model.layers.1.mlp.up_proj.weight"
TINY = [name for name in CONFIGS if name.startswith("tiny")]
REAL_SIZES = {  # billions of parameters, as the models' cards say
    "qwen2-7b": 7.6,
    "deepseek-v2-lite": 15.7,
    "llama-3.1-8b": 8.0,
    "qwen3-8b": 8.2,
}


@pytest.mark.parametrize(("name", "billions"), REAL_SIZES.items())
def test_a_real_model_has_as_many_parameters_as_its_card_says(name, billions):
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(make_config(name))
    assert sum(weights.numel() for weights in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize("name", TINY)
def test_activations_and_logits_keep_their_scale(name, tiny):
    model = tiny(name)
    tokens = torch.randint(0, model.config.vocab_size, (2, 24))
    result = model(tokens, output_hidden_states=True)
    for hidden in result.hidden_states:
        assert 0.7 < hidden.float().std() < 1.5
    assert 1.5 < result.logits.float().std() < 2.5


def test_routing_uses_all_experts_and_is_not_flat(tiny):
    model = tiny("tiny-deepseek-v2")
    chosen = []
    gate = model.model.layers[1].mlp.gate
    handle = gate.register_forward_hook(lambda _module, _args, output: chosen.append(output))
    model(torch.randint(0, model.config.vocab_size, (2, 64)))
    handle.remove()
    (_, weights, ids) = chosen[0]
    assert len(ids.unique()) == model.config.n_routed_experts
    assert 0.4 < weights.sum(1).mean() < 0.95  # two of eight: 0.25 if all were alike


def test_weights_depend_on_the_seed_alone():
    one, same, other = (build("tiny-llama", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_real_weights_are_loaded(tmp_path):
    saved = build("tiny-qwen3", seed=3)
    saved.save_pretrained(tmp_path)
    loaded = build("tiny-qwen3", weights=str(tmp_path))
    assert torch.equal(loaded.lm_head.weight, saved.lm_head.weight)
    assert not loaded.training
    with pytest.raises(ValueError, match="is of the architecture qwen3, but qwen2-7b is qwen2"):
        build("qwen2-7b", weights=str(tmp_path))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda w: w.update({NAME: w[NAME].to(torch.float8_e5m2)}), Unsupported, f"{NAME} is stored as F8"),
        (lambda w: w.update({NAME: w[NAME].to(torch.int8)}), Unsupported, f"{NAME} is stored as I8"),
        (lambda w: w.pop(NAME), ValueError, f"lacks 1 of the weights of tiny-qwen3, such as {NAME}"),
    ],
)
def test_weights_that_would_be_converted_or_made_up_are_refused(tmp_path, change, error, message):
    build("tiny-qwen3").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    changed = load_file(file)
    change(changed)
    save_file(changed, file, metadata={"format": "pt"})
    with pytest.raises(error, match=message):
        build("tiny-qwen3", weights=str(tmp_path))


def test_half_a_file_and_a_model_of_another_size_are_refused(tmp_path):
    build("tiny-qwen3").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is not qwen3-8b: its hidden_size is 128, not 4096"):
        build("qwen3-8b", weights=str(tmp_path))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors is not whole"):
        build("tiny-qwen3", weights=str(tmp_path))


def test_quantised_weights_are_refused_before_they_are_loaded(tmp_path):
    config = make_config("tiny-llama")
    config.quantization_config = {"quant_method": "fp8"}
    config.save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=r"quantised weights are not supported .method fp8."):
        build("tiny-llama", weights=str(tmp_path))


def test_weights_that_do_not_fit_say_how_much_they_take(monkeypatch):
    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(weights, "fill", exhausted)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2_000_000, 9_000_000))
    monkeypatch.setitem(CONFIGS, "tiny-llama", {**CONFIGS["tiny-llama"], "vocab_size": 10**5})
    with pytest.raises(DoesNotFit, match=r"the weights take 0\.1 GB; of 0\.0 GB, 0\.0 are free"):
        build("tiny-llama")


def test_unknown_models_are_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="unknown model 'qwen'; known are qwen2-7b, deepseek-v2-lite"):
        build("qwen")
