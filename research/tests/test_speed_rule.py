"""The simulations of the speed gate's rule."""

import json
import sys
from typing import Any

import pytest

from pytest_cutile.speed.decide import paired_log_ratio


@pytest.mark.parametrize("option", ["--suites", "--cases"])
@pytest.mark.parametrize("number", ["0", "-3", "x"])
def test_nothing_to_simulate_is_a_wrong_command_line(monkeypatch, capsys, option, number):
    from research import speed_rule

    monkeypatch.setattr(sys, "argv", ["speed_rule", f"{option}={number}"])
    with pytest.raises(SystemExit) as ended:
        speed_rule.main()
    assert ended.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err


def test_the_tables_of_planted_slowdowns_are_printed_from_the_data(capsys):
    from research import planted_slowdowns

    data = json.loads(planted_slowdowns.DATA.read_text())
    planted_slowdowns.show_planted(data)
    planted_slowdowns.show_own_gpu(json.loads(planted_slowdowns.OWN_GPU.read_text()))
    planted_slowdowns.show_paired(data)
    planted_slowdowns.show_workers(data)
    text = capsys.readouterr().out
    assert "8 to 16 %" in text
    assert "missed: matmul[fp16-4096x4096x4096]" in text
    assert "1.75 to 2.25 %     18         18" in text
    unchanged = [paired_log_ratio(each) for row in data["clean_paired"] for each in row["log_ratios_pct"]]
    assert max(unchanged) < 1.0  # percent: nothing that did not change looks slower by half of the margin


def test_simulated_processes_are_stored_as_the_gate_stores_them():
    import numpy as np
    from pytest_cutile.speed.comparisons import SLOPES

    from research import speed_rule

    rng = np.random.default_rng(1)
    own, workload = rng.normal(0, 0.01, (40, 8)), rng.normal(0, 0.01, (40, 8))
    bounds = ["TFLOPS", "GB/s"] * 20
    for case, pair in enumerate(speed_rule.recorded(own, workload, bounds)):
        bound = bounds[case]
        measurement = speed_rule.measured(own[case], workload[case], bound)
        assert pair == pytest.approx(measurement.best_pair(SLOPES[bound]), rel=1e-4)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("other_gpu", [False, True])
def test_simulated_suites_are_judged(other_gpu, paired):
    import numpy as np

    from research import speed_rule

    setting = speed_rule.Setting(other_gpu=other_gpu, paired=paired)
    rng = np.random.default_rng(2)
    caught, outcome = speed_rule.trial(rng, 24, 1.0, setting, 0.15)
    assert caught[speed_rule.THIS]
    assert 3 <= outcome.processes <= 12
    failed, outcome = speed_rule.trial(rng, 24, 0.01, setting, 0.0)
    assert not any(failed.values())
    assert outcome.inconclusive == 0 or other_gpu


def test_what_h200s_measured_is_judged_again():
    import random

    from research import speed_resample, speed_rule

    for gpu in speed_resample.read():
        caught, outcome = gpu.trial(random.Random(1), 12, 0.1, 3)
        assert 3 in caught[speed_rule.THIS]
        assert outcome.processes >= 3


def test_false_alarms_are_counted_by_kernel_and_dtype():
    from research import false_alarms

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
    from research import false_alarms

    options = false_alarms._parse(["dropout", "--interpreted", "--others", "--seeds", "1"])
    tasks = [*false_alarms._tasks(options)]
    configs = {task.config for task in tasks}
    first, others = tasks[: len(configs)], tasks[len(configs) :]
    assert {task.config for task in first} == configs
    assert None not in configs
    assert len({task.inputs for task in first}) == 1
    assert others
    assert all(len(task.inputs) == 2 for task in others)
