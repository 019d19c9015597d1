"""A model of the L2: which of the bytes that attention loads does it hold, walked in order or turning around?

The L2 is a fully associative cache that evicts what was used longest ago (LRU). Blocks run in step: in each
step all blocks take their next keys, and those that take the same keys load them once. Keys and values come
in chunks; queries and results pass through once. What real caches do besides is left out: sets, other
policies of eviction, blocks that drift apart (`drift.py`). So the misses are the fewest to expect: an H100
reads several times as much (README.md, "Model and counters").

On GPUs of two partitions, each with its own L2, both may hold a copy of what all blocks read: NVIDIA says of
the A100 that each partition caches data for the multiprocessors that are connected to it ("NVIDIA A100 Tensor
Core GPU Architecture", 2020). Then half of the L2 is left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cache

SECTOR_BYTES = 32
"""What the L2 counts and loads: docs.nvidia.com/nsight-compute/ProfilingGuide, "sector"."""
MOST_CHUNKS = 128
"""Chunks of a walk over all keys: finer ones only take time."""


@dataclass(frozen=True, kw_only=True)
class Walk:
    """How the blocks of one launch walk over keys and values."""

    heads: int
    """Heads of all batches."""
    n: int
    """Queries, and keys, of a head."""
    d: int
    """Dimensions of a head."""
    blocks: int
    """Blocks that run together, each on tile after tile."""
    tile_m: int = 64
    """Queries of a tile."""
    itemsize: int = 2
    causal: bool = False
    turning: bool = False
    """Whether every second wave walks forward."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of a head."""
        return 2 * self.n * self.d * self.itemsize

    @property
    def chunk(self) -> int:
        """Keys of a chunk."""
        return max(64, -(-self.n // MOST_CHUNKS))

    @property
    def tiles(self) -> int:
        """Tiles of queries of a head."""
        return -(-self.n // self.tile_m)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a launch asked of the L2, in bytes."""

    looked_up: float
    """By each block for itself."""
    missed: float
    """What came from memory."""
    compulsory: float
    """What was asked for at all: a cache without end misses so much."""

    @property
    def avoidable(self) -> float:
        """What a larger cache would not miss."""
        return self.missed - self.compulsory


@dataclass
class Lru:
    """A cache of `capacity` bytes."""

    capacity: float
    missed: float = 0.0
    _held: OrderedDict[Hashable, int] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def use(self, key: Hashable, size: int) -> bool:
        """Load `size` bytes; return whether they were there."""
        if key in self._held:
            self._held.move_to_end(key)
            return True
        self.missed += size
        self._held[key] = size
        self._bytes += size
        while self._bytes > self.capacity and self._held:
            self._bytes -= self._held.popitem(last=False)[1]
        return False


@cache
def traffic(walk: Walk, *, l2_bytes: float) -> Traffic:
    """Return what one launch looks up and misses in an L2 of `l2_bytes`."""
    l2 = Lru(l2_bytes)
    chunk_bytes = 2 * walk.chunk * walk.d * walk.itemsize
    looked_up = 0.0
    blocks = [steps(walk, first) for first in range(min(walk.blocks, walk.heads * walk.tiles))]
    while blocks:
        running = []
        asked: dict[tuple[int, int], None] = {}
        for block in blocks:
            step = next(block, None)
            if step is None:
                continue
            running.append(block)
            asked[step] = None
            looked_up += chunk_bytes
        for step in asked:
            l2.use(step, chunk_bytes)
        blocks = running
    passing = 2 * walk.heads * walk.n * walk.d * walk.itemsize  # Q and O
    return Traffic(
        looked_up=looked_up + passing,
        missed=l2.missed + passing,
        compulsory=walk.heads * walk.kv_bytes + passing,
    )


def steps(walk: Walk, first: int) -> Iterator[tuple[int, int]]:
    """Yield head and chunk of what the block that starts with tile `first` loads, one after the other."""
    for wave, number in enumerate(range(first, walk.heads * walk.tiles, walk.blocks)):
        head, back = divmod(number, walk.tiles)
        last_row = min((walk.tiles - back) * walk.tile_m, walk.n)  # the last tile of a head comes first
        chunks = range(-(-(last_row if walk.causal else walk.n) // walk.chunk))
        # The kernel takes the diagonal first in both directions; that is one chunk of many.
        for chunk in chunks if walk.turning and wave % 2 else reversed(chunks):
            yield head, chunk
