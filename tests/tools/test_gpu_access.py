"""Access to a shared GPU: timing is exclusive, compiling releases it, and self-tuning peers do both."""

import importlib
import threading
import time
from contextlib import contextmanager

import pytest

from pytest_cutile.timing.gpu.lock import GpuLock
from tools.comparison import gpu_access
from tools.comparison.gpu_access import CutileAccess, GpuAccess, guard_cutile, guard_inductor

# -- access --------------------------------------------------------------------------------------------------


class Recorder:
    """A lock that writes down who has it."""

    def __init__(self):
        self.events = []

    def shared(self):
        return self._held("shared")

    def alone(self):
        return self._held("alone")

    @contextmanager
    def _held(self, how):
        self.events.append(how)
        yield
        self.events.append(f"no longer {how}")


@pytest.fixture
def lock():
    return Recorder()


@pytest.fixture
def access(lock):
    return GpuAccess(lock, lambda: lock.events.append("synchronized"))


def test_access_nests_and_ends_with_what_was_launched(lock, access):
    with access.shared(), access.released(), access.exclusive(), access.shared(), access.released():
        lock.events.append("timing")
    assert lock.events == [
        *("shared", "synchronized", "no longer shared"),
        *("alone", "timing", "synchronized", "no longer alone"),
        *("shared", "synchronized", "no longer shared"),
    ]


def test_threads_of_a_compiler_take_no_access(lock, access):
    def run():
        with access.released():
            lock.events.append("compiled")

    with access.shared():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert lock.events == ["shared", "compiled", "synchronized", "no longer shared"]


@pytest.mark.parametrize("how", ["shared", "exclusive", "released"])
def test_access_ends_with_an_error_even_of_the_gpu(tmp_path, how):
    def broken():
        raise RuntimeError("the GPU is gone")

    access = GpuAccess(GpuLock("GPU-1", folder=tmp_path / "gpus"), broken)
    with pytest.raises(ZeroDivisionError), access.shared(), getattr(access, how)():
        raise ZeroDivisionError
    entered = threading.Event()

    def other():
        with GpuAccess(GpuLock("GPU-1", folder=tmp_path / "gpus"), lambda: None).exclusive():
            entered.set()

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    assert entered.wait(20)
    thread.join()


