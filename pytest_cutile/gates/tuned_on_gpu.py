"""Checks what a launcher chooses on a GPU, and on request whatever it may choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_cutile.gates.tuned import CheckedConfigurations, ConfigurationOutcome, outcome_of
from pytest_cutile.tile.compiler.trace.observing import observed
from pytest_cutile.timing.gpu.context import breaks_the_context

if TYPE_CHECKING:
    from pytest_cutile.correctness.report import CheckReport

_KEPT = "the launcher keeps an earlier choice, and did not search again"


def check_on_gpu(check: Callable[[], CheckReport], arch: str, *, every: bool) -> CheckReport:
    """Make a check on a GPU; with `every`, also with each configuration that its launcher may choose.

    Raises what the check raises, and what is wrong with the first wrong configuration.
    """
    with observed(arch) as tuning:
        report = check()
    searches = [replace(search, timed=True) for search in tuning.found()]
    checked = CheckedConfigurations()
    for search in searches if every else ():
        for text in search.others:
            with observed(arch, choice=text) as forced:
                try:
                    check()
                except Exception as error:
                    if breaks_the_context(error):
                        error.add_note(f"with {text}, which the launcher chooses from")
                        raise
                    checked.outcomes[text] = outcome_of(error)
                    continue
            is_forced = any(other.chosen == text for other in forced.found())
            checked.outcomes[text] = (
                ConfigurationOutcome() if is_forced else ConfigurationOutcome(unchecked=_KEPT)
            )
    return checked.told(report, searches)
