import errno
import json
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_cutile import Work
from pytest_cutile.baselines import files
from pytest_cutile.baselines.entries import Entry, PairedChange, SpeedBaselines
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.files import read_speed, render_speed
from pytest_cutile.baselines.select import add
from pytest_cutile.baselines.store import BaselineStore, record_speed
from tests.baselines.examples import PUBLISHED, baselines, entry, record, run, session

ROOT = Path(__file__).parents[2]


def write(path, key="k[c]", new=None, day=1, **changes):
    def renew(existing):
        return add(existing, f"s{day}", session(day), {key: new or record(day, 40.0)})

    record_speed(path, **{"arch": "sm_90", "gpu": "NVIDIA H200", "renew": renew, **changes})


def entries_of(path):
    file = read_speed(path)
    assert file is not None
    return file.entries


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "new" / "sm_90-nvidia-h200.json"
    write(path)
    assert read_speed(path) == baselines()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_no_file_is_none(tmp_path):
    assert read_speed(tmp_path / "x.json") is None


def test_entries_on_disk_stay(tmp_path):
    path = tmp_path / "x.json"
    write(path)
    write(path, "k[d]")
    assert sorted(entries_of(path)) == ["k[c]", "k[d]"]


def test_concurrent_writers_lose_nothing(tmp_path):
    path = tmp_path / "x.json"
    threads = [threading.Thread(target=write, args=(path,), kwargs={"key": f"k[{n}]"}) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entries_of(path)) == 12


WHOLE = record(
    1,
    runs=(
        run(
            workload_us=100.25,
            clock_mhz=1980.0,
            sustained_us=44.5,
            sustained_clock_mhz=1700.0,
            sustained_watts=698.5,
        ),
        run(None, sustained_us=41.0),
    ),
    source="0123",
    changes={
        "burst": PairedChange(value=0.01, low=0.005, high=0.015),
        "sustained": PairedChange(value=0, low=-0.5, high=2),
    },
    moved="accepted",
    reason="exact division",
)


@pytest.mark.parametrize(
    "stored",
    [
        baselines(
            {"k[c]": entry(WHOLE)}, {"s1": session(commit="0123abc+", workload="PTX", unseen="clocks")}
        ),
        baselines({"k[c]": entry(record(1), record(2, 41.0)), "k[published]": Entry(published=PUBLISHED)}),
        baselines({"k[c]": entry(published=PUBLISHED)}),
        baselines({"k[c]": entry(record(1, 1.0, work=Work(flops=2.0**37)))}, {"s1": session(commit="")}),
        baselines({"k[c]": entry(record(1, 1.0, work=Work()))}, {"s1": session(environment={})}),
        baselines({}),
    ],
    ids=["all fields", "published", "both", "bare", "no work", "empty"],
)
def test_everything_is_read_back(tmp_path, stored):
    path = tmp_path / "x.json"
    files.write_speed(path, stored)
    assert read_speed(path) == stored
    before = path.read_text()
    files.write_speed(path, stored)
    assert path.read_text() == before


def test_the_file_is_made_for_diffs():
    stored = baselines({"b": entry(record(1, 40, 41)), "a": entry(), "c": Entry(published=PUBLISHED)})
    text = render_speed(stored)
    assert json.loads(text)["schema"] == 1
    assert "null" not in text
    lines = text.splitlines()
    assert sum("_us" in line for line in lines) == 4  # one line per run, or published figure
    assert text.index('"a"') < text.index('"b"') < text.index('"c"')
    longer = render_speed(add(stored, "s2", session(2), {"a": record(2, 42.0, 43.0)}))
    before, after = ([line.rstrip(",") for line in each.splitlines()] for each in (text, longer))
    assert len(after) == len(before) + 4  # a session, a record and its two runs
    assert [line for line in before if line not in after] == []


def test_records_that_were_sorted_otherwise_by_hand_are_in_order(tmp_path):
    path = tmp_path / "x.json"
    files.write_speed(path, baselines({"k[c]": Entry(records=(record(2, 41.0), record(1, 40.0)))}))
    assert [each.session for each in entries_of(path)["k[c]"].records] == ["s1", "s2"]


def test_each_platform_has_its_file(tmp_path):
    def name(location):
        return BaselineStore(location, tmp_path).speed_name("sm_90", "NVIDIA H200")

    assert name(tmp_path) == "sm_90-nvidia-h200.json"
    assert name(tmp_path / "mine.json") == "mine.json"


CONFLICT = '{\n "schema": 1,\n<<<<<<< HEAD\n "arch": "sm_90"\n=======\n "arch": "sm_90"\n>>>>>>> x\n}'
GOOD = render_speed(baselines({"k[c]": entry(WHOLE)}))
FIGURE = render_speed(baselines({"k[c]": Entry(published=PUBLISHED)}))
ENTRY = r"bad entry at key 'entries / k\[c\]"
SESSION = r"bad entry at key 'sessions / s1"


