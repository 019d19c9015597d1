import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_cutile import Work
from pytest_cutile.core.baseline_files import BaselineError
from pytest_cutile.core.baselines import (
    MAX_RUNS,
    BaselineFile,
    Entry,
    Run,
    baseline_path,
    environment_changes,
    read_baselines,
    record_entry,
    render,
)

ENVIRONMENT = {"driver": "580.1", "tileiras": "13.4.92"}


def run(median_us: float = 40.0, **changes) -> Run:
    fields = {
        "at": "2026-11-21T10:00:00+00:00",
        "median_us": median_us,
        "spread": 0.004,
        "samples": 60,
        "gpu_uuid": "GPU-1",
    }
    return Run(**{**fields, **changes})


def entry(*medians: float) -> Entry:
    return Entry(
        work=Work(bytes=1e8, dtype="bfloat16"),
        runs=tuple(run(value) for value in medians or (40.0,)),
        environment=ENVIRONMENT,
        provenance={"by": "pytest-cutile 0.1.0", "commit": "abc"},
    )


def write(path, key="k[c]", new=None, **changes):
    options = {"arch": "sm_90", "gpu": "NVIDIA H200", "renew": lambda _: new or entry(), **changes}
    record_entry(path, key, **options)


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "new" / "sm_90-nvidia-h200.json"
    write(path)
    assert read_baselines(path) == BaselineFile(arch="sm_90", gpu="NVIDIA H200", entries={"k[c]": entry()})
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_no_file_is_none(tmp_path):
    assert read_baselines(tmp_path / "x.json") is None


def test_entries_on_disk_stay(tmp_path):
    path = tmp_path / "x.json"
    write(path)
    write(path, "k[d]", entry(50.0))
    file = read_baselines(path)
    assert file is not None
    assert sorted(file.entries) == ["k[c]", "k[d]"]


