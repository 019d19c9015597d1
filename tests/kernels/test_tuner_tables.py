"""The tables of the kernels: a declared case for every entry, and how the tuner writes entries."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernels._launch import ARCHITECTURES
from pytest_cutile.words.platforms.lookup import representative
from tools.gpu_runs.suites import load_suite, plain_config, suite_names
from tools.tuner.config_source import config_source, is_configuration, rewrite
from tools.tuner.config_tables import Place, Tables, find_place, make_entry, replace_entry
from tools.tuner.questions import declared_questions

COMMENT = "GB10, 2026-12-01, cold L2, interleaved, against the entry before: some case 12.34 us (13.4), more."
OTHERS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_121")
"""In no table, first and last in them, and one of each group between."""


def varied(config):
    """Return a configuration of which as many blocks are started, so that a search finds it as before."""
    name = next(name for name in ("num_worker_warps", "latency", "row_columns") if hasattr(config, name))
    return replace(config, **{name: 16 if getattr(config, name) != 16 else 8})


@cache
def questions_of(name, arch):
    """Return what the declared cases of a kernel ask on `arch`, and which ask nothing."""
    return declared_questions(load_suite(name), arch)


def ask_for(question, arch):
    """Return what a launcher asks on `arch` where it asks `question` on sm_90."""
    platform = representative(arch)
    sms = {"sms": platform.sm_count} if platform and "sms" in question.facets else {}
    return replace(question, arch=arch, facets={**question.facets, **sms})


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_names())
def test_every_entry_is_chosen_by_a_declared_case(name):
    suite = load_suite(name)
    tables = Tables(Path(suite.module.__file__))
    declared = {case.name: case for case in suite.spec.cases}
    questions = [each for each in questions_of(name, "sm_90")[0] if each.case in declared]
    chosen = {
        find_place(tables, ask_for(question, arch))
        for question in questions
        # What is in no table is as on sm_75.
        for arch in (*ARCHITECTURES, "sm_75")
        if declared[question.case].runs_on(arch)
    }
    # Not what others are made of: names that begin with "_", and a configuration that is in no table.
    entries = {
        place
        for place in tables.leaves()
        if is_configuration(tables.entry(place)) and place.path and not place.table.startswith("_")
    }
    assert not entries - chosen


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90", "sm_121"])
@pytest.mark.parametrize("name", suite_names())
def test_every_entry_that_a_case_chooses_can_be_written(name, arch):
    suite = load_suite(name)
    questions, silent = questions_of(name, arch)
    assert not silent
    tables = Tables(Path(suite.module.__file__))
    by_place: dict[Any, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for question in questions:
        place = find_place(tables, question)
        by_place[place][repr(tables.ask(question).config)].append(question)
    everywhere = [replace(question, arch=other) for question in questions for other in OTHERS]
    before = [tables.ask(question) for question in everywhere]
    for place, groups in by_place.items():
        assert isinstance(place, Place)
        tuned = max(groups.values(), key=len)
        config = varied(tables.evaluate(config_source(tables.ask(tuned[0]).config)))
        entry = make_entry(tables, place, tuned[0], config)
        assert entry is not None
        others = [each for each in questions if each not in tuned]
        rewriting = replace_entry(
            tables, place, entry, COMMENT, tuned=[(each, config) for each in tuned], others=others
        )
        assert not rewriting.problem
        assert max(map(len, rewriting.difference())) <= 111
        assert "some case 12.34 us (13.4)" in " ".join(rewriting.text.replace("#", "").split())
        after = Tables(tables.file, rewriting.text)
        for question, old in zip(everywhere, before, strict=True):
            new = after.ask(question)
            if question.arch == arch and question in tuned:
                assert plain_config(new.config) == plain_config(config)
            elif question.arch != arch or old.place != place:
                assert new.plain == old.plain


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_names())
def test_every_entry_of_a_table_can_be_rewritten(name):
    tables = Tables(Path(load_suite(name).module.__file__))
    leaves = tables.leaves()
    for place in leaves:
        mine = any(arch in place.path for arch in ("sm_90", "sm_121"))
        if not mine or place.table == "_UNMEASURED" or not is_configuration(tables.entry(place)):
            continue
        new = varied(tables.entry(place))
        text = rewrite(tables.text, tables.names, place.table, place.path, config_source(new), COMMENT)
        assert Tables(tables.file, text).leaves() == leaves | {place: plain_config(new)}
