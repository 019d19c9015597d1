"""Bugs of attention: fmha, mla, attention_decode, mla_decoding, and what they share."""

from __future__ import annotations

from research.mutants.mutant import Mutant

_WEIGHED = "return parts * weights[:, :, None]"
_MERGED = "acc = weigh_parts(parts, weights)"
_ROUNDED = "pow2 = next_power_of_2(splits)"

FMHA = (
    Mutant(
        name="fmha-no-rescale",
        kernel="fmha",
        file="_online_softmax.py",
        imitates="what was summed is not rescaled when the maximum grows",
        old="return p, row_max, row_sum, acc * shrink",
        new="return p, row_max, row_sum, acc",
    ),
    Mutant(
        name="fmha-sum-no-rescale",
        kernel="fmha",
        file="_online_softmax.py",
        imitates="the sum of the probabilities is not rescaled",
        old="row_sum = row_sum * shrink + ct.sum(p, KEY_AXIS, keepdims=True)",
        new="row_sum = row_sum + ct.sum(p, KEY_AXIS, keepdims=True)",
        witness="fp16-2x4_2x130_333x128",
    ),
    Mutant(
        name="fmha-base-e",
        kernel="fmha",
        file="_online_softmax.py",
        imitates="exp2 of scores that were not multiplied by log2(e)",
        old="return float(scale) * LOG2_E",
        new="return float(scale)",
    ),
    Mutant(
        name="fmha-max-not-updated",
        kernel="fmha",
        file="_online_softmax.py",
        imitates="the running maximum is not kept",
        old="return p, new_max, row_sum, shrink",
        new="return p, row_max, row_sum, shrink",
    ),
    Mutant(
        name="fmha-bf16-sum",
        kernel="fmha",
        file="_online_softmax.py",
        imitates="the sum of the probabilities is kept in bfloat16",
        old="    return p, new_max, row_sum, shrink",
        new="    return p, new_max, row_sum.astype(ct.bfloat16).astype(ct.float32), shrink",
    ),
    Mutant(
        name="fmha-eps-in-denominator",
        kernel="fmha",
        file="_online_softmax.py",
        imitates="an eps that keeps from dividing by zero, and is too large",
        old="inverse = ct.where(row_sum > 0.0, reciprocal(row_sum), 0.0)",
        new="inverse = ct.where(row_sum > 0.0, reciprocal(row_sum + 1e-2), 0.0)",
    ),
    Mutant(
        name="fmha-causal-strict",
        kernel="fmha",
        file="_attention.py",
        imitates="a causal mask that is off by one: no query sees itself",
        old="s = ct.where(column - first_row <= row, s, -math.inf)",
        new="s = ct.where(column - first_row < row, s, -math.inf)",
        witness="bf16-causal-2x3x77_300x64",
    ),
    Mutant(
        name="fmha-causal-late",
        kernel="fmha",
        file="_attention.py",
        imitates="a causal mask that is off by one: each query sees the next key",
        old="s = ct.where(column - first_row <= row, s, -math.inf)",
        new="s = ct.where(column - first_row <= row + 1, s, -math.inf)",
    ),
    Mutant(
        name="fmha-keys-mask-late",
        kernel="fmha",
        file="_attention.py",
        imitates="a mask that lets one key too many in, which is padding",
        old="s = ct.where(column < keys, s, -math.inf)",
        new="s = ct.where(column <= keys, s, -math.inf)",
    ),
    Mutant(
        name="fmha-last-tile-unmasked",
        kernel="fmha",
        file="_attention.py",
        imitates="no mask on the last, partial tile of keys",
        old="masked = 1 if CAUSAL or RAGGED else STARTED",
        new="masked = 1 if CAUSAL else STARTED",
    ),
    Mutant(
        name="fmha-one-diagonal-tile",
        kernel="fmha",
        file="_attention.py",
        imitates="only one of the tiles that the diagonal crosses is masked",
        old="masked = tiles - min(min(keys, first_row + 1) // TILE_N, tiles - 1)",
        new="masked = 1",
    ),
    Mutant(
        name="fmha-first-keys-dropped",
        kernel="fmha",
        file="_attention.py",
        imitates="a tile of keys is left out",
        old="for back in range(masked, tiles):",
        new="for back in range(masked, tiles - 1):",
    ),
    Mutant(
        name="fmha-values-of-next-tile",
        kernel="fmha",
        file="_attention.py",
        imitates="a pipeline that is off by one stage",
        old="acc = add_values(left[0], j + 1, acc * left[1])",
        new="acc = add_values(left[0], j, acc * left[1])",
    ),
    Mutant(
        name="fmha-kv-head-modulo",
        kernel="fmha",
        imitates="the wrong head of grouped queries: modulo in place of division",
        old="kv_head = head // GROUP",
        new="kv_head = head % K.shape[1]",
        witness="bf16-2x4_2x70_140x64-heads_inside",
    ),
    Mutant(
        name="fmha-scale-1/d",
        kernel="fmha",
        imitates="1/D for 1/sqrt(D)",
        old='check_scale("fmha", 1.0 / math.sqrt(d) if',
        new='check_scale("fmha", 1.0 / d if',
    ),
    Mutant(
        name="fmha-order-misses-rows",
        kernel="fmha",
        file="_attention.py",
        imitates="an order of tiles that misses the last rows",
        old="return head, tiles - 1 - tile",
        new="return head, max(tiles - 2 - tile, 0)",
    ),
    Mutant(
        name="fmha-bf16-probabilities",
        kernel="fmha",
        file="_attention.py",
        imitates="probabilities in bfloat16 where they should have float16's digits",
        old="        p = p.astype(V.dtype)\n",
        new="        p = p.astype(ct.bfloat16).astype(V.dtype)\n",
    ),
    Mutant(
        name="fmha-e5m2-probabilities",
        kernel="fmha",
        file="_attention.py",
        imitates="e5m2 for e4m3",
        old="        p = p.astype(V.dtype)\n",
        new=(
            "        p = p.astype(ct.float8_e5m2 if V.dtype == ct.float8_e4m3fn else V.dtype)\n"
            "        p = p.astype(V.dtype)\n"
        ),
    ),
    Mutant(
        name="fmha-truncated",
        kernel="fmha",
        imitates="a cast that truncates",
        old="o.astype(O.dtype).reshape((1, 1, TILE_M, D))",
        new="ct.astype(o, O.dtype, rounding_mode=ct.RoundingMode.RZ).reshape((1, 1, TILE_M, D))",
    ),
    Mutant(
        name="fmha-truncated-probabilities",
        kernel="fmha",
        file="_attention.py",
        imitates="probabilities that are truncated",
        old="        p = p.astype(V.dtype)\n",
        new=(
            "        p = p if p.dtype == V.dtype else "
            "ct.astype(p, V.dtype, rounding_mode=ct.RoundingMode.RZ)\n"
        ),
    ),
    Mutant(
        name="fmha-transposed-head",
        kernel="fmha",
        file="_attention.py",
        imitates="the copy of V reads one head for all",
        old="v = ct.load(V, (batch, head, tile, 0), (1, 1, TILE_N, D), padding_mode=ct.PaddingMode.ZERO)",
        new="v = ct.load(V, (batch, 0, tile, 0), (1, 1, TILE_N, D), padding_mode=ct.PaddingMode.ZERO)",
    ),
    Mutant(
        name="fmha-heads-outside",
        kernel="fmha",
        imitates="nothing: batches and heads in another order",
        old="batch, head = any_head // HEADS, any_head % HEADS",
        new="batch, head = any_head % Q.shape[0], any_head // Q.shape[0]",
        harmless="each head of each batch is computed once, as before",
    ),
)

