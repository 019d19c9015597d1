"""Who made each element of a launcher's outputs: its cuTile launches, torch, or neither of them.

Each storage that a launcher touches has a map, byte by byte. A launch marks what it stores. A torch function
hands on what its arguments have, and marks as torch's what it computed from others. What is filled, copied
or given is nobody's. A storage without a map is nobody's, too: what cannot be followed accuses no launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import torch

from pytest_cutile.tile.compiler.trace.operations import place_of, storage_of, tensors_of
from pytest_cutile.tile.interpreter.contribution import NEXT_TO_NOTHING, Contribution
from pytest_cutile.tile.interpreter.memory import Memory
from pytest_cutile.tile.tensors.trees import map_tensors

MAX_BYTES = 1 << 28
"""Size of the largest storage that is followed."""
LEAST_ELEMENTS = 32
"""Elements that a launch has to leave as they are, all of them, before it counts as one that changes nothing:
an honest `relu` finds half of them negative."""

_REARRANGES = frozenset(
    {
        *("reshape", "reshape_as", "flatten", "ravel", "repeat", "tile", "roll", "flip", "rot90"),
        *("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack"),
    }
)
"""Functions that move elements to other places, and do so to their makers."""
_MOVES = _REARRANGES | {
    *("clone", "contiguous", "to", "cuda", "cpu", "detach", "type", "type_as", "pad", "pin_memory"),
    *("float", "half", "bfloat16", "double", "int", "long", "short", "char", "byte", "bool"),
    *("tensor", "as_tensor", "asarray", "new_tensor", "view_as_real", "view_as_complex"),
}
"""Functions that compute nothing: they move elements, or convert them."""
_SHAPE_ALONE = frozenset(
    {
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
    }
)
"""Functions that take a tensor and use none of its values."""
_OVERWRITES = frozenset(
    {"zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "copy_", "__setitem__"}
)
_ATTRIBUTES = frozenset({"requires_grad_", "set_", "resize_", "resize_as_", "retain_grad", "share_memory_"})
"""Functions whose name ends as that of one that writes, or is left to others."""
_HOST_READS = frozenset(
    {
        *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__bool__", "__int__", "__float__"),
        *("__index__", "__complex__", "__contains__", "__array__", "__dlpack__"),
    }
)
"""Functions that give values to Python, where they are not followed."""
_UNSEEN = frozenset({"grad", "backward"})
"""Functions whose operations torch does not show."""
_ATTRIBUTE = "_pytest_cutile_origins"


class MadeBy(IntEnum):
    """Who made an element; of several, the highest counts."""

    NOBODY = 0
    TORCH = 1
    LAUNCH = 2


class _Map:
    """The makers of the bytes of one storage: one for all, until they differ."""

    def __init__(self, owner: Origins, size: int) -> None:
        self.owner = owner
        self.size = size
        self.maker = MadeBy.NOBODY
        self._row: torch.Tensor | None = None
        self.function = ""
        """The last torch function that computed some of it."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the makers of a tensor's elements, uint8, which may not be written to."""
        if self._row is None:
            return torch.tensor(self.maker, dtype=torch.uint8).expand(tensor.shape)
        return self._bytes_of(tensor)[..., 0]

    def set(self, tensor: torch.Tensor, makers: int | torch.Tensor) -> None:
        if isinstance(makers, int) and tensor.numel() * tensor.element_size() == self.size:
            self.maker, self._row = MadeBy(makers), None
        else:
            self._bytes_of(tensor)[...] = makers if isinstance(makers, int) else makers[..., None]

    def mark(self, which: torch.Tensor) -> None:
        """Give those bytes of the storage to a launch."""
        if bool(which.all()):
            self.maker, self._row = MadeBy.LAUNCH, None
        else:
            self.row[which] = MadeBy.LAUNCH

    @property
    def row(self) -> torch.Tensor:
        if self._row is None:
            self._row = torch.full((self.size,), self.maker, dtype=torch.uint8)
        return self._row

    def _bytes_of(self, tensor: torch.Tensor) -> torch.Tensor:
        itemsize = tensor.element_size()
        strides = (*(stride * itemsize for stride in tensor.stride()), 1)
        return self.row.as_strided((*tensor.shape, itemsize), strides, tensor.storage_offset() * itemsize)


