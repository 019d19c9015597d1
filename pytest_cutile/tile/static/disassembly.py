"""What NVIDIA's own tools, cuobjdump and nvdisasm, say about a cubin.

Functions raise ToolMissing where a tool is not installed, or cannot read what it is given.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import linecache
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cutile.tile.compiler.fingerprint import machine_code
from pytest_cutile.tile.compiler.toolchain import ToolMissing, run_tool
from pytest_cutile.tile.static.instructions import CLASSES, SPILLS

_CLASS = re.compile("|".join(f"(?P<{name}>{one.mnemonics})" for name, one in CLASSES.items()))
INSTRUCTION_BYTES = 16
"""On every architecture that cuTile compiles for."""


@dataclass(frozen=True, kw_only=True)
class Disassembly:
    """What nvdisasm says of a cubin."""

    instruction_count: int
    instructions: Mapping[str, Mapping[str, int]]
    """By class and mnemonic; classes with none are left out."""
    spills: tuple[tuple[str, int, int], ...]
    """(file, line, instructions): where local memory is loaded and stored, most first."""


def read_usage(cubin: Path, symbol: str) -> dict[str, int]:
    """Return the resources of the kernel `symbol` by their names in `LaunchFacts`.

    `shared_bytes` are those that the compiler laid out, with what the system takes of them.
    """
    output = run_tool("cuobjdump", "--dump-resource-usage", str(cubin))
    line = re.search(rf"Function {re.escape(symbol)}:\s*(.*)", output)
    numbers = dict(re.findall(r"(\w+):(\d+)", line[1])) if line is not None else {}
    try:
        registers, stack, shared, local = (int(numbers[key]) for key in ("REG", "STACK", "SHARED", "LOCAL"))
    except KeyError as error:
        raise ToolMissing(f"cuobjdump --dump-resource-usage says nothing about {error} of {symbol}") from None
    attributes = _attributes(run_tool("cuobjdump", "--dump-elf", str(cubin)), symbol)
    if "EIATTR_REQNTID" not in attributes:
        raise ToolMissing(f"cuobjdump --dump-elf does not say how many threads {symbol} has")
    return {
        "registers": registers,
        "stack_bytes": stack,
        "local_bytes": local,
        "shared_bytes": shared,
        "threads": attributes["EIATTR_REQNTID"],
        "ctas": attributes.get("EIATTR_CTA_PER_CLUSTER", 1),
    }


def _attributes(dump: str, symbol: str) -> dict[str, int]:
    """Return the products of the three-dimensional sizes among the attributes of `symbol`."""
    section = dump.partition(f"\n.nv.info.{symbol}\n")[2].partition("\n.")[0]
    sizes = re.findall(
        r"Attribute:\s*(EIATTR_REQNTID|EIATTR_CTA_PER_CLUSTER)\s.*?Value:\s*(0x\w+) (0x\w+) (0x\w+)",
        section,
        re.DOTALL,
    )
    return {name: int(x, 16) * int(y, 16) * int(z, 16) for name, x, y, z in sizes}


def read_code(cubin: Path) -> Disassembly:
    with _unexpected_output():
        _, functions, *tables = _disassemble(str(cubin), "--print-line-info")
        return _read_functions(functions, tables[0] if tables else {})


def read_codes(cubins: Sequence[Path], arch: str) -> list[Disassembly]:
    """Return what `read_code` returns of each cubin, all compiled for `arch` ("sm_121").

    nvdisasm takes 0.35 s to start and 0.02 s to read a kernel. Here it reads the code of all kernels at once,
    as raw instructions. Only cubins with spills are read again by themselves, for their lines.
    """
    codes = [machine_code(cubin.read_bytes()) for cubin in cubins]
    raw = cubins[0].with_suffix(".code")
    raw.write_bytes(b"".join(codes))
    with _unexpected_output():
        _, [function], *_ = _disassemble(str(raw), "--no-dataflow", "--binary", arch.replace("sm_", "SM"))
        instructions = iter(function["sass-instructions"])
        lengths = [len(code) // INSTRUCTION_BYTES for code in codes]
        mixes = [[*itertools.islice(instructions, length)] for length in lengths]
        if next(instructions, None) is not None:
            raise ValueError("too many instructions")
        read = [_read_functions([{"sass-instructions": mix}], {}) for mix in mixes]
    return [
        read_code(cubin) if {*SPILLS} & {*code.instructions} else code
        for cubin, code in zip(cubins, read, strict=True)
    ]


def _disassemble(*args: str) -> list[Any]:
    printed: list[Any] = json.loads(run_tool("nvdisasm", "--emit-json", *args))
    return printed


@contextlib.contextmanager
def _unexpected_output() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ToolMissing(
            f"nvdisasm --emit-json printed something unexpected ({type(error).__name__}: {error})"
        ) from None


def _is_a_kernels(file: str, line: int) -> bool:
    """Return whether a place of the line table is code of a kernel's author.

    It also names cuTile's own files, and lines of the file that hold no code of the kernel.
    """
    if Path(file).parent.parts[-2:] == ("cuda", "tile"):
        return False
    text = linecache.getline(file, line).strip()
    return not (text.startswith(("def ", "@", "#")) or (text == "" and linecache.getlines(file) != []))


def _read_functions(functions: list[dict[str, Any]], sources: Mapping[str, Any]) -> Disassembly:
    directories = sources.get("directories", ())
    files = [str(Path(directories[file["dir-idx"]], file["file"])) for file in sources.get("files", ())]
    total = 0
    mix: dict[str, Counter[str]] = {}
    spills: Counter[tuple[str, int]] = Counter()
    for function in functions:
        place: tuple[str, int] | None = None
        for instruction in function["sass-instructions"]:
            total += 1
            if "source-line" in instruction:  # it holds until the next instruction that has one
                named = files[instruction["source-file-id"]], instruction["source-line"]
                if _is_a_kernels(*named):  # else it is on behalf of the line before
                    place = named
            mnemonic = instruction["opcode"].partition(".")[0]
            match = _CLASS.fullmatch(mnemonic)
            if match is None or match.lastgroup is None:
                continue
            mix.setdefault(match.lastgroup, Counter())[mnemonic] += 1
            if match.lastgroup in SPILLS and place is not None:
                spills[place] += 1
    if not total:
        raise ValueError("no instructions")
    return Disassembly(
        instruction_count=total,
        instructions={name: dict(sorted(counts.items())) for name, counts in sorted(mix.items())},
        spills=tuple((file, line, count) for (file, line), count in spills.most_common()),
    )