MLA = (
    Mutant(
        name="mla-value-head",
        kernel="mla",
        imitates="the values of another head",
        old="batch, (head, 0), head, tile * TILE_M, scale_log2,",
        new="batch, (head, 0), 0, tile * TILE_M, scale_log2,",
        witness="bf16-1x2x130_256",
    ),
    Mutant(
        name="mla-no-rope-part",
        kernel="mla",
        file="_attention.py",
        imitates="the part of the scores that knows positions is left out",
        old="for part in ct.static_iter(range(len(q))):",
        new="for part in ct.static_iter(range(1)):",
    ),
    Mutant(
        name="mla-scale",
        kernel="mla",
        imitates="the scale of the dimensions without the rotated ones",
        old="1.0 / math.sqrt(HEAD_DIM + ROPE_DIM) if scale is None",
        new="1.0 / math.sqrt(HEAD_DIM) if scale is None",
    ),
    Mutant(
        name="mla-query-rows-of-first-tile",
        kernel="mla",
        imitates="the rotated queries of the first rows for all",
        old="q_pe = ct.load(Q_PE, (batch, head, tile, 0)",
        new="q_pe = ct.load(Q_PE, (batch, head, 0, 0)",
    ),
    Mutant(
        name="mla-causal-late",
        kernel="mla",
        file="_attention.py",
        imitates="a causal mask that is off by one: each query sees the next key",
        old="s = ct.where(column - first_row <= row, s, -math.inf)",
        new="s = ct.where(column - first_row <= row + 1, s, -math.inf)",
    ),
)

