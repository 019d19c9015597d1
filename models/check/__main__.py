"""Check models of real size on a GPU: layers against float64, the whole against honest implementations.

    python -m models.check qwen2-7b deepseek-v2-lite --out build/models

Each model is built with random weights (or those of `--model NAME=PATH`) in bfloat16. A few layers are
compared with float64, and logits of prefill and of decoded steps with the model in float32. A JSON file for
each model is written, and rewritten after each part: what was found before an error stays. Without a GPU,
tiny models run interpreted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models import apply, build
from models.check import (
    check_layers,
    check_whole,
    make_cache,
    record,
    run_exactly,
    run_honestly,
    run_steps,
)
from models.device import INTERPRETED_ARCH, on_gpu
from models.weights import CONFIGS
from tools.gpu_runs.runs import positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Check what the command line names; return 1 if something is wrong or raised."""
    parser = argparse.ArgumentParser(
        prog="python -m models.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=CONFIGS, metavar="NAME", help=", ".join(CONFIGS))
    parser.add_argument("--model", action="append", default=[], metavar="NAME=PATH", help="real weights")
    parser.add_argument("--batch", type=positive, default=2)
    parser.add_argument("--prompt", type=positive, default=512, help="tokens of each prompt")
    parser.add_argument("--steps", type=positive, default=50, help="tokens that are decoded after it")
    parser.add_argument("--out", type=Path, default=Path("build/models"))
    options = parser.parse_args(argv)
    weights: dict[str, str] = {}
    for pair in options.model:
        name, _, path = pair.partition("=")
        if not path or name not in options.names:
            parser.error(f"--model takes NAME=PATH of a model that is checked, got {pair!r}")
        weights[name] = path
    has_gpu = torch.cuda.is_available()
    wrong = []
    with on_gpu(*options.names):
        options.out.mkdir(parents=True, exist_ok=True)
        for name in options.names:
            report = Report(name, weights.get(name), options, has_gpu=has_gpu)
            report.run()
            wrong += report.wrong
            torch.cuda.empty_cache()
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


class Report:
    """The check of one model, and its file."""

    def __init__(self, name: str, weights: str | None, options: argparse.Namespace, *, has_gpu: bool) -> None:
        self.name, self.weights, self.options, self.has_gpu = name, weights, options, has_gpu
        self.wrong: list[str] = []
        """What is wrong, or raised, in a line each."""
        self.results: dict[str, Any] = {
            "model": name,
            "gpu": torch.cuda.get_device_name() if has_gpu else f"none, interpreted for {INTERPRETED_ARCH}",
            "torch": torch.__version__,
            "batch": options.batch,
            "prompt": options.prompt,
            "steps": options.steps,
        }

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part, note what it raises, and write the file."""
        started = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the other parts are of use, too
            traceback.print_exc()
            self.results[f"{name}_error"] = said = f"{type(error).__name__}: {error}"[:2000]
            self.wrong.append(f"{self.name}, {name}: {said}")
        self.results[f"{name}_seconds"] = round(time.perf_counter() - started, 1)
        (self.options.out / f"check-{self.name}.json").write_text(json.dumps(self.results, indent=1))

    def run(self) -> None:
        print(f"{self.name} on {self.results['gpu']}", flush=True)
        model = None
        with self.part("build"):
            model = build(self.name, weights=self.weights, device="cuda")
        if model is None:
            return
        generator = torch.Generator().manual_seed(0)
        shape = (self.options.batch, self.options.prompt + self.options.steps)
        tokens = torch.randint(0, model.config.vocab_size, shape, generator=generator).to(model.device)
        prompt, kernels = self.options.prompt, {}
        with self.part("kernels"), apply(model) as replaced:
            self.results["replaced"] = dict(replaced.counts)
            for cache in ("dynamic", "static"):
                kernels[cache] = run_steps(model, tokens, prompt, static=cache == "static")
        if self.has_gpu:
            with self.part("graph"), apply(model):
                self.results["graph_is_the_same"] = is_same = self.replay(model, tokens)
                if not is_same:
                    self.wrong.append(f"{self.name}: a replayed graph gives other logits than eager steps")
        with self.part("layers"):
            self.check_some_layers(model, tokens)
        with self.part("whole"):
            exact, honest = run_exactly(model, tokens, prompt), run_honestly(model, tokens, prompt)
            for cache, logits in kernels.items():
                checks = check_whole(exact, honest, logits)
                self.results[f"whole_{cache}"] = [
                    {**asdict(check), "allowed_kl": check.allowed_kl, "is_right": check.is_right}
                    for check in checks
                ]
                print(*(f"  {cache}: {check}" for check in checks), sep="\n", flush=True)
                self.wrong += [f"{self.name}, {cache}: {check}" for check in checks if not check.is_right]

    def check_some_layers(self, model: Any, tokens: torch.Tensor) -> None:
        """Check the first layers, one in the middle and the last one: a short prefill, and a step."""
        count = len(model.model.layers)
        prompt = min(256, self.options.prompt)
        layers = {0, 1, count // 2, count - 1}
        with apply(model), record(model, layers, loud_ends=True) as calls:
            run_steps(model, tokens[:1, : prompt + 1], prompt, static=True)
        checks: list[dict[str, Any]] = []
        self.results["layers"] = checks
        for check in check_layers(model, calls):
            worst = None if check.report is None else check.report.worst_error
            checks.append(
                {"name": check.name, "step": check.step, "of_bound": worst, "problem": check.problem}
            )
            print(f"  {check.name} step {check.step}: {worst} of the bound", check.problem or "", flush=True)
            if check.problem:
                self.wrong.append(f"{check.name}, step {check.step}: {check.problem}")

    def replay(self, model: Any, tokens: torch.Tensor) -> bool:
        """Capture a step of decoding in a CUDA graph; return whether replays give what eager steps give."""
        prompt, steps = self.options.prompt, min(4, self.options.steps)

        @torch.no_grad()
        def after_prefill(run: Callable[[Any, torch.Tensor], list[torch.Tensor]]) -> list[torch.Tensor]:
            cache = make_cache(model, prompt + steps + 4, static=True)
            model(tokens[:, :prompt], past_key_values=cache, logits_to_keep=1)
            return run(cache, tokens[:, prompt : prompt + steps])

        def step(cache: Any, token: torch.Tensor) -> torch.Tensor:
            return model(token, past_key_values=cache).logits

        def eagerly(cache: Any, given: torch.Tensor) -> list[torch.Tensor]:
            return [step(cache, given[:, i : i + 1]).clone() for i in range(steps)]

        def replayed(cache: Any, given: torch.Tensor) -> list[torch.Tensor]:
            token = given[:, :1].clone()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step(cache, token)
            torch.cuda.current_stream().wait_stream(side)
            for layer in cache.layers:
                layer.cumulative_length.sub_(1)  # as if the step had not been
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = step(cache, token)
            results = []
            for i in range(steps):
                token.copy_(given[:, i : i + 1])
                graph.replay()
                results.append(logits.clone())
            return results

        pairs = zip(after_prefill(eagerly), after_prefill(replayed), strict=True)
        return all(torch.equal(one, other) for one, other in pairs)


if __name__ == "__main__":
    sys.exit(main())
