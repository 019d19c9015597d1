"""The static gate knows what tileiras is known to compile wrongly: planted launches, and their neighbours."""

import pytest

from pytest_cutile.gates import known_faults
from pytest_cutile.words.platforms.known_faults import KNOWN_FAULTS

ROWS = """
import cuda.tile as ct
import torch

import pytest_cutile


@ct.kernel
def row_kernel(X, Y, T: ct.Constant[int]):
    x = ct.load(X, (ct.bid(0),), (T,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(Y, (ct.bid(0),), x / (ct.sum(x * x) + 1))


def rows(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.shape[0], 64),), row_kernel, (x, y, 64))
    return y


SPEC = pytest_cutile.KernelSpec(
    name="rows",
    launch=rows,
    reference=lambda x: x,
    inputs=lambda make_tensor, n: (make_tensor((n,), "bfloat16"),),
    cases=[pytest_cutile.Case(name="n", params={"n": 300}, speed=False)],
)
"""
ATOMICS = """
import cuda.tile as ct
import torch

import pytest_cutile


@ct.kernel
def window_kernel(X, Y, T: ct.Constant[int], STEP: ct.Constant[int]):
    window = ct.load(X, (ct.bid(0), 0), (1, T)).reshape((T,))
    Y.tiled_view((T,), traversal_steps=(STEP,)).atomic_store_add((ct.bid(0),), window)


def windows(x, n):
    y = torch.zeros(n, device=x.device)
    ct.launch(torch.cuda.current_stream(), (4,), window_kernel, (x, y, 32, 16))
    return y


SPEC = pytest_cutile.KernelSpec(
    name="windows",
    launch=windows,
    reference=lambda x, n: x,
    inputs=lambda make_tensor, n: (make_tensor((4, 32), "float32"), n),
    cases=[pytest_cutile.Case(name="n", params={"n": 70}, speed=False)],
)
"""


def run(project, text, *changes, args=("--perf-baseline=none",), arch="sm_90"):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    project.kernel(text, "mine")
    return project.run("--arch", arch, *args, gates="cutile_static")


@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
def test_a_store_past_the_end_fails_without_a_gpu(without_gpu, arch):
    result = run(without_gpu, ROWS, arch=arch)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            f"E   rows[[]n[]] for {arch}: a store of row_kernel writes 4 elements past the end of Y",
            "  where       mykernels/mine.py:11",
            "              ct.store(Y, (ct.bid(0),), x / (ct.sum(x * x) + 1))",
            "  why         Y ends after 600 bytes. TMA writes whole pieces of 16 bytes*",
            "  source      H200, tileiras 13.4.92, *",
            "rows *n *miscompiled",
        ]
    )
    result.stdout.no_fnmatch_line("*bug report*")


def test_an_atomic_store_past_the_end_fails_without_a_gpu(without_gpu):
    result = run(without_gpu, ATOMICS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   windows[[]n[]] for sm_90: an atomic store of window_kernel writes 2 elements past the end of Y"]
    )


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (ROWS, ('"n": 300', '"n": 304')),
        (ROWS, ("torch.empty(x.shape[0],", "torch.empty(304,")),
        (ROWS, ("(ct.sum(x * x) + 1))", "(ct.sum(x * x) + 1), allow_tma=False)")),
        (ROWS, ("(ct.cdiv(x.shape[0], 64),)", "(4,)")),
        (ATOMICS, ('"n": 70', '"n": 72')),
        (ATOMICS, ("(4,), window_kernel", "(3,), window_kernel")),
    ],
)
def test_neighbours_pass(without_gpu, text, change):
    run(without_gpu, text, change).assert_outcomes(passed=1)


def test_an_architecture_without_tma_passes(without_gpu):
    run(without_gpu, ROWS, arch="sm_80").assert_outcomes(passed=1)


def test_a_release_without_the_fault_passes(without_gpu, monkeypatch):
    monkeypatch.setattr(
        known_faults, "KNOWN_FAULTS", [fault for fault in KNOWN_FAULTS if fault.is_in("13.5.37")]
    )
    run(without_gpu, ROWS).assert_outcomes(passed=1)


def test_what_is_miscompiled_is_not_recorded(without_gpu):
    run(without_gpu, ROWS, args=("--update-baselines",)).assert_outcomes(failed=1)
    assert not list((without_gpu.path / "baselines").glob("*"))


TWO_ARRAYS = (
    ("def row_kernel(X, Y, T:", "def row_kernel(X, Y, Z, T:"),
    ("    ct.store(Y, (ct.bid(0),), x", "    for A in ct.static_iter((Y, Z)): ct.store(A, (ct.bid(0),), x"),
    ("(x, y, 64))", "(x, y, torch.empty(SIZE, dtype=x.dtype, device=x.device), 64))"),
)


@pytest.mark.parametrize(("size", "outcome"), [("320", {"passed": 1}), ("300", {"failed": 1})])
def test_a_line_that_stores_into_several_arrays_fails_only_if_all_end_so(without_gpu, size, outcome):
    run(without_gpu, ROWS, *TWO_ARRAYS, ("SIZE", size)).assert_outcomes(**outcome)


CHECKED = """
from mykernels.mine import windows

def test_windows(make_tensor, check_kernel):
    def reference(x):
        y = x.new_zeros(80)
        for i in range(4):
            y[16 * i : 16 * i + 32] += x[i]
        return y[:SIZE]

    x = make_tensor((4, 32), "float32")
    check_kernel(lambda x: windows(x, SIZE), x, reference=reference, reduction=2)
"""


@pytest.mark.parametrize(("size", "outcome"), [("70", {"failed": 1}), ("72", {"passed": 1})])
def test_a_test_function_is_told_when_it_is_interpreted(without_gpu, size, outcome):
    without_gpu.kernel(ATOMICS, "mine")
    (without_gpu.path / "test_windows.py").write_text(CHECKED.replace("SIZE", size))
    result = without_gpu.run("test_windows.py", "--arch", "sm_90", gates="")
    result.assert_outcomes(**outcome)
    if "failed" in outcome:
        said = "*test_windows for sm_90: an atomic store of window_kernel writes 2 elements past the end of Y"
        result.stdout.fnmatch_lines([said, "*miscompiled"])