def bad(old: str, new: str, text: str = GOOD) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFLICT, r"x.json:3: merge conflict .*pytest-cutile merge"),
        ("{", r"x.json:1: not valid JSON"),
        ('{\n "schema": 1,\n "arch": }', r"x.json:3: not valid JSON"),
        ("[]", r'"schema" is missing'),
        ("", r"x.json:1: not valid JSON"),
        (
            bad('"schema": 1', '"schema": 2'),
            r"x.json:2: schema 2, this release reads 1. Use the pytest-cutile",
        ),
        (bad('"schema": 1', '"schema": true'), r'"schema" is missing or no number'),
        # the top level
        (bad('"gpu": ', '"gqu": '), "unknown field `gqu`; fields: "),
        (bad('"gpu": "NVIDIA H200",', ""), "bad entry at key 'gpu': it is missing"),
        (bad('"arch": "sm_90"', '"arch": null'), "bad entry at key 'arch': Expected `str`, got `null`"),
        (bad('"arch": "sm_90"', '"arch": "90"'), "bad entry at key 'arch': '90' is not a name such as"),
        (bad('"NVIDIA H200"', "5"), "bad entry at key 'gpu': Expected `str`, got `int`"),
        (bad('"NVIDIA H200"', '""'), "bad entry at key 'gpu': '' is not a GPU's name"),
        (bad('"arch": "sm_90"', '"arch": "sm_90", "arch": "sm_80"'), r"'arch' is there twice"),
        (bad('"sessions"', '"session"'), "unknown field `session`"),
        # sessions
        (
            bad("2025-11-01T", "yesterday, "),
            SESSION + "': at is 'yesterday, .*', no date and time of ISO 8601",
        ),
        (bad("00+00:00", "00"), SESSION + "': at is '2025-11-01T10:00:00', not in UTC"),
        (bad("00+00:00", "00+05:00"), SESSION + "': at is .*, not in UTC"),
        (bad('"commit": "0123', '"commit": "main'), SESSION + "': commit is 'main.*', no hash of git"),
        (bad('"commit": "0123', f'"commit": "{"0" * 8}0123'), SESSION + "': commit is '000000000123"),
        (bad('"commit": "0123', '"commit": "-x 0123'), SESSION + "': commit is '-x 0123"),
        (bad('"environment"', '"env"'), SESSION + "': Object contains unknown field `env`"),
        (bad('"580.1"', "580.1"), SESSION + r" / environment / \.\.\.': Expected `str`, got `float`"),
        (bad('"s1": {"at"', '"s2": {"at"'), ENTRY + " / records / 0 / session': 's1' is not in sessions"),
        # records
        (
            bad('"session": "s1"', '"session": 7'),
            ENTRY + " / records / 0 / session': Expected `str`, got `int`",
        ),
        (bad('"spread"', '"sprd"'), ENTRY + " / records / 0 / runs / 0': .*`sprd`"),
        (
            bad('"runs": [', '"runs": [null,'),
            ENTRY + " / records / 0 / runs / 0': Expected `object`, got `null`",
        ),
        (
            bad('"sustained_us": 41.0', '"clock_mhz": 0.5'),
            ENTRY + " / records / 0 / runs / 1': it has neither burst",
        ),
        (
            bad('"bytes": 100000000.0', '"bytes": -1'),
            ENTRY + " / records / 0 / work': .*bytes must be a finite",
        ),
        (bad('"bytes": 100000000.0', f'"bytes": {"9" * 400}'), "work / bytes': Number out of range"),
        (bad('"bytes"', '"byte"'), ENTRY + " / records / 0 / work': Object contains unknown field `byte`"),
        (bad('"reason": "exact division"', '"reason": ""'), "records / 0': it was accepted without a reason"),
        (bad('"accepted"', '"yes"'), ENTRY + " / records / 0 / moved': Expected `str` matching regex"),
        (
            bad('"burst": {', '"sprint": {'),
            ENTRY + " / records / 0 / changes': Expected `str` matching regex",
        ),
        (bad('"low": 0.005', '"low": 0.5'), r"changes / \.\.\.': low 0.5 is above high 0.015"),
        (bad('"low": 0.005, ', ""), r"changes / \.\.\.': Object missing required field `low`"),
        (bad('"fingerprint": "abc"', '"fingerprint": null'), "fingerprint': Expected `str`, got `null`"),
        (bad('"records": [', '"records": [], "recs": ['), ENTRY + "': Object contains unknown field `recs`"),
        (re.sub(r'"records": \[.*\]', '"records": []', GOOD, flags=re.DOTALL), ENTRY + "': it has neither"),
        (
            re.sub(r"(    {.*]})", r"\1,\1", GOOD, flags=re.DOTALL),
            ENTRY + " / records / 1 / session': 's1' is there tw",
        ),
        # published figures
        (bad('"margin": 0.1', '"margin": 1', FIGURE), r"published / margin': Expected `float` < 1.0"),
        (bad('"source"', '"sauce"', FIGURE), ENTRY + " / published': .*`sauce`"),
        (bad('"bytes"', '"byte"', FIGURE), ENTRY + " / published / work': .*`byte`"),
        # control characters, which a terminal would obey
        (bad("exact division", r"\u001b[2J"), ENTRY + " / records / 0 / reason': it has control characters"),
        (
            bad("exact division", r"a\n::set-output"),
            ENTRY + " / records / 0 / reason': it has control characters",
        ),
        (bad("580.1", r"\u009b31m"), SESSION + r" / environment / driver': it has control characters"),
        (
            bad('"driver"', r'"\u001b"'),
            SESSION + r" / environment': the key '\\x1b' has characters that cannot be seen",
        ),
        (bad("pytest-cutile 0", r"\u202e"), SESSION + " / by': it has control characters"),
        (bad("NVIDIA H200", r"\u001b[1m"), r"bad entry at key 'gpu': it has control characters"),
        (bad('"gpu": "NVIDIA H200"', '"gpu": ""'), r"bad entry at key 'gpu': '' is not a GPU's name"),
        (bad("580.1", r"\ud800"), SESSION + r" / environment / driver': it has control characters"),
        (bad('"k[c]"', r'"k[\u200b]"'), "the key 'k\\[.u200b\\]' has characters that cannot be seen"),
        (
            bad('"k[c]"', r'"k[\u001b]"'),
            r"key 'entries': the key 'k\[\\x1b\]' has characters that cannot be seen",
        ),
        (
            bad('"s1": {"at"', r'"\u007f": {"at"'),
            r"key 'sessions': the key '\\x7f' has characters that cannot be seen",
        ),
        (bad('"spread"', r'"\u001b"'), r"runs / 0': the key '\\x1b' has characters that cannot be seen"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_never_replaced(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match=message):
        read_speed(path)
    with pytest.raises(BaselineError, match=message):
        write(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "value", ["-1", "0", "true", '"40"', "[40]", "1e300", "1e999", "NaN", "Infinity", "9" * 400]
)
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (GOOD, "burst_us"),
        (GOOD, "sustained_us"),
        (GOOD, "workload_us"),
        (FIGURE, "median_us"),
        (FIGURE, "margin"),
    ],
)
def test_a_figure_that_is_no_positive_number_is_refused(tmp_path, text, name, value):
    path = tmp_path / "x.json"
    path.write_text(re.sub(rf'"{name}": [0-9.]+', f'"{name}": {value}', text))
    with pytest.raises(BaselineError, match=rf"/ {name}': |{value} is no measurement"):
        read_speed(path)


