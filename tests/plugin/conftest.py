"""An inner project with a declared kernel in plain torch and a timer that a file drives: no GPU needed."""

import contextlib
import json
import sys
import textwrap
from typing import ClassVar

import pytest

# pytester forgets modules that an inner run imported first, and torch cannot be imported twice.
import torch._dynamo  # noqa: F401

import cuda.tile  # noqa: F401  isort: skip

with contextlib.suppress(ModuleNotFoundError):  # it can, but its plugin would do so in each run
    import hypothesis  # noqa: F401

TIMER = '''
import json
import pathlib

import pytest_cutile
from pytest_cutile.gates.speed import measure_again
from pytest_cutile.plugin import session_of
from pytest_cutile.pytest_parts.fresh_process import FreshProcesses
from pytest_cutile.session import Asked
from pytest_cutile.speed.measure.blocks import PLACEMENTS
from pytest_cutile.speed.measure.call import MeasurementFailed

HERE = pathlib.Path(__file__).parent


class FileTimer(pytest_cutile.Timer):
    """Plays the times in times.json, one entry per measurement: a number, a list of samples, or a word."""

    device = pytest_cutile.Device(
        arch="sm_90", name="NVIDIA H200", uuid="GPU-0", torch_device="cpu", max_sm_clock_mhz=1980.0
    )

    def __init__(self):
        self.calls = 0

    def time_block(self, launches):
        for launch in launches:
            launch()
        state = json.loads((HERE / "times.json").read_text())
        times = state["times"]
        value = times[min(self.calls // PLACEMENTS, len(times) - 1)]
        self.calls += 1
        if value == "crash":
            raise ZeroDivisionError("a bug in the timer")
        if value == "error":
            raise pytest_cutile.TimingError("the launch cannot be captured")
        if isinstance(value, list):
            return [[float(item) for item in value]] + [[50.0]] * (len(launches) - 1)
        samples = [value * (1 + 0.002 * (i % 5 - 2)) for i in range(20)]
        others = [[state["interleaved_us"]] * 20] * (len(launches) - 1)
        return [samples, *others]

    def reference_workload(self, bound):
        state = json.loads((HERE / "times.json").read_text())
        if not state["reference_workload"]:
            return None
        return pytest_cutile.ReferenceWorkload(name="a workload", launch=int)

    def environment(self):
        return json.loads((HERE / "times.json").read_text())["environment"]

    def problems(self):
        return json.loads((HERE / "times.json").read_text())["problems"]


def pytest_cutile_make_timer(config):
    return FileTimer()
'''

IN_THIS_PROCESS = """

def measure_here(fresh, requests, processes):
    session = session_of(fresh._config)

    def measure(request):
        try:
            return measure_again(session, request.case, Asked(nodeid=request.case.nodeid, revision=request.revision, sustained=request.sustained))
        except MeasurementFailed as error:
            return error

    return [{request.key: measure(request) for request in requests} for _ in range(processes)]


FreshProcesses.__call__ = measure_here
"""
"""Further measurements without further processes: the tests of the rule need none."""

KERNEL = """
import pytest_cutile


def scale(x):
    return x * 2


def inputs(make_tensor, *, n):
    return (make_tensor((n,), "float32"),)


SPEC = pytest_cutile.KernelSpec(
    name="scale",
    launch=scale,
    reference=lambda x: x * 2,
    inputs=inputs,
    work=lambda n: pytest_cutile.Work(bytes=1e8),
    cases=[pytest_cutile.Case(name="n8", params={"n": 8})],
)
"""


@pytest.fixture(autouse=True)
def no_worker(monkeypatch) -> None:
    """What a test runs is no worker of pytest-xdist, also where the test itself is run by one.

    Runs in this process, and processes that it starts, would inherit these variables: pytest-benchmark
    measures nothing where it sees them.
    """
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_stale_bytecode(monkeypatch) -> None:
    """Runs in this process leave no bytecode of files that a test changes again within the same second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


class Project:
    """A project under test: files, the timer's state, and a way to run it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.baseline = self.path / "baselines" / "sm_90-nvidia-h200.json"
        pytester.makeconftest(TIMER + IN_THIS_PROCESS)
        pytester.makeini("[pytest]\ncutile_kernels = mykernels\nfilterwarnings = error\n")
        (self.path / "mykernels").mkdir()
        (self.path / "mykernels" / "__init__.py").touch()
        self.kernel(KERNEL)
        self.times(40.0)

    def kernel(self, text: str, name: str = "scale") -> None:
        """Write the module of a kernel."""
        (self.path / "mykernels" / f"{name}.py").write_text(textwrap.dedent(text))

    def times(
        self, *times, environment=None, problems=(), reference_workload=False, interleaved_us=50.0
    ) -> None:
        """Set what the timer returns, one entry per measurement."""
        state = {
            "times": times,
            "reference_workload": reference_workload,
            "interleaved_us": interleaved_us,
            "environment": environment or {"driver": "580.1", "tileiras": "13.4.92"},
            "problems": list(problems),
        }
        (self.path / "times.json").write_text(json.dumps(state))

    def run(self, *args: str, gates: str = "cutile_correct or cutile_speed") -> pytest.RunResult:
        """Run pytest on the declared kernels' GPU gates; the timer stands in for a GPU."""
        selection = ("-m", gates) if gates else ()
        return self.pytester.runpytest_inprocess(*selection, *args)

    def record(self, us: float = 40.0) -> None:
        """Record a baseline of `us` microseconds."""
        self.times(us)
        self.run("--update-baselines").assert_outcomes(passed=2)


