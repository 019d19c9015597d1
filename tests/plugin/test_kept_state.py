"""Launchers that keep state in their modules: tracing and interpreting leave nothing behind."""

import pytest

KERNELS = """
import cuda.tile as ct, torch
from pytest_cutile import Case, KernelSpec

@ct.kernel
def sum_kernel(X, W, T: ct.Constant[int]):
    x = ct.load(X, (ct.bid(0), ct.bid(1)), (1, T), padding_mode=ct.PaddingMode.ZERO)
    ct.atomic_add(W, ct.bid(0), ct.sum(x))

class Workspace:
    def __init__(self): self.kept = {}

IN_DICT, IN_OBJECT, GLOBAL = {}, Workspace(), None

def from_dict(n, device):
    if n not in IN_DICT: IN_DICT[n] = torch.zeros(n, device=device)
    return IN_DICT[n]

def from_object(n, device):
    return IN_OBJECT.kept.setdefault(n, torch.zeros(n, device=device))

def from_global(n, device):
    global GLOBAL
    if GLOBAL is None: GLOBAL = torch.zeros(n, device=device)
    return GLOBAL

def from_attribute(n, device):
    if not hasattr(from_attribute, "kept"): from_attribute.kept = torch.zeros(n, device=device)
    return from_attribute.kept

def closure():
    kept = []
    def take(n, device):
        if not kept: kept.append(torch.zeros(n, device=device))
        return kept[0]
    return take

def launcher(workspace, *, resets=True):
    def rowsum(x):
        w = workspace(x.shape[0], x.device)
        if resets: w.zero_()
        ct.launch(torch.cuda.current_stream(), (x.shape[0], -(-x.shape[1] // 16)), sum_kernel, (x, w, 16))
        return w.clone()
    return rowsum

def spec(name, launch):
    return KernelSpec(name=name, launch=launch, reference=lambda x: x.sum(1), reduction=lambda m, n: n,
        inputs=lambda make_tensor, m, n: (make_tensor((m, n), "float32"),),
        cases=[Case(name="5x70", params=dict(m=5, n=70), speed=False, named_inputs=())])

WORKSPACES = [from_dict, from_object, from_global, from_attribute, closure()]
SPECS = [spec(f"sum{number}", launcher(one)) for number, one in enumerate(WORKSPACES)]
"""
INI = "[pytest]\npythonpath = .\ncutile_kernels = mine\ncutile_arch = sm_121\n"
TEST = """
import mine

def test_by_fixture(make_tensor, check_kernel):
    x = make_tensor((5, 70), "float32")
    check_kernel(mine.launcher(mine.from_dict), x, reference=lambda x: x.sum(1), reduction=70)
"""


@pytest.fixture
def keeping(pytester):
    pytester.makeini(INI)
    pytester.makepyfile(mine=KERNELS, test_mine=TEST)
    return pytester


@pytest.mark.parametrize("order", [("mine.py", "test_mine.py"), ("test_mine.py", "mine.py")])
def test_whatever_keeps_a_workspace_is_traced_and_checked_in_any_order(keeping, order):
    result = keeping.runpytest_inprocess("--perf-baseline=none", *order)
    result.assert_outcomes(passed=16)


def test_a_workspace_that_is_not_reset_is_found_also_when_it_was_traced_before(keeping):
    wrong = KERNELS.replace("SPECS = [", "SPECS = [spec('wrong', launcher(from_dict, resets=False))] or [")
    keeping.makepyfile(mine=wrong)
    result = keeping.runpytest_inprocess("--perf-baseline=none", "mine.py")
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["FAILED mine.py::correct*5x70* - the second launch*"])


def test_a_launcher_that_ends_its_process_is_one_failed_case(keeping):
    crash = KERNELS + "\nimport os\nSPECS.append(spec('ends', lambda x: os._exit(0)))\n"
    keeping.makepyfile(mine=crash)
    result = keeping.runpytest_inprocess("--perf-baseline=none", "mine.py")
    result.assert_outcomes(passed=15, failed=2, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "E   ends[[]5x70[]]: its process ended with status 0 while its launcher was traced for sm_121",
            "E   ends[[]5x70[]]: its process ended with status 0 while its kernel was interpreted",
        ]
    )


def test_fixtures_of_a_module_are_set_up_once_and_torn_down_here(keeping):
    keeping.makepyfile(
        test_mine="""
        import pathlib, pytest
        LOG = pathlib.Path("log")

        def note(text):
            with LOG.open("a") as file: file.write(text + " ")

        @pytest.fixture(scope="module")
        def shared():
            note("module"); yield; note("end")

        @pytest.fixture
        def own(shared):
            note("own"); yield; note("done")

        @pytest.mark.parametrize("n", [1, 2])
        def test_it(own, make_tensor, n):
            note(f"test{n}")
        """
    )
    keeping.runpytest_inprocess("test_mine.py").assert_outcomes(passed=2)
    assert (keeping.path / "log").read_text().split() == [
        "module",
        "own",
        "test1",
        "done",
        "own",
        "test2",
        "done",
        "end",
    ]


def test_warnings_output_and_xfail_of_a_forked_test_are_reported(keeping):
    keeping.makepyfile(
        test_mine="""
        import warnings, pytest

        def test_warns(make_tensor):
            warnings.warn("careful")

        def test_prints(make_tensor):
            print("printed"); assert False

        @pytest.mark.xfail(strict=True)
        def test_expected(make_tensor):
            assert False
        """
    )
    result = keeping.runpytest_inprocess("test_mine.py", "-W", "default")
    result.assert_outcomes(passed=1, failed=1, xfailed=1, warnings=1)
    result.stdout.fnmatch_lines(["*Captured stdout call*", "printed", "*UserWarning: careful*"])
