"""How an option is declared: one row says all that this plugin does with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest

Fields = Mapping[str, Any]
"""Values of fields of `Settings`, by their names."""


class Repeat(Enum):
    """When the command that repeats a test passes an option on."""

    NEVER = auto()
    ALWAYS = auto()
    IF_INTERPRETED = auto()


def read_with_another(config: pytest.Config) -> Fields:
    """Return nothing: the option is read together with another one."""
    del config
    return {}


class Option(NamedTuple):
    """An option of the command line."""

    name: str
    """Name as the user types it: "--every-input"."""
    help: str
    metavar: str | None = None
    """What stands for its value in the help; None: a flag without a value, or one of `choices`."""
    choices: tuple[str, ...] = ()
    """The values that it takes; the first is the default."""
    type: Callable[[str], Any] | None = None
    """Converts the value."""
    const: str | None = None
    """The value where the option is given without one; None: it must have a value."""
    read: Callable[[pytest.Config], Fields] | None = None
    """Return fields of `Settings`, or raise `pytest.UsageError`; None: the field named like the option."""
    in_fresh_process: bool = True
    """Whether a fresh measuring process gets the option as given; otherwise it runs with the default."""
    repeat: Repeat = Repeat.NEVER
    """When the command that repeats a test passes the option on."""

    @property
    def dest(self) -> str:
        """The name in `config.option`: "every_input"."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def is_flag(self) -> bool:
        return self.metavar is None and not self.choices

    @property
    def default(self) -> str | bool | None:
        if self.is_flag:
            return False
        return self.choices[0] if self.choices else None

    def register(self, group: pytest.OptionGroup) -> None:
        if self.is_flag:
            group.addoption(self.name, action="store_true", help=self.help)
            return
        optional = {} if self.const is None else {"nargs": "?", "const": self.const}
        group.addoption(
            self.name,
            metavar=self.metavar or "|".join(self.choices),
            choices=self.choices or None,
            default=self.default,
            type=self.type,
            help=self.help,
            **optional,
        )

    def fields(self, config: pytest.Config) -> Fields:
        if self.read is not None:
            return self.read(config)
        return {self.dest: config.getoption(self.name)}

    def words(self, config: pytest.Config) -> list[str]:
        """Return the option as it is typed; nothing where it was not given."""
        value = config.getoption(self.name)
        if value == self.default:
            return []
        return [self.name if self.is_flag else f"{self.name}={value}"]
