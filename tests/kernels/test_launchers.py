"""The kernels' host side, on a CPU: argument checks, declared cases and work, references."""

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from functools import partial

import pytest

import kernels
from kernels import (
    attention_decode,
    bmm,
    dropout,
    fmha,
    group_gemm,
    matmul,
    mla,
    mla_decoding,
    moe,
    moe_routing,
    rms_norm,
    rope,
    silu_and_mul,
    softmax,
    swiglu,
)
from kernels._division import divisor
from kernels._launch import check_bool, cut_row, next_power_of_2
from kernels._tiles import swizzle
from pytest_cutile import KernelSpec, Work
from pytest_cutile.tile.compiler import pretend_gpu
from pytest_cutile.tile.tensors.seeded import MakeTensor
from tools.gpu_runs.inputs import as_arguments

torch = pytest.importorskip("torch")
tree_leaves = torch.utils._pytree.tree_leaves
tree_map_only = torch.utils._pytree.tree_map_only

MODULES = [
    importlib.import_module(f"kernels.{module.name}")
    for module in pkgutil.iter_modules(kernels.__path__)
    if not module.name.startswith("_")
]
SPECS = [module.SPEC for module in MODULES]
by_name = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)

HALF = {"dtype": torch.float16}


@dataclass(frozen=True)
class OtherConfig:
    """What no launcher takes."""


# Timed on workloads that others chose: what matters is that figures can be compared.
PUBLISHED = {"fmha", "mla"}
# One prompt, or one token of one sequence, is what a user alone waits for: a few us, most of them latency.
ONE_SEQUENCE = {"attention_decode", "fmha", "mla_decoding"}
# Timed although they move little, as in a model: what matters is that they stay short beside the rest.
SHORT = {"moe_routing"}


def make_tensor(shape, dtype, *, dist="normal", low=0.0, high=1.0):
    tensor = torch.empty(shape)
    return (tensor.uniform_(low, high) if dist == "uniform" else tensor.normal_()).to(getattr(torch, dtype))


def case_of(spec: KernelSpec, name: str):
    return next(case for case in spec.cases if case.name == name)


# -- argument checks --------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [spec for spec in SPECS if any(case.min_arch for case in spec.cases)])
def test_dtypes_that_an_architecture_does_not_have_are_refused(spec):
    case = next(case for case in spec.cases if case.min_arch)
    with pretend_gpu("sm_89"):
        args, kwargs = as_arguments(spec.make_inputs(partial(MakeTensor, device="cuda", seed=0), case))
        with pytest.raises(
            TypeError, match=rf"float8_\w+ is compiled for {case.min_arch} and newer, .* sm_89"
        ):
            spec.launch(*args, **kwargs)


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        ([[1.0]], torch.ones(1, 1), TypeError, "a must be a torch.Tensor, got list"),
        (torch.ones(2, 3), torch.ones(3, 2, **HALF), TypeError, r"b has dtype torch\.float16, but a has"),
        (torch.ones(2, 3).double(), torch.ones(3, 2).double(), TypeError, "supported are float16, bfloat16"),
        (torch.ones(3), torch.ones(3, 2), ValueError, r"a must be a matrix, got shape \[3\]"),
        (torch.ones(2, 3), torch.ones(1, 3, 2), ValueError, r"b must be a matrix, got shape \[1, 3, 2\]"),
        (torch.ones(2, 3), torch.ones(2, 3), ValueError, r"b must have 3 rows, but is \[2, 3\]"),
        (torch.ones(2, 3), torch.ones(3, 2, device="meta"), ValueError, "b is on meta, but a is on cpu"),
    ],
)
def test_matmul_says_what_is_wrong(a, b, error, message):
    with pytest.raises(error, match="^matmul: .*" + message):
        matmul.matmul(a, b)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (None, TypeError, "x must be a torch.Tensor, got NoneType"),
        (torch.ones(2, 3, dtype=torch.int32), TypeError, r"x has dtype torch\.int32; supported are float16"),
        (torch.ones(5), ValueError, r"must be a matrix .* got shape \[5\]"),
    ],
)
def test_softmax_says_what_is_wrong(x, error, message):
    with pytest.raises(error, match="^softmax: .*" + message):
        softmax.softmax(x)


