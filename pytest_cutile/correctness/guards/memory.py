"""What surrounds a launch: inputs between NaN, outputs between redzones, and what became of both."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from pytest_cutile.correctness.guards.redzones import Redzones, copy_bits, enclose, extent
from pytest_cutile.tensors.poison import Pattern, poison
from pytest_cutile.tensors.trees import describe, map_tensors, named_tensors

KEPT_BYTES = 256 << 20
"""Of temporaries that a launcher allocates, so many are kept until its end, to look at what lies around them;
more are looked at only if they are returned."""


class Inputs:
    """The arguments of a launcher: as they were, and as it is given them.

    With redzones the launcher gets copies, of the same strides and alignment, which share memory where the
    given ones do; around them and in the gaps that strides leave lies `Pattern.BESIDE_INPUT`. Without, it
    gets the given ones. So what was before is the given tensors themselves, or clones: memory for one copy
    either way. Arguments in `writes` are poisoned.
    """

    def __init__(
        self,
        labels: Sequence[str],
        values: Sequence[Any],
        *,
        mutates: Collection[str] = (),
        writes: Collection[str] = (),
        redzones: bool = True,
    ) -> None:
        self.labels = list(labels)
        self.changing = {*mutates, *writes}
        """Labels of those that the launcher may change."""
        self.notes: list[str] = []
        """What has no redzones, and why."""
        self._values = list(values)
        self._writes = writes
        self._redzones: list[tuple[str, Redzones]] = []
        copies = dict(self._enclose()) if redzones else {}
        changing, others = (
            {
                _address(tensor)
                for label, value in zip(labels, values, strict=True)
                if (label in self.changing) is may_change
                for _, tensor in named_tensors(value, label)
            }
            for may_change in (True, False)
        )
        self.entangled = not changing.isdisjoint(others)
        """Whether one that may change shares its memory with one that may not."""

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            unchanged = id(tensor) in copies and _address(tensor) not in changing
            return tensor if unchanged else tensor.detach().clone()

        self.before = [map_tensors(keep, value) for value in values]
        """Values from before the launch."""
        self.given = [map_tensors(lambda tensor: copies.get(id(tensor), tensor), value) for value in values]
        """What the launcher gets."""
        self._copies = {id(copy) for copy in copies.values()}
        self._poison_outputs(Pattern.UNWRITTEN)

    @property
    def names(self) -> list[str]:
        """What lies between redzones: a name for each piece of memory."""
        return [name for name, _ in self._redzones]

    def write_back(self) -> None:
        """Bring what the launcher changed, as it may, into the tensors that the caller has."""
        for label, own, given in self._pairs(self._values, self.given):
            if label in self.changing and own is not given:
                if own.shape != given.shape:
                    own.resize_(given.shape)
                own.detach().copy_(given)

    def restore(
        self,
        pattern: Pattern = Pattern.BESIDE_INPUT,
        *,
        around: Collection[str] | None = None,
        unwritten: Pattern = Pattern.UNWRITTEN,
    ) -> None:
        """Restore the arguments for another launch; only redzones `around` these names hold `pattern`."""
        for name, zones in self._redzones:
            zones.fill(pattern if around is None or name in around else Pattern.BESIDE_INPUT)
        for label, given, before in self._pairs(self.given, self.before):
            if id(given) in self._copies:  # of which redzones may have overwritten all
                copy_bits(given, before)
            elif label in self.changing:
                given.detach().copy_(before)
        self._poison_outputs(unwritten)

    def violations(self) -> Iterator[str]:
        for name, zones in self._redzones:
            if violation := zones.violation(f"input {name}"):
                yield violation

    def holders(self, tensor: torch.Tensor) -> list[str]:
        if not tensor.numel():
            return []
        return [
            label
            for label, value in zip(self.labels, self.given, strict=True)
            if any(_address(own) == _address(tensor) for _, own in named_tensors(value, label))
        ]

    def returned(self, outputs: Any) -> set[str]:
        return {label for _, tensor in named_tensors(outputs, "") for label in self.holders(tensor)}

    def _pairs(
        self, left: Sequence[Any], right: Sequence[Any]
    ) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        for label, one, other in zip(self.labels, left, right, strict=True):
            tensors = zip(named_tensors(one, label), named_tensors(other, label), strict=True)
            yield from ((label, first, second) for (_, first), (_, second) in tensors)

    def _poison_outputs(self, pattern: Pattern) -> None:
        for label, value in zip(self.labels, self.given, strict=True):
            if label in self._writes:
                map_tensors(functools.partial(poison, pattern=pattern), value)

    def _enclose(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the copy of each tensor that can have one, by the tensor's id."""
        groups: dict[Any, list[tuple[str, torch.Tensor]]] = defaultdict(list)
        for label, value in zip(self.labels, self._values, strict=True):
            for name, tensor in named_tensors(value, label):
                if tensor.numel():
                    groups[_address(tensor)].append((name, tensor))
        for group in groups.values():
            names = " and ".join(dict.fromkeys(name for name, _ in group))
            tensors = [tensor for _, tensor in group]
            reasons = [reason for tensor in tensors if (reason := unguardable(tensor)) is not None]
            if reasons or not _fits(tensors):
                self.notes.append(f"{names}: {(*reasons, 'a copy does not fit into memory')[0]}")
                continue
            copies, zones = enclose(tensors, pattern=Pattern.BESIDE_INPUT)
            self._redzones.append((names, zones))
            for tensor, copy in zip(tensors, copies, strict=True):
                copy.__dict__.update(tensor.__dict__)
                yield id(tensor), copy


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
