"""The files of `tools/suite`, and their cases made into arguments."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

from pytest_cutile.tile.tensors.seeded import MakeTensor, timed_seed
from pytest_cutile.words.spec import Case, KernelSpec
from tools.gpu_runs.inputs import as_arguments

FOLDER = Path(__file__).resolve().parent.parent / "suite"
_NEEDED = {"MODULE": "the kernel's module", "CASES": "what is timed", "configs": "the search space"}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One file of `tools/suite`."""

    name: str
    """What the command line calls it: "softmax", or the whole name of a module that lies elsewhere."""
    module: Any
    """The kernel's module."""
    spec: KernelSpec
    """Its declaration."""
    cases: tuple[Case, ...]
    """What is timed."""
    of_tilegym: frozenset[str]
    """Names of the cases that TileGym's own benchmark runs: those in the suite's `TILEGYM`, or named
    "tilegym-..."."""
    configs: Callable[..., Iterator[Any]]
    """`configs(arch, **params)`: the configurations worth trying for a case."""
    peers: Callable[[Any, Mapping[str, Any]], Mapping[str, Callable[[], object] | str]]
    """`peers(args, params)`: what else computes the same, as closures, or why one is left out of a case."""
    peer_names: tuple[str, ...]
    """Names that `peers` may return for any of the cases, whatever is installed: the suite's `PEERS`."""

    def case(self, name: str) -> Case:
        """Return the case of that name."""
        return next(case for case in self.cases if case.name == name)


def suite_names() -> list[str]:
    """Return the names of all suites."""
    names = (module.name for module in pkgutil.iter_modules([str(FOLDER)]))
    return sorted(name for name in names if not name.startswith("_"))


def load_suite(name: str) -> Suite:
    """Import a suite.

    Args:
        name: "softmax" is `tools.suite.softmax`; a name with a dot is a module's own.

    Raises:
        SystemExit: there is none of that name, or it lacks something; the message says what.
    """
    path = name if "." in name else f"tools.suite.{name}"
    try:
        file = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise SystemExit(f"there is no {path}; there are: {', '.join(suite_names())}") from error
    missing = [f"{key} ({what})" for key, what in _NEEDED.items() if not hasattr(file, key)]
    if missing:
        raise SystemExit(f"{path} does not define {', '.join(missing)}")
    return Suite(
        name=name,
        module=file.MODULE,
        spec=file.MODULE.SPEC,
        cases=tuple(file.CASES),
        configs=file.configs,
        of_tilegym=frozenset(case.name for case in _of_tilegym(file)),
        peers=getattr(file, "peers", lambda args, params: {}),  # noqa: ARG005
        peer_names=tuple(getattr(file, "PEERS", ())),
    )


def _of_tilegym(file: Any) -> Sequence[Case]:
    named = [case for case in file.CASES if case.name.startswith("tilegym-")]
    of_tilegym: Sequence[Case] = getattr(file, "TILEGYM", named)
    return of_tilegym


def select(names: Sequence[str], text: str) -> list[tuple[str, str]]:
    """Return (suite, case) of each case of the suites `names` (all, if none) whose name contains `text`.

    A name may say which cases of its suite: "matmul[fp16-1" takes those that begin so.
    """
    selected = []
    for name in names or suite_names():
        suite, _, start = name.rstrip("]").partition("[")
        selected += [
            (suite, case.name)
            for case in load_suite(suite).cases
            if text in case.name and case.name.startswith(start)
        ]
    return list(dict.fromkeys(selected))


