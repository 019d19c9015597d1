"""Honest kernels pass and bugs do not: a fast part of `research/calibrate_check.py`, and corner cases."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel
from pytest_cutile.correctness.compare import elements
from pytest_cutile.correctness.compare.elements import Bound, blocks, compare
from pytest_cutile.correctness.error_model.noise import RUNS, estimate
from pytest_cutile.correctness.error_model.running import ReferenceCall
from pytest_cutile.correctness.error_model.tolerance import SHORT_STEP, ErrorModel, model_for
from pytest_cutile.words.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FLOAT32, TFLOAT32
from research.calibrate_check import check
from research.emulated_attention import attention
from research.emulated_kernels import matmul, rms_norm, softmax
from tests.correctness.checking import failure, tensor

SMALL: dict[str, Any] = {"m": 48, "n": 40}
WORKLOADS = [
    matmul("float16", "float16", 512, **SMALL),
    matmul("bfloat16", "bfloat16", 1024, dist="positive", **SMALL),
    matmul("float32", "float32", 512, **SMALL),
    matmul("tfloat32", "float32", 1024, **SMALL),
    matmul("float8_e4m3fn", "float8_e4m3fn", 512, **SMALL),
    softmax("float16", 8192, m=8),
    softmax("bfloat16", 500),
    softmax("float32", 500),
    rms_norm("float16", 512, size=2.0**-8),
    rms_norm("float32", 512, size=2.0**-8),
    attention("float16", 128, d=32),
    attention("bfloat16", 128, d=32, causal=False),
]


@pytest.mark.parametrize(
    ("workload", "kernel"),
    [pytest.param(w, k, id=f"{w.name}-{name}") for w in WORKLOADS for name, k in w.honest.items()],
)
def test_an_honest_kernel_passes(workload, kernel):
    report = check(workload, kernel, seed=100)
    assert report is not None
    assert report.worst_error <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "kernel"),
    [pytest.param(w, k, id=f"{w.name}-{name}") for w in WORKLOADS for name, k in w.bugs.items()],
)
def test_a_bug_is_caught(workload, kernel):
    assert check(workload, kernel, seed=100) is None


def one(value, dtype):
    return torch.tensor([value], dtype=torch.float64).to(dtype)


def passes(out, exact):
    x = torch.zeros(1)
    try:
        check_kernel(lambda _: out, x, reference=lambda _: torch.tensor([exact], dtype=torch.float64))
    except KernelMismatch:
        return False
    return True


@pytest.mark.parametrize(
    ("got", "exact", "fine"),
    [
        (math.inf, 65520.0, True),
        (65504.0, 65519.0, True),
        (65504.0, 70000.0, False),
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (65504.0, math.inf, False),
        (math.nan, math.nan, True),
        (0.0, math.nan, False),
        (math.nan, 0.0, False),
        (0.0, -0.0, True),
        (2.0**-24, 2.0**-24, True),
        (0.0, 2.0**-24, False),
        (1.0, 1.0 + 2.0**-11, True),
        (1.0 + 2.0**-10, 1.0 + 2.0**-11, True),
        (1.0, 1.0 + 2.0**-11 * 1.01, False),
    ],
)
def test_special_values_in_float16(got, exact, fine):
    assert passes(one(got, torch.float16), exact) is fine


@pytest.mark.parametrize(
    ("dtype", "got", "exact", "fine"),
    [
        ("float8_e4m3fn", 448.0, 1000.0, True),
        ("float8_e4m3fn", math.nan, 1000.0, True),
        ("float8_e4m3fn", math.nan, 448.0, False),
        ("float8_e4m3fn", 416.0, 1000.0, False),
        ("float8_e5m2", 57344.0, 1e6, True),
        ("float8_e5m2", math.inf, 1e6, True),
        ("float8_e5m2", -math.inf, 1e6, False),
        ("float8_e5m2", math.inf, 50000.0, False),
    ],
)
def test_fp8_may_saturate_or_overflow(dtype, got, exact, fine):
    assert passes(one(got, getattr(torch, dtype)), exact) is fine


def test_float64_is_held_to_float64():
    x = torch.linspace(0.1, 3, 1000, dtype=torch.float64)
    assert check_kernel(lambda x: x.exp(), x, reference=lambda x: x.exp()).worst_ulps == 0
    assert check_kernel(lambda x: x.log().neg().exp(), x, reference=lambda x: 1 / x).worst_ulps <= 8
    with pytest.raises(KernelMismatch):
        check_kernel(lambda x: x.float().exp().double(), x, reference=lambda x: x.exp())


def test_integers_are_exact_whatever_their_width():
    x = torch.arange(100)
    check_kernel(lambda x: x.to(torch.int32), x, reference=lambda x: x)
    with pytest.raises(
        KernelMismatch, match=r"(?s)worst element \[99\]: got 100, expected 99.*last 1|index 99"
    ):
        check_kernel(lambda x: x + (x == 99), x, reference=lambda x: x)


def test_a_given_tolerance_replaces_the_bound_and_the_report_says_so():
    x = torch.ones(16)
    report = check_kernel(lambda x: x * 1.005, x, reference=lambda x: x, rtol=0.01)
    assert report.bound.startswith("rtol=0.01, atol=0, as given in place of the derived bound; it allows")
    assert report.looser is not None
    assert 1e3 < report.looser < 1e4
    assert 0.49 < report.worst_error < 0.51
    with pytest.raises(KernelMismatch, match=r"rtol=0, atol=0\.001, as given"):
        check_kernel(lambda x: x * 1.005, x, reference=lambda x: x, atol=0.001)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float16", [300.0, -300.0, 2.0, 1.0, 2.0**-13, 1.5 * 2.0**-10]),
        ("float8_e4m3fn", [416.0, -30.0, 3.5, 2.0**-5, 2.0**-9]),
        ("float8_e5m2", [-(2.0**15), 1.75, 2.0**-9]),
    ],
)
@pytest.mark.parametrize(("rtol", "atol"), [(0, 0), (1e-2, 0), (1e-2, 1e-2), (0.1, 0)])
def test_a_correctly_rounded_value_is_within_any_tolerance(dtype, values, rtol, atol):
    """It overflows, saturates, is subnormal or lies in the middle of wide spacings."""
    x = torch.tensor(values).to(getattr(torch, dtype))

    def square(x, factor=1):
        exact = x.double().square() * factor
        largest = torch.finfo(x.dtype).max
        return (exact if x.dtype == torch.float16 else exact.clamp(-largest, largest)).to(x.dtype)

    report = check_kernel(square, x, reference=torch.square, rtol=rtol, atol=atol)
    assert report.worst_error <= 1
    assert report.worst_ulps == 0
    failure(lambda x: square(x, 0.75), x, reference=torch.square, rtol=rtol, atol=atol)


def test_what_a_tolerance_allows_reaches_to_the_correctly_rounded_value():
    x = torch.tensor([300.0, 2.0]).half()
    wrong = torch.tensor([65504.0, 4.0]).half()
    text = failure(lambda _: wrong.clone(), x, reference=torch.square, rtol=1e-2)
    assert "allowed  89100 to inf" in text


def test_masks_that_a_reference_compares_stay_exact_under_noise():
    def reference(x, mask):
        ones = torch.ones_like(x).tril()
        return torch.where((ones == 1) & (mask == 1), x / 3, (1 - mask) * -1e9)

    def kernel(x, mask):
        return torch.where((torch.ones_like(x).tril() == 1) & (mask == 1), x / 3, (1 - mask) * -1e9)

    x, mask = torch.randn(64, 64), (torch.rand(64, 64) > 0.3).float()
    check_kernel(kernel, x, mask, reference=reference)
    with pytest.raises(KernelMismatch):
        check_kernel(lambda x, mask: kernel(x, mask) * (1 + 1e-4), x, mask, reference=reference)


def call_of(reference, *args):
    return ReferenceCall(
        reference=reference, name="the reference", args={f"{at}": x for at, x in enumerate(args)}, kwargs={}
    )


def test_operand_noise_is_only_where_a_product_needs_it():
    def run(reference, *args, operands=BFLOAT16):
        return estimate(call_of(reference, *args), operands=operands)

    a, b = torch.randn(32, 32).bfloat16(), torch.randn(32, 32).bfloat16()
    plain = run(lambda a, b: a @ b, a, b)
    assert plain.observed.has_products
    assert not plain.operands
    assert plain.runs == 4
    nested = run(lambda a, b: torch.softmax(a @ b, -1) @ b, a, b)
    assert nested.operands
    assert nested.runs == 7
    fused = run(
        lambda a, b: torch.nn.functional.scaled_dot_product_attention(a[None], b[None], b[None])[0], a, b
    )
    assert fused.operands
    assert not run(lambda a: a.exp(), a).observed.has_products
    assert run(lambda a, b: a @ b, a.float() / 3, b.float() / 3, operands=TFLOAT32).operands


def test_a_reference_may_work_in_place():
    def reference(x):
        x.exp_()
        x.div_(x.sum(-1, keepdim=True))
        return x

    x = torch.randn(16, 100)
    check_kernel(lambda x: torch.softmax(x, -1), x, reference=reference, reduction=100)
    with pytest.raises(KernelMismatch):
        check_kernel(lambda x: torch.softmax(x, -1) * 1.0001, x, reference=reference, reduction=100)


def test_chunks_change_nothing(monkeypatch):
    x = torch.randn(30, 50)
    truth = estimate(call_of(lambda x: x.exp(), x), operands=FLOAT32)
    bound = Bound(
        target=FLOAT32,
        model=model_for(1, accumulation=FLOAT32, operands=None, short_sums=False, elements=1500),
        accumulation=truth.accumulation["output"],
        operands=None,
        policy=None,
        common=0.0,
    )
    out = x.exp()
    out[29, 3] *= 1.1
    results = []
    for chunk in (7, 50, 64, 10_000):
        monkeypatch.setattr(elements, "CHUNK", chunk)
        results.append(compare(out, truth.outputs, bound))
    assert {each.worst for each in results} == {results[0].worst}
    assert results[0].worst is not None
    assert results[0].worst.index == (29, 3)
    for each in results:
        assert each.outside is not None
        assert each.outside.nonzero().tolist() == [[29, 3]]


@pytest.mark.parametrize(
    ("rows", "columns", "chunk"), [(3, 5, 4), (3, 5, 100), (1, 10, 3), (0, 4, 8), (4, 1, 2)]
)
def test_blocks_cover_everything_once(rows, columns, chunk, monkeypatch):
    monkeypatch.setattr(elements, "CHUNK", chunk)
    seen = torch.zeros(rows, columns)
    for row, column in blocks(seen):
        assert seen[row, column].numel() <= chunk
        seen[row, column] += 1
    assert bool((seen == 1).all())


def _eight_bit(reduction: int, *, short_sums: bool, fast_acc: bool = False) -> ErrorModel:
    return model_for(
        reduction,
        accumulation=FLOAT32,
        operands=FLOAT8_E4M3FN,
        short_sums=short_sums,
        elements=1,
        fast_acc=fast_acc,
    )


def test_only_an_accumulator_of_fewer_bits_gets_an_allowance_for_them():
    assert _eight_bit(1024, short_sums=False).drift_of_value == 0
    assert _eight_bit(1024, short_sums=False, fast_acc=True) == _eight_bit(1024, short_sums=False)
    assert _eight_bit(1024, short_sums=True).drift_of_value > 0


def test_sums_that_float32_takes_over_lose_no_more_the_longer_they_are():
    short, long = (_eight_bit(k, short_sums=True) for k in (128, 8192))
    assert short.short_variance == long.short_variance
    assert short.drift_of_value == long.drift_of_value
    stated = _eight_bit(8192, short_sums=True, fast_acc=True)
    assert stated.short_variance == 64 * long.short_variance
    assert stated.drift_of_value == 64 * long.drift_of_value


# Of 2 million sums of K products on an H200, the largest error in units of 2^-13 P, where they cancel, and of
# 2^-13 y, where all products are positive (research/false_alarms.py --accumulators).
MEASURED = [
    (64, True, 7.2, 6.3),
    (256, True, 20.3, 26.1),
    (1024, True, 35.8, 134.0),
    (4096, True, 91.7, 586.0),
    (16384, True, 246.0, 2107.0),
    (256, False, 13.5, 9.0),
    (1024, False, 8.8, 6.6),
    (16384, False, 5.4, 4.6),
]


@pytest.mark.parametrize(("k", "fast_acc", "cancelling", "growing"), MEASURED)
def test_what_the_accumulator_loses_is_allowed_but_not_several_times_that(k, fast_acc, cancelling, growing):
    model = model_for(
        k,
        accumulation=FLOAT32,
        operands=FLOAT8_E4M3FN,
        short_sums=True,
        elements=2_000_000,
        fast_acc=fast_acc,
    )
    random = model.sigmas * math.sqrt(model.short_variance) * model.unit / SHORT_STEP
    grown = random + 1.5 * model.drift_of_value / SHORT_STEP
    assert cancelling < random
    assert growing < grown
    if fast_acc:
        assert random < 5 * cancelling
        assert grown < 8 * growing


def test_small_outputs_get_all_their_noisy_runs():
    # Below 256 elements there are 12, whose seeds are beyond int64 unless they wrap.
    q, k = (torch.randn(shape, dtype=torch.float64).half() for shape in ((1, 64), (50, 64)))
    truth = estimate(call_of(lambda q, k: torch.softmax(q @ k.T, 1) @ k, q, k), operands=FLOAT16)
    assert truth.runs == 1 + 2 * 12


def test_what_is_below_the_normal_numbers_of_float32_may_be_lost_and_no_more():
    exact = torch.tensor([1e-39, 1e-40, 2.0**-126, 0.0, 1.0]).double()

    def check(out):
        return check_kernel(lambda _: out.clone(), exact.float(), reference=lambda _: exact)

    flushed = torch.tensor([0.0, 0.0, 2.0**-126, 0.0, 1.0])
    assert check(flushed).worst_error <= 1
    for wrong in ([0, 0, 2.0**-126, 1e-40, 1], [1e-37, 0, 2.0**-126, 0, 1]):
        with pytest.raises(KernelMismatch):
            check(torch.tensor(wrong, dtype=torch.float32))


COMPILING = """
import sys
import torch
from pytest_cutile.correctness.check import check_kernel

