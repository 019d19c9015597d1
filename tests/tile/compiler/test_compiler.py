# ruff: noqa: ARG005  # what damages an entry is given it

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_cutile.tile.compiler import (
    CompileError,
    CompileJob,
    Compiler,
    IncompatibleCompiler,
    cutile,
    export,
    record_launches,
    toolchain,
)
from pytest_cutile.tile.compiler import service as compiler_module
from pytest_cutile.tile.compiler.export import share_exports
from pytest_cutile.tile.compiler.signature import derive_signature
from pytest_cutile.tile.compiler.toolchain import CompilerMissing
from tests.tile.compiler import launchers

ROOT = Path(__file__).resolve().parents[3]
LAUNCHERS = Path(launchers.__file__)


def line_of(text: str) -> int:
    lines = LAUNCHERS.read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, start=1) if text in line]
    return number


def job_of(run, arch: str = "sm_90") -> CompileJob:
    [launch] = record_launches(run, arch)
    return export(launch, arch)


def add_job(arch: str = "sm_90", tile: int = 128) -> CompileJob:
    return job_of(
        lambda: launchers.add(torch.empty(1000, device="cuda"), torch.empty(1000, device="cuda"), tile), arch
    )


def matmul_job(arch: str) -> CompileJob:
    def run() -> None:
        launchers.matmul(*(torch.empty((256, 256), dtype=torch.float16, device="cuda") for _ in range(2)))

    return job_of(run, arch)


@pytest.fixture
def compiler(tmp_path):
    with Compiler(cache_dir=tmp_path / "cache", jobs=2, timeout_s=60) as made:
        yield made


# -- the toolchain ------------------------------------------------------------------------------------


def test_importing_is_cheap() -> None:
    heavy = {"torch", "cuda.tile", "numpy"}
    code = f"import sys, pytest_cutile.tile.compiler; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"


@pytest.fixture
def no_tileiras(monkeypatch):
    monkeypatch.setattr(toolchain, "_compiler_folders", list)
    for answers in (toolchain.find_tileiras, toolchain._ask):
        answers.cache_clear()
    yield
    for answers in (toolchain.find_tileiras, toolchain._ask):
        answers.cache_clear()


def test_without_tileiras(request) -> None:
    [launch] = record_launches(lambda: launchers.add_by_name(torch.empty(9, device="cuda")), "sm_90")
    request.getfixturevalue("no_tileiras")
    job = CompileJob(
        bytecode=b"", arch="sm_90", opt_level=3, kernel="k", symbol="k", file=str(LAUNCHERS), line=1
    )
    for use in (
        lambda: export(launch, "sm_90"),
        lambda: Compiler(cache_dir=None, jobs=1, timeout_s=1).submit(job),
    ):
        with pytest.raises(CompilerMissing, match=r"pip install 'pytest-cutile\[tileiras\]'"):
            use()


def test_when_tileiras_disappears(monkeypatch, tmp_path) -> None:
    def not_found() -> None:
        raise FileNotFoundError("'tileiras' compiler not found")

    job = add_job()
    [launch] = record_launches(lambda: launchers.add_by_name(torch.empty(9, device="cuda")), "sm_90")
    monkeypatch.setattr("cuda.tile._compile._find_compiler_bin", not_found)
    monkeypatch.setattr(
        "cuda.tile._compile._get_max_supported_bytecode_version", lambda *_, **__: not_found()
    )
    with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as compiler, pytest.raises(CompilerMissing):
        compiler.submit(job).result()
    share_exports(None)  # another test may have translated it
    with pytest.raises(CompilerMissing, match="not found"):
        export(launch, "sm_90")


