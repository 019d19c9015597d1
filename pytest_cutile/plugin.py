"""The pytest plugin: hooks and fixtures, thin. Nothing here imports torch or cuda.tile before a gate runs."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile import options
from pytest_cutile.collected import Collected
from pytest_cutile.core.settings import RUN_VARIABLE, Settings
from pytest_cutile.reports import PROPERTY, Results, attach_pictures, gate_message
from pytest_cutile.summary_file import SummaryFile
from pytest_cutile.terminal import Progress, TerminalSummary

if TYPE_CHECKING:
    from pytest_cutile.collection import KernelLocation
    from pytest_cutile.gates.compiling import Compilations
    from pytest_cutile.gates.declared import DeclaredGates
    from pytest_cutile.gates.engine import Engine
    from pytest_cutile.gates.fixtures import CheckKernel, Perf
    from pytest_cutile.gates.interpreting import Interpreting
    from pytest_cutile.gates.open_cases import OpenCase
    from pytest_cutile.gates.static import StaticGate
    from pytest_cutile.gates.suite import Measured, SpeedSuite
    from pytest_cutile.gates.tensors import MakeTensor

_OWN_RUN: pytest.StashKey[bool] = pytest.StashKey()
SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
ENGINE: pytest.StashKey[Engine] = pytest.StashKey()
PROGRESS: pytest.StashKey[Progress] = pytest.StashKey()
COMPILATIONS: pytest.StashKey[Compilations] = pytest.StashKey()
STATIC_GATE: pytest.StashKey[StaticGate] = pytest.StashKey()
SUMMARY_FILE: pytest.StashKey[SummaryFile] = pytest.StashKey()
STARTED: pytest.StashKey[bool] = pytest.StashKey()
MEASURING: pytest.StashKey[int] = pytest.StashKey()
UNTOUCHED: pytest.StashKey[int] = pytest.StashKey()
INTERPRETING: pytest.StashKey[Interpreting] = pytest.StashKey()
SCREENINGS: pytest.StashKey[str] = pytest.StashKey()
_REMARKS = "cutile_remarks"
_SCREENINGS = "cutile_screenings"
_UNTOUCHED = "cutile_untouched"
COLLECTED: pytest.StashKey[Collected] = pytest.StashKey()
LOCATIONS: pytest.StashKey[list[KernelLocation]] = pytest.StashKey()


# -- options and configuration ----------------------------------------------------------------------


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Announce `pytest_cutile_make_timer`."""
    from pytest_cutile import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options, except `--arch`, which waits for the conftests."""
    options.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, Any, Any]:
    """Register `--arch` once it is known that no conftest brings its own."""
    options.hide_arch_from_early_parsing(early_config, parser, args)
    try:
        return (yield)
    finally:
        options.add_arch_option(parser, args)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings, register markers and helpers."""
    for gate, question in (
        ("correct", "compares a kernel with its reference"),
        ("compile", "compiles a kernel for an architecture"),
        ("static", "compares what a kernel was compiled to with its baseline"),
        ("speed", "times a kernel and compares it with its baseline"),
    ):
        config.addinivalue_line("markers", f"cutile_{gate}: {question} (set by pytest-cutile).")
    searches = (
        "cutile_search: searches for cases of a kernel that fail, with --search (set by pytest-cutile)."
    )
    config.addinivalue_line("markers", searches)
    from pytest_cutile.benchmark import NoBenchmark, WithBenchmark

    config.stash[_OWN_RUN] = RUN_VARIABLE not in os.environ
    os.environ.setdefault(RUN_VARIABLE, str(os.getpid()))
    config.stash[SETTINGS] = settings = options.read_settings(config)
    if settings.kernels or settings.asked:
        _choose_gpu(config)
    config.stash[PROGRESS] = Progress(config)
    config.stash[COLLECTED] = Collected()
    if not config.getoption("lf", False):  # that leaves out tests while it collects a file
        config.pluginmanager.register(config.stash[COLLECTED], "cutile-collected")
    specs = [str(spec) for spec in config.getoption("tx", None) or ()]
    elsewhere = any("ssh=" in spec or "chdir=" in spec for spec in specs)  # another GPU, another checkout
    if settings.own_option and not settings.xdist_worker and not elsewhere:
        _ = engine_of(config).architectures  # a wrong --arch is a usage error before anything is collected
    if settings.baseline_revision and not settings.xdist_worker and not elsewhere:
        _ = engine_of(config).duet  # likewise; workers of this machine could only fail
    with_benchmark = config.pluginmanager.hasplugin("benchmark")
    config.pluginmanager.register(WithBenchmark() if with_benchmark else NoBenchmark(), "cutile-benchmark")
    results = Results(xdist_worker=settings.xdist_worker)
    config.pluginmanager.register(results, "cutile-results")
    config.pluginmanager.register(TerminalSummary(settings, results), "cutile-summary")
    if settings.kernel_summary is not None:
        config.stash[SUMMARY_FILE] = summary_file = SummaryFile(settings.kernel_summary, results)
        config.pluginmanager.register(summary_file, "cutile-summary-file")
    if settings.measured_again is None:
        _hold_open_tests(config)
    if settings.sanitize or settings.sanitized:
        _sanitize(config)


