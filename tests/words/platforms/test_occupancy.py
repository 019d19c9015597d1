"""The calculator of blocks per multiprocessor: examples by hand, properties, and NVIDIA's own calculation."""

import dataclasses
import itertools
import re
from typing import Any

import pytest

from pytest_cutile.tile.compiler.toolchain import CompilerMissing, supported_architectures
from pytest_cutile.words.platforms.architectures import ArchitectureError
from pytest_cutile.words.platforms.data import Architecture, hardware
from pytest_cutile.words.platforms.lookup import find_architecture
from pytest_cutile.words.platforms.occupancy import Limiter, occupancy
from tests.words.platforms.compare_occupancy import (
    Grid,
    build,
    compare,
    find_compiler,
    find_header,
    release_of,
    shared_edges,
)

KIB = 1024
LIMITS = hardware().architectures
OF_TILEIRAS_13_4 = [
    "sm_80",
    "sm_86",
    "sm_87",
    "sm_88",
    "sm_89",
    "sm_90",
    "sm_100",
    "sm_103",
    "sm_107",
    "sm_110",
    "sm_120",
    "sm_121",
]
REGISTERS = (16, 24, 25, 32, 33, 40, 64, 65, 96, 128, 129, 168, 200, 255)
THREADS = (1, 32, 96, 128, 257, 384, 512, 1024, 1025)

each_architecture = pytest.mark.parametrize("arch", OF_TILEIRAS_13_4)


def of(arch: str, registers: int, threads: int, shared: int = 0, **more: int):
    return occupancy(
        LIMITS[arch],
        registers_per_thread=registers,
        threads_per_block=threads,
        shared_bytes_per_block=shared,
        **more,
    )


