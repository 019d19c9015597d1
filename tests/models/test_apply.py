"""What `apply` replaces, gives back and refuses; no kernel runs here."""

import copy
import sys

import pytest
import torch

from models import apply, build
from models.errors import Unsupported
from models.patch.common import replace_norms
from models.patch.projections import project_together

DENSE = {
    "rms_norm": 5,
    "add_rms_norm": 2,
    "swiglu": 2,
    "rope": 2,
    "attention_prefill": 2,
    "attention_decode": 2,
}
COUNTS = {
    "tiny-qwen2": DENSE,
    "tiny-llama": DENSE,
    "tiny-qwen3": DENSE | {"rms_norm": 9},
    "tiny-deepseek-v2": {
        "rms_norm": 7,
        "add_rms_norm": 2,
        "rope": 2,
        "mla_prefill": 2,
        "mla_decode": 2,
        # A dense layer, and the shared experts of the other.
        "swiglu": 2,
        "moe_route": 1,
        "moe_experts": 1,
    },
}


@pytest.mark.parametrize(("name", "counts"), COUNTS.items())
def test_every_operation_of_every_layer_is_replaced(name, counts, tiny):
    with apply(tiny(name)) as replaced:
        assert replaced.counts == counts


def test_names_say_what_each_module_calls(tiny):
    with apply(tiny("tiny-qwen2")) as replaced:
        assert replaced.names["model.layers.1.mlp"] == ("swiglu",)
        assert replaced.names["model.layers.0.self_attn"] == ("rope", "attention_prefill", "attention_decode")
        assert replaced.names["model.norm"] == ("rms_norm",)


def state_of(model):
    return {name: dict(vars(module)) for name, module in model.named_modules()}


@pytest.mark.parametrize("name", COUNTS)
def test_restore_gives_everything_back(name, tiny):
    model = tiny(name)
    before, config = state_of(model), dict(vars(model.config))
    replaced = apply(model)
    assert state_of(model) != before
    replaced.restore()
    replaced.restore()
    assert state_of(model) == before
    assert vars(model.config) == config


def test_a_context_restores_after_an_error(tiny):
    model = tiny("tiny-qwen2")
    before = state_of(model)
    with pytest.raises(ZeroDivisionError), apply(model):
        raise ZeroDivisionError
    assert state_of(model) == before


def test_another_model_with_the_same_configuration_keeps_its_operations(tiny):
    model = tiny("tiny-qwen2")
    other = type(model)(model.config)
    before = state_of(other)
    with apply(model):
        assert state_of(other) == before
        assert other.config._attn_implementation == "sdpa"
        assert model.model.layers[0].self_attn.config._attn_implementation == "cutile"


@pytest.mark.parametrize(
    ("kept", "operators"),
    [
        ("rope", {"rope"}),
        ("rms_norm", {"rms_norm", "add_rms_norm"}),
        ("swiglu", {"swiglu"}),
        ("attention", {"mla_prefill", "mla_decode"}),
        ("moe", {"moe_route", "moe_experts"}),
    ],
)
def test_an_operation_can_be_left_as_it_is(kept, operators, tiny):
    model = tiny("tiny-deepseek-v2")
    with apply(model) as replaced:
        everything = set(replaced.counts)
    with apply(model, **{kept: False}) as replaced:
        assert set(replaced.counts) == everything - operators
        assert (model.config._attn_implementation == "cutile") == (kept != "attention")


# -- projections of the same input ------------------------------------------------------------------


def storages_of(model):
    return {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in model.parameters()}


@pytest.mark.parametrize("name", COUNTS)
def test_fused_weights_are_the_same_parameters_and_are_held_once(name):
    model = build(name)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    parameters, held = dict(model.named_parameters()), sum(storages_of(model).values())
    with apply(model):
        joined = storages_of(model)
        assert len(joined) < len(parameters)
        assert sum(joined.values()) == held
    assert storages_of(model) == joined
    with apply(model):  # moves nothing
        assert storages_of(model) == joined
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in parameters.items())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_model_with_fused_weights_is_saved_and_moved_as_any_other(tmp_path):
    model = build("tiny-qwen2")
    apply(model).restore()
    model.save_pretrained(tmp_path)
    loaded = build("tiny-qwen2", weights=str(tmp_path)).state_dict()
    assert all(torch.equal(weight, loaded[name]) for name, weight in model.state_dict().items())
    moved = model.half()
    with apply(moved):
        attention = moved.model.layers[0].self_attn
        x = torch.ones(1, 256, dtype=torch.float16)
        torch.testing.assert_close(attention.project(x)[1], attention.k_proj(x))


def test_queries_and_latents_of_deepseek_are_one_product(tiny):
    model = tiny("tiny-deepseek-v2")
    x = torch.randn(3, 128).bfloat16()
    with apply(model):
        attention = model.model.layers[0].self_attn
        q, latent = attention.project(x)
        assert q.untyped_storage().data_ptr() == latent.untyped_storage().data_ptr()
        torch.testing.assert_close(latent, attention.kv_a_proj_with_mqa(x))
        torch.testing.assert_close(q, attention.q_proj(x))


