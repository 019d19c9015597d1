"""Input tensors: `make_tensor`, reproducible from a seed, in every dtype and layout that cuTile has."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

import torch

from pytest_cutile.tile.tensors.dtypes import format_of, name_of, resolve_dtype
from pytest_cutile.tile.tensors.poison import laid_out
from pytest_cutile.tile.tensors.rounding import round_to
from pytest_cutile.words.formats import FloatFormat
from pytest_cutile.words.input_names import DISTRIBUTIONS

GENERATED_ON_CPU = 1 << 24
"""Elements up to which values are drawn on the CPU, the same for all devices; more on the device itself."""

_INTEGERS = (-8, 9)  # half open; exact in every float dtype, e5m2 with its 3 bits included
_SIGNED_ROWS = 3
"""Rows from which on two of them have one sign."""
_MOST_SIGNED = 8
"""What those rows stay within; normal numbers plus 1 hardly reach it."""
OUTLIERS = 0.005
"""Share of the elements that "outliers" makes larger."""
OUTLIER_FACTOR = 60.0
OFFSET = 7.75
"""The mean of "offset"; that of "negative" is -7.75. Just below a power of 2, a dtype's steps are smallest
in proportion to its values. It is no whole number, which the noise on a reference's inputs leaves out."""
_SIGNS = {"offset": 1, "negative": -1}
"""The sign of all elements, so that padding by zero is none of them, in rows, columns or the whole."""
_OFFSET_DEVIATION = 1 / 32
"""Standard deviation of "offset", or one step of a dtype with larger steps: so much less than the mean that a
variance as E[x^2] - E[x]^2 loses its digits (docs/explanation/correctness.md)."""


def make_tensor(
    shape: int | Sequence[int],
    dtype: torch.dtype | str,
    *,
    device: torch.device | str,
    seed: int,
    dist: str = "normal",
    low: float | None = None,
    high: float | None = None,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    requires_grad: bool = False,
    signed_rows: bool = True,
) -> torch.Tensor:
    """Return a tensor of random values that depend on the arguments alone.

    Argument names, and `[low, high)` being half open, are those of `torch.testing.make_tensor`.

    Args:
        shape: `[d0, d1, ...]`, or one int for a vector.
        dtype: a torch dtype or its name: "float16", "bf16", "float8_e4m3fn".
        device: where the tensor lives. On "meta" it has no values, only shape, strides and dtype.
        seed: the same seed gives the same values on every device, up to `GENERATED_ON_CPU` elements.
        dist: "normal" has mean 0 and standard deviation 1, but for the signed rows. "uniform" is in
            [low, high), by default [-1, 1). "integers" are whole numbers in [low, high), by default [-8, 9),
            which every dtype holds exactly: sums of them tell a rounding error from a wrong index. "zeros",
            "ones".
            Normal, but: "outliers" with 0.5 % of the elements, at least one, 60 times as large; "offset"
            around a mean of 7.75, with a deviation of 1/32 (8 bits: 1/2 or 1), and "negative" of -7.75;
            "small" times the dtype's eps; "tiny" times its smallest normal number, so that two thirds are
            subnormal; "nan" with one element NaN; "inf" with one +Inf and one -Inf, in different rows if
            there are two. "one_hot" is 1 at one random index of each row (the last dimension), else 0.
            For integer dtypes all random ones mean "integers", never negative for unsigned ones; bool is 0
            or 1. Of these, "offset" draws odd numbers above 0 and "negative" below 0, so far as the dtype and
            [low, high) have any: no product wraps to 0. fp8 values are rounded to nearest and saturate: NaN
            only for "nan", and Inf only for "inf" in a dtype that has it.
        low: see `dist`; only for "uniform" and "integers" of a floating dtype.
        high: see `dist`.
        strides: the layout, in elements: `strides=(1, 128)` for a transposed [128, 64]. The tensor is then a
            view of a larger buffer, whose other elements are NaN: a kernel that reads them shows it. A stride
            of 0 repeats one element.
        offset: elements of that buffer, NaN as well, before the first one: `offset=1` makes it a view whose
            address is aligned to one element only.
        requires_grad: as in torch.
        signed_rows: whether of three rows (along the last dimension) of normal numbers or more the last but
            one is negative and the last one positive, every element of them by 1 at least.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a dtype that cuTile lacks, an impossible range, shape or layout.
    """
    sizes = _check_shape(shape)
    dtype = resolve_dtype(dtype)
    place = torch.device(device)
    if dist not in DISTRIBUTIONS:
        raise ValueError(f"dist must be one of {', '.join(DISTRIBUTIONS)}; got {dist!r}")
    if not isinstance(offset, int) or offset < 0:
        raise ValueError(f"offset is a number of elements, 0 or more; got {offset!r}")
    if requires_grad and not dtype.is_floating_point:
        raise ValueError(f"requires_grad needs a floating-point dtype, got {name_of(dtype)}")
    if strides is None and offset:
        strides = _contiguous_strides(sizes)
    limits = _check_range(dtype, dist, low, high)
    steps = None if strides is None else _check_strides(sizes, strides)
    # a dimension of stride 0 holds one element, repeated
    drawn = [min(size, 1) if steps and steps[dim] == 0 else size for dim, size in enumerate(sizes)]
    values = _draw(
        drawn, dtype=dtype, place=place, seed=seed, dist=dist, limits=limits, signed_rows=signed_rows
    )
    if steps is not None:
        values = laid_out(values.expand(sizes), steps, offset)
    return values.requires_grad_(requires_grad)


