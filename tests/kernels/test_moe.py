"""Mixture of experts with no GPU: argument checks, `align`, persistent blocks, work, references."""

import itertools
from typing import Any

import pytest

from kernels import moe, moe_routing
from kernels._gemm import GemmConfig
from pytest_cutile import Work
from pytest_cutile.tile.compiler import record_launches
from pytest_cutile.tile.tensors.seeded import MakeTensor

torch = pytest.importorskip("torch")

HALF = {"dtype": torch.float16}


def half(*shape, **kwargs):
    return torch.ones(shape, **HALF, **kwargs)


def ids(*shape, **kwargs):
    return torch.zeros(shape, **{"dtype": torch.int32, **kwargs})


def case_of(spec, name):
    return next(case for case in spec.cases if case.name == name)


# -- argument checks --------------------------------------------------------------------------------

X, W1, W2, WEIGHTS, IDS = half(3, 8), half(4, 10, 8), half(4, 8, 5), torch.ones(3, 2), ids(3, 2)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": None}, TypeError, "x must be a torch.Tensor, got NoneType"),
        ({"x": torch.ones(3, 8)}, TypeError, r"x has dtype torch\.float32; supported are float16, bfloat16"),
        ({"w2": W2.bfloat16()}, TypeError, r"w2 has dtype torch\.bfloat16, but x has torch\.float16"),
        ({"w1": half(4, 10, 8, device="meta")}, ValueError, "w1 is on meta, but x is on cpu"),
        ({"topk_weights": WEIGHTS.bfloat16()}, TypeError, "topk_weights .* supported are float32, float16"),
        ({"topk_ids": WEIGHTS}, TypeError, r"topk_ids has dtype torch\.float32; supported are int32, int64"),
        ({"topk_ids": ids(3, 2, device="meta")}, ValueError, "topk_ids is on meta, but x is on cpu"),
        ({"x": half(8)}, ValueError, r"x must be \[T, H\], got shape \[8\]"),
        ({"w1": half(10, 8)}, ValueError, r"w1 must be \[E, 2 I, 8\], but is \[10, 8\]"),
        ({"w1": half(4, 10, 7)}, ValueError, r"w1 must be \[E, 2 I, 8\], but is \[4, 10, 7\]"),
        ({"w1": half(4, 11, 8)}, ValueError, r"w1 must be \[E, 2 I, 8\], but is \[4, 11, 8\]"),
        ({"w2": half(4, 5, 8)}, ValueError, r"w2 must be \[4, 8, 5\], but is \[4, 5, 8\]"),
        ({"topk_ids": ids(2, 2)}, ValueError, r"topk_ids must be \[3, K\], but is \[2, 2\]"),
        ({"topk_weights": torch.ones(3, 1)}, ValueError, r"shape of topk_ids, \[3, 2\], but is \[3, 1\]"),
    ],
)
def test_moe_says_what_is_wrong(changed, error, message):
    args = {"x": X, "w1": W1, "w2": W2, "topk_weights": WEIGHTS, "topk_ids": IDS} | changed
    with pytest.raises(error, match="^moe: .*" + message):
        moe.moe(**args)


@pytest.mark.parametrize(
    ("logits", "top_k", "error", "message"),
    [
        ([1.0], 1, TypeError, "logits must be a torch.Tensor, got list"),
        (torch.ones(3, 4).double(), 1, TypeError, "supported are float16, bfloat16, float32"),
        (torch.ones(4), 1, ValueError, r"logits must be \[T, E\], got shape \[4\]"),
        (torch.ones(3, 4), 2.0, TypeError, "top_k must be an integer, got float"),
        (torch.ones(3, 4), True, TypeError, "top_k must be an integer, got bool"),
        (torch.ones(3, 0), 1, ValueError, r"logits must be of at least one expert, got shape \[3, 0\]"),
        (torch.ones(3, 4), 0, ValueError, "top_k must be between 1 and 4, the number of experts, got 0"),
        (torch.ones(3, 4), 5, ValueError, "top_k must be between 1 and 4, the number of experts, got 5"),
        (torch.ones(1, 4097), 1, ValueError, "logits are of 4097 experts; at most 4096"),
    ],
)
def test_route_says_what_is_wrong(logits, top_k, error, message):
    with pytest.raises(error, match="^route: .*" + message):
        moe_routing.route(logits, top_k)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"topk_ids": [[1, 2]]}, TypeError, "topk_ids must be a torch.Tensor, got list"),
        ({"topk_ids": torch.ones(3, 2)}, TypeError, r"topk_ids has dtype torch\.float32; .* int32, int64"),
        (
            {"topk_ids": IDS.short()},
            TypeError,
            r"topk_ids has dtype torch\.int16; supported are int32, int64",
        ),
        ({"topk_ids": IDS.byte()}, TypeError, r"topk_ids has dtype torch\.uint8; supported are int32, int64"),
        ({"topk_ids": ids(0, 2)}, ValueError, r"topk_ids must hold at least one id, got shape \[0, 2\]"),
        ({"experts": 4.0}, TypeError, "experts must be an integer, got float"),
        ({"experts": 0}, ValueError, "experts must be between 1 and 4096, got 0"),
        ({"experts": -1}, ValueError, "experts must be between 1 and 4096, got -1"),
        ({"experts": 4097}, ValueError, "experts must be between 1 and 4096, got 4097"),
        ({"tile_m": True}, TypeError, "tile_m must be an integer, got bool"),
        ({"tile_m": 0}, ValueError, "tile_m must be a power of two, got 0"),
        ({"tile_m": -16}, ValueError, "tile_m must be a power of two, got -16"),
        ({"tile_m": 3}, ValueError, "tile_m must be a power of two, got 3"),
        ({"config": "x"}, TypeError, "config must be a RoutingConfig, got str"),
    ],
)
def test_align_says_what_is_wrong(changed, error, message):
    with pytest.raises(error, match="^align: .*" + message):
        moe_routing.align(**{"topk_ids": IDS, "experts": 4, "tile_m": 16, **changed})


