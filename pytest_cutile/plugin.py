"""The pytest plugin: hooks and fixtures, thin. Nothing here imports torch or cuda.tile before a gate runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cutile.gates import REGISTRY
from pytest_cutile.pytest_parts.failure import CALLS, show_failure
from pytest_cutile.pytest_parts.forked_tests import FORKED, RunsInFork, is_forked, put_first_of_own
from pytest_cutile.pytest_parts.options import add_options
from pytest_cutile.pytest_parts.options.arch import add_arch_option, hide_arch_from_early_parsing
from pytest_cutile.pytest_parts.options.ini import refuse_unknown_markers
from pytest_cutile.pytest_parts.reporting import PROPERTY, following, without_results
from pytest_cutile.pytest_parts.reproduce import arch_of
from pytest_cutile.pytest_parts.run import RUN, PytestRun, run_of, session_of
from pytest_cutile.pytest_parts.terminal import TerminalSummary
from pytest_cutile.pytest_parts.xdist import Controller, send_to_controller

if TYPE_CHECKING:
    from pytest_cutile.gates.interpreted import Interpreting
    from pytest_cutile.pytest_parts.fixtures import CheckKernel, Perf
    from pytest_cutile.tile.tensors.seeded import MakeTensor

INTERPRETING = "_cutile_interpreting"
NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""Exists where NVIDIA's driver is loaded; to look costs nothing."""
MAX_WORKER_RESTARTS = 200
"""Workers of pytest-xdist that are replaced in one run, unless --max-worker-restart says how many."""


# -- options and configuration ----------------------------------------------------------------------


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_cutile.pytest_parts import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, Any, Any]:
    """Register `--arch` once it is known that no conftest brings its own."""
    hide_arch_from_early_parsing(early_config, parser, args)
    try:
        return (yield)
    finally:
        add_arch_option(parser, args)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let pytest-xdist replace a worker for each kernel that crashes one, not four for each of `-n`."""
    if NVIDIA_DEVICE.exists() and getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = f"{MAX_WORKER_RESTARTS}"


def pytest_configure(config: pytest.Config) -> None:
    for gate in REGISTRY:
        config.addinivalue_line("markers", f"cutile_{gate.name}: {gate.question} (set by pytest-cutile).")
    searches = (
        "cutile_search: searches for cases of a kernel that fail, with --search (set by pytest-cutile)."
    )
    config.addinivalue_line("markers", searches)
    config.stash[RUN] = run = PytestRun(config)
    settings, plugins = run.settings, config.pluginmanager
    if settings.kernels or settings.asked:  # workers of a project that gates no kernels keep all GPUs
        run.choose_gpu()
    if not config.getoption("lf", False):  # that leaves out tests while it collects a file
        plugins.register(run.collected, "cutile-collected")
    _check_early(run)
    from pytest_cutile.pytest_parts.benchmark import NoBenchmark, WithBenchmark, takes_samples

    plugins.register(WithBenchmark() if takes_samples(config) else NoBenchmark(), "cutile-benchmark")
    plugins.register(run.progress, "cutile-status")
    plugins.register(run.results, "cutile-results")
    from pytest_cutile.pytest_parts.gpu_questions import GpuQuestions

    plugins.register(GpuQuestions(run), "cutile-gpu-questions")
    plugins.register(TerminalSummary(settings, run.results), "cutile-summary")
    plugins.register(Controller(run), "cutile-controller")
    if settings.report_paths:
        from pytest_cutile.pytest_parts.report_files import ReportFiles

        plugins.register(ReportFiles(run), "cutile-report-files")
    if NVIDIA_DEVICE.exists():
        from pytest_cutile.pytest_parts.gpu_guard import GpuGuard
        from pytest_cutile.pytest_parts.meeting import worker_ending

        plugins.register(GpuGuard(run), "cutile-gpu-guard")
        if settings.xdist_worker:
            run.ending = worker_ending(config)
    if settings.server_folder is None:
        from pytest_cutile.pytest_parts.deferred import DeferredReports

        plugins.register(DeferredReports(run), "cutile-deferred-reports")
        if settings.changed_only or (settings.baseline_revision and not settings.perf_all):
            from pytest_cutile.pytest_parts.changed_only import ChangedOnly

            plugins.register(ChangedOnly(run), "cutile-changed-only")
    else:
        from pytest_cutile.pytest_parts.measuring_server import MeasuringServer

        plugins.register(MeasuringServer(run, settings.server_folder), "cutile-measuring-server")
    if settings.sanitize or settings.sanitized:
        from pytest_cutile.pytest_parts.sanitizer import Sanitized, Sanitizing

        watched = settings.sanitized
        plugins.register(
            Sanitizing(config, run.session) if watched is None else Sanitized(watched), "cutile-sanitizing"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Leave a process behind that replaces the one that uses the GPU, if that ends within a test."""
    if NVIDIA_DEVICE.exists():
        from pytest_cutile.pytest_parts.supervised import supervise

        supervise(session.config)


