"""Files of older schemas are rewritten once."""

import json
import subprocess
from typing import Any

import pytest

from pytest_cutile.baselines.entries import Entry, SpeedBaselines, StaticBaselines
from pytest_cutile.baselines.files import read_speed, read_static, render_static
from pytest_cutile.cli import main
from tests.baselines.examples import (
    COMMIT,
    ENVIRONMENT,
    PUBLISHED,
    WORK,
    baselines,
    entry,
    record,
    run,
    session,
)
from tests.baselines.test_static import entry as static_entry

STATIC = StaticBaselines(arch="sm_90", entries={"k[c]": static_entry()})
SHORT = COMMIT[:12]


def old_run(day: int, median_us: float = 40.0, **changes) -> dict[str, Any]:
    of_session = {"at": f"2025-11-{day:02}T10:00:00+00:00", "session": f"s{day}", "gpu_uuid": "GPU-1"}
    return {**of_session, "median_us": median_us, "spread": 0.004, **changes}


def old_entry(*runs: dict[str, Any], commit: str = SHORT, **changes) -> dict[str, Any]:
    return {
        "fingerprint": "abc",
        "work": {"bytes": 1e8, "dtype": "bfloat16"},
        "environment": ENVIRONMENT,
        "provenance": {"by": "pytest-cutile 0.1.0", "commit": commit},
        "runs": [*runs],
        **changes,
    }


def accepted(reason: str, **more: str) -> dict[str, Any]:
    return {"provenance": {"by": "pytest-cutile 0.1.0", "commit": SHORT, "reason": reason, **more}}


def schema_3(**entries: dict[str, Any]) -> str:
    cases = {f"{name}[c]": each for name, each in entries.items()}
    return json.dumps({"schema": 3, "arch": "sm_90", "gpu": "NVIDIA H200", "entries": cases}, indent=1)


def schema_2(**entries: dict[str, Any]) -> str:
    text = schema_3(**entries).replace('"schema": 3', '"schema": 2')
    for name, old in (
        ("fingerprint", "identity"),
        ("reference_workload", "control"),
        ("workload_us", "control_us"),
    ):
        text = text.replace(f'"{name}"', f'"{old}"')
    return text


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sm_90-nvidia-h200.json"


def migrated(path, text: str) -> SpeedBaselines:
    path.write_text(text)
    assert main(["migrate", f"{path}"]) == 0
    file = read_speed(path)
    assert file is not None
    return file


@pytest.mark.parametrize("written", [schema_2, schema_3])
def test_runs_of_a_session_become_a_record(path, written):
    runs = (old_run(1, workload_us=50.5, clock_mhz=1980.0), old_run(1, 41.0), old_run(2))
    old = written(k=old_entry(*runs, reference_workload="copy of 96 MiB"))
    new = entry(record(1, runs=(run(workload_us=50.5, clock_mhz=1980.0), run(41.0))), record(2, 40.0))
    sessions = {f"s{day}": session(day, workload="copy of 96 MiB", commit=SHORT) for day in (1, 2)}
    assert migrated(path, old) == baselines({"k[c]": new}, sessions)


def test_a_session_that_was_split_over_cases_is_one(path):
    """It began with the first case; each GPU of it is a session of its own, as each environment is."""
    later: dict[str, Any] = {"at": "2025-11-01T11:00:00+00:00"}
    file = migrated(
        path,
        schema_3(
            a=old_entry(old_run(1, **later), reference_workload="mm"),
            b=old_entry(old_run(1), reference_workload="copy"),
            c=old_entry(old_run(1, gpu_uuid="GPU-2")),
            d=old_entry(old_run(1, **later), environment={"driver": "590"}),
        ),
    )
    sessions = {
        each.records[0].session: file.sessions[each.records[0].session] for each in file.entries.values()
    }
    assert sessions == {
        "s1": session(commit=SHORT, workload="copy, mm"),
        "s1-2": session(commit=SHORT, gpu_uuid="GPU-2"),
        "s1-3": session(commit=SHORT, environment={"driver": "590"}),
    }


def test_commits_are_those_of_the_sessions(path):
    """Schema 3 knows the commit of an entry's first session alone; a later one has another entry's."""
    other = "f" * 12
    file = migrated(
        path, schema_3(a=old_entry(old_run(1), old_run(2)), b=old_entry(old_run(2), commit=other))
    )
    assert {name: each.commit for name, each in file.sessions.items()} == {"s1": SHORT, "s2": other}


