"""Softmax of the rows of a matrix, a row for each block."""

import cuda.tile as ct
import torch

from pytest_cutile import Case, KernelSpec, Work


@ct.kernel
def softmax_kernel(X, Y, TILE: ct.Constant[int]):
    row = ct.bid(0)
    x = ct.load(X, (row, 0), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
    e = ct.exp(x - ct.max(x, axis=1, keepdims=True))
    ct.store(Y, (row, 0), (e / ct.sum(e, axis=1, keepdims=True)).astype(Y.dtype))


def softmax(x):
    y = torch.empty_like(x)
    tile = 1 << (x.shape[1] - 1).bit_length()
    ct.launch(torch.cuda.current_stream(), (x.shape[0],), softmax_kernel, (x, y, tile))
    return y


SPEC = KernelSpec(
    name="softmax",
    launch=softmax,
    reference=lambda x: x.softmax(1),
    inputs=lambda make_tensor, m, n: (make_tensor((m, n), "float16"),),
    work=lambda m, n: Work(bytes=2 * m * n * 2),
    reduction=lambda m, n: n,
    undefined_inputs={"inf": "inputs are finite", "nan": "inputs are finite"},
    cases=[
        Case(name="fp16-8192x8192", params={"m": 8192, "n": 8192}),
        Case(name="fp16-37x1000", params={"m": 37, "n": 1000}, speed=False),
        Case(name="fp16-64x512", params={"m": 64, "n": 512}, speed=False),
    ],
)
