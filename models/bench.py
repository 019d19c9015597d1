"""Run one model in several ways, interleaved, and measure tokens per second and where the time goes.

In every round each contender takes the prompt in and decodes, launch by launch, and then again by CUDA
graphs. Rounds go forward and backward through the contenders in turn. They share weights, and the static
cache of those that have one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from models.breakdown import break_down, kernel_names, profile
from models.clock import Clock
from models.contenders import OURS, REFERENCE, Contender
from models.generate import Generation
from models.records import Mode, Record, Round, Row, Shape
from models.tables import line_of
from tools.gpu_runs.gpu_state import free_memory

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, StaticCache

PROFILED_STEPS = 4
"""Decode steps of a profile: they all launch the same kernels."""

Say: TypeAlias = Callable[[str], None]
Store: TypeAlias = Callable[[Record], None]


@dataclass(kw_only=True)
class _Running:
    """A contender that has been prepared."""

    contender: Contender
    generation: Generation
    rows: list[Row]
    """One for each mode that runs, in the order of `Mode`."""
    logits: torch.Tensor | None = None

    @property
    def has_failed(self) -> bool:
        return any(row.problem for row in self.rows)


def random_prompt(model: PreTrainedModel, shape: Shape, seed: int = 0) -> torch.Tensor:
    """Return `[batch, prompt]` tokens without padding."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, model.config.vocab_size, (shape.batch, shape.prompt), generator=generator)
    return tokens.to(model.device)


def run_bench(
    model: PreTrainedModel,
    record: Record,
    contenders: Sequence[Contender],
    clock: Clock,
    *,
    prompt: torch.Tensor | None = None,
    rounds: int = 3,
    graphs: bool = True,
    profiled: bool = True,
    say: Say = print,
    store: Store = lambda _: None,
) -> Record:
    """Fill `record` with rows, one for each contender and mode.

    Args:
        model: As PyTorch runs it; every contender leaves it so.
        record: What is run; rows are added as they come.
        contenders: What is compared.
        clock: Of the model's device.
        prompt: `[batch, prompt]` int64; by default random tokens.
        rounds: Generations of each contender that count.
        graphs: Whether decode steps are captured into CUDA graphs as well; only on a GPU.
        profiled: Whether kernels are counted as well, after all rounds.
        say: Prints a line.
        store: Keeps the record, called after every step.
    """
    shape = record.shape
    prompt = random_prompt(model, shape) if prompt is None else prompt
    running: list[_Running] = []
    for contender in contenders:
        if contender.name == OURS:
            # Its first use moves weights, and graphs that were captured before would not find them.
            with suppress(Exception), contender.active(model):
                pass
    for contender in contenders:
        cache = next((run.generation.cache for run in running if not run.contender.dynamic), None)
        made = _prepare(model, record, contender, prompt, clock, cache=cache, graphs=graphs)
        if made is not None:
            running.append(made)
            say(f"  prepared {contender.title}: {made.rows[0].prepare_s:.1f} s")
        else:
            say(f"  {contender.title}: {record.rows[-1].problem}")
        store(record)
    _compare_logits(running)
    for number in range(rounds):
        for run in running if number % 2 == 0 else running[::-1]:
            if run.has_failed:
                continue
            _run_round(model, record, run, clock)
            for row in run.rows:
                if len(row.rounds) > number:
                    say(f"  round {number + 1} of {rounds}: {line_of(row, shape)}")
            store(record)
    for run in running if profiled else ():
        if not run.has_failed:
            _profile(model, record, run)
            store(record)
    return record


