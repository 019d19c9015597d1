"""Other layouts of a case's inputs, interpreted and not, and results that differ from run to run."""

import re

FLAT = """
import cuda.tile as ct
import pytest_cutile


@ct.kernel
def double_kernel(X, Y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i,), ct.load(X, (i,), (TILE,), padding_mode=ct.PaddingMode.ZERO) * 2)


def double(x):
    import torch

    CHECK
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    flat = x.as_strided((x.numel(),), (1,))
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.numel(), 64),), double_kernel, (flat, y.view(-1), 64))
    return y


SPEC = pytest_cutile.KernelSpec(
    name="double",
    launch=double,
    reference=lambda x: x * 2,
    inputs=lambda make_tensor: (MAKE,),
    cases=[pytest_cutile.Case(name="f32", speed=False, named_inputs=())],
)
"""


def flat(check="", make='make_tensor((6, 50), "float32")'):
    return FLAT.replace("CHECK", check).replace("MAKE", make)


def test_an_interpreted_kernel_that_takes_contiguous_rows_for_granted(without_gpu):
    without_gpu.kernel(flat(), name="double")
    result = without_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*with inputs of padded rows: double differs from*", "*padded rows: ?6, 50? has strides ?66, 1?*"]
    )


def test_it_may_refuse_them(without_gpu):
    contiguous = 'if not x.is_contiguous():\n        raise ValueError("x must be contiguous")'
    without_gpu.kernel(flat(contiguous), name="double")
    result = without_gpu.run("--check-layouts", "-v", "--junitxml=junit.xml", gates="cutile_correct")
    result.assert_outcomes(passed=1)
    said = "refused by double, f32: padded rows: ValueError: x must be contiguous"
    assert f"\n{said}\n" in result.stdout.str()
    assert "padded rows: ValueError: x must be contiguous" in (without_gpu.path / "junit.xml").read_text()
    assert "refused by" not in without_gpu.run(gates="cutile_correct").stdout.str()


def test_a_fault_of_the_launcher_is_no_refusal(without_gpu):
    without_gpu.kernel(flat("x.stride(0) == x.shape[1] or None / 3"), name="double")
    result = without_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*TypeError: unsupported operand*"])


def test_transposed_storage_is_asked_for(without_gpu):
    padded = "if x.stride(0) > x.shape[1]: raise TypeError('no gaps')"
    without_gpu.kernel(flat(padded), name="double")
    without_gpu.run(gates="cutile_correct").assert_outcomes(passed=1)
    result = without_gpu.run("--check-layouts", gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*transposed storage: ?6, 50? has strides ?1, 6?*"])


def test_a_case_may_leave_them_out(without_gpu):
    text = flat().replace("cases=[", 'check={"vary_layout": False}, cases=[')
    without_gpu.kernel(text, name="double")
    without_gpu.run("--check-layouts", gates="cutile_correct").assert_outcomes(passed=1)


TEST = """
import itertools

number = itertools.count()


def double(x):
    return x * 2 + 1e-3 * (next(number) % 2)


def test_double(make_tensor, check_kernel):
    x = make_tensor((8,), "float32")
    report = check_kernel(double, x, reference=lambda x: x * 2, atol=1e-2)
    assert report.deterministic is False
    check_kernel(double, x, reference=lambda x: x * 2, atol=1e-2, guard=False, vary_layout=False)
"""


def test_results_that_differ_from_run_to_run_are_reported(project):
    project.pytester.makepyfile(test_mine=TEST)
    result = project.run("test_mine.py", gates="")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["other bits when run again: test_mine, test_double*"])


ZEROS = """
import re

import pytest


@pytest.mark.parametrize("n", [8, 80])
def test_zeros(n, make_tensor, check_kernel):
    check_kernel(lambda x: x * 0, make_tensor((n,), "float32"), reference=lambda x: x * 2, atol=50, rtol=1)


def test_scratch(make_tensor, check_kernel):
    def launch(x, scratch):
        scratch.zero_()
        return x * 2

    x = make_tensor((8,), "float32")
    check_kernel(launch, x, x.clone(), reference=lambda x, _: x * 2, mutates=["scratch"])
"""


def test_what_a_check_did_not_look_at_is_reported(project):
    project.pytester.makepyfile(test_mine=ZEROS)
    result = project.run("test_mine.py", "--junitxml=junit.xml", gates="")
    result.assert_outcomes(passed=3)
    text = result.stdout.str()
    [times] = re.findall(
        r"^allowed rtol=1, atol=50: test_mine, test_zeros\[8\] and 1 more: "
        r"up to (\S+) times the derived bound$",
        text,
        flags=re.MULTILINE,
    )
    assert float(times) > 1e6
    assert "\nmay change, and was compared with nothing: test_mine, test_scratch: scratch\n" in text
    junit = (project.path / "junit.xml").read_text()
    assert '"cutile.correct.tolerance" value="rtol=1, atol=50"' in junit
    assert '"cutile.correct.uncompared" value="scratch"' in junit


def test_a_launcher_that_writes_past_its_output_fails(project):
    from tests.plugin.conftest import KERNEL

    beyond = "y = __import__('torch').empty_like(x).copy_(x * 2)\n"
    beyond += "    y.as_strided((1,), (1,), y.storage_offset() + 8).zero_()\n    return y\n"
    project.kernel(KERNEL.replace("return x * 2\n", beyond, 1))
    result = project.run("-k", "correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*scale wrote 1 element past the end of output (first at offset +0)*"])
