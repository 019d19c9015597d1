"""SwiGLU with its backward pass, checked by `grad=True`.

    y = silu(a) b,    silu(a) = a s,    s = 1 / (1 + exp(-a))
    da = dy b s (1 + a (1 - s)),    db = dy silu(a)

Source: Shazeer, "GLU Variants Improve Transformer", 2020 (https://arxiv.org/abs/2002.05202).
"""

import cuda.tile as ct
import torch

from pytest_cutile import Case, KernelSpec, Work

TILE = 1024


@ct.kernel
def swiglu_kernel(A, B, Y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    a = ct.load(A, (i,), (TILE,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    b = ct.load(B, (i,), (TILE,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(Y, (i,), (a / (1.0 + ct.exp(-a)) * b).astype(Y.dtype))


@ct.kernel
def swiglu_backward_kernel(DY, A, B, DA, DB, TILE: ct.Constant[int]):
    i = ct.bid(0)
    dy = ct.load(DY, (i,), (TILE,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    a = ct.load(A, (i,), (TILE,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    b = ct.load(B, (i,), (TILE,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    s = 1.0 / (1.0 + ct.exp(-a))
    ct.store(DA, (i,), (dy * b * s * (1.0 + a * (1.0 - s))).astype(DA.dtype))
    ct.store(DB, (i,), (dy * a * s).astype(DB.dtype))


def launch(kernel, *tensors):
    flat = [tensor.reshape(-1) for tensor in tensors]
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(flat[0].numel(), TILE),), kernel, (*flat, TILE))


class Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty_like(a)
        launch(swiglu_kernel, a, b, y)
        ctx.save_for_backward(a, b)
        return y

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        da, db = torch.empty_like(a), torch.empty_like(b)
        launch(swiglu_backward_kernel, dy.contiguous(), a, b, da, db)
        return da, db


def swiglu(a, b):
    return Swiglu.apply(a, b)


SPEC = KernelSpec(
    name="swiglu",
    launch=swiglu,
    reference=lambda a, b: torch.nn.functional.silu(a) * b,
    grad=True,
    inputs=lambda make_tensor, shape, dtype="float16": (make_tensor(shape, dtype), make_tensor(shape, dtype)),
    work=lambda shape, dtype="float16": Work(bytes=3 * shape[0] * shape[1] * 2),
    cases=[
        Case(name="fp16-8192x8192", params={"shape": (8192, 8192)}),
        Case(name="fp16-37x100", params={"shape": (37, 100)}, speed=False),
        Case(name="bf16-3x700", params={"shape": (3, 700), "dtype": "bfloat16"}, speed=False),
        Case(name="fp32-50x41", params={"shape": (50, 41), "dtype": "float32"}, speed=False),
    ],
)
