"""The state of one run that the gates share: architectures, the GPU and its timer, compiler, baselines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_cutile.compile import Compiler, Inspector
from pytest_cutile.core.architectures import ArchitectureError, normalize_architecture
from pytest_cutile.core.baselines import BaselineFile, baseline_path, read_baselines
from pytest_cutile.core.comparisons import StoredRuns
from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.repository import Repository
from pytest_cutile.core.results import GateResult
from pytest_cutile.core.settings import CheckOn, Settings
from pytest_cutile.core.spec import KernelSpec
from pytest_cutile.core.static_baselines import StaticFile, read_static, static_path
from pytest_cutile.core.timing import Device, Timer
from pytest_cutile.core.toolchain import CompilerMissing, supported_architectures
from pytest_cutile.core.verdicts import Reason
from pytest_cutile.gates.duet import Duet
from pytest_cutile.gates.revision import Revision, RevisionError
from pytest_cutile.gpu.lock import GpuLock
from pytest_cutile.gpu.nvml import NoGpuError, find_gpu
from pytest_cutile.gpu.timer import CudaGraphTimer

if TYPE_CHECKING:
    from pytest_cutile.gates.suite import SpeedSuite


class Blocked(Exception):  # noqa: N818 - not an error: the gate has nothing to measure on
    """A gate that needs a GPU cannot run here."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class MeasuredAgain:
    """Takes what a fresh process measures for another one: a line of JSON for each case."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, key: str, found: Mapping[str, object]) -> None:
        """Write what was found of a case at once: the next one may end this process."""
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, **found}) + "\n")


class Engine:
    """Lazily built state of one pytest run. Building it imports neither torch nor cuda.tile."""

    def __init__(
        self,
        settings: Settings,
        *,
        make_timer: Callable[[], Timer | None],
        cache_dir: Path | None,
        progress: Callable[[str], None],
        session: str,
    ) -> None:
        self.settings = settings
        self._make_timer = make_timer
        self._cache_dir = cache_dir
        self.progress = progress
        """Shows what takes time."""
        self.checked: dict[str, Reason | None] = {}
        """What the last check of a case found, by its key: None if it is right, else why it has no speed."""
        self.results: list[GateResult] = []
        """Results of the running test, which its report takes along."""
        self.pictures: list[str] = []
        """SVG documents that show where its errors are; likewise."""
        self.declared: dict[str, tuple[KernelSpec, Path]] = {}
        """Each declared kernel by its name, with its module: names are baseline keys."""
        self.collected_modules: set[Path] = set()
        """Files of the modules of declared kernels that were collected."""
        self.untouched_tests = 0
        """Tests that --changed-only left out."""
        self.bad_declarations = 0
        """Modules whose declarations cannot be gated."""
        self.session = session
        """Name of this run of pytest, the same in all its workers."""
        self.suite: SpeedSuite
        """The cases that were compared with a baseline."""
        path = settings.measured_again
        self.measured_again = MeasuredAgain(path) if path is not None else None
        """In a fresh process that measures for another one and judges nothing: takes the measurements."""
        self._static_baselines: dict[str, StaticFile | None] = {}
        self._revision: Revision | None = None
        self._known_commits: dict[str, str] = {}
        self.unseen: dict[str, None] = {}
        """What could disturb the GPU at hand and is not seen, each thing once."""
        self.gpu_failure: str | None = None
        """Set when a kernel broke the CUDA context: nothing can run on the GPU after that."""

    # -- the GPU --------------------------------------------------------------------------------------

    @cached_property
    def _timer_or_reason(self) -> Timer | str:
        timer = self._make_timer()
        if timer is not None:
            return timer
        try:
            return CudaGraphTimer(find_gpu())
        except NoGpuError as error:
            return str(error)

    @property
    def timer(self) -> Timer:
        """The timer of this run.

        Raises:
            Blocked: there is no GPU.
        """
        if isinstance(self._timer_or_reason, str):
            raise Blocked(Reason.NO_GPU, f"no GPU: {self._timer_or_reason}")
        return self._timer_or_reason

    @property
    def device(self) -> Device | None:
        """The GPU at hand, or None."""
        return None if isinstance(self._timer_or_reason, str) else self._timer_or_reason.device

    def usable_device(self, arch: str) -> Device:
        """Return the GPU if gates for `arch` can run on it.

        Raises:
            Blocked: no GPU, another architecture, torch cannot use it, or its context is broken.
        """
        device = self.timer.device
        if device.arch != arch:
            raise Blocked(Reason.OTHER_ARCH, f"the GPU at hand is {device.name} ({device.arch})")
        if device.torch_device == "cuda":
            self._check_torch()
        if self.gpu_failure is not None:
            raise Blocked(Reason.NO_GPU, f"the GPU is unusable since {self.gpu_failure}")
        return device

    def interprets(self, arch: str) -> bool:
        """Return whether the gate `correct` for `arch` interprets kernels; else it needs a GPU."""
        correct_on = self.settings.interpretation.correct_on
        if correct_on is not CheckOn.AUTO:
            return correct_on is CheckOn.INTERPRETER
        if self.device is None or self.device.arch != arch:
            return True
        if self.device.torch_device != "cuda":
            return False
        try:
            self._check_torch()
        except Blocked:  # a GPU that torch cannot use is none
            return True
        return False

    def _check_torch(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise Blocked(
                Reason.NO_GPU, "torch is not installed (pip install 'pytest-cutile[torch]')"
            ) from error
        if not torch.cuda.is_available():
            build = "a CPU build" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
            raise Blocked(Reason.NO_GPU, f"torch {torch.__version__} ({build}) cannot use the GPU")
        name = torch.cuda.get_device_name(0)
        if not isinstance(self.timer, CudaGraphTimer):
            return
        device = self.timer.device
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)  # torch tells it since 2.4
        if name != device.name or (uuid is not None and f"{uuid}" not in device.uuid):
            raise Blocked(
                Reason.NO_GPU,
                f"the first GPU is {device.name} ({device.uuid}) for NVML and {name} ({uuid}) for CUDA "
                "(another order, MIG, or torch used a GPU before pytest chose one for this worker): set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES to one whole GPU",
            )

    @cached_property
    def gpu_lock(self) -> GpuLock:
        """The lock of the GPU at hand: whoever times has it alone."""
        device = self.timer.device
        return GpuLock(
            device.uuid,
            # The process that started a fresh one holds the lock for it.
            enabled=device.torch_device == "cuda" and self.measured_again is None,
            on_wait=lambda: self.progress(f"waiting for {device.name}, on which another process measures"),
        )

    # -- architectures --------------------------------------------------------------------------------

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """The architectures under test, in the order they were asked for.

        Raises:
            pytest.UsageError: one is unknown to the installed compiler, or "native" with no GPU.
        """
        settings = self.settings
        if settings.foreign_arch is not None:
            raise pytest.UsageError(
                f"--arch {settings.foreign_arch}: this option belongs to another plugin or conftest, and its "
                "value names no GPU architecture; set the ini option cutile_arch, or give e.g. --arch sm_121"
            )
        if settings.asked:
            asked: Iterable[str] = settings.asked
            source = "--arch"
        elif self.device is not None:
            asked, source = ("native",), "the GPU at hand"
        else:
            asked, source = settings.default_arch.split(","), "ini option cutile_arch"
        names: list[str] = []
        for name in asked:
            names += self._expand(name.strip(), source)
        return tuple(dict.fromkeys(names))

    def _expand(self, name: str, source: str) -> list[str]:
        if name == "native":
            if self.device is None:
                raise pytest.UsageError(f"{source}: native, but there is no GPU: {self._timer_or_reason}")
            return [self.device.arch]
        try:
            supported = supported_architectures()
        except CompilerMissing as error:
            if name == "all":
                raise pytest.UsageError(f"{source}: all, but {error}") from error
            supported = ()
        if name == "all":
            return list(supported)
        try:
            canonical = normalize_architecture(name)
        except ArchitectureError as error:
            raise pytest.UsageError(f"{source}: {error}; known: {', '.join(supported)}") from error
        if supported and canonical not in supported:
            raise pytest.UsageError(
                f"{source}: the installed tileiras cannot compile for {canonical}; "
                f"it has {', '.join(supported)}"
            )
        return [canonical]

    @property
    def gpu_arch(self) -> str:
        """The architecture that correct and speed are about: the GPU's if asked for, else the first."""
        if self.device is not None and self.device.arch in self.architectures:
            return self.device.arch
        return self.architectures[0]

    # -- compiler and baselines -----------------------------------------------------------------------

    @cached_property
    def compiler(self) -> Compiler:
        """The compiler service, with as many jobs as this process may use cores."""
        return Compiler(cache_dir=self._cache_dir, jobs=self._jobs, timeout_s=self.settings.compile_timeout_s)

    @cached_property
    def inspector(self) -> Inspector:
        """The service that reads compiled kernels."""
        return Inspector(cache_dir=self._cache_dir, jobs=self._jobs)

    @property
    def _jobs(self) -> int:
        return 1 if self.settings.xdist_worker else len(os.sched_getaffinity(0))

    def close(self) -> None:
        """Stop what nobody waits for any more."""
        if "compiler" in self.__dict__:
            self.compiler.close()
        if "inspector" in self.__dict__:
            self.inspector.close()
        if self._revision is not None:
            self._revision.close()

    @property
    def baseline_file(self) -> Path | None:
        """The baseline file of the GPU at hand; None when nothing is compared."""
        base = self.settings.baseline_path
        device = self.timer.device
        return None if base is None else baseline_path(base, device.arch, device.name)

    @property
    def shown_baseline_file(self) -> str:
        """The baseline file as messages name it: relative to the rootdir where it is inside."""
        path = self.baseline_file
        return "no baseline file" if path is None else self.shown(path)

    def shown(self, path: Path) -> str:
        """Return `path` as messages name it: relative to the rootdir where it is inside."""
        root = self.settings.rootpath
        return str(path.relative_to(root) if path.is_relative_to(root) else path)

    @cached_property
    def baselines(self) -> BaselineFile | None:
        """The baselines of the GPU at hand as they were when the run first needed them.

        Raises:
            BaselineError: the file cannot be used.
        """
        path = self.baseline_file
        return None if path is None else read_baselines(path)

    @cached_property
    def stored_runs(self) -> StoredRuns:
        """The baselines of the GPU at hand as the rule of the speed gate sees them.

        Raises:
            BaselineError: the file cannot be used.
        """
        file = self.baselines
        return StoredRuns(
            {} if file is None else file.entries,
            rule=self.settings.rule,
            platform=find_platform(self.timer.device.name),
        )

    @cached_property
    def duet(self) -> Duet | None:
        """The kernels of the revision to compare with (`--perf-baseline git:REV`); None without one.

        Raises:
            pytest.UsageError: there is no such revision.
        """
        name = self.settings.baseline_revision
        if name is None:
            return None
        try:
            self._revision = Revision(name, rootpath=self.settings.rootpath, cache_dir=self._cache_dir)
        except RevisionError as error:
            raise pytest.UsageError(f"--perf-baseline git:{name}: {error}") from error
        return Duet(self._revision)

    def static_file(self, arch: str) -> Path | None:
        """Return the file of an architecture's static baselines; None when nothing is compared."""
        base = self.settings.baseline_path
        return None if base is None else static_path(base, arch)

    def static_baselines(self, arch: str) -> StaticFile | None:
        """Return an architecture's static baselines as they were when the run first needed them.

        Raises:
            BaselineError: the file cannot be used.
        """
        path = self.static_file(arch)
        if path is not None and arch not in self._static_baselines:
            self._static_baselines[arch] = read_static(path, arch)
        return self._static_baselines.get(arch)

    @cached_property
    def _repository(self) -> Repository | None:
        try:
            return Repository(self.settings.rootpath)
        except RevisionError:
            return None

    def has_commit(self, name: str) -> bool:
        """Return whether git has this commit here, so that its kernels can be measured."""
        return bool(self._commit_of(name))

    def is_at(self, name: str) -> bool:
        """Return whether the checkout under test is this commit, without changes."""
        return self.has_commit(name) and self._commit_of(name) == self.commit

    def _commit_of(self, name: str) -> str:
        """Return the id of what git calls `name`, as short as `commit` is; "" if git has no such commit."""
        if name not in self._known_commits:
            try:
                found = self._repository.commit(name) if self._repository is not None else ""
            except RevisionError:
                found = ""
            self._known_commits[name] = found[:12]
        return self._known_commits[name]

    @cached_property
    def commit(self) -> str:
        """The commit of the checkout under test, with "+" when it has changes; "" outside of git.

        Changed baselines are no change: to record several sessions from one commit is what they are for.
        """
        repository = self._repository
        if repository is None:
            return ""
        try:
            changed = repository.is_changed(self._baselines_of(repository))
            return repository.commit("HEAD")[:12] + ("+" if changed else "")
        except RevisionError:
            return ""

    def _baselines_of(self, repository: Repository) -> Path | None:
        path = self.settings.baseline_path
        return path if path is not None and path.is_relative_to(repository.top) else None
