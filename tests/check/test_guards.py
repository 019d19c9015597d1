"""What lies around inputs and outputs: each fault that a guard exists for, and no difference else."""

import itertools
import json
import re
from collections import OrderedDict, defaultdict
from random import Random
from typing import Any

import pytest
import torch

from pytest_cutile.check.bands import band_bytes, enclose, extent
from pytest_cutile.check.guards import KEPT_BYTES, Allocations, Inputs
from pytest_cutile.check.launching import SMALL_BYTES
from pytest_cutile.check.layouts import Layout, in_layout
from pytest_cutile.check.refusals import is_refusal
from pytest_cutile.check.run import UncheckableOutput, check_kernel
from pytest_cutile.gpu.dtypes import DTYPE_NAMES, bits_of, resolve_dtype
from pytest_cutile.gpu.poison import Pattern, poisoned, poisoned_allocations
from tests.check.checking import copy, failure, identity, tensor


def beyond(out, count, *, first=0):
    """Return `count` elements that lie `first` elements behind the end of a contiguous tensor."""
    return out.as_strided((count,), (1,), out.storage_offset() + out.numel() + first)


# -- writes beside outputs ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("allocate", [torch.empty_like, torch.zeros_like, torch.ones_like])
def test_writing_past_the_end_of_an_output_is_seen_in_every_dtype(allocate, dtype):
    def kernel(x):
        out = allocate(x).copy_(x)
        beyond(out, 3, first=5).copy_(x.reshape(-1)[:3])
        return out

    text = failure(kernel, tensor(7, 9, dtype=dtype, dist="ones"), reference=identity)
    assert text.endswith("kernel wrote 3 elements past the end of output (first at offset +5)")


def test_writing_before_the_start_of_an_output():
    def kernel(x):
        out, second = copy(x), x.new_empty(4).copy_(x[0])
        second.as_strided((2,), (1,), second.storage_offset() - 3).fill_(1)
        return out, second

    text = failure(kernel, tensor(4, 4), reference=lambda x: (x, x[0]))
    assert (
        text == f"{kernel.__qualname__} wrote 2 elements before the start of output[1] (nearest at offset -2)"
    )


def test_a_whole_tile_that_sticks_out_is_counted_up_to_the_band():
    def kernel(x):
        out = copy(x)
        there = out.untyped_storage().nbytes() // 2 - out.storage_offset() - out.numel()
        beyond(out, min(255 * 64, there)).zero_()
        return out

    text = failure(kernel, tensor(2, 64), reference=identity)
    assert re.search(
        r"wrote at least [89],\d{3} elements past the end of output \(first at offset \+0\)", text
    )
    assert "wrote 16,320 elements past the end" in failure(kernel, tensor(512, 64), reference=identity)


def test_copying_what_lies_past_an_input_past_the_end_of_the_output():
    def kernel(x):
        out = copy(x)
        beyond(out, 4).copy_(beyond(x, 4))
        return out

    assert "wrote 4 elements past the end" in failure(kernel, tensor(4, 4), reference=identity)


def test_writing_past_the_end_of_something_that_is_not_returned():
    def kernel(x):
        partial = torch.empty(3, 5)
        beyond(partial, 1).zero_()
        return copy(x)

    assert "1 element past the end of a tensor that it allocated, float32 [3, 5]" in failure(
        kernel, tensor(4), reference=identity
    )


def test_writing_into_the_gaps_of_a_strided_output():
    def kernel(x):
        out = torch.empty_strided(x.shape, (16, 1), dtype=x.dtype)
        out.copy_(x)
        out.as_strided((x.shape[0] - 1, 3), (16, 1), out.storage_offset() + x.shape[1]).zero_()
        return out

    assert "wrote 9 elements in the gaps that the strides of output leave" in failure(
        kernel, tensor(4, 12), reference=identity
    )


def test_writing_past_an_output_that_is_passed_in():
    def kernel(x, out):
        out.copy_(x)
        out.as_strided((4, 16), (16, 1), out.storage_offset())[:, 12:].zero_()
        return out

    x, out = tensor(4, 12), tensor(4, 12, strides=(16, 1))
    text = failure(kernel, x, out, reference=lambda x, _: x, writes=["out"])
    assert "wrote 4 elements past the end of input out" in text
    assert "12 elements in the gaps that the strides of input out leave" in text


