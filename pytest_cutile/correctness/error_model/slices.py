"""Arguments of which a reference takes one slice at a time, so that no float64 copy of them is made."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_OFFERED = "of an argument in sliced=... a reference gets len(x), x.shape, x.device, 'for each in x' and x[i]"


class Slices:
    """A tensor as its slices along the first dimension, each made by `make` when it is asked for."""

    def __init__(
        self, tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor] = lambda each: each
    ) -> None:
        self._tensor = tensor
        self._make = make

    @property
    def shape(self) -> torch.Size:
        return self._tensor.shape

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    def made_by(self, make: Callable[[torch.Tensor], torch.Tensor]) -> Slices:
        return Slices(self._tensor, make)

    def __len__(self) -> int:
        return len(self._tensor)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int | torch.Tensor) -> torch.Tensor:
        try:
            index = operator.index(number)
        except TypeError:
            raise TypeError(f"{_OFFERED}, where i is one number; got {number!r}") from None
        return self._make(self._tensor[index])

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"{_OFFERED}; there is no x.{name}")