def test_threads_that_time_exclude_each_other_and_compiling_keeps_nobody_waiting(tmp_path):
    def access():
        return GpuAccess(GpuLock("GPU-1", folder=tmp_path / "gpus"), lambda: None)

    timed = threading.Event()
    timing: list[int] = []

    def time_alone():
        with access().exclusive():
            timing.append(len(timing))
            for _ in range(100):
                time.sleep(0)  # another thread runs, and would come in
            timing.append(len(timing))
        timed.set()

    own = access()
    with own.shared(), own.released():
        threads = [threading.Thread(target=time_alone, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert timed.wait(20)  # while this one compiles
        for thread in threads:
            thread.join()
    assert timing == [*range(6)]


# -- cuTile -----------------------------------------------------------------------------------------


class ToyKernel:
    """A kernel whose launch compiles, the first time."""

    def __init__(self, hints=None):
        self.hints = hints

    def replace_hints(self, **hints):
        return ToyKernel(hints)


@pytest.fixture
def toy(lock, access, monkeypatch):
    """Return a compiler and a tuner that write down what they do, wrapped."""

    def compile_tile(function, options):
        del function
        lock.events.append(f"compile {options}")
        if options == {"n": 2}:
            raise ValueError("too large")
        return options

    def launch(stream, grid, kernel, args):
        wrapped.compile_tile(toy, kernel.hints)
        lock.events.append(f"launch {kernel.hints['n']} on {stream}{grid}{args}")

    def search(space, stream, grid_fn, kernel, args_fn, hints_fn, **options):
        failures = []
        for config in space:
            try:
                launch(stream, grid_fn(config), kernel.replace_hints(**hints_fn(config)), args_fn(config))
            except ValueError as error:
                failures.append(str(error))
        return failures, options

    wrapped = CutileAccess(access, compile_tile, search)
    monkeypatch.setattr("cuda.tile.launch", launch)
    return wrapped


def test_candidates_are_compiled_away_and_launched_alone(lock, access, toy):
    with access.shared():
        lock.events.clear()
        found = toy.search(
            [1, 2],
            "stream",
            lambda n: (n,),
            ToyKernel(),
            lambda n: [n, n],
            lambda n: {"n": n},
            quiet=True,
        )
    # The search meets what did not compile as it would have done.
    assert found == (["too large"], {"quiet": True})
    assert lock.events == [
        *("synchronized", "no longer shared", "compile {'n': 1}", "compile {'n': 2}", "shared"),
        *("synchronized", "no longer shared", "alone", "launch 1 on stream(1,)[1, 1]"),
        *("synchronized", "no longer alone", "shared", "synchronized", "no longer shared"),
    ]


def test_a_launch_beside_others_compiles_away(lock, access, toy):
    with access.shared():
        lock.events.clear()
        assert toy.compile_tile(toy, {"n": 3}) == {"n": 3}
        assert toy.compile_tile(toy, {"n": 3}) == {"n": 3}  # outside of a search nothing is kept
    assert lock.events.count("compile {'n': 3}") == 2
    assert lock.events[:4] == ["synchronized", "no longer shared", "compile {'n': 3}", "shared"]


def test_cutile_asks_the_wrapped_compiler_and_tilegym_the_wrapped_tuner(lock, access, monkeypatch):
    import cuda.tile as ct
    import torch

    from pytest_cutile.tile.compiler.signature import derive_signature

    compiler, tuner = importlib.import_module("cuda.tile._compile"), importlib.import_module("cuda.tile.tune")
    for module, name in ((compiler, "compile_tile"), (tuner, "exhaustive_search")):
        monkeypatch.setattr(module, name, getattr(module, name))  # so that they are put back
    guard_cutile(access)

    @ct.kernel
    def double(x, y):
        ct.store(y, (0,), 2 * ct.load(x, (0,), (16,)))

    vector = torch.zeros(16)
    monkeypatch.setattr(gpu_access.GpuAccess, "_take", lambda _, how: lock.events.append(how or "released"))
    kernel = double.replace_hints(occupancy=ct.ByTarget(sm_90=2))
    signature = derive_signature(kernel, (vector, vector.clone()))
    context = importlib.import_module("cuda.tile._cext").default_tile_context
    cubin, *_ = kernel._compile(signature, context, (9, 0))
    assert cubin
    assert lock.events == ["released", "released"]  # and back to nothing, which it held
    with pytest.raises(ValueError, match="empty"):
        tuner.exhaustive_search([], None, None, kernel, None)


# -- torch.compile ----------------------------------------------------------------------------------


def test_torch_compile_times_alone_and_compiles_away(lock, access, monkeypatch):
    benchmarking = importlib.import_module("torch._inductor.runtime.benchmarking")
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    algorithms = importlib.import_module("torch._inductor.select_algorithm").AlgorithmSelectorCache
    asynchronous = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    monkeypatch.setattr(
        benchmarking.benchmarker, "benchmark_gpu", lambda *_, **__: lock.events.append("timing")
    )
    for owner, name in (
        (heuristics, "benchmark_all_configs"),
        (heuristics, "precompile"),
        (heuristics, "_precompile_config"),
        (algorithms, "autotune"),
        (asynchronous, "wait"),
    ):
        monkeypatch.setattr(owner, name, lambda *_: None)
    monkeypatch.setattr(algorithms, "make_precompile_fn", lambda *_: lambda: lock.events.append("compiling"))
    guard_inductor(access)
    with access.shared():
        algorithms.make_precompile_fn(None)()
        benchmarking.benchmarker.benchmark_gpu(None)
    assert lock.events == [
        *("shared", "synchronized", "no longer shared", "compiling", "shared"),
        *("synchronized", "no longer shared", "alone", "timing", "synchronized", "no longer alone"),
        *("shared", "synchronized", "no longer shared"),
    ]