@pytest.mark.parametrize(
    ("x", "weight", "eps", "error", "message"),
    [
        (torch.ones(2, 3), None, 1e-6, TypeError, "weight must be a torch.Tensor, got NoneType"),
        (torch.ones(2, 3), torch.ones(3, **HALF), 1e-6, TypeError, "weight has dtype torch.float16, but x"),
        (torch.ones(()), torch.ones(1), 1e-6, ValueError, "at least one axis"),
        (torch.ones(2, 3), torch.ones(2), 1e-6, ValueError, r"weight must be \[3\], but is \[2\]"),
        (torch.ones(2, 3), torch.ones(1, 3), 1e-6, ValueError, r"weight must be \[3\], but is \[1, 3\]"),
        (torch.ones(1, 16385), torch.ones(16385), 1e-6, ValueError, "rows of 16385 are too wide"),
        (torch.ones(2, 3), torch.ones(3), torch.ones(2, 3), TypeError, "eps must be .* Tensor; .* residual="),
        (torch.ones(2, 3), torch.ones(3), None, TypeError, "eps must be a number, got NoneType"),
        (torch.ones(2, 3), torch.ones(3), "1e-6", TypeError, "eps must be a number, got str"),
        (torch.ones(2, 3), torch.ones(3), -1.0, ValueError, r"eps must be 0, or 1\.18e-38 to .*, got -1\.0"),
        (torch.ones(2, 3), torch.ones(3), float("nan"), ValueError, "eps must be .* got nan"),
        (torch.ones(2, 3), torch.ones(3), float("inf"), ValueError, "eps must be .* got inf"),
        (torch.ones(2, 3), torch.ones(3), 1e-50, ValueError, "eps must be .* got 1e-50: .* normal float32"),
        (torch.ones(2, 3), torch.ones(3, device="meta"), 1e-6, ValueError, "weight is on meta, but x is on"),
    ],
)
def test_rms_norm_says_what_is_wrong(x, weight, eps, error, message):
    with pytest.raises(error, match="^rms_norm: .*" + message):
        rms_norm.rms_norm(x, weight, eps)


def half(*shape, **kwargs):
    return torch.ones(shape, **HALF, **kwargs)


