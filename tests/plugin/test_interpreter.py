"""The gate `correct` with no GPU: kernels are interpreted on the CPU, and compiled by the real compiler."""

import contextlib
import json
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import cuda.tile as ct
import pytest

from pytest_cutile.gates import interpreted as interpreting
from pytest_cutile.tile.compiler import Launch
from tests.plugin.forked import run_forked
from tests.plugin.test_compile_gate import ADD

STORE = "ct.store(C, (i,), a + b)"
OUT_OF_BOUNDS = (
    STORE.replace("ct.store(C, (i,), ", "ct.scatter(C, i * TILE + ct.arange(TILE, dtype=ct.int32), ")[:-1]
    + ", check_bounds=False)"
)

MINE = """
import torch

from mykernels.add import add


def test_checked(make_tensor, check_kernel):
    a, b = make_tensor((300,), "float16"), make_tensor((300,), "float16")
    assert check_kernel(add, a, b, reference=lambda a, b: a + b).elements == 300


def test_plain(arch):
    a = torch.ones(300, device="cuda")
    assert a.is_cuda and torch.cuda.is_available()
    assert torch.equal(add(a, a), 2 * a)
"""


@pytest.fixture
def no_gpu(without_gpu):
    """A project with one real kernel and no timer."""
    without_gpu.kernel(ADD, name="add")
    return without_gpu


@pytest.fixture
def no_interpreter(monkeypatch):
    """Fail whoever interprets."""

    def active(*_):
        raise AssertionError("interpreted")

    monkeypatch.setattr(interpreting.Interpreting, "active", active)


def run_shown(no_gpu, *args):
    """Run pytest as users do: what a kernel prints goes past pytest's capture to the process's own output."""
    return run_forked(no_gpu.pytester, "-m", "cutile_correct", *args)


def counted(function, calls):
    """Return a function that writes a line to the file `calls` for each call: they are made in forks."""

    def call(*arguments):
        with calls.open("a") as lines:
            lines.write("called\n")
        return function(*arguments)

    return call


def test_a_right_kernel_passes(no_gpu):
    result = no_gpu.run("-v", gates="cutile_correct or cutile_speed")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*correct*PASSED (on the CPU, interpreted)*",
            "add *n1000 *correct (cpu), not-measured",
            "correct was checked by interpretation on the CPU: 1 case",
            "not measured: 1 speed: no GPU: *",
        ]
    )


def test_a_wrong_kernel_fails_with_both_values(no_gpu):
    no_gpu.kernel(ADD.replace(STORE, "ct.store(C, (i,), a + b * 1.01)"), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*add differs from its reference*",
            "*worst element [[]*",
            "*got *",
            "*exact *",
            "*add_kernel wrote C[[]*[]] last in block (*",
            "*add.py:12:5*",
            "add *n1000 *wrong result",
        ]
    )