def test_large_temporaries_are_not_kept_and_large_outputs_are_looked_at(monkeypatch):
    monkeypatch.setattr("pytest_cutile.check.guards.KEPT_BYTES", 0)
    allocations = Allocations()
    with poisoned_allocations(allocations.enclose):
        out, temporary = torch.empty(100), torch.empty(100)
    for each in (out, temporary):
        beyond(each, 2).zero_()
    assert len(list(allocations.damage(out))) == 2
    del temporary, each
    assert list(allocations.damage(out)) == ["wrote 2 elements past the end of output (first at offset +0)"]
    assert KEPT_BYTES > 0


# -- reads beside inputs --------------------------------------------------------------------------------


@pytest.mark.parametrize("strides", [None, (16, 1), (1, 8)], ids=["contiguous", "padded", "transposed"])
def test_reading_past_an_input_is_nan(strides):
    def kernel(x, y):
        row = x.as_strided((x.shape[1] + 1,), (x.stride(1),), x[-1].storage_offset())
        return row[-1] + y

    x, y = tensor(4, 12, dtype="float32", strides=strides), tensor(4, dtype="float32")
    text = failure(kernel, x, y, reference=lambda _, y: y)
    assert "4 elements hold what lies around the inputs: read out of bounds" in text
    assert text.endswith("what lies around input x reached the outputs: it is read out of bounds")
    assert "what lies around input" not in failure(
        lambda x, y: x + torch.nan + y[0], x, y, reference=lambda x, _: x
    )


def test_reading_past_integers_is_unlikely_to_be_right():
    def kernel(x):
        return x.new_empty(4).copy_(beyond(x, 4))

    x = torch.zeros(40, dtype=torch.int32)[:4]
    assert "elements hold what lies around the inputs: read out of bounds" in failure(
        kernel, x, reference=identity
    )
    assert check_kernel(kernel, x, reference=identity, guard=False, vary_layout=False).elements == 4


def past(x, count=16):
    """Return `x` as a row, with elements that lie behind it."""
    return x.as_strided((x.numel() + count,), (1,), x.storage_offset())


@pytest.mark.parametrize(
    ("kernel", "dtype", "reduction"),
    [
        (lambda x: past(x).nan_to_num(nan=-1e4).max(), "float32", 1),
        (lambda x: past(x).nan_to_num(nan=-1e4).max(), "float16", 1),
        (lambda x: past(x).float().nan_to_num(nan=-1e4).max(), "float8_e4m3fn", 1),
        (lambda x: past(x).max(), "int32", 1),
        (lambda x: past(x).max(), "int8", 1),
        (lambda x: torch.where(past(x) > 0, past(x), 0).max(), "bfloat16", 1),
    ],
)
def test_reading_past_an_input_is_seen_where_nan_is_swallowed(kernel, dtype, reduction):
    x, y = tensor(8, 30, dtype=dtype), tensor(4)
    text = failure(lambda x, _: kernel(x), x, y, reference=lambda x, _: x.max(), reduction=reduction)
    assert text.endswith(
        "returns other bits when something else lies around input x: it is read out of bounds"
    )


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8])
def test_a_launcher_with_other_bits_each_time_reads_nothing_out_of_bounds(period):
    calls = itertools.count()

    def kernel(x):
        return x + 2**-20 * (next(calls) % period)

    report = check_kernel(kernel, torch.ones(4), reference=identity, atol=0.1, vary_layout=False)
    assert report.deterministic is False


@pytest.mark.parametrize("seed", range(20))
def test_a_launcher_with_either_of_two_results_reads_nothing_out_of_bounds(seed):
    random = Random(seed)
    check_kernel(
        lambda x: x + 2**-20 * random.randint(0, 1),
        torch.ones(4),
        reference=identity,
        atol=0.1,
        vary_layout=False,
    )


def test_views_of_one_buffer_stay_views_of_one_buffer():
    qkv = tensor(6, 3, 4)
    q, k, v = qkv.unbind(1)

    def kernel(pair, v, scale):
        q, k = pair["q"], pair["k"]
        assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() != qkv.data_ptr()
        assert k.data_ptr() - q.data_ptr() == 4 * 2
        assert (q.stride(), v.stride()) == ((12, 1), (12, 1))
        packed = q.as_strided((6, 3, 4), (12, 4, 1))
        assert torch.equal(packed, qkv)
        assert scale == 2
        return (q + k + v) * 0.5

    check_kernel(
        kernel,
        {"q": q, "k": k},
        v,
        2,
        reference=lambda p, v, _: (p["q"] + p["k"] + v) / 2,
        atol=0.02,
        vary_layout=False,
    )