def _sanitize(config: pytest.Config) -> None:
    from pytest_cutile.sanitizing import Sanitized, Sanitizing

    sanitized = config.stash[SETTINGS].sanitized
    plugin = Sanitizing(config, engine_of(config)) if sanitized is None else Sanitized(sanitized)
    config.pluginmanager.register(plugin, "cutile-sanitizing")


def _results(config: pytest.Config) -> Results:
    results = config.pluginmanager.get_plugin("cutile-results")
    return results if isinstance(results, Results) else Results(xdist_worker=False)


def _choose_gpu(config: pytest.Config) -> None:
    """Give each worker of pytest-xdist its GPU; workers of a project that gates no kernels keep them all."""
    worker = getattr(config, "workerinput", {})
    number = re.search(r"\d+$", worker.get("workerid", ""))
    if number is not None:
        from pytest_cutile.gpu.nvml import choose_gpu

        choose_gpu(int(number[0]), worker["workercount"])


def _hold_open_tests(config: pytest.Config) -> None:
    from pytest_cutile.held import HeldReports

    def suite() -> SpeedSuite:
        return engine_of(config).suite

    def existing() -> SpeedSuite | None:
        engine = config.stash.get(ENGINE, None)
        return engine.suite if engine is not None else None

    def measure_again(cases: Sequence[OpenCase], revision: str) -> Measured:
        from pytest_cutile.fresh import FreshProcess

        return FreshProcess(config)(cases, revision)

    folder = getattr(config, "workerinput", {}).get(_SCREENINGS)
    screenings = None
    if folder is not None:
        from pytest_cutile.gates.screenings import Screenings

        screenings = Screenings(Path(folder), config.workerinput["workerid"])  # type: ignore[attr-defined]
    held = HeldReports(suite, existing, measure_again, screenings)
    config.pluginmanager.register(held, "cutile-held-reports")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the workers on this machine a folder to tell each other in how fast their cases are."""
    if node.gateway.spec.popen and not node.gateway.spec.chdir:
        stash = node.config.stash
        if SCREENINGS not in stash:
            stash[SCREENINGS] = tempfile.mkdtemp(prefix="pytest-cutile-")
        node.workerinput[_SCREENINGS] = stash[SCREENINGS]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what still compiles, and leave the run."""
    if SCREENINGS in config.stash:
        shutil.rmtree(config.stash[SCREENINGS], ignore_errors=True)
    if config.stash.get(_OWN_RUN, False):
        os.environ.pop(RUN_VARIABLE, None)
    engine = config.stash.get(ENGINE, None)
    if engine is not None:
        engine.close()


def _cache_dir(config: pytest.Config) -> Path | None:
    cache = getattr(config, "cache", None)  # there is none with -p no:cacheprovider
    try:
        return None if cache is None else Path(cache.mkdir("cutile"))
    except OSError:  # cannot be written: compile without a cache
        return None