@pytest.mark.parametrize(
    ("commit", "kept"),
    [(f"{SHORT}+", f"{SHORT}+"), ("", ""), ("main", ""), ("abc", ""), ("-rf 0123456", ""), (COMMIT, COMMIT)],
)
def test_what_is_no_hash_is_no_commit(path, commit, kept):
    assert migrated(path, schema_3(k=old_entry(old_run(1), commit=commit))).sessions["s1"].commit == kept


def test_short_hashes_are_resolved_through_git(path, capsys):
    def git(*words: str) -> str:
        command = [
            "git",
            "-C",
            f"{path.parent}",
            "-c",
            "user.name=x",
            "-c",
            "user.email=x@example.org",
            *words,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    full = git("rev-parse", "HEAD")
    old = schema_3(
        a=old_entry(old_run(1), commit=full[:12]),
        b=old_entry(old_run(2), commit=f"{full[:7]}+"),
        c=old_entry(old_run(3), commit="0123456789ab"),
    )
    commits = {name: each.commit for name, each in migrated(path, old).sessions.items()}
    assert commits == {"s1": full, "s2": f"{full}+", "s3": "0123456789ab"}
    assert "1 commit not in this checkout: 0123456789ab" in capsys.readouterr().out


def test_accepted_slowdowns_move_the_anchor(path):
    own = old_run(3, 44.0, commit="f" * 12, reason="on this GPU alone", gpu_uuid="GPU-2")
    file = migrated(
        path,
        schema_3(
            a=old_entry(old_run(1), old_run(2), **accepted("exact division", drift="0.00100")),
            b=old_entry(old_run(1), old_run(2), own, {**own, "session": "s4"}),
        ),
    )
    moves = {key: [(r.moved, r.reason) for r in each.records] for key, each in file.entries.items()}
    none = ("", "")
    assert moves == {
        "a[c]": [("accepted", "exact division"), none],
        "b[c]": [none, none, ("accepted", "on this GPU alone"), none],
    }
    assert file.sessions["s3"].commit == "f" * 12


def test_published_figures_keep_what_is_said_of_them(path):
    figure: dict[str, Any] = {"median_us": 123.5, "margin": 0.1, "source": PUBLISHED.source}
    about = {"by": "a script", "printed": "1.0 TFLOPS", "margin": "why"}
    old = old_entry(published=figure, provenance=about, environment={"cuda": "13.1"})
    del old["fingerprint"], old["runs"]
    (new,) = migrated(path, schema_3(k=old)).entries.values()
    assert new == Entry(
        published=type(PUBLISHED)(work=WORK, **figure, printed="1.0 TFLOPS", environment={"cuda": "13.1"})
    )


def test_a_folder_of_older_files_is_rewritten(path, capsys):
    path.write_text(schema_2(k=old_entry(old_run(1))))
    static = path.with_name("sm_90-static.json")
    old = render_static(STATIC).replace('"schema": 2', '"schema": 1').replace("fingerprint", "identity")
    static.write_text(old)
    assert main(["migrate", f"{path.parent}"]) == 0
    assert capsys.readouterr().out.count("rewritten in the current format") == 2
    assert read_static(static, "sm_90") == STATIC
    before = path.read_text()
    assert main(["migrate", f"{path.parent}"]) == 0
    assert capsys.readouterr().out.count("is current") == 2
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"schema": 2', '"schema": 99'), "schema 99, this release reads 4. Upgrade"),
        (('"schema": 2', '"schema": 1'), "schema 1, this release reads 4"),
        (
            ('"spread"', '"sprd"'),
            "entries / k[c] / records / 0 / runs / 0': Object contains unknown field `sprd`",
        ),
        (('"entries"', '"cases"'), "it is not of the form of schema 2: KeyError('entries')"),
        (('"control_us"', '"controls_us"'), "unknown field `controls_us`"),
        (('"2025-', '"yesterday'), "it is not of the form of schema 3: ValueError("),
        (('"session"', '"sess"'), "it is not of the form of schema 3: KeyError('session')"),
        (('"identity": "abc"', '"identity": "\\u001b[2J"'), "identity': it has control characters"),
        (('"median_us": 40.0', '"median_us": -1'), "runs / 0 / burst_us': Expected `float` > 0"),
    ],
)
def test_what_cannot_be_migrated_stays_as_it_is(path, capsys, change, message):
    old = schema_2(k=old_entry(old_run(1, workload_us=5.0)))
    assert change[0] in old
    path.write_text(old.replace(*change))
    assert main(["migrate", f"{path}"]) == 2
    assert message in capsys.readouterr().err
    assert path.read_text() == old.replace(*change)


def test_a_file_that_is_missing_is_named(tmp_path, capsys):
    assert main(["migrate", f"{tmp_path / 'x.json'}"]) == 2
    assert "x.json: there is no such file" in capsys.readouterr().err