def test_one_tensor_that_is_passed_twice_stays_one():
    def kernel(x, y):
        assert x is y
        return x + y

    x = tensor(4)
    check_kernel(kernel, x, x, reference=lambda x, y: x + y)


def test_inputs_that_share_memory_in_several_dtypes():
    whole = torch.arange(64, dtype=torch.uint8)
    bytes_, halves = whole[3:21], whole[24:40].view(torch.float16)
    inputs = Inputs(["bytes_", "halves"], [bytes_, halves])
    copies = inputs.given
    assert [torch.equal(each, own) for each, own in zip(copies, (bytes_, halves), strict=True)] == [True] * 2
    assert copies[1].data_ptr() - copies[0].data_ptr() == 21
    assert list(inputs.damage()) == []
    copies[0].as_strided((3,), (1,), copies[0].storage_offset() + 18).zero_()
    assert list(inputs.damage()) == [
        "wrote 3 elements in the gaps that the strides of input bytes_ and halves leave"
    ]


def test_other_containers_and_their_attributes_are_kept():
    def kernel(named, table):
        assert isinstance(named, OrderedDict)
        assert isinstance(table, defaultdict)
        assert named["x"].scale == 3
        assert table["missing"] == []
        return copy(named["x"])

    x = tensor(4)
    x.scale = 3
    check_kernel(
        kernel, OrderedDict(x=x), defaultdict(list), reference=lambda named, _: named["x"], vary_layout=False
    )


# -- no difference else ---------------------------------------------------------------------------------


def layout(each):
    address = each.data_ptr() % 64  # what torch aligns to on the CPU; 512 on a GPU
    return each.shape, each.stride(), each.dtype, each.device, each.is_contiguous(), address, each._is_view()


