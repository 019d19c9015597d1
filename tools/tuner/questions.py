"""What the launchers ask for the cases that are declared, found out without a GPU."""

from __future__ import annotations

import contextlib

from tools.gpu_runs.suites import Suite, watched_choice
from tools.tuner.config_tables import Question


def declared_questions(suite: Suite, arch: str) -> tuple[list[Question], list[str]]:
    """Return what the launcher of a suite asks for its cases, and the names of those for which it did not.

    The launches are traced: "cuda" tensors have no memory, and nothing runs on a GPU. Where the number of
    multiprocessors counts, it is that of the platform which stands for `arch`.
    """
    from pytest_cutile.gates.declared import compile_case
    from pytest_cutile.tile.compiler import record_launches

    questions, silent = [], []
    for case in {case.name: case for case in (*suite.cases, *suite.spec.cases)}.values():
        if not case.runs_on(arch):
            continue
        # Whatever it raises, values that are not there for instance, it may have asked before.
        with watched_choice(suite.module) as choice, contextlib.suppress(Exception):
            record_launches(compile_case(suite.spec, case, arch).run, arch)
        if choice.facets is None:
            silent.append(case.name)
        else:
            questions.append(
                Question(case=case.name, arch=arch, facets=choice.facets, chooser=choice.chooser)
            )
    return questions, silent
