"""Runs launch code with its blocks in either order, and finds what depends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pytest_cutile.interpret.faults import KernelFault
from pytest_cutile.interpret.launch import Options, interpreting
from pytest_cutile.interpret.show import show_number


def check_order(
    make_and_launch: Callable[[], Any],
    arch: str,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    options: Options | None = None,
) -> Any:
    """Run `make_and_launch` twice, with the first block first and with the last one, and compare its results.

    With the first one first, many blocks run together, operation by operation; with the last one first, each
    runs to its end before the next: what a block reads while others are still at work differs.

    It makes its inputs itself, the same both times (torch's random numbers are), and returns tensors, in any
    nest of tuples, lists and dicts. Atomic sums of floats depend on the order in their last bits: give a
    tolerance for those.

    Args:
        make_and_launch: launch code.
        arch: architecture to pretend, "sm_121".
        rtol: largest difference relative to the first result.
        atol: largest difference.
        options: how to interpret, but for the order.

    Returns:
        What the first run returned.

    Raises:
        KernelFault: an element differs; its kind is "order".
    """
    options = options or Options()
    state = torch.get_rng_state()
    results = []
    for reverse in (False, True):
        torch.set_rng_state(state)
        with interpreting(arch, replace(options, reverse=reverse, one_by_one=reverse)) as interpreter:
            result = make_and_launch()
            kernels = interpreter.kernels
        results.append(result)
    leaves = [pytree.tree_flatten_with_path(result)[0] for result in results]
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        for (path, forward), (_, backward) in zip(*leaves, strict=True):
            if isinstance(forward, torch.Tensor):
                _compare(forward, backward, pytree.keystr(path), kernels, rtol, atol)
    return results[0]


def _compare(
    forward: torch.Tensor, backward: torch.Tensor, name: str, kernels: list[str], rtol: float, atol: float
) -> None:
    where = f"result{name}"
    if forward.shape != backward.shape or forward.dtype != backward.dtype:
        raise KernelFault(
            "order",
            f"{where} is {forward.dtype} {list(forward.shape)}, and with the blocks in reverse "
            f"{backward.dtype} {list(backward.shape)}",
            kernel=", ".join(kernels),
        )
    one, other = (each.double() if each.dtype.is_floating_point else each for each in (forward, backward))
    same = (one == other) | ((one != one) & (other != other))  # noqa: PLR0124 - NaN is no number
    if rtol or atol:
        same |= (one.double() - other.double()).abs() <= atol + rtol * one.double().abs()
    if same.all():
        return
    different = (~same).nonzero()
    first = tuple(int(each) for each in different[0])
    raise KernelFault(
        "order",
        f"{where}{list(first)} is {show_number(forward[first])}, and {show_number(backward[first])} with the "
        f"blocks in reverse, as are {len(different)} of {forward.numel()} elements: which one is chance",
        kernel=", ".join(kernels),
    )
