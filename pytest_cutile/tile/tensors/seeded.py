"""The `make_tensor` that tests and declared kernels get: the harness chooses device and seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_cutile.tile.compiler import pretended_backing
from pytest_cutile.words.spec import Case, KernelSpec

if TYPE_CHECKING:
    import torch


def seed_from(text: str) -> int:
    """Return a seed in [0, 2**63) from `text`, such as a test's node id; the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def timed_seed(spec: KernelSpec, case: Case) -> int:
    """Return the seed of the inputs with which a declared case is timed; as a baseline, it has no file.

    What some kernels have to do depends on the values, such as which experts get a token.
    """
    return seed_from(f"{spec.name}[{case.name}]") if case.seed is None else case.seed


class MakeTensor:
    """`make_tensor(shape, dtype, *, dist="normal", seed=None, strides=None, ...)` on the device under test.

    Without `seed` every call has its own, derived from that of the test's id and the number of the call: the
    same test makes the same tensors, wherever and in whatever order it runs. `dist` and `layout` (of
    `input_names.LAYOUTS`) are the defaults of its tensors. Signed rows are for checks: what is timed is drawn
    without them.
    """

    def __init__(
        self,
        *,
        device: str,
        seed: int,
        dist: str = "normal",
        layout: str = "contiguous",
        signed_rows: bool = True,
    ) -> None:
        self.device = device
        self.seed = seed
        self._signed_rows = signed_rows
        self._dist = dist
        self._layout = layout
        self._calls = 0

    def __call__(
        self,
        shape: int | Sequence[int],
        dtype: torch.dtype | str,
        *,
        dist: str | None = None,
        seed: int | None = None,
        low: float | None = None,
        high: float | None = None,
        strides: Sequence[int] | None = None,
        offset: int | None = None,
        requires_grad: bool = False,
    ) -> torch.Tensor:
        """Return a tensor with values of `dist`: a name of `input_names.DISTRIBUTIONS`.

        The other arguments are those of `torch.testing.make_tensor`. `strides` and `offset`, in elements,
        make a view of a larger buffer that holds NaN elsewhere.
        """
        try:
            from pytest_cutile.tile.tensors.make_tensor import layout_of, make_tensor
        except ImportError as error:
            raise ImportError(
                "make_tensor needs torch, which is not installed: pip install 'pytest-cutile[torch]'"
            ) from error
        self._calls += 1
        if seed is None:
            seed = seed_from(f"{self.seed}#{self._calls}")
        if strides is None and offset is None:
            strides, offset = layout_of((shape,) if isinstance(shape, int) else shape, self._layout)
        # While launch code is traced for its compilation, nobody looks at the values: do not draw them.
        device = "meta" if pretended_backing() == "meta" else self.device
        return make_tensor(
            shape,
            dtype,
            device=device,
            seed=seed,
            dist=dist or self._dist,
            low=low,
            high=high,
            strides=strides,
            offset=offset or 0,
            requires_grad=requires_grad,
            signed_rows=self._signed_rows,
        )
