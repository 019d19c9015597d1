"""Bugs planted in real kernels: the gate `correct` has to see them, interpreted, in one small case each."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from research.mutants.__main__ import TrialResult, report
from research.mutants.corpus import MUTANTS
from research.mutants.mutant import KERNELS, DoesNotApply, Mutant, plant
from research.mutants.trial import GATE
from tools.gpu_runs.tables import aligned

ROOT = Path(__file__).resolve().parent.parent.parent
WITNESSES = [mutant for mutant in MUTANTS if mutant.witness]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_to_the_kernel_as_it_is(mutant):
    text = (KERNELS / mutant.path).read_text()
    changed = mutant.apply(text)
    assert changed != text
    ast.parse(changed)
    assert (KERNELS / f"{mutant.kernel}.py").exists()


def test_names_are_unique_and_every_kernel_has_a_witness():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    names = {file.stem for file in KERNELS.glob("*.py") if not file.stem.startswith("_")}
    assert {mutant.kernel for mutant in WITNESSES} == names


def test_a_kernel_that_has_changed_is_told(tmp_path):
    mutant = Mutant(name="m", kernel="softmax", imitates="", old="nowhere", new="")
    with pytest.raises(DoesNotApply, match="'nowhere' 0 times, not once"):
        plant(mutant, tmp_path)


@pytest.mark.slow
def test_the_gate_sees_a_mutant_of_each_kernel(tmp_path):
    """Each in its one case; in processes of their own, which import them."""
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "research.mutants", "--interpreted", "--witness", "--json", str(file)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert file.exists(), done.stderr
    results = {result["mutant"]: result for result in json.loads(file.read_text())["mutants"]}
    assert {name: result["error"] for name, result in results.items() if result["error"]} == {}
    said = {mutant.name: results[mutant.name]["schemes"][GATE][mutant.witness] for mutant in WITNESSES}
    assert [name for name, problem in said.items() if problem is None] == []


def test_the_report_counts_killed_and_surviving_mutants():
    bug, other = (mutant for mutant in MUTANTS[:2])
    original = TrialResult(kernel="softmax", mutant=None)
    original.add({"digests": {"a": "1", "b": "2"}, "schemes": {GATE: {"a": None, "b": None}}}, None)
    killed, survived = (
        TrialResult(kernel="softmax", mutant=mutant, original=original) for mutant in (bug, other)
    )
    said = "f differs from its reference g\noutput: 3 elements are outside the bound"
    killed.add({"digests": {"a": "1", "b": "3"}, "schemes": {GATE: {"a": None, "b": said}}}, None)
    survived.add({"digests": {"a": "1", "b": "2"}, "schemes": {GATE: {"a": None, "b": None}}}, None)
    text = report({"softmax": original}, [killed, survived], aligned)
    assert f"survived the gate: {other.name}" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  the gate "))
    assert " ".join(line.split()) == "the gate 1 of 2 100 % of 1 0 of 2"
    assert killed.first_said() == "output: 3 elements are outside the bound"


def test_who_fails_a_kernel_without_a_bug_sees_none():
    original = TrialResult(kernel="softmax", mutant=None)
    mutated = TrialResult(kernel="softmax", mutant=MUTANTS[0], original=original)
    for result in (original, mutated):
        result.add({"digests": {"a": "1"}, "schemes": {GATE: {"a": "failed"}}}, None)
    assert not mutated.is_killed_by(GATE)


def test_a_bug_that_ends_its_process_is_killed():
    result = TrialResult(kernel="softmax", mutant=MUTANTS[0])
    result.add({}, "its process died (exit code -11)")
    assert result.is_killed_by(GATE)


def test_one_that_could_not_be_tried_is_not():
    result = TrialResult(kernel="softmax", mutant=MUTANTS[0])
    result.add({}, "DoesNotApply: softmax-zeros: the kernel has changed")
    assert not result.is_killed_by(GATE)
