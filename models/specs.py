"""Language models under the gates of kernels: `pytest models --arch sm_90`.

A launch is one prefill, or one decode step behind a prompt that is in the cache. Its work counts tokens, so
speeds are in tokens/s. Tiny models have all features and run interpreted, where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from models.agreement import verify
from models.contenders import Active, ours
from models.generate import Generation
from models.memory import Footprint
from models.weights import build, make_config
from pytest_cutile import Case, ModelSpec, Work

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DECODED = 2
"""Tokens behind the prompt that are taken in one by one, to check decoding."""
CHECKED = 1
"""Prompts of a large batch that are checked."""


def inputs(make: Any, *, model: str, phase: str, batch: int, prompt: int) -> dict[str, Any]:
    """Return the model and its tokens `[batch, prompt + DECODED]`; of a decode step, with a filled cache."""
    vocab = make_config(model).vocab_size
    tokens = make((batch, prompt + DECODED), torch.int64, low=0, high=vocab)
    return {"model": _built(model, tokens.device), "tokens": tokens, "phase": phase}


_kept: dict[tuple[str, str], PreTrainedModel] = {}


def _built(name: str, device: torch.device) -> PreTrainedModel:
    """Return a model with random weights; the last one on a GPU is kept for the next case."""
    key = name, f"{device}"
    if key not in _kept:
        _kept.clear()
        model = build(name, device=device)
        if not torch.cuda.is_available():  # a tiny one, in the memory of one interpretation
            return model
        _kept[key] = model
    return _kept[key]