def test_without_cuda_tile(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.tile", None)
    with pytest.raises(CompilerMissing, match=r"cuda-tile is not installed.*pip install"):
        record_launches(lambda: None, "sm_90")


def test_with_a_cuda_tile_that_was_rearranged(monkeypatch, tmp_path) -> None:
    job = add_job()
    monkeypatch.delattr("cuda.tile._compile._find_compiler_bin")
    with (
        Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as compiler,
        pytest.raises(IncompatibleCompiler, match=r"_find_compiler_bin.*checked with cuda-tile 1\.7\.0"),
    ):
        compiler.submit(job).result()
    with pytest.raises(IncompatibleCompiler, match="pyfunc"):
        cutile.kernel_function(object())


@pytest.mark.parametrize(
    ("node", "missing"),
    [
        (SimpleNamespace(), r"SimpleNamespace\.KIND"),
        (SimpleNamespace(KIND="homogeneous_tuple"), r"SimpleNamespace\.each"),
        (SimpleNamespace(KIND="leaf", constant=False, scalar=SimpleNamespace()), r"SimpleNamespace\.dtype"),
        (SimpleNamespace(KIND="keyword"), r"known KIND of annotation \('keyword'\)"),
    ],
)
def test_with_annotations_that_were_rearranged(node, missing) -> None:
    kernel = SimpleNamespace(_annotated_function=SimpleNamespace(parameter_annotations=(node,)))
    with pytest.raises(IncompatibleCompiler, match=rf"has no {missing}, which pytest-cutile relies on"):
        cutile.parameter_annotations(kernel)


# -- what compiles ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_121"])
def test_compiles_for_any_architecture(arch, compiler) -> None:
    compiled = compiler.submit(matmul_job(arch)).result()
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.symbol.encode() in compiled.cubin
    assert (compiled.arch, compiled.kernel) == (arch, "matmul_kernel")


def test_hints_are_part_of_what_is_compiled() -> None:
    def hinted(**hints: int) -> CompileJob:
        import cuda.tile as ct

        kernel = launchers.add_kernel.replace_hints(**hints)
        x = torch.empty(64, device="meta")
        [launch] = record_launches(lambda: ct.launch(0, (1,), kernel, (x, x, x, 16)), "sm_100")
        return export(launch, "sm_100")

    jobs = [hinted(), hinted(occupancy=4), hinted(num_ctas=2), hinted(opt_level=1)]
    assert len({(job.bytecode, job.opt_level) for job in jobs}) == len(jobs)
    assert [job.opt_level for job in jobs] == [3, 3, 3, 1]


@pytest.mark.slow
def test_bytecode_is_the_same_in_every_process() -> None:
    code = (
        "import hashlib\n"
        "from tests.tile.compiler.test_compiler import add_job, matmul_job\n"
        "for job in (add_job(), matmul_job('sm_121')):\n"
        "    print(hashlib.sha256(job.bytecode).hexdigest())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("1", "2")
    ]
    here = [hashlib.sha256(job.bytecode).hexdigest() for job in (add_job(), matmul_job("sm_121"))]
    assert runs == [here, here]


# -- what does not ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "message", "place", "column"),
    [
        (launchers.wrong_shape_kernel, "Shapes are not broadcastable", "ct.store(x, (0,), a + b)", 23),
        (
            launchers.wrong_dtype_kernel,
            "cannot implicitly cast",
            "ct.store(x, (0,), ct.load(x, (0,), (16,)).astype(ct.float64))",
            5,
        ),
        (launchers.wrong_in_helper_kernel, "no_such_function", "return ct.no_such_function(x)", 12),
        (launchers.wrong_syntax_kernel, "context manager", "with x:", 5),
    ],
)
def test_an_error_in_a_kernel_names_the_users_line(kernel, message, place, column) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        job_of(lambda: launchers.run_kernel(kernel, 64), "sm_121")
    error = caught.value
    assert (error.arch, error.file, error.line) == ("sm_121", str(LAUNCHERS), line_of(place))
    assert error.column == column
    text = str(error)
    assert text.startswith(f"{kernel._pyfunc.__name__} does not compile for sm_121: ")
    assert f"{LAUNCHERS}:{error.line}:{column}" in text
    assert place in text
    assert "^" in text
    assert "Unknown location" not in text
    printed = "".join(traceback.format_exception(error))
    assert "The above exception" not in printed
    assert "cuda/tile" not in printed


def test_an_error_in_a_helper_also_names_its_caller() -> None:
    with pytest.raises(CompileError) as caught:
        job_of(lambda: launchers.run_kernel(launchers.wrong_in_helper_kernel, 64))
    assert "_helper(ct.load" in str(caught.value)