def engine_of(config: pytest.Config) -> Engine:
    """Return the run's engine; the first call builds it."""
    from pytest_cutile.gates.compiling import Compilations
    from pytest_cutile.gates.engine import Engine
    from pytest_cutile.gates.recording import new_session
    from pytest_cutile.gates.static import StaticGate
    from pytest_cutile.gates.suite import SpeedSuite

    if ENGINE not in config.stash:
        engine = config.stash[ENGINE] = Engine(
            config.stash[SETTINGS],
            make_timer=lambda: config.hook.pytest_cutile_make_timer(config=config),
            cache_dir=_cache_dir(config),
            progress=config.stash[PROGRESS],
            session=new_session(getattr(config, "workerinput", {}).get("testrunuid")),
        )
        config.stash[COMPILATIONS] = compilations = Compilations(engine)
        config.stash[STATIC_GATE] = StaticGate(engine, compilations)
        engine.suite = SpeedSuite(engine, compilations)
        engine.suite.chances.collected = config.stash.get(MEASURING, 0)
    return config.stash[ENGINE]


# -- collection -------------------------------------------------------------------------------------


def _locations(config: pytest.Config) -> list[KernelLocation]:
    if LOCATIONS not in config.stash:
        from pytest_cutile.collection import locate_kernels

        config.stash[LOCATIONS] = locate_kernels(config.stash[SETTINGS].kernels, config.rootpath)
    return config.stash[LOCATIONS]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Collect declared kernels also when `testpaths` does not name them and the user named no path."""
    config = session.config
    settings = config.stash[SETTINGS]
    if not settings.kernels:
        return
    # Here a mistake in the ini file is one usage error; in a collector it would be a traceback.
    _, _ = _locations(config), engine_of(config).architectures
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    given = [Path(config.invocation_params.dir, arg.partition("::")[0]).resolve() for arg in config.args]
    for location in _locations(config):
        if not any(location.path.is_relative_to(path) for path in given):
            config.args.append(str(location.path))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that `--changed-only` need not run; last: only what is selected compiles."""
    settings = config.stash[SETTINGS]
    if not (settings.changed_only or settings.baseline_revision) or settings.measured_again:
        return
    from pytest_cutile.collection import split_untouched
    from pytest_cutile.core.baseline_files import BaselineError
    from pytest_cutile.core.results import Gate
    from pytest_cutile.gates.revision import RevisionError

    engine = engine_of(config)
    worker = getattr(config, "workerinput", {})
    number = re.search(r"\d+$", worker.get("workerid", ""))
    start_at = int(number[0]) / worker["workercount"] % 1 if number is not None else 0.0
    try:
        changed, untouched = split_untouched(
            items,
            config.stash[COMPILATIONS],
            config.stash[STATIC_GATE],
            # What is the same in both revisions is as fast in both: it needs no duet.
            gates=frozenset(Gate) if settings.changed_only else {Gate.SPEED},
            start_at=start_at,
        )
    except (BaselineError, RevisionError, pytest.UsageError) as error:
        if worker:  # an error here would be the worker's end: let the gate say it
            return
        if isinstance(error, pytest.UsageError):
            raise
        option = (
            "--changed-only" if settings.changed_only else f"--perf-baseline git:{settings.baseline_revision}"
        )
        raise pytest.UsageError(f"{option}: {error}") from error
    config.stash[PROGRESS].clear()
    engine.untouched_tests = len(untouched)
    if untouched:
        config.hook.pytest_deselected(items=untouched)
        items[:] = changed


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch over the workers of pytest-xdist, if there are any."""
    plugins = session.config.pluginmanager
    if plugins.hasplugin("dsession"):
        from pytest_cutile.held import LostTests

        plugins.register(LostTests(_results(session.config)), "cutile-lost-tests")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Call it a success when `--changed-only` left everything out; write the summary file."""
    config = session.config
    engine = config.stash.get(ENGINE, None)
    untouched = max(config.stash.get(UNTOUCHED, 0), engine.untouched_tests if engine is not None else 0)
    if engine is not None:
        unseen = [
            f"not seen: {text}: whatever they did to the figures went unnoticed" for text in engine.unseen
        ]
        _results(config).remarks += [*engine.suite.remarks, *unseen]
    if hasattr(config, "workeroutput"):
        config.workeroutput[_UNTOUCHED] = untouched
        config.workeroutput[_REMARKS] = _results(config).remarks
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and untouched:
        session.exitstatus = pytest.ExitCode.OK
    if SUMMARY_FILE in config.stash:
        config.stash[SUMMARY_FILE].write(session, left_out=untouched)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take along what a worker of pytest-xdist left out, and what it remarked."""
    del error
    remarks = _results(node.config).remarks
    remarks += [line for line in getattr(node, "workeroutput", {}).get(_REMARKS, []) if line not in remarks]
    untouched = getattr(node, "workeroutput", {}).get(_UNTOUCHED, 0)
    node.config.stash[UNTOUCHED] = max(untouched, node.config.stash.get(UNTOUCHED, 0))


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say what `--changed-only` left out."""
    engine = config.stash.get(ENGINE, None)
    settings = config.stash[SETTINGS]
    if engine is None or settings.xdist_worker or not engine.untouched_tests:
        return []
    than = f"as of {engine.duet}" if engine.duet is not None else "in the baselines"
    kind = "tests" if settings.changed_only else "speed tests"
    return [f"cutile: {engine.untouched_tests} {kind} of cases left out that compile to the same {than}"]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say with which baselines `--arch all` cannot compare."""
    settings = config.stash[SETTINGS]
    if settings.asked != ("all",) or settings.baseline_path is None or settings.xdist_worker:
        return []
    from pytest_cutile.core.static_baselines import recorded_architectures

    missing = sorted(recorded_architectures(settings.baseline_path) - {*engine_of(config).architectures})
    return [
        f"cutile: not compared: {arch}: it has static baselines, but the installed tileiras lacks it"
        for arch in missing
    ]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to gate nothing: a package in `cutile_kernels` of which no module declares a kernel."""
    config = session.config
    settings = config.stash[SETTINGS]
    if ENGINE in config.stash and COMPILATIONS in config.stash:
        from pytest_cutile.collection import cases_of
        from pytest_cutile.core.results import Gate

        compiled = cases_of(session.items, Gate.COMPILE)
        config.stash[COMPILATIONS].gated = frozenset(case.key for case in compiled)
    from pytest_cutile.held import measures_speed

    config.stash[MEASURING] = measuring = sum(map(measures_speed, session.items))
    if config.stash[MEASURING] and not (settings.kernels or settings.asked):
        _choose_gpu(config)  # before a test uses one
    if ENGINE in config.stash:
        config.stash[ENGINE].suite.chances.collected = config.stash[MEASURING]
    if settings.measured_again is not None or not (settings.kernels or measuring):
        return
    everything = config.args_source is not pytest.Config.ArgsSource.ARGS
    engine = engine_of(config)
    if (
        settings.kernels
        and everything
        and not (engine.declared or engine.bad_declarations or session.testsfailed)
    ):
        raise pytest.UsageError(
            f"ini option cutile_kernels: no module of {', '.join(settings.kernels)} declares SPEC or SPECS "
            "(a pytest_cutile.KernelSpec), so no kernel would be gated"
        )
    from pytest_cutile.collection import collected_all_kernels, stale_entries

    all_kernels = bool(engine.declared) and not engine.bad_declarations and not session.testsfailed
    all_kernels = all_kernels and (everything or collected_all_kernels(engine, _locations(config)))
    _results(config).remarks = stale_entries(engine, config.stash[COLLECTED], all_kernels=all_kernels)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Turn the modules that `cutile_kernels` lists into collectors of declared kernels."""
    config = parent.config
    if file_path.suffix != ".py" or not config.stash[SETTINGS].kernels:
        return None
    for location in _locations(config):
        name = location.module_of(file_path)
        if name is not None:
            from pytest_cutile.collection import KernelModule

            module: KernelModule = KernelModule.from_parent(parent, path=file_path)
            module.engine = engine_of(config)
            module.module_name = name
            module.is_listed = location.path == file_path.resolve()
            return module
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use the fixture `arch` once per architecture, when several were asked for."""
    _interpret_first(metafunc)
    settings = metafunc.config.stash[SETTINGS]
    several = len(settings.asked) > 1 or settings.asked == ("all",)
    if "arch" not in metafunc.fixturenames or not several:
        return
    definitions = getattr(metafunc, "_arg2fixturedefs", {}).get("arch", ())
    if definitions and definitions[-1].baseid == "" and definitions[-1].func.__module__ == __name__:
        metafunc.parametrize("arch", engine_of(metafunc.config).architectures, indirect=True)


