"""`grad=True`: gradients are outputs like any other."""

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, ReferenceFailed, UncheckableOutput, check_kernel
from pytest_cutile.correctness.gradients import EXPANDED, REPEATED, with_backward

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

    with pytest.raises(KernelMismatch, match=r"mutates=\['gradient of output'\]"):
        check(Scales.apply, reference=lambda x, _: 2 * x)
    report = check(Scales.apply, reference=lambda x, _: 2 * x, mutates=["gradient of output"])
    assert report.uncompared == ()
    assert report.layouts[REPEATED] == "right"
    assert EXPANDED not in report.layouts  # nothing can be changed in place that shares its memory
    check(Scales.apply, reference=lambda x, _: 2 * x, mutates=["gradient of output[0]"])


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
        (rms_norm(), reference, {"sliced": ["x"]}, ValueError, "without sliced="),
        (rms_norm(), reference, {"no_grad": ["v"]}, ValueError, r"no_grad names \['v'\], but the arg"),
        (rms_norm(), reference, {"no_grad": "w"}, TypeError, r"no_grad is a list .* write \['w'\]"),
        (rms_norm(), reference, {"mutates": "w"}, TypeError, r"mutates is a list .* write \['w'\]"),
        (rms_norm(), reference, {"mutates": ["gradient of y"]}, ValueError, r"names \['gradient of y'\]"),
    ],
)
def test_what_has_no_gradient_is_said(fn, reference, options, error, said):
    with pytest.raises(error, match=said):
        check(fn, reference=reference, **options)


def rotated(x, cos, sin, sign=1):
    one, other = x.chunk(2, -1)
    return torch.cat((one * cos - sign * other * sin, other * cos + sign * one * sin), -1)


class RotatesInPlace(torch.autograd.Function):
    """A rotary embedding: both passes overwrite what they are given, and the tables have no gradient."""

    marks = True

    @classmethod
    def rotate(cls, x, cos, sin):
        return cls.apply(x, cos, sin)

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        x.detach().copy_(rotated(x.float(), cos, sin))
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        return dy.copy_(rotated(dy.float(), cos, sin, -1)), None, None


class RotatesUnmarked(RotatesInPlace):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        x.detach().copy_(rotated(x.float(), cos, sin))
        return x


def rotates_and_returns_nothing(x, cos, sin):
    RotatesInPlace.apply(x, cos, sin)


def rope_tensors():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 40, generator=generator)
    angles = torch.randn(6, 20, generator=generator)
    return x, angles.cos(), angles.sin()


def check_rope(fn, *, reference=rotated, **options):
    x, cos, sin = rope_tensors()
    report = check_kernel(fn, x, cos, sin, reference=reference, grad=True, **options)
    return report, x


def in_place_reference(x, cos, sin):
    x.copy_(rotated(x.clone(), cos, sin))


IN_PLACE = ["x", "gradient of output"]


@pytest.mark.parametrize(
    "fn",
    [RotatesInPlace.rotate, RotatesUnmarked.rotate, rotates_and_returns_nothing],
    ids=["marked", "unmarked", "returns nothing"],
)
@pytest.mark.parametrize("no_grad", [["cos", "sin"], [1, 2]], ids=["name", "position"])
def test_launchers_in_place_have_gradients(fn, no_grad):
    report, x = check_rope(fn, mutates=IN_PLACE, no_grad=no_grad)
    assert report.elements == 2 * x.numel()
    assert torch.equal(x, rotated(*rope_tensors()))  # once, and not again by the trial


def test_a_reference_in_place_is_differentiated_too():
    report, x = check_rope(
        rotates_and_returns_nothing, reference=in_place_reference, mutates=IN_PLACE, no_grad=["cos", "sin"]
    )
    assert report.elements == 2 * x.numel()


def test_advice_leads_to_a_check_that_passes():
    """Follow each message: the next one names what comes next, and the last check passes."""
    options: dict[str, list[str]] = {"mutates": [], "no_grad": []}
    said = []
    for option, argument in [("mutates", "x"), ("no_grad", None), ("mutates", "gradient of output")]:
        with pytest.raises(KernelMismatch) as caught:
            check_rope(RotatesInPlace.rotate, **options)
        said.append(f"{caught.value}")
        options[option] += [argument] if argument else ["cos", "sin"]
    assert "mutates=['x']" in said[0]
    assert "no_grad=['cos', 'sin']" in said[1]
    assert "mutates=['gradient of output']" in said[2]
    check_rope(RotatesInPlace.rotate, **options)


def test_a_wrong_gradient_in_place_is_seen():
    class Forgets(RotatesInPlace):
        @staticmethod
        def backward(ctx, dy):
            return dy.copy_(rotated(dy.float(), *ctx.saved_tensors)), None, None

    with pytest.raises(KernelMismatch, match="gradient of x"):
        check_rope(Forgets.rotate, mutates=IN_PLACE, no_grad=["cos", "sin"])


def test_an_output_argument_has_no_gradient():
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, out):
            out.copy_(2 * x)
            ctx.mark_dirty(out)
            return out

        @staticmethod
        def backward(_, dy):
            return 2 * dy, None

    report = check_kernel(
        Doubles.apply,
        torch.randn(40),
        torch.zeros(40),
        reference=lambda x, _: 2 * x,
        grad=True,
        writes=[1],
    )
    assert report.elements == 2 * 40


