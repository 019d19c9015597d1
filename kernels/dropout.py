"""Dropout: each element is set to zero with probability p, and the others are scaled up to keep the mean.

    y[i] = x[i] / (1 - p)   if word(seed, i) >= p * 2^32,   else 0

x and y share any shape and one dtype: float16, bfloat16 or float32. i counts elements row by row. `word` is
a random number of 32 bits that depends on the seed and on i alone, not on the configuration, the GPU or
anything that ran before. So the same call makes the same mask, and the backward pass is the same call on the
gradient; no mask is stored.

How it works: the numbers come from Philox-4x32-7, a counter-based generator: seven rounds of multiplications
and exclusive ors turn a counter of four words and a key of two into four random words. The key is the seed,
and neighbours share a counter, so that all four words are used:

    word(seed, i) = philox(counter = (i // 4, 0, 0, 0), key = (seed % 2^32, seed // 2^32))[i % 4]

Seven rounds are the fewest that its authors found to pass every test of TestU01's BigCrush; PyTorch uses ten,
for a margin. Seven rounds are 28 integer instructions per counter. That matters beside 16 bytes of memory
traffic for four elements of 16 bits, so no word is drawn twice: the four words of a counter are four tiles,
joined into one tile with a column for each word. All of it stays in registers.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011
(https://doi.org/10.1145/2063384.2063405); its library Random123
(https://github.com/DEShawResearch/random123).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import cuda.tile as ct

from kernels._cases import laid_out
from kernels._configs import check_fields
from kernels._dtypes import ITEMSIZE, SHORT
from kernels._launch import (
    ARCHITECTURES,
    check_config,
    check_integer,
    check_number,
    check_power_of_2,
    check_tensors,
    choose_by_width,
    find_arch,
    line_grid,
    next_power_of_2,
    on_its_gpu,
    with_hints,
)
from kernels._tiles import is_full, load_tile
from pytest_cutile import Case, KernelSpec, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

ConstInt: TypeAlias = ct.Constant[int]
ConstBool: TypeAlias = ct.Constant[bool]

# Philox-4x32: the multipliers, what is added to the key after each round, and how many rounds there are.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 7
WORDS = 4
"""Words that one counter gives."""

MAX_ELEMENTS = 2**31 - 1
"""Elements are counted with 32 bits."""
REFERENCE_COUNTERS = 1 << 20
"""Counters that the reference draws at a time: its integers are 64 bits wide."""


# -- configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DropoutConfig:
    """How the tensor is cut into tiles, and the compiler's hints. None of it changes the mask."""

    tile_elements: int = 4096
    """Elements per tile, a power of two of at least four."""
    occupancy: int | None = 2
    """Blocks that share a multiprocessor; None lets the compiler choose."""
    num_worker_warps: int | None = 8
    """Warps per block; None lets the compiler choose."""

    def __post_init__(self) -> None:
        check_fields(self, powers=("tile_elements",))
        check_power_of_2("DropoutConfig", "tile_elements", self.tile_elements, least=WORDS)


# H200, 2026-11-21, driver 580.159.04, cold L2, interleaved: 16 elements a thread are four counters, whose
# rounds overlap if there are registers to spare, more than the 64 a thread of before (8 blocks of 4 warps,
# 2048 elements each): 2^26 elements 74.2 us (78.2), 2^24 23.0 us (24.6), 2^22 10.1 us (10.8), 2^20 6.6 us
# (7.1), all with ten rounds instead of today's seven. Only fp16 was measured. Blocks that loop over several
# tiles were slower.
#
# fp32, 2026-11-22, seven rounds, in parentheses as fp16: 2^26 elements 129.5 us (135.1), 2^25 68.1 us (70.3),
# 2^24 37.0 us (37.7). No other was better than that with 2^22, 13.6 us, or 2^20, 7.2 us.
#
# fp16 again, 2026-11-23, seven rounds, blocks counted on the second axis, in parentheses as before: 2^26
# elements 69.8 us (70.7), 2^24 21.8 us (22.0), and 2^27 of bf16 134.9 us (135.7); 2^22 10.2 us (9.4). fp32:
# 2^22 13.6 us (14.0).
_LARGE_16_BIT = DropoutConfig(tile_elements=2048, occupancy=10, num_worker_warps=4)
_MIDDLE_32_BIT = DropoutConfig(tile_elements=1024, occupancy=16, num_worker_warps=4)
_LARGE_32_BIT = DropoutConfig(tile_elements=1024, occupancy=4)
# By itemsize: (most elements, configuration).
_MEASURED = {
    2: ((2**24 - 1, DropoutConfig()), (math.inf, _LARGE_16_BIT)),
    4: ((2**21, DropoutConfig()), (2**24 - 1, _MIDDLE_32_BIT), (math.inf, _LARGE_32_BIT)),
}
# Not measured, except on sm_90 and where an entry says so.
CONFIGS = dict.fromkeys(ARCHITECTURES, _MEASURED)
DEFAULT_CONFIGS = _MEASURED
"""For architectures that are not in the table."""


