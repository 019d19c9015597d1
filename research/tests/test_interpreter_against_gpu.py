"""The comparison with a GPU, `research/interpreter_against_gpu.py`, with both sides interpreted."""

import json

import pytest
import torch

from research.interpreter_against_gpu import Comparison, compare, main
from research.operations import all_examples
from research.operations.values import values


@pytest.mark.slow
@pytest.mark.parametrize("only", ["mul flush_to_zero", "load padding_mode=NEG_ZERO float16"])
def test_both_sides_interpreted_are_equal(only, tmp_path):
    file = tmp_path / "found.json"
    (comparison,) = main(["--self-test", "--operations-only", "--only", only, "--json", str(file)])
    assert comparison.verdict == "equal", comparison
    assert comparison.elements > 1000
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["comparisons"][0]["verdict"] == "equal"


def compared(gpu: torch.Tensor, interpreted: torch.Tensor) -> Comparison:
    comparison = Comparison(name="x", dtype="y")
    compare(comparison, gpu, interpreted, [gpu])
    return comparison


def test_distances_are_in_units_in_the_last_place():
    gpu = torch.tensor([1.0, -1.0, 0.0, 2.0, 3.0])
    other = gpu.clone()
    other[1] = torch.nextafter(gpu[1], torch.tensor(-2.0))
    other[3] = torch.nextafter(torch.nextafter(gpu[3], torch.tensor(1.0)), torch.tensor(1.0))
    comparison = compared(gpu, other)
    assert (comparison.different, comparison.largest_ulps) == (2, 2)
    assert comparison.examples[0]["place"] == "1"


def test_zeros_of_different_sign_differ_by_one():
    comparison = compared(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert (comparison.different, comparison.largest_ulps) == (1, 1)


def test_nan_equals_nan_of_any_sort_and_nothing_else():
    nans = torch.tensor([0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
    assert compared(nans, nans.flip(0)).different == 0
    comparison = compared(nans, torch.tensor([1.0, float("nan")]))
    assert (comparison.different, comparison.nan_here_only, comparison.largest_ulps) == (1, 1, 0)


def test_integers_by_their_distance():
    comparison = compared(torch.tensor([1, -1], dtype=torch.int8), torch.tensor([1, 2], dtype=torch.int8))
    assert (comparison.different, comparison.largest_ulps) == (1, 3)


@pytest.mark.slow
def test_what_cannot_run_is_recorded():
    (comparison,) = main(["--self-test", "--only", "mma_scaled (Blackwell) float8_e5m2"])
    assert comparison.verdict == "both refuse"
    assert "float8_e8m0fnu" in comparison.interpreter_error


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16", "uint8", "float8_e4m3fn"])
def test_small_dtypes_are_tried_with_every_value(dtype):
    bits = values(dtype).view(torch.uint8 if values(dtype).element_size() == 1 else torch.int16)
    assert len(bits.unique()) == 256 ** values(dtype).element_size()


def test_every_public_operation_has_an_example():
    import cuda.tile as ct

    examples = {part for example in all_examples() for part in example.operation.replace(",", "").split()}
    names = {name for name in ct.__all__ if name.islower() and callable(getattr(ct, name))}
    # Not about values: launching, printing, compile time, hints.
    sundry = {
        *("launch", "kernel", "function", "compiler_timeout", "static_assert", "static_eval", "static_iter"),
        *("static_exception", "ensure_constant", "assume_divisible_by", "print", "printf", "assert_"),
        *("grid_dependency_control_wait", "grid_dependency_control_launch_dependents"),
    }
    # Part of the examples of others.
    sundry |= {"store", "expand_dims", "astile", "foreign_pointer_dtype"}
    dtypes = {name for name in names if isinstance(getattr(ct, name), ct.DType)}
    assert names - dtypes - examples - sundry == set()
