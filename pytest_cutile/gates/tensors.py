"""The `make_tensor` that tests and declared kernels get: the harness chooses device and seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_cutile.compile import pretended_backing
from pytest_cutile.gpu.tensors import make_tensor, seed_from

if TYPE_CHECKING:
    import torch


class MakeTensor:
    """`make_tensor(shape, dtype, *, dist="normal", seed=None, strides=None, ...)` on the device under test.

    Without `seed` every call has its own, derived from the test's id and the number of the call: the
    same test makes the same tensors, wherever and in whatever order it runs.
    """

    def __init__(self, *, device: str, seed_text: str) -> None:
        self.device = device
        self._seed_text = seed_text
        self._calls = 0

    def __call__(
        self,
        shape: int | Sequence[int],
        dtype: torch.dtype | str,
        *,
        dist: str = "normal",
        seed: int | None = None,
        low: float | None = None,
        high: float | None = None,
        strides: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Return a tensor; see `pytest_cutile.gpu.tensors.make_tensor` for the distributions."""
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "make_tensor needs torch, which is not installed: pip install 'pytest-cutile[torch]'"
            ) from error
        self._calls += 1
        if seed is None:
            seed = seed_from(f"{self._seed_text}#{self._calls}")
        # While launch code is traced for its compilation, nobody looks at the values: do not draw them.
        device = "meta" if pretended_backing() == "meta" else self.device
        options: dict[str, Any] = {"dist": dist, "low": low, "high": high, "strides": strides}
        return make_tensor(shape, dtype, device=device, seed=seed, **options)
