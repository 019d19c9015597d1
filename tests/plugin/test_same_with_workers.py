"""With workers of pytest-xdist, each case is compared and judged as with none, in whatever process."""

import json

import pytest

from tests.plugin.conftest import KERNEL
from tests.plugin.forked import run_forked
from tests.plugin.test_compile_gate import ADD

pytestmark = pytest.mark.slow
APART = """
def pytest_collection_modifyitems(items):
    '''The gate correct runs in another worker than the other gates.'''
    for item in items:
        item.add_marker(pytest.mark.xdist_group("correct" if "correct[" in item.name else "others"))
"""
GATES = "cutile_correct or cutile_static or cutile_speed"
WORKERS = ("-n", "2", "--dist", "loadgroup", "-p", "no:benchmark")


def judged(project, *args, gates=GATES):
    """Run pytest; return the counts of outcomes, and what each gate says of each case."""
    result = run_forked(project.pytester, "-m", gates, *args, "--kernel-json=k.json")
    cases = json.loads((project.path / "k.json").read_text())["cases"]
    counts = result.parseoutcomes()
    return {name: counts.get(name, 0) for name in ("passed", "failed", "skipped")}, {
        (case["kernel"], case["name"], one["gate"]): (one["verdict"], one.get("reason"))
        for case in cases
        for one in case["results"]
    }


WRONG = ("return x * 2\n", "return x * 3\n")
RAISING = ("return x * 2\n", "raise KeyError('no such size')\n")
SKIPPING = ("reference=lambda x: x * 2", "reference=lambda x: __import__('pytest').skip('tired')")


@pytest.mark.parametrize("change", [None, WRONG, RAISING, SKIPPING])
def test_speed_where_another_worker_finds_a_wrong_result(project, change):
    project.record(40.0)
    if change:
        project.edit(*change)
    project.conftest(APART)
    gates = "cutile_correct or cutile_speed"
    alone = judged(project, gates=gates)
    assert judged(project, *WORKERS, gates=gates) == alone
    assert alone[0]["failed"] == (change in (WRONG, RAISING))


def test_a_wrong_result_that_only_the_inputs_of_the_gate_correct_show(project):
    """The seed of inputs comes from a test's id."""
    wrong = "return x * 2 if seen(x) else x * 3\n\n\nfirst = []\n\n\ndef seen(x):\n"
    by_value = f"{wrong}    return str(float(x.reshape(-1)[0]))[-1] in '13579'\n"
    project.kernel(KERNEL.replace("return x * 2\n", by_value, 1))
    project.conftest(APART)
    gates = "cutile_correct or cutile_speed"
    assert judged(project, *WORKERS, gates=gates) == judged(project, gates=gates)


@pytest.mark.parametrize("is_wrong", [True, False])
def test_static_where_another_worker_finds_a_wrong_result(without_gpu, is_wrong):
    without_gpu.kernel(ADD.replace("a + b)", "a - b)", 1) if is_wrong else ADD, name="add")
    (without_gpu.path / "conftest.py").write_text(f"import pytest\n{APART}")
    alone = judged(without_gpu)
    assert judged(without_gpu, *WORKERS) == alone
    static = alone[1]["add", "n1000", "static"]
    assert static == (("not-measured", "wrong-result") if is_wrong else ("no-baseline", "no-file"))


@pytest.mark.parametrize("first", [128, 256])
def test_a_second_launch_is_compared_whatever_was_launched_before(without_gpu, first):
    """Both sizes launch the same code; only the smaller one goes wrong, the second time."""
    launcher = """
        add.calls = getattr(add, "calls", 0) + 1
        if a.numel() == 128 and add.calls % 2 == 0:
            c[:] = 0
        return c
    """
    text = ADD.replace("    return c\n", "\n".join(line[4:] for line in launcher.splitlines()) + "\n")
    without_gpu.kernel(text, name="add")
    without_gpu.pytester.makepyfile(
        test_mine=f"""
        import pytest

        from mykernels.add import add

        @pytest.mark.parametrize("n", {[first, 384 - first]})
        def test_add(make_tensor, check_kernel, n):
            a, b = make_tensor((n,), "float16"), make_tensor((n,), "float16")
            add.calls = 0
            check_kernel(add, a, b, reference=lambda a, b: a + b, vary_layout=False)
        """
    )
    result = without_gpu.run("test_mine.py", gates="")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*second launch*", "FAILED test_mine.py::test_add[[]128]*"])
