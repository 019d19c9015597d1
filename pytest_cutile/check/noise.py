"""How much the reference's result moves when its operands are rounded: a backward-error estimate.

The reference runs a few more times, each time with noise of one rounding:

- *accumulation* noise, u = 2^-24: on the inputs, on the operands of sums and transcendental functions, and
  on every intermediate result that float32 does not hold exactly. Exact values stay exact, so that masks
  and counts still compare equal.
- *operand* noise: on operands of matrix products that the tensor core's input dtype does not hold, such as
  the probabilities of attention, which a kernel has to round to float16 before it multiplies them. Equal
  values get equal noise, as they would round equally. Without such operands these runs are left out.
- *contract* noise: on what a kernel's contract says is rounded more (`mid`) or approximate (`exp_error`).
  Without a contract these runs are left out.

What the reference computes outside torch (numpy) only sees the noise on the inputs.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_cutile.check.injection import CHUNK, AccumulationNoise, ContractNoise, Injector, OperandNoise
from pytest_cutile.check.observing import Observer
from pytest_cutile.check.slices import Slices
from pytest_cutile.check.steps import DecidingNoise, Settled, Settling, Taken
from pytest_cutile.core.tolerance import FLOAT32, Contract
from pytest_cutile.gpu.trees import have_same_bits, map_leaves, named_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from pytest_cutile.check.steps import Steps
    from pytest_cutile.core.tolerance import FloatFormat

_NOTHING_MORE = Contract()
RUNS = 3
"""Noisy runs for each of the two kinds; results are pooled over rows and columns, so a few are enough."""
RUNS_OF_SMALL_OUTPUTS = 12
SMALL_OUTPUT = 256
"""Outputs of fewer elements have little to pool over, and cost little: they get more runs."""


_LARGEST = 1e150
"""Of float64: larger values have squares that it does not hold."""
_BETTER = 0.5
"""What the variance of a better explanation is at most of that of the other one."""
_OF_LOGARITHMS = 0.37
"""What the logarithm of a mean of three squares is short of that of its mean, in the mean."""
_FEW = 2.0
"""So many rows of average noise are added to those that the level of a column is the mean of."""


@dataclass
class Spread:
    """Mean square change of one output, by element and pooled, the output laid out as `[rows, columns]`.

    A few runs measure an element's own spread badly: two sources of the same size may cancel in all of them.
    So it is pooled, as what a row and a column have in common, which is what it is in a matrix product; or,
    where `exact` is given and that explains it far better, as so much of the element's value (exponentials,
    products of single elements), lest one large element widens the bound of all small ones in its row.
    """

    elements: torch.Tensor
    """float64 `[rows, columns]`."""
    exact: torch.Tensor | None = None
    """float64 `[rows, columns]`: the exact values, where noise may be in proportion to them."""

    @functools.cached_property
    def _pool(self) -> _Pool:
        absolute = _Pool.of(self.elements)
        if self.exact is None:
            return absolute
        relative = _Pool.of(self.elements, self.exact)
        return relative if relative.misfit < _BETTER * absolute.misfit else absolute

    def block(self, rows: slice, columns: slice) -> torch.Tensor:
        """Return the variance to allow: no less than the element's own and than what it is pooled with."""
        import torch

        pooled = self._pool.by_row[rows] * self._pool.by_column[:, columns]
        if self._pool.exact is not None:
            pooled *= self._pool.exact[rows, columns].square()
        return torch.maximum(self.elements[rows, columns], pooled.nan_to_num_(nan=0.0))

    @classmethod
    def none(cls, like: torch.Tensor) -> Spread:
        """Return the spread of a result that noise does not move, such as an integer one."""
        import torch

        zero = torch.zeros((), dtype=torch.float64, device=like.device)
        return cls(zero.expand(matrix_view(like).shape))


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """What the rows and columns of an output have in common."""

    exact: torch.Tensor | None
    """float64 `[rows, columns]`: values in units of whose squares it is."""
    by_row: torch.Tensor
    """float64 `[rows, 1]`: the mean over each row."""
    by_column: torch.Tensor
    """float64 `[1, columns]`: the mean over each column, in units of the rows' means."""
    misfit: float
    """Variance of the logarithm of an element's own in units of these; infinite where there is nothing."""

    @classmethod
    def of(cls, elements: torch.Tensor, exact: torch.Tensor | None = None) -> _Pool:
        """Return what they have in common; with `exact` by logarithms.

        A few values that cancel have far more noise in proportion to them than others, and it is their own.
        """
        import torch

        rows, columns = elements.shape
        by_row = elements.new_zeros(rows, 1)
        totals, counts = elements.new_zeros(2, 1, columns)
        step = max(1, CHUNK // max(columns, 1))
        parts = [slice(row, row + step) for row in range(0, rows, step)]
        for part in parts:
            level = _level(elements[part], exact if exact is None else exact[part])
            usable = level.isfinite()
            level.masked_fill_(~usable, 0.0)
            by_row[part] = level.sum(dim=1, keepdim=True) / usable.sum(dim=1, keepdim=True).clamp_(min=1)
            level = level / by_row[part] if exact is None else level - by_row[part]
            usable &= level.isfinite()
            totals += level.masked_fill_(~usable, 0.0).sum(dim=0, keepdim=True)
            counts += usable.sum(dim=0, keepdim=True)
        by_column = totals.add_(_FEW if exact is None else 0.0).div_(counts + _FEW)
        moments = torch.zeros(3, dtype=torch.float64, device=elements.device)
        for part in parts:
            level = _level(elements[part], exact if exact is None else exact[part])
            level = (
                (level / (by_row[part] * by_column)).log_()
                if exact is None
                else level - by_row[part] - by_column
            )
            usable = level.isfinite()
            level.masked_fill_(~usable, 0.0)
            moments += torch.stack([usable.sum(), level.sum(), level.square().sum()])
        count, total, square = moments.tolist()
        misfit = square / count - (total / count) ** 2 if count > 1 else math.inf
        if exact is not None:
            by_row, by_column = by_row.add_(_OF_LOGARITHMS).exp_(), by_column.exp_()
        return cls(exact=exact, by_row=by_row, by_column=by_column, misfit=misfit)


def _level(elements: torch.Tensor, exact: torch.Tensor | None) -> torch.Tensor:
    return elements.clone() if exact is None else exact.square().reciprocal_().mul_(elements).log_()


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The exact outputs and how far noise moves each of them."""

    outputs: Any
    """What the reference returned, without noise."""
    accumulation: Mapping[str, Spread]
    """For each floating output: mean square change under accumulation noise, in units of u^2."""
    operands: Mapping[str, Spread]
    """The same for operand noise, in absolute units; empty when no operand of a product needs rounding."""
    contract: Mapping[str, Spread]
    """The same for what the contract of the kernel allows besides; empty when that is nothing."""
    has_products: bool
    """Whether the reference multiplies matrices, so that a kernel would use tensor cores."""
    has_exponentials: bool
    """Whether it takes exponentials, or functions made of them."""
    has_steps: bool
    """Whether it rounds, compares, sorts or converts what it computes."""
    settled: Steps
    """The steps that no noise changes, for their operands are exact."""
    is_random: bool
    """Whether it returns something else when it is called again."""
    is_fixed: bool
    """Whether it returns the same whatever its arguments are, as far as noise on them can tell."""
    longest_sum: int
    """How many terms the longest sum has that it shows."""
    rounds_operands: bool
    """Whether tensor cores have to round operands of a product."""
    common_rounding: float
    """Relative error that rounding may give all operands of a product in common; see `common_rounding`."""
    rounds_to: tuple[str, ...]
    """Dtypes narrower than float32 that it rounds intermediate results to."""
    exact: bool
    """Whether all that it computes is exact in float32, too, so that a kernel has to be (`exactness`), as far
    as its contract rounds nothing."""
    runs: int
    """How often the reference ran."""


def matrix_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` as `[rows, columns]`, the last dimension being the columns."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1] if tensor.ndim else 1)


def run_reference(
    reference: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    operands: FloatFormat,
    contract: Contract = _NOTHING_MORE,
) -> Reference:
    """Run `reference` on `args` and `kwargs` upcast to float64: once exactly, then with noise.

    Args:
        reference: the reference.
        args: its arguments, before upcasting; `Slices` for those of which it takes one slice at a time.
        kwargs: likewise.
        operands: what tensor cores round the operands of matrix products to.
        contract: what the kernel may do besides.
    """
    import torch

    call = _Call(reference, args, kwargs)
    observer = Observer(operands)
    outputs = call.under(observer)
    is_exact = observer.exactness.covers(outputs)
    is_random = observer.draws_numbers and not have_same_bits(outputs, call.under(Injector()))
    if observer.has_steps:
        settling = Settling(operands)
        call.under(settling)
        call.has_steps, call.settled = True, settling.settled
    # of a reference that rounds there is nothing to estimate
    estimate = all(
        each.dtype == torch.float64
        for _, each in named_tensors(outputs, "output")
        if each.dtype.is_floating_point
    )
    makers: dict[str, tuple[float, Callable[[int], Injector]]] = {}
    if estimate and not is_exact:
        makers["accumulation"] = FLOAT32.unit_roundoff, AccumulationNoise
    if estimate and observer.has_inexact_operands:
        makers["operands"] = 1.0, lambda run: OperandNoise(run, operands)
    if estimate and contract.is_noise:
        makers["contract"] = 1.0, lambda run: ContractNoise(run, contract, exact=is_exact)
    # the terms of a product may cancel in its value, and the noise of its operands does not
    spreads = {
        kind: _measure(
            call,
            outputs,
            make,
            unit,
            proportional=kind != "operands",
            deciding=DecidingNoise if kind == "accumulation" else lambda _: None,
        )
        for kind, (unit, make) in makers.items()
    }
    return Reference(
        outputs=outputs,
        accumulation=spreads.get("accumulation", {}),
        operands=spreads.get("operands", {}),
        contract=spreads.get("contract", {}),
        has_products=observer.has_products,
        has_exponentials=observer.has_exponentials,
        has_steps=observer.has_steps,
        settled=call.settled,
        is_fixed=_is_fixed(observer, spreads.get("accumulation", {}), args),
        longest_sum=observer.longest_sum,
        is_random=is_random,
        rounds_operands=observer.has_inexact_operands,
        common_rounding=observer.common_rounding,
        rounds_to=tuple(observer.rounds_to),
        exact=is_exact,
        runs=call.runs,
    )


def allow(
    truth: Reference,
    contract: Contract,
    reference: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Reference:
    """Return `truth`, which is what `reference` returned for `args` and `kwargs`, under another contract."""
    if not contract.is_noise:
        return replace(truth, contract={})

    def make(run: int) -> Injector:
        return ContractNoise(run, contract, exact=truth.exact)

    call = _Call(reference, args, kwargs, has_steps=truth.has_steps, settled=truth.settled)
    spread = _measure(call, truth.outputs, make, 1.0)
    return replace(truth, contract=spread, runs=truth.runs + call.runs)


def _count_runs(outputs: Any) -> int:
    sizes = [each.numel() for _, each in named_tensors(outputs, "output") if each.dtype.is_floating_point]
    return RUNS_OF_SMALL_OUTPUTS if any(0 < size < SMALL_OUTPUT for size in sizes) else RUNS


@dataclass
class _Call:
    """A reference with its arguments, how its steps go, and how often it ran."""

    reference: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    has_steps: bool = False
    settled: Steps = field(default_factory=dict)
    runs: int = 0

    @property
    def largest(self) -> float:
        """The largest value that a kernel with these arguments holds, if its square is a float64."""
        import torch

        tensors = named_tensors((self.args, self.kwargs), "")
        return _LARGEST if any(each.dtype == torch.float64 for _, each in tensors) else FLOAT32.max_finite

    def run(self, noise: Injector, deciding: Injector | None) -> Any:
        """Return what it returns with noise, and its steps as `deciding`, if there is one, makes them go."""
        if not self.has_steps:
            return self.under(noise)
        steps = self.settled
        if deciding is not None:
            decided = Taken(deciding, steps)
            self.under(decided)
            steps = decided.taken
        return self.under(Settled(noise, steps))

    def under(self, injector: Injector) -> Any:
        """Return what it returns with what `injector` does."""
        self.runs += 1
        return run_with(self.reference, self.args, self.kwargs, injector)


def _is_fixed(observer: Observer, spreads: Mapping[str, Spread], args: Sequence[Any]) -> bool:
    """Say whether a reference computed nothing, and returned the same whatever noise its arguments had."""
    if observer.computes or not spreads or any(bool(each.elements.any()) for each in spreads.values()):
        return False
    floats = [each for _, each in named_tensors(tuple(args), "") if each.dtype.is_floating_point]
    return any(bool((each.double() != each.double().round()).any()) for each in floats)  # those are moved


def _measure(
    call: _Call,
    outputs: Any,
    make: Callable[[int], Injector],
    unit: float,
    *,
    proportional: bool = True,
    deciding: Callable[[int], Injector | None] = lambda _: None,
) -> dict[str, Spread]:
    """Return the mean square change of each floating output, in units of `unit`, under some runs of noise.

    Args:
        call: the reference.
        outputs: exact ones.
        make: returns the noise of a run.
        unit: see above.
        proportional: whether it may be in proportion to an element's value.
        deciding: returns the noise of a run that decides which way steps go, if that is another.
    """
    import torch

    exact = {
        name: matrix_view(tensor)
        for name, tensor in named_tensors(outputs, "output")
        if tensor.dtype.is_floating_point
    }
    totals = {name: tensor.new_zeros(tensor.shape) for name, tensor in exact.items()}
    runs, largest = _count_runs(outputs), call.largest
    for run in range(runs):
        moved = dict(named_tensors(call.run(make(run), deciding(run)), "output"))
        for name, total in totals.items():
            flat = (torch.split(each.reshape(-1), CHUNK) for each in (moved.pop(name), exact[name], total))
            for values, y, mean_square in zip(*flat, strict=True):
                # Inf - Inf and NaN have no spread; the comparison wants the same Inf and NaN anyway
                change = (values - y).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).div_(unit)
                # nor what the kernel cannot hold: it would outweigh all others, or be too large when squared
                change.masked_fill_(y.abs() > largest, 0.0)
                mean_square.addcmul_(change, change, value=1.0 / runs)
    return {name: Spread(total, exact[name] if proportional else None) for name, total in totals.items()}


def run_exactly(reference: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what `reference` makes of `args` and `kwargs` upcast to float64."""
    return run_with(reference, args, kwargs, Injector())


def run_with(
    reference: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], injector: Injector
) -> Any:
    """Return what `reference` makes of `args` and `kwargs` upcast to float64, with what `injector` does."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode

    preparing = False

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if tensor.is_complex():
            wide = torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
            return torch.view_as_complex(injector.on_input(wide.clone()).contiguous())
        if not tensor.dtype.is_floating_point:
            return tensor.clone()
        return injector.on_input(tensor.to(torch.float64, copy=True))

    class _Mode(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # torch keeps its compiler out of modes, and to do so imports it: a second and more per process
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if preparing:
                return func(*args, **(kwargs or {}))
            return injector.call(func, args, _widened(kwargs or {}))

    def prepare_slice(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal preparing
        preparing = True
        try:
            return prepare(tensor)
        finally:
            preparing = False

    def give(value: Any) -> Any:
        if isinstance(value, Slices):
            return value.made_by(prepare_slice)
        return prepare(value) if isinstance(value, torch.Tensor) else value

    given, named = map_leaves(give, tuple(args)), map_leaves(give, dict(kwargs))
    # the composed attention, whose operators the mode sees, rather than one opaque kernel
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Mode():  # type: ignore[no-untyped-call]
        return reference(*given, **named)


def _widened(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of an operator that ask for float64 where they ask for float32.

    References are written for 16-bit tensors, and say `x.float()` to be more precise than those. Taken at its
    word, that would round what is to be exact.
    """
    import torch

    asked: Any = kwargs.get("dtype")
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(asked)
    return kwargs if wide is None else {**kwargs, "dtype": wide}