@pytest.fixture
def project(pytester) -> Project:
    return Project(pytester)


# -- one real kernel, compiled by the real compiler ---------------------------------------------------

PRODUCT = """
import cuda.tile as ct

import pytest_cutile

TILE_M, TILE_N, TILE_K = 64, 64, 32
HINTS = {}


@ct.kernel
def mm_kernel(A, B, C, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), dtype=ct.float32)
    for k in range(ct.cdiv(A.shape[1], TK)):
        a = ct.load(A, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(B, (k, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(a, b, acc)
    ct.store(C, (i, j), acc.astype(C.dtype))


def mm(a, b):
    import torch

    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    grid = (ct.cdiv(a.shape[0], TILE_M), ct.cdiv(b.shape[1], TILE_N))
    kernel = mm_kernel.replace_hints(**HINTS)
    ct.launch(torch.cuda.current_stream(), grid, kernel, (a, b, c, TILE_M, TILE_N, TILE_K))
    return c


def inputs(make_tensor, *, n):
    return make_tensor((n, n), "float16"), make_tensor((n, n), "float16")


SPEC = pytest_cutile.KernelSpec(
    name="mm",
    launch=mm,
    reference=lambda a, b: a @ b,
    inputs=inputs,
    reduction=lambda n: n,
    cases=[pytest_cutile.Case(name="n256", params={"n": 256})],
)
"""


class Static:
    """A project with one real kernel, and ways to change its text."""

    _recorded: ClassVar[dict[tuple[str, ...], str]] = {}
    """The first baselines, by the texts of a project's files: each takes seconds to compile."""

    def __init__(self, project) -> None:
        self.project = project
        self.file = project.path / "mykernels" / "mm.py"
        self.baseline = project.path / "baselines" / "sm_90-static.json"
        self.text = textwrap.dedent(PRODUCT)
        (project.path / "conftest.py").unlink()
        (project.path / "mykernels" / "scale.py").unlink()
        ini = (project.path / "tox.ini").read_text()
        (project.path / "tox.ini").write_text(f"{ini}\ncutile_arch = sm_90\n")
        self.change()

    def change(self, *pairs: tuple[str, str]) -> None:
        """Write the kernel with each old text replaced by the new one."""
        text = self.text
        for old, new in pairs:
            assert text.count(old) >= 1, old
            text = text.replace(old, new)
        self.file.write_text(text)

    def run(self, *args: str, gates: str = "cutile_static"):
        return self.project.run(*args, gates=gates)

    def record(self) -> None:
        """Record baselines; the first ones of a project are the same in any folder, and are recorded once."""
        files = [*sorted((self.project.path / "mykernels").glob("*.py")), self.project.path / "tox.ini"]
        texts = tuple(file.read_text() for file in files)
        first = not self.baseline.exists()
        if first and texts in self._recorded:
            self.baseline.parent.mkdir(exist_ok=True)
            self.baseline.write_text(self._recorded[texts])
            return
        self.run("--update-baselines")
        recorded = self.baseline.read_text()
        if first:
            self._recorded[texts] = recorded

    def entry(self):
        return json.loads(self.baseline.read_text())["entries"]["mm[n256]"]

    def edit_baseline(self, edit) -> None:
        data = json.loads(self.baseline.read_text())
        edit(data["entries"]["mm[n256]"])
        self.baseline.write_text(json.dumps(data))

    def line_of(self, text: str) -> int:
        lines = self.file.read_text().splitlines()
        return next(number for number, line in enumerate(lines, start=1) if text in line)


@pytest.fixture
def static(project, monkeypatch) -> Static:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Static(project)