@pytest.mark.parametrize("value", ["-1", "false", '"x"', "1e300", "1e999", "{}", "9" * 400])
@pytest.mark.parametrize("name", ["spread", "clock_mhz", "sustained_clock_mhz", "sustained_watts"])
def test_what_may_be_zero_or_missing_is_still_checked(tmp_path, name, value):
    path = tmp_path / "x.json"
    path.write_text(re.sub(rf'"{name}": [0-9.]+', f'"{name}": {value}', GOOD))
    with pytest.raises(BaselineError, match=rf"/ {name}': "):
        read_speed(path)


@pytest.mark.parametrize(
    ("new", "sessions", "what"),
    [
        (record(1, runs=(run(clock_mhz=math.nan),)), {}, "Out of range float values are not JSON compliant"),
        (record(1, math.inf), {}, "Out of range float values are not JSON compliant"),
        (record(1, 1e12), {}, r"entries / k\[d\] / records / 0 / runs / 0 / burst_us: Expected `float` < "),
        (record(1, 1.0, reason="a\nb"), {}, r"k\[d\] / records / 0 / reason: it has control characters"),
        (
            record(1, 1.0),
            {"s1": session(environment={"driver": 580})},
            r"s1 / environment / \.\.\.: Expected `str`",
        ),
        (record(1, 1.0), {"s1": session(environment={"driver": object()})}, "type object is unsupported"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, new, sessions, what):
    path = tmp_path / "x.json"
    write(path)
    before = path.read_text()
    wrong = baselines({"k[c]": entry(), "k[d]": entry(new)}, sessions)
    with pytest.raises(
        BaselineError, match=rf"x.json: nothing was written, for it could not be read again: .*{what}"
    ):
        write(path, renew=lambda _: wrong)
    assert path.read_text() == before


def test_another_gpus_file_is_not_written(tmp_path):
    path = tmp_path / "x.json"
    write(path)
    before = path.read_text()
    with pytest.raises(BaselineError, match=r"belongs to NVIDIA H200 \(sm_90\), not to NVIDIA GB10"):
        write(path, arch="sm_121", gpu="NVIDIA GB10")
    assert path.read_text() == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch, call):
    path = tmp_path / "x.json"
    write(path)
    before = path.read_text()

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(BaselineError, match=r"No space left on device\. Nothing was changed"):
            write(path, "k[d]")
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]
    write(path, "k[d]")  # and the lock is free
    assert len(entries_of(path)) == 2


