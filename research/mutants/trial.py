"""One mutant tried in this process: by the gate `correct` as users run it, and by others' tolerances."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.correctness.check import KernelMismatch, run_check
from pytest_cutile.tile.tensors.dtypes import format_of
from pytest_cutile.tile.tensors.rounding import round_to
from pytest_cutile.words import spec as spec_module
from research.mutants.mutant import Mutant, plant
from research.mutants.schemes import SCHEMES, as_eager
from tools.gpu_runs.gpu_state import raise_if_broken, release_memory, use_one_of
from tools.gpu_runs.inputs import make_arguments
from tools.gpu_runs.processes import Handler

if TYPE_CHECKING:
    import torch

    from pytest_cutile.words.spec import Case, KernelSpec

INI = "[pytest]\ncutile_kernels = kernels\n"
FOUND = "found.json"
LINES = 3
"""Of a failure, kept."""
BROKE = "it broke the GPU's context"
GATE = "the gate"
"""All that `pytest -m cutile_correct` does: inputs, guards, comparison."""
COMPARISON = "its comparison"
"""The gate's comparison alone, of the outputs that the other schemes get."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to try."""

    kernel: str
    """The kernel whose cases are run."""
    mutant: Mutant | None
    """The planted bug; None for the kernel as it is."""
    folder: str
    """An empty folder for the package with the bug, and for what was found (`FOUND`)."""
    arch: str | None
    """Architecture to interpret for; None runs on the GPU."""
    cases: tuple[str, ...]
    """Names of the cases; all that are not timed, if empty."""
    timed: bool = False
    """Whether the cases that are timed are run instead: they are large."""
    gate_only: bool = False
    """Whether nobody asks what other schemes say."""
    shares: int = spec_module.SHARES
    """How many cases share the named inputs."""


def start_trying(number: int, *, devices: Sequence[int]) -> Handler:
    """Prepare a process that tries mutants, on one of `devices`, or interpreted if there are none."""
    use_one_of(devices, number)
    return partial(_try, {})


def _try(expected: dict[tuple[str, str], Expected], trial: Trial) -> dict[str, Any]:
    """Return what was found: "schemes", by scheme and case None or what a failure said, and "digests".

    Args:
        expected: what the kernels of this process should compute, by kernel and case; filled here.
        trial: what to try.
    """
    folder = Path(trial.folder)
    (folder / "pytest.ini").write_text(INI, encoding="utf-8")
    spec_module.SHARES = trial.shares
    plant(trial.mutant, folder)
    findings: dict[str, Any] = {"digests": {}, "schemes": {name: {} for name in (*SCHEMES, COMPARISON, GATE)}}
    device = "cpu" if trial.arch is not None else "cuda"
    if not trial.gate_only:
        # First without any guard: what breaks the GPU's context would fail in any test.
        with _imported(folder):
            _judge_outputs(trial, expected, findings)
        _save(folder, findings)
        raise_if_broken(device, BROKE)
    with _imported(folder):
        findings["schemes"][GATE] = _run_gate(trial, folder)
    _save(folder, findings)
    raise_if_broken(device, BROKE)
    release_memory()
    return findings


def _save(folder: Path, findings: Mapping[str, Any]) -> None:
    (folder / FOUND).write_text(json.dumps(findings), encoding="utf-8")


@contextlib.contextmanager
def _imported(folder: Path) -> Iterator[None]:
    """Make `folder`'s package `kernels` the one that is imported inside."""
    _forget_kernels()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget_kernels()


def _forget_kernels() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernels"]:
        del sys.modules[name]
    importlib.invalidate_caches()


# -- the gate ---------------------------------------------------------------------------------------


class _Watching:
    """A pytest plugin: selects cases, and takes down what became of them."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._cases: dict[str, str] = {}
        """The case of each test, by the test's id."""
        self.outcomes: dict[str, str | None] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        """Leave the trial's cases."""
        items[:] = [item for item in items if _is_asked(self._trial, item.task.case)]
        self._cases = {item.nodeid: item.task.case.name for item in items}
        if self._trial.arch is not None:
            from pytest_cutile.pytest_parts.run import session_of

            # That the real compiler takes it is not the question, and takes longer than all the rest.
            session_of(config).__dict__["compiler"] = _NoCompiler()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down the outcome of a case; one that fails with any of its inputs has failed."""
        name = self._cases[report.nodeid]
        if report.when == "call" and not report.skipped and self.outcomes.get(name) is None:
            self.outcomes[name] = None if report.passed else _first_lines(_message(report))


class _NoCompiler:
    """Takes the place of the real compiler."""

    def submit(self, job: object) -> Future[None]:
        """Return what is done already."""
        del job
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def close(self) -> None:
        """Do nothing."""


def _run_gate(trial: Trial, folder: Path) -> dict[str, str | None]:
    """Run the gate `correct` on the package in `folder`, as its author would."""
    command = [
        *("-q", "-p", "no:cacheprovider", f"--rootdir={folder}", "-c", f"{folder}/pytest.ini"),
        *("-m", "cutile_correct", "--arch", trial.arch or "native"),
        # One failure answers what is asked of the gate alone; the case's other inputs take as long again.
        *(("-x",) if trial.gate_only else ()),
        f"{folder}/kernels/{trial.kernel}.py",
    ]
    watching = _Watching(trial)
    with (folder / "pytest.log").open("w") as log, contextlib.redirect_stdout(log):
        status = pytest.main(command, plugins=[watching])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {status!r}:\n{(folder / 'pytest.log').read_text()[-2000:]}")
    return watching.outcomes


def _is_asked(trial: Trial, case: Case) -> bool:
    return case.name in trial.cases if trial.cases else case.speed == trial.timed


def _message(report: pytest.TestReport) -> str:
    """Return a failure's message, without a traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.longreprtext if crash is None else f"{crash.message}"


