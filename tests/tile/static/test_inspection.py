"""What is read of a compiled kernel, with NVIDIA's own tools."""

import dataclasses
import enum
import io
import json
from concurrent.futures import CancelledError, Future
from typing import Any

import cuda.tile as ct
import numpy as np
import pytest
import torch
from elftools.elf.elffile import ELFFile

from pytest_cutile.tile.compiler import (
    Compiler,
    Launch,
    digest_code,
    digest_launches,
    export,
    record_launches,
    toolchain,
)
from pytest_cutile.tile.compiler.toolchain import ToolMissing
from pytest_cutile.tile.static import inspection
from pytest_cutile.tile.static.disassembly import read_code, read_codes, read_usage
from pytest_cutile.tile.static.inspection import Inspector
from pytest_cutile.tile.static.instructions import CLASSES
from tests.tile.compiler import launchers

pytestmark = pytest.mark.slow


def compile_matmul(arch: str, folder):
    def run() -> None:
        launchers.matmul(*(torch.empty((256, 256), dtype=torch.float16, device="cuda") for _ in range(2)))

    return compile_launch(run, arch, folder)


def compile_add(arch: str, folder):
    def run() -> None:
        launchers.add(torch.empty(1000, device="cuda"), torch.empty(1000, device="cuda"))

    return compile_launch(run, arch, folder)


def compile_spilling(arch: str, folder):
    def run() -> None:
        a, b, c = (torch.empty((256, 256), dtype=torch.float16, device="cuda") for _ in range(3))
        ct.launch(0, (1, 1, 1), launchers.matmul_kernel, (a, b, c, 256, 128, 32))

    return compile_launch(run, arch, folder)


def compile_launch(run, arch: str, folder):
    [launch] = record_launches(run, arch)
    with Compiler(cache_dir=folder, jobs=1, timeout_s=60) as compiler:
        return compiler.submit(export(launch, arch)).result()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cubins")


@pytest.mark.parametrize(
    ("arch", "mma", "copy", "product"),
    [
        ("sm_80", "HMMA", "async_copy", "Tensor-core SM80"),
        ("sm_90", "HGMMA", "tma_load", "Tensor-core SM90"),
        ("sm_100", "UTCHMMA", "tma_load", "Tensor-core SM100"),
        ("sm_121", "HMMA", "tma_load", "Tensor-core SM80"),
    ],
)
def test_a_product_on_each_generation(arch, mma, copy, product, folder):
    facts: Any
    facts, missing = inspection.inspect(compile_matmul(arch, folder))
    assert missing == ()
    assert set(facts.instructions["tensor_core"]) == {mma}
    assert facts.count(copy) > 0
    assert [site.instruction for site in facts.sites if site.operation == "mma"] == [product]
    assert facts.threads % 32 == 0
    assert 16 < facts.registers <= 255
    assert facts.stack_bytes == facts.local_bytes == facts.count("local_load") == 0
    assert facts.static_shared_bytes > 1024
    assert sum(facts.count(instruction_class) for instruction_class in CLASSES) < facts.instruction_count
    assert facts.code_bytes == 16 * facts.instruction_count


def test_the_systems_shared_memory_is_not_the_kernels(folder, tmp_path):
    """Cubins for sm_90 and newer count the reserved KiB; what a launch can use does not."""
    compiled = compile_matmul("sm_90", folder)
    cubin = tmp_path / "k.cubin"
    cubin.write_bytes(compiled.cubin)
    facts: Any = inspection.inspect(compiled)[0]
    assert read_usage(cubin, compiled.symbol)["shared_bytes"] == facts.static_shared_bytes + 1024


def test_the_fingerprint_is_about_code_alone(folder):
    compiled = compile_matmul("sm_90", folder)
    digest = digest_code(compiled.cubin, compiled.symbol)
    renamed = compiled.cubin.replace(compiled.symbol.encode(), b"X" * len(compiled.symbol))
    assert renamed != compiled.cubin
    assert digest_code(renamed, "X" * len(compiled.symbol)) == digest
    assert digest_code(compile_matmul("sm_121", folder).cubin, compiled.symbol) != digest


