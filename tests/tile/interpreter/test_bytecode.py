"""What is read from bytecode is what NVIDIA's tileirdisasm prints, for every version; the rest is refused."""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.tile.compiler import cutile
from pytest_cutile.tile.compiler.signature import derive_signature
from pytest_cutile.tile.compiler.toolchain import find_tileiras
from pytest_cutile.tile.compiler.trace.launches import Launch, record_launches
from pytest_cutile.tile.interpreter.bytecode import SUPPORTED_VERSIONS, UnknownBytecode, read_module
from pytest_cutile.tile.interpreter.ir import Block, Location, Module, Op, Scalar, Tile
from pytest_cutile.tile.interpreter.opcodes import FORMATS, UNREAD
from pytest_cutile.tile.interpreter.reader import Reader
from research.operations import all_examples
from tests.tile.interpreter import small_kernels

ARCH = "sm_100"  # it has every dtype
VERSIONS = ("13.1", "13.2", "13.3", "13.4")
N = 8


def _launch(kernel: Any, *args: Any) -> Launch:
    (launch,) = record_launches(lambda: ct.launch(0, (2,), kernel, args), ARCH)
    return launch


@cache
def launches() -> dict[str, Launch]:
    """Return launches that between them use most operations, by name."""
    launches: dict[str, Launch] = {}
    for example in all_examples():
        # With one dtype each: the others differ by a number in the table of types.
        name = f"{example.operation}, {'integers' if 'int' in example.dtype else 'floats'}"
        if example.dtype.endswith(("to float8_e4m3fn", "to bool", "to uint64")):
            name = f"{name}, {example.dtype}"
        if name not in launches:
            results = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in example.outputs]
            launches[name] = _launch(example.kernel, *example.inputs(), *results, *example.constants)
    numbers = torch.zeros(8 * N, dtype=torch.int32)
    matrix = numbers.reshape(8, N)
    small = small_kernels
    for kernel, args in (
        (small.branch_kernel, (numbers, numbers, N)),
        (small.nested_loops_kernel, (numbers, numbers, N)),
        (small.leaving_kernel, (numbers, numbers, N)),
        (small.while_kernel, (numbers,)),
        (small.forever_kernel, (numbers,)),
        (small.chosen_array_kernel, ([numbers, numbers], numbers, N)),
        (small.tuple_kernel, ((numbers, numbers), numbers, 2, N)),
        (small.sliced_kernel, (matrix, matrix, N)),
        (small.printing_kernel, (numbers, 3)),
        (small.programmatic_kernel, (numbers, N)),
    ):
        launches[cutile.kernel_function(kernel).__name__] = _launch(kernel, *args)
    return {**launches, **dict(_launches_of_kernels())}


def _launches_of_kernels() -> Iterator[tuple[str, Launch]]:
    from kernels import fmha, matmul, rms_norm, softmax

    for spec in (module.SPEC for module in (rms_norm, softmax, matmul, fmha)):
        for case in [case for case in spec.cases if not case.speed][::4]:

            def run(spec: Any = spec, case: Any = case) -> None:
                inputs = spec.inputs(_make, **dict(case.params))
                spec.launch(**inputs) if isinstance(inputs, dict) else spec.launch(*inputs)

            for number, launch in enumerate(record_launches(run, ARCH)):
                yield f"{spec.name}, {case.name}, {number}", launch


def _make(shape: Sequence[int], dtype: str = "float32", **_: Any) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device="cuda")


def export(launch: Launch, version: str | None = None) -> bytes:
    from cuda.tile.compilation import export_kernel

    output = io.BytesIO()
    export_kernel(
        launch.kernel,
        [derive_signature(launch.kernel, launch.args)],
        output,
        gpu_code=ARCH,
        output_format="tileir_bytecode",
        bytecode_version=version,
    )
    return output.getvalue()


def every_op(block: Block) -> Iterator[Op]:
    """Yield operations in the order they are printed."""
    for op in block.ops:
        yield op
        for region in op.regions:
            yield from every_op(region)


def ops_of(module: Module) -> list[Op]:
    return [op for entry in module.entries.values() for op in every_op(entry.body)]


def printed_ops(module: Module) -> list[Op]:
    """Return the operations that tileirdisasm prints: the end of a block that yields nothing is left out."""
    silent = {"yield", "continue"}
    return [op for op in ops_of(module) if op.name not in silent or op.operands["values"]]


# -- what tileirdisasm prints -------------------------------------------------------------------------

_OP = re.compile(r"^\s*(?:(?P<results>%[^=]*?) = )?(?P<name>[a-z][a-z0-9_]*)\b(?P<rest>.*)$")
_WITHOUT_RESULT_TYPE = {"fpowi", "mmaf_scaled"}  # they are printed with the types of their operands alone
_LOC = re.compile(r"loc\((#loc\d*)\)\s*$")


