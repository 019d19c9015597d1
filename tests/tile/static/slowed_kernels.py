"""An activation and a product, and what makes them slower: for tests of the predicted time."""

from typing import TypeAlias

import cuda.tile as ct
import torch

ConstInt: TypeAlias = ct.Constant[int]
ROWS, COLUMNS = 8192, 4096
SIZE = 4096


@ct.function
def gelu_of(x):
    return 0.5 * x * (1.0 + ct.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@ct.kernel
def gelu_kernel(X, Y, TILE: ConstInt):
    x = ct.load(X, (ct.bid(0),), (TILE,))
    ct.store(Y, (ct.bid(0),), gelu_of(x.astype(ct.float32)).astype(Y.dtype))


@ct.kernel
def gelu_in_other_words_kernel(SOURCE, TARGET, WIDTH: ConstInt):
    block = ct.bid(0)
    values = ct.load(SOURCE, (block,), (WIDTH,)).astype(ct.float32)
    inner = 0.7978845608 * (values + values * values * values * 0.044715)
    ct.store(TARGET, (block,), ((ct.tanh(inner) + 1.0) * (values * 0.5)).astype(TARGET.dtype))


@ct.kernel
def gelu_unrolled_kernel(X, Y, TILE: ConstInt):
    """Compute two tiles per block."""
    for at in ct.static_iter(range(2)):
        x = ct.load(X, (2 * ct.bid(0) + at,), (TILE,))
        ct.store(Y, (2 * ct.bid(0) + at,), gelu_of(x.astype(ct.float32)).astype(Y.dtype))


@ct.kernel
def gelu_float64_kernel(X, Y, TILE: ConstInt):
    x = ct.load(X, (ct.bid(0),), (TILE,))
    ct.store(Y, (ct.bid(0),), gelu_of(x.astype(ct.float64)).astype(Y.dtype))


@ct.kernel
def gelu_gathered_kernel(X, Y, TILE: ConstInt, STRIDE: ConstInt):
    """Element i of a block is `STRIDE` elements from the next one."""
    at = ct.bid(0) + STRIDE * ct.arange(TILE, dtype=ct.int32)
    x = ct.gather(X, at)
    ct.scatter(Y, at, gelu_of(x.astype(ct.float32)).astype(Y.dtype))


@ct.kernel
def gelu_of_rows_kernel(X, ROWS_OF_X, Y, TILE: ConstInt):
    """Each element comes from where a table says, which the launch does not know."""
    row = ct.load(ROWS_OF_X, (ct.bid(0),), (TILE,))
    x = ct.gather(X, row)
    ct.store(Y, (ct.bid(0),), gelu_of(x.astype(ct.float32)).astype(Y.dtype))


@ct.kernel
def gelu_divided_kernel(X, Y, TILE: ConstInt, APPROXIMATE: ct.Constant[bool]):
    x = ct.load(X, (ct.bid(0),), (TILE,)).astype(ct.float32)
    how = ct.RoundingMode.APPROX if APPROXIMATE else ct.RoundingMode.RN
    ct.store(Y, (ct.bid(0),), ct.truediv(gelu_of(x), x, rounding_mode=how).astype(Y.dtype))


@ct.kernel
def product_kernel(A, B, C, M: ConstInt, N: ConstInt, K: ConstInt, LATENCY: ConstInt, TIMES: ConstInt):
    sums = ct.zeros((M, N), dtype=ct.float32)
    for _ in ct.static_iter(range(TIMES)):
        for k in range(ct.cdiv(A.shape[1], K)):
            a = ct.load(A, (ct.bid(0), k), (M, K), latency=LATENCY)
            b = ct.load(B, (k, ct.bid(1)), (K, N), latency=LATENCY)
            sums = ct.mma(a, b, sums)
    ct.store(C, (ct.bid(0), ct.bid(1)), sums.astype(C.dtype))


@ct.kernel
def product_float64_kernel(A, B, C, M: ConstInt, N: ConstInt, K: ConstInt):
    sums = ct.zeros((M, N), dtype=ct.float64)
    for k in range(ct.cdiv(A.shape[1], K)):
        a = ct.load(A, (ct.bid(0), k), (M, K)).astype(ct.float64)
        b = ct.load(B, (k, ct.bid(1)), (K, N)).astype(ct.float64)
        sums = ct.mma(a, b, sums)
    ct.store(C, (ct.bid(0), ct.bid(1)), sums.astype(C.dtype))


@ct.kernel
def product_gathered_kernel(A, B, C, M: ConstInt, N: ConstInt, K: ConstInt):
    sums = ct.zeros((M, N), dtype=ct.float32)
    rows = ct.bid(0) * M + ct.arange(M, dtype=ct.int32).reshape((M, 1))
    for k in range(ct.cdiv(A.shape[1], K)):
        columns = k * K + ct.arange(K, dtype=ct.int32).reshape((1, K))
        a = ct.gather(A, (rows, columns))
        b = ct.load(B, (k, ct.bid(1)), (K, N))
        sums = ct.mma(a, b, sums)
    ct.store(C, (ct.bid(0), ct.bid(1)), sums.astype(C.dtype))


@ct.kernel
def counted_on_the_way_kernel(X, Y, TILE: ConstInt):
    """Loop as often as the data says."""
    times = ct.load(X, (0,), (1,)).astype(ct.int32).item()
    sums = ct.zeros((TILE,), dtype=ct.float32)
    for k in range(times):
        sums = sums + ct.load(X, (k,), (TILE,)).astype(ct.float32)
    ct.store(Y, (0,), sums.astype(Y.dtype))


def _vectors():
    x = torch.empty(ROWS * COLUMNS, dtype=torch.float16, device="cuda")
    return x, torch.empty_like(x)


def gelu(tile=1024, *, kernel=gelu_kernel, times=1, options=(), tiles_per_block=1):
    x, y = _vectors()
    grid = (x.numel() // (tile * tiles_per_block),)
    for _ in range(times):
        ct.launch(torch.cuda.current_stream(), grid, kernel, (x, y, tile, *options))


def gelu_of_rows(tile=1024):
    x, y = _vectors()
    rows = torch.empty(x.numel(), dtype=torch.int32, device="cuda")
    ct.launch(torch.cuda.current_stream(), (x.numel() // tile,), gelu_of_rows_kernel, (x, rows, y, tile))


def gathered_gelu(stride, tile=1024):
    gelu(tile, kernel=gelu_gathered_kernel, options=(stride,))


def product(m=128, n=128, k=64, *, kernel=product_kernel, options=(4, 1)):
    a, b, c = (torch.empty((SIZE, SIZE), dtype=torch.float16, device="cuda") for _ in range(3))
    grid = (SIZE // m, SIZE // n)
    ct.launch(torch.cuda.current_stream(), grid, kernel, (a, b, c, m, n, k, *options))


# -- what a kernel does in one block, in one pass, or once more -----------------------------------------


@ct.kernel
def copy_kernel(X, Y, TILE: ConstInt, BLOCKS: ConstInt):
    """Copy a tile; blocks beyond `BLOCKS` do it once more."""
    at = ct.bid(0) % BLOCKS
    ct.store(Y, (at,), ct.load(X, (at,), (TILE,)))


@ct.kernel
def copy_by_few_kernel(X, Y, TILE: ConstInt, TILES: ConstInt, PASSES: ConstInt):
    """Copy all tiles `PASSES` times, every block some of them."""
    for _ in range(PASSES):
        for at in range(ct.bid(0), TILES, ct.num_blocks(0)):
            ct.store(Y, (at,), ct.load(X, (at,), (TILE,)))


@ct.kernel
def shared_out_kernel(X, Y, TILE: ConstInt, TILES: ConstInt, BUSY: ConstInt):
    """Copy `TILES` tiles, as many in each block; with `BUSY`, all of them in that block."""
    share = TILES // ct.num_blocks(0)
    first = ct.where(BUSY < 0, ct.bid(0) * share, 0)
    last = ct.where(BUSY < 0, first + share, ct.where(ct.bid(0) == BUSY, TILES, 0))
    for at in range(first, last):
        ct.store(Y, (at,), ct.load(X, (at,), (TILE,)))


@ct.kernel
def carried_indices_kernel(X, Y, TILE: ConstInt, STRIDE: ConstInt, STEP: ConstInt):
    """Sum eight tiles by indices that the loop carries on; neighbours are `STRIDE` elements apart."""
    sums = ct.zeros((TILE,), dtype=ct.float32)
    at = ct.bid(0) * 8 + STRIDE * ct.arange(TILE, dtype=ct.int32)
    for _ in range(8):
        sums = sums + ct.gather(X, at).astype(ct.float32)
        at = at + STEP
    ct.store(Y, (ct.bid(0),), sums.astype(Y.dtype))


@ct.kernel
def passes_kernel(X, Y, TILE: ConstInt, WHICH: ConstInt, TIMES: ConstInt):
    """Sum eight tiles; one pass of every two, or pass `-WHICH` alone, takes `TIMES` exponentials."""
    sums = ct.zeros((TILE,), dtype=ct.float32)
    for k in range(8):
        sums = sums + ct.load(X, (ct.bid(0) * 8 + k,), (TILE,)).astype(ct.float32)
        if (k % 2 == WHICH) | (k == -WHICH):
            for _ in range(TIMES):
                sums = ct.exp(sums) * 0.5
    ct.store(Y, (ct.bid(0),), sums.astype(Y.dtype))


@ct.kernel
def growing_kernel(Y, TILE: ConstInt, FACTOR: ConstInt):
    """Add up more and more tiles, by a number that the loop carries: 1 more, or `FACTOR` times as many."""
    sums = ct.zeros((TILE,), dtype=ct.float32)
    times = ct.num_blocks(0)
    for _ in range(8):
        for _ in range(times):
            sums = sums + 1.0
        times = times * FACTOR + (1 if FACTOR == 1 else 0)
    ct.store(Y, (ct.bid(0),), sums.astype(Y.dtype))


def _on_vectors(kernel, blocks, *options, elements=ROWS * COLUMNS):
    x, y = (torch.empty(elements, dtype=torch.float16, device="cuda") for _ in range(2))
    ct.launch(torch.cuda.current_stream(), (blocks,), kernel, (x, y, 1024, *options))


def copy(times=1, elements=ROWS * COLUMNS):
    tiles = elements // 1024
    _on_vectors(copy_kernel, times * tiles, tiles, elements=elements)


def copy_by_few(passes):
    _on_vectors(copy_by_few_kernel, 128, ROWS * COLUMNS // 1024, passes)


def shared_out(busy=-1):
    _on_vectors(shared_out_kernel, 1024, ROWS * COLUMNS // 1024, busy)


def carried(stride=1, step=1024):
    _on_vectors(carried_indices_kernel, ROWS * COLUMNS // 8192, stride, step)


def passes(which=1, times=1):
    _on_vectors(passes_kernel, ROWS * COLUMNS // 8192, which, times)


def growing(factor=1):
    _, y = _vectors()
    ct.launch(torch.cuda.current_stream(), (1,), growing_kernel, (y, 1024, factor))


def doubled():
    growing(2)
