"""A compiler that crashes is told as such, and the kernel is not blamed."""

import signal
from pathlib import Path

import pytest
from cuda.tile._compile import _get_max_supported_bytecode_version, compile_cubin
from cuda.tile._compiler_options import CompilerOptions

from pytest_cutile.tile.compiler import CompileError, CompileJob, Compiler, CompilerFault, cutile, toolchain
from pytest_cutile.tile.compiler.fault import fault_of
from pytest_cutile.tile.compiler.launch_fault import fault_of_launch
from pytest_cutile.tile.compiler.process import FinishedProcess, ProcessMemory
from pytest_cutile.words.verdicts import Reason
from tests.tile.compiler import fake_tileiras

JOB = CompileJob(
    bytecode=b"", arch="sm_121", opt_level=2, kernel="add_kernel", symbol="s", file=__file__, line=1
)


def compile_with(monkeypatch, folder: Path, script: str, timeout_s: float = 10.0) -> Exception:
    fake_tileiras.install(monkeypatch, folder, script)
    with Compiler(cache_dir=None, jobs=1, timeout_s=timeout_s) as compiler:
        error = compiler.submit(JOB).exception()
    assert isinstance(error, CompileError)
    return error


@pytest.mark.parametrize(
    ("script", "headline"),
    [
        (fake_tileiras.SEGV, "crashed on add_kernel for sm_121 (-O2): segmentation fault (SIGSEGV)"),
        (fake_tileiras.SEGV_WITH_REPORT, "crashed on add_kernel for sm_121 (-O2): segmentation fault"),
        (fake_tileiras.SHELLS_STATUS, "crashed on add_kernel for sm_121 (-O2): segmentation fault"),
        (fake_tileiras.KILLED, "crashed on add_kernel for sm_121 (-O2): killed (SIGKILL)"),
        (fake_tileiras.NO_CUBIN, "crashed on add_kernel for sm_121 (-O2): exit status 0, and no cubin"),
        (fake_tileiras.NO_ELF, "crashed on add_kernel for sm_121 (-O2): exit status 0, and 5 bytes that"),
        (fake_tileiras.BYTES, "crashed on add_kernel for sm_121 (-O2): exit status 5, and what it printed"),
        (fake_tileiras.REPORT, "crashed on add_kernel for sm_121 (-O2): exit status 70, with a report"),
        (fake_tileiras.SILENT, "failed without a reason on add_kernel for sm_121 (-O2): exit status 5"),
        (
            fake_tileiras.ONLY_FAILED,
            "failed without a reason on add_kernel for sm_121 (-O2): exit status 5",
        ),
    ],
)
def test_a_fault_of_the_compiler_is_none_of_the_kernel(monkeypatch, tmp_path, script, headline) -> None:
    error = compile_with(monkeypatch, tmp_path, script)
    assert isinstance(error, CompilerFault)
    assert error.reason is Reason.COMPILER_FAULT
    text = str(error)
    assert text.startswith(f"tileiras {headline}")
    assert "does not compile" not in text
    assert "tried: --gpu-name sm_121 -O2 --lineinfo --remark-format=yaml --remarks=all (cuda-tile " in text
    assert f"  {__file__}:1" in text.splitlines()


@pytest.mark.parametrize("script", [fake_tileiras.REJECTS, fake_tileiras.REJECTS_IN_LATIN_1])
def test_a_compiler_that_gives_a_reason_is_at_no_fault(monkeypatch, tmp_path, script) -> None:
    error = compile_with(monkeypatch, tmp_path, script)
    assert not isinstance(error, CompilerFault)
    assert str(error).startswith("add_kernel does not compile for sm_121: no such tile")
    assert "failed to compile Tile IR program" not in str(error)


def test_what_a_crashing_compiler_printed_is_shown_up_to_eight_lines(monkeypatch, tmp_path) -> None:
    error = compile_with(monkeypatch, tmp_path, f"seq 1 11; {fake_tileiras.SEGV}")
    shown = str(error).partition("it printed:\n")[2].split("\n")
    assert [line.strip() for line in shown] == [*"12345678", "... 3 more lines"]


