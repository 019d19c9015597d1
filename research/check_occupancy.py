"""Compare `pytest_cutile.words.platforms.occupancy` with NVIDIA's own calculation, over a dense grid.

Needs no GPU.

    python -m research.check_occupancy

compiles a small C program against the `cuda_occupancy.h` of the installed CUDA wheels (or of CUDA_HOME), and
asks it and `occupancy` about every number of registers from 16 to 255, every whole number of warps and some
broken ones, and shared memory from 0 to one byte too much: each edge where the number of blocks changes, and
steps between. Prints one line per architecture and exits with 1 when the two differ anywhere. Takes a minute.

tests/core makes the same comparison over fewer combinations.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_cutile.words.platforms.data import Architecture, hardware
from tests.words.platforms.compare_occupancy import (
    Grid,
    build,
    compare,
    find_compiler,
    find_header,
    release_of,
    shared_edges,
)

_SHARED_STEP_BYTES = 1999  # prime: meets every remainder of the allocation unit
_SHOWN = 5


def _dense_grid(limits: Architecture) -> Grid:
    between = range(0, limits.max_shared_bytes_per_block + 1, _SHARED_STEP_BYTES)
    return Grid(
        registers_per_thread=range(16, 256),
        threads_per_block=sorted({*range(32, 1025, 32), 1, 33, 100, 255, 1023, 1025}),
        shared_bytes_per_block=sorted({*between, *shared_edges(limits)}),
    )


def main() -> int:
    """Print the table; return 1 when there is a difference, or nothing to compare with."""
    compiler, header = find_compiler(), find_header()
    if compiler is None or header is None:
        missing = "a C compiler (gcc)" if compiler is None else "cuda_occupancy.h (nvidia-cuda-runtime)"
        print(f"nothing was compared: {missing} is not installed")
        return 1
    start = time.perf_counter()
    different = 0
    print(f"{'arch':8} {'combinations':>12} {'differences':>11}")
    with tempfile.TemporaryDirectory(prefix="check-occupancy-") as folder:
        program = build(compiler, header, Path(folder))
        for arch, limits in hardware().architectures.items():
            comparison = compare(program, arch, limits, _dense_grid(limits))
            if not comparison.known:
                print(f"{arch:8} the header does not know it")
                continue
            different += len(comparison.differences)
            print(f"{arch:8} {comparison.combinations:12,} {len(comparison.differences):11,}", flush=True)
            for line in comparison.differences[:_SHOWN]:
                print(f"{'':8} {line}")
    release = ".".join(map(str, release_of(header)))
    print(f"cuda_occupancy.h of CUDA {release}, {time.perf_counter() - start:.0f} s")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
