"""`grad=True`: gradients are outputs like any other."""

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, ReferenceFailed, UncheckableOutput, check_kernel

EPS = 1e-6
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def reference(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def rms_norm(backward=lambda dx, dw: (dx, dw), mean=True):
    """Return a launcher whose gradients `backward` changes; without `mean`, rstd does not depend on x."""

    class RmsNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            r = torch.rsqrt((x.float() ** 2).mean(-1, keepdim=True) + EPS)
            ctx.save_for_backward(x, w, r)
            return (x.float() * r * w.float()).to(x.dtype)

        @staticmethod
        def backward(ctx, dy):
            x, w, r = ctx.saved_tensors
            h, g = x.float() * r, dy.float() * w.float()
            dx = r * (g - h * (g * h).mean(-1, keepdim=True) * mean)
            return backward(dx.to(x.dtype), (dy.float() * h).sum(0).to(w.dtype))

    def normalised(x, w):
        return RmsNorm.apply(x, w)

    return normalised


def tensors(dtype=torch.float16):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in ((33, 96), (96,))]


def check(fn, dtype=torch.float16, reference=reference, **options):
    return check_kernel(fn, *tensors(dtype), reference=reference, reduction=96, grad=True, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_right_gradients_pass(dtype):
    report = check(rms_norm(), dtype)
    assert report.elements == 2 * 33 * 96 + 96
    assert "gradient of w" in report.outputs
    assert {*report.layouts.values()} == {"right"}


def lost_row_of_blocks(dx, dw):
    return dx, torch.cat((dw[:32], torch.zeros_like(dw[:32]), dw[64:]))


def never_written(dx, dw):
    return dx, torch.cat((dw[:64], torch.empty_like(dw[:32])))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (rms_norm(lost_row_of_blocks), "gradient of w"),
        (rms_norm(lambda dx, dw: (dx * (1 + 2**-6), dw)), "a constant factor: got / exact is about 1.01"),
        (rms_norm(lambda dx, dw: (-dx, dw)), "a constant factor: got / exact is about -"),
        (rms_norm(lambda dx, dw: (dx, dw / 33)), "gradient of w"),
        (rms_norm(never_written), "never written"),
        (rms_norm(mean=False), "gradient of x"),
        (rms_norm(lambda dx, _: (dx, None)), "returns no gradient of w"),
    ],
    ids=["lost", "2^-6", "sign", "factor", "unwritten", "rstd", "none"],
)
def test_wrong_gradients_are_named(fn, said, dtype):
    with pytest.raises(KernelMismatch, match=r"gradient of") as caught:
        check(fn, dtype)
    assert said in str(caught.value)


def test_a_backward_pass_that_raises_is_named():
    def backward(*_):
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck") as caught:
        check(rms_norm(backward))
    assert caught.value.__notes__ == ["raised by the backward pass of normalised"]


def test_a_backward_pass_may_hand_on_what_it_was_given():
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(_, x, _w):
            return x.clone()

        @staticmethod
        def backward(_, dy):
            return dy, None

    assert "gradient of w" not in check(Same.apply, reference=lambda x, _: 1 * x).outputs


def test_a_backward_pass_that_changes_its_upstream_gradient():
    class Scales(torch.autograd.Function):
        @staticmethod
        def forward(_, x, _w):
            return 2 * x

        @staticmethod
        def backward(_, dy):
            return dy.mul_(2), None

    with pytest.raises(KernelMismatch, match="gradient of output"):
        check(Scales.apply, reference=lambda x, _: 2 * x)


def test_several_outputs_and_arguments_in_a_list():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x + y, x * y

        @staticmethod
        def backward(ctx, ds, dp):
            x, y = ctx.saved_tensors
            return ds + dp * y, ds + dp * x

    def both(pair, _):
        return Both.apply(*pair)

    one, other = torch.randn(40), torch.randn(40)
    report = check_kernel(
        both, [one, other], 3, reference=lambda pair, _: (pair[0] + pair[1], pair[0] * pair[1]), grad=True
    )
    assert all(f"gradient of pair[{at}]" in report.outputs for at in (0, 1))


def test_outputs_are_differentiated_by_name():
    report = check_kernel(
        lambda x: {"one": 2 * x, "other": 3 * x},
        torch.randn(40),
        reference=lambda x: {"other": 3 * x, "one": 2 * x},
        grad=True,
    )
    assert report.elements == 3 * 40


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(_, x, w):
        return reference(x, w)


@pytest.mark.parametrize(
    ("fn", "reference", "options", "error", "said"),
    [
        (lambda x, w: reference(x, w).detach(), reference, {}, KernelMismatch, "no output that depends on"),
        (rms_norm(), lambda x, w: reference(x, w).detach(), {}, ReferenceFailed, "no output that depends on"),
        (
            rms_norm(),
            lambda x, w: reference(x, w)[:3],
            {},
            ReferenceFailed,
            r"<lambda> returns output \[3, 96\], where the launcher returns output \[33, 96\]",
        ),
        (rms_norm(), lambda x, w: [reference(x, w)], {}, ReferenceFailed, "returns nothing, where"),
        (rms_norm(), NoBackward.apply, {}, ReferenceFailed, "the reference .* is not differentiable: Not"),
        (
            rms_norm(),
            lambda x, w: torch.from_numpy(x.numpy() * w.numpy()),
            {},
            ReferenceFailed,
            "with arguments that require gradients, raised RuntimeError: Can't call numpy",
        ),
        (
            lambda x, w: (x > 0) * (w > 0) * 1.0,
            lambda x, w: (x > 0) * (w > 0) * 1.0,
            {},
            ReferenceFailed,
            "no output that depends on",
        ),
        (
            lambda x, _: x > 0,
            lambda x, _: x > 0,
            {},
            UncheckableOutput,
            "returns nothing that has a gradient",
        ),
        (rms_norm(), reference, {"mutates": ["x"]}, ValueError, "without mutates="),
    ],
)
def test_what_has_no_gradient_is_said(fn, reference, options, error, said):
    with pytest.raises(error, match=said):
        check(fn, reference=reference, **options)