def test_a_fault_is_reported_once_with_its_place(no_gpu):
    no_gpu.kernel(ADD.replace(STORE, OUT_OF_BOUNDS), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    text = result.stdout.str().partition("short test summary info")[0]
    line = ADD.replace(STORE, OUT_OF_BOUNDS).splitlines().index(f"    {OUT_OF_BOUNDS}") + 1
    assert f"add.py:{line}:" in text
    assert "block (7, 0, 0)" in text
    assert text.count("check_bounds=False)") == 1
    assert "pytest_cutile/" not in text
    result.stdout.fnmatch_lines(["add *n1000 *out-of-bounds"])


def test_an_element_that_nobody_wrote_is_seen(no_gpu):
    no_gpu.kernel(ADD.replace("(ct.cdiv(a.numel(), 128),)", "(a.numel() // 128,)"), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*add: nothing has written 104 of 1000 elements of output, [[]896[]] first*"]
    )


LAUNCH = ADD[ADD.index("    c = torch.empty_like") : ADD.index("SPEC")]
BY_TORCH = """    c = a + b
    ct.launch(torch.cuda.current_stream(), (1,), keep_kernel, (c, 128))
    return c


@ct.kernel
def keep_kernel(C, TILE: ct.Constant[int]):
    ct.store(C, (0,), ct.load(C, (0,), (TILE,)))


"""
"""The sum is torch's, and a kernel stores some of it where it was."""


def test_what_torch_has_computed_is_no_kernels_work(no_gpu):
    no_gpu.kernel(ADD.replace(LAUNCH, BY_TORCH), name="add")
    no_gpu.pytester.makepyfile(test_mine=MINE.partition("def test_plain")[0])
    result = no_gpu.run("mykernels", "test_mine.py", "-k", "correct or checked", gates="")
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(
        [
            "*add: PyTorch computed the result, and the cuTile launches contribute nothing to it*",
            "  1,000 of 1,000 elements of the outputs are what torch's add computed",
            "  0 of 1,000 elements of the outputs come from launches of keep_kernel: *",
            "add *n1000 *other-work",
        ]
    )


def test_a_result_says_how_much_of_it_launches_made(no_gpu):
    no_gpu.kernel(
        ADD.replace("    return c\n", "    c[:900] = a[:900] + b[:900]\n    return c\n"), name="add"
    )
    result = no_gpu.run("--kernel-json", "out.json", gates="cutile_correct")
    result.assert_outcomes(passed=1)
    [case] = json.loads((no_gpu.path / "out.json").read_text())["cases"]
    [found] = case["results"]
    assert found["from_launches"] == 0.1
    assert found["detail"] == "PyTorch computed 90.0% of the outputs' elements"


def test_special_inputs_accuse_nobody(no_gpu):
    """Of zeros, a kernel may have nothing to do."""
    text = ADD.replace(LAUNCH, BY_TORCH.replace("(1,), keep", "(8,), keep"))
    no_gpu.kernel(text, name="add")
    result = no_gpu.run("--every-input", gates="cutile_correct")
    assert result.parseoutcomes()["failed"] == 1


OTHER_ARRAYS = """
import cuda.tile as ct
import numpy as xp  # where there is no CuPy
import torch

import pytest_cutile


@ct.kernel
def add_kernel(A, B, C, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(C, (i,), ct.load(A, (i,), (TILE,)) + ct.load(B, (i,), (TILE,)))


def add(a, b):
    assert type(a) is xp.ndarray
    c = xp.empty_like(a)
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(a.size, 128),), add_kernel, (a, b, c, 128))
    return c


def inputs(make_tensor, n):
    return tuple(xp.from_dlpack(make_tensor((n,), "float32")) for _ in "ab")


SPEC = pytest_cutile.KernelSpec(
    name="add",
    launch=add,
    reference=lambda a, b: a + b,
    inputs=inputs,
    cases=[pytest_cutile.Case(name="n1000", params={"n": 1000}, speed=False)],
)
"""


def test_a_launcher_of_another_librarys_arrays_is_interpreted_and_compiled(no_gpu):
    no_gpu.kernel(OTHER_ARRAYS, name="add")
    result = no_gpu.run("--every-input", gates="")
    assert "failed" not in result.parseoutcomes()
    assert result.parseoutcomes()["passed"] > 5
    no_gpu.edit("+ ct.load(B", "- ct.load(B", name="add")
    result = no_gpu.run(gates="cutile_correct")
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*add differs from its reference*", "*worst element [[]*"])


def test_numpys_array_among_tensors_of_a_launch_is_refused(no_gpu):
    """As a GPU refuses it."""
    no_gpu.kernel(ADD.replace("(a, b, c, 128)", "(a, b.cpu().numpy(), c, 128)"), name="add")
    result = no_gpu.run(gates="cutile_correct")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*a launch takes tensors, *; got numpy.ndarray*"])


@pytest.fixture
def rejected(no_gpu, monkeypatch):
    """tileiras rejects what cuda-tile has accepted."""
    from pytest_cutile.tile.compiler import cutile

    def reject(_file, job, **_options):
        raise job.rejected("it cannot be lowered")

    monkeypatch.setattr(cutile, "run_tileiras", reject)
    return no_gpu


def test_what_the_compiler_rejects_fails_whichever_gates_are_selected(rejected):
    for options in (("-m", "cutile_correct"), ("-k", "correct"), ("mykernels/add.py::correct[n1000]",)):
        result = rejected.run(*options, gates="")
        assert result.parseoutcomes()["failed"] == 1
        assert "passed" not in result.parseoutcomes()
        result.stdout.fnmatch_lines(
            ["*add_kernel does not compile for sm_121: it cannot be lowered*", "add *n1000 *does not compile"]
        )


def test_the_gate_compile_reports_the_rejection_if_it_runs(rejected):
    result = rejected.run("-rs", gates="cutile_correct or cutile_compile")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*not-measured (not-compiled): it does not compile, see the gate compile*"])


def test_without_a_compiler_nothing_is_measured(no_gpu, monkeypatch):
    from pytest_cutile.tile.compiler import toolchain

    def missing():
        raise toolchain.CompilerMissing("tileiras is not installed")

    monkeypatch.setattr(sys.modules["pytest_cutile.tile.compiler.export"], "find_tileiras", missing)
    result = no_gpu.run("-rs", gates="cutile_correct")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["*not-measured (no-gpu): no GPU of sm_121, and no interpreter: tileiras is not installed*"]
    )


def test_what_the_frontend_rejects_fails(no_gpu):
    no_gpu.kernel(ADD.replace(STORE, "ct.store(C, (i,), a + missing)"), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    text = result.stdout.str().partition("short test summary info")[0]
    assert text.count("missing)") == 1
    assert "pytest_cutile/" not in text
    result.stdout.fnmatch_lines(["*add_kernel does not compile for sm_121: *", "*add.py:12:*"])


def test_tests_with_the_fixtures_are_interpreted_unchanged(no_gpu):
    no_gpu.pytester.makepyfile(test_mine=MINE)
    result = no_gpu.run("test_mine.py", gates="")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["correct was checked by interpretation on the CPU: 1 case"])


def test_fixtures_of_the_user_may_make_tensors_and_others_are_left_alone(no_gpu):
    no_gpu.pytester.makepyfile(
        test_mine="""
        import pytest, torch

        from mykernels.add import add

        @pytest.fixture(scope="session")
        def available():
            return torch.cuda.is_available()

        @pytest.fixture(autouse=True)
        def first():
            yield torch.cuda.is_available()

        @pytest.fixture
        def x(first):
            assert first
            return torch.ones(300, device="cuda")

        @pytest.mark.parametrize("factor", [1, 2])
        def test_one(available, x, factor, check_kernel):
            assert not available
            check_kernel(add, x, factor * x, reference=lambda a, b: a + b)

        def test_two(first):
            assert not first and not torch.cuda.is_available()
        """
    )
    no_gpu.run("test_mine.py", gates="").assert_outcomes(passed=3)


@pytest.mark.parametrize(
    "interrupt", ["assert False", "raise KeyboardInterrupt", "import pytest; pytest.exit()"]
)
def test_a_test_that_ends_early_leaves_torch_as_it_was(no_gpu, interrupt):
    import torch
    from torch.overrides import _get_current_function_mode_stack

    before = torch.cuda.is_available, torch.get_num_threads()
    no_gpu.pytester.makepyfile(test_mine=f"def test_mine(make_tensor):\n    {interrupt}\n")
    with contextlib.suppress(KeyboardInterrupt):  # pytester passes it on
        no_gpu.run("-x", "test_mine.py", gates="")
    assert (torch.cuda.is_available, torch.get_num_threads()) == before
    assert not _get_current_function_mode_stack()


def test_a_fault_of_a_plain_launch_shows_the_tests_line_and_not_ours(no_gpu):
    no_gpu.kernel(ADD.replace(STORE, OUT_OF_BOUNDS), name="add")
    no_gpu.pytester.makepyfile(test_mine=MINE)
    result = no_gpu.run("test_mine.py::test_plain", gates="")
    result.assert_outcomes(failed=1)
    text = result.stdout.str().partition("short test summary info")[0]
    assert "assert torch.equal(add(a, a), 2 * a)" in text
    assert "pytest_cutile/" not in text
    assert text.count("check_bounds=False)") == 1


def test_a_fault_that_other_code_than_the_test_swallows_is_a_warning(no_gpu):
    no_gpu.kernel(ADD.replace(STORE, OUT_OF_BOUNDS), name="add")
    (no_gpu.pytester.path / "launcher.py").write_text(
        """
import cuda.tile
import torch
from mykernels.add import add_kernel

def with_fallback(device="cuda"):
    a = torch.ones(300, device=device)
    try:
        cuda.tile.launch(torch.cuda.current_stream(), (3,), add_kernel, (a, a, torch.ones_like(a), 128))
    except Exception:
        pass
"""
    )
    no_gpu.pytester.makepyfile(
        test_mine=MINE.split("def test_checked", maxsplit=1)[0]
        + """
import threading

import pytest
from launcher import with_fallback

def test_fallback(arch):
    with_fallback()

def test_thread(arch):
    thread = threading.Thread(target=with_fallback, args=("cpu",))
    thread.start()
    thread.join()

def test_expected(arch):
    with pytest.raises(Exception, match="block"):
        add(*torch.ones(2, 300, device='cuda'))

def test_wrapped(arch):
    with pytest.raises(ValueError):
        try:
            add(*torch.ones(2, 300, device='cuda'))
        except Exception as error:
            raise ValueError from error
"""
    )
    result = no_gpu.run("test_mine.py", "-W", "default", gates="")
    result.assert_outcomes(passed=4, warnings=2)
    result.stdout.fnmatch_lines(
        [
            "test_mine.py::test_fallback",
            "test_mine.py::test_thread",
            "*PytestWarning: the test passed over a fault: add_kernel in block (*add.py:12:*)",
        ]
    )
    result = no_gpu.run("test_mine.py", "-W", "error", gates="")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["E   the test passed over a fault: add_kernel in block (*add.py:12:*)"])


