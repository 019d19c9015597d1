"""The Python of the pages about models runs, with a tiny model in place of a large one."""

from typing import Any

import pytest
import torch

from models.device import on_gpu
from pytest_cutile import Case
from tests.pages import blocks_of

NAMES = {"qwen2-7b": "tiny-qwen2", 'device="cuda"': 'device="cpu"', "max_new_tokens=50": "max_new_tokens=2"}


def run(text: str, changes: dict[str, str], **known: object) -> dict[str, Any]:
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    exec(text, known)
    return known


def python_of(page: str) -> list[str]:
    return [block.text for block in blocks_of(page) if block.language == "python"]


PAGE = "docs/how-to/run-a-model-with-kernels.md"


@pytest.mark.parametrize("page", [PAGE, "models/README.md"])
def test_a_model_runs_with_kernels(page, capsys):
    tokens = torch.randint(1, 100, (1, 6))
    with on_gpu("tiny-qwen2"):
        known = run(python_of(page)[0], NAMES, tokens=tokens)
    assert known["replaced"].counts["rms_norm"]
    assert "rms_norm" in capsys.readouterr().out


def test_a_tiny_model_runs_interpreted():
    _, text = python_of(PAGE)
    assert run(text, {})["logits"].isfinite().all()


def test_a_case_may_need_an_architecture():
    (text,) = python_of("docs/how-to/architectures.md")
    known = run(f"case = {text}", {"{...}": '{"n": 4096}'}, Case=Case)
    assert known["case"].min_arch == "sm_90"
