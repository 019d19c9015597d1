"""Kernels whose launcher tunes, with the real compiler and no GPU: every configuration is gated."""

import json
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from cuda.tile import tune

from pytest_cutile.tile.compiler import Compiled, CompileJob, Compiler

TUNED = """
import cuda.tile as ct
from cuda.tile.tune import exhaustive_search

import pytest_cutile

SPACE = [{"TILE": 64}, {"TILE": 48}, {"TILE": 32}]
TUNED = {}


@ct.kernel
def double_kernel(X, Y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    x = ct.load(X, (i,), (TILE,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(Y, (i,), x * 2)


def grid(x, best):
    return (ct.cdiv(x.numel(), best["TILE"]),)


def double(x):
    import torch

    y = torch.empty_like(x)
    stream = torch.cuda.current_stream()
    if x.numel() not in TUNED:
        found = exhaustive_search(
            SPACE, stream, lambda c: grid(x, c), double_kernel, lambda c: (x, y, c["TILE"]), quiet=True
        )
        TUNED[x.numel()] = found.best.config
    best = TUNED[x.numel()]
    ct.launch(stream, grid(x, best), double_kernel, (x, y, best["TILE"]))
    return y


SPEC = pytest_cutile.KernelSpec(
    name="double",
    launch=double,
    reference=lambda x: 2 * x,
    inputs=lambda make_tensor, n: (make_tensor((n,), "float32"),),
    work=lambda n: pytest_cutile.Work(bytes=8 * n),
    cases=[pytest_cutile.Case(name="n300", params={"n": 300}, named_inputs=())],
)
"""


@pytest.fixture
def tuned(without_gpu):
    """A project with one kernel that tunes, and no GPU."""
    without_gpu.kernel(TUNED, name="double")
    return without_gpu


def test_a_configuration_that_does_not_compile_is_said_and_fails_nothing(tuned):
    result = tuned.run("-v", "--kernel-json=report.json", gates="cutile_compile")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*compile[[]n300-*PASSED (1 of 3 configurations do not compile)*",
            "tuning of double, n300: TILE=48: does not compile: *(48,) is not a power of two*",
        ]
    )
    [case] = json.loads((tuned.path / "report.json").read_text())["cases"]
    assert case["results"][0]["tuning"] == "1 of 3 configurations do not compile"
    tuned.run(gates="cutile_compile").stdout.fnmatch_lines(
        ["launchers that tune: remarks on configurations of 1 result (-v shows them)"]
    )


def test_without_any_configuration_that_compiles_the_gate_fails(tuned):
    tuned.edit('[{"TILE": 64}, {"TILE": 48}, {"TILE": 32}]', '[{"TILE": 48}, {"TILE": 33}]', name="double")
    result = tuned.run(gates="cutile_compile")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*double_kernel does not compile for *(48,) is not a power of two*"])


@pytest.mark.slow
def test_the_static_gate_says_which_configuration_loses(tuned):
    tuned.edit('{"TILE": 32}]', '{"TILE": 1}]', name="double")
    tuned.edit('{"n": 300}', '{"n": 4000000}', name="double")
    result = tuned.run("-v", "--perf-baseline", "none", gates="cutile_static")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*static[[]n300-*2 configurations with a drawback)*",
            "tuning of double, n300: TILE=1: predicted *x slower than TILE=64 (* us): *",
            "tuning of double, n300: TILE=48: does not compile: *",
        ]
    )


# -- interpreted --------------------------------------------------------------------------------------

WRONG = ("ct.store(Y, (i,), x * 2)", "ct.store(Y, (i,), x * (2.125 if TILE == 32 else 2))")


def test_all_configurations_are_checked_whatever_the_launcher_keeps(tuned):
    result = tuned.run("-v", gates="cutile_correct")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*(on the CPU, interpreted, not tuned without a GPU: TILE=64, first of 3 *; 2 checked)*",
            "tuning of double, n300: not tuned without a GPU: TILE=64, first of 3 configurations; 2 checked",
            "tuning of double, n300: TILE=48: does not compile: *48*",
        ]
    )


def test_a_configuration_that_computes_something_else_is_a_failure(tuned):
    tuned.edit(*WRONG, name="double")
    result = tuned.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*with TILE=32, one of 3 configurations that the launcher chooses from: double differs *",
            "*worst element*",
        ]
    )