def double(x): return x * 2

check_kernel(double, torch.ones(4), reference=double)
print("torch._dynamo" in sys.modules)
check_kernel(double, torch.ones(4), reference=lambda x: torch.compile(double, backend="eager")(x))
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_torchs_compiler_is_imported_by_references_that_use_it_alone():
    done = subprocess.run([sys.executable, "-c", COMPILING], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True"], done.stderr


CANCELLING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "1 - tanh": lambda x: 1 - x.tanh(),
    "1 - sigmoid": lambda x: 1 - (3 * x).sigmoid(),
    "exp - 1": lambda x: (1e-3 * x).exp() - 1,
    "1 - cos": lambda x: 1 - (0.01 * x).cos(),
    "log(1 + exp)": lambda x: torch.log(1 + torch.exp(-5 * x.abs())),
    "1 + erf": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "gelu": torch.nn.functional.gelu,
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CANCELLING)
def test_results_of_functions_may_cancel(name, dtype):
    """In one dimension, where no row or column tells how large an element's noise is."""
    function = CANCELLING[name]
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    report = check_kernel(lambda x: function(x.float()).to(x.dtype), x, reference=function, guard=False)
    assert report.worst_error < 0.8


def test_a_value_beyond_float32_says_nothing_of_others():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    x[3, 5] = 400.0  # exp(400) is 1e173, the square of which no float64 holds
    assert check_kernel(torch.exp, x, reference=torch.exp).worst_error < 0.5
    with pytest.raises(KernelMismatch, match="interval"):
        check_kernel(lambda x: torch.exp(x) * (1 + 1e-5), x, reference=torch.exp)


