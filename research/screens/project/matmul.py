"""C = A B: an output tile for each block, K in tiles that a loop adds up."""

import cuda.tile as ct
import torch

from pytest_cutile import Case, KernelSpec, Work

TILE_M, TILE_N, TILE_K = 64, 64, 32


@ct.kernel
def matmul_kernel(A, B, C, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), dtype=ct.float32)
    for k in range(ct.cdiv(A.shape[1], TK)):
        a = ct.load(A, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(B, (k, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(a, b, acc)
    ct.store(C, (i, j), acc.astype(C.dtype))


def matmul(a, b):
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    grid = (ct.cdiv(a.shape[0], TILE_M), ct.cdiv(b.shape[1], TILE_N))
    ct.launch(torch.cuda.current_stream(), grid, matmul_kernel, (a, b, c, TILE_M, TILE_N, TILE_K))
    return c


SPEC = KernelSpec(
    name="matmul",
    launch=matmul,
    reference=lambda a, b: a @ b,
    inputs=lambda make_tensor, m, n, k: (make_tensor((m, k), "float16"), make_tensor((k, n), "float16")),
    work=lambda m, n, k: Work(flops=2 * m * n * k, dtype="float16"),
    reduction=lambda m, n, k: k,
    cases=[
        Case(name="fp16-4096", params={"m": 4096, "n": 4096, "k": 4096}),
        Case(name="fp16-250x136x200", params={"m": 250, "n": 136, "k": 200}, speed=False),
        Case(name="fp16-256x64x232", params={"m": 256, "n": 64, "k": 232}, speed=False),
    ],
)
