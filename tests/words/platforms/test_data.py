"""How strictly `gpus.toml` is read, and how architectures that have no entry of their own are served."""

import tomllib
from importlib import resources
from typing import Any

import pytest

from pytest_cutile.tile.compiler.trace.devices import properties_of
from pytest_cutile.words.platforms.data import hardware, read_tables
from pytest_cutile.words.platforms.lookup import (
    nearest_architecture,
    related_architectures,
    representative,
    stand_in,
)
from tests.words.platforms.gpus_file import DataError, check_tables

FILE = resources.files("pytest_cutile.words.platforms").joinpath("gpus.toml").read_text(encoding="utf-8")
SM_95 = """
[architectures.sm_95]
relative = "sm_90"
max_threads_per_sm = 2048
max_blocks_per_sm = 32
shared_kib_per_sm = 256
has_clusters = true
source = "cuda-programming-guide"

[architectures.sm_100]
"""


def changed(old: str, new: str) -> str:
    assert FILE.count(old) >= 1
    return FILE.replace(old, new, 1)


def test_the_file_is_read_as_it_is() -> None:
    check_tables(FILE)
    tables = hardware()
    entries: dict[str, Any] = tomllib.loads(FILE)
    assert list(tables.architectures) == list(entries["architectures"])
    assert [list(platform.names) for platform in tables.platforms] == [
        gpu["names"] for gpu in entries["gpus"]
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[gpus]]\n", '[[gpus]]\ncolour = "green"\n', "colour is not known"),
        ("[every_architecture]\n", "[every_architecture]\nlanes = 4\n", "lanes is not known"),
        (
            "[architectures.sm_90]\n",
            "[architectures.sm_90]\nspeed = 1\n",
            "architectures.sm_90: speed is not",
        ),
        ("warp_size = { value = 32, ", "warp_size = { ", "every_architecture.warp_size: value is missing"),
        (', source = "hopper-tuning-guide"', "", "every_architecture.reserved.*: source is missing"),
        ("sm_count = 108\n", "", "gpus .*A100-SXM4-80GB.*: sm_count is missing"),
        ('source = "a100-datasheet"\n', "", "gpus .*A100-SXM4-80GB.*: source is missing"),
        (', source = "cuda-runtime-api" }', " }", "cuda_reports: source is missing"),
        ('source = "cccl"\n', "", "architectures.sm_88: source is missing"),
        ('source = "cccl"', 'source = "hearsay"', "architectures.sm_88: there is no documents.hearsay"),
        ('source = "cccl"', 'source = "l4-datasheet"', "no figure comes from cccl"),
        ('url = "https://docs', 'url = "docs', "a title and an address"),
        ("sm_count = 108", "sm_count = 108.5", "sm_count is 108.5, expected a value of type int"),
        ("sm_count = 108", "sm_count = true", "sm_count is True, expected a value of type int"),
        ("has_clusters = true", "has_clusters = 1", "has_clusters is 1, expected a value of type bool"),
        ("fp32 = 19.5", "fp31 = 19.5", "dense_tflops: fp31 is not known"),
        ('names = ["NVIDIA L4"]', 'names = ["NVIDIA L40S"]', "'NVIDIA L40S' is listed twice"),
        ('arch = "sm_80"', 'arch = "sm_81"', "there is no architectures.sm_81"),
        ('relative = "sm_120"', 'relative = "sm_119"', "relative sm_119 is not in the file"),
        ('relative = "sm_89"', 'relative = "sm_121"', "architectures.sm_120: relative sm_121 is not older"),
        ("[architectures.sm_80]", "[architectures.sm_101]", "from the oldest to the newest"),
        ("[architectures.sm_80]", "[architectures.sm_80a]", "is sm_80 in cuTile's spelling"),
        ('fallback_gpu = "NVIDIA H100', 'fallback_gpu = "NVIDIA H101', "no entry of gpus is named"),
        ("cuda_reports = { l2_mib = 40, ", "# ", "cuda_reports is missing"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_tables(changed(old, new))


@pytest.mark.parametrize(
    ("arch", "known", "nearest"),
    [
        ("sm_90", ["sm_80", "sm_90"], "sm_90"),
        ("sm_103", ["sm_80", "sm_90", "sm_120"], "sm_90"),
        ("sm_121", ["sm_80", "sm_90", "sm_120"], "sm_120"),
        ("sm_121", ["sm_86", "sm_100"], "sm_86"),
        ("sm_90", ["sm_100"], None),
        ("sm_75", ["sm_80"], None),
        ("sm_75", ["sm_75"], "sm_75"),
    ],
)
def test_the_nearest_relative_that_is_known(arch: str, known: list[str], nearest: str | None) -> None:
    assert nearest_architecture(arch, known) == nearest


def test_a_new_architecture_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = read_tables(changed("[architectures.sm_100]\n", SM_95))
    monkeypatch.setattr("pytest_cutile.words.platforms.lookup.hardware", lambda: tables)
    monkeypatch.setattr("pytest_cutile.tile.compiler.trace.devices.hardware", lambda: tables)
    assert representative("sm_95") is None
    assert stand_in("sm_95") is representative("sm_90")
    assert nearest_architecture("sm_95", ["sm_80", "sm_90", "sm_100"]) == "sm_90"
    assert "sm_95" in related_architectures()
    properties = properties_of("sm_95")
    assert (properties.name, properties.major, properties.minor) == ("NVIDIA sm_95", 9, 5)
    assert (properties.multi_processor_count, properties.shared_memory_per_multiprocessor) == (
        132,
        256 * 2**10,
    )


def test_what_is_not_known_at_all_is_promised_no_more_than_any_architecture_has() -> None:
    assert stand_in("sm_75") is hardware().fallback
    properties = properties_of("sm_75")
    assert properties.name == "NVIDIA sm_75"
    assert properties.shared_memory_per_multiprocessor == 100 * 2**10
