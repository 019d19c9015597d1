"""The effect that a session has on all cases of a stratum."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from pytest_cutile.quantities import format_change
from pytest_cutile.speed.comparisons import Comparison, StoredComparison
from pytest_cutile.speed.context import SpeedContext
from pytest_cutile.speed.decide import NO_SESSION_EFFECT, BaselineLogTime, SessionEffect, session_effect_of
from pytest_cutile.speed.measure.timing import Measurement
from pytest_cutile.speed.pending import PendingCase, Stratum


class SessionEffects:
    """The session effect of each stratum, from what this process and other workers screened."""

    def __init__(self, context: SpeedContext) -> None:
        self._context = context
        self._screened: dict[Stratum, list[tuple[float, BaselineLogTime]]] = defaultdict(list)
        self._effects: dict[Stratum, SessionEffect] = {}
        self.screenings: dict[str, dict[str, Any]] = {}
        """What was screened against stored runs, by key, in plain built-in types for other workers."""
        self.other_workers: Callable[[], Sequence[dict[str, Any]]] = tuple
        """Returns the screenings of other workers; waits for them."""

    def add(self, key: str, comparison: Comparison | None, measurement: Measurement) -> None:
        if not isinstance(comparison, StoredComparison):
            return
        log_time = comparison.log_time(measurement)
        stratum = Stratum(measurement.bound, comparison.other_gpu)
        self._screened[stratum].append((log_time, comparison.baseline))
        self.screenings[key] = {
            "key": key,
            "stratum": asdict(stratum),
            "gpu": measurement.device.uuid,
            "log_time": log_time,
            "baseline": asdict(comparison.baseline),
        }

    def estimate(self, pending: Iterable[PendingCase]) -> None:
        """Estimate the effect in each stratum; wait for other workers only if a pending case needs it."""
        compared = [case for case in pending if isinstance(case.comparison, StoredComparison)]
        if compared:
            self._add_other_workers(compared[0].screening.device.uuid)
        for stratum, screened in self._screened.items():
            self._effects[stratum] = session_effect_of(
                screened,
                self._context.stored_runs.noise(stratum.bound),
                self._context.settings.rule,
                other_gpu=stratum.other_gpu,
            )

    def _add_other_workers(self, gpu_uuid: str) -> None:
        for screening in self.other_workers():
            if screening["gpu"] == gpu_uuid and screening["key"] not in self.screenings:
                baseline = BaselineLogTime(**screening["baseline"])
                self._screened[Stratum(**screening["stratum"])].append((screening["log_time"], baseline))

    @property
    def strata(self) -> list[Stratum]:
        return [*self._effects]

    def of(self, stratum: Stratum) -> SessionEffect:
        return self._effects.get(stratum, NO_SESSION_EFFECT)

    def of_case(self, case: PendingCase) -> SessionEffect:
        return self.of(case.stratum)

    def attribute_to_code(self, stratum: Stratum) -> None:
        """Subtract nothing from a stratum: its sentinel cases have shown that the code is slower."""
        self._effects[stratum] = replace(self.of(stratum), slower=True)

    def remark(self, stratum: Stratum, cleared: Sequence[str]) -> str:
        """Return what was subtracted from a stratum, or why nothing was; empty if it is negligible."""
        effect = self.of(stratum)
        shift = format_change(math.expm1(effect.shift))
        where = ", compared with other GPUs' runs," if stratum.other_gpu else ""
        cases = f"{effect.cases} cases limited by {stratum.bound}{where}"
        shown = f"session effect: {cases} are {shift} in the median"
        if effect.faster:
            return f"{shown}: most have become faster, which is no session effect; nothing was subtracted"
        if abs(effect.removed) <= self._context.settings.rule.least:
            return ""
        verb = "are" if len(cleared) > 1 else "is"
        why = (
            f"{' and '.join(cleared)} {verb} no slower than the baseline kernel"
            if cleared
            else "not confirmed by baseline kernels"
        )
        return f"{shown}; this was subtracted from each of them ({why})"