class Origins:
    """Follows one call of a launcher."""

    def __init__(self, arguments: Any) -> None:
        """Take the arguments of the launcher, which nobody has made so far."""
        self._arguments = tensors_of(arguments)
        self._kernels: dict[str, None] = {}
        self._is_known = True
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Arrays of a launch that is given none but torch's, and copies from before it."""

    def lose(self) -> None:
        """Say that something happened that cannot be followed."""
        self._is_known = False

    # -- launches -------------------------------------------------------------------------------------

    def begin_launch(self, kernel: str, arguments: Sequence[Any]) -> None:
        self._kernels[kernel] = None
        arrays = tensors_of(arguments)
        self._before = []
        has_factor = any(isinstance(argument, float) for argument in arguments)
        if not has_factor and all(map(self._is_torchs, arrays)):
            self._before = [(_bytes(array), _bytes(array).clone()) for array in arrays]

    def _is_torchs(self, tensor: torch.Tensor) -> bool:
        makers = self._makers(tensor)
        return tensor.numel() >= LEAST_ELEMENTS and bool(makers.max() == MadeBy.TORCH)

    def end_launch(self, memory: Memory) -> None:
        """Mark what a launch has written, of which `memory` knows.

        A launch that is given nothing but what torch has computed, and leaves all of that as it was, has
        made none of it.
        """
        before, self._before = self._before, []
        if before and all(torch.equal(now, then) for now, then in before):
            return
        for allocation in memory.allocations:
            written = allocation.shadow.written_bytes()
            if not memory.races.check_races or not allocation.shadow.tracked:
                self.lose()
            elif written is not None and (makers := self._map(allocation.tensor)) is not None:
                makers.mark(written[: makers.size])

    # -- torch ----------------------------------------------------------------------------------------

    def torch_did(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Any, result: Any) -> None:
        """Follow what a torch function has made of its arguments."""
        try:
            self._follow(func, args, kwargs, result)
        except Exception:  # noqa: BLE001 - whatever it is, the launcher goes on, and nobody is accused
            self.lose()

    def _follow(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Any, result: Any) -> None:
        name = getattr(func, "__name__", "")
        taken = tensors_of((args, kwargs))
        if name.startswith("__get__") or name in _UNSEEN or name in _ATTRIBUTES or not name:
            return
        if name in _HOST_READS:
            if any(bool((self._makers(tensor) == MadeBy.LAUNCH).any()) for tensor in taken):
                self.lose()
            return
        if name == "__setitem__":
            self._set_item(*args)
            return
        places = {*map(place_of, taken)}
        if (into := kwargs.get("out")) is not None:
            written, taken = tensors_of(into), _others(taken, into)
        elif name in _OVERWRITES:
            written, taken = [args[0]], tensors_of((args[1:], kwargs))
        elif _is_in_place(name):
            written = [args[0]]
        else:  # what has a map was made by launch code inside of the function, and the rest are views
            made = (one for one in tensors_of(result) if place_of(one) not in places)
            written = [one for one in made if self._existing(one) is None]
        if written and name in _REARRANGES and into is None:
            makers = map_tensors(self._makers, (args, kwargs))
            self._set(written[0], func(*makers[0], **makers[1]), self._function(taken))
            return
        computes = name not in _MOVES | _OVERWRITES | _SHAPE_ALONE and bool(taken)
        for tensor in written:
            makers = self._made([] if name in _SHAPE_ALONE else taken, tensor.shape, computes=computes)
            self._set(tensor, makers, name if computes else self._function(taken))

    def _made(
        self, taken: Sequence[torch.Tensor], shape: torch.Size, *, computes: bool
    ) -> int | torch.Tensor:
        """Return the makers of what is made of tensors: element by element, where shapes say how."""
        makers = torch.tensor(MadeBy.TORCH if computes else MadeBy.NOBODY, dtype=torch.uint8)
        for tensor in taken:
            given = self._makers(tensor)
            if not given.numel():
                continue
            if _is_broadcast(tensor.shape, shape):
                makers = torch.maximum(makers, given)
            else:
                whole = int(given.max())
                if whole == MadeBy.LAUNCH and _share(given) < NEXT_TO_NOTHING:
                    whole = MadeBy.TORCH
                makers = makers.clamp(min=whole)
        return int(makers) if not makers.dim() else makers.expand(shape)

    def _set_item(self, target: torch.Tensor, key: Any, value: Any) -> None:
        makers = self._makers(target).clone()
        makers[key] = self._makers(value) if isinstance(value, torch.Tensor) else int(MadeBy.NOBODY)
        self._set(target, makers, self._function(tensors_of(value)))

    def _set(self, tensor: torch.Tensor, makers: int | torch.Tensor, function: str) -> None:
        if (known := self._map(tensor)) is not None and tensor.numel():
            known.set(tensor, makers)
            known.function = function or known.function

    def _function(self, taken: Iterable[torch.Tensor]) -> str:
        """Return the torch function that computed one of these tensors."""
        return next(self._functions(taken), "")

    # -- maps -----------------------------------------------------------------------------------------

    def _existing(self, tensor: torch.Tensor) -> _Map | None:
        known: _Map | None = getattr(storage_of(tensor), _ATTRIBUTE, None)
        return known if known is not None and known.owner is self else None

    def _map(self, tensor: torch.Tensor) -> _Map | None:
        """Return the map of a tensor's storage; None: it has no memory, or too much."""
        storage = storage_of(tensor)
        if storage is None or not storage.nbytes():
            return None
        known = self._existing(tensor)
        if known is None or known.size != storage.nbytes():
            if storage.nbytes() > MAX_BYTES:
                self.lose()
                return None
            known = _Map(self, int(storage.nbytes()))
            setattr(storage, _ATTRIBUTE, known)
        return known

    def _makers(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._existing(tensor)
        if known is None or known.size != tensor.untyped_storage().nbytes():
            return torch.zeros((), dtype=torch.uint8).expand(tensor.shape)
        return known.of(tensor)

    # -- what came of it ------------------------------------------------------------------------------

    def contribution(self, outputs: Any) -> Contribution | None:
        """Return what the launches have contributed to outputs, and to the arguments that they changed.

        None: that is not known, or nothing was launched.
        """
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            if not self._is_known or not self._kernels:
                return None
            returned = tensors_of(outputs)
            changed = [one for one in self._arguments if bool(self._makers(one).any())]
            makers = {_key(tensor): self._makers(tensor) for tensor in (*returned, *changed)}
            functions = dict.fromkeys(self._functions((*returned, *changed)))
            return Contribution(
                elements=sum(one.numel() for one in makers.values()),
                from_launches=sum(int((one == MadeBy.LAUNCH).sum()) for one in makers.values()),
                by_torch=sum(int((one == MadeBy.TORCH).sum()) for one in makers.values()),
                largest_share=max((_share(one) for one in makers.values() if bool(one.any())), default=1.0),
                functions=tuple(functions),
                kernels=tuple(self._kernels),
            )

    def _functions(self, tensors: Iterable[torch.Tensor]) -> Iterator[str]:
        for tensor in tensors:
            known = self._existing(tensor)
            if known is not None and known.function:
                yield known.function


def _share(makers: torch.Tensor) -> float:
    """Return the share of launches in what was made by somebody."""
    made = int((makers != MadeBy.NOBODY).sum())
    return int((makers == MadeBy.LAUNCH).sum()) / made if made else 0.0


def _others(taken: Sequence[torch.Tensor], out: Any) -> list[torch.Tensor]:
    own = {id(tensor) for tensor in tensors_of(out)}
    return [tensor for tensor in taken if id(tensor) not in own]


def _is_in_place(name: str) -> bool:
    if name.startswith("__"):
        return name.startswith("__i") and name not in {"__invert__", "__iter__", "__init__"}
    return name.endswith("_")


def _is_broadcast(shape: torch.Size, result: torch.Size) -> bool:
    pairs = zip(reversed(shape), reversed(result), strict=False)
    return len(shape) <= len(result) and all(one in (1, other) for one, other in pairs)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's whole storage as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two names of the same elements have in common."""
    return id(tensor.untyped_storage()), tensor.storage_offset(), tensor.shape, tensor.stride()
