"""Declared kernels with `grad`: their backward kernels are interpreted, compiled and compared as well."""

import pytest

SCALE = """
import cuda.tile as ct
import pytest_cutile
import torch


@ct.kernel
def forward_kernel(X, Y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i,), 2 * ct.load(X, (i,), (TILE,)))


@ct.kernel
def backward_kernel(DY, DX, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(DX, (i,), 2 * ct.load(DY, (i,), (TILE,)))


def launch(kernel, x):
    y = torch.empty_like(x)
    ct.launch(torch.cuda.current_stream(), (3,), kernel, (x, y, 128))
    return y


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return launch(forward_kernel, x)

    @staticmethod
    def backward(ctx, dy):
        return launch(backward_kernel, dy)


def scale(x):
    return Scale.apply(x)


SPEC = pytest_cutile.KernelSpec(
    name="scale",
    launch=scale,
    reference=lambda x: 2 * x,
    inputs=lambda make_tensor: make_tensor((300,), "float16"),
    grad=True,
    cases=[pytest_cutile.Case(name="n300", speed=False, named_inputs=())],
)
"""
BACKWARD = "ct.store(DX, (i,), 2 * ct.load(DY, (i,), (TILE,)))"
LAUNCHED = "return launch(backward_kernel, dy)"


@pytest.fixture
def no_gpu(without_gpu):
    """A project with one differentiable kernel and no timer."""
    without_gpu.kernel(SCALE)
    return without_gpu


def test_right_gradients_pass(no_gpu):
    no_gpu.run("--update-baselines", gates="").assert_outcomes(passed=3)
    assert "backward_kernel" in (no_gpu.path / "baselines" / "sm_121-static.json").read_text()


@pytest.mark.slow
def test_a_wrong_gradient_is_named_with_the_line_that_stored_it(no_gpu):
    no_gpu.kernel(SCALE.replace(BACKWARD, BACKWARD.replace("2 *", "1.5 *")))
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*gradient of x (float16 [[]300[]])*", "*backward_kernel wrote DX[[]*"])


def test_a_backward_kernel_that_does_not_compile(no_gpu):
    no_gpu.kernel(SCALE.replace(BACKWARD, "ct.store(DX, (i,), ct.load(DY, (i,), (3,)))"))
    result = no_gpu.run(gates="cutile_compile")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*backward_kernel does not compile for sm_121*"])


@pytest.mark.parametrize("gate", ["compile", "correct"])
def test_a_backward_pass_that_raises_has_a_place(no_gpu, gate):
    no_gpu.kernel(SCALE.replace(LAUNCHED, "raise RuntimeError('no luck')"))
    result = no_gpu.run(gates=f"cutile_{gate}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * RuntimeError: no luck",
            "E * raised by the backward pass of scale",
            "*scale.py:32: RuntimeError",
        ]
    )
    result.stdout.no_fnmatch_line("*def grad(*")  # torch's own frames