def test_arguments_that_no_launch_accepts() -> None:
    with pytest.raises(CompileError, match="takes 4 arguments") as caught:
        job_of(lambda: launchers.run_kernel(launchers.add_kernel, 64))
    assert caught.value.line == line_of("def add_kernel")


def test_what_an_architecture_lacks_is_an_error_there_only() -> None:
    def run() -> None:
        x = torch.empty(64, device="cuda", dtype=torch.float8_e4m3fn)
        launchers.run_kernel(launchers.copy_kernel, 64, dtype=x.dtype)

    with pytest.raises(CompileError, match="float8_e4m3fn is not supported on sm_80"):
        job_of(run, "sm_80")
    job_of(run, "sm_90")


def test_what_tileiras_rejects(compiler) -> None:
    job = job_of(lambda: launchers.run_kernel(launchers.huge_tile_kernel, 16384, 16384))
    with pytest.raises(CompileError, match="tile would exceed the maximum") as caught:
        compiler.submit(job).result()
    assert not caught.value.message.startswith("Return code")
    assert (caught.value.file, caught.value.line) == (str(LAUNCHERS), line_of("def huge_tile_kernel"))


def test_a_compilation_that_takes_too_long_is_stopped(tmp_path) -> None:
    with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=0.001) as compiler:
        with pytest.raises(
            CompileError, match=r"stopped after 0\.001 s.*Smaller tiles.*cutile_compile_timeout"
        ):
            compiler.submit(add_job("sm_121")).result()
        compiler._timeout_s = 60.0  # so that a busy machine does not stop this one, too
        assert compiler.submit(add_job()).result().cubin


# -- once is enough -----------------------------------------------------------------------------------


def count_compilations(monkeypatch) -> list[str]:
    compiled = []
    run = cutile.run_tileiras

    def counted(file, job, **kwargs):
        compiled.append(job.arch)
        return run(file, job, **kwargs)

    monkeypatch.setattr(cutile, "run_tileiras", counted)
    return compiled


def test_the_same_job_is_compiled_once_in_a_process(compiler, monkeypatch) -> None:
    compiled = count_compilations(monkeypatch)
    futures = [compiler.submit(add_job()) for _ in range(3)]
    assert len({future.result().cubin for future in futures}) == 1
    compiler.submit(add_job("sm_121")).result()
    compiler.submit(dataclasses.replace(add_job(), opt_level=0)).result()
    assert compiled == ["sm_90", "sm_121", "sm_90"]


def test_a_rejected_job_is_not_tried_again(compiler, monkeypatch) -> None:
    compiled = count_compilations(monkeypatch)
    for _ in range(2):
        job = job_of(lambda: launchers.run_kernel(launchers.huge_tile_kernel, 16384, 16384))
        with pytest.raises(CompileError):
            compiler.submit(job).result()
    assert len(compiled) == 1


def test_another_run_finds_it_on_disk(tmp_path, monkeypatch) -> None:
    compiled = count_compilations(monkeypatch)
    cubins = []
    for _ in range(2):
        with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as compiler:
            cubins.append(compiler.submit(add_job()).result())
    assert cubins[0].cubin == cubins[1].cubin
    assert len(compiled) == 1
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".cubin"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:40],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: b"<<<<<<< HEAD",
    ],
)
def test_a_damaged_entry_is_compiled_again(tmp_path, monkeypatch, damage) -> None:
    compiled = count_compilations(monkeypatch)
    with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as compiler:
        good = compiler.submit(add_job()).result().cubin
    [entry] = tmp_path.rglob("*.cubin")
    entry.write_bytes(damage(entry.read_bytes()))
    for _ in range(2):
        with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as compiler:
            assert compiler.submit(add_job()).result().cubin == good
        assert len(compiled) == 2