def _contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    steps = [*itertools.accumulate((max(size, 1) for size in reversed(sizes)), operator.mul, initial=1)]
    return tuple(steps[-2::-1])


def layout_of(sizes: Sequence[int], layout: str) -> tuple[tuple[int, ...] | None, int]:
    """Return the `strides` and `offset` of `make_tensor` that give `sizes` a layout by its name."""
    if layout == "contiguous" or not sizes:
        return None, 0
    if layout == "shifted":
        return _contiguous_strides(sizes), 1
    if len(sizes) == 1:
        return (2,), 0
    *outer, rows, columns = sizes
    if layout == "padded":
        # No power of two divides it, so that no row but the first is aligned.
        steps = _contiguous_strides([*outer, rows, columns + 3 - columns % 2])
        return steps, 0
    *steps_outside, _, _ = _contiguous_strides(sizes)
    return (*steps_outside, 1, max(rows, 1)), 0


def _check_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, int) and not isinstance(shape, bool):
        shape = (shape,)
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise TypeError(f"shape must be an int or a sequence of ints, got {shape!r}")
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"shape must hold ints, got {size!r} in {tuple(shape)}")
        if size < 0:
            raise ValueError(f"shape must not be negative, got {tuple(shape)}")
    return tuple(shape)


def _check_strides(sizes: tuple[int, ...], strides: Sequence[int]) -> tuple[int, ...]:
    steps = tuple(strides)
    if not all(isinstance(step, int) for step in steps):
        raise TypeError(f"strides must hold ints, got {steps}")
    if len(steps) != len(sizes):
        raise ValueError(f"strides {steps} and shape {sizes} have different lengths")
    if any(step < 0 for step in steps):
        raise ValueError(f"strides must not be negative, got {steps}")
    reach = 0  # the last offset that the dimensions so far, of smaller stride, reach
    for step, size in sorted(zip(steps, sizes, strict=True)):
        if step == 0 or size <= 1:
            continue
        if step <= reach:
            raise ValueError(
                f"strides {steps} make elements of shape {sizes} overlap; only a stride of 0 may"
            )
        reach += step * (size - 1)
    return steps


def _check_range(dtype: torch.dtype, dist: str, low: float | None, high: float | None) -> tuple[float, float]:
    given = low is not None or high is not None
    ranged = dist in ("uniform", "integers") or not (dist in ("zeros", "ones") or dtype.is_floating_point)
    if given and not ranged:
        raise ValueError(f'low and high go with dist="uniform" or "integers", not {dist!r}')
    whole = dist == "integers" or not dtype.is_floating_point
    smallest, largest = _whole_numbers(dtype)
    first, last = (max(_INTEGERS[0], smallest), min(_INTEGERS[1], largest + 1)) if whole else (-1.0, 1.0)
    first, last = first if low is None else low, last if high is None else high
    if not (math.isfinite(first) and math.isfinite(last) and first < last):
        raise ValueError(f"low must be below high and both finite, got [{first}, {last})")
    if not whole:
        return first, last
    if first != int(first) or last != int(last):
        raise ValueError(f"low and high of integers must be whole numbers, got [{first}, {last})")
    if first < smallest or last - 1 > largest:
        raise ValueError(
            f"{name_of(dtype)} does not hold every integer of [{first:g}, {last:g}) exactly: "
            f"keep them in [{smallest:g}, {largest:g}]"
        )
    return first, last


