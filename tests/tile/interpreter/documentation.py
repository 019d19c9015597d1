"""Finds the examples in the documentation of the installed cuda-tile, with the output that it promises."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cuda.tile as ct

_DIRECTIVE = re.compile(r"^(?P<indent> *)\.\. (?P<name>testcode|testoutput)::.*$")
_OPTION = re.compile(r"^ *:\w+:")

_IN_A_KERNEL = """\
import cuda.tile as ct
import torch

@ct.kernel
def kernel():
{body}

ct.launch(torch.cuda.current_stream(), (1,), kernel, ())
"""
_ALONE = """\
import cuda.tile as ct
import torch

stream = torch.cuda.current_stream()

{body}
"""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example."""

    name: str
    """What it documents, and which of its examples it is."""
    code: str
    """The whole program."""
    output: str | None
    """What it prints; None: the documentation does not say."""


def examples() -> list[Example]:
    """Return all examples of cuda-tile's public names."""
    examples = []
    seen = set()
    for name, member in _members("ct", ct):
        text = inspect.getdoc(member) or ""
        if text in seen:
            continue
        seen.add(text)
        for number, (code, output) in enumerate(_directives(text)):
            examples.append(Example(name=f"{name}-{number}", code=code, output=output))
    return examples


def _members(prefix: str, owner: Any) -> Iterator[tuple[str, Any]]:
    for name in sorted(vars(owner)):
        member = getattr(owner, name, None)
        if name.startswith("_") or not (inspect.isclass(member) or inspect.isroutine(member)):
            continue
        if not member.__module__ or not member.__module__.startswith("cuda.tile"):
            continue
        yield f"{prefix}.{name}", member
        if inspect.isclass(member):
            yield from _members(f"{prefix}.{name}", member)


def _directives(text: str) -> Iterator[tuple[str, str | None]]:
    blocks = []
    lines = text.splitlines()
    for at, line in enumerate(lines):
        match = _DIRECTIVE.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        inside = []
        for following in lines[at + 1 :]:
            if following.strip() and len(following) - len(following.lstrip()) <= indent:
                break
            inside.append(following)
        options = [line for line in inside if _OPTION.match(line)]
        body = textwrap.dedent("\n".join(line for line in inside if not _OPTION.match(line))).strip("\n")
        blocks.append((match["name"], body, " ".join(options)))
    for at, (name, body, given) in enumerate(blocks):
        if name != "testcode":
            continue
        output = blocks[at + 1][1] if at + 1 < len(blocks) and blocks[at + 1][0] == "testoutput" else None
        if "kernel_wrapper" in given:
            code = _IN_A_KERNEL.format(body=textwrap.indent(body, "    "))
        else:
            code = _ALONE.format(body=body)
        yield code, output
