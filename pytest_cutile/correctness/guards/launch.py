"""Calls a launcher under guard, as often as a check wants to, and says what it touched that it may not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_cutile.correctness.error_model.parts import OUTPUT
from pytest_cutile.correctness.errors import KernelMismatch, UncheckableOutput
from pytest_cutile.correctness.guards.launching import Launching
from pytest_cutile.correctness.guards.layouts import Layout, in_layout
from pytest_cutile.correctness.guards.memory import Allocations, Inputs, without_memory
from pytest_cutile.correctness.signatures import function_name, positional_names, resolve_arguments
from pytest_cutile.tile.tensors.dtypes import DTYPE_NAMES, bits_of, name_of, same_bits
from pytest_cutile.tile.tensors.poison import Pattern, may_be_value, poisoned, poisoned_allocations
from pytest_cutile.tile.tensors.trees import describe, have_same_bits, map_tensors, named_tensors, tensors_in
from pytest_cutile.words.spec import CheckOptions
from pytest_cutile.words.verdicts import Reason

SMALL_BYTES = 8 << 20
"""Size of inputs and outputs up to which it costs little to run again."""
_TURNS = (1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0)
"""Which of two patterns lies around inputs in the launches that tell whether outputs depend on it. They go on
with a Thue-Morse sequence, with which no launcher that goes through a few buffers keeps step."""
_FAR = 4.0
"""How many standard deviations the mean of an input is from zero for digits to cancel in its variance."""


class GuardedLauncher:
    """A launcher with its arguments, which `launching` calls."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CheckOptions,
        launching: Launching,
    ) -> None:
        self.name = function_name(fn)
        names = positional_names(fn, len(args))
        self._positional = [f"argument {at}" if name in kwargs else name for at, name in enumerate(names)]
        """Names of the positional arguments. A name given twice is left to Python, which refuses it."""
        self._fn = fn
        self._arguments = self.by_name(args, kwargs)
        for argument, value in self._arguments.items():
            for name, tensor in named_tensors(value, argument):
                if (layout := without_memory(tensor)) is not None:
                    raise TypeError(
                        f"argument {name} is a {layout} tensor, which cannot be checked: let {self.name} "
                        "take the tensors that it is made of, such as indices and values"
                    )
        self._mutates = self.resolve("mutates", options.mutates)
        self._writes = self.resolve("writes", options.writes)
        self.written: tuple[str, ...] = ()
        """The arguments that are its outputs, because it returns none."""
        self.is_small = True
        """Whether inputs and outputs are small enough to run again without a thought."""
        self.launches = 0
        self._has_redzones = options.guard and not launching.is_interpreted
        self._launching = launching
        self.inputs: Inputs
        """The arguments of all launches but those of `launch_with`."""
        self._unreturned: set[str] = set()

    def launch(self) -> Any:
        """Launch with the arguments as they were given; return the outputs.

        Raises:
            KernelMismatch: it changed an input, wrote beside a tensor, or never wrote a `writes` argument.
            UncheckableOutput: it returned no tensor, an incomparable one, or an undeclared argument.
        """
        self.inputs = self._guarded(self._arguments)
        outputs = self._launch(self.inputs)
        self._check_written(outputs)
        self.inputs.write_back()
        self._unreturned = self.inputs.changing - self.inputs.returned(outputs)
        self.is_small = sum(tensor.nbytes for tensor in tensors_in((self._arguments, outputs))) <= SMALL_BYTES
        if not self.is_small:
            self.inputs.given = {}  # no other launch follows: free the copies
        return outputs

    @property
    def mutated(self) -> dict[str, Any]:
        """The arguments that it may change and did not return, as the first launch has left them."""
        return {name: value for name, value in self._arguments.items() if name in self._unreturned}

    @property
    def read(self) -> dict[str, Any]:
        """The arguments that it reads, so far as is known."""
        written = {*self._writes, *self.written}
        return {name: value for name, value in self._arguments.items() if name not in written}

    @property
    def can_interpret_again(self) -> bool:
        """Whether launches are interpreted, and small enough to be made again (`repeat` makes none then)."""
        return self._launching.is_interpreted and self.is_small

    def repeat(self, outputs: Any) -> tuple[Any, bool] | None:
        """Launch again, with other bytes around the inputs; None for large cases and the interpreter.

        Returns the outputs, and whether they have the same bits as the first ones.
        """
        if self._launching.is_interpreted or not self.is_small:
            return None
        first = self.kept(outputs)
        again = self.kept(self.relaunch(Pattern.BESIDE_INPUT_AGAIN, unwritten=Pattern.UNWRITTEN_AGAIN))
        if unwritten := _never_written(first, again):
            raise KernelMismatch(f"{self.name}: {unwritten}", reason=Reason.UNWRITTEN)
        if have_same_bits(first, again):
            return again, True
        if self._has_redzones and self._depends_on_redzones(first, again):
            names = [
                name
                for name in self.inputs.redzones
                if not have_same_bits(first, self.relaunch(Pattern.BESIDE_INPUT_AGAIN, around=[name]))
            ]
            raise KernelMismatch(
                f"{self.name} returns other bits when something else lies around input {', '.join(names)}: "
                "it is read out of bounds",
                reason=Reason.OUT_OF_BOUNDS,
            )
        return again, False

    def cause(self, outputs: Any) -> str:
        """Say what made outputs wrong, as launches over other bytes tell; empty: that is not known."""
        if self._launching.is_interpreted or not self.is_small:
            return ""
        first = self.kept(outputs)
        unwritten = ""
        if any(bool(poisoned(tensor).any()) for tensor in _ambiguous(first).values()):
            with contextlib.suppress(KernelMismatch):
                again = self.relaunch(Pattern.BESIDE_INPUT, unwritten=Pattern.UNWRITTEN_AGAIN)
                unwritten = _never_written(first, again)
                unwritten = unwritten or "launched again over other bytes: all elements are written"
        names = []
        if self._has_redzones and (nans := _count_nans(first)):
            for name in self.inputs.redzones:
                with contextlib.suppress(KernelMismatch):
                    if _count_nans(self.relaunch(Pattern.ZERO, around=[name])) < nans:
                        names.append(name)
        if names:
            return f"what lies around input {', '.join(names)} reached the outputs: it is read out of bounds"
        return unwritten

    def layouts(self, vary: bool | None) -> Iterator[tuple[Layout, dict[str, Any], str]]:
        """Yield the layouts to launch with, the arguments in them, and words; by default cheap ones."""
        if self.inputs.entangled or vary is False or not (vary or self.is_small):
            return
        # Interpreted, a signature that is new to cuTile's compiler takes longer than the whole check.
        cheap = (Layout.PADDED,) if self._launching.is_interpreted else (Layout.PADDED, Layout.OFFSET)
        for layout in Layout if vary else cheap:
            if (varied := in_layout(self.inputs.before, layout)) is not None:
                yield layout, *varied

    def around_zero(self) -> dict[str, Any] | None:
        """Return the arguments with inputs that are far from zero moved to a mean of zero; None: none is."""
        if self.inputs.entangled:
            return None
        moved = {
            id(tensor): (tensor.double() - mean).to(tensor.dtype)
            for tensor in tensors_in(self.inputs.before)
            if tensor.is_floating_point() and tensor.numel() > 1
            for deviation, mean in [torch.std_mean(tensor.double())]
            if 0 < _FAR * deviation < mean.abs()
        }
        return map_tensors(lambda one: moved.get(id(one), one), self.inputs.before) if moved else None

    def launch_with(self, arguments: Mapping[str, Any]) -> Any:
        """Launch with other arguments, and leave those alone that `inputs.before` keeps."""
        before = {id(tensor) for tensor in tensors_in(self.inputs.before)}
        return self._launch(self._guarded(self._copied(arguments, before)))

    def trial(self) -> Any:
        """Launch with the arguments as they were given, and leave those alone that it may change."""
        own = {id(tensor) for tensor in tensors_in(self._arguments)}
        return self._launch(self._guarded(self._copied(self._arguments, own)))

    def _copied(self, arguments: Mapping[str, Any], kept: Collection[int]) -> dict[str, Any]:
        """Return arguments with copies of the tensors that may change, if their ids are among `kept`."""

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if id(tensor) in kept else tensor

        changing = {*self._mutates, *self._writes}
        return {
            name: map_tensors(copied, value) if name in changing else value
            for name, value in arguments.items()
        }

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self._positional, args, strict=True)), **kwargs}

    def split(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the positional arguments and the others, by name."""
        others = {name: value for name, value in arguments.items() if name not in self._positional}
        return {name: arguments[name] for name in self._positional}, others

    def relaunch(
        self,
        beside: Pattern = Pattern.BESIDE_INPUT,
        *,
        around: Collection[str] | None = None,
        unwritten: Pattern = Pattern.UNWRITTEN,
        fn: Callable[..., Any] | None = None,
    ) -> Any:
        """Launch with the arguments as they were given, in the same memory; return the outputs.

        `fn` stands in for the launcher.
        """
        self.inputs.restore(beside, around=around, unwritten=unwritten)
        return self._launch(self.inputs, unwritten, fn)

    def _depends_on_redzones(self, first: Any, again: Any) -> bool:
        patterns, expected = (Pattern.BESIDE_INPUT, Pattern.BESIDE_INPUT_AGAIN), (first, again)
        return all(have_same_bits(self.relaunch(patterns[turn]), expected[turn]) for turn in _TURNS)

    def kept(self, outputs: Any) -> Any:
        """Return outputs as they are now, whatever another launch does to the arguments."""
        return map_tensors(lambda tensor: tensor.clone() if self.inputs.holders(tensor) else tensor, outputs)

    def _guarded(self, arguments: Mapping[str, Any]) -> Inputs:
        return Inputs(arguments, mutates=self._mutates, writes=self._writes, redzones=self._has_redzones)

    def _launch(
        self,
        inputs: Inputs,
        unwritten: Pattern = Pattern.UNWRITTEN,
        fn: Callable[..., Any] | None = None,
    ) -> Any:
        args, kwargs = self.split(inputs.given)
        allocations = Allocations()
        self.launches += 1
        with contextlib.ExitStack() as guards:
            if not self._launching.is_interpreted:
                enclose = allocations.enclose if self._has_redzones else None
                guards.enter_context(poisoned_allocations(enclose, unwritten))
            outputs = self._launching(fn or self._fn, tuple(args.values()), kwargs)
        if outputs is None:  # the arguments that it writes are its outputs
            named = self._writes or self._mutates
            self.written = tuple(name for name in self._arguments if name in named)
            outputs = choose(inputs.given, self.written)
        self._check_comparable(outputs)
        for device in {tensor.device for tensor in tensors_in(outputs) if tensor.is_cuda}:
            torch.cuda.synchronize(device)  # an error of the launch belongs here, not to the comparison
        wrong = [*allocations.violations(outputs), *inputs.violations()]
        reason = Reason.OUT_OF_BOUNDS if wrong else Reason.CHANGED_INPUT
        change, changed = _first_change(inputs, outputs)
        wrong += [change] * bool(change)
        if wrong:
            text = "\n".join(f"{self.name} {violation}" for violation in wrong)
            mismatch = KernelMismatch(text, reason=reason)
            mismatch.changed = changed
            raise mismatch
        for tensor in tensors_in(outputs):
            holders = inputs.holders(tensor)
            if holders and inputs.changing.isdisjoint(holders):
                raise UncheckableOutput(
                    f"{self.name} returned its input {holders[0]} as it was: did it write any of it?\n"
                    f"  {_advice(holders[0], returned=True)}"
                )
        return outputs

    def _check_comparable(self, outputs: Any) -> None:
        tensors = tensors_in(outputs)
        if not tensors:
            raise UncheckableOutput(
                f"{self.name} returned {describe(outputs)}: return the output tensor, or a tuple of them, "
                "or name the arguments that it writes, as in writes=['out'], to have them compared"
            )
        for tensor in tensors:
            if (layout := without_memory(tensor)) is not None:
                raise UncheckableOutput(
                    f"{self.name} returned a {layout} tensor; return the tensors that it is made of"
                )
            if name_of(tensor.dtype) not in DTYPE_NAMES:
                raise UncheckableOutput(
                    f"{self.name} returned a tensor of {name_of(tensor.dtype)}; "
                    f"only {', '.join(DTYPE_NAMES)} are compared"
                    + ("; return torch.view_as_real of it" if tensor.is_complex() else "")
                )

    def _check_written(self, outputs: Any) -> None:
        """Raise KernelMismatch if an argument beside the outputs was to be overwritten and was not."""
        if not (unchanged := self._unchanged(outputs, Pattern.UNWRITTEN)):
            return
        # a byte may be a value, but not one byte now and another one then
        again = self.relaunch(Pattern.BESIDE_INPUT, unwritten=Pattern.UNWRITTEN_AGAIN)
        still = self._unchanged(again, Pattern.UNWRITTEN_AGAIN)
        for name, argument in unchanged.items():
            if name in still:
                raise KernelMismatch(
                    f"{self.name} never wrote {name}, which writes=[{argument!r}] says that it overwrites\n"
                    f"if it only may change it, say so with mutates=[{argument!r}]",
                    reason=Reason.UNWRITTEN,
                )

    def _unchanged(self, outputs: Any, unwritten: Pattern) -> dict[str, str]:
        """Return tensors beside the outputs that a launch never wrote: their names and their arguments'."""
        return {
            name: argument
            for argument in self._writes - self.inputs.returned(outputs)
            for name, tensor in named_tensors(self.inputs.given[argument], argument)
            if tensor.numel() and bool(poisoned(tensor, unwritten).all())
        }

    def resolve(self, option: str, wanted: Collection[str | int]) -> set[str]:
        """Return the names of arguments that an option gives by name or position."""
        return resolve_arguments(option, wanted, [*self._arguments])


def choose(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the values of these names: one as it is, several in a tuple, of none None."""
    chosen = tuple(values[name] for name in names)
    return chosen if len(chosen) > 1 else next(iter(chosen), None)


def _first_change(inputs: Inputs, outputs: Any) -> tuple[str, torch.Tensor | None]:
    """Say which argument was changed and may not be, and return its tensor; empty and None: none was."""
    for argument in (name for name in inputs.given if name not in inputs.changing):
        before = tensors_in(inputs.before[argument])
        for (name, tensor), old in zip(named_tensors(inputs.given[argument], argument), before, strict=True):
            if not same_bits(tensor, old):
                count = int((bits_of(tensor) != bits_of(old)).sum())
                share = f"{count:,} of {tensor.numel():,} elements differ from before the launch"
                advice = _advice(argument, returned=argument in inputs.returned(outputs))
                return f"changed its input {name} ({describe(tensor)}): {share}\n{advice}", tensor
    return "", None


def _advice(label: str, *, returned: bool) -> str:
    if not returned:
        return f"if it is meant to, say so with mutates=[{label!r}]"
    return (
        "unless it is meant to, the kernel or its launch writes to the wrong tensor; declare "
        f"mutates=[{label!r}] if it is updated in place, or writes=[{label!r}] if it only receives the result"
    )


def _ambiguous(outputs: Any) -> dict[str, torch.Tensor]:
    """Return the outputs of which a single launch does not tell what was never written."""
    return {name: tensor for name, tensor in named_tensors(outputs, OUTPUT) if may_be_value(tensor.dtype)}


def _never_written(one: Any, other: Any) -> str:
    """Say which outputs hold what was there before, in two launches over different bytes."""
    again = _ambiguous(other)
    for name, first in _ambiguous(one).items():
        second = again.get(name)
        if second is not None and (first.shape, first.dtype) == (second.shape, second.dtype):
            count = int((poisoned(first) & poisoned(second, Pattern.UNWRITTEN_AGAIN)).sum())
            if count:
                return f"{count:,} elements of {name} hold what was there before, twice: never written"
    return ""


def _count_nans(outputs: Any) -> int:
    floats = [tensor for tensor in tensors_in(outputs) if tensor.dtype.is_floating_point]
    return sum(int((tensor.half() if tensor.itemsize == 1 else tensor).isnan().sum()) for tensor in floats)
