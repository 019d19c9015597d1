"""Do timed launches compute what a first launch on the same inputs has computed?

A launcher that keeps its output, computes only once, or cannot be replayed is timed without its work. So a
few launches before the timing say what the outputs are, and whether they are the same each time. When the
last burst is over, the outputs that it left are overwritten, its launches run once more as they were timed,
and the outputs are compared: bit by bit where the kernel is known to be deterministic, else by
`results.differ`.

Nothing is added to what is timed. One output at a time is alive, as if nobody looked at it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_cutile.correctness.signatures import positional_names
from pytest_cutile.timing.measure.call import Call, MeasurementFailed
from pytest_cutile.timing.measure.placement import placed_anew, room_bytes
from pytest_cutile.timing.measure.results import differ, numbers_of
from pytest_cutile.words.timing import LaunchFunction
from pytest_cutile.words.verdicts import Reason

if TYPE_CHECKING:
    import torch

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of a launcher."""
CHANGES_INPUTS = "the launcher changes its inputs, so each launch computes something else"
NO_OUTPUTS = "the launcher returns no tensor of its own, and `writes` names no argument"
NO_MEMORY = "the GPU's memory is too small for a copy of the outputs"
KEEPS_STATE = "the launcher keeps the memory that it returns, and each launch may change it"
VARIES = "outputs differ from launch to launch"


class TimedLaunch:
    """A launch as it is given to a timer."""

    repeat: Callable[[], object] | None = None
    """Runs the launches of a burst once more, as they were timed; None: the timer calls the launch itself."""

    def __init__(
        self, launch: LaunchFunction, arguments: Arguments, last: LastOutputs, *, is_current: bool
    ) -> None:
        self.arguments = arguments
        self.launch = launch
        """What `Call.on` has returned for the arguments."""
        self._last = last
        self._is_current = is_current

    def __call__(self) -> object:
        self._last.forget()  # before the launch, which gets the same memory as if nobody looked
        outputs = self.launch()
        if self._is_current:
            self._last.launch, self._last.outputs = self, outputs
        return outputs


class LastOutputs:
    """What the last launch has returned, if it was one of the current kernel."""

    def __init__(self) -> None:
        self.launch: TimedLaunch | None = None
        self.outputs: Any = None

    def forget(self) -> None:
        self.launch = self.outputs = None