def test_nothing_is_launched_for_nothing():
    assert moe.moe(half(0, 8), W1, W2, torch.ones(0, 2), ids(0, 2)).shape == (0, 8)
    assert torch.equal(moe.moe(X, W1, W2, torch.ones(3, 0), ids(3, 0)), torch.zeros(3, 8, **HALF))
    assert torch.equal(moe.moe(X, half(4, 0, 8), half(4, 8, 0), WEIGHTS, IDS), torch.zeros(3, 8, **HALF))
    weights, chosen = moe_routing.route(torch.ones(0, 5), 2)
    assert weights.shape == chosen.shape == (0, 2)


def test_both_products_take_the_same_slots():
    with pytest.raises(ValueError, match="gate_up has tile_m 16 and down 64"):
        moe.MoeConfig(
            gate_up=GemmConfig(tile_m=16, tile_n=64, tile_k=64),
            down=GemmConfig(tile_m=64, tile_n=64, tile_k=64),
        )


# -- kernels, interpreted ---------------------------------------------------------------------------


@pytest.fixture
def interpret():
    module = pytest.importorskip("pytest_cutile.tile.interpreter.api")
    pytest.importorskip("cuda.tile")
    return module.interpret


def align_by_hand(topk_ids, experts, tile_m):
    """Return the slots and each tile's expert, as lists."""
    flat = topk_ids.flatten().tolist()
    slots, tiles = [], []
    for expert in range(experts):
        own = [pair for pair, chosen in enumerate(flat) if chosen == expert]
        own += [len(flat)] * (-len(own) % tile_m)
        slots += own
        tiles += [expert] * (len(own) // tile_m)
    return slots, tiles


def test_route_takes_no_hidden_expert_while_others_are_left(interpret):
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    logits[:, ::2] = -torch.inf
    with interpret("sm_90"):
        weights, chosen = moe_routing.route(logits.to("cuda"), 6)
    expected, order = moe_routing.reference(logits.double(), 6)
    assert chosen.tolist() == order.tolist()
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "tile_m", "drawn_from"),
    [
        (1, 1, 1, 16, 1),
        (1, 6, 64, 16, 64),
        (50, 3, 5, 8, 5),
        # Several steps of 64 pairs, an expert with several tiles, and experts with none.
        (70, 2, 9, 4, 2),
        (100, 1, 3, 128, 3),
        # Experts whose pairs several blocks share: of 9 steps in 4 parts, the last has none.
        (555, 1, 3, 16, 3),
        (550, 1, 4, 2, 1),
    ],
)
def test_align_sorts_by_expert_and_pads(interpret, tokens, top_k, experts, tile_m, drawn_from):
    config = moe_routing.RoutingConfig(align_pairs=64, align_blocks=16)
    torch.manual_seed(tokens)
    with interpret("sm_90"):
        topk_ids = torch.randint(drawn_from, (tokens, top_k), device="cuda")
        aligned = moe_routing.align(topk_ids, experts, tile_m, config=config)
    slots, tiles = align_by_hand(topk_ids, experts, tile_m)
    assert aligned.tile_count.tolist() == [len(tiles)]
    assert len(aligned.expert_of_tile) * tile_m == len(aligned.pair_of_slot) >= len(slots)
    assert aligned.expert_of_tile[: len(tiles)].tolist() == tiles
    assert aligned.pair_of_slot[: len(slots)].tolist() == slots
    assert [slots[slot] for slot in aligned.slot_of_pair.tolist()] == list(range(tokens * top_k))


