"""Kernels of vectors: twice the values, and their sum. `test_vectors.py` checks them, too."""

import cuda.tile as ct
import torch

from pytest_cutile import Case, KernelSpec

TILE = 128


@ct.kernel
def double_kernel(X, Y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    x = ct.load(X, (i,), (TILE,), padding_mode=ct.PaddingMode.ZERO)
    at = i * TILE + ct.arange(TILE, dtype=ct.int32)
    ct.scatter(Y, at, x * 2)


def double(x):
    y = torch.empty_like(x)
    blocks = ct.cdiv(x.numel(), TILE)
    ct.launch(torch.cuda.current_stream(), (blocks,), double_kernel, (x, y, TILE))
    return y


@ct.kernel
def total_kernel(X, S, TILE: ct.Constant[int]):
    part = ct.sum(ct.load(X, (ct.bid(0),), (TILE,), padding_mode=ct.PaddingMode.ZERO))
    ct.atomic_add(S, 0, part)


def total(x):
    s = torch.zeros(1, dtype=x.dtype, device=x.device)
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.numel(), TILE),), total_kernel, (x, s, TILE))
    return s


SPEC = KernelSpec(
    name="total",
    launch=total,
    reference=lambda x: x.sum(0, keepdim=True),
    inputs=lambda make_tensor, n: (make_tensor((n,), "float32"),),
    reduction=lambda n: n,
    cases=[
        Case(name="fp32-1000", params={"n": 1000}, speed=False),
        Case(name="fp32-4096", params={"n": 4096}, speed=False),
    ],
)