@pytest.mark.parametrize("dtype", [*map(resolve_dtype, DTYPE_NAMES), torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "allocate",
    [
        lambda d: torch.empty((3, 5), dtype=d),
        lambda d: torch.empty((2, 3, 4, 5), dtype=d, memory_format=torch.channels_last),
        lambda d: torch.empty_strided((3, 5), (8, 1), dtype=d),
        lambda d: torch.empty_permuted((3, 5), (1, 0), dtype=d),
        lambda d: torch.zeros((3, 5), dtype=d),
        lambda d: torch.full((3, 5), 1, dtype=d),
        lambda d: torch.ones((), dtype=d),
        lambda d: torch.empty((0, 5), dtype=d),
        lambda d: torch.zeros(1, dtype=d).new_zeros((3, 5)),
        lambda d: torch.zeros(1, dtype=d).new_empty((3, 5)),
    ],
)
def test_allocations_look_as_without_guard(allocate, dtype):
    plain = allocate(dtype)
    with poisoned_allocations(Allocations().enclose):
        guarded = allocate(dtype)
    assert layout(guarded) == layout(plain)
    assert guarded.requires_grad == plain.requires_grad
    uninitialized = bool(guarded.numel()) and not dtype.is_complex and bool(poisoned(guarded).all())
    assert uninitialized or torch.equal(guarded.isnan(), plain.isnan()) or dtype.is_complex
    if not uninitialized and not dtype.is_complex:
        assert torch.equal(guarded, plain)


@pytest.mark.parametrize("dtype", [*DTYPE_NAMES, "complex64", "complex128"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[1:, 1:],
        lambda x: x[:, ::2],
        lambda x: x[0].expand(5, 24),
        lambda x: x.unfold(1, 4, 2),
        lambda x: x[1, 3],
        lambda x: x[:0],
    ],
    ids=["plain", "transposed", "offset", "every other", "expanded", "overlapping", "scalar", "empty"],
)
def test_inputs_look_as_without_guard(make, dtype):
    kind = getattr(torch, dtype)
    bits = torch.arange(18 * 24 * kind.itemsize).to(torch.uint8)
    x = make(bits.view(kind).view(18, 24))
    [given] = Inputs(["x"], [x]).given
    assert layout(given)[:-2] == layout(x)[:-2]
    assert given.data_ptr() % 512 == x.data_ptr() % 512 or x.numel() == 0
    assert given is not x or x.numel() == 0
    raw = torch.uint8
    assert torch.equal(given.contiguous().reshape(-1).view(raw), x.contiguous().reshape(-1).view(raw))


def test_what_cannot_be_guarded_is_left_alone_with_the_reason():
    class Own(torch.Tensor): ...

    grad = tensor(4, dtype="float32", requires_grad=True)
    own = tensor(4).as_subclass(Own)
    with torch.inference_mode():
        frozen = torch.ones(4)
    given = [grad, grad.detach(), own, tensor(4).to_sparse(), frozen, torch.ones(4, device="meta"), tensor(4)]
    inputs = Inputs([*"abcdefg"], given)
    assert [a is b for a, b in zip(inputs.given, given, strict=True)] == [True] * 6 + [False]
    assert inputs.notes == [
        "a and b: requires grad",
        "c: a Own",
        "d: no strided memory",
        "e: made in inference mode",
        "f: no strided memory",
    ]


def test_the_report_says_what_is_unguarded():
    report = check_kernel(
        lambda x, y: (x + y).detach(), tensor(4, requires_grad=True), tensor(4), reference=lambda x, y: x + y
    )
    assert report.unguarded == ("x: requires grad",)


def test_a_launcher_that_resizes_its_output():
    def kernel(x):
        out, grown = torch.empty(0, dtype=x.dtype), x.new_empty(2)
        torch.mul(x, 2, out=out)
        grown.resize_(x.shape).copy_(x)
        with pytest.raises(RuntimeError, match="resize"):
            torch.empty(3, requires_grad=True).resize_(9)
        return out, grown

    check_kernel(kernel, tensor(20, 30), reference=lambda x: (2 * x, x))
    text = failure(lambda x: x.new_empty(2).resize_(40), tensor(40), reference=identity)
    assert "40 elements still hold the poison" in text
    text = failure(lambda x: x.new(40), tensor(40), reference=identity)
    assert "40 elements still hold the poison" in text


def test_new_with_values_is_not_poisoned():
    check_kernel(lambda x: x.new([1, 2]), tensor(2), reference=lambda _: torch.tensor([1.0, 2.0]).double())


# -- what the caller sees -------------------------------------------------------------------------------


def test_the_caller_sees_what_may_change_and_nothing_else():
    def kernel(x, out):
        out += x
        return out

    x, out = tensor(4, 4, dtype="float32"), tensor(4, 6, dtype="float32", seed=2)[:, 1:5]
    then = out.clone()
    report = check_kernel(kernel, x, out, reference=lambda x, out: x + out, mutates=["out"])
    assert torch.equal(out, then + x)
    assert report.deterministic is True

    x_then, out_then = x.clone(), out.clone()
    assert "changed its input out" in failure(kernel, x, out, reference=lambda x, out: x + out)
    assert torch.equal(x, x_then)
    assert torch.equal(out, out_then)


def test_an_output_that_is_passed_in_and_right_already():
    def kernel(x, out):
        out[:, :3] = x[:, :3]
        return out

    x = tensor(4, 4)
    check_kernel(kernel, x, x.clone(), reference=lambda x, _: x, mutates=["out"])
    text = failure(kernel, x, x.clone(), reference=lambda x, _: x, writes=["out"])
    assert "4 elements still hold the poison: never written" in text


def test_an_output_that_is_passed_in_and_not_declared():
    def kernel(x, out):
        out[:3] = x[:3]
        return out

    x = tensor(4, 4)
    stale = failure(kernel, x, x.clone(), reference=lambda x, _: x, error=UncheckableOutput)
    assert "returned output in the memory of its input out, with the bits that were there before" in stale
    changed = failure(kernel, x, torch.zeros_like(x), reference=lambda x, _: x)
    assert "changed its input out (float16 [4, 4]): 12 of 16 elements" in changed
    for text in (stale, changed):
        assert text.endswith(
            "if that is where its result goes, say so with writes=['out'], which poisons it before, "
            "or with mutates=['out'] if it reads what is there"
        )
    [empty] = [check_kernel(lambda x: x[:0], x, reference=lambda x: x[:0])]
    assert empty.elements == 0


def test_an_argument_that_both_change_is_compared():
    def reference(x, state):
        state["sum"][:2] += x
        return 2 * x

    def right(x, state):
        state["sum"][:2] += x
        return 2 * x

    def wrong(x, state):
        state["sum"][:2] += x * 1.01
        return 2 * x

    def launch(kernel):
        return kernel, tensor(2, 8), {"sum": tensor(4, 8, dtype="float32"), "count": torch.zeros(3)}

    report = check_kernel(*launch(right), reference=reference, mutates=["state"])
    assert report.uncompared == ()
    text = failure(*launch(wrong), reference=reference, mutates=["state"])
    assert " ".join(text.split()).startswith(
        f"{wrong.__qualname__} leaves something else in state than its reference"
    )
    assert "output['state']['sum'] (float32 [4, 8]): 16 of 32 elements" in text


def test_an_argument_that_only_the_launcher_changes_is_compared_with_nothing():
    def kernel(x, r, out):
        r.zero_()
        out.copy_(x)
        return out

    x = tensor(4)
    report = check_kernel(
        kernel, x, x.clone(), x.clone(), reference=lambda x, *_: x, mutates=["r"], writes=["out"]
    )
    assert report.uncompared == ("r",)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "int8", "int64", "bool", "complex64"])