ATTENTION_DECODE = (
    Mutant(
        name="attention_decode-kv-head-modulo",
        kernel="attention_decode",
        imitates="the wrong head of grouped queries: modulo in place of division",
        old="q.reshape(b, h_kv, group, d),  # always a view",
        new="q.reshape(b, group, h_kv, d).transpose(1, 2),",
        witness="bf16-2x4_2x257x64",
    ),
    Mutant(
        name="attention_decode-keys-mask-late",
        kernel="attention_decode",
        imitates="a mask that lets one key too many in, which is padding",
        old="s = hide_keys(s, key[:, None], keys, BOUNDED)",
        new="s = hide_keys(s, key[:, None], (keys[0], keys[1] + 1), BOUNDED)",
    ),
    Mutant(
        name="attention_decode-partial-tile-dropped",
        kernel="attention_decode",
        imitates="the last, partial tile of keys is dropped",
        old="min(first + tiles_per_part, ct.cdiv(keys, TILE_N))",
        new="min(first + tiles_per_part, keys // TILE_N)",
    ),
    Mutant(
        name="attention_decode-parts-overlap",
        kernel="attention_decode",
        imitates="a tile of keys counts in two parts",
        old="first = part * tiles_per_part",
        new="first = max(part * tiles_per_part - 1, 0)",
    ),
    Mutant(
        name="attention_decode-scale",
        kernel="attention_decode",
        imitates="1/D for 1/sqrt(D)",
        old='check_scale("attention_decode", 1.0 / math.sqrt(d) if',
        new='check_scale("attention_decode", 1.0 / d if',
    ),
    Mutant(
        name="attention_decode-rounded-parts",
        kernel="attention_decode",
        imitates="parts of 16 bits: a second rounding",
        old="parts = torch.empty((b, h, splits, d), dtype=torch.float32, device=q.device)",
        new="parts = torch.empty((b, h, splits, d), dtype=q.dtype, device=q.device)",
    ),
    Mutant(
        name="attention_decode-bf16-probabilities",
        kernel="attention_decode",
        imitates="probabilities in bfloat16 where they should have float16's digits",
        old="acc = ct.mma(ct.transpose(v), p.astype(V.dtype), acc)",
        new="acc = ct.mma(ct.transpose(v), p.astype(ct.bfloat16).astype(V.dtype), acc)",
    ),
    Mutant(
        name="attention_decode-lse-race",
        kernel="attention_decode",
        imitates="a race: all parts write their lse to one place",
        old="ct.store(LSE, (batch, kv_head, row, part)",
        new="ct.store(LSE, (batch, kv_head, row, 0)",
    ),
    Mutant(
        name="attention_decode-natural-lse",
        kernel="attention_decode",
        file="_online_softmax.py",
        imitates="a natural logarithm where the merge takes one to the base 2",
        old="return acc * inverse, row_max + ct.log2(row_sum)",
        new="return acc * inverse, row_max + ct.log(row_sum)",
    ),
    Mutant(
        name="attention_decode-lse-without-max",
        kernel="attention_decode",
        file="_online_softmax.py",
        imitates="the logarithm of the sum without the maximum",
        old="return acc * inverse, row_max + ct.log2(row_sum)",
        new="return acc * inverse, 0.0 * row_max + ct.log2(row_sum)",
    ),
    Mutant(
        name="split_kv-one-round",
        kernel="attention_decode",
        file="_split_kv.py",
        imitates="parts beyond a power of two are not merged",
        old=_ROUNDED,
        new="pow2 = max(1, next_power_of_2(splits) // 2)",
    ),
    Mutant(
        name="split_kv-twice",
        kernel="attention_decode",
        file="_split_kv.py",
        imitates="each part is merged twice",
        old=_WEIGHED,
        new="return 2.0 * parts * weights[:, :, None]",
    ),
    Mutant(
        name="split_kv-last-part-missing",
        kernel="attention_decode",
        file="_split_kv.py",
        imitates="the last part is left out of the merge",
        old=_MERGED,
        new=(
            "number = ct.arange(SPLITS, dtype=ct.int32)[None, :]\n"
            "        acc = weigh_parts(parts, ct.where(number < splits - 1, weights, 0.0))"
        ),
        witness="bf16-1x12_1x1000x64",
    ),
    Mutant(
        name="split_kv-base-e",
        kernel="attention_decode",
        file="_split_kv.py",
        imitates="exp for exp2 in the weights of the merge",
        old=_WEIGHED,
        new="return parts * ct.exp(ct.log2(weights))[:, :, None]",
    ),
    Mutant(
        name="split_kv-padded-with-zero",
        kernel="attention_decode",
        file="_split_kv.py",
        imitates="parts that do not exist count, where their number is no power of two",
        old="ct.where((part < splits)[None, :], lse, -math.inf)",
        new="ct.where((part < splits)[None, :], lse, 0.0)",
    ),
    Mutant(
        name="split_kv-unweighted",
        kernel="attention_decode",
        file="_split_kv.py",
        imitates="the plain mean of the parts",
        old=_MERGED,
        new="acc = weigh_parts(parts, 0.0 * weights + total[:, None] / splits)",
    ),
    Mutant(
        name="split_kv-merge-does-not-wait",
        kernel="attention_decode",
        file="_split_kv.py",
        imitates="a race: the merge does not wait for the parts",
        old="        ct.grid_dependency_control_wait()\n",
        new="        pass\n",
        gpu_only=True,
    ),
    Mutant(
        name="split_kv-loop-too-long",
        kernel="attention_decode",
        file="_split_kv.py",
        imitates="nothing: the merge goes on behind the last part, where it finds weights of 0",
        old=_ROUNDED,
        new="pow2 = 2 * next_power_of_2(splits)",
        harmless="padding has the weight 2^-inf",
    ),
)

