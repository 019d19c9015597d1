"""What every gate is: a question about a kernel's case, and the tasks that ask it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_cutile.words.input_names import NORMAL

if TYPE_CHECKING:
    from pytest_cutile.gates.session import Session
    from pytest_cutile.words.spec import Case, KernelSpec


@dataclass(frozen=True, kw_only=True)
class Task:
    """One gate's question about one case of a declared kernel."""

    gate: str
    spec: KernelSpec
    case: Case
    arch: str
    """Architecture under test."""
    module: str
    """Name of the module that declares the kernel."""
    inputs: str = NORMAL
    """Name of the inputs: "normal", or one of the spec's `defined_inputs`."""
    suffix: str = ""
    """What follows the case's name in the test's id: the architecture, or the inputs."""

    @property
    def case_name(self) -> str:
        """The case's name with that of its inputs: "bf16-4096x8192-tiny"."""
        return self.case.name if self.inputs == NORMAL else f"{self.case.name}-{self.inputs}"

    @property
    def key(self) -> str:
        """The case as baselines and messages name it: "softmax[bf16-4096x8192]"."""
        return f"{self.spec.name}[{self.case_name}]"

    @property
    def compiled(self) -> tuple[str, str, str]:
        """Kernel, case and architecture: what is compiled, whatever the gate and the inputs."""
        return self.spec.name, self.case.name, self.arch


@dataclass(frozen=True, kw_only=True)
class RunningTest:
    """The running test of a task, as far as a gate needs to know it."""

    nodeid: str
    """Its id: in commands, and the seed of its inputs."""
    publish: Callable[[Any], None] = lambda _: None
    """Takes a `Measurement` for pytest-benchmark's table, if that is installed."""


class Gate(ABC):
    """One question. A gate owns what it accumulates over a run; `gates.REGISTRY` names its class."""

    has_inputs: ClassVar[bool] = True
    """Whether it depends on the values of inputs: then the command that repeats a test names their seed."""
    measures: ClassVar[bool] = False
    """Whether its tests measure launches: alone on the GPU, and for pytest-benchmark's table."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name

    def tasks(self, spec: KernelSpec, case: Case, module: str) -> Iterable[Task]:
        """Return what the gate asks about a case: by default one task, for the GPU's architecture."""
        yield Task(gate=self.name, spec=spec, case=case, arch=self.session.target.gpu_arch, module=module)

    def is_forked(self, task: Task) -> bool:
        """Say whether the task runs launch code on the CPU: then its test is run in a fork of the process."""
        del task
        return False

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Start what all selected tasks need, so that every core has work. Errors wait for their task."""
        del tasks

    @abstractmethod
    def run(self, task: Task, test: RunningTest) -> None:
        """Answer the question: add a result to `session.results`, then raise what fails or skips the test.

        The summary and all reports show results alone: what was not measured needs one, too.

        Raises:
            GateFailed: with the message of the failure.
            GateSkipped: it cannot be answered here.
        """

    def finish(self) -> list[str]:
        """Return remarks for the summary, when all tests have run."""
        return []
