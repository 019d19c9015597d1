"""Integers that a reference makes of floats: which of them depend on how those are rounded.

A quantised value that lies at a tie, or the index of the largest of two that are almost equal, is another one
for a kernel that computes in float32. What differs from the reference is right nevertheless if the reference
itself returns it where its intermediate results are moved, by no more than T1 would let them be off. That is
tried for the elements that differ, and only if there are any. Inputs stay what they are: what is computed
from them exactly (the largest of them, a comparison with one) depends on no rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_cutile.check.compare import differ
from pytest_cutile.check.injection import (
    AccumulationNoise,
    ContractNoise,
    OperandNoise,
    base_name,
    is_float64,
    noise_by_value,
    writes_in_place,
)
from pytest_cutile.check.noise import run_with
from pytest_cutile.gpu.dtypes import bits_of
from pytest_cutile.gpu.trees import named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from pytest_cutile.check.injection import Injector
    from pytest_cutile.core.tolerance import Contract, FloatFormat

ROUNDS = 16
"""Of two almost equal values, noise exchanges the order in every second round."""
_SIZES = (1.0, 0.5, 0.25, 0.125)
"""Of the noise, round after round: a tie shows with any, and what may be off by several with many."""
_MANY = 64
"""So many elements at least are not left over by chance, if a round explains less than one of so many."""

_SOURCES = 1 << 20
"""More than there are in a run."""


class _EqualNoise(AccumulationNoise):
    """Moves equal values of a tensor equally, as a kernel would round them: what ties stays a tie."""

    def _by(self, tensor: torch.Tensor, unit: float) -> torch.Tensor:
        signs = noise_by_value(tensor, self.run * _SOURCES + self.sources).sign()
        return signs.mul_(unit).add_(1.0).mul_(tensor)


class _ContractNoise(_EqualNoise, ContractNoise):
    """Moves what a contract says."""


class _IntermediateNoise(_EqualNoise):
    """Moves rounded results, operands of sums and functions, and quotients, but no input."""

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an input as it is."""
        return tensor

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one aten operator."""
        import torch

        if base_name(func) == "div" and is_float64(args[0]):
            # a kernel may multiply by the reciprocal, which is rounded even where the quotient is not
            fraction, _ = torch.frexp(torch.as_tensor(args[1], dtype=torch.float64, device=args[0].device))
            moved = torch.where(fraction.abs() == 0.5, args[0], self._noisy(args[0]))  # noqa: PLR2004 - powers of two
            if writes_in_place(func):
                args[0].copy_(moved)
            else:
                args = (moved, *args[1:])
        return super().call(func, args, kwargs)


def as_rounded(
    reference: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    operands: FloatFormat | None,
    contract: Contract,
    reach: float,
    sigmas: float,
) -> dict[str, torch.Tensor]:
    """Return the exact integers, but those of a run with noise where that is what the kernel returned.

    Args:
        reference: the reference.
        args: its arguments, before upcasting.
        kwargs: likewise.
        pairs: the integer outputs of the kernel and the exact ones, by name.
        operands: what tensor cores round operands of products to; None where that changes none.
        contract: what the kernel may do besides.
        reach: how far intermediate results may be off, in units of float32's unit roundoff.
        sigmas: how far roundings that only `operands` or `contract` allow, in units of one.
    """
    result = {name: exact.clone().reshape(-1) for name, (_, exact) in pairs.items()}
    outs = {name: out.reshape(-1) for name, (out, _) in pairs.items()}
    left = {name: differ(out, result[name]).nonzero().flatten() for name, out in outs.items()}

    makers: list[Callable[[int, float], Injector]] = [
        lambda run, size: _IntermediateNoise(run, scale=size * reach)
    ]
    if operands is not None:
        makers.append(lambda run, size: OperandNoise(run, operands, scale=size * sigmas))
    if contract.is_noise:
        makers.append(lambda run, size: _ContractNoise(run, contract, scale=size * sigmas))
    for run in range(ROUNDS):
        before = sum(each.numel() for each in left.values())
        for make in makers:
            # the same noise with both signs, so that a value at a tie falls to both sides
            for size in (_SIZES[run % len(_SIZES)], -_SIZES[run % len(_SIZES)]):
                moved = dict(named_tensors(run_with(reference, args, kwargs, make(run, size)), "output"))
                for name, at in left.items():
                    if moved[name].shape == pairs[name][1].shape:
                        values = _pick(moved[name].reshape(-1), at)
                        wrong = differ(_pick(outs[name], at), values)
                        bits_of(result[name])[at[~wrong]] = bits_of(values)[~wrong]
                        left[name] = at[wrong]
        unexplained = sum(each.numel() for each in left.values())
        if not unexplained or (unexplained > _MANY and (before - unexplained) * _MANY < unexplained):
            break
    return {name: values.reshape(pairs[name][1].shape) for name, values in result.items()}


def _pick(values: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return elements of a tensor; of uint64, which cannot be indexed everywhere, too."""
    return bits_of(values)[at].view(values.dtype)
