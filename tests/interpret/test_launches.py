"""What one launch leaves for the next: kernels are exported once for one signature, and only then."""

from __future__ import annotations

import cuda.tile as ct
import torch

from pytest_cutile.interpret import interpreting


@ct.kernel
def scaled_kernel(x, factor: ct.Constant):
    ct.store(x, (0,), ct.load(x, (0,), (16,)) / factor)


def test_constants_that_are_equal_and_not_the_same_make_kernels_of_their_own() -> None:
    with interpreting("sm_90"):
        for factor, infinity in ((2, False), (2.0, False), (2, False), (0.0, True), (-0.0, True)):
            x = torch.ones(16, device="cuda")
            ct.launch(torch.cuda.current_stream(), (1,), scaled_kernel, (x, factor))
            expected = (-1 if str(factor).startswith("-") else 1) * (float("inf") if infinity else 0.5)
            assert x[0].item() == expected, factor