@pytest.mark.parametrize(("experts", "parts"), [(1, 4096), (3, 1024), (64, 64), (4096, 1)])
def test_blocks_keep_the_counts_of_all_parts_in_registers(experts, parts):
    """However many blocks a configuration asks for."""
    config = moe_routing.RoutingConfig(align_pairs=1, align_blocks=2**20)
    launches = record_launches(
        lambda: moe_routing.align(ids(70000, 1, device="cuda"), experts, 16, config=config), "sm_90"
    )
    assert [launched.grid for launched in launches] == [(experts, parts)] * 2


@pytest.mark.parametrize(("tokens", "tile_m"), [(2**28, 16), (2**28 - 8, 16), (3, 2**30)])
def test_align_numbers_slots_with_32_bits(interpret, tokens, tile_m):
    with interpret("sm_90"):
        topk_ids = torch.zeros(1, 1, dtype=torch.int32, device="cuda").expand(tokens, 8)
        with pytest.raises(
            ValueError, match=r"^align: \d+ ids need numbers up to \d+, .* at most 2147483647"
        ):
            moe_routing.align(topk_ids, 64, tile_m)


@pytest.mark.parametrize("experts", [1, 3, 64])
def test_align_takes_as_many_pairs_as_have_numbers(experts):
    """And in the steps of all parts, which may be more, none has a larger number."""

    def launch():
        moe_routing.align(ids(1, 1, device="cuda").expand(2**31 - 1, 1), experts, 1)

    count, place = record_launches(launch, "sm_90")
    *_, steps, step = count.args
    assert count.grid == place.grid
    assert count.grid[1] * steps * step == 2**31


def test_align_draws_its_docstring(interpret):
    with interpret("sm_90"):
        aligned = moe_routing.align(torch.tensor([[1, 2], [1, 0]], device="cuda"), 3, 2)
    assert aligned.pair_of_slot[:6].tolist() == [3, 4, 0, 2, 1, 4]
    assert aligned.expert_of_tile[:3].tolist() == [0, 1, 2]


def test_align_has_room_for_the_worst_case():
    """Every way to send 5 pairs to 3 experts fits, and one of them needs all tiles."""
    for tile_m in (1, 2, 4, 16):
        needed = {
            len(align_by_hand(torch.tensor(way), 3, tile_m)[1])
            for way in itertools.product(range(3), repeat=5)
        }
        assert max(needed) == (5 + 3 * (tile_m - 1)) // tile_m


@pytest.mark.parametrize("blocks_per_sm", [None, 1])
def test_moe_computes_the_same_with_any_number_of_blocks(interpret, monkeypatch, blocks_per_sm):
    monkeypatch.setattr(moe, "count_sms", lambda: 3)
    gemm = GemmConfig(tile_m=16, tile_n=32, tile_k=32, group_m=2, blocks_per_sm=blocks_per_sm)
    config = moe.MoeConfig(gate_up=gemm, down=gemm, row_columns=32)
    torch.manual_seed(0)
    with interpret("sm_90"):
        x, w1, w2 = (
            (torch.randn(shape, device="cuda") / 8).half()
            for shape in ((40, 72), (5, 2 * 40, 72), (5, 72, 40))
        )
        logits = torch.randn(40, 5, device="cuda")
        weights, chosen = moe_routing.route(logits, 2, renormalize=True)
        o = moe.moe(x, w1, w2, weights, chosen, config=config)
    expected = moe.SPEC.reference(x.double(), w1.double(), w2.double(), weights.double(), chosen)
    torch.testing.assert_close(o.double(), expected, rtol=2e-3, atol=2e-3)


# -- specs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "name", "expected"),
    [
        # 2 * 60*2 * 3 * 136*72; (3 * 3*136*72 + 2 * 60*136) * 2 + 60*2 * 8: all three experts.
        (moe.SPEC, "bf16-60x136x72-3top2", Work(flops=7050240, bytes=209856, dtype="bfloat16")),
        # Two experts of 16: (2 * 3*64*48 + 2 * 40*64) * 2 + 40*2 * 8
        (moe.SPEC, "bf16-40x64x48-16top2-skewed", Work(flops=1474560, bytes=47744, dtype="bfloat16")),
        # 33 * (64 * 4 + 6 * 8)
        (moe_routing.SPEC, "fp32-33x64-top6", Work(bytes=10032, dtype="float32")),
        (moe_routing.SPEC, "fp16-19x129-top3", Work(bytes=5358, dtype="float16")),
    ],
)
def test_work_equals_what_a_hand_computes(spec, name, expected):
    found = spec.work_of(case_of(spec, name))
    assert (found.flops, found.dtype) == (expected.flops, expected.dtype)
    assert found.bytes == pytest.approx(expected.bytes, rel=1e-12)


