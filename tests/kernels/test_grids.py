"""Launches as large as can be, and one block larger: traced, on tensors without memory."""

import math
from dataclasses import replace

import pytest

from kernels import (
    _attention,
    _launch,
    attention_decode,
    bmm,
    dropout,
    fmha,
    group_gemm,
    matmul,
    mla,
    mla_decoding,
    moe,
    moe_routing,
    rms_norm,
    rope,
    silu_and_mul,
    softmax,
    swiglu,
)
from kernels._division import DIVIDEND_BITS
from pytest_cutile.tile.compiler import pretend_gpu, record_launches
from pytest_cutile.tile.compiler.trace import launches as trace

torch = pytest.importorskip("torch")

MOST = 2**24 - 1
E4M3 = torch.float8_e4m3fn
FP16 = torch.float16


def gpu(*shape, dtype=FP16):
    return torch.empty(shape, dtype=dtype, device="cuda")


def rows_apart(m, n):
    return gpu(m, n + 8)[:, :n]


def run_moe(tokens, inner=8, hidden=8, *, config=None):
    ids = gpu(tokens, 1, dtype=torch.int32)
    weights = gpu(1, 2 * inner, hidden), gpu(1, hidden, inner)
    return moe.moe(gpu(tokens, hidden), *weights, gpu(tokens, 1), ids, config=config)


def run_rope(batch, heads, heads_kv, tokens=3):
    return rope.rope(gpu(batch, heads, tokens, 8), gpu(batch, heads_kv, tokens, 8), *[gpu(tokens, 4)] * 2)


def run_fmha(batch, h_kv, *, h=None, config=None, dtype=FP16, n=1):
    kv = gpu(batch, h_kv, n, 64, dtype=dtype)
    return fmha.fmha(gpu(batch, h or h_kv, 1, 64, dtype=dtype), kv, kv, config=config)


def run_mla(batch, heads):
    q, q_pe, k_pe = gpu(batch, heads, 1, 128), gpu(batch, heads, 1, 64), gpu(batch, 1, 1, 64)
    return mla.mla(q, q_pe, q, k_pe, q)


def run_attention_decode(batch, heads, heads_kv, keys=1, *, config=None):
    kv = gpu(batch, heads_kv, keys, 64)
    return attention_decode.attention_decode(gpu(batch, heads, 64), kv, kv, config=config)


def run_mla_decoding(batch, heads):
    q, qpe, kv, kpe = gpu(batch, heads, 128), gpu(batch, heads, 64), gpu(batch, 1, 128), gpu(batch, 1, 64)
    return mla_decoding.mla_decoding(q, qpe, kv, kpe, scale=0.1)


SMALL = matmul.MatmulConfig(tile_m=16, tile_n=16, tile_k=16)
SMALL_GROUPS = group_gemm.GroupGemmConfig(tile_m=16, tile_n=16, tile_k=16)
FEW_TOKENS = moe.choose_config("sm_80", rows_per_expert=1)


@pytest.mark.parametrize(
    ("launch", "largest", "message"),
    [
        # One row per block.
        pytest.param(
            lambda m: softmax.softmax(gpu(m, 4096)),
            MOST,
            "softmax: 16777216 groups of rows are too many for one launch, which takes at most 16777215; "
            "split x",
            id="softmax",
        ),
        pytest.param(
            lambda m: softmax.softmax(gpu(m, 40000)),
            MOST,
            "softmax: 16777216 groups of rows .* split x",
            id="softmax-chunks",
        ),
        pytest.param(
            lambda m: rms_norm.rms_norm(gpu(m, 4096), gpu(4096)),
            MOST,
            "rms_norm: 16777216 groups of rows .* split x",
            id="rms_norm",
        ),
        pytest.param(
            lambda m: swiglu.swiglu(rows_apart(m, 2048), rows_apart(m, 2048)),
            MOST,
            "swiglu: 16777216 tiles of the result .* split the rows",
            id="swiglu",
        ),
        pytest.param(
            lambda m: silu_and_mul.silu_and_mul(gpu(m, 4096)),
            MOST,
            "silu_and_mul: 16777216 tiles of the result .* split the rows",
            id="silu_and_mul",
        ),
        pytest.param(
            lambda tiles: dropout.dropout(
                gpu(4 * tiles), seed=0, config=dropout.DropoutConfig(tile_elements=4)
            ),
            MOST,
            "dropout: 16777216 tiles of x .* take larger tile_elements",
            id="dropout",
        ),
        pytest.param(
            lambda batch: run_rope(batch, 1, 1),
            65535,
            "rope: 65536 batches .* at most 65535; split the batch",
            id="rope-batches",
        ),
        pytest.param(
            lambda heads: run_rope(1, heads, 535),
            65000,
            "rope: 65536 groups of heads, of q and k, .* at most 65535; split the heads",
            id="rope-heads",
        ),
        pytest.param(
            lambda batch: bmm.bmm(gpu(batch, 8, 8), gpu(batch, 8, 8)),
            MOST,
            "bmm: 16777216 tiles of the result .* split the batch",
            id="bmm",
        ),
        pytest.param(
            lambda tiles: matmul.matmul(gpu(16 * tiles, 8), gpu(8, 16), config=SMALL),
            MOST,
            "matmul: 16777216 tiles of the result .* split a or b",
            id="matmul",
        ),
        pytest.param(
            lambda tiles: group_gemm.group_gemm(
                [gpu(16 * tiles, 8), gpu(16, 8)], [gpu(8, 16), gpu(8, 16)], config=SMALL_GROUPS
            ),
            MOST - 1,
            "group_gemm: 16777216 tiles of the result .* pass fewer or smaller groups",
            id="group_gemm",
        ),
        pytest.param(
            lambda tokens: moe_routing.route(gpu(tokens, 2048), 2),
            MOST,
            "route: 16777216 groups of tokens .* split logits",
            id="route",
        ),
        pytest.param(run_moe, MOST, "moe: 16777216 tokens .* split them", id="moe-tokens"),
        pytest.param(
            lambda tiles: run_moe(1, hidden=1024 * tiles),
            65535,
            "moe: 65536 groups of columns .* at most 65535; take larger row_columns",
            id="moe-columns",
        ),
        pytest.param(
            lambda tiles: run_moe(
                2**14 * FEW_TOKENS.down.tile_m, FEW_TOKENS.gate_up.tile_n * tiles, config=FEW_TOKENS
            ),
            2**10 - 1,
            "moe: 16777216 tiles of slots .* split the tokens",
            id="moe-slots",
        ),
        pytest.param(
            lambda batch: run_fmha(batch, 1),
            MOST,
            "fmha: 16777216 tiles of queries, of all heads, .* split the batch",
            id="fmha",
        ),
        pytest.param(
            lambda batch: run_mla(batch, 1),
            MOST,
            "mla: 16777216 tiles of queries, of all heads, .* split the batch",
            id="mla",
        ),
        pytest.param(
            lambda batch: run_attention_decode(batch, 4, 2),
            65535,
            "attention_decode: 65536 batches .* at most 65535; split the batch",
            id="attention_decode-batches",
        ),
        pytest.param(
            lambda heads: run_attention_decode(1, 2 * heads, heads),
            65535,
            "attention_decode: 65536 tiles of heads .* at most 65535; split the heads",
            id="attention_decode-heads",
        ),
        pytest.param(
            lambda batch: run_mla_decoding(batch, 4),
            65535,
            "mla_decoding: 65536 batches .* at most 65535; split the batch",
            id="mla_decoding-batches",
        ),
        pytest.param(
            lambda tiles: run_mla_decoding(1, 16 * tiles),
            65535,
            "mla_decoding: 65536 tiles of heads .* at most 65535; split the heads",
            id="mla_decoding-heads",
        ),
    ],
)
def test_the_largest_grid_is_launched_and_no_larger_one(launch, largest, message):
    """On Ampere, where no launch has blocks that take several tiles."""
    assert record_launches(lambda: launch(largest), "sm_80")
    with pretend_gpu("sm_80"), pytest.raises(ValueError, match=f"^{message}$"):
        launch(largest + 1)


