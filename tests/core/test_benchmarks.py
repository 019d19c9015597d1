"""Benchmarks run by hand, on machines that few have: that they can be imported is seen here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_cutile.core.speed_rule import duet_level

ROOT = Path(__file__).resolve().parent.parent.parent
IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module("benchmarks." + name)
"""


def test_every_benchmark_can_be_imported():
    """In a process of their own: some are plugins, which change what they import."""
    names = sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py"))
    assert "planted_slowdowns" in names
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", ["--suites", "--cases"])
@pytest.mark.parametrize("number", ["0", "-3", "x"])
def test_nothing_to_simulate_is_a_wrong_command_line(monkeypatch, capsys, option, number):
    from benchmarks import speed_rule

    monkeypatch.setattr(sys, "argv", ["speed_rule", f"{option}={number}"])
    with pytest.raises(SystemExit) as ended:
        speed_rule.main()
    assert ended.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err


def test_the_tables_of_planted_slowdowns_are_printed_from_the_data(capsys):
    from benchmarks import planted_slowdowns

    data = json.loads(planted_slowdowns.DATA.read_text())
    planted_slowdowns.show_planted(data)
    planted_slowdowns.show_own_board(json.loads(planted_slowdowns.OWN_BOARD.read_text()))
    planted_slowdowns.show_duets(data)
    planted_slowdowns.show_workers(data)
    text = capsys.readouterr().out
    assert "8 to 16 %" in text
    assert "missed: matmul[fp16-4096x4096x4096]" in text
    assert "1.75 to 2.25 %     18         18" in text
    unchanged = [duet_level(each) for row in data["clean_duets"] for each in row["log_ratios_pct"]]
    assert max(unchanged) < 1.0  # percent: nothing that did not change looks slower by half of the margin


def test_simulated_processes_are_stored_as_the_gate_stores_them():
    import numpy as np

    from benchmarks import speed_rule
    from pytest_cutile.core.comparisons import SLOPES

    rng = np.random.default_rng(1)
    own, control = rng.normal(0, 0.01, (40, 8)), rng.normal(0, 0.01, (40, 8))
    bounds = ["TFLOPS", "GB/s"] * 20
    for case, pair in enumerate(speed_rule.recorded(own, control, bounds)):
        bound = bounds[case]
        measurement = speed_rule.measured(own[case], control[case], bound)
        assert pair == pytest.approx(measurement.beside_control(SLOPES[bound]), rel=1e-4)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("other_board", [False, True])
def test_simulated_suites_are_judged(other_board, beside):
    import numpy as np

    from benchmarks import speed_rule

    setting = speed_rule.Setting(other_board=other_board, beside=beside)
    rng = np.random.default_rng(2)
    caught, outcome = speed_rule.trial(rng, 24, 1.0, setting, 0.15)
    assert caught[speed_rule.THIS]
    assert 3 <= outcome.processes <= 12
    failed, outcome = speed_rule.trial(rng, 24, 0.01, setting, 0.0)
    assert not any(failed.values())
    assert outcome.inconclusive == 0 or other_board


def test_what_h200s_measured_is_judged_again():
    import random

    from benchmarks import speed_resample, speed_rule

    for board in speed_resample.read():
        caught, outcome = board.trial(random.Random(1), 12, 0.1, 3)
        assert 3 in caught[speed_rule.THIS]
        assert outcome.processes >= 3


def test_false_alarms_are_counted_by_kernel_and_dtype():
    from benchmarks import false_alarms

    common: dict[str, Any] = {"kernel": "softmax", "config": None, "inputs": "normal", "seed": "0"}
    found: list[dict[str, Any]] = [
        {**common, "case": "fp16-2x3", "elements": 6, "used": 0.25, "bound": ""},
        {**common, "case": "fp16-2x3", "elements": 6, "used": 0.5, "bound": ""},
        *(
            {**common, "case": f"fp16-{case}", "config": {"chunk": 8}, "elements": 4, "used": 0.1}
            for case in ("1x4", "2x2")
        ),
        {**common, "case": "bf16-2x3", "alarm": "output differs"},
        {**common, "case": "bf16-2x3", "unusable": "TileTypeError: no"},
    ]
    rows = [" ".join(line.split()) for line in false_alarms.summary(found).splitlines()]
    assert "softmax fp16 4 1 3 20 0.500 0 0" in rows
    assert "softmax bf16 2 0 0 0 0.000 1 1" in rows
    assert "all 6 1 3 20 0.500 1 1" in rows


def test_every_configuration_is_tried_before_any_is_tried_again():
    from benchmarks import false_alarms

    options = false_alarms._parse(["dropout", "--interpreted", "--others", "--seeds", "1"])
    tasks = [*false_alarms._tasks(options)]
    configs = {task.config for task in tasks}
    first, others = tasks[: len(configs)], tasks[len(configs) :]
    assert {task.config for task in first} == configs
    assert None not in configs
    assert len({task.inputs for task in first}) == 1
    assert others
    assert all(len(task.inputs) == 2 for task in others)
