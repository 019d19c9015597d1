"""What tracing a case's launcher leaves: a record, so that launchers can run in forks."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cutile.tile.compiler.cutile import kernel_function
from pytest_cutile.tile.compiler.export import export
from pytest_cutile.tile.compiler.fingerprint import describe_launch
from pytest_cutile.tile.compiler.job import CompileError, CompileJob
from pytest_cutile.tile.compiler.reach import describe
from pytest_cutile.tile.compiler.source import source_digest
from pytest_cutile.tile.compiler.trace.launches import Launch, Recorder, record
from pytest_cutile.tile.compiler.trace.tuning import NoConfigurationWorks
from pytest_cutile.tile.forking import call_in_fork

if TYPE_CHECKING:
    from pytest_cutile.tile.compiler.parameters import LaunchParameters


@dataclass(frozen=True, kw_only=True)
class CompileCase:
    """One declared case for one architecture."""

    kernel: str
    case: str
    arch: str
    run: Callable[[], object]
    """Makes the inputs and calls the launcher, as on a GPU."""
    inputs: Callable[..., object]
    """The declaration's function that makes the inputs."""
    params: Mapping[str, object]
    """What the case says to it."""
    origin: object = None
    """What names it to another process of the run that has collected the same cases; None: nothing does."""
    base: Callable[[], CompileCase | None] | None = None
    """Returns the same case of the revision to compare with, or None if it has none; only for paired runs."""
    choice: str = ""
    """The configuration that a launcher which tunes is to choose; by default the first that works."""

    def choosing(self, choice: str) -> CompileCase:
        """Return the case with a launcher that chooses a configuration."""
        return replace(self, choice=choice)

    @property
    def baseline_key(self) -> str:
        """What tells it apart within an architecture, as baselines name it: "softmax[bf16-4096x8192]"."""
        return f"{self.kernel}[{self.case}]"

    @property
    def labels(self) -> dict[str, Any]:
        return {"key": self.baseline_key, "kernel": self.kernel, "case": self.case, "arch": self.arch}

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it apart within a run."""
        return self.kernel, self.case, self.arch


class KernelFunction(NamedTuple):
    """The function of a kernel, by what is the same in all forks of the process that imported it."""

    file: str
    line: int
    name: str
    address: int
    """Tells it from a function of the same text in another module."""

    @classmethod
    def of(cls, function: FunctionType) -> KernelFunction:
        code = function.__code__
        return cls(code.co_filename, code.co_firstlineno, function.__name__, id(function))


@dataclass(frozen=True, kw_only=True)
class TracedLaunch:
    """One launch of a case, without its objects."""

    job: CompileJob
    grid: tuple[int, ...]
    described: str
    """Grid and arguments as a fingerprint counts them."""
    source: str
    """Digest of the kernel's source, for the arguments of the launch."""
    function: KernelFunction
    parameters: LaunchParameters


@dataclass(frozen=True, kw_only=True)
class TracedConfiguration:
    """One of the configurations that a launcher which tunes chooses from."""

    name: str
    """The configuration in words: "TILE=64, occupancy=2"."""
    described: tuple[str, ...]
    """Grid and arguments of each launch, as a fingerprint counts them."""
    launches: tuple[TracedLaunch, ...] = ()
    """What it launches; nothing if cuda-tile rejects it."""
    rejected: str = ""
    """What cuda-tile says against it."""


@dataclass(frozen=True, kw_only=True)
class TracedCase:
    """What a case's launcher did."""

    launches: tuple[TracedLaunch, ...]
    """None if the launcher tunes and chose what cuda-tile rejects, and others of its configurations work."""
    torch_operations: tuple[str, ...]
    """Each operation of torch with all that its time depends on."""
    torch_bytes: int
    """What these operations have read and written."""
    shared_file: str = ""
    """A file that a revision's launcher imports, and that is the working tree's: git does not track it."""
    declared: tuple[str, ...]
    """Lines about the function that makes the inputs, and about the case's parameters."""
    configurations: tuple[TracedConfiguration, ...] = ()
    """All that a launcher that tunes chooses from."""


def trace_case(case: CompileCase) -> TracedCase:
    """Run a case's launcher as on a GPU, and return what it did.

    What the launcher keeps stays in this process, and is of no use to any other run of it.
    """
    recorder = _recorded(case)
    configurations = tuple(_trace_configurations(recorder.launches, case.arch))
    launches: tuple[TracedLaunch, ...] = ()
    try:
        made = [launch for launch in recorder.launches if not launch.candidate]
        launches = tuple(trace_launch(launch, case.arch) for launch in made)
    except CompileError:
        if case.choice or not any(configuration.launches for configuration in configurations):
            raise
    return TracedCase(
        launches=launches,
        torch_operations=tuple(recorder.operations.texts),
        torch_bytes=recorder.operations.moved_bytes,
        declared=tuple(describe([case.inputs, dict(case.params)])),
        configurations=configurations,
    )


def _recorded(case: CompileCase) -> Recorder:
    try:
        accepts = functools.partial(export, arch=case.arch)
        return record(case.run, case.arch, accepts=accepts, choice=case.choice)
    except NoConfigurationWorks as error:
        if not isinstance(error.__cause__, CompileError):
            raise
        rejected = error.__cause__
    raise rejected  # out here it has no context that leads back to it, so that it can be pickled


def _trace_configurations(launches: Iterable[Launch], arch: str) -> Iterator[TracedConfiguration]:
    """Yield what a launcher tries; the launches of one configuration belong together."""
    by_name: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        if launch.candidate:
            by_name[launch.candidate].append(launch)
    for name, tried in by_name.items():
        configuration = TracedConfiguration(name=name, described=tuple(map(describe_launch, tried)))
        try:
            yield replace(configuration, launches=tuple(trace_launch(launch, arch) for launch in tried))
        except CompileError as error:
            yield replace(configuration, rejected=error.message)


def trace_in_fork(case: CompileCase) -> TracedCase:
    """Do the same in a fork of this process.

    Raises:
        ForkDied: the launcher ended its process.
    """
    return call_in_fork(functools.partial(trace_case, case))


def trace_launch(launch: Launch, arch: str) -> TracedLaunch:
    """Translate the kernel of a launch, and return the record of it.

    Raises:
        CompileError: the kernel's source, or an argument, is rejected.
        CompilerMissing: there is no compiler.
    """
    from pytest_cutile.tile.compiler.parameters import parameters_of  # it imports torch

    return TracedLaunch(
        job=export(launch, arch),
        grid=launch.grid,
        described=describe_launch(launch),
        source=source_digest(launch, arch),
        function=KernelFunction.of(kernel_function(launch.kernel)),
        parameters=parameters_of(launch),
    )
