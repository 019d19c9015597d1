"""Bugs of matrix products: matmul, bmm, group_gemm, and the mixture of experts."""

from __future__ import annotations

from research.mutants.mutant import Mutant

_MMA = "acc = ct.mma(a.astype(dtype), b.astype(dtype), acc, use_fast_acc=FAST_ACC)"
_OPERANDS = "dtype = ct.tfloat32 if a.dtype == ct.float32 else a.dtype"
_SWIZZLE = "row, column = inside % height, inside // height"

MATMUL = (
    Mutant(
        name="matmul-partial-k-dropped",
        kernel="matmul",
        imitates="the last, partial tile of K is dropped",
        old="multiply_along_k(load_a, load_b, ct.cdiv(A.shape[1], TILE_K)",
        new="multiply_along_k(load_a, load_b, A.shape[1] // TILE_K",
    ),
    Mutant(
        name="matmul-first-k-dropped",
        kernel="matmul",
        file="_gemm.py",
        imitates="a whole tile of K is dropped",
        old="for k in range(steps):",
        new="for k in range(1, steps):",
    ),
    Mutant(
        name="matmul-stale-tile",
        kernel="matmul",
        imitates="the tile of A is that of the step before",
        old="return ct.load(A, (row, k), (TILE_M, TILE_K)",
        new="return ct.load(A, (row, max(k - 1, 0)), (TILE_M, TILE_K)",
    ),
    Mutant(
        name="matmul-tiles-transposed",
        kernel="matmul",
        imitates="row and column of a tile swapped",
        old="ct.store(C, (row, col), acc.astype(C.dtype), allow_tma=STORE_TMA)",
        new="ct.store(C, (col, row), acc.astype(C.dtype), allow_tma=STORE_TMA)",
    ),
    Mutant(
        name="matmul-swizzle",
        kernel="matmul",
        file="_tiles.py",
        imitates="a swizzle that misses tiles of the last, lower band",
        old=_SWIZZLE,
        new="row, column = inside % GROUP_M, inside // GROUP_M",
    ),
    Mutant(
        name="matmul-fp16-sum",
        kernel="matmul",
        file="_gemm.py",
        imitates="an accumulator of float16",
        old=_MMA,
        new=f"{_MMA}.astype(ct.float16).astype(ct.float32)",
    ),
    Mutant(
        name="matmul-bf16-sum",
        kernel="matmul",
        file="_gemm.py",
        imitates="partial sums rounded to bfloat16",
        old=_MMA,
        new=f"{_MMA}.astype(ct.bfloat16).astype(ct.float32)",
    ),
    Mutant(
        name="matmul-truncated",
        kernel="matmul",
        imitates="a cast that truncates",
        old="ct.store(C, (row, col), acc.astype(C.dtype), allow_tma=STORE_TMA)",
        new=(
            "ct.store(C, (row, col), acc if C.dtype == ct.float32 else "
            "ct.astype(acc, C.dtype, rounding_mode=ct.RoundingMode.RZ), allow_tma=STORE_TMA)"
        ),
        witness="fp16-384x256x512",
    ),
    Mutant(
        name="matmul-bf16-for-tf32",
        kernel="matmul",
        file="_gemm.py",
        imitates="float32 operands rounded to bfloat16",
        old=_OPERANDS,
        new="dtype = ct.bfloat16 if a.dtype == ct.float32 else a.dtype",
    ),
    Mutant(
        name="matmul-e5m2-for-e4m3",
        kernel="matmul",
        file="_gemm.py",
        imitates="the other format of 8 bits",
        old=_OPERANDS,
        new=(
            "dtype = ct.tfloat32 if a.dtype == ct.float32 else "
            "ct.float8_e5m2 if a.dtype == ct.float8_e4m3fn else a.dtype"
        ),
    ),
    Mutant(
        name="matmul-one-scale",
        kernel="matmul",
        imitates="the second factor is forgotten",
        old="for scale in ct.static_iter(scales):",
        new="for scale in ct.static_iter(scales[:1]):",
    ),
    Mutant(
        name="matmul-rounded-before-scale",
        kernel="matmul",
        imitates="a sum is rounded before it is scaled",
        old="acc = acc * ct.load(scale, (0,), (1,)).reshape((1, 1))",
        new=("acc = acc.astype(ct.bfloat16).astype(ct.float32) * ct.load(scale, (0,), (1,)).reshape((1, 1))"),
    ),
    Mutant(
        name="matmul-fast-accumulation-unasked",
        kernel="matmul",
        imitates="8-bit products summed in Hopper's short accumulator, which nobody asked for",
        old="use_fast_acc and a.element_size() == 1,",
        new="a.element_size() == 1,",
        gpu_only=True,
    ),
    Mutant(
        name="matmul-last-tile-unwritten",
        kernel="matmul",
        imitates="a grid that is one block short",
        old="        grid,\n",
        new="        (max(1, grid[0] - 1),),\n",
    ),
    Mutant(
        name="matmul-persistent-last-tile",
        kernel="matmul",
        file="_gemm.py",
        imitates="persistent blocks miss the last tile",
        old="for tile in range(ct.bid(0), tiles, ct.num_blocks(0)):",
        new="for tile in range(ct.bid(0), tiles - 1, ct.num_blocks(0)):",
    ),
    Mutant(
        name="matmul-copy-drops-columns",
        kernel="matmul",
        file="_gemm.py",
        imitates="the last, partial tile is not copied to the layout that tensor cores take",
        old="(ends[-1], ct.cdiv(k, tile)),",
        new="(ends[-1], max(1, k // tile)),",
    ),
    Mutant(
        name="matmul-order-of-bands",
        kernel="matmul",
        file="_tiles.py",
        imitates="nothing: the tiles of a band in another order",
        old=_SWIZZLE,
        new="row, column = height - 1 - inside % height, inside // height",
        harmless="each tile is computed once, as before",
    ),
)