def test_unwritten_bools_are_not_true():
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=torch.bool)
        out[:-8] = True
        return out

    with pytest.raises(KernelMismatch, match="800 elements still hold the poison: never written"):
        check_kernel(kernel, torch.ones(64, 100), reference=lambda x: torch.ones_like(x, dtype=torch.bool))


def test_integers_may_differ_by_a_given_atol_and_by_nothing_else():
    def reference(x: torch.Tensor) -> torch.Tensor:
        return (x / 0.1).round().to(torch.int8)

    def truncate(x: torch.Tensor) -> torch.Tensor:
        return (x / 0.1).to(torch.int8)

    x = torch.arange(-40, 40) / 4.0 + 0.07
    report = check_kernel(truncate, x, reference=reference, atol=1)
    assert report.bound == "integers within atol=1, as given: any of 3 integers"
    with pytest.raises(KernelMismatch, match="differs"):
        check_kernel(truncate, x, reference=reference)
    with pytest.raises(KernelMismatch, match="differs"):
        check_kernel(truncate, x, reference=reference, atol=0.5, rtol=1.0)
    with pytest.raises(KernelMismatch, match="differs"):
        check_kernel(lambda x: truncate(x) + 2, x, reference=reference, atol=1)


@pytest.mark.parametrize(
    ("got", "exact"),
    [
        (torch.tensor([2**60 + 100]), torch.tensor([2**60])),
        (torch.tensor([2**62 + 200], dtype=torch.uint64), torch.tensor([2**62], dtype=torch.uint64)),
        (torch.tensor([2**64 - 3], dtype=torch.uint64), torch.tensor([2**64 - 1], dtype=torch.uint64)),
        (torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([-1])),
        (torch.tensor([2**63 - 1]), torch.tensor([-(2**63)])),
        (torch.tensor([-128], dtype=torch.int8), torch.tensor([127])),
    ],
)
def test_a_given_atol_is_held_by_integers_of_any_size_and_sign(got, exact):
    distance = abs(got.item() - exact.item())
    text = failure(lambda _: got, torch.ones(1), reference=lambda _: exact, atol=min(distance - 1, 2**50))
    assert f"got {got.item()}, expected {exact.item()}" in text
    report = check_kernel(lambda _: got, torch.ones(1), reference=lambda _: exact, atol=distance)
    assert report.worst_error == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_elements_do_not_widen_the_bound_of_small_ones(dtype):
    """Of exponentials over many orders of magnitude, each is as precise as the others."""
    x = (10.0 * tensor(256, 1024, dtype="float32")).to(getattr(torch, dtype))

    def exponential(x):
        return x.float().exp().to(x.dtype)

    def flushing(x):
        return torch.where(x < -10, 0.0, exponential(x))

    check_kernel(exponential, x, reference=torch.exp)
    lost = int((x < -10).sum())
    assert f"{lost:,} wrong elements are zero" in failure(flushing, x, reference=torch.exp)


