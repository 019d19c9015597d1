"""Kernels that do some of a launcher's work, or none; a kernel's source must be in a file."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import cuda.tile as ct


@ct.kernel
def add_one_kernel(X, Y, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i, 0), ct.load(X, (i, 0), (1, n)) + 1)


@ct.kernel
def keep_kernel(Y, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i, 0), ct.load(Y, (i, 0), (1, n)))


@ct.kernel
def times_one_kernel(Y, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i, 0), ct.load(Y, (i, 0), (1, n)) * 1.0)


@ct.kernel
def relu_kernel(Y, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i, 0), ct.maximum(ct.load(Y, (i, 0), (1, n)), 0.0))


@ct.kernel
def add_low_rank_kernel(Y, A, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i, 0), ct.load(Y, (i, 0), (1, n)) + ct.load(A, (i, 0), (1, n)))


@ct.kernel
def scale_kernel(Y, scale, n: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(Y, (i, 0), ct.load(Y, (i, 0), (1, n)) * scale)


@ct.kernel
def add_atomically_kernel(X, S, n: ct.Constant[int]):
    i = ct.bid(0)
    column = ct.arange(n, dtype=ct.int32)
    ct.atomic_add(S, (column,), ct.reshape(ct.load(X, (i, 0), (1, n)), (n,)))


@ct.kernel
def nothing_kernel(Y):  # noqa: ARG001 - it does nothing
    ct.bid(0)


@ct.kernel
def out_of_bounds_kernel(X, Y, n: ct.Constant[int]):
    i = ct.bid(0) + 1000
    ct.store(Y, (i, 0), ct.load(X, (i, 0), (1, n)))
