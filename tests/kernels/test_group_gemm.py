"""Group GEMM on the host: argument checks, order and lookup of tiles, launches, copies, work."""

import dataclasses
from typing import Any

import pytest

from kernels import group_gemm
from kernels._gemm import GemmConfig
from pytest_cutile import Work
from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.compiler import record_launches

torch = pytest.importorskip("torch")

HALF = {"dtype": torch.float16}


def half(*shape, **kwargs):
    return torch.ones(shape, **HALF, **kwargs)


def case_of(name):
    return next(case for case in group_gemm.SPEC.cases if case.name == name)


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "message"),
    [
        (half(2, 3, 4), half(2, 4, 3), {}, TypeError, "a must be a list of matrices, .* got Tensor"),
        ([half(2, 3)], half(1, 3, 2), {}, TypeError, "b must be a list of matrices, .* got Tensor"),
        (None, [half(2, 3)], {}, TypeError, "a must be a list of matrices, .* got NoneType"),
        (iter([]), [], {}, TypeError, "a must be a list of matrices, .* got list_iterator"),
        (
            [half(2, 3)],
            [half(3, 2)],
            {"out_dtype": "float16"},
            TypeError,
            r"out_dtype must be a torch.dtype, e\.g\. torch\.float16, got str 'float16'",
        ),
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


def test_nothing_is_launched_for_nothing():
    config = group_gemm.DEFAULT_CONFIG  # so that nobody asks for the GPU
    assert group_gemm.group_gemm([], []) == []
    none, zero = group_gemm.group_gemm([half(0, 3), half(2, 0)], [half(3, 4), half(0, 5)], config=config)
    assert none.shape == (0, 4)
    assert torch.equal(zero, torch.zeros(2, 5, **HALF))


# 70 and 130 rows are two and three tiles; groups 1 and 3 are empty.
SIZES = [(70, 60, 40), (0, 20, 30), (130, 100, 90), (20, 30, 0), (10, 33, 64)]


def assert_multiplies(sizes, config, *, a_inside_out=False, b_inside_out=()):
    """Check products of whole numbers, whose sums are exact.

    Args:
        sizes: (m, n, k) of the groups.
        config: of the launch.
        a_inside_out: whether rows lie inside columns in every A.
        b_inside_out: the groups in whose B they do.
    """
    torch.manual_seed(0)
    with interpret("sm_90"):
        a = [torch.randint(-4, 5, (m, k), device="cuda").half() for m, _, k in sizes]
        b = [torch.randint(-4, 5, (k, n), device="cuda").half() for _, n, k in sizes]
        if a_inside_out:
            a = [left.T.contiguous().T for left in a]
        for g in b_inside_out:
            b[g] = b[g].T.contiguous().T
        computed = group_gemm.group_gemm(a, b, config=config)
    for left, right, product in zip(a, b, computed, strict=True):
        assert torch.equal(product.double(), left.double() @ right.double())


# One block per tile, whatever the GPU, or blocks that take tiles in turn.
@pytest.mark.parametrize(("blocks_per_sm", "sms"), [(None, 132), (1, 2), (1, 3), (1, 132)])
def test_every_group_is_computed_however_many_blocks_there_are(monkeypatch, blocks_per_sm, sms):
    config = group_gemm.GroupGemmConfig(
        tile_m=64, tile_n=64, tile_k=32, group_m=2, blocks_per_sm=blocks_per_sm
    )
    monkeypatch.setattr(group_gemm, "count_sms", lambda: sms)
    # One B has other strides than its neighbours.
    assert_multiplies(SIZES, config, b_inside_out=[2])


def record(sizes, *, dtype=torch.float16, transpose_b=False, **options):
    """Return the launches of groups of these sizes."""

    def launch():
        a = [torch.empty(m, k, device="cuda", dtype=dtype) for m, _, k in sizes]
        b = [
            torch.empty(*((n, k) if transpose_b else (k, n)), device="cuda", dtype=dtype) for _, n, k in sizes
        ]
        group_gemm.group_gemm(a, b, transpose_b=transpose_b, **options)

    return record_launches(launch, "sm_90")


def test_longest_sums_are_launched_first():
    config = group_gemm.GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32)
    (launched,) = record(SIZES, config=config)
    a, _, _, ends, *_ = launched.args
    assert [matrix.shape[1] for matrix in a] == [90, 64, 40]
    # 3 * 2 tiles, then 1, then 2 * 1.
    assert ends == (6, 7, 9)
    assert launched.grid == (9,)