@pytest.mark.parametrize("guard", [True, False])
def test_an_argument_that_is_said_to_be_overwritten_and_never_is(dtype, guard):
    def kernel(x, outs):
        del outs
        return x * 2

    x, out = tensor(4), torch.zeros(4, 3, dtype=getattr(torch, dtype))
    options: dict[str, Any] = {"reference": lambda x, _: x * 2, "guard": guard}
    said = failure(kernel, x, {"first": out}, **options, writes=["outs"])
    assert said == (
        f"{kernel.__qualname__} never wrote outs['first'], which writes=['outs'] says that it overwrites\n"
        "if it only may change it, say so with mutates=['outs']"
    )
    check_kernel(kernel, x, {"first": out[:0]}, **options, writes=["outs"])
    assert check_kernel(kernel, x, {"first": out}, **options, mutates=["outs"]).uncompared == ("outs",)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float8_e4m3fn"])
def test_what_is_overwritten_with_the_very_poison_is_written(dtype):
    def kernel(x, scratch):
        bits_of(scratch).fill_(Pattern.UNWRITTEN.of(x.dtype))
        return copy(x)

    x = tensor(4, dtype=dtype)
    report = check_kernel(kernel, x, torch.zeros_like(x), reference=lambda x, _: x, writes=["scratch"])
    assert report.uncompared == ("scratch",)


def test_an_argument_that_may_change_and_shares_its_memory():
    def kernel(x, out):
        out += x.sum()
        return out

    whole = tensor(8, dtype="float32")
    before = whole.clone()
    report = check_kernel(
        kernel, whole[:4], whole[4:], reference=lambda x, out: out + x.sum(), mutates=["out"], reduction=4
    )
    assert torch.equal(whole[:4], before[:4])
    assert not torch.equal(whole[4:], before[4:])
    assert report.layouts == {}


# -- runs again -----------------------------------------------------------------------------------------


def test_a_launcher_that_does_not_repeat_itself_is_reported_and_does_not_fail():
    calls = []

    def kernel(x):
        calls.append(x)
        return x + 2**-9 * (len(calls) % 2)

    def check(n):
        return check_kernel(
            kernel, torch.ones(n, dtype=torch.float16), reference=identity, atol=0.1, vary_layout=False
        )

    assert check(4).deterministic is False
    assert check_kernel(copy, tensor(4), reference=identity).deterministic is True
    large = check(SMALL_BYTES)
    assert (large.deterministic, large.layouts) == (None, {})


def test_another_launch_has_to_be_right_as_well():
    calls = itertools.count(1)
    text = failure(lambda x: x * next(calls), tensor(4, 4), reference=identity, vary_layout=False)
    assert text.startswith("launched again, after a launch that was right: ")
    assert "a constant factor" in text

    shapes = itertools.count(4, -1)
    text = failure(lambda x: copy(x[: next(shapes)]), tensor(4, 4), reference=identity, vary_layout=False)
    assert "float16 [3, 4]" in text


# -- other layouts --------------------------------------------------------------------------------------


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
    assert f"  {named}" in text.splitlines()[-1]
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
    varied = in_layout([x, [x], 3], kind)
    if varied is None:
        assert kind is not Layout.OFFSET
        assert sum(size > 1 for size in x.shape) < 2
        return
    new, [same], three = varied.values
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


# -- memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("elements", "extra"), [(10, 32 << 10), (1 << 18, 1 << 20), (1 << 22, 2 << 20)])
def test_bands_take_little_memory(elements, extra):
    x = torch.zeros(elements, dtype=torch.float16)
    [placed], _ = enclose([x], pattern=Pattern.BESIDE_INPUT)
    total = placed.untyped_storage().nbytes()
    assert total - 2 * elements <= extra + 1024
    assert band_bytes(2 * elements) * 2 <= extra