def test_a_plain_launch_that_the_compiler_rejects_fails(rejected):
    rejected.pytester.makepyfile(test_mine=MINE)
    result = rejected.run("test_mine.py", gates="")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E   add_kernel does not compile for sm_121: it cannot be lowered"])


def test_a_test_may_interpret_for_itself(no_gpu):
    no_gpu.pytester.makepyfile(
        test_mine=MINE
        + """

def test_nested(make_tensor):
    from pytest_cutile.interpreter import interpret

    a = make_tensor((300,), "float16")
    with interpret("sm_90"):
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.equal(add(a, a), a + a)
    assert torch.cuda.get_device_capability() == (12, 1)
    assert torch.equal(add(a, a), a + a)
"""
    )
    no_gpu.run("test_mine.py", gates="").assert_outcomes(passed=3)


def test_an_operation_that_is_not_known_is_not_measured(no_gpu, monkeypatch):
    from pytest_cutile.interpreter import Run
    from pytest_cutile.tile.interpreter.faults import NotInterpreted

    def launch(*_):
        raise NotInterpreted("the operation foo is not interpreted")

    monkeypatch.setattr(Run, "launch", launch)
    no_gpu.pytester.makepyfile(test_mine=MINE)
    result = no_gpu.run("test_mine.py", "mykernels", "-rs", "-k", "correct or mine", gates="")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(["*not-measured (not-interpreted): *the operation foo is not interpreted*"])
    strict = no_gpu.run("test_mine.py", "--perf-strict", gates="")
    strict.assert_outcomes(failed=2)


