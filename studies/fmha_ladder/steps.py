"""The steps in their order, and what each is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_cutile import KernelSpec
from studies.fmha_ladder import (
    step01_basic,
    step02_exp2,
    step03_load_order,
    step04_latency,
    step05_occupancy,
    step06_approx_division,
    step07_one_division,
    step08_mask_apart,
    step09_tiles,
    step10_heads_together,
    step11_overlap,
    step12_persistent,
    step13_general,
)
from studies.running.study import Contender


@dataclass(frozen=True, kw_only=True)
class Step:
    """A kernel that differs from the one of an earlier step by one idea."""

    number: int
    title: str
    spec: KernelSpec
    before: int
    """The step that it was made from; 0 for the first one."""

    @property
    def contender(self) -> Contender:
        return Contender(name=f"{self.number} {self.title}", launch=self.spec.launch)


STEPS = tuple(
    Step(number=number, title=title, spec=module.SPEC, before=before)
    for number, (title, module, before) in enumerate(
        [
            ("basic", step01_basic, 0),
            ("exp2", step02_exp2, 1),
            ("load order", step03_load_order, 2),
            ("latency hints", step04_latency, 3),
            ("occupancy", step05_occupancy, 4),
            ("approximate division", step06_approx_division, 5),
            ("one division", step07_one_division, 6),
            ("mask apart", step08_mask_apart, 7),
            ("tiles per architecture", step09_tiles, 8),
            ("heads together", step10_heads_together, 9),
            # Two ideas beside each other: neither pays everywhere, so the last step decides by its tables.
            ("overlap", step11_overlap, 10),
            ("persistent blocks", step12_persistent, 10),
            ("kernels.fmha", step13_general, 10),
        ],
        1,
    )
)


def step(number: int) -> Step:
    return STEPS[number - 1]