# -- by hand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "shared", "blocks", "limited_by"),
    [
        # A warp: 128 * 32 = 4096 registers. A quarter of the SM: 16384 / 4096 = 4 warps, so 16 in all, and a
        # block has 8.
        ("sm_90", 128, 256, 0, 2, ["registers"]),
        # 33 * 32 = 1056, handed out as 1280. 16384 / 1280 = 12.8, so 12 warps a quarter, 48 in all; 48 / 3 is
        # 16. 65536 / (33 * 96) would have promised 20.
        ("sm_80", 33, 96, 0, 16, ["registers"]),
        # 88 * 32 = 2816. 16384 / 2816 = 5.8, so 5 a quarter, 20 in all; 20 / 7 = 2. Were the registers one
        # pool, 65536 / 2816 = 23 warps would make 3 blocks.
        ("sm_90", 88, 224, 0, 2, ["registers"]),
        # 168 * 32 = 5376. 16384 / 5376 = 3.05: 12 warps, one block of 12.
        ("sm_90", 168, 384, 0, 1, ["registers"]),
        # 65 * 32 = 2080, handed out as 2304: 7 warps a quarter, 28 in all, and a block has 32.
        ("sm_90", 65, 1024, 0, 0, ["registers"]),
        # (100 + 1) KiB twice are 202 of 228.
        ("sm_90", 32, 128, 100 * KIB, 2, ["shared memory"]),
        # (113 + 1) KiB twice are 228. One byte more is handed out as 128 more.
        ("sm_90", 32, 128, 113 * KIB, 2, ["shared memory"]),
        ("sm_90", 32, 128, 113 * KIB + 1, 1, ["shared memory"]),
        ("sm_86", 32, 128, 99 * KIB, 1, ["shared memory"]),
        ("sm_86", 32, 128, 99 * KIB + 1, 0, ["shared memory"]),
        # No shared memory still takes the system's 1 KiB: 100 of them would fit, 16 blocks are allowed.
        # Registers: 40 * 32 = 1280, 12 a quarter, 48 / 2 = 24. Warps: 48 / 2 = 24.
        ("sm_86", 40, 64, 0, 16, ["blocks"]),
        # The same on Ada, which has places for 24 blocks: all three bind.
        ("sm_89", 40, 64, 0, 24, ["registers", "threads", "blocks"]),
        # 48 warps hold one block of 32. Registers: 32 * 32 = 1024, 16 a quarter, 64 / 32 = 2.
        ("sm_120", 32, 1024, 0, 1, ["threads"]),
        # 64 warps, two blocks of 32, for warps and registers alike.
        ("sm_100", 32, 1024, 0, 2, ["registers", "threads"]),
        # A block of 33 threads has two warps, as one of 64: 64 / 2 = 32.
        ("sm_90", 16, 33, 0, 32, ["threads", "blocks"]),
        ("sm_90", 16, 1025, 0, 0, ["threads"]),
        ("sm_90", 256, 32, 0, 0, ["registers"]),
        # An empty kernel may use no register at all.
        ("sm_90", 0, 64, 0, 32, ["threads", "blocks"]),
        # What tileiras 13.4 made of a matmul that asks for two blocks: 165012 bytes with the system's 1024.
        # Handed out as 165120; twice that is 330240 of 335872, which 228 KiB could not hold.
        ("sm_107", 128, 256, 165012 - 1024, 2, ["registers", "shared memory"]),
    ],
)
def test_by_hand(arch, registers, threads, shared, blocks, limited_by) -> None:
    result = of(arch, registers, threads, shared)
    assert result.blocks == blocks
    assert list(result.limited_by) == limited_by
    assert result.warps == blocks * -(-threads // 32)


# -- properties ---------------------------------------------------------------------------------------


def never_rises(blocks: list[int]) -> bool:
    return all(before >= after for before, after in itertools.pairwise(blocks))


@each_architecture
def test_asking_for_more_never_gives_more_blocks(arch) -> None:
    edges = shared_edges(LIMITS[arch])
    for threads, shared in itertools.product(THREADS, edges[::9]):
        assert never_rises([of(arch, registers, threads, shared).blocks for registers in range(0, 257, 3)])
    for registers, shared in itertools.product(REGISTERS, edges[::9]):
        assert never_rises([of(arch, registers, threads, shared).blocks for threads in range(1, 1026, 31)])
    for registers, threads in itertools.product(REGISTERS, THREADS):
        assert never_rises([of(arch, registers, threads, shared).blocks for shared in edges])


@each_architecture
def test_what_is_resident_fits(arch) -> None:
    limits = LIMITS[arch]
    for registers, threads, shared in itertools.product(REGISTERS, THREADS, shared_edges(limits)[::3]):
        result = of(arch, registers, threads, shared)
        assert 0 <= result.blocks <= limits.max_blocks_per_sm
        assert result.warps <= limits.max_threads_per_sm // 32
        assert result.warps * 32 * registers <= limits.registers_per_sm
        assert result.blocks * (shared + KIB) <= limits.shared_bytes_per_sm
        assert result.limited_by


@each_architecture
def test_lifting_every_limit_that_is_named_gives_more_blocks_and_lifting_others_does_not(arch) -> None:
    limits = LIMITS[arch]
    lifted = {
        Limiter.REGISTERS: {"registers_per_sm": 2**24},
        Limiter.SHARED_MEMORY: {"shared_bytes_per_sm": 2**24},
        Limiter.THREADS: {"max_threads_per_sm": 2**16},
        Limiter.BLOCKS: {"max_blocks_per_sm": 2**16},
    }
    for registers, threads, shared in itertools.product(REGISTERS, THREADS[:-1], shared_edges(limits)[::7]):
        if shared > limits.max_shared_bytes_per_block:
            continue

        def blocks_with(limiters, asked=(registers, threads, shared)):
            changes: dict[str, Any] = {}
            for limiter in limiters:
                changes |= lifted[limiter]
            registers, threads, shared = asked
            return occupancy(
                dataclasses.replace(limits, **changes),
                registers_per_thread=registers,
                threads_per_block=threads,
                shared_bytes_per_block=shared,
            ).blocks

        result = of(arch, registers, threads, shared)
        assert blocks_with(result.limited_by) > result.blocks
        assert blocks_with(set(lifted) - set(result.limited_by)) == result.blocks


# -- the table ----------------------------------------------------------------------------------------


def test_has_every_architecture_of_tileiras_and_no_other() -> None:
    assert list(LIMITS) == OF_TILEIRAS_13_4


def test_has_every_architecture_of_the_installed_tileiras() -> None:
    try:
        installed = supported_architectures()
    except CompilerMissing as error:
        pytest.skip(str(error))
    assert [arch for arch in installed if find_architecture(arch) is None] == []


@each_architecture
def test_says_where_its_figures_come_from(arch) -> None:
    assert re.search(r"[A-Z].*, https://\S+$", LIMITS[arch].source)


@each_architecture
def test_figures_agree_with_each_other(arch) -> None:
    limits = LIMITS[arch]
    assert limits.max_threads_per_sm % (limits.warp_size * limits.warp_allocation_granularity) == 0
    assert (
        limits.registers_per_sm % (limits.register_allocation_unit * limits.warp_allocation_granularity) == 0
    )
    assert limits.shared_bytes_per_sm % limits.shared_allocation_unit_bytes == 0
    assert limits.max_shared_bytes_per_block == (
        limits.shared_bytes_per_sm - limits.reserved_shared_bytes_per_block
    )
    assert limits.max_threads_per_block <= limits.max_threads_per_sm
    assert limits.has_clusters == (int(arch.removeprefix("sm_")) >= 90)


@pytest.mark.parametrize(
    ("arch", "threads", "blocks", "shared_kib_per_block"),
    [
        ("sm_80", 2048, 32, 163),
        ("sm_87", 1536, 16, 163),
        ("sm_89", 1536, 24, 99),
        ("sm_90", 2048, 32, 227),
        ("sm_107", 1024, 16, 327),
        ("sm_110", 1536, 24, 227),
        ("sm_121", 1536, 24, 99),
    ],
)
def test_figures_are_those_of_the_programming_guide(arch, threads, blocks, shared_kib_per_block) -> None:
    limits = LIMITS[arch]
    assert limits.max_threads_per_sm == threads
    assert limits.max_blocks_per_sm == blocks
    assert limits.max_shared_bytes_per_block == shared_kib_per_block * KIB


@pytest.mark.parametrize("spelling", ["sm_90", "SM_90", "90", "sm_90a"])
def test_is_found_in_every_spelling(spelling) -> None:
    assert find_architecture(spelling) is LIMITS["sm_90"]


def test_what_is_not_in_the_table_has_no_limits() -> None:
    assert find_architecture("sm_75") is None
    with pytest.raises(ArchitectureError, match="names no GPU architecture"):
        find_architecture("hopper")


def test_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LIMITS["sm_90"].max_blocks_per_sm = 64  # type: ignore[misc]
    with pytest.raises(TypeError):
        LIMITS["sm_75"] = LIMITS["sm_80"]  # type: ignore[index]


# -- NVIDIA's calculation -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvidia_occupancy(tmp_path_factory):
    compiler, header = find_compiler(), find_header()
    if compiler is None or header is None:
        pytest.skip("needs gcc and the cuda_occupancy.h of the CUDA toolkit")
    if release_of(header) < (13, 0):
        pytest.skip(f"{header} is older than CUDA 13.0, the oldest that was compared")
    return build(compiler, header, tmp_path_factory.mktemp("occupancy"))


def coarse_grid(limits: Architecture) -> Grid:
    shared = [*shared_edges(limits), *range(5000, limits.max_shared_bytes_per_block, 50_001)]
    return Grid(registers_per_thread=REGISTERS, threads_per_block=THREADS, shared_bytes_per_block=shared)


@each_architecture
def test_agrees_with_nvidia(arch, nvidia_occupancy) -> None:
    limits = LIMITS[arch]
    result = compare(nvidia_occupancy, arch, limits, coarse_grid(limits))
    if not result.known:
        pytest.skip(f"this cuda_occupancy.h does not know {arch}")
    assert result.differences == ()
    assert result.combinations > 2000


def test_a_wrong_figure_is_noticed(nvidia_occupancy) -> None:
    right = LIMITS["sm_90"]
    changes: list[dict[str, Any]] = [
        {"max_blocks_per_sm": 31},
        {"register_allocation_unit": 512},
        {"warp_allocation_granularity": 2},
        {"shared_allocation_unit_bytes": 256},
        {"shared_bytes_per_sm": 200 * KIB},
    ]
    for change in changes:
        wrong = dataclasses.replace(right, **change)
        assert compare(nvidia_occupancy, "sm_90", wrong, coarse_grid(right)).differences