def test_where_only_the_chosen_one_is_wrong_the_message_says_so(tuned):
    tuned.edit(WRONG[0], WRONG[1].replace("== 32", "== 64"), name="double")
    result = tuned.run("-vv", gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*  with TILE=64; 1 of 1 other configuration right"])


def test_a_fault_in_one_configuration_is_a_failure(tuned):
    old = "ct.store(Y, (i,), x * 2)"
    new = (
        "ct.store(Y, (i,), x * 2) if TILE != 32 else "
        "ct.scatter(Y, i * 512 + ct.arange(TILE, dtype=ct.int32), x * 2, check_bounds=False)"
    )
    tuned.edit(old, new, name="double")
    result = tuned.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*double_kernel*with TILE=32, one of 3 configurations*"])


def test_a_process_that_dies_fails_its_configuration_alone(tuned):
    kill = 'import os\n    if best["TILE"] == 32:\n        os.kill(os.getpid(), 11)'
    tuned.edit("best = TUNED[x.numel()]", f"best = TUNED[x.numel()]\n    {kill}", name="double")
    result = tuned.run(gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*with TILE=32, one of 3 *: the process that interpreted it ended by SIGSEGV*"]
    )


def test_a_large_space_is_checked_in_part_unless_all_is_asked_for(tuned, monkeypatch):
    monkeypatch.setattr("pytest_cutile.gates.interpreted.MOST", 1)
    tuned.edit('{"TILE": 48}, {"TILE": 32}', '{"TILE": 16}, {"TILE": 32}', name="double")
    tuned.edit(*WRONG, name="double")
    result = tuned.run("-v", gates="cutile_correct")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["tuning of double, n300: 1 configuration not checked; --every-input checks all"]
    )
    tuned.run("--every-input", gates="cutile_correct").assert_outcomes(failed=1)


MINE = """
import cuda.tile as ct
import pytest
import torch

from mykernels.double import double, double_kernel


def timed(x):
    y = torch.empty_like(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def launch(tile):
        ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.numel(), tile),), double_kernel, (x, y, tile))

    def milliseconds(tile):
        begin.record()
        launch(tile)
        end.record()
        return begin.elapsed_time(end)

    launch(min((64, 32), key=milliseconds))
    return y


@pytest.mark.parametrize("launcher", [double, timed])
def test_mine(launcher, make_tensor, check_kernel):
    check_kernel(launcher, make_tensor((300,), "float32"), reference=lambda x: 2 * x)


def test_both(make_tensor, check_kernel):
    tunings = {}
    for launcher in (double, timed):
        report = check_kernel(launcher, make_tensor((300,), "float32"), reference=lambda x: 2 * x)
        tunings[launcher.__name__] = report.tuning, report.checked_configurations
    assert [checked for _, checked in tunings.values()] == [2, 2]
    assert "TILE=64, first" in tunings["double"][0] and ";" not in tunings["timed"][0]
"""


def test_test_functions_and_loops_with_events_are_checked_likewise(tuned):
    tuned.pytester.makepyfile(test_mine=MINE)
    result = tuned.run("test_mine.py::test_mine", "-v", gates="")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*TILE=64, first of 3 *; 2 checked*", "*double_kernel(TILE=64), grid 5, first of 2 *; 2 checked*"]
    )


def test_each_check_of_a_test_knows_its_own_searches(tuned):
    tuned.pytester.makepyfile(test_mine=MINE)
    tuned.run("test_mine.py::test_both", gates="").assert_outcomes(passed=1)


@pytest.fixture
def rejecting(monkeypatch):
    """Let tileiras reject tiles of 64."""
    submit = Compiler.submit

    def reject(compiler: Compiler, job: CompileJob) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        if job.symbol.endswith("_I64"):
            future.set_exception(job.rejected("out of shared memory"))
            return future
        return submit(compiler, job)

    monkeypatch.setattr(Compiler, "submit", reject)


@pytest.mark.usefixtures("rejecting")
def test_one_that_tileiras_rejects_is_left_out_though_it_would_be_chosen(tuned):
    result = tuned.run("-v", gates="cutile_correct or cutile_compile")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*compile*PASSED (2 of 3 configurations do not compile)*",
            "tuning of double, n300*: TILE=64: does not compile: out of shared memory",
        ]
    )
    tuned.edit('{"TILE": 48}, {"TILE": 32}', '{"TILE": 48}', name="double")
    result = tuned.run(gates="cutile_correct or cutile_compile")
    result.assert_outcomes(failed=1, skipped=1)  # one failure tells it


