"""What a module asks torch about the GPU while it is imported has an answer without one."""

import sys

import pytest
import torch

from pytest_cutile.tile.compiler.trace.launches import pretend_gpu
from pytest_cutile.tile.compiler.trace.questions import MOVE, QUESTIONS, questions_answered

ASKS = """
import torch
from torch.cuda import get_device_properties

SM_COUNT = torch.cuda.get_device_properties("cuda").multi_processor_count
CAPABILITY = torch.cuda.get_device_capability()
DEVICE, NAME = torch.cuda.current_device(), torch.cuda.get_device_name(0)
AVAILABLE, COUNT = torch.cuda.is_available(), torch.cuda.device_count()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that makes a module of some text, and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def make(text):
        name = f"cutile_tests_asks_{len(made)}"
        made.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        return __import__(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_plain_questions_are_answered(module):
    before = {name: getattr(torch.cuda, name) for name in QUESTIONS}
    with questions_answered(lambda: "sm_90"):
        asks = module(ASKS)
    assert asks.SM_COUNT == 132
    assert asks.CAPABILITY == (9, 0)
    assert asks.DEVICE == 0
    assert "H200" in asks.NAME or "H100" in asks.NAME
    assert not asks.AVAILABLE  # marks that skip tests ask that
    assert asks.COUNT == 0
    assert {name: getattr(torch.cuda, name) for name in QUESTIONS} == before


def test_a_module_that_keeps_a_question_is_answered_by_what_there_is_later(module):
    with questions_answered(lambda: "sm_90"):
        asks = module(ASKS)
        assert asks.get_device_properties(0).major == 9
    with pytest.raises((AssertionError, RuntimeError)):
        asks.get_device_properties(0)
    with pretend_gpu("sm_120"):
        assert asks.get_device_properties(0).major == 12


def test_an_import_while_a_gpu_is_pretended_is_answered(module):
    with pretend_gpu("sm_100"):
        asks = module(ASKS)
    assert asks.CAPABILITY == (10, 0)
    assert not asks.AVAILABLE


def test_without_an_architecture_torch_says_what_it_says(module):
    with (
        questions_answered(lambda: None),
        pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"),
    ):
        module(ASKS)


@pytest.mark.parametrize("pretended", [False, True])
def test_a_tensor_on_the_gpu_is_an_error_that_says_where_to_move_it(module, pretended):
    context = pretend_gpu("sm_90") if pretended else questions_answered(lambda: "sm_90")
    with pytest.raises((AssertionError, RuntimeError)) as caught, context:
        module('import torch\nTABLE = torch.ones(3, device="cuda")\n')
    assert caught.value.__notes__ == [MOVE]


def test_a_gpu_that_is_there_answers_by_itself(module, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _=None: "the real one")
    with questions_answered(lambda: pytest.fail("asked")):
        named = module("import torch\nNAME = torch.cuda.get_device_name()\n")
    assert named.NAME == "the real one"
