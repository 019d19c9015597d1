"""An architecture that no table of configurations names: its kernels take those of the nearest relative."""

import pytest
import torch

from kernels import fmha, matmul, mla_decoding, softmax
from kernels._launch import find_arch
from pytest_cutile.gates.declared import compile_case
from pytest_cutile.tile.compiler import record_launches
from pytest_cutile.tile.compiler.source import source_digest
from pytest_cutile.tile.compiler.trace.launches import pretend_gpu
from pytest_cutile.words.platforms.data import read_tables
from tests.words.platforms.test_data import SM_95, changed


@pytest.fixture
def sm_95(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = read_tables(changed("[architectures.sm_100]\n", SM_95))
    monkeypatch.setattr("pytest_cutile.words.platforms.lookup.hardware", lambda: tables)
    monkeypatch.setattr("pytest_cutile.tile.compiler.trace.devices.hardware", lambda: tables)


@pytest.mark.slow
@pytest.mark.usefixtures("sm_95")
@pytest.mark.parametrize("kernel", [softmax, matmul, fmha, mla_decoding], ids=lambda kernel: kernel.__name__)
def test_a_new_architecture_takes_the_configurations_of_its_relative(kernel) -> None:
    for case in kernel.SPEC.cases:
        made = [
            [
                (launch.grid, source_digest(launch, arch))
                for launch in record_launches(compile_case(kernel.SPEC, case, arch).run, arch)
            ]
            for arch in ("sm_90", "sm_95")
        ]
        assert made[0] == made[1]


@pytest.mark.usefixtures("sm_95")
@pytest.mark.parametrize(
    ("tables", "arch"),
    [
        ([{"sm_80": 1, "sm_90": 2}], "sm_90"),
        ([{"sm_80": 1}, {"sm_90": 2}], "sm_90"),
        ([{"sm_90": 2, "sm_95": 3}], "sm_95"),  # an entry in a kernel's table is enough
        ([{"sm_100": 4}], "sm_95"),  # the default
    ],
)
def test_the_kernels_own_tables_say_whose_configurations_it_has(tables, arch) -> None:
    with pretend_gpu("sm_95"):
        assert find_arch("kernel", torch.zeros(1), *tables) == arch
