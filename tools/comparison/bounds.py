"""What keeps cases below the goals, as far as it is known: said on the page beside the figures.

Each says what it was seen with. Counters are Nsight Compute's (`python -m tools.profile_kernels`), on
H200s, driver 580.159.04, cold L2, 2026-11-22 and 2026-11-23; times of fmha are an H100's, 2026-11-28.
Other code than the committed was timed in
`research/data/h200-2026-11-23-variants.jsonl`. The raw counters and tuning figures are in the git history
(`research/data` at commit 4e342d7). Where the figures of a trial were not kept, its text says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

BOUNDS: tuple[tuple[str, str], ...] = (
    (
        r"geometric mean of 264 cases",
        "118 of them (swiglu 90, silu_and_mul 10, softmax 10, dropout 8) move the same bytes at about the "
        "bandwidth of a plain copy in both libraries: 1.020 in the mean, and no kernel can be much more. "
        "The other 146 are at 1.44, and would have to be at 1.58; of these bmm's 24 are near cuBLAS in both "
        "(1.02), and 35 of rms_norm, attention_decode and rope near the memory's bandwidth (1.08).",
    ),
    (
        r"geometric mean of 10 cases",
        "Beside the faster of TileGym's two variants in each case; beside the one that it takes by default "
        "4.26. Products of 1024^3 take 12 us, most of which do not depend on the work: 1.9 and 2.0; those of "
        "2048^3 are at 2.6 and 3.0, and from 4096^3 on it is 3.9 to 6.5.",
    ),
    (
        r"fmha\[fp16-(causal-)?[14]x32x(1024|2048)x(128|256)\]",
        "What a tile of queries costs beside its loop over keys. Times of four batches are nearly a n + "
        "b n^2. For n = 1024, in us: without a mask (from n = 1024 and 2048) ours a n = 34 and b n^2 = 98, "
        "cuDNN's 28 and 95; with a mask (from n = 1024 and 4096) 53 and 45, cuDNN's 45 and 47. The loop "
        "takes 0.95 to 1.03 of cuDNN's time, the rest of a tile (load Q, wait for the first keys, divide, "
        "store) 1.2 times: presumably cuDNN loads for its next tile meanwhile. Blocks that take tiles in "
        "turn, as they do without a mask, gain 2 to 3 %; more is not for the kernel's author to say.",
    ),
    (
        r"fmha\[fp16-(causal-)?4x32x16384x128\]",
        "Power, presumably: at 14 and 26 ms a launch the clock falls and moves within a replay, so that "
        "ratios of places lie far apart. Half and a quarter as long, with the same loop over keys, it is "
        "0.98 to 1.01.",
    ),
    (
        r"moe\[bf16-(4x2048x1408-64top6|8xdeepseek_v2_lite)\]",
        "Of five launches, one after the other, two say who computes what (`align`), before any weight can "
        "be asked for: they take 6 to 7 us, and all together 19 to 27 us more than a copy, for 1 token as "
        "for 64, where that is 0.93 of a copy. As programmatic dependent launches, which may start before "
        "the one before has ended, the last four gain 2 % with 1 token and none with 4, and the second "
        "product, whose blocks crowd on few multiprocessors then, takes up to 8 % more "
        "(h200-2026-11-23-variants.jsonl). Of 8 tokens this draw takes 37 experts, and 34.9 are counted: "
        "by what it moves, 0.86.",
    ),
    (
        r"moe\[(bf|fp)16-(1024|2048)x.*\]",
        "Not the memory alone: 106 and 213 GFLOP take 138 and 276 us at the rate that `matmul` reaches (770 "
        "TFLOPS), and 184 and 368 us with what pads 96 and 192 rows of an expert, in the mean, to tiles of "
        "128; a copy takes 265. One product waits for the other, and each loads its weights and multiplies "
        "at once. Beside torch.compile and TileGym it is 1.10 to 1.25.",
    ),
    (
        r"bmm\[fp16-2x1024x1024x1024.*\]|silu_and_mul\[fp16-(1024|2048)x4096\]",
        "0.1 to 0.3 us of 13 us, of which more than half does not depend on the work: see `kernels.matmul`. "
        "Of 107 configurations of bmm one was faster in one of four layouts, and in none of the others "
        "(2026-11-22, a13e9b1).",
    ),
    (
        r"bmm\[bf16-128x1024x512x128\]",
        "0.6 us of 57. Sums of two steps: a tile is loaded, multiplied and stored in turn, at 0.67 of the "
        "memory's peak, TileGym's at 0.68. The entry is the best of 73 (2026-11-22, a13e9b1).",
    ),
    (
        r"swiglu\[(fp16|bf16|fp32)-[148]x128x(1024|2048|4096)\]",
        "0.05 to 0.25 us of 6 to 12 us, most of which do not depend on the work. Over 44 cases none of six "
        "other tiles is faster in the mean than the committed one, interleaved in one run, and each is "
        "in some of them (h200-2026-11-23-variants.jsonl).",
    ),
    (
        r"swiglu\[.*\]|silu_and_mul\[.*\]",
        "Bandwidth: our kernel, TileGym's and torch.compile's move the same bytes. Above 25 us ours is at "
        "0.96 to 1.04 of a plain copy in the same run, and neither is more than 1.5 % faster; below, 3 %.",
    ),
    (
        r"rms_norm\[.*\]",
        "Bandwidth: a plain copy of as many bytes takes 0.98 to 1.02 of our time, and torch.compile's kernel "
        "0.98 to 1.01 of the copy's. Of the 6 to 30 configurations of each case none gains more than 1.5 % "
        "(2026-11-23, 9ccada4). tileiras puts the loads of the weight behind the sum of a row; made to load "
        "it first, 11 of 20 cases take the same time, and wide rows of 16 bits 15 to 37 % more, because "
        "fewer of them are in registers at a time (h200-2026-11-23-variants.jsonl).",
    ),
    (
        r"matmul\[fp16-16384x16384x16384\]|bmm\[fp16-8x4096x4096x4096.*\]",
        "Power: at the limit of 700 W the clock falls to 1335 to 1515 MHz of 1980, and what counts is the "
        "energy of a product, of which TileGym's take 1.1 to 1.4 % less: why, is not known. cuBLAS' take 2 % "
        "more. None of 49 and of 44 configurations gains 0.2 % (2026-11-22, 57723c2; figures not "
        "kept).",
    ),
    (
        r"mla_decoding\[e4m3-128x16x5000x512\]",
        "Shared memory, as of the 8-bit caches below bfloat16 queries. None of 21 configurations gains 1 % "
        "(2026-11-23, a5081d6).",
    ),
    (
        r"softmax\[bf16-512x151936\]",
        "Rows of 297 KiB have no room in a multiprocessor and are read twice, so that two thirds of a "
        "copy's bandwidth is the ceiling. None of 31 configurations gains 1 % (2026-11-22, a13e9b1).",
    ),
    (
        r"matmul\[e4m3-(\d+)x\1x\1-transposed_b\]",
        "Sums that leave the tensor cores to be added in float32, as cuBLAS' do, while these wait: at 4096 "
        "they are busy 69 % of the time, cuBLAS' 86 %; with `fast_acc` 88 and 90 %, 100 us beside 98. The "
        "adding is in the code that tileiras makes of an `mma`. Written by the kernel instead (`acc + "
        "mma(a, b, zeros)` of fast sums of 128 or 256 terms, added at once or while the next ones are "
        "multiplied) the best of 13 configurations of each took 1.04 to 1.05 times as long at 2048, 4096 "
        "and 8192 (2026-11-23; figures not kept).",
    ),
    (
        r"mla_decoding\[e(4m3|5m2)-bf16-(64|128)x16x.*\]",
        "The way between warps and shared memory, through which the converted cache goes: its pipe is busy "
        "70 to 78 % of the time, memory 37 to 40 %, tensor cores 13 %. Of each byte of the cache, 1 is read "
        "to be converted and 2 are written in float16, as tileiras 13.4.92 lays them out for tensor cores. "
        "384 threads of 168 registers leave room for one block on a multiprocessor, whose warps issue in "
        "0.33 of all cycles.",
    ),
    (
        r"mla_decoding\[e(4m3|5m2)(-bf16)?-(64|128)x128x.*\]",
        "The same conversion, in every tile of 32 of the 128 heads: 0.99 to 1.04 of torch.compile, which "
        "converts the cache once, in memory. None of 23 configurations gains 1 % (2026-11-23, a5081d6).",
    ),
    (
        r"rms_norm_backward\[.*\]",
        "Registers, presumably: x, dy and the part of dw of a row stay in them, so that one to eight blocks "
        "share a multiprocessor, and each waits for the sum over its row before it can store. The fastest of "
        "19 to 91 configurations a case are committed (2026-11-25, beed831).",
    ),
    (
        r"softmax\[bf16-2048x32768\]",
        "A row of 64 KiB fills a quarter of a multiprocessor's registers: two are there at a time, and each "
        "loads, then computes, then stores. Of 46 ways to write it (chunks that are read twice, or rows "
        "kept in 16 bits, in pieces of 2048 to 32768, with 4 or 8 warps, 1 to 8 blocks a multiprocessor, by "
        "TMA or not; figures not kept) none was reliably faster: 1.02 and 1.06 of it the best one in two "
        "runs, 0.86 at one block a multiprocessor, and less than 0.6 at three, where registers spill.",
    ),
)
"""(pattern of "kernel[case]", what bounds it)."""


def explain(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return (what bounds them, which of `names`), and at the end those of which it is not known."""
    cases_by_reason: dict[str, list[str]] = defaultdict(list)
    unknown = []
    for name in dict.fromkeys(names):
        why = next((text for pattern, text in BOUNDS if re.fullmatch(pattern, name)), None)
        if why is None:
            unknown.append(name)
        else:
            cases_by_reason[why].append(name)
    return [*cases_by_reason.items(), *([("Not looked into.", unknown)] if unknown else [])]
