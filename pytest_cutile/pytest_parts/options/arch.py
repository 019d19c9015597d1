"""The option `--arch`, a name that other plugins and conftests use, too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_cutile.pytest_parts.options.option import Fields

_HELP = (
    "GPU architectures to gate kernels for: a comma-separated list (sm_90,sm_121), 'native' for the GPU at "
    "hand (the default where there is one), or 'all' that the installed compiler knows. Kernels are compiled "
    "for each of them; a GPU is used only if its own architecture is among them (see --correct-on)."
)
_OWN_DEST = "cutile_asked_arch"


def hide_arch_from_early_parsing(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Keep the value of `--arch`, which is registered later, from being taken for a test path.

    Else pytest would not load the conftests of `testpaths`.
    """
    if "--arch" not in args:
        return
    at = args.index("--arch")
    namespace = parser.parse_known_args([*args[:at], *args[at + 2 :]])
    early_config.known_args_namespace.file_or_dir = namespace.file_or_dir


def add_arch_option(parser: pytest.Parser, args: Sequence[str]) -> None:
    """Register `--arch` if the command line needs it and no plugin or conftest has one, whose value wins.

    It must wait until the initial conftests are loaded: a conftest that defines `--arch` itself gets an error
    if the name is taken, and loses its other options with it.
    """
    if not any(arg in ("-h", "--help", "--arch") or arg.startswith("--arch=") for arg in args):
        return
    try:
        _, unknown = parser.parse_known_and_unknown_args(["--arch=native"])
    except (pytest.UsageError, ValueError, TypeError):  # another plugin's --arch, which refuses "native"
        return
    if unknown:
        group = parser.getgroup("cutile")
        group.addoption("--arch", metavar="ARCH[,ARCH...]", dest=_OWN_DEST, help=_HELP)


def read_arch(config: pytest.Config) -> Fields:
    """Return the fields of `Settings` that `--arch` decides, whoever registered it."""
    own = config.getoption(_OWN_DEST, None)
    value = own if own is not None else config.getoption("--arch", None)
    fields = {"asked": (), "own_option": own is not None, "foreign_arch": None}
    if value is None:
        return fields
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    from pytest_cutile.words.platforms.architectures import ArchitectureError

    try:
        return {**fields, "asked": _parse(text)}
    except ArchitectureError as error:
        if own is None:
            # Somebody else's --arch (a network's architecture, say): no error before a gate needs one.
            return {**fields, "foreign_arch": text}
        raise pytest.UsageError(f"--arch: {error}; {_known_architectures()}") from error


def _parse(text: str) -> tuple[str, ...]:
    """Return the canonical names in a comma-separated list; "native" and "all" stay as they are."""
    from pytest_cutile.words.platforms.architectures import ArchitectureError, normalize_architecture

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ArchitectureError("no architecture is named")
    names = [
        part.lower() if part.lower() in ("native", "all") else normalize_architecture(part) for part in parts
    ]
    return tuple(dict.fromkeys(names))


def _known_architectures() -> str:
    from pytest_cutile.tile.compiler.toolchain import CompilerMissing, supported_architectures

    try:
        return f"the installed tileiras has {', '.join(supported_architectures())}"
    except CompilerMissing as error:
        return str(error)
