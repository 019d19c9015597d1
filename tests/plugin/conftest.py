"""An inner project with a declared kernel in plain torch and a timer that a file drives: no GPU needed."""

import importlib
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

# pytester forgets modules that an inner run imported first: torch cannot be imported twice, and each run
# would import all others anew.
import torch._dynamo  # noqa: F401

import pytest_cutile
from tests.plugin.forked import run_forked
from tests.plugin.warm_python import start_server

import cuda.tile  # noqa: F401  isort: skip

from pytest_cutile.pytest_parts import reporting
from pytest_cutile.pytest_parts.reporting import results_of
from pytest_cutile.words.results import Result
from pytest_cutile.words.verdicts import Verdict

for module in pkgutil.walk_packages(pytest_cutile.__path__, "pytest_cutile."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

ENVIRONMENT = {"driver": "580.1", "tileiras": "13.4.92"}

TIMER = '''
import json
import os
import pathlib

import pytest

import pytest_cutile
from pytest_cutile.gates.speed.gate import measure_requested
from pytest_cutile.plugin import session_of
from pytest_cutile.pytest_parts import fresh_process
from pytest_cutile.timing.measure.blocks import PLACEMENTS
from pytest_cutile.timing.measure.call import MeasurementFailed
from pytest_cutile.words.timing import Block, Skipped, Sustained

HERE = pathlib.Path(__file__).parent


class FileTimer(pytest_cutile.Timer):
    """Plays the times in times.json. Each measurement takes the next entry, and repeats the last one."""

    device = pytest_cutile.Device(
        arch="sm_90", name="NVIDIA H200", uuid="GPU-0", torch_device="cpu", max_sm_clock_mhz=1980.0
    )

    def __init__(self):
        self.blocks = 0

    @property
    def state(self):
        return json.loads((HERE / "times.json").read_text())

    def entry(self, name, block):
        entries = self.state[name]
        return entries[min(block // PLACEMENTS, len(entries) - 1)]

    def time_block(self, launches):
        if launches == [reference_workload]:
            return [[self.state["workload_us"]] * 5]
        for launch in launches:
            launch()
        names = ("burst", "baseline_burst")[: len(launches)]
        lanes = [samples(self.entry(name, self.blocks)) for name in names]
        self.blocks += 1
        return lanes

    def time_sustained(self, launches, *, always=False):
        current = self.entry("sustained", self.blocks - 1)
        if current is None:
            return Skipped(reason="not limited by power", not_limited=True)
        if current == "unknown":
            return Skipped(reason="NVML tells nothing of power")
        block = {"current_us": tuple(samples(current))}
        power = {"current_clock_mhz": 1605.0, "current_watts": 699.0}
        if len(launches) > 1:
            block["baseline_us"] = tuple(samples(self.entry("baseline_sustained", self.blocks - 1)))
            power |= {"baseline_clock_mhz": 1755.0, "baseline_watts": 640.0}
        return Sustained(blocks=(Block(**block),) * 4, **power)

    def reference_workload(self, bound):
        if self.state["workload_us"] is None:
            return None
        return pytest_cutile.ReferenceWorkload(name="a workload", launch=reference_workload)

    def environment(self):
        return self.state["environment"]

    def problems(self):
        return self.state["problems"]


def reference_workload():
    pass


def samples(entry):
    if entry == "crash":
        raise ZeroDivisionError("a bug in the timer")
    if entry == "error":
        raise pytest_cutile.TimingError("the launch cannot be captured")
    if entry == "die":
        os._exit(3)
    if isinstance(entry, list):
        return [float(us) for us in entry]
    return [entry * (1 + 0.002 * (i % 5 - 2)) for i in range(20)]


def pytest_cutile_make_timer(config):
    return FileTimer()
'''

IN_THIS_PROCESS = """

def measure_here(config, cases, processes):
    def measure(pending):
        try:
            return measure_requested(session_of(config), pending.case, pending.request)
        except MeasurementFailed as error:
            return error

    return [{pending.case.key: measure(pending) for pending in cases} for _ in range(processes)]


def pytest_configure(config):
    patched = pytest.MonkeyPatch()
    patched.setattr(fresh_process, "measure_again", lambda _, *asked: measure_here(config, *asked))
    config.add_cleanup(patched.undo)
"""
"""Measure again without further processes: most tests need none."""

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


@pytest.fixture(scope="session")
def warm_python() -> Iterator[str]:
    """A program for `sys.executable` whose processes begin with torch and this package imported."""
    with tempfile.TemporaryDirectory() as folder:
        program, server = start_server(Path(folder))
        yield str(program)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


@pytest.fixture(autouse=True)
def quick_processes(monkeypatch, warm_python) -> None:
    """Processes that a run starts, such as workers of pytest-xdist, need not import torch again."""
    monkeypatch.setattr(sys, "executable", warm_python)


@pytest.fixture(autouse=True)
def no_stale_bytecode(monkeypatch) -> None:
    """Runs in this process leave no bytecode of files that a test changes again within the same second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture(autouse=True)
def checked_reasons(monkeypatch) -> None:
    """Every result in this process has a reason of its gate, and the verdict of its reason."""

    def checked(report: pytest.TestReport) -> list[Result]:
        results = results_of(report)
        for result in results:
            if result.reason is None:
                assert result.verdict is Verdict.PASS, result
                assert result.gate in ("correct", "compile"), result
            else:
                assert result.verdict is result.reason.verdict, result
                assert result.gate in result.reason.gates, result
        return results

    monkeypatch.setattr(reporting, "results_of", checked)


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

    def edit(self, old: str, new: str, name: str = "scale") -> None:
        """Replace text of a kernel's module."""
        file = self.path / "mykernels" / f"{name}.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    def conftest(self, text: str) -> None:
        """Append to the conftest."""
        file = self.path / "conftest.py"
        file.write_text(f"{file.read_text()}\n{textwrap.dedent(text)}\n")

    def times(
        self,
        *burst: object,
        baseline: object = 40.0,
        sustained: object = None,
        baseline_sustained: object = 50.0,
        environment: dict[str, str] | None = None,
        problems: Sequence[str] = (),
        workload_us: float | None = None,
    ) -> None:
        """Set what the timer returns of today's kernel and of the baseline kernel, in both regimes.

        A time is a number, a list of samples, or a word for what goes wrong; a tuple has one for each
        measurement, as `burst` has. Without `sustained`, that regime is skipped, and "unknown" is where
        nothing tells whether power limits the kernel.
        """
        state = {
            "burst": burst,
            "baseline_burst": baseline if isinstance(baseline, tuple) else (baseline,),
            "sustained": sustained if isinstance(sustained, tuple) else (sustained,),
            "baseline_sustained": (baseline_sustained,),
            "environment": environment or ENVIRONMENT,
            "problems": problems,
            "workload_us": workload_us,
        }
        (self.path / "times.json").write_text(json.dumps(state))

    def run(self, *args: str, gates: str = "cutile_correct or cutile_speed") -> pytest.RunResult:
        """Run pytest on the declared kernels' GPU gates; the timer stands in for a GPU."""
        args = ("-m", gates, *args) if gates else args
        has_workers = any(arg.startswith("-n") for arg in args)
        return run_forked(self.pytester, *args) if has_workers else self.pytester.runpytest_inprocess(*args)

    def record(self, *burst: object, args: Sequence[str] = (), **times: Any) -> None:
        """Record a baseline, of 40 us unless times are given."""
        self.times(*(burst or (40.0,)), **times)
        self.run("--update-baselines", *args).assert_outcomes(passed=2)

    @property
    def data(self) -> dict[str, Any]:
        """What the file of baselines holds."""
        data: dict[str, Any] = json.loads(self.baseline.read_text())
        return data

    @property
    def records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self.data["entries"]["scale[n8]"]["records"]
        return records

    def edit_baselines(self, edit) -> None:
        """Change the file of baselines by a function of its data."""
        data = self.data
        edit(data)
        self.baseline.write_text(json.dumps(data))

    def git(self, *args: str) -> str:
        """Run git in the project; return what it prints."""
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", *identity, *args]
        done = subprocess.run(command, cwd=self.path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self) -> str:
        """Commit all files; return the commit's id."""
        if not (self.path / ".git").exists():
            (self.path / ".gitignore").write_text("times.json\n__pycache__\n.pytest_cache\n.benchmarks\n")
            self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-qm", "what there is", "--allow-empty")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def project(pytester) -> Project:
    """A project outside of git: there is no baseline kernel, and stored times decide."""
    return Project(pytester)


@pytest.fixture
def without_gpu(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project without a kernel and without a timer, on a machine without a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (project.path / "conftest.py").unlink()
    (project.path / "mykernels" / "scale.py").unlink()
    project.pytester.syspathinsert()
    return project


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Path:
    """A folder for the project that all tests with `paired` begin with; the first one makes it."""
    folder: Path = tmp_path_factory.mktemp("recorded")
    return folder / "project"


@pytest.fixture
def paired(project: Project, recorded: Path) -> Project:
    """A project with a committed baseline, 40 us in bursts and 50 us sustained, whose kernel has changed."""
    if recorded.exists():
        shutil.copytree(recorded, project.path, dirs_exist_ok=True)
        return project
    project.commit()
    project.record(40.0, sustained=50.0)
    project.commit()
    project.edit("return x * 2", "return x + x")
    shutil.copytree(project.path, recorded)
    return project


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