class TimedOutputs:
    """The outputs of one measurement."""

    def __init__(self, key: str, call: Call, *, deterministic: bool) -> None:
        """Launch a few times.

        Raises:
            MeasurementFailed: a later launch leaves the outputs as they were.
        """
        self._key = key
        self._call = call
        names = [*self._by_name((call.args, call.kwargs))]
        self._written = {
            names[name] if isinstance(name, int) and name < len(names) else f"{name}" for name in call.writes
        }
        self._last = LastOutputs()
        self._first: dict[str, torch.Tensor] = {}
        """Copies of what a first launch has left."""
        self._kept: set[str] = set()
        """Outputs that launches do not write, such as a table that the launcher keeps."""
        self._is_exact = False
        """Whether the bits have to be the same."""
        self.skipped = NO_OUTPUTS
        """Why nothing is compared; empty: the outputs are."""
        if call.is_stateful:
            self.skipped = CHANGES_INPUTS
        elif "torch" in sys.modules:  # else nothing can be a tensor
            self._launch_first(deterministic=deterministic)

    def timed(self, launchers: Sequence[Call], arguments: Arguments) -> list[TimedLaunch]:
        """Return launches for a timer: of the current kernel, and of the baseline kernel if there is one."""
        return [
            TimedLaunch(launcher.on(arguments), arguments, self._last, is_current=not number)
            for number, launcher in enumerate(launchers)
        ]

    def compare(self) -> None:
        """Compare the outputs of the last launch, and of the same launches once more.

        Raises:
            MeasurementFailed: the outputs are others than those of the first launch.
        """
        launch = self._last.launch
        if self.skipped or launch is None:
            self.skipped = self.skipped or "the timer has launched the baseline kernel last"
            return
        outputs = self._outputs(self._last.outputs, launch.arguments)
        self._require_same_form(outputs)
        _poison(outputs)
        if launch.repeat is not None:
            launch.repeat()
        else:
            outputs = self._outputs(launch(), launch.arguments)
            self._require_same_form(outputs)
        self._require_same_values(outputs, "the timed launches")
        self.forget()

    def forget(self) -> None:
        """Free what the last burst has left."""
        self._last.forget()

    # -- the first launches ---------------------------------------------------------------------------

    def _launch_first(self, *, deterministic: bool) -> None:
        """Launch twice, and once more if the outputs lie in memory that the launcher keeps."""
        given = (self._call.args, self._call.kwargs)
        with placed_anew(given) as placed:
            arguments = _apart(placed, given)
            if arguments is None:
                self.skipped = NO_MEMORY
                return
            launch = self._call.on(arguments)
            outputs = self._outputs(launch(), arguments)
            self.skipped = self._why_skipped(outputs, arguments, given)
            if self.skipped:
                return
            self._first = {name: tensor.detach().clone() for name, tensor in outputs.items()}
            again = self._outputs(
                launch(), arguments
            )  # while the first outputs are alive: no fresh one is there
            self._require_same_form(again)
            kept = {name: tensor for name, tensor in again.items() if _share_memory(tensor, outputs[name])}
            own = kept.keys() - self._written_tensors(arguments)
            is_same = _same(self._first, again)
            if own and not (is_same and _tensors_of(arguments)):
                self.skipped = KEEPS_STATE
            elif not is_same and differ(numbers_of(self._first), numbers_of(again)):
                self.skipped = VARIES
            elif kept:
                _poison(kept)
                again = self._outputs(launch(), arguments)
                self._require_same_form(again)
                self._require_written(again, "a later launch")
                is_same = is_same and _same(self._first, again)
            self._is_exact = is_same and deterministic
            if self._changes(arguments, given):
                self.skipped = CHANGES_INPUTS

    def _why_skipped(
        self, outputs: Mapping[str, torch.Tensor], arguments: Arguments, given: Arguments
    ) -> str:
        if self._changes(arguments, given):
            return CHANGES_INPUTS
        if not outputs:
            return NO_OUTPUTS
        needed = 2 * sum(tensor.nbytes for tensor in outputs.values())
        return NO_MEMORY if needed > room_bytes(outputs.values()) else ""

    def _written_tensors(self, arguments: Arguments) -> set[str]:
        from pytest_cutile.tile.tensors.trees import named_tensors

        named = self._by_name(arguments)
        return {
            name
            for argument in self._written & named.keys()
            for name, _ in named_tensors(named[argument], argument)
        }

    def _changes(self, arguments: Arguments, given: Arguments) -> bool:
        """Say whether launches have changed arguments that they do not overwrite."""
        from pytest_cutile.tile.tensors.dtypes import same_bits
        from pytest_cutile.tile.tensors.trees import tensors_in

        now, before = self._by_name(arguments), self._by_name(given)
        kept = [name for name in now if name not in self._written]
        return not all(
            same_bits(*pair)
            for name in kept
            for pair in zip(tensors_in(now[name]), tensors_in(before[name]), strict=True)
        )

    def _by_name(self, arguments: Arguments) -> dict[str, Any]:
        args, kwargs = arguments
        names = positional_names(self._call.function, len(args))
        return {**dict(zip(names, args, strict=True)), **kwargs}

    # -- outputs --------------------------------------------------------------------------------------

    def _outputs(self, returned: Any, arguments: Arguments) -> dict[str, torch.Tensor]:
        """Return what a launch has written: what it returned in memory of its own, and `writes`."""
        from pytest_cutile.tile.tensors.trees import named_tensors, tensors_in

        named = self._by_name(arguments)
        inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(named)}
        outputs = {
            name: tensor
            for name, tensor in named_tensors(returned, "output")
            if tensor.numel() and tensor.untyped_storage().data_ptr() not in inputs
        }
        for argument in self._written & named.keys():
            outputs.update(named_tensors(named[argument], argument))
        return {name: tensor for name, tensor in outputs.items() if name not in self._kept}

    def _require_same_form(self, outputs: Mapping[str, torch.Tensor]) -> None:
        from pytest_cutile.tile.tensors.trees import describe

        if _forms(outputs) != _forms(self._first):
            got, expected = describe(dict(outputs)), describe(self._first)
            raise self._failure(f"a later launch returns {got}, the first one returned {expected}")

    def _require_written(self, outputs: dict[str, torch.Tensor], which: str) -> None:
        """Restore outputs that a launch has not written, and leave them out from now on.

        Raises:
            MeasurementFailed: a launch has written none of the outputs.
        """
        import torch

        from pytest_cutile.tile.tensors.dtypes import bits_of
        from pytest_cutile.tile.tensors.poison import poisoned

        left = [
            name
            for name, tensor in outputs.items()
            if bool(poisoned(tensor).all()) and not bool(poisoned(self._first[name]).all())
        ]
        with torch.inference_mode():
            for name in left:
                bits_of(outputs[name]).copy_(bits_of(self._first[name]))
        if left and len(left) == len(outputs):
            elements = sum(tensor.numel() for tensor in outputs.values())
            raise self._failure(
                f"{which} wrote none of {elements:,} elements of {', '.join(left)}, which the first launch "
                "has written"
            )
        self._kept.update(left)
        for name in left:
            del outputs[name], self._first[name]

    def _require_same_values(self, outputs: dict[str, torch.Tensor], which: str) -> None:
        self._require_written(outputs, which)
        if _same(self._first, outputs):
            return
        if not self._is_exact and not differ(numbers_of(self._first), numbers_of(outputs)):
            return
        from pytest_cutile.tile.tensors.dtypes import bits_of

        for name, first in self._first.items():
            count = int((bits_of(first) != bits_of(outputs[name])).sum())
            if count:
                raise self._failure(
                    f"{which} left other values in {count:,} of {first.numel():,} elements of {name} than "
                    "the first launch on the same inputs"
                )

    def _failure(self, what: str) -> MeasurementFailed:
        return MeasurementFailed(
            Reason.OTHER_RESULT,
            f"{self._key}: {what}.\n"
            "What was timed is not the work that was checked: does the launcher keep its output, compute "
            "only once, launch on another stream than torch's current one, or leave something behind that "
            "the next launch finds? Nothing is compared or recorded.",
        )


def _apart(placed: Arguments, given: Arguments) -> Arguments | None:
    """Return arguments in other memory than those that were given; None: there is too little memory."""
    if placed is not given:
        return placed
    from pytest_cutile.tile.tensors.trees import map_tensors, tensors_in

    if any(tensor.is_cuda for tensor in tensors_in(given)):
        return None
    copies: Arguments = map_tensors(lambda tensor: tensor.detach().clone(), given)
    return copies


def _tensors_of(arguments: Arguments) -> list[torch.Tensor]:
    from pytest_cutile.tile.tensors.trees import tensors_in

    return tensors_in(arguments)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _poison(outputs: Mapping[str, torch.Tensor]) -> None:
    import torch

    from pytest_cutile.tile.tensors.poison import poison

    with torch.inference_mode():  # of tensors that were made in it, too
        for tensor in outputs.values():
            poison(tensor.detach())


def _forms(outputs: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in outputs.items()}


def _same(first: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    from pytest_cutile.tile.tensors.dtypes import same_bits

    return all(same_bits(tensor, other[name]) for name, tensor in first.items())
