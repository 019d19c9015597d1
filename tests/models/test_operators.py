"""Operators say of shapes and strides what the kernels return, and merge sequences and pieces rightly."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from kernels import fmha
from models import operators
from pytest_cutile.tile.interpreter.api import interpret


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape).to(dtype)


def inside(*shape):
    """Make `[B, H, S, D]` as projections leave it: `[B, S, H, D]` in memory."""
    b, h, s, d = shape
    return normal(b, s, h, d).transpose(1, 2)


BOUNDS = torch.tensor([[0, 5], [3, 9]], dtype=torch.int32)
CALLS = {
    "rope": (inside(2, 2, 5, 64), inside(2, 1, 5, 64), normal(1, 5, 32), normal(1, 5, 32), False),
    "rope-positions": (inside(2, 2, 3, 64), inside(2, 1, 3, 64), normal(2, 3, 32), normal(2, 3, 32), True),
    "rope-fused": (
        *(
            each.unflatten(-1, (-1, 64)).transpose(1, 2)
            for each in normal(2, 5, 6 * 64).split([256, 128], -1)
        ),
        *(normal(1, 5, 32), normal(1, 5, 32), False),
    ),
    "rms_norm": (normal(2, 3, 64), normal(64), 1e-6),
    "add_rms_norm": (normal(2, 3, 64), normal(2, 3, 64), normal(64), 1e-6),
    "swiglu": (normal(2, 3, 40), normal(2, 3, 40)),
    "swiglu-fused": normal(2, 3, 80).split(40, -1),
    "attention_prefill": (inside(2, 2, 5, 64), inside(2, 1, 9, 64), inside(2, 1, 9, 64), None, 0.1),
    "attention_decode": (inside(2, 2, 1, 64), normal(2, 1, 9, 64), normal(2, 1, 9, 64), BOUNDS, 0.1),
    "mla_prefill": (
        *(inside(1, 2, 4, 128), inside(1, 2, 4, 64)),
        *(inside(1, 2, 4, 128), normal(1, 1, 4, 64), inside(1, 2, 4, 128), None, 0.1),
    ),
    "mla_decode": (normal(2, 2, 128), normal(2, 2, 64), normal(2, 9, 128), normal(2, 9, 64), BOUNDS, 0.1),
    "moe_route": (normal(5, 8, dtype=torch.float32), 2),
    "moe_experts": (
        *(normal(3, 32), normal(4, 32, 32), normal(4, 32, 16), torch.rand(3, 2)),
        torch.tensor([[0, 3], [1, 0], [3, 2]], dtype=torch.int32),
    ),
}


def test_all_operators_are_tested():
    assert {name.partition("-")[0] for name in CALLS} == set(operators.NAMES)


@pytest.mark.parametrize("name", CALLS)
def test_fake_results_are_like_real_ones(name):
    operator = getattr(torch.ops.cutile_models, name.partition("-")[0])
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = operator(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in CALLS[name]))
    with interpret(arch="sm_90"):
        real = operator(*CALLS[name])
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (fake, real)), strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def test_rope_turns_each_sequence_by_its_own_positions():
    q, k, cos, sin, interleaved = CALLS["rope-positions"]
    with interpret(arch="sm_90"):
        together = operators.rope(q, k, cos, sin, interleaved)
        for i in range(2):
            one = slice(i, i + 1)
            alone = operators.rope(q[one], k[one], cos[one], sin[one], interleaved)
            assert torch.equal(together[0][one], alone[0])
            assert torch.equal(together[1][one], alone[1])


@pytest.mark.parametrize(
    "bounds",
    [
        [[0, 9], [0, 9]],  # after other tokens
        [[0, 7], [0, 7]],  # of a cache that is not full
        [[6, 9], [1, 9]],  # padded, within the new tokens and before them
        [[3, 5], [0, 5]],  # padded, without tokens before
    ],
)
def test_prefill_sees_what_is_within_bounds(bounds):
    q, k, v = inside(2, 2, 5, 64), inside(2, 1, 9, 64), inside(2, 1, 9, 64)
    with interpret(arch="sm_90"):
        o = operators.attention_prefill(q, k, v, torch.tensor(bounds, dtype=torch.int32), 0.2).transpose(1, 2)
    for i, (first, end) in enumerate(bounds):
        hidden = max(0, first - (end - 5))
        queries = torch.zeros(1, 2, end - first, 64, dtype=torch.float64)
        queries[:, :, -(5 - hidden) :] = q[i : i + 1, :, hidden:]
        pair = (x[i : i + 1, :, first:end].double() for x in (k, v))
        exact = fmha.reference(queries, *pair, causal=True, scale=0.2)[:, :, -(5 - hidden) :]
        assert torch.allclose(o[i : i + 1, :, hidden:].double(), exact, atol=2**-7, rtol=2**-7)
        assert not o[i, :, :hidden].any()


def test_the_module_of_another_revision_has_operators_of_its_own(tmp_path):
    file = tmp_path / "operators.py"
    file.write_text(Path(operators.__file__).read_text())
    other = runpy.run_path(str(file))
    assert operators.NAMESPACE == "cutile_models"
    assert re.fullmatch("cutile_models_[0-9a-f]{8}", other["NAMESPACE"])
    assert operators.rope._qualname == "cutile_models::rope"
    assert other["rope"]._qualname == f"{other['NAMESPACE']}::rope"
