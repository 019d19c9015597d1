"""Noise injected where aten operators run, so that it needs no knowledge of what a reference computes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_cutile.correctness.error_model.indices import refuse_beyond
from pytest_cutile.correctness.error_model.operators import (
    FUNCTIONS,
    LOGARITHMIC,
    MOVES,
    PRODUCTS,
    SENSITIVE,
    base_name,
    is_exponential,
    is_float64,
    is_opaque,
    is_view,
    is_wide,
    writes_in_place,
)
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy
from pytest_cutile.tile.tensors.dtypes import resolve_dtype
from pytest_cutile.tile.tensors.rounding import round_to
from pytest_cutile.tile.tensors.trees import map_tensors, tensors_in
from pytest_cutile.words.formats import FLOAT32, FLOAT64, FloatFormat

# Noise is +-1 and not uniform: an output with a single source of noise (the second row of causal attention)
# then shows about the same spread in every run, and a few runs cannot underestimate it. Nor are the sources
# equally large, lest two of them cancel in all runs: `AccumulationNoise`.
_UNIFORM = 1.0 / math.sqrt(3.0)  # standard deviation of a rounding error, in units of its maximum
_OPAQUE = 2.0
"""How many times as much as PyTorch's float32 another implementation of an operator may round inside."""
CHUNK = 1 << 21
"""Elements moved at a time: about ten float64 temporaries of 16 MiB each."""
_MOST_SOURCES = 1 << 20
_IRRATIONAL = ((math.sqrt(5.0) - 1.0) / 2.0, math.sqrt(2.0), math.sqrt(3.0))
_WIDER: dict[Any, torch.dtype] = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class Injector:
    """What happens to inputs and operators of one run; this base class leaves them alone."""

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an input, a float64 copy of what was given, as the reference is to see it."""
        return tensor

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


class Calls(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Shows an injector every operator that runs.

    `x.float()`, which references say to be more precise than 16 bits, makes float64.
    """

    def __init__(self, injector: Injector) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._injector = injector
        self.paused = False
        """Whether operators run unseen."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch keeps its compiler out of modes, and to do so imports it: a second and more per process
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if (wide := _WIDER.get(kwargs.get("dtype"))) is not None:
            kwargs = {**kwargs, "dtype": wide}
        refuse_beyond(func, args)
        return self._injector.call(func, args, kwargs)


class OperandNoise(Injector):
    """Rounds operands of matrix products, by `scale` roundings, in the direction of a grid that shifts.

    Each run rounds multiples of the operands, by a factor of its own. So equal values are rounded equally,
    and those that lie closer together than two numbers of the format in one direction, as a kernel rounds
    them: their errors add up in a sum. In every second run the errors are those of the rounding, which loses
    what such values differ by; in the others they are equally large.
    """

    def __init__(self, run: int, operands: FloatFormat, *, scale: float = 1.0) -> None:
        self.run = run
        self.operands = operands
        self.scale = scale
        self.unit = scale * operands.unit_roundoff
        # Between 1/2 and 1, so that nothing overflows.
        self.factor = 2.0 ** -math.modf((run + 1) * _IRRATIONAL[0])[0]

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if base_name(func) in PRODUCTS:
            args = map_tensors(self._round, args)
        return func(*args, **kwargs)

    def _round(self, tensor: torch.Tensor) -> torch.Tensor:
        return _in_chunks(self._rounded, tensor, dtype=torch.float64) if is_float64(tensor) else tensor

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        operands = self.operands
        inexact = inexact_in(tensor, operands)
        if not bool(inexact.any()):  # as of operands that are inputs, which are the largest
            return tensor
        scaled = tensor * self.factor
        rounded = round_to(scaled, operands)
        if self.run % 2:
            error = rounded.div_(self.factor).sub_(tensor)
            return torch.where(inexact, error.mul_(self.scale).add_(tensor), tensor)
        # Below the smallest normal number the spacing stays what it is there.
        magnitude = tensor.abs().clamp_(min=math.ldexp(1.0, operands.min_exponent))
        is_up = rounded > scaled
        noise = torch.where(is_up, _UNIFORM * self.unit, -_UNIFORM * self.unit).mul_(magnitude).add_(tensor)
        return torch.where(inexact, noise, tensor)


class AccumulationNoise(Injector):
    """Moves inputs, operands of sums and functions, and rounded results by `scale` float32 roundings.

    With `equally`, equal values of a tensor move equally, as a kernel would round them: ties stay ties.
    """

    rounding = FLOAT32
    moves_inputs = True

    def __init__(self, run: int, *, scale: float = 1.0, equally: bool = False) -> None:
        self.run = run
        self.scale = scale
        self.equally = equally
        self.sources = 0
        self.generators: dict[Any, torch.Generator] = {}

    def on_input(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.moves_inputs:
            return tensor

        def move(values: torch.Tensor) -> torch.Tensor:
            # whole numbers may be masks, counts or positions that the reference compares with
            return torch.where(values == values.round(), values, self._noisy(values))

        return _in_chunks(move, tensor)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = base_name(func)
        if name in SENSITIVE:
            return self._call_sensitive(func, args, kwargs)
        if is_opaque(func, args):
            return self._through(func, map_tensors(self._noisy, args), kwargs)
        result = func(*args, **kwargs)
        if name in MOVES or is_view(func):
            return result
        return on_result(func, args, result, self._noisy_where_rounded)

    def _call_sensitive(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = base_name(func)
        if writes_in_place(func):
            args[0].copy_(self._noisy(args[0]))
            args = (args[0], *map_tensors(self._noisy, args[1:]))
        else:
            args = map_tensors(self._noisy, args)
        result = func(*args, **kwargs)
        if name in LOGARITHMIC:
            # of the sum inside, whose relative error is an absolute one of its logarithm
            sums = args[1] if name == "_log_softmax" else None
            unit = self._next_unit()
            result = on_result(func, args, result, lambda tensor: self._shifted(tensor, unit, dim=sums))
        if name not in FUNCTIONS:
            return result
        if name == "gelu" and is_float64(result):  # x / 2 (1 + erf(...)), in which 1 + erf cancels
            result = result + (self._noisy(args[0]) - args[0]) / 2
        result = on_result(func, args, result, lambda tensor: self._perhaps_flushed(tensor, args[0]))
        return on_result(func, args, result, self._noisy_where_rounded)

    def _through(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that is taken to round inside what PyTorch's own float32 does, of the operands."""
        result = func(*args, **kwargs)
        short = map_tensors(lambda tensor: tensor.float() if is_float64(tensor) else tensor, args)
        try:
            rounded = func(*short, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError):  # it takes no float32
            return map_tensors(self._noisy_where_rounded, result)
        same = map_tensors(lambda tensor: tensor.double() if tensor.dtype == torch.float32 else tensor, short)
        exact = func(*same, **kwargs)
        errors = (
            (one.double() - other).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            for one, other in zip(tensors_in(rounded), tensors_in(exact), strict=True)
            if is_float64(other)
        )
        return map_tensors(
            lambda tensor: tensor + _OPAQUE * self.scale * next(errors) if is_float64(tensor) else tensor,
            result,
        )

    def _shifted(self, tensor: torch.Tensor, unit: float, *, dim: int | None = None) -> torch.Tensor:
        """Return logarithms with absolute errors of `unit`, the same along `dim`, which is of one sum."""
        if not is_float64(tensor):
            return tensor
        shape = [*tensor.shape]
        if dim is not None and shape:
            shape[dim] = 1
        return tensor + self._by(tensor.new_ones(shape), unit) - 1.0

    def _noisy(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._moved(tensor, self._next_unit()) if is_wide(tensor) else tensor

    def _moved(self, tensor: torch.Tensor, unit: float) -> torch.Tensor:
        """Return `tensor` with errors of `unit`; of complex numbers in units of their magnitude.

        One part of a product may cancel, and its error does not.
        """
        if not tensor.is_complex():
            return self._by(tensor, unit)
        size = tensor.abs()
        return tensor + torch.complex(self._by(size, unit) - size, self._by(size, unit) - size)

    def _perhaps_flushed(self, result: torch.Tensor, given: Any) -> torch.Tensor:
        """Return a function's result, where it is no normal float32 at random 0 or twice as large.

        exp2.approx.ftz and its like flush such numbers to zero (PTX ISA).
        """
        return _where_small(result, given, FLOAT32, lambda values, _: self._by(values, 1.0))

    def _next_unit(self) -> float:
        """Return the size of the next source of noise: 0.75 to 1.25 units, unlike those before it."""
        self.sources += 1
        # evenly spread; other numbers in other runs, so that two sources are not alike in all of them
        part = math.modf(self.sources * _IRRATIONAL[self.run % len(_IRRATIONAL)])[0]
        return (0.75 + 0.5 * part) * self.scale * self.rounding.unit_roundoff

    def _by(self, tensor: torch.Tensor, unit: float) -> torch.Tensor:
        """Return `tensor` with relative errors of `unit` and random signs."""
        if self.equally:
            signs = noise_by_value(tensor, self.run * _MOST_SOURCES + self.sources).sign()
            return signs.mul_(unit).add_(1.0).mul_(tensor)
        if tensor.device not in self.generators:
            self.generators[tensor.device] = torch.Generator(tensor.device).manual_seed(self.run)
        generator = self.generators[tensor.device]
        # A byte of a random word for each element: `bernoulli_` takes 2 to 6 times as long on a CPU.
        words = torch.empty((tensor.numel() + 7) // 8, dtype=torch.int64, device=tensor.device)
        is_up = words.random_(-(2**63), None, generator=generator).view(torch.int8)[: tensor.numel()] >= 0
        return is_up.view(tensor.shape).to(tensor.dtype).mul_(2 * unit).add_(1.0 - unit).mul_(tensor)

    def _noisy_where_rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a result, which no view shares, with noise where float32 does not hold it."""
        unit = self._next_unit()

        def move(values: torch.Tensor) -> torch.Tensor:
            return torch.where(self._is_rounded(values), self._moved(values, unit), values)

        return _in_chunks(move, tensor) if is_wide(tensor) else tensor

    def _is_rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor != tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)


class PolicyNoise(AccumulationNoise):
    """Moves what a kernel's policy says is rounded or approximate: intermediate results, exponentials.

    `exact` says that nothing else makes an error: then the operands of products measure partial sums.
    """

    moves_inputs = False  # they are no intermediate results

    def __init__(
        self,
        run: int,
        policy: NumericsPolicy,
        *,
        exact: bool = False,
        scale: float = 1.0,
        equally: bool = False,
    ) -> None:
        super().__init__(run, scale=scale, equally=equally)
        self.policy = policy
        self.exact = exact
        self.rounding = policy.mid or FLOAT64

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = base_name(func)
        # operands of products have been rounded where they were computed; other functions are made of several
        # operations, each of which rounds
        plain = name in PRODUCTS and not self.exact
        result = func(*args, **kwargs) if plain else super().call(func, args, kwargs)
        if name in SENSITIVE - FUNCTIONS:
            result = on_result(func, args, result, self._noisy_where_rounded)
        if self.policy.exp_error and is_exponential(func, args):
            unit = self.scale * self.policy.exp_error
            approximate = self._shifted if name in LOGARITHMIC else self._scaled
            result = on_result(func, args, result, lambda tensor: approximate(tensor, unit))
        return result

    def _perhaps_flushed(self, result: torch.Tensor, given: Any) -> torch.Tensor:
        """Return a function's result, where it is small for `mid` with errors of the smallest numbers."""
        unit = self.scale * self.rounding.unit_roundoff
        result = super()._perhaps_flushed(result, given)
        return _where_small(
            result, given, self.rounding, lambda values, least: values + (self._by(least, unit) - least)
        )

    def _scaled(self, tensor: torch.Tensor, unit: float) -> torch.Tensor:
        return self._by(tensor, unit) if is_float64(tensor) else tensor

    def _moved(self, tensor: torch.Tensor, unit: float) -> torch.Tensor:
        """Return `tensor` with errors of `unit`, no smaller below the smallest normal number of `mid`."""
        moved = super()._moved(tensor, unit)
        if tensor.is_complex():
            return moved
        least = math.ldexp(1.0, self.rounding.min_exponent)
        is_small = (tensor != 0) & (tensor.abs() < least)
        return torch.where(is_small, tensor + (moved / tensor - 1.0) * least, moved)

    def _is_rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return inexact_in(tensor.real, self.rounding) | inexact_in(tensor.imag, self.rounding)
        return inexact_in(tensor, self.rounding)


def inexact_in(tensor: torch.Tensor, target: FloatFormat) -> torch.Tensor:
    """Return which finite elements `target` does not hold; too large or too small ones count as held."""

    def inexact(values: torch.Tensor) -> torch.Tensor:
        in_range = values.abs() <= target.max_finite
        if not hasattr(torch, target.name):  # it exists only inside tensor cores
            return in_range & (round_to(torch.where(in_range, values, 0.0), target) != values)
        # However torch rounds and saturates: what the dtype holds comes back, and nothing else does.
        return in_range & (values.to(resolve_dtype(target.name)).to(torch.float64) != values)

    return _in_chunks(inexact, tensor, dtype=torch.bool)


def _in_chunks(
    function: Callable[..., torch.Tensor], *tensors: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return an elementwise function of tensors, with temporaries for `CHUNK` elements only.

    The result has its `dtype`, or else may overwrite the first tensor.
    """
    first = tensors[0]
    if first.numel() <= CHUNK:
        return function(*tensors)
    is_new = dtype is not None or not first.is_contiguous()
    result = torch.empty(first.shape, dtype=dtype or first.dtype, device=first.device) if is_new else first
    flat = (torch.split(tensor.reshape(-1), CHUNK) for tensor in (result, *tensors))
    for place, *values in zip(*flat, strict=True):
        place.copy_(function(*values))
    return result


def _where_small(
    result: torch.Tensor,
    given: Any,
    target: FloatFormat,
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return a function's result, changed where it is less than `least`, the least normal number of `target`.

    `change` gets values and `least`, which is 1 + |x| times as large for a function of x, the elements of
    `given`: a kernel may multiply by x, as in silu(x) = x sigmoid(x).
    """
    if not is_float64(result):
        return result
    normal = math.ldexp(1.0, target.min_exponent)

    def where_small(values: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        least = torch.full_like(values, normal) if x is None else x.abs().add_(1.0).mul_(normal)
        return torch.where(values.abs() < least, change(values, least), values)

    is_elementwise = is_float64(given) and given.shape == result.shape
    return _in_chunks(where_small, result, *([given] if is_elementwise else []))


def noise_by_value(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Return noise of variance 1/3 that depends on each value's bits alone (splitmix64's finalizer)."""
    # As torch wraps integers: from the ninth seed on, Python's would not fit.
    start = ((seed + 1) * 0x1E3779B97F4A7C15 + 2**63) % 2**64 - 2**63
    bits = values.contiguous().view(torch.int64) + start
    for shift, mask, factor in (
        (30, 0x3FFFFFFFF, -0x40A7B892E31B1A47),
        (27, 0x1FFFFFFFFF, -0x6B2FB644ECCEEE15),
    ):
        bits.bitwise_xor_((bits >> shift).bitwise_and_(mask)).mul_(factor)
    return torch.where(bits < 0, -_UNIFORM, _UNIFORM).to(torch.float64)


def on_result(
    func: Any, args: tuple[Any, ...], result: Any, change: Callable[[torch.Tensor], torch.Tensor]
) -> Any:
    if not writes_in_place(func):
        return map_tensors(change, result)
    if is_float64(args[0]):
        args[0].copy_(change(args[0]))
    return result