@pytest.mark.parametrize(
    ("q", "k", "v", "scale", "error", "message"),
    [
        (half(1, 2, 3, 64), None, half(1, 2, 3, 64), None, TypeError, "k must be a torch.Tensor, got None"),
        (*[torch.ones(1, 2, 3, 64)] * 3, None, TypeError, "supported are float16, bfloat16"),
        (half(1, 2, 3, 64), *[half(1, 2, 3, 64).bfloat16()] * 2, None, TypeError, "k has dtype .* but q has"),
        (half(1, 2, 3, 64), *[half(1, 2, 3, 64, device="meta")] * 2, None, ValueError, "k is on meta, but q"),
        (half(2, 3, 64), *[half(1, 2, 3, 64)] * 2, None, ValueError, r"q must be .* got shape \[2, 3, 64\]"),
        (*[half(1, 2, 3, 64)] * 2, half(3, 64), None, ValueError, r"v must be .* got shape \[3, 64\]"),
        (*[half(1, 2, 3, 80)] * 3, None, ValueError, "with D = 80; supported are 64, 128, 256"),
        (
            half(1, 2, 3, 64),
            *[half(1, 2, 5, 128)] * 2,
            None,
            ValueError,
            r"k must be \[1, H_kv, N, 64\], but is",
        ),
        (
            half(2, 2, 3, 64),
            *[half(1, 2, 5, 64)] * 2,
            None,
            ValueError,
            r"k must be \[2, H_kv, N, 64\], but is",
        ),
        (
            *[half(1, 2, 3, 64)] * 2,
            half(1, 2, 4, 64),
            None,
            ValueError,
            r"v must have k's shape \[1, 2, 3, 64\]",
        ),
        (*[half(1, 2, 3, 64)] * 2, half(1, 1, 3, 64), None, ValueError, r"k's shape .* is \[1, 1, 3, 64\]"),
        (
            half(1, 3, 3, 64),
            *[half(1, 2, 3, 64)] * 2,
            None,
            ValueError,
            "q has 3 heads, which is no multiple",
        ),
        (
            half(1, 3, 3, 64),
            *[half(1, 0, 3, 64)] * 2,
            None,
            ValueError,
            "no multiple of the 0 heads of k and v",
        ),
        (*[half(1, 2, 3, 64)] * 3, 0.0, ValueError, "scale must be a positive number, got 0.0"),
        (*[half(1, 2, 3, 64)] * 3, -1.0, ValueError, "scale must be a positive number, got -1.0"),
        (*[half(1, 2, 3, 64)] * 3, 1e-46, ValueError, "scale must be 8.15e-39 to .* got 1e-46"),
        (*[half(1, 2, 3, 64)] * 3, torch.tensor(0.1), TypeError, "scale must be a number, got Tensor"),
        (*[half(1, 2, 3, 64)] * 3, float("nan"), ValueError, "scale must be a positive number, got nan"),
    ],
)
def test_fmha_says_what_is_wrong(q, k, v, scale, error, message):
    with pytest.raises(error, match="^fmha: .*" + message):
        fmha.fmha(q, k, v, scale=scale)


def test_nothing_is_launched_for_nothing():
    assert matmul.matmul(torch.ones(0, 3), torch.ones(3, 2)).shape == (0, 2)
    # An empty sum is zero, not undefined.
    assert torch.equal(matmul.matmul(torch.ones(2, 0), torch.ones(0, 4)), torch.zeros(2, 4))
    assert softmax.softmax(torch.ones(0, 4)).shape == (0, 4)
    assert softmax.softmax(torch.ones(4, 0)).shape == (4, 0)
    assert rms_norm.rms_norm(torch.ones(2, 0, 3), torch.ones(3)).shape == (2, 0, 3)
    assert fmha.fmha(half(2, 3, 0, 64), *[half(2, 3, 5, 64)] * 2).shape == (2, 3, 0, 64)
    assert torch.equal(
        fmha.fmha(half(2, 4, 5, 64), *[half(2, 2, 0, 64)] * 2), torch.zeros(2, 4, 5, 64, **HALF)
    )


@by_name
def test_launchers_say_that_no_gradient_flows_through_them(spec):
    text = inspect.getdoc(spec.launch) or ""
    assert "\n\nForward only: no gradient flows through it.\n" in text


# -- specs ------------------------------------------------------------------------------------------


@by_name
def test_case_names_are_unique_and_some_are_timed(spec):
    names = [case.name for case in spec.cases]
    assert len(set(names)) == len(names)
    # Several variants (with a residual, interleaved) of several shapes: 4 would leave some untimed.
    # A published workload has five, beside 8-bit floats and one prompt.
    assert 2 <= sum(case.speed for case in spec.cases) <= (9 if spec.name in PUBLISHED else 6)


@by_name
def test_timed_cases_last_40_to_400_us_on_an_h200(spec):
    """At 85 % of what an H200 can do: 4.8 TB/s, 989 TFLOPS of float16, half for tfloat32, twice for fp8.

    Longer ones cost time and tell no more; a published workload is taken as it is.
    """
    for case in spec.cases:
        if not case.speed:
            continue
        work = spec.work_of(case)
        peak = {"tfloat32": 495e6, "float8_e4m3fn": 1979e6, "float8_e5m2": 1979e6}.get(work.dtype, 989e6)
        flops_per_us = peak * 0.85
        us = max(work.flops / flops_per_us, work.bytes / (4.8e6 * 0.85))
        if spec.name in SHORT:
            assert us < 40, case.name
            continue
        if spec.name in ONE_SEQUENCE and case.params["b"] == 1 and us < 40:
            continue
        assert 40 < us < (11e3 if spec.name in PUBLISHED else 400), case.name
        if not work.flops:
            assert work.bytes > 4 * 60e6, f"{case.name} would partly stay in the L2"


