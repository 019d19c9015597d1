"""The simulations of the speed gate's rule, and the slowdowns that are planted."""

import random

import pytest

from pytest_cutile.words.timing import Regime
from pytest_cutile.words.verdicts import Verdict
from research import planted_slowdowns, speed_rule
from research.planted_slowdowns import PLANTS

NOISE = speed_rule.SEGMENTS_OF_1_S


@pytest.mark.parametrize("option", ["--suites", "--cases", "--jobs"])
@pytest.mark.parametrize("number", ["0", "-3"])
def test_nothing_to_simulate_is_a_wrong_command_line(capsys, option, number):
    with pytest.raises(SystemExit) as ended:
        speed_rule.main([f"{option}={number}"])
    assert ended.value.code == 2
    assert f"{option} must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("regime", [*Regime])
def test_a_large_slowdown_is_caught_in_a_simulated_suite(regime):
    outcome = speed_rule.slowed(random.Random(1), 24, noise=NOISE, regime=regime, slowdown=0.15)
    assert outcome["regression"]


@pytest.mark.parametrize("paired", [True, False])
def test_a_clean_simulated_suite_passes(paired):
    outcome = speed_rule.clean(random.Random(2), 24, noise=NOISE, paired=paired, stored=True)
    assert not outcome["fails"]


def test_a_creep_is_stopped():
    outcome = speed_rule.creep(random.Random(3), 24, noise=NOISE, regime=Regime.BURST, step=0.01)
    assert outcome["at"] <= 0.03


def test_scenarios_have_names_of_their_own():
    names = [scenario.name for scenario in speed_rule.scenarios()]
    assert len({*names}) == len(names)


def test_a_scenario_is_simulated_and_printed(capsys):
    speed_rule.main(["--suites", "2", "--cases", "12", "-k", "clean, another GPU"])
    printed = capsys.readouterr().out
    assert "clean, another GPU and driver: 2 suites" in printed
    assert "fails 0.0 % (0.0-65.8)" in printed


@pytest.mark.parametrize("plant", PLANTS, ids=[f"{plant.file} {plant.name}" for plant in PLANTS])
def test_every_slowdown_can_be_planted(plant):
    text = (planted_slowdowns.ROOT / plant.file).read_text(encoding="utf-8")
    changed = plant.changed(text)
    assert changed != text
    compile(changed, plant.file, "exec")


def test_a_slowdown_that_has_no_place_any_more_is_told():
    with pytest.raises(ValueError, match=r"kernels/fmha.py has changed: it holds"):
        PLANTS[0].changed("")


@pytest.mark.slow
def test_what_the_gate_said_is_read_by_regime(tmp_path):
    junit = tmp_path / "junit.xml"
    junit.write_text(
        """<testsuite><testcase><properties>
        <property name="cutile.speed.key" value="fmha[c]"/>
        <property name="cutile.speed.verdict" value="regression"/>
        <property name="cutile.speed.change" value="0.082"/></properties>
        <failure>fmha[c] is 8.2% slower
          burst: time per launch     3750 us  3724 us  +0.7 %
          sustained: time per launch 4490 us  4149 us  +8.2 %
        </failure></testcase><testcase/></testsuite>"""
    )
    (row,) = planted_slowdowns.read(junit, "one head", 12.0)
    assert (row.verdict, row.burst_pct, row.sustained_pct) == (Verdict.REGRESSION, 0.7, 8.2)
    assert row.change_pct == pytest.approx(8.2)
    assert "+8.2 %" in planted_slowdowns.show(row)
