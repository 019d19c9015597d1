"""What blocks that drift apart read, in an L2 of two partitions: `python -m studies.sawtooth.drift`.

Two changes of the model in `cache.py`, for the counters of an H100 (README.md, "Model and counters"):

- Each half of the addresses has its home in one partition, and so have half of the blocks. What a block loads
  from the other partition is kept in its own one, too.
- Blocks keep a speed of their own; nothing waits for anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from random import Random

from studies.sawtooth.cache import Lru, Walk, steps
from tools.gpu_runs.tables import aligned

PARTITIONS = 2


@dataclass(frozen=True, kw_only=True)
class Drifted:
    """What a launch loads, in bytes."""

    missed: float
    """By loads of the multiprocessors, in their own partition."""
    read: float
    """From memory."""


def drift(walk: Walk, *, l2_bytes: float, spread: float, seed: int = 0) -> Drifted:
    """Return what a launch misses and reads.

    Args:
        walk: How the blocks walk.
        l2_bytes: Of both partitions together.
        spread: Standard deviation of the blocks' speeds, as a fraction.
        seed: Of the speeds.
    """
    random = Random(seed)  # noqa: S311 - no secret
    partitions = [Lru(l2_bytes / PARTITIONS) for _ in range(PARTITIONS)]
    size = 2 * walk.chunk * walk.d * walk.itemsize // PARTITIONS
    missed = read = walk.heads * walk.n * walk.d * walk.itemsize  # Q
    blocks = range(min(walk.blocks, walk.heads * walk.tiles))
    seconds_per_step = [1 / max(0.1, random.gauss(1.0, spread)) for _ in blocks]
    walks = [steps(walk, block) for block in blocks]
    running = [(0.0, block) for block in blocks]
    heapify(running)
    while running:
        time, block = running[0]
        step = next(walks[block], None)
        if step is None:
            heappop(running)
            continue
        own = block % PARTITIONS
        for home in range(PARTITIONS):
            if partitions[own].use((step, home), size):
                continue
            missed += size
            if home == own or not partitions[home].use((step, home), size):
                read += size
        heapreplace(running, (time + seconds_per_step[block], block))
    return Drifted(missed=missed, read=read)


LENGTHS = (32768, 65536, 131072)
SPREADS = (0.0, 0.014)
SEEDS = 10
H100_BLOCKS, H100_L2_BYTES = 264, 50 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Print what an H100 should read and miss, as the range of some placements of the speeds."""
    argparse.ArgumentParser(
        prog="python -m studies.sawtooth.drift",
        description="Simulate what drifting blocks read in an L2 of two partitions (a minute, no GPU).",
    ).parse_args(argv)
    lines = []
    for n in LENGTHS:
        print(f"simulating {n} keys", file=sys.stderr, flush=True)
        for spread in SPREADS:
            for turning in (False, True):
                walk = Walk(heads=1, n=n, d=128, blocks=H100_BLOCKS, turning=turning)
                launches = [
                    drift(walk, l2_bytes=H100_L2_BYTES, spread=spread, seed=seed)
                    for seed in range(SEEDS if spread else 1)
                ]
                lines.append(
                    (
                        f"{n}",
                        f"{spread:.1%}",
                        "turning" if turning else "in order",
                        _range([launch.read for launch in launches]),
                        _range([launch.missed for launch in launches]),
                    )
                )
    print(aligned(("keys", "spread", "", "read, MB", "missed, MB"), lines))
    return 0


def _range(values: list[float]) -> str:
    low, high = (f"{value / 1e6:.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    sys.exit(main())
