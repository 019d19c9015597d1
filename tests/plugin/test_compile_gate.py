"""The gate `compile` on real kernels with the real compiler, on a machine without a GPU."""

import pytest

from pytest_cutile.tile.compiler import toolchain
from tests.tile.compiler import fake_tileiras

ADD = """
import cuda.tile as ct

import pytest_cutile


@ct.kernel
def add_kernel(A, B, C, TILE: ct.Constant[int]):
    i = ct.bid(0)
    a = ct.load(A, (i,), (TILE,))
    b = ct.load(B, (i,), (TILE,))
    ct.store(C, (i,), a + b)


def add(a, b):
    import torch

    if not a.is_cuda:
        raise ValueError("a must be on the GPU")
    c = torch.empty_like(a)
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(a.numel(), 128),), add_kernel, (a, b, c, 128))
    return c


SPEC = pytest_cutile.KernelSpec(
    name="add",
    launch=add,
    reference=lambda a, b: a + b,
    inputs=lambda make_tensor, n: (make_tensor((n,), "float16"), make_tensor((n,), "float16")),
    work=lambda n: pytest_cutile.Work(bytes=6 * n),
    cases=[pytest_cutile.Case(name="n1000", params={"n": 1000})],
)
"""


@pytest.fixture
def no_gpu(without_gpu):
    """A project with one real kernel and no timer."""
    without_gpu.kernel(ADD, name="add")
    return without_gpu


@pytest.mark.slow
def test_the_main_job_without_a_gpu(no_gpu):
    result = no_gpu.run("--arch", "sm_90,sm_121", "-rs", gates="")
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "add *1 *1 *1  no baseline *s",
            "correct was checked by interpretation on the CPU: 1 case",
            "not measured: 1 speed: no GPU: *",
            "*not-measured (no-gpu): no GPU: *",
        ]
    )


def test_without_a_gpu_update_baselines_says_that_it_recorded_no_speed(no_gpu):
    result = no_gpu.run("--arch", "sm_121", "--update-baselines", gates="")
    result.stdout.fnmatch_lines(["no speed was recorded: nothing was measured"])
    assert not list((no_gpu.path / "baselines").glob("*-nvidia-*"))


def test_without_a_gpu_a_broken_file_is_a_usage_error(no_gpu):
    (no_gpu.path / "mine.json").write_text("{")
    result = no_gpu.run("--arch", "sm_121", "--perf-baseline=mine.json", gates="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--perf-baseline: *mine.json:1: not valid JSON*"])


@pytest.mark.slow
def test_all_architectures(no_gpu):
    result = no_gpu.run("--arch", "all", "-m", "cutile_compile", gates="")
    result.assert_outcomes(passed=len(toolchain.supported_architectures()))


