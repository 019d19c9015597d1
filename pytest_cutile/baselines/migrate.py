"""Files of older schemas, rewritten once. The rest of the package reads the current schema alone."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cutile.baselines import files
from pytest_cutile.baselines.errors import BaselineError

Resolve = Callable[[str], str]
"""Returns the full hash of a commit for a short one; the same one where it is not known."""
_Document = dict[str, Any]


def migrate(path: Path, resolve: Resolve) -> bool:
    """Rewrite a file of baselines in the current schema; return whether it was of an older one."""
    is_static = files.is_static(path)
    current = files.STATIC_SCHEMA if is_static else files.SPEED_SCHEMA
    steps: Mapping[int, Callable[[_Document], _Document]] = (
        {1: _static_1_to_2}
        if is_static
        else {2: _speed_2_to_3, 3: lambda data: _speed_3_to_4(data, functools.cache(resolve))}
    )
    with files.rewriting(path) as target:
        data = files.read_json(target)
        if data is None:
            raise BaselineError(f"{path}: there is no such file")
        schema = data["schema"]
        if schema not in steps:
            files.check_schema(target, data, current)
            return False
        while schema in steps:
            try:
                data = steps[schema](data)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise BaselineError(f"{path}: it is not of the form of schema {schema}: {error!r}") from error
            schema = data["schema"]
        if is_static:
            files.write_static(target, files.static_baselines(target, data))
        else:
            files.write_speed(target, files.speed_baselines(target, data))
    return True


def _speed_2_to_3(data: _Document) -> _Document:
    names = {"identity": "fingerprint", "control": "reference_workload", "control_us": "workload_us"}

    def renamed(entry: _Document) -> _Document:
        runs = {"runs": [_renamed(run, names) for run in entry["runs"]]} if "runs" in entry else {}
        return {**_renamed(entry, names), **runs}

    entries = {key: renamed(entry) for key, entry in data["entries"].items()}
    return {**data, "schema": 3, "entries": entries}


def _static_1_to_2(data: _Document) -> _Document:
    entries = {key: _renamed(entry, {"identity": "fingerprint"}) for key, entry in data["entries"].items()}
    return {**data, "schema": 2, "entries": entries}


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> _Document:
    return {names.get(key, key): value for key, value in values.items()}


# -- schema 3: an entry holds runs of several sessions -------------------------------------------------


def _speed_3_to_4(data: _Document, resolve: Resolve) -> _Document:
    """Make a record of an entry's runs of one session and GPU, oldest first.

    Schema 3 knows the commit of an entry's first session. A later session has the commit of an entry in which
    it is the first one.
    """
    began: dict[tuple[str, str], str] = {}
    for entry in data["entries"].values():
        for run in entry.get("runs", ()):
            session, at = (run["session"], run["gpu_uuid"]), _in_utc(run["at"])
            began[session] = min(at, began.get(session, at))
    cases = {}
    commits = defaultdict(set)
    for key, entry in data["entries"].items():
        runs_of = defaultdict(list)
        for run in entry.get("runs", ()):
            runs_of[run["session"], run["gpu_uuid"]].append(run)
        cases[key] = sorted(runs_of.items(), key=lambda item: (began[item[0]], item[0]))
        for session, _ in cases[key][:1]:
            commits[session].add(entry["provenance"].get("commit", ""))
    sessions: _Document = {}
    entries = {}
    for key, groups in cases.items():
        entry = data["entries"][key]
        about = entry["provenance"]
        records: list[_Document] = []
        for session, runs in groups:
            known = [*commits[session]] if records and len(commits[session]) == 1 else []
            commit = runs[0].get("commit") or [*known, about.get("commit", "")][0]
            facts = {
                "at": began[session],
                "gpu_uuid": session[1],
                "commit": _full(commit, resolve),
                "by": about.get("by", ""),
                "environment": entry["environment"],
            }
            name = _named(sessions, session[0], facts, entry.get("reference_workload", ""))
            reason = runs[0].get("reason") or ("" if records else about.get("reason", ""))
            is_new = reason not in ("", *(record.get("reason") for record in records))
            accepted = {"moved": "accepted", "reason": reason} if is_new else {}
            records.append({**_record(entry, runs), "session": name, **accepted})
        published = {"published": _published(entry)} if "published" in entry else {}
        entries[key] = {**({"records": records} if records else {}), **published}
    return {**data, "schema": 4, "sessions": sessions, "entries": entries}


def _record(entry: _Document, runs: Sequence[_Document]) -> _Document:
    elsewhere = ("environment", "provenance", "reference_workload", "runs", "published")
    of_session = ("at", "session", "gpu_uuid", "commit", "reason")
    times = [_renamed(_without(run, of_session), {"median_us": "burst_us"}) for run in runs]
    return {**_without(entry, elsewhere), "runs": times}


def _published(entry: _Document) -> _Document:
    printed = entry["provenance"].get("printed")
    return {
        **entry["published"],
        "work": entry["work"],
        "environment": entry["environment"],
        **({"printed": printed} if printed else {}),
    }


def _named(sessions: _Document, session: str, facts: _Document, workload: str) -> str:
    """Return the name of a session with these facts, which is added if it is new."""
    names = (session, *(f"{session}-{number}" for number in range(2, 1 + 2 + len(sessions))))
    name = next(name for name in names if _without(sessions.get(name, facts), ("workload",)) == facts)
    workloads = {*sessions.get(name, {}).get("workload", "").split(", "), workload} - {""}
    sessions[name] = {**facts, "workload": ", ".join(sorted(workloads))}
    return name


def _in_utc(at: str) -> str:
    time = dt.datetime.fromisoformat(at)
    return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).astimezone(dt.UTC).isoformat()


def _full(commit: str, resolve: Resolve) -> str:
    """Return the full hash behind an abbreviated one; empty where it is no hash."""
    short = commit.removesuffix("+")
    return resolve(short) + commit[len(short) :] if re.fullmatch("[0-9a-f]{7,64}", short) else ""


def _without(values: Mapping[str, Any], names: Sequence[str]) -> _Document:
    return {name: value for name, value in values.items() if name not in names}