def peer_names(names: Sequence[str]) -> list[str]:
    """Return what the peers of the suites `names` (all, if none) are called, each once."""
    suites = (load_suite(name.partition("[")[0]) for name in names or suite_names())
    return list(dict.fromkeys(peer for suite in suites for peer in suite.peer_names))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A case with its arguments made."""

    suite: Suite
    """Where it comes from."""
    case: Case
    """Which it is."""
    inputs: Any
    """What the spec's `inputs` returned: a tuple, or a dict of keyword arguments."""

    def bind(self, function: Callable[..., Any], **more: Any) -> Callable[[], Any]:
        """Return a function without arguments that calls `function` with the inputs, and `more`."""
        args, kwargs = as_arguments(self.inputs)
        return partial(function, *args, **kwargs, **more)

    def launcher(self, config: Any = None) -> Callable[[], Any]:
        """Return the launch with a configuration; None is the one that the launcher chooses."""
        return self.bind(self.suite.spec.launch, **({} if config is None else {"config": config}))

    def exact(self) -> Any:
        """Return what the reference computes in float64."""
        from pytest_cutile.tile.tensors.trees import map_tensors

        doubles = map_tensors(
            lambda tensor: tensor.double() if tensor.dtype.is_floating_point else tensor, self.inputs
        )
        return Prepared(suite=self.suite, case=self.case, inputs=doubles).bind(self.suite.spec.reference)()


def prepare(suite: str, case: str, device: str, *, arch: str | None = None) -> Prepared:
    """Make a case's arguments on `device`: those that the speed gate times, in every process.

    Raises:
        ValueError: the case does not run on `arch`.
    """
    loaded = load_suite(suite)
    chosen = loaded.case(case)
    if arch is not None and not chosen.runs_on(arch):
        raise ValueError(f"it needs {chosen.min_arch} or newer, and this is {arch}")
    seed = timed_seed(loaded.spec, chosen)
    inputs = loaded.spec.make_inputs(partial(MakeTensor, device=device, seed=seed, signed_rows=False), chosen)
    return Prepared(suite=loaded, case=chosen, inputs=inputs)


@dataclass(kw_only=True)
class Choice:
    """What a launcher asked for a configuration last, and what it got."""

    config: Any = None
    """None if it did not ask."""
    facets: dict[str, Any] | None = None
    """The arguments besides the architecture; None if it did not ask."""
    chooser: str = ""
    """The function: "choose_config"."""
    configs: list[Any] = field(default_factory=list)
    """All that it got, each once."""


@contextmanager
def watched_choice(module: Any) -> Iterator[Choice]:
    """Yield what a kernel's module is asked for configurations inside, and what it answers.

    Those are `choose_config` and other functions `choose_...(arch, ...)` of the module, where they answer
    something: what they ask each other does not count.
    """
    choice = Choice()
    choosers = (
        {
            name: value
            for name, value in vars(module).items()
            if name.startswith("choose_") and inspect.isfunction(value)
            if next(iter(inspect.signature(value).parameters), "") == "arch"
        }
        if inspect.ismodule(module)
        else {}
    )
    depth = 0

    def watch(name: str, choose: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(choose)
        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                config = choose(*args, **kwargs)
            finally:
                depth -= 1
            if depth == 0 and config is not None:
                bound = inspect.signature(choose).bind(*args, **kwargs).arguments
                choice.config, choice.chooser = config, name
                choice.facets = {key: value for key, value in bound.items() if key != "arch"}
                if config not in choice.configs:
                    choice.configs.append(config)
            return config

        return watched

    for name, choose in choosers.items():
        setattr(module, name, watch(name, choose))
    try:
        yield choice
    finally:
        for name, choose in choosers.items():
            setattr(module, name, choose)


def plain_config(config: Any) -> dict[str, Any] | None:
    """Return a configuration as a dict of its fields; None for None."""
    if config is None:
        return None
    return asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)


def difference(config: Mapping[str, Any] | None, committed: Mapping[str, Any] | None) -> str:
    """Return what a configuration has that the committed one has not: "tile_m=64 occupancy=2"."""
    if config is None or config == committed:
        return "as committed"
    base = committed or {}
    return " ".join(
        f"{key}={value}" for key, value in config.items() if key not in base or base[key] != value
    )
