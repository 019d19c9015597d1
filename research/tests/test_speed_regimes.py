"""The report's tables are those of its data."""

import math

import pytest

from research import speed_regimes


def test_the_report_holds_the_tables_of_the_data(capsys):
    speed_regimes.main()
    report = (speed_regimes.DATA.parent.parent / "reports" / "speed-regimes.md").read_text(encoding="utf-8")
    titles = [line for line in capsys.readouterr().out.splitlines() if line]
    rows = [line.rstrip() for line in titles if any(sign in line for sign in "%0123456789") and "  " in line]
    assert len(rows) > 50
    assert [row for row in rows if row not in report] == []


@pytest.mark.parametrize("dropped", [0.0, 0.4])
def test_a_period_cancels_in_whole_periods_alone(dropped):
    us = [100 * (1 + 0.05 * math.sin(2 * math.pi * 0.02 * index)) for index in range(250)]
    series = speed_regimes.Series.of({"case": "k", "launches": 200, "us": us})  # a period of 1 s
    whole = speed_regimes.whole_periods(1.0, "ABA")(series, 0.3)
    assert abs(whole) < 0.003
    assert abs(speed_regimes.alternating(0.25, "ABBA", dropped)(series, 0.3)) > 3 * abs(whole)
