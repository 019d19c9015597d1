"""Every example of cuda-tile's own documentation prints what the documentation says."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.compiler import CompileError
from tests.tile.interpreter.documentation import Example, examples

EXAMPLES = examples()
MINIMUM = 90
"""Examples that cuda-tile 1.7 has: far fewer would mean that they are not found any more."""


def test_the_examples_are_found() -> None:
    assert len(EXAMPLES) >= MINIMUM
    assert sum(example.output is not None for example in EXAMPLES) >= MINIMUM


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_prints_what_is_documented(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "example.py"  # cuda-tile reads a kernel's source
    file.write_text(example.code, encoding="utf-8")
    with interpret("sm_100"):
        run = functools.partial(exec, compile(example.code, str(file), "exec"), {"__name__": "example"})
        if example.output is not None and example.output.startswith("Traceback"):
            # The documentation's "..." stands for anything.
            message = example.output.rpartition("Error: ")[2].rpartition("Exception: ")[2]
            pattern = ".*".join(re.escape(part) for part in message.split("..."))
            with pytest.raises(CompileError, match=pattern):
                run()
            return
        run()
    printed = capsys.readouterr().out
    if example.output is not None:
        assert _lines(printed) == _lines(example.output)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]