BMM = (
    Mutant(
        name="bmm-first-of-batch",
        kernel="bmm",
        imitates="a stride of the batch that is 0",
        old="batch_b = min(batch, B.shape[0] - 1)",
        new="batch_b = 0",
        witness="fp16-2x127x129x65",
    ),
    Mutant(
        name="bmm-batch-by-wrong-size",
        kernel="bmm",
        imitates="swapped sizes in the index of the batch",
        old="batch = divide(tile, matrix_size)",
        new="batch = min(tile // (tiles_n * tiles_n), C.shape[0] - 1)",
    ),
    Mutant(
        name="bmm-undetermined-padding",
        kernel="bmm",
        imitates="no padding: whatever lies behind a row takes part",
        old="A, (batch_a, row, k), (1, TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency",
        new="A, (batch_a, row, k), (1, TILE_M, TILE_K), latency=latency",
    ),
    Mutant(
        name="bmm-last-k-dropped",
        kernel="bmm",
        imitates="the last tile of K is dropped",
        old="ct.cdiv(A.shape[2], TILE_K), TILE_M, TILE_N)",
        new="ct.cdiv(A.shape[2], TILE_K) - 1, TILE_M, TILE_N)",
    ),
    Mutant(
        name="bmm-truncated",
        kernel="bmm",
        imitates="a cast that truncates",
        old="c = acc.astype(C.dtype).reshape((1, TILE_M, TILE_N))",
        new=("c = ct.astype(acc, C.dtype, rounding_mode=ct.RoundingMode.RZ).reshape((1, TILE_M, TILE_N))"),
    ),
)

