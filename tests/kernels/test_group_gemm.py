"""Group GEMM on the host: argument checks, order and lookup of tiles, both kernels, work."""

import pytest

from kernels import group_gemm
from pytest_cutile import Work

torch = pytest.importorskip("torch")

HALF = {"dtype": torch.float16}


def half(*shape, **kwargs):
    return torch.ones(shape, **HALF, **kwargs)


def case_of(name):
    return next(case for case in group_gemm.SPEC.cases if case.name == name)


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "message"),
    [
        ([half(2, 3)], [], {}, ValueError, "a has 1 matrices, but b has 0"),
        ([half(2, 3), None], [half(3, 2)] * 2, {}, TypeError, r"a\[1\] must be a torch.Tensor, got NoneType"),
        ([half(2, 3)] * 2, [half(3, 2), torch.ones(3, 2)], {}, TypeError, r"b\[1\] has dtype torch.float32"),
        ([half(2, 3)], [half(3, 2).bfloat16()], {}, TypeError, r"b\[0\] has dtype .* but a\[0\] has"),
        (
            [half(2, 3)],
            [half(3, 2, device="meta")],
            {},
            ValueError,
            r"b\[0\] is on meta, but a\[0\] is on cpu",
        ),
        ([half(3)], [half(3, 2)], {}, ValueError, r"a\[0\] must be a matrix, got shape \[3\]"),
        ([half(2, 3)], [half(1, 3, 2)], {}, ValueError, r"b\[0\] must be a matrix, got shape \[1, 3, 2\]"),
        ([half(2, 3)], [half(2, 3)], {}, ValueError, r"so b\[0\] must have 3 rows, but is \[2, 3\]"),
        (
            [half(2, 3)],
            [half(3, 2)],
            {"transpose_b": True},
            ValueError,
            r"so b\[0\] must have 3 columns \(it is transposed\), but is \[3, 2\]",
        ),
        (
            [half(2, 3)],
            [half(3, 2)],
            {"out_dtype": torch.int8},
            TypeError,
            r"out_dtype is torch\.int8; for operands of torch\.float16 supported are torch\.bfloat16, ",
        ),
    ],
)
def test_it_says_what_is_wrong(a, b, options, error, message):
    with pytest.raises(error, match="^group_gemm: .*" + message):
        group_gemm.group_gemm(a, b, **options)


def test_too_many_groups_are_refused():
    groups = group_gemm.MAX_GROUPS + 1
    config = group_gemm.DEFAULT_CONFIG
    with pytest.raises(ValueError, match="takes 512 groups that are not empty, got 513"):
        group_gemm.group_gemm([half(1, 1)] * groups, [half(1, 1)] * groups, config=config)


def test_nothing_is_launched_for_nothing():
    config = group_gemm.DEFAULT_CONFIG  # so that nobody asks for the GPU
    assert group_gemm.group_gemm([], []) == []
    none, zero = group_gemm.group_gemm([half(0, 3), half(2, 0)], [half(3, 4), half(0, 5)], config=config)
    assert none.shape == (0, 4)
    assert torch.equal(zero, torch.zeros(2, 5, **HALF))


# 70 and 130 rows are two and three tiles; groups 1 and 3 are empty.
SIZES = [(70, 60, 40), (0, 20, 30), (130, 100, 90), (20, 30, 0), (10, 33, 64)]


@pytest.mark.parametrize("max_copies", [16, 0])
@pytest.mark.parametrize("blocks_per_sm", [None, 1])
@pytest.mark.parametrize("sms", [2, 3, 132])
def test_every_group_is_computed_whichever_kernel_computes_it(monkeypatch, max_copies, blocks_per_sm, sms):
    interpret = pytest.importorskip("pytest_cutile.interpret")
    pytest.importorskip("cuda.tile")
    if blocks_per_sm is None and sms != 132:
        pytest.skip("one block per tile, whatever the GPU")
    config = group_gemm.GroupGemmConfig(
        tile_m=64, tile_n=64, tile_k=32, group_m=2, max_copies=max_copies, blocks_per_sm=blocks_per_sm
    )
    monkeypatch.setattr(group_gemm, "count_sms", lambda: sms)
    torch.manual_seed(0)
    with interpret.interpreting("sm_90"):
        a = [torch.randint(-4, 5, (m, k), device="cuda").half() for m, _, k in SIZES]
        # Whole numbers, so that sums are exact; one B has other strides than its neighbours.
        b = [torch.randint(-4, 5, (k, n), device="cuda").half() for _, n, k in SIZES]
        b[2] = b[2].T.contiguous().T
        computed = group_gemm.group_gemm(a, b, config=config)
    for left, right, product in zip(a, b, computed, strict=True):
        assert torch.equal(product.double(), left.double() @ right.double())


def test_longest_sums_are_launched_first():
    from pytest_cutile.compile import record_launches

    pytest.importorskip("cuda.tile")
    config = group_gemm.GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32)

    def launch():
        a, b = (
            [torch.empty(size[i], size[j], device="cuda", **HALF) for size in SIZES]
            for i, j in ((0, 2), (2, 1))
        )
        group_gemm.group_gemm(a, b, config=config)

    (launched,) = record_launches(launch, "sm_90")
    a, _, _, ends, *_ = launched.args
    assert [matrix.shape[1] for matrix in a] == [90, 64, 40]
    # 3 * 2 tiles, then 1, then 2 * 1.
    assert ends == (6, 7, 9)
    assert launched.grid == (9,)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 4 * 2 * 2048^3; 4 * 3 * 2048^2 * 2
        ("fp16-4x2048", Work(flops=68719476736, bytes=100663296, dtype="float16")),
        (
            "e5m2-4x2048-transposed_b-fast_acc-to_float8_e5m2",
            Work(flops=68719476736, bytes=50331648, dtype="float8_e5m2"),
        ),
        # 2 * (128*192*256 + 64*64*128); (128*256 + 256*192 + 64*128 + 128*64) + 2 * (128*192 + 64*64)
        ("e5m2-even-to_float16", Work(flops=13631488, bytes=155648, dtype="float8_e5m2")),
        # Nobody reads the B of a group with no rows: 2 * 128*192*256; 128*256 + 256*192 + 4 * 128*192
        ("e4m3-even-transposed_b-to_float32", Work(flops=12582912, bytes=180224, dtype="float8_e4m3fn")),
    ],
)
def test_work_equals_what_a_hand_computes(name, expected):
    assert group_gemm.SPEC.work_of(case_of(name)) == expected


def test_reduction_is_the_longest_sum():
    assert group_gemm.SPEC.reduction_of(case_of("bf16-sums")) == 1000


def test_reference_is_a_loop_of_torchs_products():
    torch.manual_seed(0)
    a = [torch.randn(3, 5, dtype=torch.float64), torch.randn(0, 4, dtype=torch.float64)]
    b = [torch.randn(5, 7, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)]
    expected = [torch.mm(left, right) for left, right in zip(a, b, strict=True)]
    torch.testing.assert_close(group_gemm.SPEC.reference(a, b), expected)
    transposed = [right.T.contiguous() for right in b]
    torch.testing.assert_close(group_gemm.SPEC.reference(a, transposed, transpose_b=True), expected)


@pytest.mark.parametrize("arch", [*group_gemm.CONFIGS, "sm_999"])
def test_every_architecture_has_a_configuration(arch):
    two = group_gemm.choose_config(arch, itemsize=2)
    for use_fast_acc in (False, True):
        one = group_gemm.choose_config(arch, itemsize=1, use_fast_acc=use_fast_acc)
        assert one.tile_k == 2 * two.tile_k
