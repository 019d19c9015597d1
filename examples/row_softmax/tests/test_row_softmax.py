"""What the declaration does not say: the kernel inside of other code."""

import torch
from row_softmax import softmax

from pytest_cutile import CheckKernel, MakeTensor, Perf


def attention_weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return softmax((q @ k.T) / q.shape[1] ** 0.5)


def test_attention_weights(make_tensor: MakeTensor, check_kernel: CheckKernel, perf: Perf) -> None:
    q, k = make_tensor((32, 64), "float16"), make_tensor((48, 64), "float16")
    check_kernel(
        attention_weights,
        q,
        k,
        reference=lambda q, k: ((q @ k.T) / q.shape[1] ** 0.5).softmax(1),
        reduction=64,
        mid="float16",  # the product is rounded to float16 before the softmax
    )
    perf(attention_weights, q, k, flops=2 * 32 * 48 * 64)  # skipped as not measured without a GPU