def test_no_launch_takes_more_groups_than_fit_into_one():
    """They are dealt out: no launch is much shorter than another, and each has groups of all sizes."""
    launches = record([(8, 8, 8 * k) for k in range(1, 34)], config=group_gemm.DEFAULT_CONFIG)
    lengths = [[matrix.shape[1] // 8 for matrix in launched.args[0]] for launched in launches]
    assert lengths == [list(range(33, 0, -3)), list(range(32, 0, -3)), list(range(31, 0, -3))]
    (launched,) = record([(8, 8, 8)] * 16, config=group_gemm.DEFAULT_CONFIG)
    assert len(launched.args[0]) == group_gemm.GROUPS_PER_LAUNCH == 16


@pytest.mark.parametrize(
    ("dtype", "transpose_b", "copied"),
    [
        (torch.float16, False, []),
        (torch.float8_e5m2, True, []),
        # Only where each element of the copy is used often: the second group has few rows.
        (torch.float8_e5m2, False, [[600, 64], [576, 80]]),
    ],
)
def test_operands_that_tensor_cores_cannot_take_are_copied_in_one_launch(dtype, transpose_b, copied):
    sizes = [(512, 600, 64), (511, 600, 64), (2048, 576, 80)]
    launches = record(sizes, dtype=dtype, transpose_b=transpose_b, use_fast_acc=True)
    names = [launched.kernel._pyfunc.__name__ for launched in launches]
    assert names == ["copy_kernel"] * bool(copied) + ["group_gemm_kernel"]
    if copied:
        sources, y, ends, tile = launches[0].args
        # In the order in which groups are launched: the longest sum first.
        assert [list(source.shape) for source in sources] == [*reversed(copied)]
        # 9 and 10 tiles of rows, all as wide as the widest.
        assert ends == (9, 19)
        assert (y.shape, y.stride(1), tile) == ((19 * 64, 80), 1, 64)


def test_copied_operands_are_multiplied(monkeypatch):
    monkeypatch.setattr(group_gemm, "COPY_FROM", 1)
    config = group_gemm.GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32, copy_tile=32)
    assert_multiplies(SIZES, config, a_inside_out=True)


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
        ("e4m3-even-transposed_b-fast_acc", Work(flops=13631488, bytes=155648, dtype="float8_e4m3fn")),
        # Nobody reads the B of a group with no rows: 2 * 128*192*256; 128*256 + 256*192 + 4 * 128*192
        ("e4m3-even-to_float32", Work(flops=12582912, bytes=180224, dtype="float8_e4m3fn")),
    ],
)
def test_work_equals_what_a_hand_computes(name, expected):
    assert group_gemm.SPEC.work_of(case_of(name)) == expected


def test_reduction_is_the_longest_sum():
    assert group_gemm.SPEC.reduction_of(case_of("bf16-sums-transposed_b")) == 1000


def test_reference_is_a_loop_of_torchs_products():
    torch.manual_seed(0)
    a = [torch.randn(3, 5, dtype=torch.float64), torch.randn(0, 4, dtype=torch.float64)]
    b = [torch.randn(5, 7, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)]
    expected = [torch.mm(left, right) for left, right in zip(a, b, strict=True)]
    torch.testing.assert_close(group_gemm.SPEC.reference(a, b), expected)
    transposed = [right.T.contiguous() for right in b]
    torch.testing.assert_close(group_gemm.SPEC.reference(a, transposed, transpose_b=True), expected)


@pytest.mark.parametrize("arch", [*group_gemm.CONFIGS, "sm_999"])
@pytest.mark.parametrize("size", [16, 1024, 4096])
def test_every_architecture_has_a_configuration(arch, size):
    def choose(itemsize, **options):
        sizes = [(size, size, size)] * 4
        return group_gemm.choose_config(arch, sizes=sizes, itemsize=itemsize, sms=132, **options)

    for config in (choose(2), choose(1), choose(1, use_fast_acc=True)):
        assert config.tile_m * config.tile_n <= 256 * 256
        assert config.min_k == 0
    if arch != "sm_90":  # which has tables for 8-bit floats
        assert choose(1).tile_k == 2 * choose(2).tile_k