def test_copies_of_operands_are_as_large_as_their_grid():
    """8-bit operands with K along the columns, which Hopper's tensor cores do not take."""

    def launch(k):
        return matmul.matmul(gpu(512, k, dtype=E4M3), gpu(k, 512, dtype=E4M3))

    copy, _ = record_launches(lambda: launch(65535 * 64), "sm_90")
    assert copy.grid == (8, 65535)
    with (
        pretend_gpu("sm_90"),
        pytest.raises(
            ValueError,
            match=r"^matmul: 65536 columns of tiles to copy .* at most 65535; split K, or pass matrices",
        ),
    ):
        launch(65535 * 64 + 16)


def test_values_to_transpose_are_as_many_as_their_grid():
    """Blocks that take tiles in turn are few, but not those that transpose."""
    config = replace(fmha.TWO_BLOCKS, transpose_v=True, persistent=True)
    options = {"dtype": E4M3, "n": 256, "config": config}
    transpose, attend = record_launches(lambda: run_fmha(2**17 - 1, 64, **options), "sm_90")
    assert transpose.grid == (2**24 - 128,)
    assert attend.grid == (264,)
    with (
        pretend_gpu("sm_90"),
        pytest.raises(
            ValueError, match=r"^fmha: 16777216 tiles of v to transpose, .* split the batch, or pass v as"
        ),
    ):
        run_fmha(2**17, 64, **options)


def test_groups_of_queries_share_a_tile_of_heads():
    """As many heads as a grid has no room for, eight of which share one of keys."""
    [launch] = record_launches(lambda: run_attention_decode(1, 2**16, 2**13), "sm_90")
    assert launch.grid == (1, 2**13, 1)


@pytest.mark.parametrize("blocks", [1, 264])
def test_blocks_that_take_tiles_in_turn_take_no_more_than_can_be_divided(blocks):
    assert MOST < 2**DIVIDEND_BITS
    assert _launch.check_tiles("fmha", MOST, blocks, "tiles", "split") == (blocks,)
    with pytest.raises(
        ValueError, match=f"^fmha: {MOST + 1} tiles are too many .*, which takes at most {MOST}; split"
    ):
        _launch.check_tiles("fmha", MOST + 1, blocks, "tiles", "split")


@pytest.mark.parametrize(("blocks", "grid", "axis"), [(65535, (1, 65535), 1), (65536, (65536,), 0)])
def test_a_line_is_on_the_second_axis_while_that_takes_as_many(blocks, grid, axis):
    assert _launch.line_grid("dropout", blocks, "tiles", "split") == (grid, axis)

    def launch():
        dropout.dropout(gpu(4 * blocks), seed=0, config=dropout.DropoutConfig(tile_elements=4))

    [traced] = record_launches(launch, "sm_90")
    assert (traced.grid[: len(grid)], traced.args[-1]) == (grid, axis)


def test_the_limits_are_those_of_the_traced_launch():
    assert _launch.MAX_GRID == trace._MAX_GRID_SIZES


def test_tiles_of_all_batches_and_heads_are_counted():
    config = _attention.AttentionConfig(tile_m=64, tile_n=64)
    assert _attention.make_grid("fmha", 2, 3, 130, config) == (math.prod((2, 3, 3)),)
