"""`--arch`: spellings, defaults, errors, and conftests that have an `--arch` of their own."""

import pytest

from tests.plugin.forked import run_forked

THEIRS = """
import pytest

def pytest_addoption(parser):
    try:
        parser.addoption("--arch", type=str, default="{default}", help="theirs")
        parser.addoption("--quick-run", action="store_true", default=False)
    except ValueError:
        pass

@pytest.fixture
def quick_run(request):
    return request.config.getoption("--quick-run")
"""

SHOWS_ARCH = """
def test_arch(arch):
    print("ARCH", arch)
"""


@pytest.fixture
def plain(pytester):
    """A project without declared kernels, on a machine without a GPU."""
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    pytester.makepyfile(SHOWS_ARCH)
    return pytester


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("spelling", ["sm_90", "sm90", "SM_90", "90"])
@pytest.mark.parametrize("form", ["separate", "joined"])
def test_every_spelling_is_one_architecture(plain, spelling, form):
    args = ("--arch", spelling) if form == "separate" else (f"--arch={spelling}",)
    result = run_forked(plain, *args, "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*ARCH sm_90*"])


def test_a_test_with_the_fixture_runs_for_each_of_several_architectures(plain):
    result = run_forked(plain, "--arch", "sm_90,SM_121,sm90", "-s", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_arch[[]sm_90[]]*", "*test_arch[[]sm_121[]]*"])


def test_all_means_all_that_the_compiler_has(plain):
    from pytest_cutile.tile.compiler.toolchain import supported_architectures

    plain.runpytest_inprocess("--arch", "all").assert_outcomes(passed=len(supported_architectures()))


def test_the_default_without_a_gpu_is_the_ini_option(plain):
    run_forked(plain, "-s").stdout.fnmatch_lines(["*ARCH sm_121*"])
    run_forked(plain, "-s", "-o", "cutile_arch=sm_100").stdout.fnmatch_lines(["*ARCH sm_100*"])


def test_the_default_with_a_gpu_is_its_own(project):
    project.pytester.makepyfile(SHOWS_ARCH)
    result = project.run("-s", "test_the_default_with_a_gpu_is_its_own.py", gates="")
    result.stdout.fnmatch_lines(["*ARCH sm_90*"])


def test_a_gpu_runs_only_what_was_asked_for(project):
    result = project.run("--arch", "sm_121", "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*not-measured (other-arch): the GPU at hand is NVIDIA H200 (sm_90)*"])
    project.run("--arch", "sm_121,sm_90").assert_outcomes(passed=2)
    project.run("--arch", "native").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hopper", "*--arch: 'hopper' names no GPU architecture*installed tileiras has sm_80,*sm_121*"),
        ("H100", "*--arch: 'H100' names no GPU architecture (expected sm_90)*"),
        ("sm_90,sm_", "*--arch: 'sm_' names no GPU architecture*"),
        ("sm_70", "*--arch: the installed tileiras cannot compile for sm_70; it has sm_80,*"),
        ("", "*--arch: no architecture is named*"),
        ("native", "*--arch: native, but there is no GPU: *"),
    ],
)
def test_an_unknown_or_unsupported_architecture_is_a_usage_error(plain, value, message):
    result = plain.runpytest_inprocess("--arch", value)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_wrong_ini_option_is_a_usage_error_too(project):
    (project.path / "conftest.py").unlink()
    result = project.run("-o", "cutile_arch=sm_7")
    assert result.ret != 0
    assert (
        "ini option cutile_arch: 'sm_7' names no GPU architecture"
        in result.stdout.str() + result.stderr.str()
    )


def test_help_shows_the_options_in_groups(plain):
    result = plain.runpytest_inprocess("--help")
    result.stdout.fnmatch_lines(
        [
            "cuTile kernels: what to run:",
            "  --changed-only *",
            "  --arch=ARCH*",
            "cuTile kernels: correctness:",
            "  --correct-on=*",
            "cuTile kernels: baselines and speed:",
            "  --perf-strict *",
            "cuTile kernels: reports:",
            "  --kernel-summary=*",
        ]
    )


