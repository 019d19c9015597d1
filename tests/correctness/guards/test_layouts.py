"""The same values in other layouts: what a kernel takes for granted, what it refuses, and its faults."""

import json

import pytest
import torch

from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.correctness.guards.layouts import Layout, in_layout
from pytest_cutile.correctness.guards.redzones import extent
from pytest_cutile.correctness.rejections import is_refusal
from pytest_cutile.tile.tensors.poison import Pattern
from tests.correctness.checking import copy, failure, identity, story, tensor


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (lambda x: x.as_strided(x.shape, (x.shape[1], 1)) * 1, "padded rows: [6, 10] has strides [26, 1]"),
        (
            lambda x: x * (1 if x.data_ptr() % 16 == 0 else 2),
            "an offset of one element: addresses are multiples of one element",
        ),
        (
            lambda x: x.as_strided(x.shape, (x.stride(0), 1)) * 1,
            "transposed storage: [6, 10] has strides [1, 6]",
        ),
    ],
    ids=["contiguous rows", "aligned", "unit stride"],
)
def test_what_a_kernel_takes_for_granted_is_named(kernel, named):
    text = failure(kernel, tensor(6, 10), reference=identity, vary_layout=True)
    assert text.startswith(f"with inputs of {named.partition(':')[0]}: ")
    assert f"  {named}" in story(text).splitlines()[-1]
    check_kernel(kernel, tensor(6, 10), reference=identity, vary_layout=False)


def test_by_default_small_cases_run_with_padded_rows_and_an_offset():
    report = check_kernel(copy, tensor(6, 10), reference=identity)
    assert report.layouts == {"padded rows": "right", "an offset of one element": "right"}
    report = check_kernel(copy, tensor(10), reference=identity, vary_layout=True)
    assert report.layouts == {"an offset of one element": "right"}


def test_a_launcher_may_refuse_a_layout():
    def kernel(x):
        if not x.is_contiguous():
            raise ValueError("x must be contiguous\nreally")
        return copy(x)

    report = check_kernel(kernel, tensor(6, 10), reference=identity, vary_layout=True)
    assert report.layouts == {
        "padded rows": "refused: ValueError: x must be contiguous",
        "an offset of one element": "right",
        "transposed storage": "refused: ValueError: x must be contiguous",
    }


def test_the_fault_of_a_launcher_is_no_refusal():
    def kernel(x):
        return copy(x) if x.is_contiguous() else x / "3"

    with pytest.raises(TypeError, match="unsupported") as caught:
        check_kernel(kernel, tensor(6, 10), reference=identity)
    assert caught.value.__notes__ == ["with inputs of padded rows, as the check varies it: see vary_layout"]


def check_rows(x):
    try:
        return {(10, 1): 1}[x.stride()]
    except KeyError as error:
        raise NotImplementedError("rows that lie apart") from error


@pytest.mark.parametrize(
    ("fails", "refuses"),
    [
        (lambda: check_rows(tensor(6, 12)), True),
        (lambda: int("ten"), False),
        (lambda: json.loads("{"), False),
        (lambda: torch.nn.functional.pad(tensor(2), (1, 1), mode="none"), False),
        (lambda: {"rows": 1}["columns"], False),
    ],
    ids=["helper", "interpreter", "stdlib", "torch", "key"],
)
def test_only_what_the_kernels_own_code_raises_is_a_refusal(fails, refuses):
    with pytest.raises((TypeError, ValueError, LookupError, NotImplementedError, RuntimeError)) as caught:
        fails()
    assert is_refusal(caught.value) is refuses


@pytest.mark.parametrize(
    ("launch", "refused"),
    [
        (lambda x: copy(x.view(-1)), {"padded rows", "transposed storage"}),
        (
            lambda x: copy(x.view(torch.int32)).view(x.dtype),
            {"an offset of one element", "transposed storage"},
        ),
        (lambda x: copy(torch.view_as_real(torch.view_as_complex(x.view(6, 5, 2)))), None),
    ],
    ids=["shape", "dtype", "complex"],
)
def test_a_view_refuses_a_layout(launch, refused):
    layouts = check_kernel(
        launch,
        tensor(6, 10) if refused else tensor(6, 10, dtype=torch.float32),
        reference=lambda x: launch(x) if refused is None else x.reshape(launch(tensor(6, 10)).shape),
        vary_layout=True,
    ).layouts
    said = {layout for layout, outcome in layouts.items() if outcome.startswith("refused: RuntimeError")}
    assert said == (refused or {"an offset of one element", "transposed storage"})


def test_a_view_that_no_layout_is_to_blame_for_fails():
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        check_kernel(lambda x: copy(x.t().view(-1)), tensor(6, 10), reference=lambda x: x.t().reshape(-1))


def test_another_exception_says_with_what_layout():
    def kernel(x):
        if not x.is_contiguous():
            raise ZeroDivisionError("mine")
        return copy(x)

    with pytest.raises(ZeroDivisionError) as caught:
        check_kernel(kernel, tensor(6, 10), reference=identity)
    assert caught.value.__notes__ == ["with inputs of padded rows, as the check varies it: see vary_layout"]


@pytest.mark.parametrize("kind", Layout)
@pytest.mark.parametrize(
    "make",
    [
        lambda: tensor(3, 5, 7),
        lambda: tensor(3, 5, 7).transpose(0, 2),
        lambda: tensor(5, 7).expand(3, 5, 7),
        lambda: tensor(1, 5, 1),
        lambda: tensor(1, 1),
        lambda: tensor(6, 8, 4)[::2, 1:, :3],
    ],
)
def test_layouts_hold_the_same_values_and_nan_between(kind, make):
    x = make()
    varied = in_layout({"x": x, "xs": [x], "n": 3}, kind)
    if varied is None:
        assert kind is not Layout.OFFSET
        assert sum(size > 1 for size in x.shape) < 2
        return
    new, [same], three = varied[0].values()
    assert same is new
    assert three == 3
    assert torch.equal(new, x)
    first, end = extent(new)
    memory = torch.empty(0, dtype=torch.int16).set_(new.untyped_storage())
    assert end == 2 * len(memory)
    assert first == (2 if kind is Layout.OFFSET else 0)
    memory = memory.clone()
    memory.as_strided(new.shape, new.stride(), new.storage_offset()).fill_(Pattern.BESIDE_INPUT.of(x.dtype))
    assert (memory == Pattern.BESIDE_INPUT.of(x.dtype)).all()
    if kind is Layout.OFFSET:
        assert new.stride() == x.stride()
    else:
        assert new.stride() != x.stride()
    if kind is Layout.PADDED:
        pairs = zip(new.stride(), x.stride(), x.shape, strict=True)
        assert all(a % 16 == b % 16 or not x.is_contiguous() for a, b, size in pairs if size > 1)