def test_a_compiler_that_hangs_is_stopped_with_what_it_started(monkeypatch, tmp_path) -> None:
    error = compile_with(monkeypatch, tmp_path, "sleep 60", timeout_s=0.05)
    assert not isinstance(error, CompilerFault)
    assert "tileiras was stopped after 0.05 s" in str(error)


@pytest.mark.parametrize(
    ("memory", "said", "unsaid"),
    [
        (
            ProcessMemory(peak=3 << 30, least_free=100 << 20, total=4 << 30),
            "most likely it ran out of memory (tileiras had taken 3.0 GiB; there are 4.0 GiB; at the least ",
            "not short",
        ),
        (
            ProcessMemory(peak=3 << 20, least_free=3 << 30, total=4 << 30),
            "memory was not short (tileiras had taken 3 MiB; there are 4.0 GiB; at the least 3.0 GiB were",
            "most likely",
        ),
        (ProcessMemory(), "most likely it ran out of memory; `taskset", "("),
    ],
)
def test_a_killed_compiler_is_told_with_its_memory(memory, said, unsaid) -> None:
    fault = fault_of(
        FinishedProcess(status=-signal.SIGKILL, output=b"", was_stopped=False, memory=memory), b""
    )
    assert fault is not None
    assert said in fault.memory
    assert unsaid not in fault.memory


def test_a_cubin_is_no_fault() -> None:
    assert fault_of(FinishedProcess(status=0, output=b"a warning", was_stopped=False), b"\x7fELF...") is None


def test_a_further_fact_is_not_seen_by_others_who_wait() -> None:
    fault = CompilerFault("tileiras crashed", facts=("one",))
    assert str(fault.with_fact("two")) == "tileiras crashed\n  one\n  two"
    assert str(fault) == "tileiras crashed\n  one"


# -- bytecode -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [fake_tileiras.SEGV, fake_tileiras.BYTES])
def test_a_compiler_that_crashes_whatever_it_gets_still_gets_bytecode_of_its_release(
    monkeypatch, tmp_path, script, recwarn
) -> None:
    fake_tileiras.install(monkeypatch, tmp_path, script)
    _get_max_supported_bytecode_version.cache_clear()
    try:
        release = toolchain.toolchain_versions()["tileiras"]
        assert cutile.bytecode_version.__wrapped__() == ".".join(release.split(".")[:2])
    finally:
        _get_max_supported_bytecode_version.cache_clear()
    assert not recwarn.list


def test_cuda_tile_asks_a_sound_compiler_itself() -> None:
    assert cutile.bytecode_version.__wrapped__() is None


# -- launches on a GPU --------------------------------------------------------------------------------


def raised_by_cuda_tile(monkeypatch, folder: Path, script: str) -> Exception:
    """Return what cuda-tile's compiler raises in a launch."""
    fake_tileiras.install(monkeypatch, folder, script)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any type
        compile_cubin(str(folder / "k.bytecode"), CompilerOptions(), "sm_90", 10.0)
    return caught.value


@pytest.mark.parametrize(
    ("script", "headline"),
    [
        (fake_tileiras.SEGV, "tileiras crashed in a launch: segmentation fault (SIGSEGV)"),
        (
            fake_tileiras.SILENT,
            "tileiras failed without a reason in a launch: exit status 5, nothing printed",
        ),
        (fake_tileiras.ONLY_FAILED, "tileiras failed without a reason in a launch: exit status 5, only "),
        (fake_tileiras.BYTES, "tileiras crashed in a launch: what it printed is no text (not UTF-8)"),
    ],
)
def test_a_launch_on_a_gpu_that_finds_the_compiler_at_fault(monkeypatch, tmp_path, script, headline) -> None:
    fault = fault_of_launch(raised_by_cuda_tile(monkeypatch, tmp_path, script))
    assert isinstance(fault, CompilerFault)
    assert str(fault).startswith(headline)


def test_a_launch_whose_kernel_is_rejected_is_no_fault_of_the_compiler(monkeypatch, tmp_path) -> None:
    assert fault_of_launch(raised_by_cuda_tile(monkeypatch, tmp_path, fake_tileiras.REJECTS)) is None


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        FileNotFoundError(2, "none", "x.cubin"),
        ValueError("x"),
    ],
)
def test_what_users_raise_is_no_fault_of_the_compiler(error) -> None:
    assert fault_of_launch(error) is None
