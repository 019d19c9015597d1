"""What surrounds a launch: inputs between NaN, outputs between redzones, and what became of both."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_cutile.correctness.guards.redzones import Redzones, copy_bits, enclose, extent
from pytest_cutile.tile.tensors.poison import Pattern, poison
from pytest_cutile.tile.tensors.trees import describe, map_tensors, named_tensors, tensors_in

KEPT_BYTES = 256 << 20
"""Bytes of temporaries that are kept until a launch ends, to look at what lies around them."""


class Inputs:
    """The arguments of a launcher, by name: as they were, and as it is given them.

    With redzones the launcher gets copies, of the same strides and alignment, which share memory where the
    given ones do; around them and in the gaps that strides leave lies `Pattern.BESIDE_INPUT`. Without, it
    gets the given ones. Arguments in `writes` are poisoned.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        mutates: Collection[str] = (),
        writes: Collection[str] = (),
        redzones: bool = True,
    ) -> None:
        self.changing = {*mutates, *writes}
        """Names of those that the launcher may change."""
        self.notes: list[str] = []
        """What has no redzones, and why."""
        self.redzones: dict[str, Redzones] = {}
        """What lies between redzones, by a name for each piece of memory."""
        self._arguments = dict(arguments)
        self._writes = writes
        copies = dict(self._enclose()) if redzones else {}
        changing, others = set[tuple[str, int]](), set[tuple[str, int]]()
        for name, value in arguments.items():
            (changing if name in self.changing else others).update(map(_address, tensors_in(value)))
        self.entangled = not changing.isdisjoint(others)
        """Whether one that may change shares its memory with one that may not."""

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            unchanged = id(tensor) in copies and _address(tensor) not in changing
            return tensor if unchanged else tensor.detach().clone()

        self.before: dict[str, Any] = map_tensors(keep, self._arguments)
        self.given: dict[str, Any] = map_tensors(
            lambda tensor: copies.get(id(tensor), tensor), self._arguments
        )
        """What the launcher gets."""
        self._copies = {id(copy) for copy in copies.values()}
        self._poison_outputs(Pattern.UNWRITTEN)

    def write_back(self) -> None:
        """Bring what the launcher changed, as it may, into the tensors that the caller has."""
        for name in self.changing:
            for own, given in _pairs(self._arguments[name], self.given[name]):
                if own is not given:
                    if own.shape != given.shape:
                        own.resize_(given.shape)
                    own.detach().copy_(given)

    def restore(self, pattern: Pattern, *, around: Collection[str] | None, unwritten: Pattern) -> None:
        """Restore the arguments for another launch; only redzones `around` these names hold `pattern`."""
        for name, zones in self.redzones.items():
            zones.fill(pattern if around is None or name in around else Pattern.BESIDE_INPUT)
        for name, value in self.given.items():
            for given, before in _pairs(value, self.before[name]):
                if id(given) in self._copies:  # of which redzones may have overwritten all
                    copy_bits(given, before)
                elif name in self.changing:
                    given.detach().copy_(before)
        self._poison_outputs(unwritten)

    def violations(self) -> Iterator[str]:
        for name, zones in self.redzones.items():
            if violation := zones.violation(f"input {name}"):
                yield violation

    def holders(self, tensor: torch.Tensor) -> list[str]:
        """Return the names of the arguments in whose memory a tensor lies."""
        if not tensor.numel():
            return []
        return [
            name
            for name, value in self.given.items()
            if any(_address(own) == _address(tensor) for own in tensors_in(value))
        ]

    def returned(self, outputs: Any) -> set[str]:
        return {name for tensor in tensors_in(outputs) for name in self.holders(tensor)}

    def _poison_outputs(self, pattern: Pattern) -> None:
        for name in self._writes:
            map_tensors(functools.partial(poison, pattern=pattern), self.given[name])

    def _enclose(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the copy of each tensor that can have one, by the tensor's id."""
        groups: dict[Any, list[tuple[str, torch.Tensor]]] = defaultdict(list)
        for argument, value in self._arguments.items():
            for name, tensor in named_tensors(value, argument):
                if tensor.numel():
                    groups[_address(tensor)].append((name, tensor))
        for group in groups.values():
            names = " and ".join(dict.fromkeys(name for name, _ in group))
            tensors = [tensor for _, tensor in group]
            reasons = [reason for tensor in tensors if (reason := unguardable(tensor)) is not None]
            if reasons or not _fits(tensors):
                self.notes.append(f"{names}: {(*reasons, 'a copy does not fit into memory')[0]}")
                continue
            copies, self.redzones[names] = enclose(tensors, pattern=Pattern.BESIDE_INPUT)
            for tensor, copy in zip(tensors, copies, strict=True):
                copy.__dict__.update(tensor.__dict__)
                yield id(tensor), copy


def _pairs(one: Any, other: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(tensors_in(one), tensors_in(other), strict=True)


class Allocations:
    """What a launcher allocates, each between redzones."""

    def __init__(self) -> None:
        self._redzones: list[tuple[str, tuple[str, int], Redzones]] = []
        self._kept: list[torch.UntypedStorage] = []

    def enclose(self, tensor: torch.Tensor, has_values: bool) -> torch.Tensor:
        """Return a tensor like one that was just made, between redzones; itself if that cannot be."""
        if unguardable(tensor) is not None or tensor.numel() == 0:
            return tensor
        what = describe(tensor)
        [placed], zones = enclose([tensor], pattern=Pattern.BESIDE_OUTPUT, copy=has_values)
        self._redzones.append((what, _address(placed), zones))
        storage = placed.untyped_storage()
        if sum(kept.nbytes() for kept in self._kept) + storage.nbytes() <= KEPT_BYTES:
            self._kept.append(storage)
        return placed

    def violations(self, outputs: Any) -> Iterator[str]:
        names = {_address(tensor): name for name, tensor in named_tensors(outputs, "output")}
        for what, address, zones in self._redzones:
            if violation := zones.violation(names.get(address, f"a tensor that it allocated, {what}")):
                yield violation


def without_memory(tensor: torch.Tensor) -> str | None:
    """Return what kind of tensor it is that has no strided memory; None: it has."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout != torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "meta" if tensor.is_meta else None


def unguardable(tensor: torch.Tensor) -> str | None:
    """Return why a tensor cannot be put between redzones; None: it can."""
    if type(tensor) is not torch.Tensor:
        return f"a {type(tensor).__name__}"
    if without_memory(tensor) is not None or tensor.is_quantized:
        return "no strided memory"
    reasons = {
        "requires grad": tensor.requires_grad,
        "made in inference mode": tensor.is_inference(),
        "conjugated or negated lazily": tensor.is_conj() or tensor.is_neg(),
        "pinned": tensor.device.type == "cpu" and tensor.is_pinned(),
        "an address that is no multiple of its element's size": bool(
            tensor.numel() and tensor.data_ptr() % tensor.itemsize
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _address(tensor: torch.Tensor) -> tuple[str, int]:
    """Return what tensors on one storage have in common."""
    if tensor.layout != torch.strided:
        return "", id(tensor)
    return str(tensor.device), tensor.untyped_storage().data_ptr() or id(tensor)


def _fits(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether a copy of what the tensors span takes no more than half of a GPU's free memory."""
    device = tensors[0].device
    if device.type != "cuda":
        return True
    first, end = zip(*map(extent, tensors), strict=True)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(max(end) - min(first) <= (torch.cuda.mem_get_info(device)[0] + unused) // 2)
