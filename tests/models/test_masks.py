"""Bounds of the keys that each sequence sees, from what transformers knows of padding and caches."""

import pytest
import torch
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from models.errors import PromptTooLong, Unsupported
from models.masks import as_bounds, find_bounds


def bounds(*, tokens, cached=0, keys=None, mask=None, batch=2, **others):
    seen = cached.item() if isinstance(cached, torch.Tensor) else cached
    made = find_bounds(
        batch_size=batch,
        q_length=tokens,
        kv_length=seen + tokens if keys is None else keys,
        q_offset=cached,
        attention_mask=None if mask is None else torch.tensor(mask, dtype=torch.bool),
        device=torch.device("cpu"),
        **{"kv_offset": 0, "mask_function": causal_mask_function, **others},
    )
    found = as_bounds(made)
    return None if found is None else found.tolist()


def test_without_padding_and_unfilled_keys_there_are_none():
    assert bounds(tokens=3) is None
    assert bounds(tokens=1, cached=4) is None
    assert bounds(tokens=3, mask=[[1, 1, 1], [1, 1, 1]]) is None


def test_keys_that_are_not_filled_are_not_seen():
    assert bounds(tokens=3, cached=torch.tensor(0), keys=9) == [[0, 3], [0, 3]]
    assert bounds(tokens=1, cached=torch.tensor(3), keys=9) == [[0, 4], [0, 4]]


def test_padding_on_the_left_is_not_seen():
    assert bounds(tokens=3, mask=[[0, 0, 1], [1, 1, 1]]) == [[2, 3], [0, 3]]
    assert bounds(tokens=1, cached=3, mask=[[0, 0, 1, 1], [0, 1, 1, 1]]) == [[2, 4], [1, 4]]
    # A mask as long as the cache: what follows the new token is not there yet.
    assert bounds(tokens=1, cached=torch.tensor(2), keys=5, mask=[[0, 1, 1, 0, 0], [1, 1, 1, 0, 0]]) == [
        [1, 3],
        [0, 3],
    ]


@pytest.mark.parametrize("mask", [[[1, 1, 0], [1, 1, 1]], [[1, 0, 1], [1, 1, 1]], [[0, 0, 0], [1, 1, 1]]])
def test_other_padding_is_refused_in_prefill(mask):
    with pytest.raises(Unsupported, match="padding has to be on the left"):
        bounds(tokens=3, mask=mask)


def test_other_padding_is_an_error_in_decoding():
    with pytest.raises(RuntimeError, match="padding has to be on the left"):
        bounds(tokens=1, cached=3, mask=[[1, 1, 0, 1], [1, 1, 1, 1]])


def test_a_mask_of_the_new_tokens_alone_is_refused():
    with pytest.raises(Unsupported, match=r"attention_mask must be \[2, 5\].* but is \[2, 2\]"):
        bounds(tokens=2, cached=3, mask=[[1, 1], [1, 1]])


@pytest.mark.parametrize("cached", [0, torch.tensor(0)])
def test_more_tokens_than_a_static_cache_has_places_are_refused(cached):
    with pytest.raises(PromptTooLong, match="9 tokens need as many places; the cache has 8"):
        bounds(tokens=9, cached=cached, keys=8)


def test_masks_that_are_not_causal_are_refused():
    for others in ({"mask_function": sliding_window_causal_mask_function(4)}, {"kv_offset": 2}):
        with pytest.raises(Unsupported, match="takes causal masks with padding on the left"):
            bounds(tokens=3, **others)


def test_masks_of_all_pairs_are_refused():
    with pytest.raises(
        Unsupported, match=r"takes no mask of all pairs, got one of torch.bool, \[2, 1, 3, 3\]"
    ):
        as_bounds(torch.ones(2, 1, 3, 3, dtype=torch.bool))
