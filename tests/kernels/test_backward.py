"""The kernels that compute gradients: their formulas, and what their launchers refuse."""

import pytest
import torch

from kernels import rms_norm, rms_norm_backward, swiglu, swiglu_backward

X, W = torch.ones(2, 3), torch.ones(3)


def gradients(forward, dy, *inputs):
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    return torch.autograd.grad(forward(*leaves), leaves, dy)


def test_the_formulas_are_those_of_autograd():
    x, other, dy = (torch.randn(7, 33, dtype=torch.float64) for _ in range(3))
    expected = gradients(lambda x, w: rms_norm.reference(x, w, 1e-2), dy, x, other[0])
    torch.testing.assert_close(rms_norm_backward.reference(dy, x, other[0], 1e-2), expected)
    expected = gradients(swiglu.reference, dy, x, other)
    torch.testing.assert_close(swiglu_backward.reference(dy, x, other), expected)


@pytest.mark.parametrize(
    ("launch", "arguments", "message"),
    [
        (rms_norm_backward.rms_norm_backward, (X[:1], X, W), "dy and x must have the same shape"),
        (rms_norm_backward.rms_norm_backward, (X, X, W[:2]), r"weight must be \[3\], but is \[2\]"),
        (rms_norm_backward.rms_norm_backward, (X, X, W, 1e-40), "eps must be 0, or"),
        (rms_norm_backward.rms_norm_backward, (*[torch.ones(1, 16385)] * 2, torch.ones(16385)), "too wide"),
        (swiglu_backward.swiglu_backward, (X, X, W), "b must have dy's shape"),
    ],
)
def test_launchers_say_what_is_wrong(launch, arguments, message):
    with pytest.raises(ValueError, match=f"^{launch.__name__}: .*{message}"):
        launch(*arguments)


def test_no_rows_have_gradients_of_zero():
    dx, dw = rms_norm_backward.rms_norm_backward(torch.ones(0, 3), torch.ones(0, 3), W)
    assert dx.shape == (0, 3)
    assert torch.equal(dw, torch.zeros(3))