def test_the_conftests_of_testpaths_are_found_although_an_architecture_is_given(pytester):
    pytester.makeini("[pytest]\ntestpaths = checks\n")
    checks = pytester.mkdir("checks")
    (checks / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--mine')\n")
    (checks / "test_one.py").write_text(
        "def test_one(request): assert request.config.getoption('--mine') == 'x'\n"
    )
    pytester.runpytest_inprocess("--arch", "sm_90", "--mine=x").assert_outcomes(passed=1)


class TestAConftestWithItsOwnArch:
    def test_theirs_wins_and_its_value_is_used(self, plain):
        plain.makeconftest(THEIRS.format(default="sm90"))
        result = run_forked(plain, "--arch", "SM_100", "-s")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*ARCH sm_100*"])

    def test_its_default_is_used(self, plain):
        plain.makeconftest(THEIRS.format(default="sm103"))
        run_forked(plain, "-s").stdout.fnmatch_lines(["*ARCH sm_103*"])

    def test_its_other_options_survive(self, plain):
        plain.makeconftest(THEIRS.format(default="sm90"))
        plain.makepyfile("def test_quick(quick_run): assert quick_run\n")
        plain.runpytest_inprocess("--quick-run").assert_outcomes(passed=1)
        plain.runpytest_inprocess("--quick-run", "--arch", "sm90").assert_outcomes(passed=1)

    def test_in_a_folder_that_pytest_looks_into_late(self, plain):
        late = plain.mkdir("late")
        (late / "conftest.py").write_text(THEIRS.format(default="sm90"))
        (late / "test_late.py").write_text("def test_late(quick_run): assert not quick_run\n")
        plain.runpytest_inprocess().assert_outcomes(passed=2)

    def test_its_own_arch_fixture_stays_its_own(self, plain):
        fixture = (
            "\n@pytest.fixture\ndef arch(request):\n    return request.config.getoption('--arch').upper()\n"
        )
        plain.makeconftest(THEIRS.format(default="sm90") + fixture)
        result = run_forked(plain, "--arch", "sm90,sm121", "-s")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*ARCH SM90,SM121*"])

    def test_a_value_that_names_no_gpu_disturbs_nothing_until_a_gate_needs_one(self, plain):
        plain.makeconftest(THEIRS.format(default="resnet50"))
        plain.makepyfile(
            test_theirs="def test_theirs(request): assert request.config.getoption('--arch') == 'vgg'\n"
        )
        result = plain.runpytest_inprocess("--arch", "vgg", "test_theirs.py")
        result.assert_outcomes(passed=1)
        result = plain.runpytest_inprocess("--arch", "vgg")
        result.assert_outcomes(passed=1, errors=1)
        result.stdout.fnmatch_lines(["*--arch vgg: this option belongs to another plugin or conftest*"])

    @pytest.mark.parametrize(
        ("options", "value"),
        [("choices=['ampere', 'hopper']", "ampere"), ("type=int", "90"), ("action='append'", "sm90")],
    )
    def test_with_values_of_any_form(self, plain, options, value):
        plain.makeconftest(f"def pytest_addoption(parser): parser.addoption('--arch', {options})\n")
        plain.makepyfile(test_theirs="def test_theirs(request): assert request.config.getoption('--arch')\n")
        plain.runpytest_inprocess("--arch", value, "test_theirs.py").assert_outcomes(passed=1)


@pytest.mark.parametrize("expression", ["cutile_sped", "cutile_sped or cutile_compile"])
def test_a_marker_that_nobody_has_is_a_usage_error(project, expression):
    result = project.run("-m", expression, gates="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the marker 'cutile_sped' is unknown: did you mean 'cutile_speed'?*"])