class Printed:
    """One operation as it is printed."""

    def __init__(self, name: str, results: str | None, rest: str) -> None:
        self.name = name
        count = re.search(r":(\d+)$", (results or "").strip())
        listed = len((results or "").split(",")) if results else 0
        self.results = int(count[1]) if count else listed
        self.rest = rest
        self.location: str | None = None


def disassemble(bytecode: bytes, folder: Path) -> tuple[list[Printed], dict[str, str]]:
    """Return the operations and the places as tileirdisasm prints them."""
    file = folder / "kernel.tileirbc"
    file.write_bytes(bytecode)
    tool = find_tileiras().with_name("tileirdisasm")
    text = subprocess.run([tool, "-g", file], capture_output=True, text=True, check=True).stdout
    ops: list[Printed] = []
    opened: list[Printed | None] = []
    places: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            name, _, place = line.partition(" = ")
            places[name] = place
            continue
        location = _LOC.search(line)
        stripped = line.strip()
        match = _OP.match(line)
        if stripped.startswith("}"):
            owner = opened.pop()
            if stripped.endswith("{"):  # else
                opened.append(owner)
            elif owner is not None:
                owner.location = location and location[1]
        elif stripped.startswith("("):  # parameters of a reduction's region
            opened.append(ops[-1])
        elif match and match["name"] not in {"cuda_tile", "entry", "module"}:
            op = Printed(match["name"], match["results"], match["rest"])
            op.location = location and location[1]
            ops.append(op)
            if stripped.endswith("{"):
                opened.append(op)
        elif stripped.endswith("{"):
            opened.append(None)
    return ops, places


def _place(name: str | None, places: dict[str, str]) -> str:
    """Return file:line:column of the innermost call, as Location prints it."""
    text = places.get(name or "", "")
    call = re.match(r"loc\(callsite\((#loc\d*) at", text)
    if call:
        return _place(call[1], places)
    inner = re.search(r"(#loc\d*)", text)
    match = re.search(r'"([^"]*)":(\d+):(\d+)', text)
    if match:
        return f"{match[1]}:{match[2]}:{int(match[3]) + 1}"  # columns are counted from 0 there
    return _place(inner[1], places) if inner and inner[1] != name else ""


@pytest.fixture(scope="module")
def exported() -> dict[str, bytes]:
    return {name: export(launch) for name, launch in launches().items()}


def check_module(name: str, bytecode: bytes, folder: Path) -> None:
    """Check that a module is read as tileirdisasm prints it."""
    printed, places = disassemble(bytecode, folder)
    read = printed_ops(read_module(bytecode))
    printed = [op for op in printed if op.name not in {"yield", "continue"} or op.rest.startswith(" %")]
    assert [op.name for op in read] == [op.name for op in printed], name
    for op, line in zip(read, printed, strict=True):
        where = (name, op.name, line.rest)
        assert len(op.results) == line.results, where
        assert _placed(op.location) == _place(line.location, places), where
        kind = op.result_types[0] if len(op.results) == 1 else None
        if isinstance(kind, Tile) and op.name not in _WITHOUT_RESULT_TYPE:
            assert re.sub(r"\s*loc\(.*", "", line.rest).rstrip(" {)").endswith(str(kind)), where


@pytest.mark.slow
def test_modules_are_what_tileirdisasm_prints(exported, tmp_path):
    for name, bytecode in exported.items():
        check_module(name, bytecode, tmp_path)


def _placed(location: Location | None) -> str:
    return "" if location is None else f"{location.file}:{location.line}:{location.column}"


# Operations that no kernel here uses, most because no public function of cuda-tile 1.7 makes them.
NOT_COVERED = {
    *("alloca", "get_global", "get_tensor_shape", "memory_fence_alias_tko", "mulhii"),
    *("ptr_to_int", "ptr_to_ptr"),
}


@pytest.mark.slow
def test_the_kernels_use_most_operations(exported):
    used = {op.name for bytecode in exported.values() for op in ops_of(read_module(bytecode))}
    assert {written.name for written in FORMATS.values()} - used == NOT_COVERED


@pytest.mark.slow
def test_older_versions_read_the_same(tmp_path):
    compared = 0
    for name, launch in launches().items():
        newest = _text(read_module(export(launch)))
        for version in VERSIONS:
            try:
                bytecode = export(launch, version)
            except (ct.TileError, ValueError):
                continue  # what this kernel needs came later
            module = read_module(bytecode)
            assert module.version == tuple(map(int, version.split(".")))
            check_module(f"{name} {version}", bytecode, tmp_path)
            if module.version >= (13, 3):  # before, tokens and a few operations were written otherwise
                assert _text(module) == newest, (name, version)
            compared += 1
        if compared > 120:
            break
    assert compared > 100


def _text(module: Module) -> list[tuple[Any, ...]]:
    return [
        (op.name, op.operands, {**op.attributes, "inbounds": ()}, op.result_types, op.location)
        for op in ops_of(module)
    ]


