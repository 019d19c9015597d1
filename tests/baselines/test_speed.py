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
from pytest_cutile.baselines.entries import (
    MAX_RUNS,
    Entry,
    Published,
    Run,
    SpeedBaselines,
    environment_changes,
    first_of_each_gpu,
)
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.baselines.files import read_speed, render_speed
from pytest_cutile.baselines.store import BaselineStore, record_speed

ENVIRONMENT = {"driver": "580.1", "tileiras": "13.4.92"}
PUBLISHED = Published(median_us=123.5, margin=0.1, source="Somebody's blog, https://example.org/fast")


def run(median_us: float = 40.0, **changes) -> Run:
    fields = {
        "at": "2026-11-21T10:00:00+00:00",
        "session": "2026-11-21-0a1b2c3d",
        "gpu_uuid": "GPU-1",
        "median_us": median_us,
        "spread": 0.004,
    }
    return Run(**{**fields, **changes})


def entry(*medians: float, **changes) -> Entry:
    fields = {
        "work": Work(bytes=1e8, dtype="bfloat16"),
        "runs": tuple(run(value) for value in medians or (40.0,)),
        "environment": ENVIRONMENT,
        "provenance": {"by": "pytest-cutile 0.1.0", "commit": "abc"},
    }
    return Entry(**{**fields, **changes})


def write(path, key="k[c]", new=None, **changes):
    options = {"arch": "sm_90", "gpu": "NVIDIA H200", "renew": lambda _: {key: new or entry()}, **changes}
    record_speed(path, **options)


def entries_of(path):
    file = read_speed(path)
    assert file is not None
    return file.entries


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "new" / "sm_90-nvidia-h200.json"
    write(path)
    assert read_speed(path) == SpeedBaselines(arch="sm_90", gpu="NVIDIA H200", entries={"k[c]": entry()})
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_no_file_is_none(tmp_path):
    assert read_speed(tmp_path / "x.json") is None


def test_entries_on_disk_stay(tmp_path):
    path = tmp_path / "x.json"
    write(path)
    write(path, "k[d]", entry(50.0))
    assert sorted(entries_of(path)) == ["k[c]", "k[d]"]


def test_concurrent_writers_lose_nothing(tmp_path):
    path = tmp_path / "x.json"
    threads = [threading.Thread(target=write, args=(path,), kwargs={"key": f"k[{n}]"}) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entries_of(path)) == 12


@pytest.mark.parametrize(
    "stored",
    [
        entry(40.0, 44.0, 41.0),
        entry(
            runs=(run(workload_us=100.25, clock_mhz=1980.0), run(41.0, gpu_uuid="GPU-2", session="other")),
            fingerprint="0123abcd",
            reference_workload="torch 2.11.0 mm bf16 4096x2048x4096",
        ),
        entry(runs=(), published=PUBLISHED),
        entry(work=Work(flops=2.0**37), environment={}, provenance={}),
    ],
    ids=["runs", "workload", "published", "bare"],
)
def test_every_kind_of_entry_is_read_back(tmp_path, stored):
    path = tmp_path / "x.json"
    write(path, new=stored)
    assert entries_of(path) == {"k[c]": stored}
    write(path, "k[d]", stored)
    assert entries_of(path) == {"k[c]": stored, "k[d]": stored}


def test_the_file_is_made_for_diffs():
    stored = {"b": entry(40, 41), "a": entry(), "c": entry(runs=(), published=PUBLISHED)}
    text = render_speed(SpeedBaselines(arch="sm_90", gpu="NVIDIA H200", entries=stored))
    assert json.loads(text)["schema"] == 3
    assert "null" not in text
    lines = text.splitlines()
    assert sum("median_us" in line for line in lines) == 4  # one line per run, or published figure
    assert text.index('"a"') < text.index('"b"') < text.index('"c"')
    longer = render_speed(
        SpeedBaselines(arch="sm_90", gpu="NVIDIA H200", entries={**stored, "a": entry(40.0, 42.0)})
    )
    before, after = ([line.rstrip(",") for line in each.splitlines()] for each in (text, longer))
    assert len(after) == len(before) + 1  # a further run is one further line
    assert [line for line in before if line not in after] == []


def test_the_reference_is_the_median_over_runs_or_what_was_published():
    assert entry(40.0, 44.0, 41.0).median_us == 41.0
    assert entry(runs=(), published=PUBLISHED).median_us == 123.5


def test_runs_are_added_up_to_a_limit():
    one = entry(*range(1, MAX_RUNS + 1))
    assert (
        first_of_each_gpu((*one.runs, run(99.0))) == one.runs
    )  # a reference that follows every run drifts with them
    more = first_of_each_gpu((*one.runs[:-1], run(98.0), run(99.0)))
    assert [each.median_us for each in more] == [*range(1, MAX_RUNS), 98.0]


