"""Why an interpreted check failed: the check is made once more, and what its kernels store is recorded."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_cutile.correctness.errors import with_facts
from pytest_cutile.correctness.guards.launching import Interpreted, Launching, call_launcher
from pytest_cutile.correctness.report import CheckReport
from pytest_cutile.tile.interpreter.faults import UnwrittenOutput, excerpt

if TYPE_CHECKING:
    import torch

    from pytest_cutile.tile.interpreter.api import Run
    from pytest_cutile.tile.interpreter.provenance import Trace

CheckWith = Callable[[Launching], CheckReport]
"""Makes a check, given what calls its launcher."""

PADDING = "padding"
"""Source of an element that was loaded from outside of an array."""
SHOWN_TILES = 12
"""Lines of tiles that a wrong element came from."""


@dataclass(frozen=True, kw_only=True)
class WrongElement:
    """Which element of a check's launches is wrong."""

    launch: int
    """The number of the launch, from 1 on."""
    tensor: str
    """Its name among the outputs and arguments of the launch."""
    index: tuple[int, ...] | None
    """Index of the wrong element; None: the whole tensor was changed and may not be."""


class ElementOrigin(NamedTuple):
    """Lines on where an element of an output comes from."""

    clues: Sequence[str] = ()
    """What often is a cause."""
    head: Sequence[str] = ()
    """Who wrote it."""
    tiles: Sequence[str] = ()
    """What it was made of."""


class _Launched(BaseException):
    """Ends a check that has launched what is looked for; no handler of errors stops it."""


def add_origin(text: str, run: Run, check_with: CheckWith, launching: Launching, wrong: WrongElement) -> str:
    """Return the message of a wrong result with where its worst element comes from.

    The launch is made again and recorded. What often is the cause stands below the first line: where a NaN or
    Inf was made, what was rounded, or loaded from padding. Who wrote the element is the last fact. The tiles
    that it was made of are details.
    """
    origin = ElementOrigin()
    launches = itertools.count(1)

    def launch_until(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        outputs = launching(fn, args, kwargs)
        if next(launches) == wrong.launch:
            raise _Launched(tensors_of(outputs, args, kwargs)[wrong.tensor])
        return outputs

    with _recorded(run):
        try:
            check_with(Interpreted(launch_until))
        except _Launched as launched:
            (tensor,) = launched.args
            if wrong.index is None:
                origin = ElementOrigin(clues=run.writers(tensor).splitlines())
            else:
                origin = _origin(run, tensor, wrong.index)
        except Exception:  # noqa: BLE001 - the failure that is explained matters more
            return text
    clues, head, tiles = ([f"  {line}" for line in lines] for lines in origin)
    first, *facts = text.split("\n")
    return "\n".join([with_facts("\n".join([first, *clues, *facts]), *head), *tiles])


def _origin(run: Run, output: torch.Tensor, index: tuple[int, ...]) -> ElementOrigin:
    clues: list[str] = []
    worst = output[index].item()
    if not math.isfinite(worst):
        name: Literal["NaN", "Inf"] = "NaN" if math.isnan(worst) else "Inf"
        if origin := run.nonfinite.first(name):
            clues += f"the first {name} that was stored: {origin}".splitlines()
    try:
        trace = run.trace_element(output, index)
    except LookupError:  # the host wrote it
        return ElementOrigin(clues=clues)
    head = f"{replace(trace, tiles=())}".splitlines()
    tiles = f"{trace}".splitlines()[len(head) :]
    if len(tiles) > SHOWN_TILES:
        tiles[SHOWN_TILES:] = ["  ..."]
    return ElementOrigin(clues=[*clues, *"\n".join(_remarkable(trace)).splitlines()], head=head, tiles=tiles)


def tensors_of(outputs: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a call by name; of a launcher that returns nothing, outputs are arguments."""
    from pytest_cutile.tile.tensors.trees import named_tensors

    return dict(named_tensors((outputs, list(args), dict(kwargs)), "call"))


def _remarkable(trace: Trace) -> Iterator[str]:
    """Yield what of the tiles behind an element is a frequent cause of errors."""
    for source, tile in zip(trace.tiles[1:], trace.tiles, strict=False):
        narrower = source.tile.is_floating_point() and tile.tile.itemsize < source.tile.itemsize
        if tile.depth and source.depth > tile.depth and narrower:
            dtype = f"{tile.tile.dtype}".removeprefix("torch.")
            yield f"an intermediate result is rounded to {dtype}:{excerpt(tile.location)}"
    for tile in trace.tiles:
        if tile.source == PADDING:
            yield f"computed from padding, loaded beyond the end of an array:{excerpt(tile.location)}"


def why_unwritten(
    run: Run, check_with: CheckWith, check_written: Callable[[Callable[..., Any], Any], None]
) -> str:
    """Return which lines and blocks stored into the output that is not written to its last element."""

    def launch(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        outputs = call_launcher(fn, args, kwargs)
        check_written(fn, outputs)
        return outputs

    writers = ""
    with _recorded(run):
        try:
            check_with(Interpreted(launch))
        except UnwrittenOutput as again:
            writers = run.writers(again.tensor)
        except Exception as error:  # noqa: BLE001 - the fault that is explained matters more
            writers = f"who wrote the rest is not known: {type(error).__name__}: {error}"
    return "".join(f"\n  {line}" for line in writers.splitlines())


@contextlib.contextmanager
def _recorded(run: Run) -> Iterator[None]:
    """Record all stores, which takes time, and show nothing else of the check."""
    faults = len(run.faults)
    options = replace(run.options, trace_writes=True, find_nonfinite=True, watch=())
    with run.using(options), contextlib.redirect_stdout(io.StringIO()):
        yield
    del run.faults[faults:]
