"""Calls a launcher under guard, as often as a check wants to, and says what it touched that it may not."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_cutile.check.errors import KernelMismatch, UncheckableOutput
from pytest_cutile.check.guards import Allocations, Inputs
from pytest_cutile.check.layouts import Layout, Varied, in_layout
from pytest_cutile.gpu.dtypes import DTYPE_NAMES, bits_of, name_of, same_bits
from pytest_cutile.gpu.poison import poisoned_allocations
from pytest_cutile.gpu.trees import describe, map_tensors, named_tensors

if TYPE_CHECKING:
    import torch

Run = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""Calls a launcher with its arguments and returns its outputs."""

SMALL_BYTES = 8 << 20
"""Size of inputs and outputs up to which it costs little to run again."""


class GuardedLauncher:
    """A launcher with its arguments.

    Args:
        fn: The launcher.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        mutates: Those that it may change, by name or position.
        writes: Those that it overwrites without reading, likewise.
        guard: Whether inputs and outputs lie between bands.
        run: Calls it, and sees itself what is read and written where it should not be; None: it is called
            here, over poisoned memory.

    Raises:
        ValueError: `mutates` or `writes` names no argument.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        mutates: Collection[str | int] = (),
        writes: Collection[str | int] = (),
        guard: bool = True,
        run: Run | None = None,
    ) -> None:
        self.name = getattr(fn, "__qualname__", None) or type(fn).__name__
        self._fn = fn
        self._values = [*args, *kwargs.values()]
        self._positional, self._names = len(args), tuple(kwargs)
        self.labels = [*_parameter_names(fn, len(args)), *kwargs]
        """Names of the arguments, positional ones first."""
        self._mutates = self._resolve("mutates", mutates)
        self._writes = self._resolve("writes", writes)
        self._bands = guard and run is None
        self._run = run
        self._inputs: Inputs | None = None
        self._size = 0

    def launch(self) -> Any:
        """Launch with the arguments as they were given; return the outputs.

        Raises:
            KernelMismatch: it changed an input, or wrote beside an input or output.
            UncheckableOutput: it returned no tensor, or one that cannot be compared.
        """
        self._inputs = self._guarded(self._values)
        outputs = self._launch(self._inputs)
        self._inputs.write_back()
        tensors = [each for _, each in named_tensors((self._values, outputs), "")]
        self._size = sum(each.numel() * each.itemsize for each in tensors)
        if not self.is_small:
            self._inputs.release()
        return outputs

    @property
    def before(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments from before the launch."""
        return self._split(self._launched.before)

    @property
    def unguarded(self) -> tuple[str, ...]:
        """Inputs without bands around them, and why."""
        return tuple(self._launched.notes)

    @property
    def is_small(self) -> bool:
        """Whether inputs and outputs are small enough to run again without a thought."""
        return self._size <= SMALL_BYTES

    def repeats(self, outputs: Any) -> bool | None:
        """Return whether another launch returns the same bits as the first did; None: none was made.

        There is none of large cases, nor where it is interpreted, block by block in the same order.

        Raises:
            KernelMismatch: as `launch`, this time.
        """
        inputs = self._launched
        if self._run is not None or not self.is_small:
            return None
        first = map_tensors(lambda each: each.clone() if inputs.shared_with(each) else each, outputs)
        inputs.restore()
        again = self._launch(inputs)
        pairs = zip(named_tensors(first, ""), named_tensors(again, ""), strict=True)
        return all(one.shape == other.shape and same_bits(one, other) for (_, one), (_, other) in pairs)

    def read_beside(self, outputs: Any) -> list[str]:
        """Return the inputs around which lies the NaN that outputs hold, which launching again finds out.

        None of large cases, and none where an exact result has less NaN for another reason.
        """
        if not self._bands or not self.is_small or not (first := _count_nans(outputs)):
            return []
        found = []
        for name in self._launched.names:
            inputs = self._guarded(self._launched.before, zeros_around=name)
            with contextlib.suppress(KernelMismatch):
                if _count_nans(self._launch(inputs)) < first:
                    found.append(name)
        return found

    def layouts(self, vary: bool | None) -> tuple[Layout, ...]:
        """Return the layouts to launch with: all or none, if `vary` says so, else those that cost little."""
        if self._launched.entangled or vary is False or not (vary or self.is_small):
            return ()
        if vary:
            return tuple(Layout)
        # Interpreted, a signature that is new to cuTile's compiler takes longer than the whole check.
        return (Layout.PADDED,) if self._run is not None else (Layout.PADDED, Layout.OFFSET)

    def vary(self, layout: Layout) -> Varied | None:
        """Return the arguments as they were, in another layout; None: none of them can have it."""
        return in_layout(self._launched.before, layout)

    def launch_with(self, values: Sequence[Any]) -> Any:
        """Launch with other values of the arguments, which nobody gets back; return the outputs.

        Raises:
            KernelMismatch: as `launch`.
        """
        return self._launch(self._guarded(values))

    @property
    def _launched(self) -> Inputs:
        if self._inputs is None:
            raise RuntimeError("nothing was launched yet")
        return self._inputs

    def _guarded(self, values: Sequence[Any], *, zeros_around: str = "") -> Inputs:
        return Inputs(
            self.labels,
            values,
            mutates=self._mutates,
            writes=self._writes,
            bands=self._bands,
            zeros_around=zeros_around,
        )

    def _split(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = dict(zip(self._names, values[self._positional :], strict=True))
        return tuple(values[: self._positional]), named

    def _launch(self, inputs: Inputs) -> Any:
        import torch

        args, kwargs = self._split(inputs.given)
        allocations = Allocations()
        if self._run is not None:
            outputs = self._run(self._fn, args, kwargs)
        else:
            with poisoned_allocations(allocations.enclose if self._bands else None):
                outputs = self._fn(*args, **kwargs)
        tensors = self._comparable(outputs)
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.synchronize(device)  # an error of the launch belongs here, not to the comparison
        wrong = [*allocations.damage(outputs), *inputs.damage(), *self._changed(inputs)]
        if wrong:
            raise KernelMismatch("\n".join(f"{self.name} {each}" for each in wrong))
        return outputs

    def _comparable(self, outputs: Any) -> list[torch.Tensor]:
        found = [tensor for _, tensor in named_tensors(outputs, "output")]
        if not found:
            raise UncheckableOutput(
                f"{self.name} returned {describe(outputs)}: return the output tensor, or a tuple of them, "
                "to have them compared"
            )
        for tensor in found:
            if name_of(tensor.dtype) not in DTYPE_NAMES:
                raise UncheckableOutput(
                    f"{self.name} returned a tensor of {name_of(tensor.dtype)}; "
                    f"only {', '.join(DTYPE_NAMES)} are compared"
                    + ("; return torch.view_as_real of it" if tensor.is_complex() else "")
                )
        return found

    def _changed(self, inputs: Inputs) -> Iterator[str]:
        """Yield which arguments have other bits than before, in words; not those that may."""
        for label, now, then in zip(self.labels, inputs.given, inputs.before, strict=True):
            if label in inputs.changing:
                continue
            pairs = zip(named_tensors(now, label), named_tensors(then, label), strict=True)
            for (name, left), (_, right) in pairs:
                if not same_bits(left, right):
                    a, b = bits_of(left), bits_of(right)
                    yield (
                        f"changed its input {name} ({describe(left)}): "
                        f"{int((a != b).sum()):,} of {left.numel():,} elements have other bits than before\n"
                        f"if it is meant to, say so with mutates=[{label!r}]"
                    )
                    return

    def _resolve(self, option: str, wanted: Collection[str | int]) -> set[str]:
        """Return the labels of arguments that are given by name or position."""
        labels = self.labels
        found = {labels[each] if isinstance(each, int) and each < len(labels) else each for each in wanted}
        if unknown := found - set(labels):
            raise ValueError(f"{option} names {sorted(map(str, unknown))}, but the arguments are {labels}")
        return {str(each) for each in found}


def _count_nans(outputs: Any) -> int:
    floats = [each for _, each in named_tensors(outputs, "") if each.dtype.is_floating_point]
    return sum(int((each.half() if each.itemsize == 1 else each).isnan().sum()) for each in floats)


def parameters_of(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return what a function takes; nothing where that is not known, as of some builtins."""
    try:
        return [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return []


def _parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first `count` positional parameters, by position where they have none."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in parameters_of(fn) if each.kind in kinds]
    return [*names[:count], *(f"argument {position}" for position in range(len(names), count))]