def test_each_gpu_has_room_for_its_own_runs():
    one = entry(*range(1, MAX_RUNS + 1))
    own = [run(float(us), gpu_uuid="GPU-2") for us in range(1, MAX_RUNS + 2)]
    both = first_of_each_gpu((*one.runs, run(99.0), *own))
    assert both == (*one.runs, *own[:MAX_RUNS])
    assert first_of_each_gpu((*both, run(99.0), own[-1])) == both


def test_sessions_are_counted_not_processes():
    runs = (run(), run(41.0), run(session="later"))
    assert entry(runs=runs).sessions == 2


def test_each_platform_has_its_file(tmp_path):
    def name(location):
        return BaselineStore(location, tmp_path).speed_name("sm_90", "NVIDIA H200")

    assert name(tmp_path) == "sm_90-nvidia-h200.json"
    assert name(tmp_path / "mine.json") == "mine.json"


CONFLICT = '{\n "schema": 3,\n<<<<<<< HEAD\n "arch": "sm_90"\n=======\n "arch": "sm_90"\n>>>>>>> x\n}'
GOOD = render_speed(SpeedBaselines(arch="sm_90", gpu="NVIDIA H200", entries={"k[c]": entry()}))
FIGURE = render_speed(
    SpeedBaselines(arch="sm_90", gpu="NVIDIA H200", entries={"k[c]": entry(runs=(), published=PUBLISHED)})
)
BOTH = GOOD.replace('"runs": [', '"published": {"median_us": 1, "margin": 0.1, "source": "x"}, "runs": [')
NEITHER = re.sub(r'"runs": \[.*\]', '"runs": []', GOOD, flags=re.DOTALL)
ENTRY = r"bad entry at key 'entries / k\[c\]'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFLICT, r"x.json:3: merge conflict"),
        ("{", r"x.json:1: not valid JSON"),
        (GOOD.replace("2026-11-21T", "yesterday, "), r"runs / 0': at is 'yesterday, .*', no date and time"),
        ('{\n "schema": 3,\n "arch": }', r"x.json:3: not valid JSON"),
        ("[]", r'"schema" is missing'),
        ("", r"x.json:1: not valid JSON"),
        (GOOD.replace('"schema": 3', '"schema": 4'), r"x.json:2: schema 4, this release reads 3. Upgrade"),
        (
            GOOD.replace('"schema": 3', '"schema": 1'),
            r"x.json:2: schema 1, this release reads 3. Rewrite it: pytest-cutile migrate /",
        ),
        (GOOD.replace('"schema": 3', '"schema": true'), r'"schema" is missing or no number'),
        (GOOD.replace('"gpu": ', '"gqu": '), "unknown field `gqu`; fields: "),
        (GOOD.replace('"gpu": "NVIDIA H200",', ""), "bad entry at key 'gpu': it is missing"),
        (GOOD.replace('"environment"', '"env"'), ENTRY + ": Object contains unknown field `env`"),
        (re.sub(r'"environment": .*', "", GOOD), ENTRY + ": Object missing required field `environment`"),
        (GOOD.replace('"arch": "sm_90"', '"arch": "sm_90", "arch": "sm_80"'), r"'arch' is there twice"),
        (GOOD.replace('"spread"', '"sprd"'), r"entries / k\[c\] / runs / 0': .*`sprd`"),
        (GOOD.replace('"2026-11-21-0a1b2c3d"', "7"), r"runs / 0 / session': Expected `str`, got `int`"),
        (
            GOOD.replace('"bytes": 100000000.0', '"bytes": -1'),
            r"k\[c\] / work': .*bytes must be a finite count",
        ),
        (
            GOOD.replace('"bytes": 100000000.0', f'"bytes": {"9" * 400}'),
            r"k\[c\] / work / bytes': Number out of range",
        ),
        (
            FIGURE.replace('"margin": 0.1', '"margin": 1'),
            r"published / margin': Expected `float` < 1.0",
        ),
        (GOOD.replace('"runs": [', '"runs": [null,'), r"k\[c\] / runs / 0': Expected `object`, got `null`"),
        (BOTH, ENTRY + r": it has both runs and a published figure"),
        (NEITHER, ENTRY + r": it has no runs"),
        (FIGURE.replace('"source"', '"sauce"'), r"k\[c\] / published': .*`sauce`"),
        (
            GOOD.replace('"work"', '"identiti": "abc", "work"'),
            ENTRY + ": Object contains unknown field `identiti`",
        ),
        (
            FIGURE.replace('"work"', '"rums": [], "work"'),
            ENTRY + ": Object contains unknown field `rums`",
        ),
        (
            GOOD.replace('"work"', '"fingerprint": null, "work"'),
            r"k\[c\] / fingerprint': Expected `str`, got `null`",
        ),
        (
            GOOD.replace('"work"', '"reference_workload": ["mm"], "work"'),
            r"k\[c\] / reference_workload': Expected `str`, got `array`",
        ),
        (GOOD.replace('"580.1"', "580.1"), r"k\[c\] / environment / ...': Expected `str`, got `float`"),
        (GOOD.replace('"abc"', "null"), r"k\[c\] / provenance / ...': Expected `str`, got `null`"),
        (GOOD.replace('"abc"', '"abc", "drift": "a bit"'), ENTRY + ": could not convert string to float"),
        (
            GOOD.replace('"abc"', '"abc", "drift": "nan"'),
            ENTRY + ": provenance / drift is nan, not a fraction",
        ),
        (
            GOOD.replace('"arch": "sm_90"', '"arch": null'),
            "bad entry at key 'arch': Expected `str`, got `null`",
        ),
        (
            GOOD.replace('"arch": "sm_90"', '"arch": "90"'),
            "bad entry at key 'arch': '90' is not a name such as",
        ),
        (
            GOOD.replace('"gpu": "NVIDIA H200"', '"gpu": 5'),
            "bad entry at key 'gpu': Expected `str`, got `int`",
        ),
        (
            GOOD.replace('"gpu": "NVIDIA H200"', '"gpu": ""'),
            "bad entry at key 'gpu': it is empty, not a GPU's name",
        ),
        (
            GOOD.replace('"gpu"', '"extra": "x", "gpu"'),
            "unknown field `extra`; fields: arch, entries, gpu, schema",
        ),
        (FIGURE.replace(f'"{PUBLISHED.source}"', "7"), r"published / source': Expected `str`, got `int`"),
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
    "value", ["-1", "0", "true", "null", '"40"', "[40]", "1e300", "1e999", "NaN", "Infinity", "9" * 400]
)
@pytest.mark.parametrize(
    ("text", "name"),
    [(GOOD, "median_us"), (FIGURE, "median_us"), (FIGURE, "margin")],
    ids=["run", "published", "margin"],
)
def test_a_figure_that_is_no_positive_number_is_refused(tmp_path, text, name, value):
    path = tmp_path / "x.json"
    path.write_text(re.sub(rf'"{name}": [0-9.]+', f'"{name}": {value}', text))
    with pytest.raises(BaselineError, match=rf"/ {name}': |{value} is no measurement"):
        read_speed(path)