def test_the_baselines_on_disk_are_what_is_renewed(tmp_path):
    path = tmp_path / "x.json"
    seen = []

    def renew(existing):
        seen.append(existing)
        return baselines()

    write(path, renew=renew)
    write(path, renew=renew)
    assert seen == [SpeedBaselines(arch="sm_90", gpu="NVIDIA H200"), baselines()]


def test_renewing_that_fails_changes_nothing_and_frees_the_lock(tmp_path):
    path = tmp_path / "x.json"
    write(path)
    before = path.read_text()

    def renew(_existing):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(path, renew=renew)
    assert path.read_text() == before
    write(path, "k[d]")


def test_nothing_to_record_writes_nothing(tmp_path):
    path = tmp_path / "x.json"
    write(path, renew=lambda existing: existing)
    assert not path.exists()


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "real" / "x.json", tmp_path / "x.json"
    write(target)
    link.symlink_to(target)
    write(link, "k[d]")
    assert link.is_symlink()
    assert sorted(entries_of(target)) == ["k[c]", "k[d]"]


RECORD = """
import sys
from pathlib import Path
from tests.baselines.examples import record, session
from pytest_cutile.baselines.select import add
from pytest_cutile.baselines.store import record_speed

def renew(existing):
    records = {f"k[{case}]": new for case in cases}
    return add(existing, name, session(int(sys.argv[2]), gpu_uuid=name), records)

name = f"s{sys.argv[2]}"
new = record(int(sys.argv[2]), 40.0, 41.0, 42.0)
for cases in ([0, 1], [2], [3], [4], [5]):
    record_speed(Path(sys.argv[1]), arch="sm_90", gpu="NVIDIA H200", renew=renew)
"""


def test_eight_processes_that_record_at_once_lose_nothing(tmp_path):
    """Each with a TMPDIR of its own, as on CI: the lock is beside the file."""
    path = tmp_path / "x.json"
    processes = []
    for day in range(1, 9):
        (tmp_path / f"{day}").mkdir()
        environment = {**os.environ, "TMPDIR": str(tmp_path / f"{day}"), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", RECORD, str(path), f"{day}"]
        processes.append(subprocess.Popen(command, env=environment, cwd=ROOT))
    assert [process.wait() for process in processes] == [0] * 8
    entries = entries_of(path)
    assert [*entries] == [f"k[{case}]" for case in range(6)]
    for each in entries.values():
        assert [record.session for record in each.records] == [f"s{day}" for day in range(1, 9)]
        assert {len(record.runs) for record in each.records} == {3}


KILLED = """
import os, signal, sys
from pathlib import Path
from pytest_cutile.baselines import files

os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
with files.rewriting(Path(sys.argv[1])) as path:
    files.write_text(path, "half")
"""


def test_a_killed_writer_leaves_nothing_for_good(tmp_path):
    path = tmp_path / "x.json"
    write(path)
    before = path.read_text()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert killed.returncode == -9
    assert path.read_text() == before
    assert (tmp_path / ".x.json.tmp").exists()
    write(path, "k[d]")  # the lock is free
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]
    assert [*entries_of(path)] == ["k[c]", "k[d]"]


def test_what_a_killed_writer_left_goes_also_when_there_is_nothing_to_write(tmp_path):
    path = tmp_path / "x.json"
    write(path)
    (tmp_path / ".x.json.tmp").touch()
    write(path, renew=lambda existing: existing)
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(files.MAX_BYTES + 1)
    with pytest.raises(
        BaselineError, match=r"x.json has 32 MiB, more than the 32 MiB that baselines can have"
    ):
        read_speed(path)
    with pytest.raises(BaselineError, match="more than the 32 MiB"):
        write(path)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_read(tmp_path, make):
    path = tmp_path / "x.json"
    make(path)
    with pytest.raises(BaselineError, match=r"x.json is no file"):
        read_speed(path)
