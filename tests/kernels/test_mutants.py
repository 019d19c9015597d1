"""Bugs planted in real kernels: the gate `correct` has to see them, interpreted, in one small case each."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_runs.tables import aligned
from benchmarks.mutants.__main__ import Found, report
from benchmarks.mutants.corpus import MUTANTS
from benchmarks.mutants.mutant import KERNELS, DoesNotApply, Mutant, plant
from benchmarks.mutants.trial import GATE

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


@pytest.fixture(scope="module")
def witnessed(tmp_path_factory):
    """What the gate says of each mutant in its one case; in processes of their own, which import them."""
    file = tmp_path_factory.mktemp("mutants") / "found.json"
    command = [sys.executable, "-m", "benchmarks.mutants", "--interpreted", "--witness", "--json", str(file)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert file.exists(), done.stderr
    return json.loads(file.read_text())["mutants"]


@pytest.mark.parametrize("mutant", WITNESSES, ids=lambda mutant: mutant.name)
def test_the_gate_sees_it(witnessed, mutant):
    (found,) = (each for each in witnessed if each["mutant"] == mutant.name)
    assert found["error"] is None
    assert found["schemes"][GATE][mutant.witness] is not None


def test_the_report_counts_what_is_caught_and_what_is_not():
    bug, other = (mutant for mutant in MUTANTS[:2])
    control = Found(kernel="softmax", mutant=None)
    control.take({"digests": {"a": "1", "b": "2"}, "schemes": {GATE: {"a": None, "b": None}}}, None)
    caught, missed = (Found(kernel="softmax", mutant=each, control=control) for each in (bug, other))
    said = "f differs from its reference g\noutput: 3 elements are outside the bound"
    caught.take({"digests": {"a": "1", "b": "3"}, "schemes": {GATE: {"a": None, "b": said}}}, None)
    missed.take({"digests": {"a": "1", "b": "2"}, "schemes": {GATE: {"a": None, "b": None}}}, None)
    text = report({"softmax": control}, [caught, missed], aligned)
    assert f"missed by the gate: {other.name}" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  the gate "))
    assert " ".join(line.split()) == "the gate 1 of 2 100 % of 1 0 of 2"
    assert caught.first_said() == "output: 3 elements are outside the bound"


def test_who_fails_a_kernel_without_a_bug_sees_none():
    control = Found(kernel="softmax", mutant=None)
    found = Found(kernel="softmax", mutant=MUTANTS[0], control=control)
    for each in (control, found):
        each.take({"digests": {"a": "1"}, "schemes": {GATE: {"a": "failed"}}}, None)
    assert not found.is_caught_by(GATE)


def test_a_bug_that_ends_its_process_is_caught():
    found = Found(kernel="softmax", mutant=MUTANTS[0])
    found.take({}, "its process died (exit code -11)")
    assert found.is_caught_by(GATE)


def test_one_that_could_not_be_tried_is_not():
    found = Found(kernel="softmax", mutant=MUTANTS[0])
    found.take({}, "DoesNotApply: softmax-zeros: the kernel has changed")
    assert not found.is_caught_by(GATE)
