from __future__ import annotations

import pytest
import torch

from models import generate as module
from models.check import make_cache
from models.errors import DoesNotFit, NeedsGpu, PromptTooLong
from models.generate import Generation, generate
from models.patch.common import append_to_cache
from tests.models.conftest import no_reads_by_host


def prompt_of(batch: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(1, 256, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_tokens_are_those_of_transformers(qwen2, dynamic):
    prompt = prompt_of()
    generation = Generation(qwen2, prompt, new_tokens=8, dynamic=dynamic)
    assert [*generate(generation)] == [*range(1, 9)]
    expected = qwen2.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(generation.tokens, expected[:, 9:])


def test_a_step_reads_nothing_back_from_the_gpu(qwen2):
    generation = Generation(qwen2, prompt_of(), new_tokens=4)
    generation.prefill()
    with no_reads_by_host():
        generation.step()
        generation.step()


def test_a_read_is_noticed():
    with no_reads_by_host(), pytest.raises(AssertionError, match="waits for the GPU"):
        torch.ones(1).item()


@pytest.mark.parametrize("dynamic", [False, True])
def test_generation_stops_half_way_and_starts_anew(qwen2, dynamic):
    generation = Generation(qwen2, prompt_of(), new_tokens=6, dynamic=dynamic)
    every = [*generate(generation)]
    tokens = generation.tokens.clone()
    for count in generate(generation):
        if count == 3:
            break
    assert torch.equal(generation.tokens[:, :3], tokens[:, :3])
    assert [*generate(generation)] == every
    assert torch.equal(generation.tokens, tokens)


@pytest.mark.parametrize("dynamic", [False, True])
def test_rewinding_repeats_the_same_steps(qwen2, dynamic):
    generation = Generation(qwen2, prompt_of(), new_tokens=3, dynamic=dynamic)
    generation.prefill()

    def steps():
        for _ in range(2):
            generation.step()
            yield generation.logits

    first = [*steps()]
    generation.rewind()
    again = [*steps()]
    assert not torch.equal(*first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_prompt_longer_than_the_cache_is_refused(qwen2):
    with pytest.raises(PromptTooLong, match="9 tokens and 4 new ones need 13 places; the cache has 12"):
        Generation(qwen2, prompt_of(), new_tokens=4, capacity=12)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Generation(qwen2, prompt_of(), new_tokens=0)


def test_a_large_model_on_the_cpu_is_refused_and_says_what_to_do(qwen2, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_WITHOUT_GPU", 1000)
    with pytest.raises(NeedsGpu, match="Move the model to a GPU, or take a tiny one"):
        Generation(qwen2, prompt_of(), new_tokens=1)


def test_running_out_of_memory_says_what_would_fit(qwen2, monkeypatch):
    generation = Generation(qwen2, prompt_of(batch=4, length=64), new_tokens=2)
    generation.prefill()

    def exhausted(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    footprint = generation.footprint
    total = int((footprint.weights + (footprint.total - footprint.weights) / 2 + 100) / 0.94)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, total))
    monkeypatch.setattr(qwen2, "forward", exhausted)
    with pytest.raises(DoesNotFit, match=r"cache of 4 x 66 tokens .*would fit: batch 2 with prompts of 64"):
        generation.prefill()
    with pytest.raises(DoesNotFit, match=r"would fit: batch 2 with prompts of 64"):
        generation.step()


def test_a_dynamic_cache_can_be_freed(qwen2):
    generation, static = (
        Generation(qwen2, prompt_of(), new_tokens=2, dynamic=each) for each in (True, False)
    )
    for each in (generation, static):
        each.prefill()
        each.release()
    assert generation.cache is None
    static.step()


def test_what_eager_attention_writes_counts(qwen2):
    footprint = Generation(qwen2, prompt_of(), new_tokens=1).footprint
    assert (
        footprint.cache == 2 * 10 * 2 * (2 * 2 * 64) * 4
    )  # batch, places, layers, heads of k and v, float32
    assert footprint.weights == sum(each.numel() for each in qwen2.parameters()) * 4
    qwen2.set_attn_implementation("eager")
    longer = Generation(qwen2, prompt_of(), new_tokens=1).footprint
    assert longer.activations - footprint.activations == 2 * 9 * 9 * 4 * (4 + 4 + 4)


def test_nothing_is_advised_that_does_not_fit(qwen2):
    footprint = Generation(qwen2, prompt_of(batch=4, length=64), new_tokens=2).footprint
    assert "nothing of this model fits" in footprint.why_not(0, footprint.weights)
    assert footprint.largest_batch(footprint.weights / 2) == 0
    assert "an empty GPU has room" in footprint.why_not(1000, 10 * footprint.total)


@pytest.mark.parametrize(("length", "captured"), [(8, ["_prefill", "_step"]), (9, ["_step"])])
def test_a_graph_of_the_prefill_is_made_of_short_prompts_alone(length, captured, qwen2, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_GRAPH", 8)
    replayed = []

    class Graph:
        def __init__(self, name):
            self.name = name

        def replay(self):
            replayed.append(self.name)
            return torch.zeros(1, qwen2.config.vocab_size)

    monkeypatch.setattr(Generation, "_capture", lambda _, run: Graph(run.__name__))
    generation = Generation(qwen2, prompt_of(batch=1, length=length), new_tokens=2)
    launched = generation.prefill()
    generation.capture()
    assert generation.is_captured
    logits = generation.prefill(graph=True)
    generation.step(graph=True)
    assert replayed == captured
    assert torch.equal(logits, launched) == ("_prefill" not in captured)
    assert not generation.logits.any()


@pytest.mark.parametrize("static", [True, False])
def test_tokens_are_appended_as_the_cache_itself_does(static, qwen2):
    caches = [make_cache(qwen2, 6, static=static) for _ in range(2)]
    for tokens in (3, 1, 1):
        keys, values = torch.randn(2, 2, 2, tokens, 64)
        expected = caches[0].update(keys, values, 0)
        got = append_to_cache(caches[1], keys, values, 0)
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
        assert int(caches[0].get_seq_length()) == int(caches[1].get_seq_length())
