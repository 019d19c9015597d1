"""RMS normalisation with its backward pass: autograd calls it, and `grad=True` checks both passes.

    y = x r w,    r = 1 / sqrt(mean(x^2) + eps)
    dx = r (g - h mean(g h)),    dw = sum over rows of dy h,    with h = x r and g = dy w

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).
"""

import cuda.tile as ct
import torch

from pytest_cutile import Case, KernelSpec, Work

EPS = 1e-6
PARTS = 256
"""Blocks of the backward pass: each adds up the gradient of the weight over its share of the rows."""
ZERO = ct.PaddingMode.ZERO


@ct.kernel
def rms_norm_kernel(X, W, Y, R, inverse: float, eps: float, TILE: ct.Constant[int]):
    row = ct.bid(0)
    x = ct.load(X, (row, 0), (1, TILE), padding_mode=ZERO).astype(ct.float32)
    w = ct.load(W, (0, 0), (1, TILE), padding_mode=ZERO).astype(ct.float32)
    r = ct.rsqrt(ct.sum(x * x, axis=1, keepdims=True) * inverse + eps)
    ct.store(R, (row, 0), r)
    ct.store(Y, (row, 0), (x * r * w).astype(Y.dtype))


@ct.kernel
def rms_norm_backward_kernel(
    DY, X, W, R, DX, DW, inverse: float, TILE: ct.Constant[int], PARTS: ct.Constant[int]
):
    part = ct.bid(0)
    w = ct.load(W, (0, 0), (1, TILE), padding_mode=ZERO).astype(ct.float32)
    dw = ct.zeros((1, TILE), dtype=ct.float32)
    for row in range(part, X.shape[0], PARTS):
        dy = ct.load(DY, (row, 0), (1, TILE), padding_mode=ZERO).astype(ct.float32)
        x = ct.load(X, (row, 0), (1, TILE), padding_mode=ZERO).astype(ct.float32)
        r = ct.load(R, (row, 0), (1, 1))
        h, g = x * r, dy * w
        dx = r * (g - h * (ct.sum(g * h, axis=1, keepdims=True) * inverse))
        ct.store(DX, (row, 0), dx.astype(DX.dtype))
        dw = dw + dy * h
    ct.store(DW, (part, 0), dw)


def forward(x, w):
    (m, n), y = x.shape, torch.empty_like(x)
    r = torch.empty((m, 1), dtype=torch.float32, device=x.device)
    arguments = (x, w[None], y, r, 1 / n, EPS, 1 << (n - 1).bit_length())
    ct.launch(torch.cuda.current_stream(), (m,), rms_norm_kernel, arguments)
    return y, r


def backward(dy, x, w, r):
    (m, n), dx = x.shape, torch.empty_like(x)
    parts = min(m, PARTS)
    dw = torch.empty((parts, n), dtype=torch.float32, device=x.device)
    arguments = (dy, x, w[None], r, dx, dw, 1 / n, 1 << (n - 1).bit_length(), parts)
    ct.launch(torch.cuda.current_stream(), (parts,), rms_norm_backward_kernel, arguments)
    return dx, dw.sum(0).to(w.dtype)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y, r = forward(x, w)
        ctx.save_for_backward(x, w, r)
        return y

    @staticmethod
    def backward(ctx, dy):
        return backward(dy, *ctx.saved_tensors)


def rms_norm(x, w):
    return RmsNorm.apply(x, w)


def reference(x, w):
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + EPS) * w


def inputs(make_tensor, m, n, dtype="float16"):
    return make_tensor((m, n), dtype), make_tensor((n,), dtype)


def backward_inputs(make_tensor, m, n, dtype="float16"):
    x, w = inputs(make_tensor, m, n, dtype)
    r = torch.rsqrt((x.float() ** 2).mean(1, keepdim=True) + EPS)
    return make_tensor((m, n), dtype), x, w, r


def backward_reference(dy, x, w, r):
    h, g = x * r, dy * w
    return r * (g - h * (g * h).mean(1, keepdim=True)), (dy * h).sum(0)


SPECS = (
    KernelSpec(
        name="rms_norm",
        launch=rms_norm,
        reference=reference,
        grad=True,
        inputs=inputs,
        work=lambda m, n, dtype="float16": Work(bytes=2 * m * n * 2),
        reduction=lambda m, n, dtype="float16": max(m, n),  # the gradient of the weight is a sum over rows
        cases=[
            Case(name="fp16-8192x4096", params={"m": 8192, "n": 4096}),
            Case(name="fp16-70x200", params={"m": 70, "n": 200}, speed=False),
            Case(name="bf16-300x64", params={"m": 300, "n": 64, "dtype": "bfloat16"}, speed=False),
            Case(name="fp32-33x100", params={"m": 33, "n": 100, "dtype": "float32"}, speed=False),
        ],
    ),
    # The backward pass by itself, to be timed.
    KernelSpec(
        name="rms_norm_backward",
        launch=backward,
        reference=backward_reference,
        inputs=backward_inputs,
        work=lambda m, n, dtype="float16": Work(bytes=3 * m * n * 2),
        reduction=lambda m, n, dtype="float16": max(m, n),
        cases=[
            Case(name="fp16-8192x4096", params={"m": 8192, "n": 4096}),
            Case(name="fp16-70x200", params={"m": 70, "n": 200}, speed=False),
        ],
    ),
)
