"""Attention as an operator of PyTorch's, and the study of it with a pretended timer."""

import pytest
import torch

from kernels import fmha
from pytest_cutile.interpreter import interpret
from studies.attention_study import launching, operator
from studies.attention_study.operator import sdpa


def made(*shape, dtype=torch.float16):
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=dtype) for _ in range(3)]


def exact(q, k, v, **more):
    return fmha.reference(q.double(), k.double(), v.double(), **more)


# -- the operator -----------------------------------------------------------------------------------


def test_the_operator_launches_with_what_it_is_told():
    q, k, v = made(1, 2, 70, 96)
    with interpret(arch="sm_90") as run:
        out = sdpa(q, k, v, causal=True, scale=0.2, tile_m=32, tile_n=16, opt_level=2)
    torch.testing.assert_close(out.double(), exact(q, k, v, causal=True, scale=0.2), rtol=0, atol=2e-3)
    assert out.is_contiguous()
    assert [(launch.kernel, launch.grid) for launch in run.launches] == [("fmha_kernel", (6,))]


def test_float16_sums_are_a_kernel_of_their_own():
    q, k, v = made(1, 2, 40, 64)
    with interpret(arch="sm_90") as run:
        out = sdpa(q, k, v, accumulator="float16", synchronize="around")
    torch.testing.assert_close(out.double(), exact(q, k, v), rtol=0, atol=1e-2)
    assert [launch.kernel for launch in run.launches] == ["half_kernel"]


@pytest.fixture
def on_torch(monkeypatch):
    """Let the operator's launcher be PyTorch's attention; return the controls that it got."""
    got = []

    def attend(q, k, v, *, causal, scale, **controls):
        got.append(controls)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    monkeypatch.setattr(operator, "attend", attend)
    return got


def test_torch_compile_keeps_the_operator_whole(on_torch):
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=keep, fullgraph=True)
    def layer(q, k, v):
        return sdpa(q * 2, k, v, causal=True, tile_n=64) + 1

    q, k, v = made(1, 2, 33, 64, dtype=torch.bfloat16)
    expected = torch.nn.functional.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1
    torch.testing.assert_close(layer(q, k, v), expected)
    called = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert called.count(torch.ops.cutile.sdpa.default) == 1
    assert len(called) == 3
    assert on_torch[-1]["tile_n"] == 64


@pytest.mark.usefixtures("on_torch")
def test_the_operator_is_registered_as_pytorch_wants_it():
    none = [None] * 6
    args = (*made(1, 2, 8, 64), False, None, *none, "float32", "never")
    torch.library.opcheck(torch.ops.cutile.sdpa.default, args, test_utils=("test_schema", "test_faketensor"))


def test_the_fake_result_has_the_shape_of_the_queries():
    q, k = torch.empty(2, 8, 5, 96, device="meta"), torch.empty(2, 2, 7, 96, device="meta")
    out = sdpa(q, k, k)
    assert (out.shape, out.device.type) == (q.shape, "meta")
    with pytest.raises(RuntimeError, match="sdpa: v must have k's shape"):
        sdpa(q, k, q)


def test_controls_are_checked():
    q, k, v = made(1, 1, 8, 64)
    with pytest.raises(ValueError, match="accumulator must be one of float32, float16, got 'int8'"):
        launching.attend(q, k, v, accumulator="int8")
    with pytest.raises(ValueError, match="synchronize must be one of never, after, around, got 'often'"):
        launching.attend(q, k, v, synchronize="often")
    with pytest.raises(ValueError, match="the head dimension is at most 256, got 320"):
        launching.attend(*made(1, 1, 8, 320))
    with interpret(arch="sm_90"):
        with pytest.raises(ValueError, match=r"sums in float16 are for float16, got torch\.bfloat16"):
            launching.attend(*made(1, 1, 8, 64, dtype=torch.bfloat16), accumulator="float16")
        with pytest.raises(ValueError, match="sums in float16 need one shape"):
            launching.attend(q, k[:, :, :4], v[:, :, :4], accumulator="float16")


def test_tiles_of_ones_own_leave_hints_to_the_compiler():
    table = launching.choose_config("sm_90", head_dim=128, causal=False, keys=1024)
    assert (table.occupancy, table.num_worker_warps, table.opt_level) == (2, 4, 3)
    own = launching.choose_config("sm_90", head_dim=128, causal=False, keys=1024, tile_n=64, num_ctas=2)
    assert (own.tile_m, own.tile_n, own.occupancy, own.num_ctas) == (64, 64, None, 2)
