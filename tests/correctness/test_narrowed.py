"""An output of fewer bits than its inputs has a wider bound: the report says so."""

import pytest
import torch

from pytest_cutile.correctness.check import check_kernel
from tests.correctness.checking import identity, tensor


@pytest.mark.parametrize(
    ("inputs", "output", "said"),
    [
        (["float16"], "float8_e5m2", "output float8_e5m2, inputs float16"),
        (["float16"], "bfloat16", "output bfloat16, inputs float16"),
        (["float32", "float16"], "bfloat16", "output bfloat16, inputs float16"),
        (["float32", "bfloat16"], "bfloat16", None),
        (["bfloat16"], "float16", None),
        (["float32"], "float32", None),
        (["int32"], "float16", None),
    ],
)
def test_an_output_coarser_than_every_floating_input_is_said(inputs, output, said):
    dtype = getattr(torch, output)

    def kernel(*tensors):
        return sum(tensor.double() for tensor in tensors).to(dtype)

    def reference(*tensors):
        return sum(tensor.double() for tensor in tensors)

    report = check_kernel(kernel, *(tensor(4, 8, dtype=name) for name in inputs), reference=reference)
    assert report.narrowed == (() if said is None else (said,))


def test_only_the_outputs_that_are_coarser_are_named():
    x = tensor(4, 8)
    report = check_kernel(lambda x: (x, x.bfloat16()), x, reference=lambda x: (identity(x), x), mutates=["x"])
    assert report.narrowed == ("output[1] bfloat16, inputs float16",)