def _interpret_first(metafunc: pytest.Metafunc) -> None:
    """Start interpreting before the test's own fixtures are set up: they may make tensors on "cuda"."""
    names, name = metafunc.fixturenames, _cutile_interpreting.__name__
    if name not in names:
        return
    definitions = getattr(metafunc, "_arg2fixturedefs", {})
    names.remove(name)
    own = [each for each in names if not definitions.get(each) or definitions[each][-1].scope == "function"]
    names.insert(names.index(own[0]) if own else len(names), name)


# -- running ----------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Start all compilations of the run before the first one is waited for."""
    stash = item.config.stash
    compiles = item.get_closest_marker("cutile_compile") or item.get_closest_marker("cutile_static")
    if compiles and ENGINE in stash:
        from pytest_cutile.collection import start_compilations

        # A worker does not know which tests it will get.
        if not stash[SETTINGS].xdist_worker and not stash.get(STARTED, False):
            stash[STARTED] = True
            start_compilations(item.session.items, stash[COMPILATIONS], stash[STATIC_GATE])
    try:
        with _gpu_shared(item), _shown(item), _interpreted(item):
            return (yield)
    finally:
        item.config.stash[PROGRESS].clear()


def _interpreted(item: pytest.Item) -> AbstractContextManager[None]:
    """Judge what a test of the user's launches by itself, if that is interpreted."""
    interpreting = item.stash.get(INTERPRETING, None)
    if interpreting is None:
        return nullcontext()
    from pytest_cutile.gates.outcome import LaunchesOutcome

    return LaunchesOutcome(engine_of(item.config), interpreting, item)