@pytest.mark.parametrize("no_grad", [["pair"], ["pair[1]"]])
def test_tensors_in_a_list_have_no_gradient_by_name(no_grad):
    def scaled(pair, x):
        return (
            x * pair[1].detach() + pair[0].detach() * (no_grad == ["pair"]) + pair[0] * (no_grad != ["pair"])
        )

    report = check_kernel(
        scaled,
        [torch.randn(40), torch.randn(40)],
        torch.randn(40),
        reference=lambda pair, x: x * pair[1] + pair[0],
        grad=True,
        no_grad=no_grad,
    )
    assert ("gradient of pair[0]" in report.outputs) is (no_grad != ["pair"])
    assert "gradient of pair[1]" not in report.outputs


def loss(backward, *, frees=False):
    """Return a launcher of 3 * sum(x) that makes its gradient in forward; `backward` scales it."""

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = torch.full_like(x, 3.0)
            return (3 * x).sum()

        @staticmethod
        def backward(ctx, dy):
            if frees:
                kept = ctx.kept
                del ctx.kept
                return backward(kept, dy)
            return backward(ctx.kept, dy)

    return Loss.apply


def check_loss(fn, **options):
    return check_kernel(
        fn, torch.randn(40), reference=lambda x: (3 * x).sum(), reduction=40, grad=True, **options
    )


def overwrites(kept, dy):
    return kept.mul_(dy)


def test_a_second_backward_pass_is_compared():
    assert check_loss(loss(lambda kept, dy: kept * dy)).layouts[REPEATED] == "right"
    with pytest.raises(KernelMismatch, match=r"second backward pass \(retain_graph=True\).*: ") as caught:
        check_loss(loss(overwrites))
    assert "backward_once=True" in str(caught.value)
    assert REPEATED not in check_loss(loss(overwrites), backward_once=True).layouts


def test_a_backward_pass_may_refuse_to_run_again():
    outcome = check_loss(loss(overwrites, frees=True)).layouts[REPEATED]
    assert outcome.startswith("refused: AttributeError: ")


def test_a_fault_in_a_second_backward_pass_is_none_of_its_refusals():
    def backward(kept, dy):
        if kept[0] != 3:
            raise KernelFaultOfATest
        return kept.mul_(dy)

    with pytest.raises(KernelFaultOfATest):
        check_loss(loss(backward))


class KernelFaultOfATest(Exception):  # noqa: N818
    __module__ = "pytest_cutile.tile.interpreter.faults"


def test_a_second_pass_that_accumulates_is_seen():
    def backward(kept, dy):
        kept.add_(3 * dy - 3)
        return kept.clone()

    with pytest.raises(KernelMismatch, match="second backward pass"):
        check_loss(loss(backward))


def scale(backward):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return 3 * x

        @staticmethod
        def backward(_, dy):
            return backward(dy)

    return Scale.apply


def raises(error):
    def backward(dy):
        if dy.stride(-1) != 1:
            raise error
        return 3 * dy

    return backward


def as_it_lies(dy):
    return 3 * torch.as_strided(dy, dy.shape, (1,))


@pytest.mark.parametrize(
    ("backward", "error", "said"),
    [
        (raises(RuntimeError("last stride has to be 1")), RuntimeError, "last stride"),
        (as_it_lies, KernelMismatch, "with an upstream gradient of stride 0, as .sum"),
    ],
    ids=["raises", "reads"],
)
def test_an_upstream_gradient_of_stride_0_is_taken(backward, error, said):
    with pytest.raises(error, match=said) as caught:
        check_kernel(scale(backward), torch.randn(50), reference=lambda x: 3 * x, grad=True)
    text = f"{caught.value} {' '.join(getattr(caught.value, '__notes__', ()))}"
    assert "with an upstream gradient of stride 0" in text


def test_an_upstream_gradient_of_stride_0_may_be_refused():
    fn = scale(raises(ValueError("dy must be contiguous")))
    report = check_kernel(fn, torch.randn(6, 50), reference=lambda x: 3 * x, grad=True)
    assert report.layouts[EXPANDED] == "refused: ValueError: dy must be contiguous"
    assert f"{EXPANDED}: ValueError: dy must be contiguous" in report.refused


def test_no_upstream_gradient_of_stride_0_is_tried_without_other_layouts():
    fn = scale(raises(RuntimeError("last stride has to be 1")))
    check_kernel(fn, torch.randn(6, 50), reference=lambda x: 3 * x, grad=True, vary_layout=False)


def test_what_looks_at_launches_alone_runs_backward_in_place():
    ran = []

    class Runs(RotatesInPlace):
        @staticmethod
        def backward(_, dy):
            ran.append(dy.shape)
            return dy, None, None

    def returns_nothing(x, cos, sin):
        Runs.apply(x, cos, sin)

    for launch in (Runs.rotate, returns_nothing):
        with_backward(launch, ["cos", "sin"])(*rope_tensors())
    assert len(ran) == 2
