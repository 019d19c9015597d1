"""pytest-timeout and `pytest.exit` in a kernel's code, and what interrupts a run, end it as they say."""

import pytest

from tests.plugin.conftest import KERNEL
from tests.plugin.forked import run_forked
from tests.plugin.test_compile_gate import ADD

# -- pytest.exit --------------------------------------------------------------------------------------

EXIT = '__import__("pytest").exit("stop now", returncode=7)'
STOPS = {
    "launcher": ("return x * 2\n", f"return {EXIT}\n"),
    "reference": ("reference=lambda x: x * 2", f"reference=lambda x: {EXIT}"),
    "inputs": ('return (make_tensor((n,), "float32"),)', f"return {EXIT}"),
    "work": ("work=lambda n: pytest_cutile.Work(bytes=1e8)", f"work=lambda n: {EXIT}"),
}
AFTER = "def test_after():\n    raise AssertionError('the run went on')\n"


def stopped(result) -> None:
    """Assert that a run ended as `EXIT` says."""
    assert result.ret == 7
    text = result.stdout.str() + result.stderr.str()
    assert "Exit: stop now" in text
    assert "the run went on" not in text


@pytest.mark.parametrize("where", ["launcher", "reference", "inputs"])
def test_pytest_exit_stops_the_gate_correct(project, where):
    project.kernel(KERNEL.replace(*STOPS[where]))
    project.pytester.makepyfile(test_after=AFTER)
    gates = "cutile_correct or not (cutile_compile or cutile_static)"
    stopped(project.run("mykernels", "test_after.py", gates=gates))


@pytest.mark.parametrize("where", ["launcher", "reference", "inputs", "work"])
def test_pytest_exit_stops_the_gate_speed(project, where):
    project.kernel(KERNEL.replace(*STOPS[where]))
    stopped(project.run(gates="cutile_speed"))


@pytest.mark.parametrize("gate", ["compile", "static", "correct"])
@pytest.mark.parametrize("where", ["launcher", "inputs"])
def test_pytest_exit_stops_what_is_traced_or_interpreted(without_gpu, gate, where):
    without_gpu.kernel(ADD, name="add")
    lines = {
        "launcher": ("def add(a, b):\n", f"def add(a, b):\n    {EXIT}\n"),
        "inputs": ("inputs=lambda make_tensor, n: ", f"inputs=lambda make_tensor, n: {EXIT} or "),
    }
    without_gpu.edit(*lines[where], "add")
    stopped(without_gpu.run(gates=f"cutile_{gate}"))


def test_pytest_exit_in_a_search_is_no_refusal(project):
    pytest.importorskip("hypothesis")
    project.kernel(KERNEL.replace(*STOPS["inputs"]))
    stopped(project.run("--search", "5", gates="cutile_search"))


# -- Ctrl-C while modules are imported ---------------------------------------------------------------

CTRL_C = """
import os, signal, time

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
os.kill(os.getpid(), signal.SIGINT)
time.sleep(5)
"""


@pytest.mark.parametrize("text", ["raise KeyboardInterrupt", CTRL_C])
@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("options", [(), ("--update-baselines",)])
def test_an_interrupt_while_modules_are_imported_ends_the_run(project, text, others, options):
    project.kernel(text, name="scale" if not others else "second")
    project.kernel("raise SystemExit('imported after the interrupt')", name="third")
    result = run_forked(project.pytester, *options)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*! KeyboardInterrupt !*"])
    assert "declares SPEC" not in result.stdout.str() + result.stderr.str()


# -- pytest-timeout ----------------------------------------------------------------------------------

HANDLER = """
import signal, sys, types

# As pytest-timeout, whose module's name tells its failure from other ones.
pytest_timeout = types.ModuleType("pytest_timeout")
exec(
    "import pytest\\n"
    "def handler(signum, frame):\\n"
    "    __tracebackhide__ = True\\n"
    "    pytest.fail('Timeout (>0.1s) from pytest-timeout.')\\n",
    pytest_timeout.__dict__,
)
signal.signal(signal.SIGALRM, pytest_timeout.handler)

def strike():
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    __import__("time").sleep(5)  # the line that is struck
"""


@pytest.mark.parametrize("where", ["launcher", "reference"])
def test_a_timeout_is_shown_as_one_where_it_struck(project, where):
    old, new = STOPS[where]
    project.kernel(HANDLER + KERNEL.replace(old, new.replace(EXIT, "strike()")))
    result = project.run("--kernel-json=run.json", gates="cutile_correct or cutile_speed")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            '*__import__("time").sleep(5)  # the line that is struck',
            "E       Failed: Timeout (>0.1s) from pytest-timeout.",
            "*scale.py:*: Failed",
            "scale *n8 *timed out*",
            "not measured: 1 speed: its result could not be checked*",
        ]
    )
    assert "RuntimeError" not in result.stdout.str()


@pytest.mark.parametrize("gate", ["speed", "compile", "static"])
def test_a_timeout_under_each_gate_has_a_row(project, gate):
    project.kernel(HANDLER + KERNEL)
    wait = {
        "speed": "pytest_cutile.gates.speed.gate.measure_case",
        "compile": "pytest_cutile.tile.compiler.compilations.Compilations.result",
        "static": "pytest_cutile.gates.static.compiled_facts",
    }
    project.conftest(
        f"""
        def strike(*_, **__):
            __import__("mykernels.scale").scale.strike()

        def pytest_configure(config):
            patched = pytest.MonkeyPatch()
            patched.setattr("{wait[gate]}", strike)
            config.add_cleanup(patched.undo)
        """
    )
    result = project.run("--arch", "sm_90", gates=f"cutile_{gate}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Failed: Timeout (>0.1s) from pytest-timeout.", "scale *n8 *timed out*"])


def test_pytest_timeout_itself(project):
    pytest.importorskip("pytest_timeout")
    project.kernel(KERNEL.replace("return x * 2\n", "return __import__('time').sleep(5)\n"))
    result = project.run("--timeout=0.2", "--timeout-method=signal", gates="cutile_correct")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*Failed: Timeout (>0.2s) from pytest-timeout.", "*scale.py:*: Failed", "scale *n8 *timed out*"]
    )