@pytest.mark.usefixtures("rejecting")
def test_a_kernel_that_is_not_tuned_has_to_compile(tuned):
    tuned.edit(
        "    return y",
        "    ct.launch(stream, grid(x, SPACE[0]), double_kernel, (x, y, 64))\n    return y",
        name="double",
    )
    tuned.edit('{"TILE": 64}, {"TILE": 48}', '{"TILE": 16}', name="double")
    tuned.edit("grid(x, SPACE[0])", "(5,)", name="double")
    tuned.pytester.makepyfile(test_mine=MINE)
    result = tuned.run("test_mine.py::test_mine", "-k", "double", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*double_kernel does not compile for *: out of shared memory*"])


@pytest.mark.usefixtures("rejecting")
def test_a_loop_leaves_out_what_tileiras_rejects(tuned):
    tuned.pytester.makepyfile(test_mine=MINE)
    result = tuned.run("test_mine.py::test_mine", "-v", "-k", "timed", gates="")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["tuning of *: double_kernel(TILE=64), grid 5: does not compile: out of *"])


def test_a_loop_that_may_choose_something_wrong_fails(tuned):
    tuned.pytester.makepyfile(test_mine=MINE)
    tuned.edit(*WRONG, name="double")
    result = tuned.run("test_mine.py", "-k", "timed", gates="")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*with double_kernel(TILE=32), grid 10, one of 2 configurations that*"])


# -- on a GPU -----------------------------------------------------------------------------------------

ON_GPU = """
from cuda.tile import tune

import pytest_cutile

SPACE = [1, 2, 3]
KEPT = {}


def double(x):
    best = tune.exhaustive_search(SPACE, None, None, None, None).best.config
    return x * 2


SPEC = pytest_cutile.KernelSpec(
    name="scale",
    launch=double,
    reference=lambda x: x * 2,
    inputs=lambda make_tensor, n: (make_tensor((n,), "float32"),),
    work=lambda n: pytest_cutile.Work(bytes=1e8),
    cases=[pytest_cutile.Case(name="n8", params={"n": 8})],
)
"""


@pytest.fixture
def on_gpu(project, monkeypatch):
    """A project whose GPU finds the second configuration the fastest."""

    def search(space, *_):
        return SimpleNamespace(best=SimpleNamespace(config=space[1]), failures=())

    monkeypatch.setattr(tune, "exhaustive_search", search)
    project.kernel(ON_GPU)
    project.times(100.0)
    return project


def test_the_results_name_the_choice(on_gpu):
    result = on_gpu.run("-v", "--kernel-json=report.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*correct[[]n8[]] PASSED (chose 2 of 3 configurations)*",
            "*speed[[]n8[]] PASSED (*, chose 2 of 3 *)*",
        ]
    )
    [case] = json.loads((on_gpu.path / "report.json").read_text())["cases"]
    assert [one["tuning"] for one in case["results"]] == ["chose 2 of 3 configurations"] * 2


KEEPS = ("    best = tune", "    if KEPT:\n        return x * 2\n    best = KEPT[1] = tune")


def test_a_launcher_that_keeps_its_choice_has_it_named_with_its_speed(on_gpu):
    on_gpu.edit(*KEEPS)
    result = on_gpu.run("-v")
    result.stdout.fnmatch_lines(["*speed[[]n8[]] PASSED (*, chose 2 of 3 *)*"])


def test_every_configuration_is_checked_on_a_gpu_where_that_is_asked_for(on_gpu):
    result = on_gpu.run("-v", "--every-input", gates="cutile_correct")
    result.stdout.fnmatch_lines(["*PASSED (chose 2 of 3 configurations; 3 checked)*"])
    on_gpu.edit("return x * 2", "return x * (2.5 if best == 3 else 2)")
    on_gpu.run(gates="cutile_correct").assert_outcomes(passed=1)
    result = on_gpu.run("--every-input", gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*with 3, one of 3 configurations that the launcher chooses from: double *"])


def test_a_configuration_that_cannot_be_chosen_any_more_is_not_checked(on_gpu):
    on_gpu.edit(*KEEPS)
    result = on_gpu.run("-v", "--every-input", gates="cutile_correct")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["tuning of scale, n8: 3: not checked: the launcher keeps an earlier *"])