def test_a_check_takes_one_copy_of_its_inputs():
    x = torch.zeros(1 << 22, dtype=torch.float16)
    held: list[torch.UntypedStorage] = []
    inputs = Inputs(["x", "y"], [x, x])
    for value in (*inputs.given, *inputs.before):
        storage = value.untyped_storage()
        if storage.data_ptr() not in [each.data_ptr() for each in (*held, x.untyped_storage())]:
            held.append(storage)
    assert sum(each.nbytes() for each in held) <= x.nbytes + (2 << 20) + 1024


def into(out, x):
    out.copy_(x * 2)


def returning(out, x):
    del out
    return x * 2


def into_all_but_the_last_row(out, x):
    into(out[:-1], x[:-1])


@pytest.mark.parametrize("reference", [into, returning])
@pytest.mark.parametrize(("writes", "mutates"), [(["out"], []), ([], ["out"])])
def test_what_a_launcher_without_a_result_is_said_to_write_is_its_output(reference, writes, mutates):
    out, x = torch.empty(64, 100).half(), tensor(64, 100)
    report = check_kernel(into, out, x, reference=reference, strength=True, writes=writes, mutates=mutates)
    assert report.outputs == "float16 [64, 100]"
    assert report.uncompared == ()
    assert report.strength is not None
    assert not report.strength.weaknesses
    assert torch.equal(out, x * 2)
    said = failure(into_all_but_the_last_row, out, x, reference=reference, writes=["out"])
    assert "100 elements still hold the poison: never written" in said


def test_several_of_them_are_a_tuple():
    def kernel(x, first, scratch, second):
        into(first, x)
        scratch.zero_()
        into(second, 2 * x)

    x = tensor(64, 100)
    options: dict[str, Any] = {"writes": ["second", "first"], "mutates": ["scratch"]}
    given = [x, *(torch.empty_like(x) for _ in range(3))]
    report = check_kernel(kernel, *given, reference=lambda x, *_: (x * 2, x * 4), **options)
    assert report.outputs == "(float16 [64, 100], float16 [64, 100])"
    assert report.uncompared == ("scratch",)
    failure(kernel, *given, reference=lambda x, *_: (x * 4, x * 2), **options)


def test_one_that_is_said_to_write_nothing_says_how_to():
    said = failure(into, tensor(4), tensor(4), reference=into, error=UncheckableOutput)
    assert "writes=['out']" in said


def test_what_is_written_does_not_tell_the_precision_of_operands():
    a, b = (tensor(64, 64, dtype="float32", seed=seed) for seed in (1, 2))

    def multiply(a, b, out):
        out.copy_(a.half().float() @ b.half().float())

    out = torch.empty(64, 64, dtype=torch.float16)
    failure(multiply, a, b, out, reference=lambda a, b, _: a @ b, reduction=64, writes=["out"])


def upper_half(x):
    out = torch.empty_like(x)
    out[: len(x) // 2] = x[: len(x) // 2]
    return out


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "uint64"])
def test_integers_that_happen_to_be_the_poison_and_were_never_written(dtype):
    x = torch.empty(8, 5, dtype=resolve_dtype(dtype))
    bits_of(x).fill_(Pattern.UNWRITTEN.of(x.dtype))
    said = failure(upper_half, x, reference=identity)
    assert said == "upper_half: 20 elements of output hold what was there before, twice: never written"
    assert check_kernel(copy, x, reference=identity).deterministic is True


def into_upper_half(out, x):
    out[: len(x) // 2] = x[: len(x) // 2]


def test_those_that_are_passed_in():
    x = torch.full((8,), 165, dtype=torch.uint8)
    said = failure(into_upper_half, torch.empty_like(x), x, reference=lambda _, x: x, writes=["out"])
    assert "4 elements of output hold what was there before" in said


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        (upper_half, "20 elements of output hold what was there before, twice: never written"),
        (lambda x: torch.full_like(x, -91), "launched again over other bytes: all elements are written"),
    ],
)
def test_small_integers_that_are_the_poison_may_be_values(kernel, known):
    said = failure(kernel, torch.ones(8, 5, dtype=torch.int8), reference=identity)
    assert "elements hold the poison, which may be a value: perhaps never written" in said
    assert said.endswith(f"\n{known}")