def test_a_softmax_that_drops_small_terms():
    x = 5.0 * tensor(64, 1000, dtype="float32")

    def softmax(x, least=-math.inf):
        x = x - x.amax(-1, keepdim=True)
        terms = torch.where(x < least, 0.0, x.exp())
        return terms / terms.sum(-1, keepdim=True)

    def reference(x):
        return torch.softmax(x, -1)

    check_kernel(softmax, x, reference=reference, reduction=1000)
    assert "interval" in failure(lambda x: softmax(x, -25), x, reference=reference, reduction=1000)


def test_two_sources_of_noise_that_cancel_in_all_runs():
    """Two keys hold the attention of a row, and in some columns their values are alike.

    Three runs may see no noise there; the next number of them does.
    """
    worst = 0.0
    for seed in range(20):
        q = torch.rand(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1
        v = tensor(2, 64, seed=seed)
        v[1] = torch.where(torch.arange(64) % 8 == 0, v[0], v[1])
        size = torch.tensor([[16.0], [4.0], [4.0], [1.0]], dtype=torch.float64)
        estimated = estimate(call_of(lambda v, p=q * size: p @ v, v), operands=FLOAT16, repeats=RUNS[1])
        found = estimated.operands["output"]
        true = (((q * size) ** 2 * 2.0**-22 / 3) @ v.double().square()).sqrt()
        worst = max(worst, float((true / found.block(slice(None), slice(None)).sqrt()).max()))
    assert worst < 2, worst


@pytest.mark.parametrize("scale", [1e19, 1e20, 1e60])
def test_sums_of_any_size_that_float64_holds_have_their_noise(scale):
    a, b = tensor(16, 128, dtype="float64") * scale, tensor(128, 16, dtype="float64", seed=2) * scale

    def in_turn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return sum(a[:, k : k + 1] * b[k] for k in range(128))  # type: ignore[return-value]

    assert check_kernel(in_turn, a, b, reference=torch.matmul, reduction=128).worst_error > 0