def _described(error: BaseException) -> str:
    kind = type(error).__name__
    return f"{error}" if kind in ("Failed", "KernelMismatch") else f"{kind}: {error}"


def _first_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[:LINES])


# -- other schemes ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a case should compute."""

    exact: tuple[torch.Tensor, ...]
    """Its outputs in float64."""
    eager: tuple[torch.Tensor, ...] | None
    """What PyTorch makes of them in the inputs' dtype; None if it cannot."""


def _judge_outputs(
    trial: Trial, expected: dict[tuple[str, str], Expected], findings: dict[str, dict[str, Any]]
) -> None:
    """Launch without any guard, as others' tests do, and judge the outputs by every scheme."""
    spec: KernelSpec = importlib.import_module(f"kernels.{trial.kernel}").SPEC
    with _device(trial):
        for case in spec.cases:
            if _is_asked(trial, case) and (trial.arch is None or case.runs_on(trial.arch)):
                _judge_case(trial, spec, case, expected, findings)


@contextlib.contextmanager
def _device(trial: Trial) -> Iterator[None]:
    """Run launches on the GPU, or interpret them as a GPU would do them, which checks nothing.

    Interpreted, memory that nobody has written is zero.
    """
    if trial.arch is None:
        yield
        return
    from pytest_cutile.interpreter import Options, Run
    from pytest_cutile.tile.compiler.trace.launches import pretend_gpu

    unchecked = Options(check_races=False, check_uninitialized=False, check_tiles=False, poison_padding=False)
    with pretend_gpu(trial.arch, "cpu", run=Run(trial.arch, unchecked).launch):
        yield


def _judge_case(
    trial: Trial,
    spec: KernelSpec,
    case: Case,
    expected: dict[tuple[str, str], Expected],
    findings: dict[str, dict[str, Any]],
) -> None:
    from pytest_cutile.tile.tensors.trees import map_tensors, named_tensors

    schemes = findings["schemes"]
    try:
        args, kwargs = _arguments(trial, spec, case)
        outputs = spec.launch(*args, **kwargs)
        tensors = [tensor for _, tensor in named_tensors(outputs, "")]
        findings["digests"][case.name] = _digest(tensors)
    except Exception as error:  # noqa: BLE001 - whatever a bug does: any test would have failed
        findings["digests"][case.name] = ""
        for name in (*SCHEMES, COMPARISON):
            schemes[name][case.name] = _first_lines(_described(error))
        return
    args, kwargs = _arguments(trial, spec, case)  # the launch may have changed them
    key = (trial.kernel, case.name)
    if key not in expected:
        expected[key] = _expect(spec, args, kwargs)
    own = expected[key]
    rounded = [_rounded(y, out) for out, y in zip(tensors, own.exact, strict=True)]
    for name, passes in SCHEMES.items():
        schemes[name][case.name] = None if passes(tensors, rounded, own.eager) else "failed"
    if trial.timed:  # it takes as long as the gate
        return

    @functools.wraps(spec.launch)
    def computed(*_: Any, **__: Any) -> Any:
        return map_tensors(lambda tensor: tensor.clone(), outputs)

    options = replace(spec.check_options(case), mutates=(), independent=None)
    try:
        run_check(computed, args, kwargs, reference=spec.reference, options=options)
    except KernelMismatch as error:
        schemes[COMPARISON][case.name] = _first_lines(_described(error))
    else:
        schemes[COMPARISON][case.name] = None


def _arguments(trial: Trial, spec: KernelSpec, case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make a case's arguments, those that the gate makes."""
    seed_text = f"kernels/{trial.kernel}.py::correct[{case.name}]"
    return make_arguments(spec, case, device="cuda", seed_text=seed_text)


def _expect(spec: KernelSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expected:
    from pytest_cutile.tile.tensors.trees import map_tensors, named_tensors

    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.dtype.is_floating_point else tensor.clone()

    def tensors(tree: Any) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for _, tensor in named_tensors(tree, ""))

    exact = tensors(spec.reference(*map_tensors(doubled, args), **map_tensors(doubled, kwargs)))
    own_args, own_kwargs = as_eager((args, kwargs))
    try:
        eager = tensors(spec.reference(*own_args, **own_kwargs))
    except RuntimeError:  # PyTorch has not every operator for every dtype
        eager = None
    return Expected(exact=exact, eager=eager)


def _rounded(y: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return exact values in the dtype of an output; 8-bit floats saturate."""
    target = format_of(like.dtype)
    if target is None:
        return y.to(like.device)
    return round_to(y, target, saturate=target.saturates).to(like.device)


def _digest(tensors: Sequence[torch.Tensor]) -> str:
    """Return a hash of the bits of tensors."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()
