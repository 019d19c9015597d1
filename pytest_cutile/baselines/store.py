"""The store of baselines: what the rest of the package asks, wherever and however they are kept.

All that reads or writes raises BaselineError where baselines cannot be used or written, or belong to another
GPU. Then nothing was changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_cutile.baselines import files
from pytest_cutile.baselines.entries import SpeedBaselines, StaticBaselines, StaticEntry
from pytest_cutile.baselines.errors import BaselineError
from pytest_cutile.words.quantities import counted

RenewSpeed = Callable[[SpeedBaselines], SpeedBaselines]
"""Returns the baselines to store for those that are stored now, which are empty where there is no file."""
RenewStatic = Callable[[StaticEntry | None], StaticEntry | None]
"""Returns the entry to store for the entry that is stored now; None stores nothing."""


class BaselineStore:
    """The baselines at one location, as they were when the run first asked for them."""

    def __init__(self, location: Path, rootpath: Path) -> None:
        """Open the store at an absolute path; messages leave `rootpath` out of names."""
        self._location = location
        self._rootpath = rootpath
        self._speed: dict[tuple[str, str], SpeedBaselines | None] = {}
        self._static: dict[str, StaticBaselines | None] = {}

    def speed(self, arch: str, gpu: str) -> SpeedBaselines | None:
        if (arch, gpu) not in self._speed:
            self._speed[arch, gpu] = files.read_speed(files.speed_path(self._location, arch, gpu))
        return self._speed[arch, gpu]

    def static(self, arch: str) -> StaticBaselines | None:
        if arch not in self._static:
            self._static[arch] = files.read_static(files.static_path(self._location, arch), arch)
        return self._static[arch]

    def static_entry(self, arch: str, key: str) -> StaticEntry | None:
        baselines = self.static(arch)
        return None if baselines is None else baselines.entries.get(key)

    def static_architectures(self) -> set[str]:
        return files.static_architectures(self._location)

    def speed_name(self, arch: str, gpu: str) -> str:
        return self._shown(files.speed_path(self._location, arch, gpu))

    def static_name(self, arch: str) -> str:
        return self._shown(files.static_path(self._location, arch))

    def record_speed(self, arch: str, gpu: str, renew: RenewSpeed) -> None:
        """Store `renew(the baselines as they are now)`; nobody else writes meanwhile."""
        record_speed(files.speed_path(self._location, arch, gpu), arch=arch, gpu=gpu, renew=renew)

    def record_static(self, arch: str, key: str, renew: RenewStatic) -> None:
        """Store `renew(the entry as it is now)` under `key`; nobody else writes meanwhile."""
        with files.rewriting(files.static_path(self._location, arch)) as path:
            existing = files.read_static(path, arch) or StaticBaselines(arch=arch)
            entry = renew(existing.entries.get(key))
            if entry is not None:
                entries = {**existing.entries, key: entry}
                files.write_static(path, StaticBaselines(arch=arch, entries=entries))

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._rootpath) if path.is_relative_to(self._rootpath) else path)


# -- files that a user names --------------------------------------------------------------------------


def check_location(location: Path) -> None:
    """Refuse a location that baselines cannot be read from; one that does not exist is no error.

    Raises:
        BaselineError: it holds static baselines alone, or cannot be read.
    """
    if files.is_static(location):
        raise BaselineError(f"{location}: static baselines are a file per architecture; give their folder")
    if location.suffix == ".json":
        files.read_speed(location)


def read_speed(path: Path) -> SpeedBaselines:
    _check_speed_file(path)
    baselines = files.read_speed(path)
    if baselines is None:
        raise BaselineError(f"{path}: there is no such file")
    return baselines


def read_speed_target(path: Path) -> SpeedBaselines | None:
    """Return the speed baselines in a file that is to be written; None when there is none yet."""
    _check_speed_file(path)
    if path.suffix != ".json":
        raise BaselineError(f"{path}: baselines are read from files whose names end in .json")
    return files.read_speed(path)


def record_speed(path: Path, *, arch: str, gpu: str, renew: RenewSpeed) -> None:
    """Store `renew(the baselines as they are now)` in a file; nobody else writes meanwhile."""
    with files.rewriting(path) as target:
        existing = files.read_speed(target) or SpeedBaselines(arch=arch, gpu=gpu)
        if (existing.arch, existing.gpu) != (arch, gpu):
            raise BaselineError(
                f"{path} belongs to {existing.gpu} ({existing.arch}), not to {gpu} ({arch}): nothing was "
                "written. Give --perf-baseline a directory, and each platform gets its own file."
            )
        renewed = renew(existing)
        if renewed != existing:
            files.write_speed(target, renewed)


def _check_speed_file(path: Path) -> None:
    if path.is_dir():
        raise BaselineError(f"{path} is a folder: give a file in it, <arch>-<gpu>.json")
    if files.is_static(path):
        raise BaselineError(
            f"{path} holds static baselines, of code and not of speed: give a file <arch>-<gpu>.json"
        )


def read_all(path: Path) -> tuple[list[SpeedBaselines], list[StaticBaselines]]:
    """Return the speed and static baselines in a folder, or in one file.

    Raises:
        BaselineError: there is nothing at `path`, or a file cannot be used.
    """
    if not path.exists():
        raise BaselineError(
            f"{path}: there is no such file or folder (pytest --update-baselines records baselines)"
        )
    by_path = _read(path)
    return (
        [baselines for baselines in by_path.values() if isinstance(baselines, SpeedBaselines)],
        [baselines for baselines in by_path.values() if isinstance(baselines, StaticBaselines)],
    )


def summarize(folder: Path) -> list[str]:
    """Return a line for each file of baselines in a folder: whose they are, and how many cases."""
    return [
        f"{path.name}: {counted(len(baselines.entries), 'timed case')} on {baselines.gpu}"
        if isinstance(baselines, SpeedBaselines)
        else f"{path.name}: {counted(len(baselines.entries), 'compiled case')}"
        for path, baselines in _read(folder).items()
    ]


def _read(path: Path) -> dict[Path, SpeedBaselines | StaticBaselines]:
    """Return the baselines in each file of a folder, or in the file itself; none in a file that is gone."""
    by_file = {
        file: files.read_static(file, files.static_arch(file))
        if files.is_static(file)
        else files.read_speed(file)
        for file in _files(path)
    }
    return {file: baselines for file, baselines in by_file.items() if baselines is not None}


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.json")) if path.is_dir() else [path]
