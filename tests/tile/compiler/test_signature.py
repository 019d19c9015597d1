from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_cutile.tile.compiler.signature import derive_signature
from tests.tile.compiler import signature_cases as cases

ROOT = Path(__file__).resolve().parents[3]


def on_meta(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.slow
def test_every_signature_is_the_one_that_cuda_tile_derives() -> None:
    # In a process of its own: the pretended driver stays for the life of a process.
    done = subprocess.run(
        [sys.executable, "-m", "tests.tile.compiler.compare_signatures"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 200


def test_meta_tensors_derive_what_real_tensors_derive() -> None:
    def on_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    for (name, kernel, args), (_, _, meta_args) in zip(
        cases.launches(on_cpu), cases.launches(on_meta), strict=True
    ):
        try:
            expected = derive_signature(kernel, args)
        except TypeError:
            continue
        assert derive_signature(kernel, meta_args) == expected, name


@pytest.mark.parametrize(
    ("kernel", "args", "error"),
    [pytest.param(*case[1:], id=case[0]) for case in cases.refused(on_meta)],
)
def test_refuses_what_a_launch_refuses(kernel, args, error) -> None:
    with pytest.raises(error) as caught:
        derive_signature(kernel, args)
    assert kernel._pyfunc.__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (lambda x: x, {"stride_constant": (None, 1), "stride_divisible_by": (8, 1)}),
        (lambda x: x, {"base_addr_divisible_by": 16, "shape_divisible_by": (16, 16)}),
        (lambda x: x.t(), {"stride_constant": (1, None), "stride_divisible_by": (1, 8)}),
        (lambda x: x[:, 1:], {"base_addr_divisible_by": 1, "shape_divisible_by": (16, 1)}),
        (lambda x: x[:, 8:], {"base_addr_divisible_by": 16}),
        (lambda x: x[:1], {"shape_constant": (1, None), "may_alias_internally": False}),
        (lambda x: x[:1].expand(7, 64), {"may_alias_internally": True, "stride_divisible_by": (8, 1)}),
        (lambda x: x[0, 0], {"ndim": 0, "may_alias_internally": False}),
        (
            lambda x: x.view(2, 4, 4, 1, 4, 16),
            {"stride_constant": (None,) * 6, "shape_constant": (None,) * 6, "shape_divisible_by": (1,) * 6},
        ),
    ],
)
def test_an_arrays_layout_decides_the_assumptions(view, expected) -> None:
    [array] = derive_signature(cases.one, (view(on_meta((32, 64), torch.float16)),)).parameters
    assert {name: getattr(array, name) for name in expected} == expected


def test_the_symbol_says_what_was_assumed() -> None:
    symbol = derive_signature(cases.one, (on_meta((32, 64), torch.float16),)).symbol
    assert symbol.startswith("one_Kt1_A2f16")


def test_the_oldest_convention_that_fits_is_taken() -> None:
    x = on_meta((32, 64), torch.float16)
    assert derive_signature(cases.one, (x,)).calling_convention.version == 1
    assert derive_signature(cases.one, (x[:1],)).calling_convention.version == 2
    assert derive_signature(cases.one, ((x,),)).calling_convention.version == 2


def test_wrong_arity_names_kernel_and_parameters() -> None:
    with pytest.raises(TypeError, match=r"kernel two takes 2 arguments \(x, y\), but the launch passes 1"):
        derive_signature(cases.two, (1,))


def test_an_int_that_needs_64_bits_says_how_to_annotate_it() -> None:
    with pytest.raises(OverflowError, match="ScalarInt64"):
        derive_signature(cases.one, (2**31,))


def test_lengths_beyond_int32_say_how_to_annotate_them() -> None:
    huge = torch.empty((2**32,), dtype=torch.int8, device="meta")
    with pytest.raises(OverflowError, match="IndexedWithInt64"):
        derive_signature(cases.one, (huge,))
    [array] = derive_signature(cases.wide_index, (huge,)).parameters
    assert str(array.index_dtype) == "int64"
