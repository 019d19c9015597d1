"""The keys of configuration files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from pytest_cutile.pytest_parts.options.option import Fields

STATIC_MARGIN = 0.1
"""The default of `cutile_static_margin`."""
_SIMILAR = 0.7
"""Similarity of two names by difflib above which one may be meant by the other; all names begin alike."""
# A number of its own in a TOML file; pytest before 8.4 knows only texts.
_NUMBER = "float" if pytest.version_tuple >= (8, 4) else None


def _positive(name: str, number: str | float) -> float:
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise pytest.UsageError(f"{name} = {number!r}: expected a positive number")
    return value


def _fraction(name: str, number: str | float | None) -> float | None:
    if number is None:
        return None
    value = _positive(name, number)
    if value >= 1:
        raise pytest.UsageError(f"{name} = {value}: expected a fraction below 1, such as 0.03 for 3 %")
    return value


class IniKey(NamedTuple):
    """A key of configuration files."""

    name: str
    help: str
    field: str
    """The field of `Settings` that takes the value."""
    parse: Callable[[str, Any], Any] = lambda _, value: value
    """Converts the value; the first argument is the key's name, for messages."""
    default: Any = None
    type: Any = None


INI_KEYS = (
    IniKey(
        name="cutile_kernels",
        field="kernels",
        help="Modules and packages whose SPEC or SPECS (pytest_cutile.KernelSpec) are collected and gated.",
        type="linelist",
        default=[],
        parse=lambda _, lines: tuple(lines),
    ),
    IniKey(
        name="cutile_arch",
        field="default_arch",
        help="Architecture (or comma-separated list) to gate for when there is no GPU and no --arch.",
        default="sm_121",
    ),
    IniKey(
        name="cutile_perf_margin",
        field="perf_margin",
        help="Slowdown, as a fraction, that the speed gate must not miss.",
        parse=_fraction,
        type=_NUMBER,
    ),
    IniKey(
        name="cutile_static_margin",
        field="static_margin",
        help="Growth of the predicted time or of spills, as a fraction, above which a kernel is worse.",
        default=STATIC_MARGIN,
        parse=_fraction,
        type=_NUMBER,
    ),
    IniKey(
        name="cutile_compile_timeout",
        field="compile_timeout_s",
        help="Seconds after which the compilation of one kernel counts as hung.",
        default=300.0,
        parse=_positive,
        type=_NUMBER,
    ),
    IniKey(
        name="cutile_launch_seconds",
        field="launch_seconds",
        help="Seconds after which a launch on a GPU counts as hung: its process is ended, and replaced.",
        default=60.0,
        parse=_positive,
        type=_NUMBER,
    ),
)


def add_ini_keys(parser: pytest.Parser) -> None:
    for key in INI_KEYS:
        parser.addini(key.name, key.help, type=key.type, default=key.default)


def read_ini(config: pytest.Config) -> Fields:
    _refuse_unknown_keys(config)
    return {key.field: key.parse(key.name, _value(config, key)) for key in INI_KEYS}


def _value(config: pytest.Config, key: IniKey) -> Any:
    try:
        return config.getini(key.name)
    except (TypeError, ValueError, pytest.UsageError) as error:  # which of them depends on pytest
        raise pytest.UsageError(f"{key.name}: expected a number: {error}") from None


def refuse_unknown_markers(config: pytest.Config) -> None:
    """Refuse markers in `-m` that begin with "cutile_" and that nobody has registered: nothing would run."""
    for name in re.findall(r"\bcutile_\w+", config.option.markexpr or ""):
        known = [re.split(r"\W", line, maxsplit=1)[0] for line in config.getini("markers")]
        _refuse_unknown("-m: the marker", name, known)


def _refuse_unknown_keys(config: pytest.Config) -> None:
    """Refuse unknown keys that begin with "cutile": a margin that was mistyped would not hold."""
    given = config._inicfg if hasattr(config, "_inicfg") else config.inicfg  # noqa: SLF001 - deprecated in 9
    for name in given:
        if not name.startswith(("cutile_", "cutile-")):
            continue
        _refuse_unknown("the ini key", name, [key.name for key in INI_KEYS])


def _refuse_unknown(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise pytest.UsageError(f"{what} {name!r} is unknown: {hint}")