def test_what_older_bytecode_leaves_out_has_its_meaning():
    launch = launches()["tanh, floats"]
    (tanh,) = [op for op in ops_of(read_module(export(launch, "13.1"))) if op.name == "tanh"]
    assert tanh.attributes["rounding"] == "full"


# -- bytecode that is not read ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bytecode() -> bytes:
    return export(_launch(small_kernels.leaving_kernel, *[torch.zeros(64, dtype=torch.int32)] * 2, N))


def test_bytecode_cut_short(bytecode):
    for length in range(len(bytecode)):
        with pytest.raises(UnknownBytecode):
            read_module(bytecode[:length])


@pytest.mark.slow
def test_corrupt_bytecode_is_refused_or_read(bytecode):
    for at in range(12, len(bytecode)):
        for value in (0x00, 0x01, 0x7F, 0xFF):
            corrupt = bytearray(bytecode)
            corrupt[at] = value
            try:
                read_module(bytes(corrupt))
            except UnknownBytecode:
                continue


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00", "no Tile IR bytecode"),
        (b"", "no Tile IR bytecode"),
        (b"\x7fTileIR\x00\x0d\x05\x00\x00", r"13\.5 is not supported: the releases 13\.1 to 13\.4 are"),
        (b"\x7fTileIR\x00\x0d\x00\x00\x00", r"13\.0 is not supported"),
        (b"\x7fTileIR\x00\x0d\x04\x01\x00", r"13\.4 \(preview 1\) is not supported"),
    ],
)
def test_foreign_files_and_versions(bytecode, header, message):
    with pytest.raises(UnknownBytecode, match=message):
        read_module(header + bytecode[12:])


def test_an_operation_that_is_not_read_says_why(bytecode, monkeypatch):
    formats = {code: written for code, written in FORMATS.items() if written.name != "reduce"}
    monkeypatch.setattr("pytest_cutile.tile.interpreter.bytecode.FORMATS", formats)
    with pytest.raises(UnknownBytecode, match="operation 88 is not supported: it is not known"):
        read_module(bytecode)
    monkeypatch.setattr("pytest_cutile.tile.interpreter.bytecode.UNREAD", {88: ("reduce", "it is a test")})
    with pytest.raises(UnknownBytecode, match="operation reduce is not supported: it is a test"):
        read_module(bytecode)


# -- what cuda-tile writes ----------------------------------------------------------------------------


def _written_opcodes() -> dict[int, str]:
    """Return the opcodes that the installed cuda-tile writes, from the source of its writer."""
    from cuda.tile._bytecode import encodings

    names = {}
    for node in ast.parse(inspect.getsource(encodings)).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("encode_"):
            calls = (statement.value for statement in node.body if isinstance(statement, ast.Expr))
            first = next(statement for statement in calls if isinstance(statement, ast.Call))
            assert isinstance(first.func, ast.Name)
            assert first.func.id == "encode_varint"
            assert isinstance(first.args[0], ast.Constant)
            names[int(str(first.args[0].value))] = node.name.removeprefix("encode_").removesuffix("Op")
    return names


def test_every_operation_that_cutile_writes_is_known_or_said_not_to_be():
    written = _written_opcodes()
    known = {code: each.name for code, each in FORMATS.items()} | {c: name for c, (name, _) in UNREAD.items()}
    missing = {code: name for code, name in written.items() if code not in known}
    assert not missing, "add these to pytest_cutile/tile/interpreter/opcodes.py"
    for code, name in written.items():
        plain = known[code].replace("_", "")
        assert plain == name.lower(), (code, name, known[code])


def test_every_type_that_cutile_writes_is_known():
    from cuda.tile._bytecode import SimpleType

    from pytest_cutile.tile.interpreter.bytecode import _SCALARS

    for kind in SimpleType:
        name = _SCALARS[Reader(kind.value).varint()].upper()
        assert kind.name.upper() in {name, name.replace("F8E5M3", "FNV8E5M3")}


def test_the_newest_version_that_cutile_writes_is_read():
    from cuda.tile._bytecode import BytecodeVersion

    released = [version for version in BytecodeVersion if version.as_string() in VERSIONS]
    newest = max(released)
    assert (newest.major(), newest.minor()) == SUPPORTED_VERSIONS[1]
    assert read_module(export(launches()["tanh, floats"])).version == SUPPORTED_VERSIONS[1]


def test_the_private_parts_were_checked_with_this_cutile():
    from importlib.metadata import version

    assert version("cuda-tile") in cutile.CHECKED_WITH, (
        "run tests/tile with this cuda-tile, then add it to CHECKED_WITH in "
        "pytest_cutile/tile/compiler/cutile.py"
    )


def test_types_print_as_they_are_written():
    assert str(Tile(Scalar("f32"), (2, 3))) == "tile<2x3xf32>"
    assert str(Tile(Scalar("i1"), ())) == "tile<i1>"