def _check_early(run: PytestRun) -> None:
    """Raise usage errors about `--arch` and a revision before anything is collected."""
    settings = run.settings
    specs = [str(spec) for spec in run.config.getoption("tx", None) or ()]
    elsewhere = any("ssh=" in spec or "chdir=" in spec for spec in specs)  # another GPU, another checkout
    if settings.xdist_worker or elsewhere:  # workers of this machine could only fail
        return
    if settings.own_option:
        _ = run.session.target.architectures
    if settings.baseline_revision:
        _ = run.session.revision_kernels


def pytest_unconfigure(config: pytest.Config) -> None:
    if RUN in config.stash:
        run_of(config).close()


# -- collection -------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Collect declared kernels also when `testpaths` does not name them and the user named no path."""
    config, run = session.config, run_of(session.config)
    refuse_unknown_markers(config)
    if not run.settings.kernels:
        return
    # Here a mistake in the ini file is one usage error; in a collector it would be a traceback.
    locations, _ = run.locations, run.session.target.architectures
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    given = [Path(config.invocation_params.dir, arg.partition("::")[0]).resolve() for arg in config.args]
    for location in locations:
        if not any(location.path.is_relative_to(path) for path in given):
            config.args.append(str(location.path))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Turn the modules that `cutile_kernels` lists into collectors of declared kernels."""
    run = run_of(parent.config)
    name_and_listed = run.kernel_module(file_path) if file_path.suffix == ".py" else None
    if name_and_listed is None:
        return None
    from pytest_cutile.pytest_parts.collection import KernelModule

    module: KernelModule = KernelModule.from_parent(parent, path=file_path)
    module.run = run
    module.module_name, module.is_listed = name_and_listed
    return module


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the test functions of a module of kernels that the command line names."""
    if run_of(parent.config).kernel_module(module_path) is None:
        return None
    from pytest_cutile.pytest_parts.collection import TestFunctions

    module: TestFunctions = TestFunctions.from_parent(parent, path=module_path)
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use the fixture `arch` once per architecture, when several were asked for."""
    _interpret_first(metafunc)
    settings = run_of(metafunc.config).settings
    several = len(settings.asked) > 1 or settings.asked == ("all",)
    if "arch" not in metafunc.fixturenames or not several:
        return
    definitions = getattr(metafunc, "_arg2fixturedefs", {}).get("arch", ())
    if definitions and definitions[-1].baseid == "" and definitions[-1].func.__module__ == __name__:
        metafunc.parametrize("arch", session_of(metafunc.config).target.architectures, indirect=True)


def _interpret_first(metafunc: pytest.Metafunc) -> None:
    """Start interpreting before the test's own fixtures are set up: they may make tensors on "cuda"."""
    if INTERPRETING in metafunc.fixturenames:
        definitions = getattr(metafunc, "_arg2fixturedefs", {})
        put_first_of_own(INTERPRETING, metafunc.fixturenames, definitions)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Note that all modules were collected: pytest calls this only then."""
    run_of(config).collected.is_complete = True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the gates what is selected, and say what is not gated any more."""
    from pytest_cutile.pytest_parts.deferred import measures

    run = run_of(session.config)
    if not run.collected.is_complete:  # after Ctrl-C, which an exception of ours would hide
        return
    run.is_measuring = any(map(measures, session.items))
    if run.is_measuring and not (run.settings.kernels or run.settings.asked):
        run.choose_gpu()  # before a test uses one
    if run.settings.kernels or run.is_measuring:
        from pytest_cutile.pytest_parts.collection import finish_collection

        finish_collection(run, session)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say with which baselines `--arch all` cannot compare."""
    run = run_of(config)
    settings = run.settings
    if settings.asked != ("all",) or settings.baseline_path is None or settings.xdist_worker:
        return []
    from pytest_cutile.words.document import printable

    store = run.session.baselines
    recorded = store.static_architectures() if store is not None else set()
    missing = sorted(recorded - {*run.session.target.architectures})
    return [
        f"cutile: not compared: {arch}: it has static baselines, but the installed tileiras lacks it"
        for arch in map(printable, missing)
    ]


# -- running ----------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget what an earlier try of the test has found: plugins run tests again that fail."""
    item.user_properties[:] = without_results(item.user_properties)
    item.stash[CALLS] = {}
    run = run_of(item.config)
    if run.has_session:
        run.session.results.clear()
        run.session.checked.pop(item.nodeid, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Let the gates start what all tests need before the first of them waits."""
    run = run_of(item.config)
    if hasattr(item, "task"):
        from pytest_cutile.pytest_parts.collection import prepare_once

        prepare_once(run, item)
    try:
        with _gpu_shared(item, run), _shown(run), _interpreted(item, run):
            return (yield)
    finally:
        run.progress.over()


def _interpreted(item: pytest.Item, run: PytestRun) -> AbstractContextManager[None]:
    """Judge what a test of the user's launches by itself, if that is interpreted."""
    interpreting = (getattr(item, "funcargs", None) or {}).get(INTERPRETING)
    if interpreting is None or not interpreting.is_active:
        return nullcontext()
    from pytest_cutile.gates.outcome import LaunchesOutcome

    return LaunchesOutcome(run.session, interpreting, item)


def _shown(run: PytestRun) -> AbstractContextManager[None]:
    """Let through what is printed by a kernel that somebody looks at; a worker has nowhere to print to."""
    looked_at = run.settings.interpretation.watch or run.settings.interpretation.block
    capture: Any = run.config.pluginmanager.get_plugin("capturemanager")
    if not looked_at or run.settings.xdist_worker or capture is None:
        return nullcontext()
    shown: AbstractContextManager[None] = capture.global_and_fixture_disabled()
    return shown


def _gpu_shared(item: pytest.Item, run: PytestRun) -> AbstractContextManager[None]:
    """Keep a worker's test function off the GPU while another worker times; one process alone needs no care.

    The gates know when they use the GPU, and wait for it by themselves: not while they compile.
    """
    is_gate = getattr(item, "gate", None) is not None
    if is_gate or not (run.settings.xdist_worker and run.is_measuring) or run.session.gpu.device is None:
        return nullcontext()
    return run.session.gpu.lock.shared()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    run = run_of(item.config)
    if not run.has_session:
        return (yield)
    if is_forked(item, call):
        from pytest_cutile.pytest_parts.isolated import report_of_phase

        return report_of_phase(item, run, (yield))
    session, properties = run.session, item.user_properties
    known = len(properties)
    properties += [(PROPERTY, result.to_builtins()) for result in session.results]
    session.results.clear()
    report = yield
    properties[known:] = following(report, properties[known:])
    report.user_properties = [*properties]
    if report.failed and call.excinfo is not None:
        show_failure(item, report, call.excinfo, session)
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Collect remarks, and call it a success when `--changed-only` left everything out."""
    run = run_of(session.config)
    if run.has_gates:
        run.results.remarks += [line for gate in run.gates.values() for line in gate.finish()]
    if run.has_session:
        run.results.remarks += [
            f"not seen: {text}: whatever they did to the figures went unnoticed"
            for text in run.session.gpu.unseen
        ]
    send_to_controller(run)
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and run.results.left_out:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Name the GPU in pytest-benchmark's files; only where kernels are gated, since asking costs time."""
    run = config.stash.get(RUN, None)
    if run is None or not (run.settings.kernels or run.settings.asked) or run.session.gpu.device is None:
        return
    machine_info["gpu"] = {"name": run.session.gpu.device.name, "arch": run.session.gpu.device.arch}


# -- fixtures ---------------------------------------------------------------------------------------


@pytest.fixture
def _cutile_forked(request: pytest.FixtureRequest) -> None:
    """Run the test in a fork from here on: nothing that its launchers keep is seen by another test."""
    if hasattr(os, "fork") and not run_of(request.config).in_fork:
        from pytest_cutile.pytest_parts.isolated import forget_earlier_try

        forget_earlier_try(request.node)
        raise RunsInFork("in a fork")


@pytest.fixture
def _cutile_interpreting(request: pytest.FixtureRequest) -> Generator[Interpreting | None]:
    """Run what the test launches on the CPU, from before its own fixtures until after them.

    Function-scoped, so that no fixture that outlives the test is set up while a GPU is pretended.
    """
    session = session_of(request.config)
    architecture = arch_of(request.node, session)
    if not session.target.interprets(architecture):
        yield None
        return
    request.getfixturevalue(FORKED)
    from pytest_cutile.gates.interpreted import Interpreting
    from pytest_cutile.words.errors import GateSkipped

    interpreting = Interpreting(session, architecture)
    with ExitStack() as stack:
        with suppress(GateSkipped):  # whoever checks a kernel says why
            stack.enter_context(interpreting.active())
        yield interpreting


@pytest.fixture
def arch(request: pytest.FixtureRequest, _cutile_interpreting: Interpreting | None) -> str:
    """The architecture under test, e.g. "sm_121": the GPU's, or with no GPU the first one asked for."""
    return str(getattr(request, "param", None) or session_of(request.config).target.gpu_arch)


@pytest.fixture
def make_tensor(request: pytest.FixtureRequest, _cutile_interpreting: Interpreting | None) -> MakeTensor:
    """`make_tensor(shape, dtype, *, dist="normal", seed=None, strides=None, ...)`, seeded by the test."""
    from pytest_cutile.tile.tensors.seeded import MakeTensor, seed_from

    if _cutile_interpreting is not None:
        device = "cuda" if _cutile_interpreting.is_active else "cpu"
    else:
        gpu = session_of(request.config).gpu.device
        device = gpu.torch_device if gpu else "cpu"
    return MakeTensor(device=device, seed=seed_from(request.node.nodeid))


@pytest.fixture
def check_kernel(request: pytest.FixtureRequest, _cutile_interpreting: Interpreting | None) -> CheckKernel:
    """`check_kernel(fn, *args, reference, ...)`: run a launcher under guard, compare it with a reference."""
    from pytest_cutile.pytest_parts.fixtures import CheckKernel

    session = session_of(request.config)
    return CheckKernel(
        session=session,
        nodeid=request.node.nodeid,
        arch=arch_of(request.node, session),
        interpreting=_cutile_interpreting,
    )


@pytest.fixture
def perf(
    request: pytest.FixtureRequest,
    _cutile_named: None,
    _cutile_benchmark: Callable[[Any], None],
    _cutile_interpreting: Interpreting | None,
) -> Perf:
    """`perf(fn, *args, flops=None, bytes=None, ...)`: measure a launcher, record it, gate it."""
    from pytest_cutile.gates.speed.gate import suite_of
    from pytest_cutile.pytest_parts.fixtures import Perf

    session = session_of(request.config)
    return Perf(
        session=session,
        suite=suite_of(run_of(request.config).gates),
        nodeid=request.node.nodeid,
        publish=_cutile_benchmark,
        arch=arch_of(request.node, session),
        places=request.node.stash.setdefault(CALLS, {}),
        test_file=request.path,
        interpreting=_cutile_interpreting,
    )


@pytest.fixture
def _cutile_named(request: pytest.FixtureRequest) -> None:
    """Refuse `perf` to a test of which nobody knew in time that its reports may have to wait."""
    from pytest_cutile.pytest_parts.deferred import measures

    if not measures(request.node):
        message = "name perf among the test's arguments: request.getfixturevalue cannot give it"
        pytest.fail(message, pytrace=False)
