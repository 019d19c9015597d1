"""Each block of code in the documentation is one that works: options, modules, names and files are there."""

import argparse
import ast
import configparser
import importlib
import importlib.util
import inspect
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import pytest_cutile
from pytest_cutile.cli import COMMANDS
from pytest_cutile.pytest_parts.options.arch import add_arch_option
from pytest_cutile.words.platforms.architectures import normalize_architecture
from tests.pages import PAGES, ROOT, SMALL_PAGES, Block, blocks_of, commands_of, name_of

BLOCKS = [block for page in (*PAGES, *SMALL_PAGES) for block in blocks_of(page)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = {"pytest_cutile", *PROJECT["tool"]["importlinter"]["root_packages"]}
OTHER_PROGRAMS = {
    ".",
    "cp",
    "exit",
    "gh",
    "grep",
    "make",
    "pre-commit",
    "tox",
    "towncrier",
    "true",
    "if",
    "then",
    "fi",
}
"""Programs and words of the shell whose arguments are not checked."""
OTHER_PLUGINS = {"--html": "pytest-html"}
"""Options of plugins that the tests do not need, and the name of the plugin."""


class Parsed(BaseException):
    """A program has accepted its arguments."""


class Commands:
    """Checks commands by the parsers of the programs that they call, and runs none."""

    def __init__(self, config: pytest.Config, patch: pytest.MonkeyPatch) -> None:
        self._config, self._patch = config, patch
        add_arch_option(config._parser, ["--arch"])  # the plugin adds it only to runs that have it
        self._programs: dict[str, Callable[[list[str]], None]] = {
            "pytest": self._pytest,
            "pytest-cutile": lambda words: self._main("pytest_cutile.cli", words),
            "python": self._python,
            "pip": self._pip,
            "git": self._git,
            "sh": self._shell,
        }

    def check(self, words: Sequence[str]) -> None:
        """Raise what is wrong with a command."""
        program, *arguments = words
        name = program.removeprefix(".venv/bin/").replace("python3", "python")
        if name.startswith("scripts/"):
            text = (ROOT / name).read_text(encoding="utf-8")
            assert all(word in text for word in arguments if word.startswith("-"))
        elif name not in OTHER_PROGRAMS:
            self._programs[name](arguments)

    def _pytest(self, arguments: list[str]) -> None:
        known = [
            word
            for word in arguments
            if not word.startswith("@") and word.partition("=")[0] not in OTHER_PLUGINS
        ]
        options, unknown = self._config._parser.parse_known_and_unknown_args(known)
        assert unknown == []
        for path in options.file_or_dir:
            assert "NAME" in path or (ROOT / path).exists(), f"{path} is not there"
        for arch in (options.cutile_asked_arch or "all").split(","):
            assert arch in ("all", "native", "sm_NN") or normalize_architecture(arch) == arch
        registered = {re.split(r"\W", line)[0] for line in self._config.getini("markers")}
        assert {*re.findall(r"\w+", options.markexpr or "")} - {"and", "or", "not"} <= registered

    def _python(self, arguments: list[str]) -> None:
        assert arguments[0] == "-m"
        module, *rest = arguments[1:]
        if module == "pip":
            self._pip(rest)
        elif module.partition(".")[0] in OURS:
            self._main(module, rest)
        else:
            assert importlib.util.find_spec(module), f"there is no module {module}"

    def _main(self, module: str, arguments: list[str]) -> None:
        """Let the function `main` of a module parse its arguments, and stop it then."""
        spec = importlib.util.find_spec(module)
        assert spec, f"there is no module {module}"
        if spec.submodule_search_locations:
            module += ".__main__"
            spec = importlib.util.find_spec(module)
        assert spec
        assert spec.origin
        if "parse_args(" not in Path(spec.origin).read_text(encoding="utf-8"):
            assert not arguments, f"{module} takes no arguments"
            return
        parse_args = argparse.ArgumentParser.parse_args

        def parse_and_stop(parser: argparse.ArgumentParser, args: Sequence[str] | None = None) -> None:
            parse_args(parser, args)
            raise Parsed

        main = importlib.import_module(module).main
        with self._patch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
            patch.setattr(sys, "argv", [module, *arguments])
            with pytest.raises(Parsed):
                main()

    def _pip(self, arguments: list[str]) -> None:
        extras = [
            name for word in arguments for names in re.findall(r"\[(.*)\]", word) for name in names.split(",")
        ]
        assert {*extras} <= PROJECT["project"]["optional-dependencies"].keys()
        for option, value in itertools.pairwise(arguments):
            assert option != "-c" or (ROOT / value).exists()
            assert option != "--group" or value in PROJECT["dependency-groups"]

    def _git(self, arguments: list[str]) -> None:
        listed = subprocess.run(
            ["git", "--list-cmds=main"], capture_output=True, text=True, check=True
        ).stdout.split()
        assert arguments[0] in listed
        if arguments[:2] == ["bisect", "run"]:
            self.check(arguments[2:])

    def _shell(self, arguments: list[str]) -> None:
        option, line = arguments
        assert option == "-c"
        for words in commands_of(line):
            self.check(words)


@pytest.fixture
def commands(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(pytestconfig, monkeypatch)


def check_python(text: str) -> None:
    """Raise what is wrong with a text: its syntax, what it imports of this project, names of arguments."""
    public = vars(pytest_cutile).copy()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            public |= {alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in public:
            parameters = inspect.signature(public[node.func.id]).parameters
            assert {keyword.arg for keyword in node.keywords} <= parameters.keys(), ast.unparse(node)


def scripts_of(data: Any) -> Iterator[str]:
    """Yield the lines of all scripts in a file of GitLab."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from value if key == "script" else scripts_of(value)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_what_it_says(block: Block, commands: Commands, pytestconfig: pytest.Config) -> None:
    match block.language:
        case "shell" | "console":
            assert block.commands
            for words in block.commands:
                commands.check(words)
        case "python":
            check_python(block.text)
        case "ini":
            parser = configparser.ConfigParser()
            parser.read_string(block.text)
            assert parser.sections() == ["pytest"]
            assert {*parser["pytest"]} <= pytestconfig._parser._inidict.keys()
        case "yaml":
            for line in scripts_of(yaml.safe_load(block.text)):
                for words in commands_of(line):
                    commands.check(words)
        case "text":
            pass
        case directive:  # of Sphinx, which the test of the site builds
            assert re.fullmatch(r"\{[\w-]+\}", directive), f"no language: {directive!r}"


def commands_in_sentences(page: Path) -> Iterator[list[str]]:
    """Yield the commands in a page's sentences and tables, of optional parts and choices the first."""
    for span in re.findall(
        r"`((?:pytest|pytest-cutile|python -m) [^`\n]+)`", page.read_text(encoding="utf-8")
    ):
        (words,) = commands_of(re.sub(r"\\\|[^\]]*|[\[\]]|\.\.\.", "", span))
        yield words


@pytest.mark.parametrize("page", [*PAGES, *SMALL_PAGES], ids=name_of)
def test_a_command_in_a_sentence_can_be_typed(page: Path, commands: Commands) -> None:
    for words in commands_in_sentences(page):
        match words:
            case ["pytest-cutile", command]:
                assert command in COMMANDS
            case ["python", "-m", module]:
                assert importlib.util.find_spec(module)
            case _:
                commands.check(words)


def test_every_command_is_listed() -> None:
    listed = {
        words[1]
        for words in commands_in_sentences(ROOT / "docs/reference/options.md")
        if words[0] == "pytest-cutile"
    }
    assert listed == COMMANDS.keys()
