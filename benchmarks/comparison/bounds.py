"""What keeps cases below the goals, as far as it is known: said on the page beside the figures.

Each says what it was seen with. Counters are Nsight Compute's (`python -m benchmarks.profile_kernels`), on an
H200, driver 580.159.04, 2026-11-22, cold L2.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

BOUNDS: tuple[tuple[str, str], ...] = (
    (
        r"fmha\[fp16-(causal-)?4x32x(1024|2048)x128\]",
        "What a tile of queries costs beside its loop over keys. Times of the square cases of head dim "
        "128 are nearly a n + b n^2 (from n = 1024 and 4096; 2048 and 8192 within 4 %). For n = 1024, in "
        "us: ours a n = 29 and b n^2 = 105, cuDNN's 16 and 107.5; causal 43 and 51, 37 and 53. The loop "
        "is 2 to 4 % faster than cuDNN's, and the rest of a tile (load Q, wait for the first keys, "
        "divide, store) takes up to 1.8 times as long: presumably cuDNN loads for its next tile "
        "meanwhile. Blocks that take tiles in turn (`persistent`) gain 2 to 3 % here, more is not for the "
        "kernel's author to say. Counters at n = 1024: tensor cores busy 62 % of the time, cuDNN's 68 % "
        "(causal 49 and 56 %); neither memory (20 %, 28 %) nor the L2 (36 %, 64 %) is near its limit.",
    ),
    (
        r"bmm\[fp16-2x1024x1024x1024.*\]|silu_and_mul\[fp16-(1024|2048)x4096\]",
        "0.3 us of 9 to 13 us, of which more than half does not depend on the work: see `kernels.matmul`.",
    ),
    (
        r"swiglu\[(fp16|bf16|fp32)-[148]x128x(1024|2048|4096)\]",
        "0.1 to 0.3 us of 6 to 9 us, most of which do not depend on the work. Of 31 configurations the "
        "best were 1.02 to 1.05 times as fast as ours in one run, with intervals from 0.97 to 1.11, and "
        "other ones in each of five cases: there is nothing to choose by.",
    ),
    (
        r"matmul\[e4m3-(\d+)x\1x\1-transposed_b\]",
        "Sums that float32 takes over every 128 terms. In tensor cores all along (`fast_acc`, the same "
        "tiles) the product of 4096 takes 99.5 us in place of 123.9, beside cuBLAS' 98.0 and 104.9: the "
        "adding is in the code that tileiras makes of an `mma`, which the kernel does not write.",
    ),
    (
        r"group_gemm\[bf16-unequal.*\]",
        "944 tiles of 128x256 for 132 multiprocessors: 7.15 rounds take the time of 8, 11 % that is "
        "waited for.",
    ),
    (
        r"mla_decoding\[e(4m3|5m2)-bf16-(64|128)x16x.*\]",
        "Traffic of shared memory, as derived from the code that tileiras 13.4.92 makes for sm_90, not "
        "profiled. Of each byte of the cache, 8 pass through shared memory: TMA writes 1, 1 is read to be "
        "converted, 2 are written in float16, and tensor cores read them twice, for scores and values. For "
        "the scores two warp groups read the same tile, so that about 0.75 of the copy's bandwidth is the "
        "ceiling. Its 384 threads of 168 registers leave room for one block on a multiprocessor.",
    ),
    (
        r"mla_decoding\[e(4m3|5m2)(-bf16)?-(64|128)x128x.*\]",
        "Measured before it was tuned: in tiles of 32 heads, keys first (28e6989), 64 x 4096 keys take 378 "
        "us, beside 453 us of torch.compile in the run of the table.",
    ),
    (
        r"softmax\[bf16-2048x32768\]",
        "A row of 64 KiB fills a quarter of a multiprocessor's registers: two are there at a time, and each "
        "loads, then computes, then stores. Of 46 ways to write it (chunks that are read twice, or rows kept "
        "in 16 bits, in pieces of 2048 to 32768, with 4 or 8 warps, 1 to 8 blocks a multiprocessor, by TMA "
        "or not) none was reliably faster: 1.02 and 1.06 of it the best one in two runs, 0.86 at one block a "
        "multiprocessor, and less than 0.6 at three, where registers spill.",
    ),
)
"""(pattern of "kernel[case]", what bounds it)."""


def explain(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return (what bounds them, which of `names`), and at the end those of which it is not known."""
    found: dict[str, list[str]] = defaultdict(list)
    unknown = []
    for name in dict.fromkeys(names):
        why = next((text for pattern, text in BOUNDS if re.fullmatch(pattern, name)), None)
        if why is None:
            unknown.append(name)
        else:
            found[why].append(name)
    return [*found.items(), *([("Not looked into.", unknown)] if unknown else [])]
