"""Language models under the gates of kernels: `pytest models --arch sm_90`.

Collecting this module imports neither torch nor transformers: functions do.

A launch is one prefill, or one decode step behind prompts that are in the cache. Its work counts tokens, so
speeds are in tokens/s. Tiny models have all features of the real ones, and run interpreted without a GPU.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from models.contenders import ours
from pytest_cutile import Case, ModelSpec, Work

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from models.generate import Generation

if find_spec("transformers") is None:
    pytest.skip("pip install 'pytest-cutile[models]'", allow_module_level=True)

FURTHER, FURTHER_OF_TINY = 50, 8
"""Tokens behind the prompt: a check takes them in one by one. Tiny models run interpreted."""
CHECKED_BATCH = 2
"""Prompts that are checked of a larger batch."""

_built: dict[tuple[str, str], PreTrainedModel] = {}


def build_once(name: str, device: torch.device) -> PreTrainedModel:
    """Build a model with random weights, or return it if it is the last one that was built on the GPU."""
    import torch

    from models.weights import build

    key = name, f"{device}"
    if key in _built:
        return _built[key]
    _built.clear()
    model = build(name, device=device)
    if torch.cuda.is_available() and not name.startswith("tiny-"):
        _built[key] = model  # of an interpreted model, parameters are of one test
    return model


def inputs(make: Any, *, model: str, phase: str, batch: int, prompt: int) -> dict[str, Any]:
    """Return a model, the prompts' length, tokens of prompts and `FURTHER`, and to decode a filled cache."""
    import torch

    from models.generate import Generation
    from models.weights import make_config

    further = FURTHER_OF_TINY if model.startswith("tiny-") else FURTHER
    tokens = make((batch, prompt + further), torch.int64, low=0, high=make_config(model).vocab_size)
    built, generation = build_once(model, tokens.device), None
    if phase == "decode":
        generation = Generation(built, tokens[:, :prompt], new_tokens=further)
        generation.prefill()
    return {"model": built, "prompt": prompt, "tokens": tokens, "generation": generation}


def launch(
    *, model: PreTrainedModel, prompt: int, tokens: torch.Tensor, generation: Generation | None
) -> torch.Tensor:
    """Take the prompts in, or decode one token behind them, by our kernels.

    Returns:
        The last token's logits, `[batch, vocab]`.
    """
    import torch
    from transformers import DynamicCache

    with ours(model), torch.no_grad():
        if generation is not None:
            generation.rewind()
            generation.step()
            return generation.logits
        output = model(
            input_ids=tokens[:, :prompt],
            past_key_values=DynamicCache(config=model.config),
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def verify(
    *, model: PreTrainedModel, prompt: int, tokens: torch.Tensor, generation: Generation | None
) -> str:
    """Compare the logits of prefill and decoding with those of the model in float32."""
    from models import check

    del generation
    return check.verify(model, tokens[:CHECKED_BATCH], prompt, active=ours)


def work(*, model: str, phase: str, batch: int, prompt: int) -> Work:
    from models.counts import decode_work, prefill_work

    return (prefill_work if phase == "prefill" else decode_work)(model, batch=batch, prompt=prompt)


def case(model: str, phase: str, *, batch: int, prompt: int) -> Case:
    size = model.partition("-")[0] if model.startswith("tiny-") else model.rpartition("-")[2]
    return Case(
        name=f"{size}-{phase}-{batch}x{prompt}",
        params={"model": model, "phase": phase, "batch": batch, "prompt": prompt},
        speed=not model.startswith("tiny-"),
        min_arch="sm_80",  # bfloat16
    )


def spec(name: str, cases: list[Case]) -> ModelSpec:
    return ModelSpec(name=name, launch=launch, inputs=inputs, verify=verify, work=work, cases=cases)


SPECS = [
    spec(
        "qwen2",
        [
            case("tiny-qwen2", "prefill", batch=2, prompt=16),
            case("qwen2-7b", "prefill", batch=16, prompt=4096),
            case("qwen2-7b", "decode", batch=16, prompt=4096),
        ],
    ),
    spec(
        "deepseek_v2",
        [
            case("tiny-deepseek-v2", "prefill", batch=2, prompt=16),
            case("deepseek-v2-lite", "prefill", batch=1, prompt=2048),
            case("deepseek-v2-lite", "decode", batch=1, prompt=2048),
        ],
    ),
]
