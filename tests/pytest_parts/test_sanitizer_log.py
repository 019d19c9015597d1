"""Logs of compute-sanitizer, in the words of its manual (https://docs.nvidia.com/compute-sanitizer)."""

import textwrap

import pytest

from pytest_cutile.pytest_parts.sanitizer_log import read_log

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel()+0x160 in memcheck_demo.cu:6
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00001 is misaligned
=========
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel()+0x160 in memcheck_demo.cu:6
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7f6510c00005 is misaligned
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at sumKernel(int *, int *)+0x90 in block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0xd0 in block_error.cu:46 [16 hazards]
=========
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in block_error.cu:51 [508 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 96 errors
========= ERROR SUMMARY: 95 errors were not printed. Use --print-limit option to adjust the number
"""
# What 2026.4 printed on a machine with no GPU, where it could not follow the program; its status was 0.
BROKEN = """\
========= COMPUTE-SANITIZER
========= Error: process didn't terminate successfully
=========     The application may have hit an error when dereferencing Unified Memory from the host.
========= Target application terminated before first instrumented API call
"""


def test_nothing_found():
    assert read_log(CLEAN).is_clean
    hazards = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert read_log(hazards).is_clean


def test_what_differs_in_thread_and_address_is_told_once():
    log = read_log(MEMCHECK)
    assert log.errors == 2
    assert len(log.findings) == 1
    assert log.describe("memcheck") == textwrap.dedent("""\
        compute-sanitizer (memcheck) found 2 errors:
          Invalid __global__ write of size 4 bytes
            at unaligned_kernel()+0x160 in memcheck_demo.cu:6
            by thread (0,0,0) in block (0,0,0)
            Address 0x7f6510c00001 is misaligned""")


def test_warnings_of_racecheck_are_no_findings():
    log = read_log(RACECHECK)
    assert log.errors == 1
    assert log.findings[0].startswith("Error: Race reported between Write access")
    assert "block_error.cu:51 [508 hazards]" in log.findings[0]
    assert len(log.findings) == 1


def test_reads_of_what_nothing_has_written():
    log = read_log(INITCHECK)
    assert log.errors == 96
    assert "memset_error.cu:41" in log.describe("initcheck")


@pytest.mark.parametrize("text", ["", BROKEN, MEMCHECK.partition("========= ERROR SUMMARY")[0]])
def test_a_log_without_its_end_is_not_clean(text):
    log = read_log(text)
    assert log.errors is None
    assert not log.is_clean
    assert "did not come to its end" in log.describe("memcheck")