def _shown(item: pytest.Item) -> AbstractContextManager[None]:
    """Let through what is printed by a kernel that somebody looks at; a worker has nowhere to print to."""
    settings = item.config.stash[SETTINGS]
    looked_at = settings.interpretation.watch or settings.interpretation.block
    capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
    if not looked_at or settings.xdist_worker or capture is None:
        return nullcontext()
    shown: AbstractContextManager[None] = capture.global_and_fixture_disabled()
    return shown


def _gpu_shared(item: pytest.Item) -> AbstractContextManager[None]:
    """Keep a worker's test off the GPU while another worker times on it; one process alone needs no care."""
    if not item.config.stash[SETTINGS].xdist_worker or not item.config.stash.get(MEASURING, 0):
        return nullcontext()
    engine = engine_of(item.config)
    if engine.device is None:
        return nullcontext()
    compiles = item.get_closest_marker("cutile_compile") or item.get_closest_marker("cutile_static")
    return nullcontext() if compiles else engine.gpu_lock.shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send the gates' results along with the reports, also to xdist's controller."""
    engine = item.config.stash.get(ENGINE, None)
    if engine is not None and engine.results:
        item.user_properties += [(PROPERTY, result.to_dict()) for result in engine.results]
        engine.results.clear()
    report = yield
    if engine is None:
        return report
    from pytest_cutile.gates.outcome import GateFailed

    if report.failed and call.excinfo is not None and isinstance(call.excinfo.value, GateFailed):
        report.longrepr = gate_message(str(call.excinfo.value), item.path)
    if engine.pictures:
        attach_pictures(item.config, report, engine.pictures)
        engine.pictures.clear()
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Name the GPU in pytest-benchmark's files; only where kernels are gated, since asking costs time."""
    settings = config.stash.get(SETTINGS, None)
    if settings is None or not (settings.kernels or settings.asked):
        return
    device = engine_of(config).device
    if device is not None:
        machine_info["gpu"] = {"name": device.name, "arch": device.arch}


# -- fixtures ---------------------------------------------------------------------------------------


