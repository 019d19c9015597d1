"""What lies around inputs and outputs: each fault that a guard exists for, and no difference else."""

import itertools
import re
from collections import OrderedDict, defaultdict
from random import Random

import pytest
import torch

from pytest_cutile.correctness.check import check_kernel
from pytest_cutile.correctness.errors import WHICH_LAUNCH, KernelMismatch
from pytest_cutile.correctness.guards.launch import SMALL_BYTES
from pytest_cutile.correctness.guards.memory import KEPT_BYTES, Allocations, Inputs
from pytest_cutile.correctness.guards.redzones import enclose, redzone_bytes
from pytest_cutile.tile.tensors.dtypes import DTYPE_NAMES, resolve_dtype
from pytest_cutile.tile.tensors.poison import Pattern, poisoned, poisoned_allocations
from tests.correctness.checking import copy, failure, identity, story, tensor


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
    assert text == "kernel wrote 2 elements before the start of output[1] (nearest at offset -2)"


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
    monkeypatch.setattr("pytest_cutile.correctness.guards.memory.KEPT_BYTES", 0)
    allocations = Allocations()
    with poisoned_allocations(allocations.enclose):
        out, temporary = torch.empty(100), torch.empty(100)
    for each in (out, temporary):
        beyond(each, 2).zero_()
    assert len(list(allocations.violations(out))) == 2
    del temporary, each
    assert list(allocations.violations(out)) == [
        "wrote 2 elements past the end of output (first at offset +0)"
    ]
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
    assert story(text).endswith("what lies around input x reached the outputs: it is read out of bounds")
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
    inputs = Inputs({"bytes_": bytes_, "halves": halves})
    copies = [*inputs.given.values()]
    assert [torch.equal(each, own) for each, own in zip(copies, (bytes_, halves), strict=True)] == [True] * 2
    assert copies[1].data_ptr() - copies[0].data_ptr() == 21
    assert list(inputs.violations()) == []
    copies[0].as_strided((3,), (1,), copies[0].storage_offset() + 18).zero_()
    assert list(inputs.violations()) == [
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
    given = Inputs({"x": x}).given["x"]
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
    inputs = Inputs(dict(zip("abcdefg", given, strict=True)))
    assert [a is b for a, b in zip(inputs.given.values(), given, strict=True)] == [True] * 6 + [False]
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


# -- runs again -----------------------------------------------------------------------------------------


@pytest.mark.slow
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
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(lambda x: x * next(calls), tensor(4, 4), reference=identity, vary_layout=False)
    assert str(caught.value).startswith("the second launch, after one that was right: ")
    assert "a constant factor" in str(caught.value)
    assert caught.value.clarity == WHICH_LAUNCH  # of several failures of a kernel, this one is shown

    shapes = itertools.count(4, -1)
    text = failure(lambda x: copy(x[: next(shapes)]), tensor(4, 4), reference=identity, vary_layout=False)
    assert "float16 [3, 4]" in text


# -- memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("elements", "extra"), [(10, 32 << 10), (1 << 18, 1 << 20), (1 << 22, 2 << 20)])
def test_bands_take_little_memory(elements, extra):
    x = torch.zeros(elements, dtype=torch.float16)
    [placed], _ = enclose([x], pattern=Pattern.BESIDE_INPUT)
    total = placed.untyped_storage().nbytes()
    assert total - 2 * elements <= extra + 1024
    assert redzone_bytes(2 * elements) * 2 <= extra


def test_a_check_takes_one_copy_of_its_inputs():
    x = torch.zeros(1 << 22, dtype=torch.float16)
    held: list[torch.UntypedStorage] = []
    inputs = Inputs({"x": x, "y": x})
    for value in (*inputs.given.values(), *inputs.before.values()):
        storage = value.untyped_storage()
        if storage.data_ptr() not in [each.data_ptr() for each in (*held, x.untyped_storage())]:
            held.append(storage)
    assert sum(each.nbytes() for each in held) <= x.nbytes + (2 << 20) + 1024