def test_large_cases_are_left_out_unless_asked_for(no_gpu, monkeypatch):
    monkeypatch.setattr(interpreting, "LARGEST_BYTES", 1000)
    no_gpu.pytester.makepyfile(test_mine=MINE)
    paths = ("mykernels", "test_mine.py", "-k", "correct or checked")
    result = no_gpu.run(*paths, "-rs", gates="")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*not-measured (too-large): no GPU of sm_121; * --correct-on=interpreter*"])
    no_gpu.run(*paths, "--correct-on=interpreter", gates="").assert_outcomes(passed=2)


def test_several_architectures_are_one_interpretation_of_a_declared_case(no_gpu):
    result = no_gpu.run("--arch", "sm_90,sm_121", gates="cutile_correct")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["add *1 *1 *s"])
    no_gpu.pytester.makepyfile(test_mine=MINE)
    no_gpu.run("test_mine.py", "--arch", "sm_90,sm_121", gates="").assert_outcomes(passed=3)


def test_workers_interpret_too(no_gpu):
    no_gpu.pytester.makepyfile(test_mine=MINE)
    result = no_gpu.run(
        "-n", "1", "-p", "no:benchmark", "mykernels", "test_mine.py", "-k", "correct or mine", gates=""
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["correct was checked by interpretation on the CPU: 2 cases"])


def test_results_say_where_they_are_from(no_gpu):
    no_gpu.run("--junitxml=report.xml", "--kernel-summary=summary.md", gates="cutile_correct")
    assert 'name="cutile.correct.on" value="interpreter"' in (no_gpu.path / "report.xml").read_text()
    assert "by interpretation on the CPU: 1 case" in (no_gpu.path / "summary.md").read_text()


def test_waiting_for_the_compiler_names_what_is_compiled_and_for_how_long():
    slow: Any = Future()
    said: list[str] = []
    settings = SimpleNamespace(interpretation=None)

    def progress(text):
        said.append(text)
        slow.set_result(None)

    compiler = SimpleNamespace(submit=lambda _: slow)
    session: Any = SimpleNamespace(settings=settings, progress=progress, compiler=compiler)
    waiting = interpreting.Interpreting(session, "sm_90")
    launch = Launch(kernel=ct.kernel(lambda: None), grid=(1,), args=())
    for kernel in ("add_kernel", "scale_kernel"):
        job: Any = SimpleNamespace(bytecode=kernel, kernel=kernel)
        waiting._compile(job, launch)
    waiting.wait_for_compiler()
    assert said == ["compiling add_kernel for sm_90 after its interpretation: 1 s"]


# -- beside a GPU ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_interpreter")
def test_nothing_is_interpreted_where_there_is_a_gpu(project):
    project.run().assert_outcomes(passed=2)
    project.pytester.makepyfile(
        test_mine="""
        def test_mine(make_tensor, check_kernel, arch):
            check_kernel(lambda x: x * 2, make_tensor((8,), "float32"), reference=lambda x: x * 2)
        """
    )
    project.run("test_mine.py", gates="").assert_outcomes(passed=1)


def test_beside_a_gpu_it_is_used_when_asked_for_and_for_other_architectures(project):
    project.kernel(ADD, name="add")
    for options in (("--correct-on=interpreter",), ("--arch", "sm_121")):
        result = project.run("-k", "add and correct", *options, gates="")
        assert result.parseoutcomes()["passed"] == 1
        result.stdout.fnmatch_lines(["correct was checked by interpretation on the CPU: 1 case"])


