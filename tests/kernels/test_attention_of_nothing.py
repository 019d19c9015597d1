"""Attention without batches, heads, queries or keys: references and inputs take what launchers take."""

import dataclasses
import functools

import pytest

from kernels import attention_decode, fmha, mla, mla_decoding
from pytest_cutile.tile.tensors.seeded import MakeTensor

torch = pytest.importorskip("torch")
tree_map_only = torch.utils._pytree.tree_map_only

SPECS = [each.SPEC for each in (attention_decode, fmha, mla, mla_decoding)]
SIZES = [("b",), ("h",), ("h", "h_kv"), ("m",), ("n",), ("b", "h", "h_kv", "n")]


def small(spec):
    return next(case for case in spec.cases if not case.speed and case.params["dtype"] == "float16")


@pytest.mark.parametrize(
    ("spec", "sizes", "inputs"),
    [
        pytest.param(spec, sizes, inputs, id=f"{spec.name}-{'_'.join(sizes)}-{inputs}")
        for spec in SPECS
        for sizes in SIZES
        if {*sizes} & {*small(spec).params}
        for inputs in ("normal", *spec.special_inputs)
    ],
)
def test_the_reference_of_nothing_is_what_the_launcher_returns(spec, sizes, inputs):
    case = small(spec)
    none = {size: 0 for size in sizes if size in case.params}
    case = dataclasses.replace(case, params={**case.params, **none})
    made = spec.make_inputs(functools.partial(MakeTensor, device="cpu", seed=0), case, inputs)
    exact = tree_map_only(torch.Tensor, torch.Tensor.double, made)
    torch.testing.assert_close(spec.reference(**exact).half(), spec.launch(**made), rtol=0, atol=0)