def test_concurrent_writers_lose_nothing(tmp_path):
    path = tmp_path / "x.json"
    threads = [threading.Thread(target=write, args=(path,), kwargs={"key": f"k[{n}]"}) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = read_baselines(path)
    assert file is not None
    assert len(file.entries) == 12


def test_the_file_is_made_for_diffs():
    text = render(BaselineFile(arch="sm_90", gpu="NVIDIA H200", entries={"b": entry(40, 41), "a": entry()}))
    assert json.loads(text)["schema"] == 1
    lines = text.splitlines()
    assert sum("median_us" in line for line in lines) == 3  # one line per run
    assert text.index('"a"') < text.index('"b"')


def test_the_reference_is_the_median_over_runs():
    assert entry(40.0, 44.0, 41.0).median_us == 41.0


def test_runs_are_added_up_to_a_limit_and_only_in_one_environment():
    one = entry(*range(1, MAX_RUNS + 1))
    more = one.with_run(run(99.0), environment=ENVIRONMENT, provenance={"commit": "def"})
    assert more.runs == one.runs  # a reference that follows every run drifts with them
    assert entry(1.0, 2.0).with_run(run(99.0), environment=ENVIRONMENT, provenance={}).runs[-1] == run(99.0)
    assert more.provenance == {"by": "pytest-cutile 0.1.0", "commit": "def"}
    other = one.with_run(run(99.0), environment={"driver": "590"}, provenance={})
    assert [item.median_us for item in other.runs] == [99.0]


def test_each_platform_has_its_file(tmp_path):
    assert baseline_path(tmp_path, "sm_90", "NVIDIA H200") == tmp_path / "sm_90-nvidia-h200.json"
    assert baseline_path(tmp_path / "mine.json", "sm_90", "NVIDIA H200") == tmp_path / "mine.json"


CONFLICT = '{\n "schema": 1,\n<<<<<<< HEAD\n "arch": "sm_90"\n=======\n "arch": "sm_90"\n>>>>>>> x\n}'
GOOD = render(BaselineFile(arch="sm_90", gpu="NVIDIA H200", entries={"k[c]": entry()}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFLICT, r"x.json:3: merge conflict"),
        ("{", r"x.json:1: not valid JSON"),
        ('{\n "schema": 1,\n "arch": }', r"x.json:3: not valid JSON"),
        ("[]", r'"schema" is missing'),
        ("", r"x.json:1: not valid JSON"),
        (GOOD.replace('"schema": 1', '"schema": 2'), r"x.json:2: schema 2, this release reads 1. Upgrade"),
        (GOOD.replace('"schema": 1', '"schema": 0'), r"schema 0.*Record it anew"),
        (GOOD.replace('"gpu": ', '"gqu": '), r"bad entry at key 'gpu'"),
        (
            GOOD.replace('"environment"', '"env"'),
            r"bad entry at key 'entries / k\[c\]': 'environment' is missing",
        ),
        (GOOD.replace('"median_us": 40.0', '"median_us": -1'), r"median_us is -1, not a number"),
        (GOOD.replace('"median_us": 40.0', '"median_us": 0'), r"median_us is 0, not a positive number"),
        (GOOD.replace('"median_us": 40.0', '"median_us": true'), r"median_us is True, not a number"),
        (GOOD.replace('"median_us": 40.0', '"median_us": Infinity'), r"Infinity is no measurement"),
        (GOOD.replace('"spread": 0.004', '"spread": "x"'), r"spread is 'x', not a number"),
        (GOOD.replace('"arch": "sm_90"', '"arch": "sm_90", "arch": "sm_80"'), r"'arch' is there twice"),
        (GOOD.replace('"spread"', '"sprd"'), r"bad entry at key 'entries / k\[c\]'.*sprd"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_never_replaced(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match=message):
        read_baselines(path)
    with pytest.raises(BaselineError, match=message):
        write(path)
    assert path.read_text() == text


def test_another_gpus_file_is_not_written(tmp_path):
    path = tmp_path / "x.json"
    write(path)
    before = path.read_text()
    with pytest.raises(BaselineError, match=r"belongs to NVIDIA H200 \(sm_90\), not to NVIDIA GB10"):
        write(path, arch="sm_121", gpu="NVIDIA GB10")
    assert path.read_text() == before


def test_a_failed_write_leaves_no_half_written_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write(path)
    before = path.read_text()

    def fail(_descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr("pytest_cutile.core.baseline_files.os.fsync", fail)
    with pytest.raises(BaselineError, match=r"no space left on device\. Nothing was changed"):
        write(path, "k[d]")
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_environment_changes_are_named():
    assert environment_changes(ENVIRONMENT, {**ENVIRONMENT, "driver": "590.2"}) == ["driver: 580.1 -> 590.2"]
    assert environment_changes(ENVIRONMENT, ENVIRONMENT) == []
    assert environment_changes({}, {"torch": "2.11"}) == ["torch: unknown -> 2.11"]


def test_the_entry_on_disk_is_what_is_renewed(tmp_path):
    path = tmp_path / "x.json"
    write(path, new=entry(36.0))  # another session, meanwhile
    seen = []

    def renew(existing):
        seen.append(existing.median_us)
        return entry(40.0)

    write(path, renew=renew)
    assert seen == [36.0]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "real" / "x.json", tmp_path / "x.json"
    write(target)
    link.symlink_to(target)
    write(link, "k[d]")
    assert link.is_symlink()
    file = read_baselines(target)
    assert file is not None
    assert sorted(file.entries) == ["k[c]", "k[d]"]


def test_processes_with_their_own_tmpdir_share_the_lock(tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[3])\n"
        "from pathlib import Path\n"
        "from tests.core.test_baselines import write\n"
        "for n in range(10): write(Path(sys.argv[1]), f'{sys.argv[2]}[{n}]')\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    path = tmp_path / "x.json"
    processes = []
    for name in "abcd":
        (tmp_path / name).mkdir()
        environment = {**os.environ, "TMPDIR": str(tmp_path / name)}
        command = [sys.executable, "-c", script, str(path), name, root]
        processes.append(subprocess.Popen(command, env=environment, cwd=root))
    assert [process.wait() for process in processes] == [0] * 4
    file = read_baselines(path)
    assert file is not None
    assert len(file.entries) == 40