@pytest.mark.parametrize(
    ("spec", "name", "expected"),
    [
        (matmul.SPEC, "fp16-4096x4096x4096", Work(flops=137438953472, bytes=100663296, dtype="float16")),
        # 2 * 130 * 258 * 1023; (130*1023 + 1023*258 + 130*258) * 4
        (matmul.SPEC, "tf32-130x258x1023", Work(flops=68622840, bytes=1721856, dtype="tfloat32")),
        (softmax.SPEC, "bf16-16384x8192", Work(bytes=536870912, dtype="bfloat16")),
        (softmax.SPEC, "fp32-21x257", Work(bytes=43176, dtype="float32")),
        # (2*3*5*3072 + 3072) * 2
        (rms_norm.SPEC, "bf16-3x5x3072", Work(bytes=190464, dtype="bfloat16")),
        (rms_norm.SPEC, "fp16-77", Work(bytes=462, dtype="float16")),
        # 4 * 4*32 * 8192*8192 * 128; 4 * 4*32*8192*128 * 2
        (fmha.SPEC, "fp16-4x32x8192x128", Work(flops=4398046511104, bytes=1073741824, dtype="float16")),
        # 4 * 4*32 * 1024*1025/2 * 128
        (fmha.SPEC, "fp16-causal-4x32x1024x128", Work(flops=34393292800, bytes=134217728, dtype="float16")),
        # 4 * 2*4 * 130*333 * 128; (2*4*130 + 2*2*333) * 128 * 2, times two for O and for V
        (fmha.SPEC, "fp16-2x4_2x130_333x128", Work(flops=177315840, bytes=1214464, dtype="float16")),
        # 4 * 2*3 * 77*78/2 * 64; keys from 77 on are hidden: 4 * 2*3*77*64 * 2
        (fmha.SPEC, "bf16-causal-2x3x77_300x64", Work(flops=4612608, bytes=236544, dtype="bfloat16")),
    ],
)
def test_work_equals_what_a_hand_computes(spec, name, expected):
    assert spec.work_of(case_of(spec, name)) == expected


def test_reduction_is_the_summed_axis():
    assert matmul.SPEC.reduction_of(case_of(matmul.SPEC, "fp16-127x129x65")) == 65
    assert softmax.SPEC.reduction_of(case_of(softmax.SPEC, "bf16-65x1023")) == 1023
    assert rms_norm.SPEC.reduction_of(case_of(rms_norm.SPEC, "fp32-2x3x5x130")) == 130


@pytest.mark.parametrize("causal", [False, True])
def test_visible_pairs_are_counted_one_by_one(causal):
    for m in range(1, 8):
        for n in range(1, 8):
            visible = sum(1 for i in range(m) for j in range(n) if not causal or j <= i)
            assert fmha.count_visible(m, n, causal=causal) == visible


def test_fmha_sums_over_keys_or_over_dimensions():
    assert fmha.SPEC.reduction_of(case_of(fmha.SPEC, "fp16-2x4_2x1_300x128")) == 300
    assert fmha.SPEC.reduction_of(case_of(fmha.SPEC, "bf16-causal-2x3x77_300x64")) == 77
    assert fmha.SPEC.reduction_of(case_of(fmha.SPEC, "fp16-2x4_2x70_1x128")) == 128


def test_transposed_cases_are_views():
    params = case_of(matmul.SPEC, "bf16-192x320x448-transposed_ab").params
    a, b = matmul.SPEC.inputs(make_tensor, **params).values()
    assert (a.shape, a.stride()) == ((192, 448), (1, 192))
    assert (b.shape, b.stride()) == ((448, 320), (1, 448))
    params = case_of(fmha.SPEC, "bf16-2x4_2x70_140x64-heads_inside").params
    k = fmha.SPEC.inputs(make_tensor, **params)["k"]
    assert (k.shape, k.stride()) == ((2, 2, 140, 64), (140 * 2 * 64, 64, 2 * 64, 1))