def test_an_interpreted_test_times_nothing_on_the_gpu(project):
    project.kernel(ADD, name="add")
    project.pytester.syspathinsert()
    project.pytester.makepyfile(
        test_mine="""
        from mykernels.add import add

        def test_mine(make_tensor, check_kernel, perf):
            a = make_tensor((300,), "float16")
            check_kernel(add, a, a, reference=lambda a, b: a + b)
            perf(add, a, a)
        """
    )
    result = project.run("test_mine.py", "--correct-on=interpreter", "-rs", gates="")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        [
            "test_mine *1 *1 *s",
            "*not-measured (no-gpu): the test is interpreted on the CPU*(its result is right)",
        ]
    )


# -- options -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_interpreter")
def test_a_gpu_may_be_demanded(no_gpu):
    no_gpu.pytester.makepyfile(test_mine=MINE)
    paths = ("mykernels", "test_mine.py", "-k", "correct or checked")
    result = no_gpu.run(*paths, "-rs", "--correct-on=gpu", gates="")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*not-measured (no-gpu): no GPU: *"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--correct-on=cpu",),
            "argument --correct-on: invalid choice: 'cpu' (choose from *auto*gpu*interpreter*",
        ),
        (("--interpret-block=a",), "--interpret-block a: expected the numbers of a block, one to three*"),
        (("--interpret-block=1,2,3,4",), "--interpret-block 1,2,3,4: expected*"),
        (("--interpret-block=-1",), "--interpret-block -1: expected*"),
        (("--interpret-watch=12",), "--interpret-watch 12: expected a file and a line*"),
        (("--interpret-watch=none.py:1",), "--interpret-watch: none.py cannot be read: No such file*"),
        (("--interpret-watch=mykernels/add.py:9999",), "*mykernels/add.py has lines 1 to *"),
        (("--correct-on=gpu", "--interpret-block=0"), "--interpret-block=0 is about the interpreter*"),
        (
            ("--interpret-padding=nan",),
            "argument --interpret-padding: invalid choice: 'nan' (choose from *poison*zero*",
        ),
        (
            ("--interpret-races=maybe",),
            "argument --interpret-races: invalid choice: 'maybe' (choose from *fail*ignore*",
        ),
        (("--correct-on=gpu", "--interpret-padding=zero"), "--interpret-padding=zero is about the interp*"),
        (("--correct-on=gpu", "--interpret-races=ignore"), "--interpret-races=ignore is about the interp*"),
        (("--interpret-block=0", "--interpret-both-orders"), "--interpret-both-orders needs all blocks*"),
    ],
)
def test_wrong_options_are_usage_errors(no_gpu, options, message):
    result = no_gpu.run(*options, gates="cutile_correct")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])


def test_one_block_can_be_run_alone_and_prints(no_gpu):
    no_gpu.kernel(ADD.replace("    c = torch", "    print('LAUNCHED')\n    c = torch"), name="add")
    result = run_shown(no_gpu, "--interpret-block=3", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["*not-measured (one-block): only block (3, 0, 0) was run, and nothing compared"]
    )
    assert result.stdout.str().count("LAUNCHED") == 1
    result = run_shown(no_gpu, "--interpret-block=300", "-rs")
    result.stdout.fnmatch_lines(
        ["*not-measured (one-block): block (300, 0, 0) is not in the grid (8, 1, 1) of add_kernel"]
    )


def test_tiles_of_a_line_are_shown_for_one_block(no_gpu):
    line = ADD.splitlines().index(f"    {STORE}") + 1
    watch = f"--interpret-watch=mykernels/add.py:{line}"
    result = run_shown(no_gpu, watch)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*add_kernel: {STORE}", "*tile<128xf16> in block (0, 0, 0)"])
    result = run_shown(no_gpu, watch, "--interpret-block=2")
    result.stdout.fnmatch_lines(["*tile<128xf16> in block (2, 0, 0)"])
    no_gpu.pytester.makepyfile(test_mine=MINE)
    result = run_forked(no_gpu.pytester, watch, "test_mine.py::test_plain")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*tile<128xf32> in block (0, 0, 0)"])


def test_the_origin_of_an_infinity_is_reported(no_gpu):
    text = ADD.replace(STORE, "c = a + b\n    ct.store(C, (i,), c / (c - c))")
    no_gpu.kernel(text, name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the first Inf that was stored: add_kernel: division *", "*add.py:13:*"])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint64"])