def _prepare(
    model: PreTrainedModel,
    record: Record,
    contender: Contender,
    prompt: torch.Tensor,
    clock: Clock,
    *,
    cache: StaticCache | None,
    graphs: bool,
) -> _Running | None:
    """Run a contender once: kernels compile, and the graph is captured. Return None if it cannot run."""

    def add_row(mode: Mode) -> Row:
        row = Row(contender=contender.name, title=contender.title, mode=mode)
        record.rows.append(row)
        return row

    def finish(row: Row) -> Row:
        row.prepare_s, row.peak_bytes = time.monotonic() - begun, clock.peak_bytes()
        return row

    begun = time.monotonic()
    clock.begin_peak()
    row = add_row(Mode.EAGER)
    try:
        with contender.active(model) as active:
            generation = Generation(
                active,
                prompt,
                new_tokens=record.shape.new_tokens,
                cache=cache,
                dynamic=contender.dynamic,
                compiled=contender.compiled,
            )
            if contender.compiled:
                generation.prefill()  # what differs in the second one, torch.compile makes anew
            logits = generation.prefill()
            generation.step()
            generation.rewind()
            rows = [finish(row)]
            if graphs and not contender.dynamic:
                captured = add_row(Mode.GRAPH)
                try:
                    generation.capture()
                    rows.append(finish(captured))
                except (RuntimeError, MemoryError) as error:
                    captured.problem = describe(error)
    except Exception as error:  # noqa: BLE001 - whatever a contender raises, the others go on
        row.problem = describe(error)
        free_memory()
        return None
    generation.release()
    return _Running(contender=contender, generation=generation, rows=rows, logits=logits.float())


def _run_round(model: PreTrainedModel, record: Record, running: _Running, clock: Clock) -> None:
    """Add a round to each row of a contender; one that fails has no further rounds."""
    generation, steps = running.generation, record.shape.new_tokens - 1
    try:
        with running.contender.active(model):
            for row in running.rows:
                graph = row.mode is Mode.GRAPH
                marks = [clock.mark()]
                generation.prefill(graph=graph)
                marks.append(clock.mark())
                for _ in range(steps):
                    generation.step(graph=graph)
                    marks.append(clock.mark())
                first_token_s, *step_s = clock.seconds(marks)
                step_ms = tuple(seconds * 1000 for seconds in step_s)
                row.rounds.append(Round(first_token_s=first_token_s, step_ms=step_ms))
    except Exception as error:  # noqa: BLE001 - whatever a contender raises, the others go on
        _fail(running, error)
    generation.release()


def _fail(running: _Running, error: Exception) -> None:
    for row in running.rows:
        row.problem = describe(error)
    free_memory()


def _profile(model: PreTrainedModel, record: Record, running: _Running) -> None:
    """Break one prefill and a few decode steps of a contender down by kernel."""
    generation, names = running.generation, kernel_names() if running.contender.name == OURS else ()
    steps = max(1, min(PROFILED_STEPS, record.shape.new_tokens - 1))

    try:
        with running.contender.active(model):
            for row in running.rows:
                graph = row.mode is Mode.GRAPH
                prefill, step = (partial(run, graph=graph) for run in (generation.prefill, generation.step))
                row.prefill = break_down(profile(prefill), names=names)
                row.decode = break_down(profile(step, repeats=steps), repeats=steps, names=names)
    except Exception as error:  # noqa: BLE001 - times are worth having without a profile
        for row in running.rows:
            row.problem = f"no profile: {describe(error)}"
    generation.release()


def _compare_logits(running: Sequence[_Running]) -> None:
    """Compare the logits of the first new token with the reference contender's."""
    reference = next((run.logits for run in running if run.contender.name == REFERENCE), None)
    for run in running:
        if reference is not None and run.logits is not None:
            kl, top1 = divergence(reference, run.logits)
            for row in run.rows:
                row.kl, row.top1 = kl, top1
        run.logits = None


def divergence(reference: torch.Tensor, logits: torch.Tensor) -> tuple[float, float]:
    """Return the largest KL divergence from the reference, in nats, and the share of equal top tokens.

    Args:
        reference: `[B, vocab]`.
        logits: `[B, vocab]`.
    """
    expected, got = reference.double().log_softmax(-1), logits.double().log_softmax(-1)
    kl = (expected.exp() * (expected - got)).sum(-1)
    return float(kl.max()), float((expected.argmax(-1) == got.argmax(-1)).double().mean())


def describe(error: BaseException) -> str:
    """Return the first line of an error, with its type unless its message says enough."""
    line = f"{error}".partition("\n")[0]
    return line if isinstance(error, MemoryError) else f"{type(error).__name__}: {line}"
