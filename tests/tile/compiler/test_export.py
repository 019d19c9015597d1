"""A kernel is translated once for each signature, set of hints and architecture."""

# mypy: allow-untyped-decorators

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.tile.compiler import CompileError, CompileJob, export
from pytest_cutile.tile.compiler.trace.launches import record_launches
from tests.tile.compiler.launchers import add_kernel


def job(
    kernel=add_kernel, *, length: int = 64, offset: int = 0, tile: int = 16, arch: str = "sm_90"
) -> CompileJob:
    def launch() -> None:
        x = torch.zeros(length + offset, device="cuda")[offset:]
        ct.launch(0, (1,), kernel, (x, x, x, tile))

    (recorded,) = record_launches(launch, arch)
    return export(recorded, arch)


def test_equal_launches_are_translated_once():
    assert job() is job()
    assert job(length=128) is job()  # both are divisible by 16


def test_kernels_made_anew_with_equal_hints_are_one():
    assert job(add_kernel.replace_hints(occupancy=2)) is job(add_kernel.replace_hints(occupancy=2))


def test_what_decides_the_code_is_told_apart():
    others = (
        job(length=65),
        job(offset=1),
        job(tile=32),
        job(arch="sm_100"),
        job(add_kernel.replace_hints(occupancy=2)),
        job(add_kernel.replace_hints(opt_level=1)),
    )
    assert len({id(exported) for exported in (job(), *others)}) == 7


def test_a_closure_has_a_translation_of_its_own():
    def make(factor: int):
        @ct.kernel
        def scaled(x, y, out, n: ct.Constant[int]):
            ct.store(out, (0,), ct.load(x, (0,), (n,)) * factor + ct.load(y, (0,), (n,)))

        return scaled

    assert job(make(2)).bytecode != job(make(3)).bytecode


@ct.kernel
def never_ending_kernel(x, y, out, n: ct.Constant[int]):  # noqa: ARG001 - launched like the others
    i = 0
    while i < 10:
        n = n + 1
    ct.store(out, (0,), n)


def test_a_rejection_without_a_reason_says_so():
    with pytest.raises(CompileError, match=r"for sm_90: cuda-tile rejects it without a reason; a loop that"):
        job(never_ending_kernel)
