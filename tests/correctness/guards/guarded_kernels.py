"""cuTile kernels that copy, and touch what is not theirs."""

import cuda.tile as ct
import torch


@ct.kernel
def copy_kernel(x, y, shift: ct.Constant[int], tile: ct.Constant[int]):
    index = ct.bid(0) * tile + ct.arange(tile, dtype=ct.int32)
    ct.scatter(y, index, ct.gather(x, index))
    beyond = (index < y.shape[0]) & (index + shift >= y.shape[0])
    ct.scatter(y, index + shift, ct.gather(x, index), mask=beyond, check_bounds=False)


@ct.kernel
def shifted_kernel(x, y, shift: ct.Constant[int], tile: ct.Constant[int]):
    index = ct.bid(0) * tile + ct.arange(tile, dtype=ct.int32)
    ct.scatter(y, index, ct.gather(x, index + shift, mask=index < y.shape[0], check_bounds=False))


def _launch(kernel, x, shift):
    y = torch.empty_like(x)
    blocks = (ct.cdiv(x.numel(), 128),)
    ct.launch(torch.cuda.current_stream(), blocks, kernel, (x, y, shift, 128))
    return y


def copied(x):
    """Copy."""
    return _launch(copy_kernel, x, 0)


def copied_too_far(x):
    """Copy, and write the last three elements a second time, past the end."""
    return _launch(copy_kernel, x, 3)


def read_too_far(x):
    """Copy all but the first three elements, and three past the end."""
    return _launch(shifted_kernel, x, 3)