GROUP_GEMM = (
    Mutant(
        name="group_gemm-ends-off-by-one",
        kernel="group_gemm",
        imitates="an offset of a group that is wrong by one",
        old="        first = ends[g]\n",
        new="        first = ends[g] - 1\n",
        witness="fp16-odd",
    ),
    Mutant(
        name="group_gemm-weights-of-first",
        kernel="group_gemm",
        imitates="the operand of another group",
        old="A, B, C = As[g], Bs[g], Cs[g]",
        new="A, B, C = As[g], Bs[0], Cs[g]",
    ),
    Mutant(
        name="group_gemm-k-of-last",
        kernel="group_gemm",
        imitates="the length of another group's sums",
        old="ct.cdiv(A.shape[1], TILE_K)",
        new="ct.cdiv(As[len(As) - 1].shape[1], TILE_K)",
    ),
    Mutant(
        name="group_gemm-square-not-transposed",
        kernel="group_gemm",
        imitates="a layout that is inferred from the shape: square matrices are not transposed",
        old="b = [matrix.T for matrix in b] if transpose_b else b",
        new=("b = [m if m.shape[0] == m.shape[1] else m.T for m in b] if transpose_b else b"),
    ),
    Mutant(
        name="group_gemm-last-group-missing",
        kernel="group_gemm",
        imitates="the last group of a launch is left out",
        old="some = together[first::launches]",
        new="some = together[first::launches][:-1] or together[:1]",
    ),
    Mutant(
        name="group_gemm-saturating-e5m2",
        kernel="group_gemm",
        imitates="a result that is rounded twice, by way of bfloat16",
        old="acc.astype(C.dtype)",
        new="acc.astype(ct.bfloat16).astype(C.dtype)",
    ),
)

MOE = (
    Mutant(
        name="moe-weight-of-first-choice",
        kernel="moe",
        imitates="the wrong expert's weight",
        old="weight = ct.gather(Weights, (token, k))",
        new="weight = ct.gather(Weights, (token, 0))",
        witness="bf16-5x64x48-35top3",
    ),
    Mutant(
        name="moe-expert-of-first-tile",
        kernel="moe",
        imitates="the wrong expert's matrix, in the second product",
        old=(
            "        expert = ct.gather(ExpertOfTile, row)\n\n"
            "        def load_a(k: int) -> ct.Tile:  # [TILE_M, TILE_K]\n            return ct.load("
        ),
        new=(
            "        expert = ct.gather(ExpertOfTile, 0)\n\n"
            "        def load_a(k: int) -> ct.Tile:  # [TILE_M, TILE_K]\n            return ct.load("
        ),
    ),
    Mutant(
        name="moe-gate-and-up-swapped",
        kernel="moe",
        imitates="gate and up swapped",
        old="hidden = silu(gate) * up",
        new="hidden = silu(up) * gate",
    ),
    Mutant(
        name="moe-silu-sign",
        kernel="moe",
        imitates="the sigmoid without its minus",
        old="hidden = silu(gate) * up",
        new="hidden = -silu(-gate) * up",
    ),
    Mutant(
        name="moe-last-choice-missing",
        kernel="moe",
        imitates="one expert too few",
        old="for k in ct.static_iter(range(TOP_K)):",
        new="for k in ct.static_iter(range(max(TOP_K - 1, 1))):",
    ),
    Mutant(
        name="moe-wrong-token",
        kernel="moe",
        imitates="a pair taken for a token",
        old="token = ct.load(PairOfSlot, (row,), (TILE_M,), allow_tma=False) // TOP_K",
        new="token = ct.load(PairOfSlot, (row,), (TILE_M,), allow_tma=False) % X.shape[0]",
    ),
    Mutant(
        name="moe-plain-mean",
        kernel="moe",
        imitates="weights are not applied",
        old="acc += weight * y.astype(ct.float32)",
        new="acc += (weight * 0.0 + 1.0 / TOP_K) * y.astype(ct.float32)",
    ),
    Mutant(
        name="moe-bf16-sum",
        kernel="moe",
        imitates="what the experts return is summed in bfloat16",
        old="acc += weight * y.astype(ct.float32)",
        new="acc = (acc + weight * y.astype(ct.float32)).astype(ct.bfloat16).astype(ct.float32)",
    ),
    Mutant(
        name="moe-partial-k-dropped",
        kernel="moe",
        imitates="the last, partial tile of K is dropped, in the first product",
        old="ct.cdiv(X.shape[1], TILE_K), TILE_M, 2 * TILE_N)",
        new="max(1, X.shape[1] // TILE_K), TILE_M, 2 * TILE_N)",
    ),
    Mutant(
        name="moe-slots-off-by-one",
        kernel="moe",
        file="moe_routing.py",
        imitates="an offset of an expert's rows that is wrong by one",
        old="ct.scatter(PairOfSlot, slot + rank - 1, pair, mask=hit)",
        new="ct.scatter(PairOfSlot, slot + rank, pair, mask=hit)",
    ),
    Mutant(
        name="moe-partial-count",
        kernel="moe",
        file="moe_routing.py",
        imitates="the last, partial step of counting is left out",
        old="""hits = ct.zeros((TILE,), dtype=ct.int32)
    for i in range(part * steps, (part + 1) * steps):""",
        new="""hits = ct.zeros((TILE,), dtype=ct.int32)
    for i in range(part * steps, min((part + 1) * steps, Ids.shape[0] // TILE)):""",
    ),
    Mutant(
        name="moe-parts-of-an-expert-overlap",
        kernel="moe",
        file="moe_routing.py",
        imitates="every part of an expert's pairs begins at the expert's first slot",
        old="slot = first_slot + before",
        new="slot = first_slot",
        witness="bf16-700x16x16-3top2",
    ),
    Mutant(
        name="moe-count-of-tiles-race",
        kernel="moe",
        file="moe_routing.py",
        imitates="a race: every block writes what only the last one knows",
        old="if expert == ct.num_blocks(0) - 1:",
        new="if expert >= 0:",
    ),
)

