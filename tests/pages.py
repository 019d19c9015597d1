"""The pages of the documentation, and the blocks that they show.

An indented block has commands, as they are typed into a shell. A fenced block names its language: `console`
is a session, in which `$ ` begins a command; `text` is what a program prints.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "studies").rglob("README.md")),
]
SMALL_PAGES = [
    ROOT / "changelog.d" / "README.md",
    ROOT / "models" / "README.md",
    *sorted((ROOT / "examples").rglob("README.md")),
]

_BLOCK = re.compile(
    r"^```(?P<language>\S*)[^\n]*\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?:    [^\n]*\n|\n(?=    ))+)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of a page."""

    page: str
    """The page's path in the repository."""
    line: int
    """The block's first line."""
    language: str
    """What the fence says; `shell` if the block is indented."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command in a block of `shell` or `console`."""
        lines = self.text.replace("\\\n", "").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [words for line in lines for words in commands_of(line) if words]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path | str) -> Iterator[Block]:
    """Yield the blocks of a page, which is given by its path, or by its path in the repository."""
    page = ROOT / page
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        indented = match["indented"]
        yield Block(
            page=name_of(page),
            line=text.count("\n", 0, match.start()) + 1,
            language=match["language"] if indented is None else "shell",
            text=match["fenced"] if indented is None else re.sub("^    ", "", indented, flags=re.MULTILINE),
        )


def commands_of(line: str) -> Iterator[list[str]]:
    """Yield the words of each command in a line of shell, without redirections and comments."""
    while substituted := re.search(r"\$\(([^()]*)\)", line):
        yield from commands_of(substituted[1])
        line = line.replace(substituted[0], "OUTPUT")
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if re.fullmatch(r"[&|;()]+", word):
            yield words
            words = []
        elif re.fullmatch(r"[<>&]+", word):
            next(lexer)  # the file
        else:
            words.append(word)
    yield words


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page shows: blocks whose first line is a comment with a file's name."""
    named = ((re.match(r"# (\S+\.\w+)\n", block.text), block.text) for block in blocks_of(page))
    return {match[1]: text for match, text in named if match}


def missing_lines(shown: str, output: str) -> list[str]:
    """Return the lines of a shown output that a real one lacks.

    Numbers, commits, bars and widths of columns may differ, and `...` is what the page leaves out.
    """
    lines = (line.strip() for line in shown.splitlines() if not line.startswith("$ "))
    return [line for line in lines if not re.search(_pattern_of(line), output)]


def _pattern_of(line: str) -> str:
    left_out, *alike = (r"\.\.\.", r"[0-9a-f]{7,}", r"\d[\d.,]*", r"\s+", r"--+", r"[▁-█]+")
    parts = re.split(f"({'|'.join((left_out, *alike))})", line)
    patterns = {left_out: ".*"} | {shape: shape for shape in alike}
    return "".join(
        next((pattern for shape, pattern in patterns.items() if re.fullmatch(shape, part)), re.escape(part))
        for part in parts
    )