def test_float32_matmul_inputs_survive_the_tensor_core():
    operands = matmul.SPEC.inputs(make_tensor, m=70, n=50, k=30, dtype="float32", transposed="b")
    for operand in operands.values():
        assert operand.std() > 0.5
        assert not (operand.contiguous().view(torch.int32) & 0x1FFF).any()


# -- references -------------------------------------------------------------------------------------


def test_references_agree_with_torch():
    torch.manual_seed(0)
    a, b = (torch.randn(shape, dtype=torch.float64) for shape in ((5, 33), (33, 7)))
    torch.testing.assert_close(matmul.SPEC.reference(a, b), torch.matmul(a, b))
    x = torch.randn(5, 33, dtype=torch.float64) * 30
    torch.testing.assert_close(softmax.SPEC.reference(x), torch.softmax(x, 1))
    w = torch.rand(33, dtype=torch.float64)
    expected = torch.nn.functional.rms_norm(x, (33,), w, 1e-2)
    torch.testing.assert_close(rms_norm.SPEC.reference(x, w, 1e-2), expected)


@pytest.mark.parametrize(("m", "n"), [(7, 7), (7, 4), (4, 7), (1, 5)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scores", [1 << 24, 20, 1])
def test_fmha_reference_is_torchs_attention_in_pieces_of_any_size(monkeypatch, m, n, causal, scores):
    monkeypatch.setattr(fmha, "REFERENCE_SCORES", scores)
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 6, m, 8), *[(2, 2, n, 8)] * 2))
    for scale in (None, 0.7):
        expected = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=True
        )
        torch.testing.assert_close(fmha.SPEC.reference(q, k, v, causal=causal, scale=scale), expected)


@by_name
def test_reference_takes_what_inputs_makes(spec):
    smallest = min(spec.cases, key=lambda case: spec.work_of(case).bytes)
    made = spec.inputs(make_tensor, **smallest.params)
    args, kwargs = ((), made) if isinstance(made, dict) else (made, {})
    # Arguments and results may be lists: a group GEMM takes one matrix per group, and returns one.
    exact_args, exact_kwargs = tree_map_only(torch.Tensor, to_float64, (args, kwargs))
    for result in tree_leaves(spec.reference(*exact_args, **exact_kwargs)):
        assert result.dtype == torch.float64 or not result.is_floating_point()  # ids of experts stay integers


def to_float64(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


def test_tensors_whose_memory_holds_something_else_are_refused():
    negated = torch.randn(4, 4, dtype=torch.complex64).conj().imag
    with pytest.raises(
        ValueError, match=r"^softmax: x is negated by a flag of PyTorch; call resolve_neg\(\)"
    ):
        softmax.softmax(negated)
    with pytest.raises(
        ValueError, match=r"^softmax: x must be dense, got torch.sparse_coo; call to_dense\(\)"
    ):
        softmax.softmax(torch.eye(4).to_sparse())


# -- the plain Python that kernels share ------------------------------------------------------------


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n", "group_m"), [(3, 3, 2), (8, 5, 8), (7, 4, 3), (1, 9, 8), (5, 1, 2)]
)
def test_swizzle_visits_every_tile_once(tiles_m, tiles_n, group_m):
    visited = [swizzle(block, tiles_m, tiles_n, group_m) for block in range(tiles_m * tiles_n)]
    assert sorted(visited) == [(row, col) for row in range(tiles_m) for col in range(tiles_n)]