@pytest.mark.parametrize("value", ["-1", "false", '"x"', "1e300", "1e999", "{}", "9" * 400])
@pytest.mark.parametrize("name", ["spread", "workload_us", "clock_mhz"])
def test_what_may_be_missing_is_still_checked(tmp_path, name, value):
    path = tmp_path / "x.json"
    write(path, new=entry(runs=(run(workload_us=5.0, clock_mhz=1980.0),)))
    path.write_text(re.sub(rf'"{name}": [0-9.]+', f'"{name}": {value}', path.read_text()))
    with pytest.raises(BaselineError, match=rf"/ {name}': "):
        read_speed(path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"runs": (run(clock_mhz=math.nan),)}, "runs / 0 / clock_mhz: Expected `float` >= 0.0"),
        ({"runs": (run(math.inf),)}, "runs / 0 / median_us: Expected `float` < 1000000000.0"),
        ({"environment": {"driver": 580}}, r"environment / \.\.\.: Expected `str`, got `int`"),
        ({"environment": {"driver": object()}}, "objects of type object is unsupported"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, changes, what):
    path = tmp_path / "x.json"
    write(path)
    before = path.read_text()
    with pytest.raises(BaselineError, match=rf"nothing was written.* k\[d\] .*{what}.*Check the timer"):
        write(path, renew=lambda _: {"k[c]": entry(41.0), "k[d]": entry(**changes)})
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


def test_environment_changes_are_named():
    assert environment_changes(ENVIRONMENT, {**ENVIRONMENT, "driver": "590.2"}) == ["driver: 580.1 -> 590.2"]
    assert environment_changes(ENVIRONMENT, ENVIRONMENT) == []
    assert environment_changes({}, {"torch": "2.11"}) == ["torch: unknown -> 2.11"]


def test_the_entries_on_disk_are_what_is_renewed(tmp_path):
    path = tmp_path / "x.json"
    write(path, new=entry(36.0))  # another session, meanwhile
    seen = []

    def renew(existing):
        seen.append({key: each.median_us for key, each in existing.items()})
        return {"k[c]": entry(40.0), "k[d]": entry(41.0)}

    write(path, renew=renew)
    assert seen == [{"k[c]": 36.0}]
    assert {key: each.median_us for key, each in entries_of(path).items()} == {"k[c]": 40.0, "k[d]": 41.0}


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
    write(path, renew=lambda _: {})
    assert not path.exists()


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "real" / "x.json", tmp_path / "x.json"
    write(target)
    link.symlink_to(target)
    write(link, "k[d]")
    assert link.is_symlink()
    assert sorted(entries_of(target)) == ["k[c]", "k[d]"]


def test_processes_with_their_own_tmpdir_share_the_lock(tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[3])\n"
        "from pathlib import Path\n"
        "from tests.baselines.test_speed import write\n"
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
    assert len(entries_of(path)) == 40
