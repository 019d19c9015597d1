"""What a launcher that tunes chose, and from which configurations.

Where a GPU is pretended nothing can be timed: `Tuning` stands in for `cuda.tile.tune.exhaustive_search`, and
decides which configuration a search ends with. `timed_loops` does so for loops of a launcher's own.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.toolchain import CompilerMissing
from pytest_cutile.words.quantities import counted

if TYPE_CHECKING:
    from pytest_cutile.tile.compiler.trace.launches import Launch
    from pytest_cutile.tile.compiler.trace.timed_loops import TimedLoops


@dataclass(frozen=True, kw_only=True)
class Search:
    """A launcher's search for its fastest configuration."""

    configurations: tuple[str, ...]
    """All that the launcher chooses from, in words: "TILE=64, occupancy=2"."""
    chosen: str
    timed: bool = False
    """Whether the launcher timed them, on a GPU."""
    failed: tuple[str, ...] = ()
    """Configurations that cannot be launched; a search leaves them out."""

    @property
    def others(self) -> tuple[str, ...]:
        """The configurations that a search may choose on another GPU, or on another day."""
        out = {self.chosen, *self.failed}
        return tuple(text for text in self.configurations if text not in out)

    def __str__(self) -> str:
        of = f"of {counted(len(self.configurations), 'configuration')}"
        if self.timed:
            return f"chose {self.chosen} {of}"
        number = self.configurations.index(self.chosen) + 1
        return f"not tuned without a GPU: {self.chosen}, {'first' if number == 1 else f'no. {number}'} {of}"


class NoConfigurationWorks(ValueError):  # noqa: N818 - reads as what happened
    """None of a tuner's configurations can be launched; the cause is what is wrong with the first."""


class Launched(Protocol):
    """What records the launches of a launcher."""

    launches: list[Launch]

    def try_candidate(self, text: str, grid: Any, kernel: Any, args_fn: Callable[[], Any], /) -> Launch:
        """Return the launch of a configuration; raise what is wrong with it."""

    def needs_values(self, error: BaseException | None) -> bool:
        """Return whether `error` came of tensors that have no values."""


@dataclass(kw_only=True, eq=False)
class Tuning:
    """How searches end while a GPU is pretended, and which there were."""

    choice: str = ""
    """The configuration to end with in searches that have it; else they end with the first that works."""
    every: bool = False
    """Whether all configurations are recorded, as launches that were not made."""
    accepts: Callable[[Launch], object] | None = None
    """Raises what is wrong with a launch; None: every launch will do, and none is tried."""
    explore: Callable[[str], bool] | None = None
    """Asked for each configuration that is not chosen, whether it is to be chosen after all, in a fork."""
    searches: list[Search] = field(default_factory=list)
    """The calls of `exhaustive_search`."""
    loops: TimedLoops | None = None
    explored: set[str] = field(default_factory=set)

    def begin(self, explore: Callable[[str], bool] | None = None) -> None:
        """Forget the searches of another launcher."""
        self.explore, self.choice = explore, ""
        self.searches.clear()
        self.explored.clear()
        if self.loops is not None:
            self.loops.clear()

    def found(self) -> tuple[Search, ...]:
        """Return all searches, each once, when the launcher has returned."""
        own = None if self.loops is None else self.loops.search()
        return tuple(dict.fromkeys([*self.searches, *([] if own is None else [own])]))

    def is_to_choose(self, text: str) -> bool:
        """Return whether a search is to end with a configuration that it has not chosen."""
        if self.explore is None or self.choice or text in self.explored:
            return False
        self.explored.add(text)
        if self.explore(text):
            self.choice = text
        return bool(self.choice)

    def search(
        self,
        recorder: Launched,
        search_space: Sequence[Any],
        stream: Any,
        grid_fn: Callable[[Any], Any],
        kernel: Any,
        args_fn: Callable[[Any], Any],
        hints_fn: Callable[[Any], Mapping[str, Any]] | None = None,
        **_: Any,
    ) -> Any:
        """Stand in for `cuda.tile.tune.exhaustive_search`.

        Raises:
            NoConfigurationWorks: a ValueError, as cuda-tile's: none of them can be launched.
            ValueError: there are none.
        """
        del stream
        if len(search_space) == 0:
            raise ValueError("Search space is empty.")
        space = dict(zip(texts_of(search_space), search_space, strict=True))
        chosen = self.choice if self.choice in space else ""
        failed: dict[str, Exception] = {}
        for text, configuration in space.items() if self.accepts is not None else ():
            if chosen and not self.every:
                break
            # As in cuda-tile, what these raise ends the search; a launch that fails is left out.
            base = kernel if cutile.is_kernel(kernel) else kernel(configuration)
            hinted = base.replace_hints(**(hints_fn(configuration) if hints_fn is not None else {}))
            grid = grid_fn(configuration)
            try:
                launch = recorder.try_candidate(text, grid, hinted, lambda: args_fn(configuration))  # noqa: B023
                if self.every:
                    recorder.launches.append(launch)
                self.accepts(launch)  # type: ignore[misc]  # not None: there would be nothing to go through
            except Exception as error:
                if isinstance(error, CompilerMissing) or recorder.needs_values(error):
                    raise
                failed[text] = error
            else:
                chosen = chosen or text
        if len(failed) == len(space):
            text, why = next(iter(failed.items()))
            raise NoConfigurationWorks(
                f"No valid config found in search space: {counted(len(space), 'configuration')}.\n"
                f"Config: {text}\n{type(why).__name__}: {why}"
            ) from why
        chosen = chosen or next(iter(space))
        self.explored.add(chosen)
        others = (text for text in space if text not in failed and self.is_to_choose(text))
        chosen = next(others, chosen)
        self.searches.append(Search(configurations=tuple(space), chosen=chosen, failed=tuple(failed)))
        return result_of(space[chosen])


def result_of(configuration: Any) -> Any:
    """Return the result of a search that has timed nothing."""
    from cuda.tile.tune import Measurement, TuningResult

    best = Measurement(config=configuration, mean_us=0.0, num_samples=0, error_margin_us=0.0)
    return TuningResult(best=best, successes=(best,), failures=())


def texts_of(configurations: Iterable[Any]) -> list[str]:
    """Return each configuration in words, the same in every process; equal ones are numbered."""
    texts: list[str] = []
    seen: Counter[str] = Counter()
    for configuration in configurations:
        text = _in_words(configuration)
        seen[text] += 1
        texts.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return texts


def _in_words(configuration: Any) -> str:
    """Return "TILE=64, occupancy=2" of anything that has names for its values."""
    named = configuration if isinstance(configuration, Mapping) else _attributes(configuration)
    if not named:
        return " ".join(f"{configuration}".split())
    return ", ".join(f"{name}={value}" for name, value in named.items() if value is not None)


def _attributes(configuration: Any) -> Mapping[str, Any]:
    """Return the attributes of an object whose own text would not show them."""
    if hasattr(configuration, "_asdict"):  # a named tuple
        return dict(configuration._asdict())
    generated = isinstance(configuration, SimpleNamespace) or dataclasses.is_dataclass(configuration)
    own = {name for base in type(configuration).__mro__[:-1] for name in vars(base)}
    shows_itself = "__str__" in own or ("__repr__" in own and not generated)
    return {} if shows_itself else getattr(configuration, "__dict__", {})
