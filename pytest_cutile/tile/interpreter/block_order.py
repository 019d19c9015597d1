"""Runs launch code with its blocks in either order, and finds what depends on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pytest_cutile.tile.interpreter.api import Run, interpret
from pytest_cutile.tile.interpreter.faults import KernelFault
from pytest_cutile.tile.interpreter.formatting import show_number
from pytest_cutile.tile.interpreter.options import Options


def check_order(
    make_and_launch: Callable[[], Any],
    arch: str,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    options: Options | None = None,
) -> Any:
    """Run `make_and_launch` with its blocks forward and backward, and compare the results.

    Forward, many blocks run together, operation by operation. Backward, each block runs to its end before the
    next, so that a block finds other blocks at work or done.

    `make_and_launch` makes its own inputs, the same both times (torch's random numbers are reset). It returns
    tensors in any nest of tuples, lists and dicts. Atomic sums of floats depend on the order in their last
    bits: give a tolerance.

    Args:
        make_and_launch: launch code.
        arch: architecture to pretend, "sm_121".
        rtol: largest difference relative to the first result.
        atol: largest difference.
        options: how to interpret, but for the order.

    Returns:
        What the first run returned.

    Raises:
        KernelFault: of kind "order": an element differs. The message names its last writer.
    """
    options = options or Options()
    state = torch.get_rng_state()

    def run_once(options: Options) -> tuple[Any, Run]:
        torch.set_rng_state(state)
        with interpret(arch, options) as run:
            return make_and_launch(), run

    result, run = run_once(options)
    backwards, _ = run_once(replace(options, reverse=True, one_by_one=True))
    leaves = [pytree.tree_flatten_with_path(tensors)[0] for tensors in (result, backwards)]
    for at, ((path, forward), (_, backward)) in enumerate(zip(*leaves, strict=True)):
        if not isinstance(forward, torch.Tensor):
            continue
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            difference = _compare(forward, backward, pytree.keystr(path), rtol, atol)
        if difference is None:
            continue
        message, index = difference
        fault = KernelFault("order", message, kernel=", ".join(launch.kernel for launch in run.launches))
        if index is not None:
            traced, again = run_once(replace(options, trace_writes=True))
            with contextlib.suppress(LookupError):  # it may not be written by a kernel
                trace = again.trace_element(pytree.tree_leaves(traced)[at], index)
                fault.kernel, fault.block, fault.location = trace.kernel, trace.block, trace.location
        raise fault
    return result


def _compare(
    forward: torch.Tensor, backward: torch.Tensor, name: str, rtol: float, atol: float
) -> tuple[str, tuple[int, ...] | None] | None:
    """Return what differs, and the first element that does; None if nothing."""
    where = f"result{name}"
    if forward.shape != backward.shape or forward.dtype != backward.dtype:
        return (
            f"{where} is {forward.dtype} {list(forward.shape)}, and with the blocks in reverse "
            f"{backward.dtype} {list(backward.shape)}"
        ), None
    one, other = (x.double() if x.dtype.is_floating_point else x for x in (forward, backward))
    same = (one == other) | ((one != one) & (other != other))  # noqa: PLR0124 - NaN is no number
    if rtol or atol:
        same |= (one.double() - other.double()).abs() <= atol + rtol * one.double().abs()
    if same.all():
        return None
    different = (~same).nonzero()
    first = tuple(different[0].tolist())
    shown = [show_number(tensor[first]) for tensor in (forward, backward)]
    if shown[0] == shown[1]:  # they differ in their last bits
        shown = [repr(tensor[first].item()) for tensor in (forward, backward)]
    return (
        f"{where}{list(first)} is {shown[0]}, and {shown[1]} with the blocks in reverse, "
        f"as are {len(different)} of {forward.numel()} elements: which one depends on timing"
    ), first