def test_without_fusing_no_weight_is_moved():
    model = build("tiny-llama")
    before = storages_of(model)
    with apply(model, fuse_linear=False):
        assert storages_of(model) == before
    with apply(model, attention=False, rope=False):
        attention = model.model.layers[0].self_attn
        assert attention.k_proj.weight.data_ptr() in before
        assert not hasattr(attention, "project")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_fused_product_is_that_of_each_layer(dtype, bias):
    layers = [torch.nn.Linear(48, n, bias=bias, dtype=dtype) for n in (64, 16, 16)]  # grouped queries
    x = torch.randn(2, 5, 48).to(dtype)
    expected = [layer(x) for layer in layers]
    for got, wanted in zip(project_together(layers, fuse=True)(x), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    assert len({layer.weight.untyped_storage().data_ptr() for layer in layers}) == 1


def test_layers_with_adapters_hooks_or_some_biases_keep_their_own_products():
    class Adapted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    hooked = torch.nn.Linear(4, 4)
    hooked.register_forward_hook(lambda _module, _args, output: output + 1)
    x = torch.randn(3, 4)
    for other in (Adapted(4, 4), hooked, torch.nn.Linear(4, 4, bias=False)):
        layers = [torch.nn.Linear(4, 2), other]
        fused = project_together(layers, fuse=True)(x)
        assert all(torch.equal(a, layer(x)) for a, layer in zip(fused, layers, strict=True))
        assert layers[0].weight.untyped_storage().nbytes() == 2 * 4 * 4


def test_without_a_gpu_the_first_kernel_says_how_it_is_interpreted(tiny, monkeypatch):
    def no_gpu():
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "get_device_capability", no_gpu)
    model = tiny("tiny-qwen2")
    with (
        apply(model),
        pytest.raises(RuntimeError, match=r"rms_norm: there is no GPU .*interpreter\.interpret\(arch\)"),
    ):
        model(torch.arange(3)[None])


# -- refused ----------------------------------------------------------------------------------------


def refuse(model, message, **choices):
    before = state_of(model)
    with pytest.raises(Unsupported, match=message):
        apply(model, **choices)
    assert state_of(model) == before


def test_another_version_of_transformers(monkeypatch, tiny):
    monkeypatch.setattr(sys.modules["models.replaced"], "TESTED_VERSIONS", ("4.57.0",))
    refuse(tiny("tiny-qwen2"), r"tested with transformers 4\.57\.0, and this is 5\.17\.0")


def test_another_architecture():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9))
    refuse(
        model.eval(),
        r"gpt2\.modeling_gpt2\.GPT2LMHeadModel is not supported; supported are .*LlamaForCausalLM",
    )


def test_a_class_of_the_same_name_from_elsewhere(tiny):
    model = tiny("tiny-qwen2")
    remote = copy.copy(model)
    remote.__class__ = type("Qwen2ForCausalLM", (type(model),), {"__module__": "transformers_modules.remote"})
    refuse(remote, r"transformers_modules\.remote\.Qwen2ForCausalLM is not supported")


def test_quantised_weights():
    model = build("tiny-llama")
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    refuse(model, "quantised weights are not supported .method bitsandbytes.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_another_dtype(dtype):
    model = build("tiny-llama").to(dtype)
    refuse(model, f"embed_tokens.weight has dtype {dtype}; supported are float16 and bfloat16")


def test_weights_of_two_dtypes():
    model = build("tiny-llama")
    model.model.layers[1].mlp.half()
    refuse(
        model, r"model\.layers\.1\.mlp\.gate_proj\.weight is torch\.float16 on cpu, but model\.embed_tokens"
    )


def test_a_model_in_training():
    refuse(build("tiny-llama").train(), r"training mode, .*model\.eval")


def test_a_model_that_has_kernels_already(tiny):
    model = tiny("tiny-qwen2")
    with apply(model, attention=False):
        refuse(model, "were replaced before")


def changed(name, **fields):
    from transformers import AutoModelForCausalLM

    from models.weights import CONFIGS, make_config

    config = make_config(name)
    for field, value in fields.items():
        assert field in CONFIGS[name] or hasattr(config, field)
        setattr(config, field, value)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def test_heads_of_other_dimensions():
    refuse(
        changed("tiny-qwen3", head_dim=32),
        r"layers\.0\.self_attn have 32 dimensions; supported are 64, 128, 256",
    )


def test_a_sliding_window():
    model = changed("tiny-qwen2", sliding_window=8, layer_types=["full_attention", "sliding_attention"])
    refuse(model, r"layers\.1\.self_attn has a sliding window, of 8 tokens")
    apply(model, attention=False).restore()


def test_another_activation():
    refuse(changed("tiny-llama", hidden_act="gelu"), "swiglu: the model's activation is 'gelu'")
    refuse(
        changed("tiny-deepseek-v2", hidden_act="gelu"), "moe: the model's activation is 'gelu'", swiglu=False
    )


@pytest.mark.parametrize(
    ("field", "value", "supported"),
    [
        ("kv_lora_rank", 64, "128, 256, 512"),
        ("v_head_dim", 64, "128"),
        ("qk_nope_head_dim", 64, "128"),
    ],
)
def test_latent_attention_of_other_sizes(field, value, supported):
    refuse(changed("tiny-deepseek-v2", **{field: value}), f"{field} is {value}; supported are {supported}")


def test_experts_chosen_by_groups():
    model = changed("tiny-deepseek-v2", topk_method="group_limited_greedy")
    refuse(model, "experts are chosen by 'group_limited_greedy'; only greedy is supported")


def test_rows_too_long_for_the_norm():
    class WideRMSNorm(torch.nn.Module):
        weight = torch.ones(16385)

    with pytest.raises(Unsupported, match="norm normalises rows of 16385; at most 16384 are supported"):
        list(replace_norms({"norm": WideRMSNorm()}))