MOE_ROUTING = (
    Mutant(
        name="moe_routing-last-of-ties",
        kernel="moe_routing",
        imitates="the other one of equal logits",
        old="index = ct.argmax(left, 1, keepdims=True)",
        new="index = ct.max(ct.where(left == best, expert, 0), 1, keepdims=True)",
        witness="bf16-21x64-top8-ties",
    ),
    Mutant(
        name="moe_routing-ties-together",
        kernel="moe_routing",
        imitates="equal logits are struck out together",
        old="left = ct.where(expert == index, -math.inf, left)",
        new="left = ct.where(left == best, -math.inf, left)",
    ),
    Mutant(
        name="moe_routing-never-renormalised",
        kernel="moe_routing",
        imitates="an option that is ignored",
        old="weights *= reciprocal(ct.sum(weights, 1, keepdims=True) if RENORMALIZE else total)",
        new="weights *= reciprocal(total)",
    ),
    Mutant(
        name="moe_routing-always-renormalised",
        kernel="moe_routing",
        imitates="softmax over the chosen instead of all",
        old="weights *= reciprocal(ct.sum(weights, 1, keepdims=True) if RENORMALIZE else total)",
        new="weights *= reciprocal(ct.sum(weights, 1, keepdims=True))",
    ),
    Mutant(
        name="moe_routing-padded-with-zero",
        kernel="moe_routing",
        imitates="padding of 0 where it has to be -inf",
        old="(TILE_T, TILE_E), padding_mode=ct.PaddingMode.NEG_INF",
        new="(TILE_T, TILE_E), padding_mode=ct.PaddingMode.ZERO",
    ),
    Mutant(
        name="moe_routing-bf16-weights",
        kernel="moe_routing",
        imitates="weights that are rounded to bfloat16",
        old="ct.store(Weights, (ct.bid(0), 0), weights,",
        new="ct.store(Weights, (ct.bid(0), 0), weights.astype(ct.bfloat16).astype(ct.float32),",
    ),
)

MUTANTS = (*MATMUL, *BMM, *GROUP_GEMM, *MOE, *MOE_ROUTING)
