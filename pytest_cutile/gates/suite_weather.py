"""What the cases of a run share today: their weather, class by class."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.core.comparisons import StoredComparison
from pytest_cutile.core.report import format_change
from pytest_cutile.core.speed_rule import UNKNOWN_WEATHER, Reference, Weather, weather_of
from pytest_cutile.core.timing import Measurement
from pytest_cutile.gates.open_cases import OpenCase, WeatherClass

if TYPE_CHECKING:
    from pytest_cutile.core.comparisons import Comparison
    from pytest_cutile.gates.engine import Engine


class SuiteWeather:
    """The weather of each class, from the screening of its cases by this process and by other workers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._levels: dict[WeatherClass, list[tuple[float, Reference]]] = defaultdict(list)
        self._found: dict[WeatherClass, Weather] = {}
        self.screened: dict[str, dict[str, Any]] = {}
        """What was screened against stored runs, by key, in plain built-in types for other workers."""
        self.of_others: Callable[[], Sequence[dict[str, Any]]] = tuple
        """Returns what other workers have screened; waits for them."""

    def add(self, key: str, comparison: Comparison | None, measurement: Measurement) -> None:
        """Take the screening of a case along."""
        if not isinstance(comparison, StoredComparison):
            return
        level = comparison.level(measurement)
        kind = WeatherClass(measurement.bound, comparison.other_board)
        self._levels[kind].append((level, comparison.reference))
        self.screened[key] = {
            "key": key,
            "class": asdict(kind),
            "board": measurement.device.uuid,
            "level": level,
            "reference": asdict(comparison.reference),
        }

    def find(self, opened: Sequence[OpenCase]) -> None:
        """Find the weather of each class; with what others have screened, if cases are open that need it."""
        held = [each for each in opened if isinstance(each.comparison, StoredComparison)]
        if held:
            self._hear_others(held[0].first.device.uuid)
        rule = self._engine.settings.rule
        for kind, levels in self._levels.items():
            noise = self._engine.stored_runs.noise(kind.bound)
            self._found[kind] = weather_of(levels, noise, rule, other_board=kind.other_board)

    def _hear_others(self, board: str) -> None:
        """Take along what other workers have screened on the same GPU."""
        for told in self.of_others():
            if told["board"] == board and told["key"] not in self.screened:
                kind = WeatherClass(**told["class"])
                self._levels[kind].append((told["level"], Reference(**told["reference"])))

    @property
    def classes(self) -> list[WeatherClass]:
        """The classes that have been looked at."""
        return [*self._found]

    def of(self, kind: WeatherClass) -> Weather:
        """Return the weather of a class."""
        return self._found.get(kind, UNKNOWN_WEATHER)

    def today(self, each: OpenCase) -> Weather:
        """Return the weather of a case's class."""
        return self.of(each.weather_class)

    def blame_the_code(self, kind: WeatherClass) -> None:
        """Take nothing off a class any more: what its cases share was found out to be their code."""
        self._found[kind] = replace(self.of(kind), slower=True)

    def remark(self, kind: WeatherClass, told: Sequence[str]) -> str:
        """Say what was taken off the cases of a class, or why nothing was; empty if it does not matter.

        Args:
            kind: The class.
            told: Keys of its cases that are no slower than their kernels of then.
        """
        weather = self.of(kind)
        shift = format_change(math.expm1(weather.shift))
        shown = f"weather: the {weather.cases} cases limited by {kind.bound} are {shift} in the median"
        if weather.faster:
            return f"{shown}, more than weather makes them: most have become faster; nothing was taken off"
        if abs(weather.removed) <= self._engine.settings.rule.least:
            return ""
        where = ", on another board than the baselines'" if kind.other_board else ""
        why = (
            f"beside their kernels of then {' and '.join(told)} are not slower"
            if told
            else "nothing else tells"
        )
        return f"{shown}{where}; that was taken off each of them ({why})"