def test_another_compiler_version_is_another_entry(tmp_path, monkeypatch) -> None:
    job = add_job()
    compiled = count_compilations(monkeypatch)
    with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as compiler:
        compiler.submit(job).result()
        monkeypatch.setattr(
            compiler_module, "toolchain_versions", lambda: {"cuda-tile": "1.7.0", "tileiras": "99"}
        )
        compiler.submit(job).result()
    assert len(compiled) == 2


@pytest.mark.parametrize("folder", ["file", "file/below", "/proc/nowhere"])
def test_without_a_writable_folder_it_works_without_a_cache(tmp_path, monkeypatch, folder) -> None:
    compiled = count_compilations(monkeypatch)
    (tmp_path / "file").write_text("not a folder")
    for _ in range(2):
        with Compiler(cache_dir=tmp_path / folder, jobs=1, timeout_s=60) as compiler:
            assert compiler.submit(add_job()).result().cubin
    assert len(compiled) == 2


def test_without_a_folder_nothing_is_kept() -> None:
    with Compiler(cache_dir=None, jobs=1, timeout_s=60) as compiler:
        assert compiler.submit(add_job()).result().cubin


def test_several_compile_at_the_same_time(tmp_path, monkeypatch) -> None:
    import threading

    both_run = threading.Barrier(2, timeout=30)
    run = cutile.run_tileiras

    def meet(*args, **kwargs):
        both_run.wait()  # breaks unless two are compiled at a time
        return run(*args, **kwargs)

    monkeypatch.setattr(cutile, "run_tileiras", meet)
    with Compiler(cache_dir=tmp_path, jobs=2, timeout_s=60) as compiler:
        futures = [compiler.submit(add_job(arch)) for arch in ("sm_90", "sm_121", "sm_80", "sm_100")]
        assert {future.result().arch for future in futures} == {"sm_90", "sm_121", "sm_80", "sm_100"}


def test_closing_drops_what_has_not_started(tmp_path, monkeypatch) -> None:
    compiler = Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60)
    run = cutile.run_tileiras

    def run_while_closing(*args, **kwargs):
        assert compiler._cache.closing.wait(60)
        return run(*args, **kwargs)

    monkeypatch.setattr(cutile, "run_tileiras", run_while_closing)
    running = compiler.submit(add_job())
    waiting = [compiler.submit(add_job(tile=tile)) for tile in (16, 32)]
    compiler.close()
    assert running.done()
    assert waiting[-1].cancelled()


def test_children_of_the_pool_have_fixed_addresses(tmp_path) -> None:
    """Where the system lets us: tileiras 13.4 orders some code by addresses."""

    def where() -> str:
        code = "print(hex(id(object)), open('/proc/self/maps').readline().split()[0])"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60) as compiler:
        first, second = (compiler._pool.submit(where).result() for _ in range(2))
        allowed = int(compiler._pool.submit(Path("/proc/thread-self/personality").read_text).result(), 16)
    if not allowed & 0x0040000:
        pytest.skip("this system does not let a process fix the addresses of its children")
    assert first == second


def test_a_launch_finds_what_was_compiled_for_the_gpu_at_hand(tmp_path, monkeypatch):
    """Compiled as a launch compiles: with cuda-tile's own cache, and its own compiler out of reach."""
    context = cutile._private("cuda.tile._cext", "default_tile_context")
    monkeypatch.setattr(context.config, "cache_dir", str(tmp_path / "launches"))
    x, y = (torch.empty(1000, device="meta") for _ in range(2))
    [launch] = record_launches(lambda: launchers.add(x, y, 128), "sm_90")
    job = export(launch, "sm_90")

    def launched() -> bytes:
        signature = derive_signature(launch.kernel, launch.args)
        cubin: bytes = launch.kernel._compile(signature, context, (9, 0))[0]
        return cubin

    with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60, gpu_arch="sm_80") as compiler:
        expected = compiler.submit(job).result().cubin
    monkeypatch.setattr("cuda.tile._compile.compile_cubin", lambda *_, **__: pytest.fail("compiled again"))
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        launched()  # the GPU at hand is another one
    with Compiler(cache_dir=tmp_path, jobs=1, timeout_s=60, gpu_arch="sm_90") as compiler:
        compiler.submit(job).result()
    assert launched() == expected
