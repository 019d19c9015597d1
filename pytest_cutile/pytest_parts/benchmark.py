"""With pytest-benchmark installed, the same samples reach its table, JSON, compare and histogram.

Those of a baseline kernel, interleaved with today's, are a benchmark of their own: "speed[n8] baseline".

Only its public points are used: the marker `benchmark(timer=...)` with a clock that the samples drive,
and `benchmark.pedantic`. Checked with pytest-benchmark 5.1 to 5.3.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from pytest_cutile.words.timing import Measurement

_CLOCK = pytest.StashKey["SampleClock"]()
Publish: TypeAlias = "Callable[[Measurement], None]"


class SampleClock:
    """A clock in seconds that stands still, except that each round moves it by one measured sample."""

    def __init__(self) -> None:
        self._now = 0.0
        self._samples: Iterator[float] = iter(())

    def __call__(self) -> float:
        return self._now

    def publish(self, benchmark: Any, samples_us: Sequence[float]) -> None:
        self._samples = iter(samples_us)
        benchmark.pedantic(self._play, rounds=len(samples_us), iterations=1, warmup_rounds=0)

    def _play(self) -> None:
        self._now += next(self._samples, 0.0) * 1e-6


def takes_samples(config: pytest.Config) -> bool:
    """Return whether pytest-benchmark is there, and keeps samples or skips what has any.

    In workers of pytest-xdist it keeps none, and would warn of its fixture, which only this plugin asks for.
    """
    if not config.pluginmanager.hasplugin("benchmark"):
        return False
    return not hasattr(config, "workerinput") or bool(config.getoption("benchmark_skip"))


class NoBenchmark:
    """Stands in where pytest-benchmark is absent, or keeps nothing."""

    @pytest.fixture
    def _cutile_benchmark(self) -> Publish:
        return lambda _: None


class WithBenchmark:
    """Hooks and the fixture that hand samples to pytest-benchmark."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give each test that measures a clock of its own, before its `benchmark` fixture is set up."""
        for item in items:
            if "_cutile_benchmark" in getattr(item, "fixturenames", ()):
                clock = item.stash[_CLOCK] = SampleClock()
                # Markers do not merge: keep what the closest one says.
                closest = item.get_closest_marker("benchmark")
                options = {**(closest.kwargs if closest else {}), "timer": clock}
                if hasattr(item, "spec"):  # a declared kernel; case names repeat from kernel to kernel
                    options.setdefault("group", item.spec.name)
                item.add_marker(pytest.mark.benchmark(**options), append=False)

    @pytest.fixture
    def _cutile_benchmark(self, request: pytest.FixtureRequest, benchmark: Any) -> Iterator[Publish]:
        clock = request.node.stash[_CLOCK]
        published = False

        def publish(measurement: Measurement) -> None:
            nonlocal published
            if published:  # pytest-benchmark takes one benchmark per test, the first
                return
            published = True
            baseline = copy.copy(benchmark)  # not used yet: a benchmark of its own, of another name
            info = {
                "arch": measurement.device.arch,
                "gpu": measurement.device.name,
                "tflops": measurement.tflops,
                "gb_per_s": measurement.gb_per_s,
                "share_of_limit": measurement.share_of_limit,
                "sustained_us": measurement.sustained_us,
            }
            benchmark.extra_info.update({key: value for key, value in info.items() if value is not None})
            clock.publish(benchmark, measurement.samples_us)
            if measurement.baseline_samples_us:
                baseline.name += " baseline"
                baseline.fullname += " baseline"
                times = {f"{regime}_us": measurement.baseline_us(regime) for regime in measurement.regimes}
                baseline.extra_info = {"arch": info["arch"], "gpu": info["gpu"], **times}
                clock.publish(baseline, measurement.baseline_samples_us)

        yield publish
        if not published:
            # The gate failed before it measured. pytest-benchmark would warn that its fixture was not
            # used, which under `-W error` adds an error to the failure: disabled, it runs and keeps nothing.
            benchmark.disabled = True
            benchmark.pedantic(lambda: None)
