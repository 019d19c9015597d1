"""Attention that turns around is attention, whatever walks where; and the cache model says what it saves."""

import pytest
import torch

from kernels import fmha
from pytest_cutile.interpreter import interpret
from studies.sawtooth import kernel
from studies.sawtooth.kernel import SawtoothConfig

TILE = 16


def attend(n, *, causal, turning):
    """Return attention by two blocks, with what is right."""
    torch.manual_seed(n)
    q, k, v = (torch.randn(1, 2, n, 64, dtype=torch.float16) for _ in range(3))
    config = SawtoothConfig(tile_m=TILE, tile_n=32, sms=2, turning=turning)
    with interpret(arch="sm_121") as run:
        out = kernel.sawtooth(q, k, v, causal=causal, config=config)
    assert [launch.grid for launch in run.launches] == [(2,)]
    return out, fmha.reference(q.double(), k.double(), v.double(), causal=causal)


@pytest.mark.parametrize(("n", "causal"), [(128, True), (117, False), (117, True)])
def test_blocks_that_turn_compute_the_same(n, causal):
    out, expected = attend(n, causal=causal, turning=True)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-3)


def test_every_second_wave_walks_forward():
    """In another order, sums are rounded differently."""
    (turned, expected), (straight, _) = (attend(128, causal=False, turning=each) for each in (True, False))
    torch.testing.assert_close(straight.double(), expected, rtol=0, atol=2e-3)
    last_tile_first = [first_head.flip(0) for first_head in (tiles_of(turned), tiles_of(straight))]
    same = [torch.equal(a, b) for a, b in zip(*last_tile_first, strict=True)]
    assert same == [True, True, False, False] * 2


def tiles_of(out):
    """Return the tiles of the first head."""
    return out[0, 0].reshape(-1, TILE, out.shape[-1])


def test_blocks_that_overlap_or_do_not_stay_cannot_turn():
    for wrong in ({"overlap": True}, {"persistent": False}):
        with pytest.raises(ValueError, match="blocks are persistent, and do not overlap"):
            SawtoothConfig(tile_m=64, tile_n=64, **wrong)
