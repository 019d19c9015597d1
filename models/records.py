"""What a benchmark of a model measured, as values that are stored as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from models.breakdown import Breakdown
from pytest_cutile.words.statistics import median


class Mode(StrEnum):
    """How decode steps are launched."""

    EAGER = "eager"
    """Launch by launch, from Python."""
    GRAPH = "graph"
    """As a CUDA graph, captured once."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is generated."""

    batch: int
    prompt: int
    """Tokens of each prompt."""
    new_tokens: int
    """Tokens generated for each prompt, the first of them by the prefill."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One generation of one contender, interleaved with those of the others."""

    first_token_s: float
    """From the prompt to the first token."""
    step_ms: tuple[float, ...]
    """Of each decode step: one token of every prompt."""

    def tokens_per_s(self, shape: Shape) -> float:
        """Return all new tokens over the time of prefill and decoding."""
        return shape.batch * shape.new_tokens / (self.first_token_s + sum(self.step_ms) / 1000)


@dataclass(kw_only=True)
class Row:
    """One contender in one mode."""

    contender: str
    title: str
    mode: Mode
    rounds: list[Round] = field(default_factory=list)
    peak_bytes: int | None = None
    """Largest use of the GPU's memory, weights and cache included."""
    prepare_s: float | None = None
    """First run: compilation, tuning and capture."""
    kl: float | None = None
    """Largest Kullback-Leibler divergence of a prompt's first new token from the reference contender's, in
    nats."""
    top1: float | None = None
    """Share of prompts whose likeliest token is the reference contender's."""
    prefill: Breakdown | None = None
    """Kernels of one prefill."""
    decode: Breakdown | None = None
    """Kernels of one decode step."""
    problem: str | None = None
    """Why the row was not measured, or not in full."""

    @property
    def key(self) -> str:
        return f"{self.contender}, {self.mode}"

    @property
    def first_token_s(self) -> float:
        return median([round_.first_token_s for round_ in self.rounds])

    @property
    def token_ms(self) -> float:
        """Time per token: the median over rounds of the median step."""
        return median([median(round_.step_ms) for round_ in self.rounds])

    def rate(self, shape: Shape) -> float:
        """Return tokens per second, the median of the rounds."""
        return median([round_.tokens_per_s(shape) for round_ in self.rounds])

    def spread(self, shape: Shape) -> float:
        """Return half the range of the rounds' tokens per second, as a fraction of their median."""
        rates = [round_.tokens_per_s(shape) for round_ in self.rounds]
        return (max(rates) - min(rates)) / 2 / median(rates)


@dataclass(kw_only=True)
class Record:
    """Everything that one run measured; stored after every round."""

    model: str
    weights: str
    """"random, seed 0", or where they are from."""
    shape: Shape
    date: str
    command: str
    environment: Mapping[str, str]
    rows: list[Row] = field(default_factory=list)

    def find(self, contender: str, mode: Mode) -> Row | None:
        return next((row for row in self.rows if (row.contender, row.mode) == (contender, mode)), None)

    @property
    def measured(self) -> Sequence[Row]:
        return [row for row in self.rows if row.rounds]

    @property
    def problems(self) -> dict[str, str]:
        """What could not be measured, and why."""
        return {row.key: row.problem for row in self.rows if row.problem}