def test_tiles_are_chosen_by_all_groups_together():
    def tiles(*sizes):
        config = group_gemm.choose_config("sm_90", sizes=sizes, itemsize=2, sms=132)
        return config.tile_m, config.tile_n

    # 32 tiles of 128 x 256 would be too few for 132 multiprocessors, 4 * 32 are not.
    assert tiles((1024, 1024, 1024)) == (64, 128)
    assert tiles(*[(1024, 1024, 1024)] * 4) == (128, 256)


@pytest.mark.parametrize(
    ("size", "alone"),
    [
        ((4096, 4096, 4096), True),  # 256 tiles for 66 pairs of multiprocessors: 3.9 rounds
        ((8192, 8192, 8192), True),
        ((4096, 4096, 2048), False),  # sums too short for such tiles
        ((5120, 5120, 5120), False),  # 400 tiles: 6.06 rounds, the seventh nearly empty
        ((2048, 2048, 4096), False),  # 64 tiles: one round, in which nothing hides the stores
    ],
)
def test_a_group_that_fills_the_gpu_for_rounds_is_launched_alone(size, alone):
    assert group_gemm.choose_config("sm_90", sizes=[size], itemsize=2, sms=132).alone == alone
    assert not group_gemm.choose_config("sm_90", sizes=[size, size], itemsize=2, sms=132).alone
    assert not group_gemm.choose_config("sm_100", sizes=[size], itemsize=2, sms=148).alone


@pytest.mark.parametrize(
    ("transpose_b", "options", "launches"),
    [
        (True, {"use_fast_acc": True}, ["group_gemm_kernel"] * 2),
        (True, {}, ["group_gemm_kernel"]),
        # All copies in one launch.
        (False, {"use_fast_acc": True}, ["copy_kernel", "group_gemm_kernel"]),
    ],
)
def test_8_bit_groups_are_launched_alone_where_nothing_is_copied(transpose_b, options, launches):
    sizes = [(4096, 4096, 4096)] * 2
    launched = record(sizes, dtype=torch.float8_e4m3fn, transpose_b=transpose_b, **options)
    assert [each.kernel._pyfunc.__name__ for each in launched] == launches


def test_groups_that_are_launched_alone_leave_the_others_together(monkeypatch):
    monkeypatch.setattr(group_gemm, "fills_alone", lambda _, size, **__: size[0] > 64)
    first, second, shared = record(SIZES)
    assert [len(launched.args[0]) for launched in (first, second, shared)] == [1, 1, 1]
    assert [launched.args[0][0].shape[0] for launched in (first, second, shared)] == [130, 70, 10]
    assert (first.args[-1], shared.args[-1]) == (True, False)


def test_a_configuration_in_which_blocks_take_turns_gives_each_group_a_launch(monkeypatch):
    """Where a launch's is such a one, too: the tuner may write it into any table."""
    config = group_gemm.GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32, blocks_per_sm=1)
    assert len(record([(128, 128, 64)] * 3, config=config)) == 3
    monkeypatch.setitem(group_gemm.CONFIGS, "sm_90", (config,))
    launches = record([(128, 128, 64)] * 3)
    assert [(len(launched.args[0]), launched.args[-1]) for launched in launches] == [(1, True)] * 3


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([(2048, 2048, 2048)] * 16, [4, 4, 4, 4, 1]),
        ([(1024, 1024, 1024)] * 16, [4, 4, 4, 4]),
        ([(2048, 2048, 2048)] * 8, [8]),
        ([(1024, 1024, 1024)] * 9, [3, 3, 3, 1]),
        ([(512, 512, 512)] * 16, [16]),  # all tiles have room at once
        ([(2048, 2048, 2048)] * 20, [4, 3, 3] * 2),  # more than a launch takes: ten, and ten
    ],
)
def test_a_crowd_is_cut(sizes, groups):
    """The last of one group is what is left over for the last round."""
    assert [len(launched.args[0]) for launched in record(sizes)] == groups


QUARTERS, HALVES = (GemmConfig(tile_m=32, tile_n=n, tile_k=32) for n in (32, 64))
WITH_TAILS = group_gemm.GroupGemmConfig(tile_m=64, tile_n=64, tile_k=32, group_m=2, tails=(QUARTERS, HALVES))