def test_every_byte_of_code_counts(folder):
    compiled = compile_matmul("sm_90", folder)
    digest = digest_code(compiled.cubin, compiled.symbol)
    for name in (
        f".text.{compiled.symbol}",
        f".nv.constant0.{compiled.symbol}",
        f".nv.info.{compiled.symbol}",
    ):
        section: Any = ELFFile(io.BytesIO(compiled.cubin)).get_section_by_name(name)
        changed = bytearray(compiled.cubin)
        changed[section["sh_offset"] + section["sh_size"] // 2] ^= 1
        assert digest_code(bytes(changed), compiled.symbol) != digest, name


class Level(enum.IntEnum):
    HIGH = 2


def launch_of(*args, grid=(4,), dependent=False):
    return Launch(kernel=None, grid=grid, args=args, dependent=dependent)


def test_what_a_launch_is_given_is_part_of_the_fingerprint():
    tensor = torch.empty((4, 1, 8), device="meta")
    base = digest_launches([("code", launch_of(tensor, 2, 0.5, True))])
    others = [
        ("other", launch_of(tensor, 2, 0.5, True)),
        ("code", launch_of(tensor, 2, 0.5, True, grid=(5,))),
        ("code", launch_of(tensor, 2, 0.5, True, dependent=True)),
        ("code", launch_of(tensor.half(), 2, 0.5, True)),
        ("code", launch_of(tensor.transpose(0, 2), 2, 0.5, True)),
        ("code", launch_of(tensor, 3, 0.5, True)),
        ("code", launch_of(tensor, 2, 0.25, True)),
        ("code", launch_of(tensor, 2, 0.5, False)),
        ("code", launch_of((tensor, 2), 0.5, True)),
    ]
    digests = {digest_launches([other]) for other in others}
    assert len(digests) == len(others)
    assert base not in digests


def test_how_a_library_prints_its_numbers_is_not():
    base = digest_launches([("code", launch_of(torch.empty((4, 1), device="meta"), 2, 0.5))])
    odd_stride = torch.empty(4, device="meta").as_strided((4, 1), (1, 77))
    same = digest_launches([("code", launch_of(odd_stride, Level.HIGH, np.float64(0.5)))])
    assert same == base


# -- once is enough -----------------------------------------------------------------------------------


def count_inspections(monkeypatch) -> list[str]:
    inspected: list[str] = []
    inspect_all = inspection.inspect_all

    def counted(compiled):
        inspected.extend(kernel.arch for kernel in compiled)
        return inspect_all(compiled)

    monkeypatch.setattr(inspection, "inspect_all", counted)
    return inspected


def submitted(compiled):
    future: Future[Any] = Future()
    future.set_result(compiled)
    return future


def test_a_kernel_is_read_once_in_a_run_and_once_on_disk(folder, tmp_path, monkeypatch):
    compiled = compile_matmul("sm_90", folder)
    inspected = count_inspections(monkeypatch)
    inspections = []
    for _ in range(2):
        inspector = Inspector(cache_dir=tmp_path, jobs=2)
        compiling = submitted(compiled)
        futures = [*inspector.submit([compiling, compiling]), *inspector.submit([compiling])]
        inspections += [future.result() for future in futures]
        inspector.close()
    assert inspected == ["sm_90"]
    assert len({repr(facts) for facts in inspections}) == 1


def test_what_could_not_be_had_is_tried_again(folder, tmp_path, monkeypatch):
    compiled = compile_matmul("sm_90", folder)
    inspected = count_inspections(monkeypatch)
    for _ in range(2):
        inspector = Inspector(cache_dir=tmp_path, jobs=1)
        old = dataclasses.replace(compiled, remarks=None)
        [future] = inspector.submit([submitted(old)])
        facts, [missing] = future.result()
        inspector.close()
        assert facts.sites is None
        assert "13.4 or newer" in missing
    assert inspected == ["sm_90", "sm_90"]


def test_an_error_of_the_compilation_arrives_and_other_kernels_are_read(folder, tmp_path):
    failed: Future[Any] = Future()
    failed.set_exception(ZeroDivisionError("in the compiler"))
    cancelled: Future[Any] = Future()
    compiled = compile_matmul("sm_90", folder)
    inspector = Inspector(cache_dir=tmp_path, jobs=1)
    error, read = inspector.submit([failed, submitted(compiled)])
    with pytest.raises(ZeroDivisionError, match="in the compiler"):
        error.result()
    assert read.result() == inspection.inspect(compiled)
    cancelled.cancel()
    [never] = inspector.submit([cancelled])
    with pytest.raises(CancelledError):
        never.result()
    inspector.close()


@pytest.mark.parametrize(
    ("arch", "compile_other"),
    [
        ("sm_80", compile_add),
        ("sm_90", compile_spilling),
        ("sm_100", compile_add),
        ("sm_121", compile_add),
    ],
)
def test_kernels_that_are_read_together_are_read_as_each_by_itself(arch, compile_other, folder, tmp_path):
    cubins = [tmp_path / "first.cubin", tmp_path / "second.cubin"]
    for cubin, make in zip(cubins, (compile_matmul, compile_other), strict=True):
        cubin.write_bytes(make(arch, folder).cubin)
    first, second = read_codes(cubins, arch)
    assert [first, second] == [read_code(cubin) for cubin in cubins]
    assert first != second
    assert first.spills == ()
    assert bool(second.spills) == (compile_other is compile_spilling)


# -- tools that say something else --------------------------------------------------------------------


@pytest.fixture
def answer(monkeypatch):
    """Let the tools print what a test says."""

    def set_answer(text: str) -> None:
        monkeypatch.setattr("pytest_cutile.tile.static.disassembly.run_tool", lambda *_: text)

    return set_answer


@pytest.mark.parametrize("said", ["", "not JSON", "[]", '[{}, [{"function-name": "k"}]]', "[1, 2]"])
def test_an_nvdisasm_that_prints_something_else(answer, tmp_path, said):
    answer(said)
    with pytest.raises(ToolMissing, match="nvdisasm --emit-json printed something unexpected"):
        read_code(tmp_path / "k.cubin")


@pytest.mark.parametrize("said", ["", "Function other:\n REG:3", "Function k:\n  REG:3 STACK:0"])
def test_a_cuobjdump_that_prints_something_else(answer, tmp_path, said):
    answer(said)
    with pytest.raises(ToolMissing, match="cuobjdump --dump-resource-usage says nothing about"):
        read_usage(tmp_path / "k.cubin", "k")


def test_spills_are_counted_by_line(answer, tmp_path):
    instructions = [
        {"opcode": "LDC", "operands": "", "source-file-id": 0, "source-line": 3},
        {"opcode": "STL.64", "operands": ""},
        {"opcode": "FADD", "operands": "", "source-file-id": 1, "source-line": 678},
        {"opcode": "LDL", "operands": ""},  # on behalf of line 3: cuTile's own files are nobody's kernel
        {"opcode": "LDL", "operands": "", "source-file-id": 0, "source-line": 9},
    ]
    functions = [{"function-name": "k", "sass-instructions": instructions}]
    files = [{"dir-idx": 0, "file": "k.py"}, {"dir-idx": 1, "file": "_stub.py"}]
    sources = {"directories": ["/home/me", "/venv/cuda/tile"], "files": files}
    answer(json.dumps([{}, functions, sources]))
    code = read_code(tmp_path / "k.cubin")
    assert code.spills == (("/home/me/k.py", 3, 2), ("/home/me/k.py", 9, 1))
    assert code.instructions == {"local_load": {"LDL": 2}, "local_store": {"STL": 1}}
    assert code.instruction_count == 5


def test_a_tool_that_fails_says_what_to_install(monkeypatch, tmp_path):
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho 'nvdisasm fatal: sm_121 is not supported' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(toolchain, "find_tool", lambda _: tool)
    with pytest.raises(ToolMissing, match=r"sm_121 is not supported.*pip install -U nvidia-cuda-nvdisasm"):
        toolchain.run_tool("nvdisasm", "x")


def test_a_missing_tool_names_its_package(monkeypatch):
    monkeypatch.setattr(toolchain, "_tool_folders", list)
    toolchain.find_tool.cache_clear()
    with pytest.raises(ToolMissing, match=r"'pytest-cutile\[static\]' \(the package nvidia-cuda-cuobjdump\)"):
        toolchain.find_tool("cuobjdump")
    toolchain.find_tool.cache_clear()