def _arch_of(request: pytest.FixtureRequest) -> str:
    """Return the architecture a test is about: its parameter if it has one, else the run's."""
    engine = engine_of(request.config)
    callspec = getattr(request.node, "callspec", None)
    value = callspec.params.get("arch") if callspec is not None else None
    return value if value in engine.architectures else engine.gpu_arch


def _repeat(request: pytest.FixtureRequest) -> str:
    """Return the command that repeats the test, for the message of its failure."""
    from pytest_cutile.repeating import repeat_command

    engine, architecture = engine_of(request.config), _arch_of(request)
    interpreted = engine.interprets(architecture)
    return repeat_command(request.node, engine.settings, architecture, interpreted=interpreted)


@pytest.fixture
def _cutile_interpreting(request: pytest.FixtureRequest) -> Generator[Interpreting | None]:
    """Run what the test launches on the CPU, from before its own fixtures until after them.

    Function-scoped, so that no fixture that outlives the test is set up while a GPU is pretended.
    """
    engine, architecture = engine_of(request.config), _arch_of(request)
    if not engine.interprets(architecture):
        yield None
        return
    from pytest_cutile.gates.engine import Blocked
    from pytest_cutile.gates.interpreting import Interpreting

    interpreting = Interpreting(engine, architecture)
    with ExitStack() as stack:
        try:
            stack.enter_context(interpreting.active())
            request.node.stash[INTERPRETING] = interpreting
        except Blocked:
            pass  # whoever checks a kernel says why
        yield interpreting


@pytest.fixture
def arch(request: pytest.FixtureRequest, _cutile_interpreting: Interpreting | None) -> str:
    """The architecture under test, e.g. "sm_121": the GPU's, or with no GPU the first one asked for."""
    return str(getattr(request, "param", None) or engine_of(request.config).gpu_arch)


@pytest.fixture
def make_tensor(request: pytest.FixtureRequest, _cutile_interpreting: Interpreting | None) -> MakeTensor:
    """`make_tensor(shape, dtype, *, dist="normal", seed=None, strides=None, ...)`, seeded by the test."""
    from pytest_cutile.gates.tensors import MakeTensor
    from pytest_cutile.gpu.tensors import seed_from

    if _cutile_interpreting is not None:
        device = "cuda" if _cutile_interpreting.is_active else "cpu"
    else:
        gpu = engine_of(request.config).device
        device = gpu.torch_device if gpu else "cpu"
    return MakeTensor(device=device, seed=seed_from(request.node.nodeid))


@pytest.fixture
def check_kernel(request: pytest.FixtureRequest, _cutile_interpreting: Interpreting | None) -> CheckKernel:
    """`check_kernel(fn, *args, reference, ...)`: run a launcher under guard, compare it with a reference."""
    from pytest_cutile.gates.fixtures import CheckKernel

    node = request.node
    return CheckKernel(
        engine_of(request.config),
        nodeid=node.nodeid,
        arch=_arch_of(request),
        repeat=_repeat(request),
        interpreting=_cutile_interpreting,
    )


@pytest.fixture
def perf(
    request: pytest.FixtureRequest,
    _cutile_benchmark: Callable[[Any], None],
    _cutile_interpreting: Interpreting | None,
) -> Perf:
    """`perf(fn, *args, flops=None, bytes=None, ...)`: measure a launcher, record it, gate it."""
    from pytest_cutile.gates.fixtures import Perf

    node = request.node
    return Perf(
        engine_of(request.config),
        _cutile_benchmark,
        nodeid=node.nodeid,
        arch=_arch_of(request),
        interpreting=_cutile_interpreting,
    )


@pytest.fixture
def _cutile_gates(request: pytest.FixtureRequest) -> DeclaredGates:
    from pytest_cutile.gates.declared import DeclaredGates

    item = request.node
    return DeclaredGates(
        engine_of(request.config),
        request.config.stash[COMPILATIONS],
        request.config.stash[STATIC_GATE],
        spec=item.spec,
        case=item.case,
        arch=item.arch,
        nodeid=item.nodeid,
        repeat=_repeat(request),
        module=item.module_name,
        inputs=item.inputs,
    )
