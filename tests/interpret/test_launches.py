"""What one launch leaves for the next: kernels are exported once for one signature, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cuda.tile as ct
import torch

from pytest_cutile.compile.export import export
from pytest_cutile.interpret import interpreting
from pytest_cutile.interpret import launch as module

if TYPE_CHECKING:
    import pytest


@ct.kernel
def scaled_kernel(x, factor: ct.Constant):
    ct.store(x, (0,), ct.load(x, (0,), (16,)) / factor)


def test_a_kernel_is_exported_once_for_each_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = []

    def count(*args):
        exported.append(args)
        return export(*args)

    monkeypatch.setattr(module, "export", count)
    with interpreting("sm_90"):
        for factor, infinity in ((2, False), (2.0, False), (2, False), (0.0, True), (-0.0, True)):
            x = torch.ones(16, device="cuda")
            ct.launch(torch.cuda.current_stream(), (1,), scaled_kernel, (x, factor))
            expected = (-1 if str(factor).startswith("-") else 1) * (float("inf") if infinity else 0.5)
            assert x[0].item() == expected, factor
    assert len(exported) == 4  # 2 and 2.0 are two constants, and so are 0.0 and -0.0
