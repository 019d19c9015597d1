from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

transformers = pytest.importorskip("transformers")


class _NoReads(TorchDispatchMode):
    """Raises where an operation reads a value of a tensor back to the host, as a GPU would have to wait."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError(f"{func} waits for the GPU")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_reads_by_host() -> Iterator[None]:
    with _NoReads():
        yield


def tiny_qwen2(seed: int = 0, **changes):
    config = transformers.Qwen2Config(
        **{
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 128,
            "max_position_embeddings": 256,
            **changes,
        }
    )
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


@pytest.fixture
def qwen2():
    return tiny_qwen2()