@pytest.mark.parametrize(
    ("sizes", "sms", "rows"),
    [
        # Three tiles of columns: 3 + 12 tiles, 7 rounds of two, one left over, for which a row of tiles is
        # more than 0.6 of a round.
        ([(64, 192, 32), (256, 192, 32)], 2, 0),
        # A round of ten, five left over, two rows of tiles.
        ([(64, 192, 32), (256, 192, 32)], 10, 128),
        # The last tiles of rows stick out.
        ([(64, 192, 32), (250, 192, 32)], 10, 122),
        # A round of eleven, four left over: six are taken.
        ([(64, 192, 32), (256, 192, 32)], 11, 128),
        ([(64, 192, 32), (256, 192, 32)], 14, 64),
        # Nothing left over; only one round, full or not.
        ([(64, 192, 32), (256, 192, 32)], 5, 0),
        ([(64, 192, 32), (256, 192, 32)], 15, 0),
        ([(64, 192, 32), (256, 192, 32)], 16, 0),
        # Two rows of tiles are six: 0.6 of a round of ten, and more than that of nine.
        ([(64, 192, 32), (448, 192, 32)], 10, 128),
        ([(64, 192, 32), (448, 192, 32)], 9, 0),
        # The last group has one row of tiles, and nothing would stay.
        ([(64, 192, 32), (64, 192, 32)], 5, 0),
    ],
)
def test_few_rows_are_left_over_for_the_last_round(sizes, sms, rows):
    assert group_gemm.choose_tail(WITH_TAILS, sizes, sms=sms)[0] == rows
    changed: Any
    for changed in ({"tails": ()}, {"blocks_per_sm": 1}):
        config = dataclasses.replace(WITH_TAILS, **changed)
        assert group_gemm.choose_tail(config, sizes, sms=sms) == (0, None)


@pytest.mark.parametrize(
    ("n", "sms", "chosen"),
    [
        (64, 5, QUARTERS),  # a tile left over of eleven: four blocks for five places
        (64, 10, QUARTERS),
        (64, 9, QUARTERS),  # two tiles, eight blocks
        (192, 16, QUARTERS),  # one of 33 tiles, three of a row: twelve blocks for sixteen places
        (192, 10, HALVES),  # three tiles: twelve blocks for ten places, or six
    ],
)
def test_tails_are_the_smallest_that_run_at_once(n, sms, chosen):
    sizes = [(11 * 64, n, 32)]
    assert group_gemm.choose_tail(WITH_TAILS, sizes, sms=sms)[1] == chosen


def test_what_is_left_over_is_launched_beside():
    """DeepSeek's shapes with unequal groups: 944 tiles of 128x256, of which 132 run at a time."""
    sizes = [(m, 4096, 2048) for m in (2000, 150, 900, 0, 64, 1100, 7, 2800)]
    first, tail = record(sizes)
    # In the order of their sizes, so that the last has rows to spare.
    assert [c.shape[0] for c in first.args[2]] == [7, 64, 150, 900, 1100, 2000, 2560]
    assert first.grid == (944 - 2 * 16,)
    assert first.args[3][-1] == first.grid[0]
    # 240 rows, in tiles of 64x128.
    assert [c.shape for c in tail.args[2]] == [(240, 4096)]
    assert tail.grid == (4 * 32,)
    assert tail.args[4:7] == (64, 128, 128)


@pytest.mark.parametrize("copy_tile", [None, 32])
@pytest.mark.parametrize(
    ("small", "sms", "cut"),
    [
        (1, 5, True),  # of 2 + 9 tiles one
        (1, 6, False),  # five of six, which are too many
        (10, 7, True),  # of 20 + 9 tiles one, and a crowd, which is cut into three launches
    ],
)
def test_what_is_left_over_is_computed(monkeypatch, small, sms, cut, copy_tile):
    monkeypatch.setattr(group_gemm, "count_sms", lambda: sms)
    monkeypatch.setattr(group_gemm, "COPY_FROM", 1)
    config = dataclasses.replace(WITH_TAILS, copy_tile=copy_tile)
    sizes = [*[(40, 70, 50)] * small, (520, 60, 40)]
    assert (group_gemm.choose_tail(config, sizes, sms=sms)[0] > 0) == cut
    assert_multiplies(sizes, config, a_inside_out=True)


def test_tables_are_searched_once_a_launch(monkeypatch):
    """Not once a group: what the host does for a launch of short products is what they wait for."""
    choose_config, searched = group_gemm.choose_config, []

    def choose(arch, *, sizes, **options):
        searched.append(len(sizes))
        return choose_config(arch, sizes=sizes, **options)

    monkeypatch.setattr(group_gemm, "choose_config", choose)
    assert len(record([(64, 64, 64)] * 20)) == 2
    assert searched == [10, 10]
