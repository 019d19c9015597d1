"""Our kernels, and what TileGym's benchmarks compare: its own kernels and PyTorch, from `tools/suite`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from pytest_cutile.tile.compiler import pretend_gpu
from pytest_cutile.tile.tensors.seeded import MakeTensor
from pytest_cutile.tile.tensors.trees import named_tensors
from pytest_cutile.words.spec import Case
from pytest_cutile.words.timing import LaunchFunction
from studies.running.study import Contender
from tools.gpu_runs.agreement import describe_difference
from tools.gpu_runs.suites import Suite, load_suite
from tools.suite._peers import InPlace, has_tilegym

OURS, TORCH, TILEGYM = "kernels", "torch", "tilegym"
CALLS_BEFORE = 3
"""The first calls compile, or try algorithms; one that works in place needs fresh arguments after them."""
RANDOM_KERNELS = frozenset({"dropout"})
"""Kernels of which each library draws random numbers of its own."""
ZEROS_MARGIN = 0.01
"""By how much the share of zeros may differ; its standard deviation is 0.0005 in the smallest case."""


def own(suite: Suite) -> Contender:
    return Contender(name=OURS, launch=suite.spec.launch)


def peers_of(suite: Suite, case: Case) -> Sequence[Contender]:
    """Return what TileGym's benchmarks compare on a case: PyTorch, and each variant of TileGym's kernel."""
    names = [name for name in _offered(suite.name, case.name) if name == TORCH or _is_tilegym(name)]
    peers = [_peer(suite, case, name) for name in names]
    if TILEGYM in suite.peer_names and importlib.util.find_spec(TILEGYM) is None:
        peers.append(Contender(name=TILEGYM, launch=suite.spec.launch, missing="it is not installed"))
    return peers


def _is_tilegym(name: str) -> bool:
    return name.startswith(TILEGYM)


@cache
def _offered(suite_name: str, case_name: str) -> Sequence[str]:
    """Return the names of the peers that a suite has for a case, by tensors without data."""
    suite = load_suite(suite_name)
    case = suite.case(case_name)
    has_tilegym()  # before a GPU is pretended: it undoes what the import does to `cuda.tile.launch`
    with pretend_gpu("sm_90"):  # what is offered does not depend on the architecture
        inputs = suite.spec.make_inputs(partial(MakeTensor, device="cuda", seed=0), case)
        offered = suite.peers(inputs, dict(case.params))
    return [name for name, launch in offered.items() if not isinstance(launch, str)]


def _peer(suite: Suite, case: Case, name: str) -> Contender:
    def bind(*args: Any, **kwargs: Any) -> LaunchFunction:
        has_tilegym()
        launch: Any = suite.peers(kwargs or args, dict(case.params))[name]
        return launch  # type: ignore[no-any-return]

    def launch(*args: Any, **kwargs: Any) -> object:
        bound = bind(*args, **kwargs)
        for _ in range(CALLS_BEFORE):
            result = bound()
        return bound.once() if isinstance(bound, InPlace) else result

    return Contender(
        name=name,
        launch=launch,
        bind=bind,
        is_peer=True,
        difference=_difference_in_zeros if suite.spec.name in RANDOM_KERNELS else describe_difference,
    )


def _difference_in_zeros(got: Any, expected: Any, inputs: Any) -> str | None:
    """Say how the shares of zeros differ; None if they do not, beyond chance."""
    del inputs
    shares = [_share_of_zeros(tree) for tree in (got, expected)]
    if abs(shares[0] - shares[1]) <= ZEROS_MARGIN:
        return None
    return f"a share of {shares[0]:.3f} is zero, not {shares[1]:.3f}"


def _share_of_zeros(tree: Any) -> float:
    tensors = [tensor for _, tensor in named_tensors(tree, "output")]
    return sum(int((tensor == 0).sum()) for tensor in tensors) / sum(tensor.numel() for tensor in tensors)
