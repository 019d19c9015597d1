"""`pytest-cutile profile`: what it asks of Nsight Compute, writes and prints."""

from pathlib import Path

import msgspec
import pytest

from pytest_cutile.cli import main
from pytest_cutile.commands import profile
from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts
from pytest_cutile.timing.profiling import ncu
from pytest_cutile.timing.profiling.counters import read_counters
from pytest_cutile.timing.profiling.ncu import SECTIONS, ProfilingError
from pytest_cutile.timing.profiling.profiled_case import ProfiledCase
from tests.timing.profiling.examples import raw_page

LAUNCH = LaunchFacts(
    kernel="mm_kernel",
    grid=(256, 1, 1),
    code_bytes=4096,
    threads=128,
    registers=168,
    stack_bytes=16,
    static_shared_bytes=65536,
    instructions={"tensor_core": {"HGMMA": 16}},
)
CASE = ProfiledCase(
    key="mm[fp16-4096]",
    gpu="NVIDIA H200",
    arch="sm_90",
    flops=137.4e9,
    bytes=100.7e6,
    dtype="float16",
    facts=CaseFacts(fingerprint="f", source="s", launches=(LAUNCH,)),
)
PRODUCT = {"name": "mm_kernel", "us": 190.0, "tensor": 84.0, "dram": 12.0, "read": 60e6, "written": 41e6}
FILL = {"name": "fill", "us": 2.0, "dram": 1.0}


@pytest.fixture
def asked(monkeypatch):
    """Count what a test says, and return what was asked for."""
    calls = []

    def collect(command, **options):
        calls.append((command, options))
        if CASE.key not in command:
            raise ProfilingError("Nsight Compute saw no launch:\n  ERROR: no such case")
        Path(command[-1]).write_bytes(msgspec.json.encode(CASE))
        return read_counters(raw_page(PRODUCT | {"long_scoreboard": 3.0, "selected": 1.0}, FILL))

    monkeypatch.setattr(profile, "collect", collect)
    monkeypatch.setattr(profile, "find_ncu", lambda: Path("ncu"))
    return calls


def test_the_summary_has_counters_beside_roofline_and_compiled_code(asked, tmp_path, capsys):
    assert main(["profile", CASE.key, "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("mm[fp16-4096] on NVIDIA H200 (sm_90)\n")
    text = " ".join(printed.split())
    for line in (
        "mm_kernel, 190 us (99 % of all): bound by tensor cores. Busy: tensor cores 84 %, memory 12 %.",
        "time 192 us in 2 launched kernels",
        "arithmetic 715.6 TFLOPS float16: 72 % of 989.4",
        "memory 524.5 GB/s: 11 % of 4800",
        "least time 138.9 us, by arithmetic",
        "75 % for data from memory or the L2",
        "128 threads of 168 registers, 64.0 KiB of shared memory",
        "3 blocks (12 warps) fit a multiprocessor, limited by registers and shared memory",
        "16 bytes of registers spilled by each thread",
        "16 HGMMA",
    ):
        assert line in text
    assert "fill, 2 us" not in text  # too small for words
    assert "traffic" not in text  # not counted of one of them
    (_, options), summary = asked[0], tmp_path / "mm-fp16-4096.md"
    assert options == {"sections": SECTIONS, "report": tmp_path / "mm-fp16-4096.ncu-rep"}
    assert "bound by tensor cores" in summary.read_text()
    assert printed.splitlines()[-1] == f"wrote {summary}"


def test_sections_are_those_that_are_named(asked, tmp_path):
    main(["profile", CASE.key, "-o", str(tmp_path), "--section", "Occupancy", "--section", "LaunchStats"])
    assert asked[0][1]["sections"] == ["Occupancy", "LaunchStats"]


@pytest.mark.usefixtures("asked")
def test_what_is_not_profiled_says_why_and_writes_nothing(tmp_path, capsys):
    assert main(["profile", "mm[other]", "-o", str(tmp_path / "out")]) == 1
    said = "pytest-cutile profile: Nsight Compute saw no launch:\n  ERROR: no such case\n"
    assert capsys.readouterr().out == said
    assert not (tmp_path / "out").exists()


def test_without_ncu_nothing_is_said_to_be_profiled(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ncu, "find_program", lambda *_: None)
    assert main(["profile", CASE.key, "-o", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "Nsight Compute (ncu) is not installed" in printed.out
    assert printed.err == ""
