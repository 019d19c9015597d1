"""What the tuner tries: `python -m tools.tune_kernels studies.sawtooth.suite` decides whether blocks turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from studies.running.attention import case
from studies.sawtooth import kernel as MODULE  # noqa: F401, N812 - the tools read it
from studies.sawtooth.kernel import SawtoothConfig, choose_config

CASES = tuple(case(length, causal=causal) for length, causal in product((16384, 65536), (False, True)))


def configs(arch: str, **params: Any) -> Iterator[SawtoothConfig]:
    """Yield what is worth trying for a case on `arch`: both directions, and more heads at a time."""
    base = choose_config(arch)
    for turning, heads_together in product((False, True), (1, 4) if params["causal"] else (1,)):
        yield replace(base, turning=turning, heads_together=heads_together)