def _whole_numbers(dtype: torch.dtype) -> tuple[float, float]:
    """Return the smallest and the largest of the integers that a dtype holds without a gap."""
    if dtype == torch.bool:
        return 0.0, 1.0
    if (fmt := format_of(dtype)) is not None:
        return -(2.0**fmt.precision), 2.0**fmt.precision
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _draw(
    sizes: Sequence[int],
    *,
    dtype: torch.dtype,
    place: torch.device,
    seed: int,
    dist: str,
    limits: tuple[float, float],
    signed_rows: bool,
) -> torch.Tensor:
    if place.type == "meta":
        return torch.empty(sizes, dtype=dtype, device=place)
    if dist in ("zeros", "ones"):
        return torch.full(sizes, float(dist == "ones"), device=place).to(dtype)
    source = place if math.prod(sizes) > GENERATED_ON_CPU else torch.device("cpu")
    generator = torch.Generator(source).manual_seed(seed)
    low, high = limits
    fmt = format_of(dtype)
    if dist == "integers" or fmt is None:
        drawn = _draw_integers(sizes, int(low), int(high), dist, generator)
        if signed_rows and dist == "normal" and limits == _INTEGERS:
            _give_rows_a_sign(drawn)
        return drawn.to(dtype).to(place)
    # float32 holds every smaller dtype's values; one draw for all of them
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    values = torch.zeros(sizes, dtype=wide, device=source)
    if dist == "uniform":
        values.uniform_(low, high, generator=generator)
    elif dist == "one_hot":
        if values.numel():
            rows = values.view(values.shape or 1)
            at = torch.randint(rows.shape[-1], (*rows.shape[:-1], 1), generator=generator, device=source)
            rows.scatter_(-1, at, 1.0)
    else:
        values.normal_(generator=generator)
        if signed_rows:
            _give_rows_a_sign(values)
        _alter(values, dist, fmt, generator)
    if fmt.saturates:
        # not what is no number: it does not saturate
        rounded = round_to(values.double(), fmt, saturate=True).to(wide)
        values = torch.where(values.isfinite() | (values.isinf() & (not fmt.has_infinity)), rounded, values)
    return values.to(dtype).to(place)


def _draw_integers(
    sizes: Sequence[int], low: int, high: int, dist: str, generator: torch.Generator
) -> torch.Tensor:
    """Draw from [low, high); for "offset" and "negative" odd numbers of one sign, as far as there are any."""
    sign = -1 if dist == "negative" and low < 0 else 1
    if sign < 0:
        low, high = 1 - high, 1 - low
    if dist in _SIGNS and high > 1:
        low = max(low, 1)
    drawn = torch.randint(low, high, sizes, generator=generator, device=generator.device)
    if dist in _SIGNS:
        odd = (drawn - 1) | 1
        drawn = torch.where(odd < low, drawn, odd)
    return sign * drawn


def _give_rows_a_sign(values: torch.Tensor) -> None:
    """Make the last row but one negative and the last one positive, and no element of them smaller than 1.

    Padding by zero is then not the largest or the smallest of a row only by chance.
    """
    if values.ndim < 2 or values.numel() < _SIGNED_ROWS * max(values.shape[-1], 1):  # noqa: PLR2004
        return
    rows = values.view(-1, values.shape[-1])
    for row, sign in ((rows[-2], -1), (rows[-1], 1)):
        row.abs_().add_(1).clamp_(max=_MOST_SIGNED).mul_(sign)


def _alter(values: torch.Tensor, dist: str, fmt: FloatFormat, generator: torch.Generator) -> None:
    def pick(count: int) -> torch.Tensor:
        return torch.randint(flat.numel(), (count,), generator=generator, device=flat.device)

    flat = values.view(-1)
    if flat.numel() == 0:
        return
    if dist in _SIGNS:
        values.mul_(max(OFFSET * fmt.unit_roundoff, _OFFSET_DEVIATION))
        values.add_(_SIGNS[dist] * OFFSET)
    elif dist == "small":
        values.mul_(2.0 * fmt.unit_roundoff)
    elif dist == "tiny":
        values.mul_(math.ldexp(1.0, fmt.min_exponent))
    elif dist == "outliers":
        flat[pick(max(1, round(OUTLIERS * flat.numel())))] *= OUTLIER_FACTOR
    elif dist == "nan":
        flat[pick(1)] = torch.nan
    elif dist == "inf":
        width = values.shape[-1] if values.ndim else 1
        first = int(pick(1))
        flat[first] = torch.inf
        flat[(first + max(width, 1)) % flat.numel()] = -torch.inf
