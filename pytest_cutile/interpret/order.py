"""Runs launch code with its blocks in either order, and finds what depends on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pytest_cutile.interpret.faults import KernelFault
from pytest_cutile.interpret.launch import Interpreter, Options, interpreting
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
        KernelFault: an element differs; its kind is "order", and it tells who wrote the element last.
    """
    options = options or Options()
    state = torch.get_rng_state()

    def run(options: Options) -> tuple[Any, Interpreter]:
        torch.set_rng_state(state)
        with interpreting(arch, options) as interpreter:
            return make_and_launch(), interpreter

    result, interpreter = run(options)
    backwards, _ = run(replace(options, reverse=True, one_by_one=True))
    leaves = [pytree.tree_flatten_with_path(each)[0] for each in (result, backwards)]
    for at, ((path, forward), (_, backward)) in enumerate(zip(*leaves, strict=True)):
        if not isinstance(forward, torch.Tensor):
            continue
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            found = _compare(forward, backward, pytree.keystr(path), rtol, atol)
        if found is None:
            continue
        message, index = found
        fault = KernelFault("order", message, kernel=", ".join(interpreter.kernels))
        if index is not None:
            traced, again = run(replace(options, trace_writes=True))
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
    one, other = (each.double() if each.dtype.is_floating_point else each for each in (forward, backward))
    same = (one == other) | ((one != one) & (other != other))  # noqa: PLR0124 - NaN is no number
    if rtol or atol:
        same |= (one.double() - other.double()).abs() <= atol + rtol * one.double().abs()
    if same.all():
        return None
    different = (~same).nonzero()
    first = tuple(int(each) for each in different[0])
    shown = [show_number(each[first]) for each in (forward, backward)]
    if shown[0] == shown[1]:  # they differ in their last bits
        shown = [repr(each[first].item()) for each in (forward, backward)]
    return (
        f"{where}{list(first)} is {shown[0]}, and {shown[1]} with the blocks in reverse, "
        f"as are {len(different)} of {forward.numel()} elements: which one is chance"
    ), first