def test_a_platform_that_cannot_say_which_cores_a_process_may_use(no_gpu, monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity")
    no_gpu.run("--arch", "sm_121", "-m", "cutile_compile", gates="").assert_outcomes(passed=1)


def test_a_kernel_that_does_not_compile_is_told_in_the_compilers_words_once(no_gpu):
    no_gpu.kernel(ADD.replace("ct.store(C, (i,), a + b)", "ct.store(C, (i,), a + missing)"), name="add")
    result = no_gpu.run("--arch", "sm_121", gates="cutile_compile")
    result.assert_outcomes(failed=1)
    text = result.stdout.str().partition("short test summary info")[0]
    assert "add_kernel does not compile for sm_121" in text
    assert "ct.store(C, (i,), a + missing)" in text
    assert text.count("missing)") == 1
    assert "Traceback" not in text
    assert "pytest_cutile/" not in text
    result.stdout.fnmatch_lines(["*add.py:12:*", "add *n1000 *does not compile"])


def test_one_bad_case_leaves_the_others_alone(no_gpu):
    two = ADD.replace(
        'params={"n": 1000})]', 'params={"n": 1000}), pytest_cutile.Case(name="n7", params={"n": 7})]'
    )
    no_gpu.kernel(
        two.replace("    c = torch", "    if a.numel() == 7: raise ValueError('odd')\n    c = torch"), "add"
    )
    result = no_gpu.run("--arch", "sm_121", gates="cutile_compile")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*raise ValueError('odd')*"])
    result.stdout.no_fnmatch_line("*pytest_cutile/*")


def test_a_launcher_that_launches_nothing_is_told(no_gpu):
    no_gpu.kernel(ADD.replace("    ct.launch(", "    (lambda *_: None)("), "add")
    result = no_gpu.run("--arch", "sm_121", gates="cutile_compile")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*add[[]n1000[]]: the launcher launched no cuTile kernel*"])


def test_launch_code_sees_the_asked_architecture(no_gpu):
    raises = "raise RuntimeError('on the Spark')"
    branch = f"    if torch.cuda.get_device_capability() == (12, 1): {raises}\n    c = torch"
    no_gpu.kernel(ADD.replace("    c = torch", branch), "add")
    result = no_gpu.run("--arch", "sm_90,sm_121", gates="cutile_compile")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*on the Spark*"])


def test_without_tileiras_each_compile_test_says_how_to_get_it(no_gpu, monkeypatch):
    def missing():
        raise toolchain.CompilerMissing("tileiras is not installed: pip install 'pytest-cutile[tileiras]'")

    monkeypatch.setattr(toolchain, "find_tileiras", missing)
    toolchain._ask.cache_clear()
    try:
        result = no_gpu.run(gates="")
        result.assert_outcomes(failed=1, skipped=3)
        result.stdout.fnmatch_lines(
            ["*tileiras is not installed: pip install 'pytest-cutile[[]tileiras[]]'*"]
        )
        result.stdout.no_fnmatch_line("*Traceback*")
    finally:
        toolchain._ask.cache_clear()


def test_without_tileiras_one_failure_says_so(no_gpu, monkeypatch):
    def missing():
        raise toolchain.CompilerMissing("tileiras is not installed")

    monkeypatch.setattr(toolchain, "find_tileiras", missing)
    toolchain._ask.cache_clear()
    try:
        result = no_gpu.run("--arch", "sm_90,sm_121", "-rs", gates="cutile_compile or cutile_static")
        result.assert_outcomes(failed=1, skipped=3)
        result.stdout.fnmatch_lines(["*not-measured (not-compiled): tileiras is not installed (* failed *"])
    finally:
        toolchain._ask.cache_clear()


def test_modules_that_lack_the_same_package_fail_once(no_gpu):
    for name in ("one", "two"):
        no_gpu.kernel("import cuda.of_nobody\n", name)
    result = no_gpu.run("--continue-on-collection-errors", gates="cutile_correct")
    result.assert_outcomes(errors=1, passed=1)
    assert result.stdout.str().count("is not installed: pip install 'pytest-cutile[tileiras]'") == 1


def test_a_compilation_that_takes_too_long_is_stopped(no_gpu):
    result = no_gpu.run("--arch", "sm_121", "-o", "cutile_compile_timeout=0.001", gates="cutile_compile")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*tileiras was stopped after 0.001 s*cutile_compile_timeout*"])


def test_workers_compile_too(no_gpu):
    result = no_gpu.run("--arch", "sm_90,sm_121", "-n", "1", "-p", "no:benchmark", gates="cutile_compile")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["add *1 *1 *s"])


def test_the_second_run_compiles_nothing(no_gpu, monkeypatch):
    no_gpu.run("--arch", "sm_121", gates="cutile_compile").assert_outcomes(passed=1)

    def run(*_args, **_options):
        raise AssertionError("compiled again")

    monkeypatch.setattr("pytest_cutile.tile.compiler.cutile.run_tileiras", run)
    no_gpu.run("--arch", "sm_121", gates="cutile_compile").assert_outcomes(passed=1)


# -- the compiler is at fault -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (fake_tileiras.SEGV_WITH_REPORT, "E   tileiras crashed on add_kernel for sm_121 (-O3): segmentation"),
        (fake_tileiras.KILLED, "E   tileiras crashed on add_kernel for sm_121 (-O3): killed (SIGKILL)"),
        (
            fake_tileiras.NO_CUBIN,
            "E   tileiras crashed on add_kernel for sm_121 (-O3): exit status 0, and no",
        ),
        (
            fake_tileiras.SILENT,
            "E   tileiras failed without a reason on add_kernel for sm_121 (-O3): exit st",
        ),
    ],
)
@pytest.mark.parametrize("gate", ["compile", "static", "correct"])
def test_a_compiler_that_crashes_is_told_as_such_by_each_gate(
    no_gpu, tmp_path, monkeypatch, gate, script, said
):
    fake_tileiras.install(monkeypatch, tmp_path, script)
    result = no_gpu.run(
        "--arch", "sm_121", "-k", "n1000 and not nan", "--junit-xml=junit.xml", gates=f"cutile_{gate}"
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert said in text
    assert "tried: --gpu-name sm_121 -O3 --lineinfo" in text
    assert "does not compile" not in text
    assert "Traceback" not in text
    assert ("interpreted, its results are right" in text) == (gate == "correct")
    result.stdout.fnmatch_lines(["add *n1000 *compiler at fault"])
    assert f"cutile.{gate}.reason" in (junit := (no_gpu.path / "junit.xml").read_text())
    assert 'value="compiler-fault"' in junit


def test_one_gate_alone_tells_of_a_compiler_that_crashes(no_gpu, tmp_path, monkeypatch):
    fake_tileiras.install(monkeypatch, tmp_path, fake_tileiras.SEGV)
    result = no_gpu.run("--arch", "sm_121", "-rs", gates="cutile_compile or cutile_static or cutile_correct")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*not-measured (not-compiled): tileiras is at fault, see the gate compile*"])
    result.stdout.no_fnmatch_line("*does not compile*")
