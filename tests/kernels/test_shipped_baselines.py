"""What the report on the speed gate says of the shipped baselines."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FEW = 4


def test_the_report_counts_the_sessions_of_the_shipped_baselines():
    entries = json.loads((ROOT / "baselines" / "sm_90-nvidia-h200.json").read_text(encoding="utf-8"))[
        "entries"
    ]
    sessions = [len({run["session"] for run in entry["runs"]}) for entry in entries.values()]
    text = " ".join((ROOT / "research" / "reports" / "speed-gate.md").read_text(encoding="utf-8").split())
    said = re.search(r"Of the (\d+) entries (?:in|of) `baselines/\S*` (\d+) have", text)
    assert said is not None
    assert [int(number) for number in said.groups()] == [
        len(entries),
        sum(count >= FEW for count in sessions),
    ]
    assert max(sessions) == 6
    assert max(count for count in sessions if count < FEW) == 3
