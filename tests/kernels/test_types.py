"""What type checkers are told of launchers whose result depends on their arguments; mypy reads this file."""

from __future__ import annotations

from typing import assert_type

import pytest
import torch

from kernels.rms_norm import RmsNormConfig, rms_norm

Both = tuple[torch.Tensor, torch.Tensor]


@pytest.mark.parametrize("maybe", [None, torch.ones(0, 3)], ids=["alone", "residual"])
def test_rms_norm_returns_the_sum_with_a_residual(maybe: torch.Tensor | None) -> None:
    x, weight, residual, config = torch.ones(0, 3), torch.ones(3), torch.ones(0, 3), RmsNormConfig()
    alone = [
        assert_type(rms_norm(x, weight), torch.Tensor),
        assert_type(rms_norm(x, weight, 1e-5, None), torch.Tensor),
        assert_type(rms_norm(x, weight, residual=None, config=config), torch.Tensor),
    ]
    both = [
        assert_type(rms_norm(x, weight, residual=residual), Both),
        assert_type(rms_norm(x, weight, residual=residual, config=config), Both),
        assert_type(rms_norm(x, weight, 1e-5, residual), Both),
        assert_type(rms_norm(x, weight, 1e-5, residual=residual), Both),
        assert_type(rms_norm(x, weight, eps=1e-5, residual=residual), Both),
    ]
    either = assert_type(rms_norm(x, weight, residual=maybe), torch.Tensor | Both)
    assert {type(each) for each in alone} == {torch.Tensor}
    assert {type(each) for each in both} == {tuple}
    assert type(either) is (torch.Tensor if maybe is None else tuple)