def choose_config(arch: str, *, elements: int, itemsize: int) -> DropoutConfig:
    """Return the configuration for `arch` and as many `elements` of `itemsize` bytes."""
    return choose_by_width(CONFIGS.get(arch, DEFAULT_CONFIGS)[itemsize], elements)


# -- kernel -----------------------------------------------------------------------------------------


def multiply_wide(x: ct.Tile, FACTOR: ConstInt) -> tuple[ct.Tile, ct.Tile]:
    """Return the upper and the lower 32 bits of x times a constant; one instruction makes both."""
    product = x.astype(ct.uint64) * FACTOR
    return (product >> 32).astype(ct.uint32), product.astype(ct.uint32)


def philox(counter: tuple[ct.Tile, ...], key: tuple[ct.Tile, ct.Tile]) -> tuple[ct.Tile, ...]:
    """Return the four words of Philox-4x32-7 for each counter: four tiles of uint32, as the counter is."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in ct.static_iter(range(ROUNDS)):
        high0, low0 = multiply_wide(c0, MULTIPLIERS[0])
        high1, low1 = multiply_wide(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    return c0, c1, c2, c3


def draw_words(tile: int, seed_low: int, seed_high: int, TILE: ConstInt) -> ct.Tile:
    """Return the random words of the elements of the `tile`-th tile: `[TILE / 4, 4]`, row by row."""
    groups = TILE // WORDS
    # In unsigned arithmetic throughout: the last element's counter is below 2^29.
    first = ct.arange(groups, dtype=ct.uint32) + ct.astype(tile * groups, ct.uint32)
    c0 = first.reshape((groups, 1))
    zero = ct.zeros((groups, 1), dtype=ct.uint32)
    key = ct.bitcast(seed_low, ct.uint32), ct.bitcast(seed_high, ct.uint32)
    w0, w1, w2, w3 = philox((c0, zero, zero, zero), key)  # each [TILE / 4, 1]
    # Selecting costs nothing: which word an element takes is known when the kernel is compiled.
    word = ct.arange(WORDS, dtype=ct.int32).reshape((1, WORDS))
    return ct.where(word == 0, w0, ct.where(word == 1, w1, ct.where(word == WORDS - 1, w3, w2)))


def drop_tile(
    X: ct.Array,
    Y: ct.Array,
    tile: int,
    seed_low: int,
    seed_high: int,
    threshold: int,
    scale: float,
    TILE: ConstInt,
    INSIDE: ConstBool,
) -> None:
    """Compute the `tile`-th tile; `INSIDE` says that none of it is past the end."""
    x = load_tile(X, (tile,), (TILE,), INSIDE=INSIDE).reshape((TILE // WORDS, WORDS))
    keep = draw_words(tile, seed_low, seed_high, TILE) >= ct.bitcast(threshold, ct.uint32)
    # Not a product with the mask: that would make NaN of an infinity that is dropped.
    y = ct.where(keep, x.astype(ct.float32) * scale, 0.0)
    ct.store(Y, (tile,), y.astype(Y.dtype).reshape((TILE,)), check_bounds=not INSIDE, allow_tma=False)


@ct.kernel
def dropout_kernel(
    X: ct.Array,
    Y: ct.Array,
    seed_low: int,
    seed_high: int,
    threshold: int,
    scale: float,
    TILE: ConstInt,
    AXIS: ConstInt,
) -> None:
    """Compute one tile, of which the last may stick out; blocks are counted on `AXIS` of the grid."""
    tile = ct.bid(AXIS)
    if is_full(tile, X.shape[0], TILE):
        drop_tile(X, Y, tile, seed_low, seed_high, threshold, scale, TILE, True)
    else:
        drop_tile(X, Y, tile, seed_low, seed_high, threshold, scale, TILE, False)


# -- launcher ---------------------------------------------------------------------------------------


def _as_int32(word: int) -> int:
    """Return the signed integer with the 32 bits of `word`: what a kernel takes."""
    return word - 2**32 if word >= 2**31 else word


def _threshold(p: float) -> int:
    """Return p * 2^32, rounded, as the smallest word that keeps an element."""
    return min(round(p * 2**32), 2**32 - 1)


@on_its_gpu
def dropout(
    x: torch.Tensor, p: float = 0.5, *, seed: int, config: DropoutConfig | None = None
) -> torch.Tensor:
    """Set each element to zero with probability `p`, and multiply the others by 1 / (1 - p).

    Forward only: no gradient flows through it.

    Backward: the same call on the gradient of the output is the gradient of `x`. A CUDA graph keeps the
    seed that it was captured with.

    Args:
        x: Any shape, float16, bfloat16 or float32. Copied if it is not contiguous.
        p: Probability of being dropped, in [0, 1]; 1 drops everything.
        seed: Integer in [0, 2^64). Another seed, another mask; the same for every tensor that shares one.
        config: Instead of the one chosen for this GPU. It does not change the mask.

    Returns:
        Same shape, dtype and device, contiguous.

    Raises:
        TypeError: Not a tensor, a dtype that is not supported, a `p` that is no number or a `seed` that is no
            integer, another kernel's configuration.
        ValueError: `p` or `seed` out of range, 2^31 elements or more, or more tiles than one launch takes.
    """
    import torch

    check_tensors("dropout", {"x": x}, dtypes=("float16", "bfloat16", "float32"))
    check_config("dropout", config, DropoutConfig)
    p = check_number("dropout", "p", p)
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p must be a probability between 0 and 1, got {p}")
    seed = check_integer("dropout", "seed", seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"dropout: seed must be in [0, 2^64), got {seed}")
    if x.numel() > MAX_ELEMENTS:
        raise ValueError(f"dropout: x has {x.numel()} elements; at most {MAX_ELEMENTS} are supported")
    if x.numel() == 0 or p == 1:
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)

    arch = find_arch("dropout", x, CONFIGS)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    config = config or choose_config(arch, elements=x.numel(), itemsize=x.element_size())
    n = x.numel()
    tile = min(config.tile_elements, max(next_power_of_2(n), WORDS))
    grid, axis = line_grid("dropout", ct.cdiv(n, tile), "tiles of x", "take larger tile_elements")
    ct.launch(
        torch.cuda.current_stream(),
        grid,
        with_hints(dropout_kernel, config),
        (
            x.reshape(-1),
            y.view(-1),
            _as_int32(seed % 2**32),
            _as_int32(seed >> 32),
            _as_int32(_threshold(p)),
            1 / (1 - p),
            tile,
            axis,
        ),
    )
    return y


# -- what it is gated with --------------------------------------------------------------------------


def philox_in_torch(counter: tuple[torch.Tensor, ...], seed: int) -> tuple[torch.Tensor, ...]:
    """Return the four words of Philox-4x32-7, each in an int64: PyTorch's unsigned integers can do little.

    Args:
        counter: Four tensors of int64, least significant word first.
        seed: The key, its lower word first.
    """
    mask = 2**32 - 1
    c0, c1, c2, c3 = counter
    k0, k1 = seed & mask, seed >> 32
    for _ in range(ROUNDS):
        # A product of 2^63 or more wraps to a negative number, whose bits are the right ones.
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        high0, high1 = (product0 >> 32) & mask, (product1 >> 32) & mask
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & mask, high0 ^ c3 ^ k1, product0 & mask
        k0, k1 = (k0 + WEYL[0]) & mask, (k1 + WEYL[1]) & mask
    return c0, c1, c2, c3


def words_in_torch(start: int, end: int, seed: int, device: torch.device | str) -> torch.Tensor:
    """Return word(seed, i) for the elements i in [start, end), as int64."""
    import torch

    counters = torch.arange(start // WORDS, -(-end // WORDS), device=device)
    zero = torch.zeros_like(counters)
    words = torch.stack(philox_in_torch((counters, zero, zero, zero), seed), dim=1).flatten()
    first = start - start % WORDS
    return words[start - first : end - first]


def reference(
    x: torch.Tensor, p: float, seed: int, *, origin: Mapping[str, tuple[int, ...]] | None = None
) -> torch.Tensor:
    """Follow the formula in float64, a piece of the tensor at a time; with `origin` x is a part of it."""
    import torch

    before = origin["x"][0] * math.prod(x.shape[1:]) if origin else 0

    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    if p == 1:
        return y
    flat_x, flat_y = x.reshape(-1), y.view(-1)
    piece = REFERENCE_COUNTERS * WORDS
    for start in range(0, x.numel(), piece):
        end = min(start + piece, x.numel())
        keep = words_in_torch(before + start, before + end, seed, x.device) >= _threshold(p)
        flat_y[start:end] = torch.where(keep, flat_x[start:end] / (1 - p), 0.0)
    return y


def inputs(
    make_tensor: Callable[..., torch.Tensor],
    *,
    shape: tuple[int, ...],
    dtype: str,
    p: float,
    seed: int,
    transposed: bool = False,
) -> dict[str, Any]:
    """Make x of `shape`; `transposed` makes it a matrix whose columns are contiguous."""
    x = make_tensor(shape[::-1], dtype).T if transposed else make_tensor(shape, dtype)
    return {"x": x, "p": p, "seed": seed}


def work(*, shape: tuple[int, ...], dtype: str, p: float, seed: int, transposed: bool = False) -> Work:
    """Count bytes only: x read once, y written once."""
    del p, seed, transposed  # the same work, whatever they are
    return Work(bytes=2.0 * math.prod(shape) * ITEMSIZE[dtype], dtype=dtype)


def _case(
    dtype: str,
    *shape: int,
    p: float = 0.5,
    seed: int = 2026,
    transposed: bool = False,
    speed: bool = False,
) -> Case:
    short = SHORT[dtype]
    name = f"{short}-{'x'.join(map(str, shape))}-p{p:g}" + "-transposed" * transposed
    params = {"shape": shape, "dtype": dtype, "p": p, "seed": seed, "transposed": transposed}
    return Case(name=name, params=params, speed=speed)


SPEC = KernelSpec(
    name="dropout",
    launch=dropout,
    reference=reference,
    inputs=inputs,
    work=work,
    independent={"x": ("rows",), "output": ("rows",)},
    cases=[
        # 268 or 537 MB: TileGym's largest and a larger one, and activations as models have them.
        _case("float16", 2**26, speed=True),
        _case("bfloat16", 32768, 4096, p=0.1, speed=True),
        _case("float32", 16384, 2048, speed=True),
        # To each side of one tile, of several and of a counter; seeds of one word and of two.
        _case("float16", 4096, seed=0),
        _case("bfloat16", 4095, seed=1),
        _case("float32", 4097, seed=2**31),
        _case("float16", 5, seed=2**32),
        _case("bfloat16", 1024, seed=2**64 - 1),
        _case("float32", 8191, seed=0x0123_4567_89AB_CDEF),
        # More than 2^21 elements of 32 bits, which have tiles of their own.
        _case("float32", 2050, 1025),
        # Nothing dropped, a little, most; p = 1 launches no kernel.
        _case("float16", 300, p=0.0),
        _case("bfloat16", 300, p=0.1),
        _case("float32", 300, p=0.9),
        _case("float32", 300, p=1 / 3),
        # Any rank, one element, three, columns contiguous: the mask goes by rows all the same.
        _case("bfloat16", 3, 5, 7, 11),
        _case("float16", 1, p=0.25),
        _case("float32", 3, p=0.25),
        _case("float16", 96, 200, transposed=True),
        # Rows that lie apart, and tensors that begin anywhere.
        laid_out(_case("float16", 37, 300), "padded"),
        laid_out(_case("bfloat16", 1030), "shifted"),
    ],
)
