"""Models by name: their real configurations, and random weights that keep activations realistic."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers.initialization import no_init_weights

from models.errors import DoesNotFit, Unsupported

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_QWEN2 = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 1e6}}
_QWEN3 = {**_QWEN2, "model_type": "qwen3", "head_dim": 128}
_LLAMA = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_DEEPSEEK_V2 = {
    "model_type": "deepseek_v2",
    "rms_norm_eps": 1e-6,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
}
_TINY = {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 256, "max_position_embeddings": 131072}
_TINY_DENSE = {**_TINY, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}

CONFIGS: dict[str, dict[str, Any]] = {
    # config.json of Qwen/Qwen2-7B on the Hugging Face hub.
    "qwen2-7b": {
        **_QWEN2,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    },
    # config.json of deepseek-ai/DeepSeek-V2-Lite.
    "deepseek-v2-lite": {
        **_DEEPSEEK_V2,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "vocab_size": 102400,
    },
    # config.json of meta-llama/Llama-3.1-8B.
    "llama-3.1-8b": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    # config.json of Qwen/Qwen3-8B.
    "qwen3-8b": {
        **_QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_position_embeddings": 40960,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
    },
    # Two layers with all features of the real ones, small enough to be interpreted on a CPU.
    "tiny-qwen2": {**_QWEN2, **_TINY_DENSE, "hidden_size": 256},
    "tiny-qwen3": {**_QWEN3, **_TINY_DENSE, "head_dim": 64},
    "tiny-llama": {**_LLAMA, **_TINY_DENSE, "hidden_size": 256},
    "tiny-deepseek-v2": {
        **_DEEPSEEK_V2,
        **_TINY,
        "max_position_embeddings": 163840,
        "intermediate_size": 192,
        "kv_lora_rank": 128,
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "num_attention_heads": 2,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
    },
}
"""Fields of each model's configuration, as transformers calls them; others have its defaults."""


DTYPES = ("BF16", "F16", "F32")
"""Of stored weights, as safetensors calls them."""


def make_config(name: str) -> PreTrainedConfig:
    """Return the configuration of the model `name`.

    Raises:
        ValueError: There is no such model.
    """
    if name not in CONFIGS:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(CONFIGS)}")
    fields = dict(CONFIGS[name])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), tie_word_embeddings=False, **fields)
    config.use_cache = True
    return config


def build(
    name: str,
    *,
    weights: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    attn_implementation: str = "sdpa",
) -> PreTrainedModel:
    """Make the model `name` on `device`, ready for inference.

    Random weights depend on `seed`, the parameter's name and the kind of device (CPU or GPU) alone.

    Args:
        name: A key of `CONFIGS`.
        weights: A folder, or a model's id on the Hugging Face hub, with real weights of that architecture; by
            default weights are random (`fill`).
        device: Where the weights are made.
        dtype: Of all weights.
        seed: Of random weights.
        attn_implementation: transformers' name of the attention of the model as it is built.

    Raises:
        ValueError: There is no such model, or `weights` are of another architecture or size, or not complete.
        Unsupported: `weights` are quantised, or of another dtype than `DTYPES`.
        DoesNotFit: The GPU has not enough memory for the weights.
    """
    config = make_config(name)
    try:
        model = _build(config, name, weights, torch.device(device), dtype, seed, attn_implementation)
    except torch.OutOfMemoryError as error:
        with torch.device("meta"):
            sizes = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        needed = sum(parameter.nbytes for parameter in sizes.parameters()) / 1e9
        free, total = (count / 1e9 for count in torch.cuda.mem_get_info())
        raise DoesNotFit(
            f"out of memory: the weights take {needed:.1f} GB; of {total:.1f} GB, {free:.1f} are free"
        ) from error
    return model.eval()


def _build(
    config: PreTrainedConfig,
    name: str,
    weights: str | None,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    attn_implementation: str,
) -> PreTrainedModel:
    if weights is None:
        with torch.device(device), no_init_weights():
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attn_implementation
            )
        fill(model, seed)
    else:
        if Path(weights).is_absolute() and not Path(weights).is_dir():
            raise ValueError(f"there is no folder {weights}")
        stored_config = transformers.AutoConfig.from_pretrained(weights)
        if stored_config.model_type != config.model_type:
            raise ValueError(
                f"{weights} is of the architecture {stored_config.model_type}, "
                f"but {name} is {config.model_type}"
            )
        refuse_quantised(stored_config)
        refuse_another_size(stored_config, config, weights, name)
        refuse_dtypes(Path(weights))
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            weights,
            config=stored_config,
            dtype=dtype,
            attn_implementation=attn_implementation,
            output_loading_info=True,
        )
        model, report = loaded
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"{weights} lacks {len(missing)} of the weights of {name}, such as {missing[0]}")
        model.to(device)
    made: PreTrainedModel = model
    return made


def refuse_quantised(config: Any) -> None:
    """Raise Unsupported if a configuration is that of a quantised model."""
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None:
        method = getattr(quantised, "quant_method", None) or dict(quantised).get("quant_method", "unknown")
        raise Unsupported(
            f"quantised weights are not supported (method {method}); load the model in bfloat16"
        )


def refuse_another_size(stored_config: Any, config: Any, weights: str, name: str) -> None:
    """Raise ValueError if a configuration is not of the size of the model `name`."""
    for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        got, expected = getattr(stored_config, field), getattr(config, field)
        if got != expected:
            raise ValueError(f"{weights} is not {name}: its {field} is {got}, not {expected}")


def refuse_dtypes(folder: Path) -> None:
    """Raise Unsupported if a folder has weights of other dtypes than `DTYPES`: loading would convert them."""
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, "pt") as weights:
                dtypes = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{file} is not whole: {error}") from error
        for name, dtype in dtypes.items():
            if dtype not in DTYPES:
                raise Unsupported(
                    f"{file}: {name} is stored as {dtype}, which is not supported; supported are "
                    f"{', '.join(DTYPES)}"
                )


@torch.no_grad()
def fill(model: PreTrainedModel, seed: int) -> None:
    """Fill all parameters with random numbers, of a scale that keeps activations as in a trained model.

    A projection keeps the variance of what it gets. Those that write to the residual stream are smaller, so
    that its variance at most doubles over all layers. Then scores of attention, logits of experts and logits
    of tokens have a standard deviation of 1 to 2: no softmax is flat, and none is a single peak.
    """
    residual_gain = (2 * model.config.num_hidden_layers) ** -0.5
    for name, parameter in model.named_parameters():
        generator = torch.Generator(parameter.device).manual_seed(seed ^ zlib.crc32(name.encode()))
        if parameter.ndim == 1:
            # A norm's weight about 1, a bias about 0.
            parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.1, generator=generator)
            continue
        gain = _GAINS.get(name.removesuffix(".weight").rpartition(".")[2], 1.0)
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
            gain = residual_gain
        fan_in = 1 if "embed_tokens" in name else parameter.shape[-1]
        parameter.normal_(0.0, gain * fan_in**-0.5, generator=generator)


_GAINS = {"q_proj": 1.5, "gate": 1.5, "lm_head": 2.0}
"""Of queries, the router and the output, whose products are logits of a softmax; by the module's name."""