@pytest.mark.parametrize("d", [1, 2, 3, 7, 8, 132, 1000, 65535, 65537, 2**24 - 1, 2**24, 2**31 - 1])
def test_division_by_a_divisor_is_exact_below_its_limit(d):
    most = 2**24 - 1
    multiples = {k * d for k in (1, 2, 3, most // d // 2, most // d)}
    near = {multiple + e for multiple in multiples for e in (-1, 0, 1)}
    dividends = {0, 1, most - 1, most} | {n for n in near if 0 <= n <= most}
    multiplier, shift = divisor(d)
    assert multiplier < 2**31  # an argument of 32 bits
    assert most * multiplier < 2**63
    for n in dividends:
        assert (n * multiplier) >> shift == n // d


def test_swizzle_draws_its_docstring():
    order = {swizzle(block, 3, 3, 2): block for block in range(9)}
    assert [[order[row, col] for col in range(3)] for row in range(3)] == [[0, 2, 4], [1, 3, 5], [6, 7, 8]]


def test_next_power_of_2():
    assert [next_power_of_2(n) for n in (1, 2, 3, 4, 5, 1023, 1024, 1025)] == [
        1,
        2,
        4,
        4,
        8,
        1024,
        1024,
        2048,
    ]


@pytest.mark.parametrize(
    ("n", "pieces"),
    [
        (4096, (4096, 1)),
        (3072, (1024, 3)),
        (7168, (1024, 7)),
        (768, (256, 3)),
        (1000, (1024, 1)),
        (1, (1, 1)),
    ],
)
def test_a_row_is_cut_into_pieces_that_are_not_too_short(n, pieces):
    assert cut_row(n) == pieces


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.SPEC.name)
def test_every_architecture_is_in_the_tables(module):
    tuned = {*module.CONFIGS, *getattr(module, "MASK_CONFIGS", ())}
    if module.SPEC.name == "silu_and_mul":
        tuned |= set(swiglu.CONFIGS)  # which it takes where it has none
    nine = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
    assert tuned == nine


@pytest.mark.parametrize(
    ("launch", "arguments", "expected"),
    [
        (softmax.softmax, (torch.ones(2, 3),), "SoftmaxConfig"),
        (rms_norm.rms_norm, (torch.ones(2, 3), torch.ones(3)), "RmsNormConfig"),
        (dropout.dropout, (torch.ones(3),), "DropoutConfig"),
        (swiglu.swiglu, (torch.ones(3), torch.ones(3)), "SwigluConfig"),
        (silu_and_mul.silu_and_mul, (torch.ones(4),), "SwigluConfig"),
        (rope.rope, (torch.ones(1, 2, 3, 8, **HALF),) * 2 + (torch.ones(3, 4),) * 2, "RopeConfig"),
        (matmul.matmul, (torch.ones(2, 3), torch.ones(3, 2)), "MatmulConfig"),
        (bmm.bmm, (torch.ones(1, 2, 2, **HALF),) * 2, "GemmConfig"),
        (group_gemm.group_gemm, ([], []), "GroupGemmConfig"),
        (moe.moe, (None,) * 5, "MoeConfig"),
        (moe_routing.route, (torch.ones(2, 3), 1), "RoutingConfig"),
        (moe_routing.align, (torch.ones(2, 3, dtype=torch.int32), 4, 16), "RoutingConfig"),
        (fmha.fmha, (half(1, 2, 3, 64),) * 3, "AttentionConfig"),
        (mla.mla, (half(1, 1, 3, 128), half(1, 1, 3, 64)) * 2 + (half(1, 1, 3, 128),), "AttentionConfig"),
        (
            attention_decode.attention_decode,
            (half(1, 2, 64), *[half(1, 2, 3, 64)] * 2),
            "AttentionDecodeConfig",
        ),
        (
            mla_decoding.mla_decoding,
            (half(1, 2, 128), half(1, 2, 64), half(1, 3, 128), half(1, 3, 64)),
            "MlaDecodingConfig",
        ),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_another_kernels_configuration_is_refused(launch, arguments, expected):
    needed: dict[str, dict[str, float]] = {"dropout": {"seed": 0}, "mla_decoding": {"scale": 0.1}}
    for config in (OtherConfig(), {"tile_m": 64}, "fast", 0, False):
        found = type(config).__name__
        with pytest.raises(TypeError, match=f"^{launch.__name__}: config must be a {expected}, got {found}$"):
            launch(*arguments, config=config, **needed.get(launch.__name__, {}))


@pytest.mark.parametrize(
    ("launch", "arguments", "flag"),
    [
        (matmul.matmul, (torch.ones(2, 3), torch.ones(3, 2)), "use_fast_acc"),
        (group_gemm.group_gemm, ([], []), "transpose_b"),
        (group_gemm.group_gemm, ([], []), "use_fast_acc"),
        (rope.rope, (half(1, 2, 3, 8),) * 2 + (torch.ones(3, 4),) * 2, "interleaved"),
        (moe_routing.route, (torch.ones(2, 3), 1), "renormalize"),
        (fmha.fmha, (half(1, 2, 3, 64),) * 3, "causal"),
        (mla.mla, (half(1, 1, 3, 128), half(1, 1, 3, 64)) * 2 + (half(1, 1, 3, 128),), "causal"),
    ],
    ids=lambda each: getattr(each, "__name__", each if isinstance(each, str) else None),
)
@pytest.mark.parametrize("value", ["no", None, 1, torch.tensor(True)], ids=lambda value: type(value).__name__)
def test_flags_are_bools(launch, arguments, flag, value):
    with pytest.raises(
        TypeError, match=f"^{launch.__name__}: {flag} must be a bool, got {type(value).__name__}$"
    ):
        launch(*arguments, **{flag: value})


def test_every_flag_of_a_launcher_is_tested():
    """Those that are annotated as bools, whose number is that of the cases above."""
    launchers = {spec.launch for spec in SPECS} | {moe_routing.align}
    flags = [
        f"{launch.__name__}.{name}"
        for launch in launchers
        for name, parameter in inspect.signature(launch).parameters.items()
        if parameter.annotation == "bool"
    ]
    assert len(flags) == 7, flags


def test_a_bool_of_numpy_is_a_bool():
    numpy = pytest.importorskip("numpy")
    assert check_bool("rope", "interleaved", numpy.bool_(1)) is True
    assert check_bool("rope", "interleaved", numpy.bool_(0)) is False


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_121", "sm_999"])
def test_every_architecture_has_a_configuration(arch):
    for width in (1, 4096, 100_000):
        for itemsize in (2, 4):
            assert softmax.choose_config(arch, width=width, itemsize=itemsize).max_row == 32768
            assert rms_norm.choose_config(arch, width=width, itemsize=itemsize).tile_elements > 0
    for causal in (False, True):
        narrow, wide = (
            fmha.choose_config(arch, head_dim=d, causal=causal, itemsize=2, keys=4096) for d in (128, 256)
        )
        assert wide.tile_m * wide.tile_n <= narrow.tile_m * narrow.tile_n


def test_rows_that_were_measured_on_their_own_have_their_own_configuration():
    def blocks(width, itemsize=2):
        return softmax.choose_config("sm_90", width=width, itemsize=itemsize).occupancy

    assert [blocks(width) for width in (520, 999, 1000, 1001, 1024)] == [2, 2, 16, 2, 2]
    assert blocks(1000, itemsize=4) is None
    # Two chunks instead of registers.
    assert softmax.choose_config("sm_90", width=32768, itemsize=2).max_row == 16384
    assert softmax.choose_config("sm_90", width=32767, itemsize=2).max_row == 32768
    warps = [
        rms_norm.choose_config("sm_90", width=width, itemsize=2).num_worker_warps
        for width in (2048, 3071, 3072, 3073)
    ]
    assert warps == [4, 8, 4, 8]


def test_fmha_takes_the_published_tiles():
    for arch, tiles in {"sm_121": (64, 64, 2), "sm_103": (256, 128, 1)}.items():
        config = fmha.choose_config(arch, head_dim=128, causal=True, itemsize=2, keys=4096)
        assert (config.tile_m, config.tile_n, config.occupancy) == tiles
