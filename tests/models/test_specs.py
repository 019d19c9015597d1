from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from models.counts import cache_bytes, parameters
from models.specs import SPECS
from models.weights import make_config
from pytest_cutile import ModelSpec


def test_counts_are_those_of_the_real_models():
    dense, experts, head = parameters("qwen2-7b")
    embedding = 152064 * 3584
    assert experts == 0
    assert head == embedding
    assert dense + head + embedding == 7_615_616_512  # Qwen/Qwen2-7B on the Hugging Face hub
    assert cache_bytes(make_config("deepseek-v2-lite")) == 27 * (512 + 64) * 2
    names = {spec.name: [case.name for case in spec.cases] for spec in SPECS}
    assert names["qwen2"] == ["tiny-prefill-2x16", "7b-prefill-16x4096", "7b-decode-16x4096"]
    for spec in SPECS:
        assert isinstance(spec, ModelSpec)
        tiny, prefill, decode = (spec.work_of(case) for case in spec.cases)
        assert tiny.flops < 5e9  # is interpreted unasked
        assert prefill.tokens == prefill.amounts["tokens/s"] > decode.tokens
        assert not decode.flops  # bound by memory
    # 16 billion parameters; a token uses 2.4 billion of them.
    dense, experts, head = parameters("deepseek-v2-lite")
    assert 15.4e9 < dense + experts + 2 * head < 16e9


def test_collecting_models_imports_neither_torch_nor_transformers():
    code = "import sys, models.specs; print({'torch', 'transformers', 'cuda.tile'} & {*sys.modules})"
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


@pytest.mark.slow
def test_a_tiny_model_passes_its_gate_without_a_gpu():
    """As a user runs it: "cuda" is a pretended GPU, which no test of a model on the CPU is."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "models",
        "-q",
        "--arch",
        "sm_90",
        "-k",
        "tiny and deepseek_v2",
    ]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=root, capture_output=True, text=True, check=False
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "correct was checked by interpretation on the CPU: 1 case" in done.stdout