def test_a_wrong_result_of_any_dtype_is_reported_whole(no_gpu, dtype):
    """Torch lacks most functions of these."""
    text = ADD.replace(STORE, "ct.store(C, (i,), ct.astype(a + b + 8, C.dtype))")
    text = text.replace("empty_like(a)", f"empty_like(a, dtype=torch.{dtype})")
    text = text.replace('"float16"', '"float16", dist="ones"')
    to_integers = ".long()" if dtype == "uint64" else ""
    text = text.replace("reference=lambda a, b: a + b", f"reference=lambda a, b: (a + b){to_integers}")
    no_gpu.kernel(text, name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*1,000 of 1,000 elements*", "*add_kernel wrote C[[]0[]] last in block*"])


def test_a_wrong_result_is_watched_prints_once_and_is_reported_whole(no_gpu):
    text = ADD.replace(STORE, "c = a + b\n    ct.printf('BLOCK')\n    ct.store(C, (i,), c * 2 / (c - c))")
    text = text.replace("    c = torch", "    print('LAUNCHED')\n    c = torch")
    no_gpu.kernel(text, name="add")
    line = text.splitlines().index("    c = a + b") + 1
    for watch in ((), (f"--interpret-watch=mykernels/add.py:{line}",)):
        result = run_shown(no_gpu, *watch, "-vv")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "*the first Inf that was stored: add_kernel: division *",
                "*add_kernel wrote C[[]*[]] last in block (*",
                "*value = division at *",
                "*rhs = 2",
            ]
        )
        assert result.stdout.str().count("LAUNCHED") == 1
        assert result.stdout.str().count("BLOCK") == 8
        assert result.stdout.str().count("tile<128xf16> in block (0, 0, 0)") == len(watch)


def test_a_result_of_another_shape_is_not_made_again(no_gpu):
    no_gpu.pytester.makepyfile(
        test_mine=MINE.split("def test_checked", maxsplit=1)[0]
        + """
launched = []

def twice(a):
    launched.append(a)
    return add(a, a)

def test_shape(make_tensor, check_kernel):
    try:
        check_kernel(twice, make_tensor((300,), "float16"), reference=lambda a: a.sum())
    finally:
        assert len(launched) == 1
"""
    )
    result = no_gpu.run("test_mine.py", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*in structure or shape:*"])
    assert "len(launched)" not in result.stdout.str()


def test_who_stored_into_a_changed_input_is_reported(no_gpu):
    no_gpu.kernel(ADD.replace("c = torch.empty_like(a)", "c = a"), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*add changed its input a (*): 1,000 of 1,000 elements differ from before the launch",
            "*add_kernel: all 8 blocks, (0, 0, 0) to (7, 0, 0), stored into it",
            "*add.py:12:*",
            f"*{STORE}",
        ]
    )


def test_the_writers_of_the_rest_of_an_unwritten_output_are_reported(no_gpu):
    no_gpu.kernel(ADD.replace("(ct.cdiv(a.numel(), 128),)", "(4,)"), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*nothing has written 488 of 1000 elements of output, [[]512[]] first, [[]999[]] last",
            "*add_kernel: all 4 blocks, (0, 0, 0) to (3, 0, 0), stored into it",
            "*add.py:12:*",
            f"*{STORE}",
        ]
    )