@pytest.mark.parametrize(
    ("index_dtype", "weights_dtype", "pair_bytes"),
    [
        ("int32", "float32", 8),
        ("int32", "float16", 6),
        ("int64", "float32", 12),
        ("int64", "bfloat16", 10),
    ],
)
def test_work_of_moe_counts_ids_and_weights_as_they_are(index_dtype, weights_dtype, pair_bytes):
    params: dict[str, Any] = {"tokens": 3, "hidden": 4, "inner": 5, "experts": 7, "top_k": 2}
    params |= {"dtype": "bfloat16", "skew": 1.0, "index_dtype": index_dtype, "weights_dtype": weights_dtype}
    found = moe.work(**params)
    # 2 * 3*2 * 3 * 4*5; two experts: (2 * 3*4*5 + 2 * 3*4) * 2, and 3*2 pairs
    assert found == Work(flops=720, bytes=288 + 6 * pair_bytes, dtype="bfloat16")


def test_experts_with_a_token_are_counted_as_often_as_they_come():
    """Two tokens that choose two of three experts: the average over all nine ways."""
    ways = list(itertools.product(itertools.combinations(range(3), 2), repeat=2))
    average = sum(len(set(first) | set(second)) for first, second in ways) / len(ways)
    assert moe.count_experts(2, 3, 2) == pytest.approx(average)
    assert moe.count_experts(1, 64, 6) == pytest.approx(6)


def test_the_timed_batch_of_eight_draws_as_many_experts_as_its_case_says():
    """Its time is that of reading their weights, whichever test, process or machine draws them."""
    case = case_of(moe.SPEC, "bf16-8xdeepseek_v2_lite")
    make = MakeTensor(device="cpu", seed=case.seed, signed_rows=False)

    def without_weights(shape, dtype, **options):
        return make(shape if len(shape) == 2 else (1,), dtype, **options)

    *_, ids_ = moe.inputs(without_weights, **case.params)
    assert ids_.shape == (8, 6)
    assert ids_.unique().numel() == 37
    assert round(moe.count_experts(8, 64, 6)) == 35


def test_reductions():
    assert moe.SPEC.reduction_of(case_of(moe.SPEC, "fp16-13x75x41-5top3")) == 78
    assert moe_routing.SPEC.reduction_of(case_of(moe_routing.SPEC, "fp16-19x129-top3")) == 129


def test_reference_goes_through_each_token_by_itself():
    torch.manual_seed(0)
    x, w1, w2 = (torch.randn(shape, dtype=torch.float64) for shape in ((7, 6), (4, 10, 6), (4, 6, 5)))
    weights, chosen = moe_routing.SPEC.reference(torch.randn(7, 4, dtype=torch.float64), 3)
    expected = torch.zeros(7, 6, dtype=torch.float64)
    for t, k in itertools.product(range(7), range(3)):
        gate, up = (w1[chosen[t, k]] @ x[t]).chunk(2)
        expected[t] += weights[t, k] * (w2[chosen[t, k]] @ (gate * torch.sigmoid(gate) * up))
    torch.testing.assert_close(moe.SPEC.reference(x, w1, w2, weights, chosen), expected)


@pytest.mark.parametrize("renormalize", [False, True])
def test_route_reference_is_torchs_topk(renormalize):
    torch.manual_seed(0)
    logits = torch.randn(9, 12, dtype=torch.float64)
    weights, chosen = moe_routing.SPEC.reference(logits, 4, renormalize=renormalize)
    best, expected = logits.softmax(1).topk(4, dim=1)
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(weights, best / best.sum(1, keepdim=True) if renormalize else best)


@pytest.mark.parametrize("arch", [*moe.CONFIGS, "sm_999"])
def test_every_architecture_has_a_configuration(arch):
    tiles = [moe.choose_config(arch, rows_per_expert=rows).down.tile_m for rows in (0.1, 24, 32, 50, 96, 1e6)]
    assert tiles == sorted(tiles)
    assert moe_routing.choose_config(arch).align_pairs > 0


def test_tiles_grow_with_the_rows_of_an_expert():
    tiles = [moe.choose_config("sm_90", rows_per_expert=rows).down.tile_m for rows in (16, 17, 33, 65, 129)]
    assert tiles == [16, 32, 64, 128, 128]


def test_every_architecture_that_is_tuned_for_is_in_both_tables():
    assert moe.CONFIGS.keys() == moe_routing.CONFIGS.keys()