MLA_DECODING = (
    Mutant(
        name="mla_decoding-no-rope-part",
        kernel="mla_decoding",
        imitates="the part of the scores that knows positions is left out",
        old="s = ct.mma(kpe, qpe, s)",
        new="s = s + 0.0",
        witness="fp16-2x8x300x128",
    ),
    Mutant(
        name="mla_decoding-queries-of-first-heads",
        kernel="mla_decoding",
        imitates="the rotated queries of the wrong heads",
        old="QPE, (batch, tile, 0)",
        new="QPE, (batch, 0, 0)",
    ),
    Mutant(
        name="mla_decoding-e5m2-cache",
        kernel="mla_decoding",
        imitates="e5m2 for e4m3",
        old="    EIGHT_BIT = ct.static_eval",
        new="    x = x.astype(ct.float8_e5m2 if x.dtype == ct.float8_e4m3fn else x.dtype)\n"
        "    EIGHT_BIT = ct.static_eval",
    ),
    Mutant(
        name="mla_decoding-unmasked",
        kernel="mla_decoding",
        imitates="no mask on the last, partial tile of keys",
        old="s = hide_keys(s, key[:, None], keys, BOUNDED)",
        new="s = s + 0.0",
    ),
    Mutant(
        name="mla_decoding-keys-of-first-sequence",
        kernel="mla_decoding",
        imitates="a stride of the batch that is 0",
        old="load_cache(KPE, batch, j",
        new="load_cache(KPE, 0, j",
    ),
    Mutant(
        name="mla_decoding-merge-misses-part",
        kernel="mla_decoding",
        file="_split_kv.py",
        imitates="the first part is left out of the merge",
        old=_MERGED,
        new=(
            "number = ct.arange(SPLITS, dtype=ct.int32)[None, :]\n"
            "        acc = weigh_parts(parts, ct.where(number > 0, weights, 0.0))"
        ),
    ),
    Mutant(
        name="mla_decoding-no-rescale",
        kernel="mla_decoding",
        file="_online_softmax.py",
        imitates="what was summed is not rescaled when the maximum grows",
        old="return p, row_max, row_sum, acc * shrink",
        new="return p, row_max, row_sum, acc",
    ),
)

MUTANTS = (*FMHA, *MLA, *ATTENTION_DECODE, *MLA_DECODING)