def test_a_failure_is_explained_once(no_gpu, monkeypatch):
    from pytest_cutile.correctness.explain import findings, relaxation

    explained = no_gpu.path / "explained"
    monkeypatch.setattr(findings, "advise", counted(relaxation.advise, explained))
    no_gpu.kernel(ADD.replace(STORE, "ct.store(C, (i,), a + b * 1.25)"), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*add_kernel wrote C* last in block (*", "*add.py:12:*"])
    assert explained.read_text().splitlines() == ["called"]


def test_both_orders_of_the_blocks_can_be_checked(no_gpu, monkeypatch):
    from pytest_cutile.interpreter import Run

    launch = Run.launch

    def wrong_in_reverse(self, *arguments):
        launch(self, *arguments)
        if self.options.reverse:
            arguments[1][2][7] += 1

    no_gpu.run("--interpret-both-orders", gates="cutile_correct").assert_outcomes(passed=1)
    monkeypatch.setattr(Run, "launch", wrong_in_reverse)
    for options in ((), ("--interpret-both-orders",)):
        result = no_gpu.run(*options, gates="cutile_correct")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["*with the last block first: add differs from its reference*", "*worst element [[]7[]]*"]
        )


ROWS = """
import cuda.tile as ct
import torch

import pytest_cutile

STATE = {}


def state():
    return STATE.setdefault("state", torch.zeros(1, dtype=torch.int32, device="cuda"))


@ct.kernel
def add_kernel(A, B, W, C, TILE: ct.Constant[int]):
    i = ct.bid(0)
    t = ct.atomic_add(W, 0, 1)
    wrong = WRONG
    a, b = ct.load(A, (i, 0), (1, TILE)), ct.load(B, (i, 0), (1, TILE))
    ct.store(C, (i, 0), a + b + ct.where(wrong, 1, 0).astype(C.dtype))


def add(a, b):
    c = torch.empty_like(a)
    args = (a.reshape(10, -1), b.reshape(10, -1), WORKSPACE, c.reshape(10, -1), 128)
    ct.launch(torch.cuda.current_stream(), (10,), add_kernel, args)
    return c


SPEC = pytest_cutile.KernelSpec(
    name="add",
    launch=add,
    reference=lambda a, b: a + b,
    inputs=lambda make_tensor, n: (make_tensor(SHAPE, "float16"), make_tensor(SHAPE, "float16")),
    work=lambda n: pytest_cutile.Work(bytes=6 * n),
    cases=[pytest_cutile.Case(name="n1000", params={"n": 1000})],
)
"""
SHAPES = pytest.mark.parametrize("shape", ["(1000,)", "(10, 100)"])
CHANGES_BY_LAUNCH = {
    "never reset": ("t >= 10", "state()"),
    "at every other launch": ("t % 20 >= 10", "state()"),
    "in one block": ("(t >= 10) & (i == 3)", "state()"),
}
CHANGES_BY_ORDER = {
    "number of the block": "t != i",
    "number of the last block": "(t == 9) & (i != 9)",
    "what the last block finds done": "(i == 9) & (ct.atomic_add(W, 0, 0) < 10)",
    "what the first block finds done": "(i == 0) & (ct.atomic_add(W, 0, 0) < 10)",
}


def rows(shape, wrong, workspace):
    return ROWS.replace("SHAPE", shape).replace("WRONG", wrong).replace("WORKSPACE", workspace)


@SHAPES
@pytest.mark.parametrize(("wrong", "workspace"), CHANGES_BY_LAUNCH.values(), ids=list(CHANGES_BY_LAUNCH))
def test_what_the_launch_before_left_behind_is_found(no_gpu, shape, wrong, workspace):
    no_gpu.kernel(rows(shape, wrong, workspace), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   the second launch, after one that was right: add differs from its reference*"]
    )
    assert "last block first" not in result.stdout.str()
    assert "padded rows" not in result.stdout.str()


CHECKED_ONCE = """
from mykernels.add import SPEC


def test_once(make_tensor, check_kernel):
    check_kernel(SPEC.launch, *SPEC.inputs(make_tensor, 1000), reference=SPEC.reference)
"""


@SHAPES
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("t % 30 >= 20", "launch 3, after 2 that were right: add differs from its reference"),
        ("t % 40 >= 30", "launch 4, after 3 that were right: add differs from its reference"),
    ],
)
def test_what_two_launches_left_behind_is_found(no_gpu, shape, wrong, message):
    no_gpu.kernel(rows(shape, wrong, "state()"), name="add")
    no_gpu.pytester.makepyfile(test_mine=CHECKED_ONCE)
    result = no_gpu.run("test_mine.py", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E   {message}*"])
    assert "last block first" not in result.stdout.str()


@SHAPES
@pytest.mark.parametrize(
    ("workspace", "launches"),
    [("torch.zeros(1, dtype=torch.int32, device=a.device)", 2), ("state().zero_()", 2), ("state()", 4)],
)
def test_only_memory_that_changes_from_launch_to_launch_is_launched_more_often(
    no_gpu, monkeypatch, shape, workspace, launches
):
    from pytest_cutile.interpreter import Run

    made = no_gpu.path / "made"
    monkeypatch.setattr(Run, "launch", counted(Run.launch, made))
    no_gpu.kernel(rows(shape, "False", workspace), name="add")
    no_gpu.pytester.makepyfile(test_mine=CHECKED_ONCE)
    no_gpu.run("test_mine.py", gates="").assert_outcomes(passed=1)
    assert len(made.read_text().splitlines()) == launches


@SHAPES
@pytest.mark.parametrize("wrong", CHANGES_BY_ORDER.values(), ids=list(CHANGES_BY_ORDER))
def test_what_depends_on_the_order_of_the_blocks_is_found(no_gpu, shape, wrong):
    no_gpu.kernel(rows(shape, wrong, "torch.zeros(1, dtype=torch.int32, device=a.device)"), name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E   with the last block first: *add differs from its reference*"])
    assert "second launch" not in result.stdout.str()


ACCUMULATES = """
import cuda.tile as ct
import torch

import pytest_cutile

SUMS = {}


@ct.kernel
def copy_kernel(A, W, C, LONG: ct.Constant[bool], TILE: ct.Constant[int]):
    i = ct.bid(0)
    a = ct.load(A, (i,), (TILE,))
    if LONG:
        a += ct.load(W, (i,), (TILE,))
        ct.store(W, (i,), a)
    ct.store(C, (i,), a)


def copy(a):
    n = a.numel()
    if n not in SUMS:
        SUMS[n] = torch.zeros_like(a)
    c = torch.empty_like(a)
    ct.launch(torch.cuda.current_stream(), (n // 128,), copy_kernel, (a, SUMS[n], c, n > 1000, 128))
    return c


SPEC = pytest_cutile.KernelSpec(
    name="copy",
    launch=copy,
    reference=lambda a: a,
    inputs=lambda make_tensor, n: (make_tensor(n, "float32"),),
    cases=[pytest_cutile.Case(name=f"n{n}", params={"n": n}) for n in (512, 2048)],
)
"""


def test_a_workspace_that_only_one_specialization_uses_is_found(no_gpu):
    no_gpu.kernel(ACCUMULATES, name="add")
    result = no_gpu.run("-v", gates="cutile_correct")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*correct[[]n512[]] PASSED*", "E   the second launch, after one that was right: copy differs *"]
    )


@SHAPES
def test_an_input_that_is_changed_through_a_closure_is_found(no_gpu, shape):
    text = rows(
        shape,
        "ct.load(F, (0,), (1,)).item() > 1",
        "torch.zeros(1, dtype=torch.int32, device=a.device), factor()",
    )
    text = text.replace("W, C", "W, F, C").replace(
        "    return c\n",
        "    ct.launch(torch.cuda.current_stream(), (1,), double, (factor(),))\n    return c\n",
    )
    text = text.replace(
        "def add(",
        """@ct.kernel
def double(F):
    ct.store(F, (0,), ct.load(F, (0,), (1,)) * 2)


def factor():
    return STATE.setdefault("factor", torch.ones(1, device="cuda"))


def add(""",
    )
    no_gpu.kernel(text, name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   the second launch, after one that was right: add differs from its reference*"]
    )


@SHAPES
def test_a_fault_of_the_second_launch_is_said_to_be_one(no_gpu, shape):
    text = rows(shape, "False", "state()").replace("(i, 0), a + b", "(i + t // 10 * 10, 0), a + b")
    no_gpu.kernel(text, name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*wholly outside of C*", "the second launch, after one that was right"])
    assert "last block first" not in result.stdout.str()


def test_the_second_launch_may_do_without_a_layout_that_is_refused(no_gpu):
    text = rows("(10, 100)", "t >= 10", "state()").replace(
        "    c = torch", "    if not a.is_contiguous():\n        raise ValueError('strided')\n    c = torch"
    )
    no_gpu.kernel(text, name="add")
    result = no_gpu.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   the second launch, after one that was right: add differs from its reference*"]
    )


@SHAPES
def test_arguments_that_a_launcher_changes_are_restored_for_its_second_launch(no_gpu, shape):
    text = (
        rows(shape, "False", "torch.zeros(1, dtype=torch.int32, device=a.device)")
        .replace("c = torch.empty_like(a)", "c = a")
        .replace("cases=", 'check={"mutates": ["a"]},\n    cases=')
    )
    no_gpu.kernel(text, name="add")
    no_gpu.run(gates="cutile_correct").assert_outcomes(passed=1)


def with_workspace(text, store):
    """Return a project's kernel with one more argument: integers, all 1."""
    text = text.replace("(A, B, C, TILE", "(A, B, W, C, TILE").replace(STORE, store)
    return text.replace("(a, b, c, 128)", "(a, b, torch.ones_like(a, dtype=torch.int32), c, 128)")


def test_undetermined_padding_may_be_zero(no_gpu):
    store = "ct.store(C, (i,), ct.where(ct.min(ct.load(W, (i,), (TILE,))) >= 0, a + b, a))"
    no_gpu.kernel(with_workspace(ADD, store), name="add")
    no_gpu.pytester.makepyfile(test_mine=MINE.replace("300", "304"))  # TMA writes whole pieces of 16 bytes
    paths = ("mykernels", "test_mine.py", "-k", "correct or checked")
    no_gpu.run(*paths, gates="").assert_outcomes(failed=2)
    result = no_gpu.run(*paths, "--interpret-padding=zero", gates="")
    result.assert_outcomes(passed=2)


def test_races_may_be_ignored(no_gpu):
    store = f"ct.store(W, (0,), ct.full((1,), 2, ct.int32)); {STORE}"
    no_gpu.kernel(with_workspace(ADD, store), name="add")
    no_gpu.pytester.makepyfile(test_mine=MINE)
    paths = ("mykernels", "test_mine.py", "-k", "correct or checked")
    result = no_gpu.run(*paths, gates="")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["add *n1000 *race"])
    no_gpu.run(*paths, "--interpret-races=ignore", gates="").assert_outcomes(passed=2)
