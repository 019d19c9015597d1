"""The runs of a reference that a check needs: exact ones and ones with noise, of the whole or of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from pytest_cutile.correctness.error_model.noise import Reference, allow, run_reference
from pytest_cutile.correctness.error_model.parts import OUTPUT, Part
from pytest_cutile.correctness.error_model.reference import ReferenceCall
from pytest_cutile.correctness.error_model.running import run_exactly
from pytest_cutile.correctness.error_model.terms import Terms
from pytest_cutile.correctness.error_model.tolerance import NumericsPolicy
from pytest_cutile.correctness.errors import ReferenceFailed
from pytest_cutile.tensors.trees import named_tensors


class ReferenceRuns:
    """Runs a reference when its values are needed, and keeps those of the whole for all launches.

    The values of a part are not kept: a case is cut so that they need not fit into memory together.
    """

    def __init__(self, call: ReferenceCall, parts: Sequence[Part], terms: Terms) -> None:
        self.call = call
        self.parts = parts
        self.terms = terms
        self.count = 0
        """How often the reference ran on each part, for one launch."""
        self.longest_sum = 1
        self.is_fixed = self.has_products = self.has_exponentials = False
        """What any run has shown, as `Reference` has it."""
        self._whole: Reference | None = None

    @property
    def keeps_the_whole(self) -> bool:
        return self._whole is not None

    def estimate(self, part: Part, policy: NumericsPolicy) -> Reference:
        """Return a part's exact values and their noise under a policy; raise ReferenceFailed."""
        call = self.call.of(part)
        truth = self._whole
        if truth is None:
            truth = call.run(run_reference, operands=self.terms.operands, policy=self.terms.policy)
            if truth.is_random:
                raise ReferenceFailed(
                    f"{call.name} draws random numbers, and returns something else when it is called again: "
                    "let it make a torch.Generator with a seed of its own, or give it what was drawn"
                )
            self.count = max(self.count, truth.runs)
            self.longest_sum = max(self.longest_sum, truth.observed.longest_sum)
            self.is_fixed |= truth.is_fixed
            self.has_products |= truth.observed.has_products
            self.has_exponentials |= truth.observed.has_exponentials
            if part.is_whole:
                self._whole = truth
        if policy != self.terms.policy:
            truth = call.run(partial(allow, truth, policy))
        return truth

    def exact(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self._whole is not None:
            return dict(named_tensors(self._whole.outputs, OUTPUT))
        exact: dict[str, torch.Tensor] = {}
        for part in self.parts:
            for name, values in named_tensors(self.call.of(part).run(run_exactly), OUTPUT):
                if name not in exact:
                    exact[name] = torch.empty(outputs[name].shape, dtype=values.dtype, device=values.device)
                part.of(OUTPUT, exact[name]).copy_(values)
        return exact
