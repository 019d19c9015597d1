"""What is the same about two compilations: a digest of machine code and launch, without names and places.

The cubin as a file also holds paths, line numbers and names. Two cubins with one digest run the same
instructions with the same constants, registers and shared memory, wherever and from whatever text they came.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from pytest_cutile.tile.compiler.trace.launches import Launch

_DIGITS = 16
# The code, its constants, its attributes (threads, registers, cluster size, parameters); debug information
# and ".nv.host", machine code for the compiling machine's own processor, are left out.
_LOADED = (".text.", ".nv.constant", ".nv.info", ".nv.global")
_SIZED = (".nv.shared.", ".nv.local.")


def digest_code(cubin: bytes, symbol: str) -> str:
    """Return a digest of what a GPU runs of `cubin`; `symbol`, the kernel's name in it, does not matter."""
    digest = hashlib.sha256()
    for name, what in sorted(_parts(ELFFile(io.BytesIO(cubin)), symbol)):
        digest.update(f"{name}\0{len(what)}\0".encode() + what)
    return digest.hexdigest()[:_DIGITS]


def _parts(elf: Any, symbol: str) -> Iterable[tuple[str, bytes]]:
    yield "machine", f"{elf['e_machine']} {elf['e_flags']:#x}".encode()
    for section in elf.iter_sections():
        name = section.name.replace(symbol, "<kernel>")
        if name.startswith(_SIZED) or section["sh_type"] == "SHT_NOBITS":
            yield name, str(section["sh_size"]).encode()
        elif name.startswith(_LOADED):
            yield name, section.data()
        elif isinstance(section, RelocationSection) and name.startswith((".rela.text", ".rela.nv.constant")):
            symbols = elf.get_section(section["sh_link"])
            for entry in section.iter_relocations():
                target = symbols.get_symbol(entry["r_info_sym"]).name.replace(symbol, "<kernel>")
                addend = entry["r_addend"] if entry.is_RELA() else 0
                yield name, f"{entry['r_offset']} {entry['r_info_type']} {target} {addend}".encode()


def machine_code(cubin: bytes) -> bytes:
    """Return the instructions of a cubin, without relocations applied."""
    sections = ELFFile(io.BytesIO(cubin)).iter_sections()
    return b"".join(section.data() for section in sections if section.name.startswith(".text."))


def digest_launches(launches: Iterable[tuple[str, Launch]]) -> str:
    """Return the fingerprint of a case: a digest of the code, grid and arguments of each launch.

    Arguments count by layout (dtype, shape, strides) for arrays and by value for numbers; not by address.
    """
    return digest_described((code, describe_launch(launch)) for code, launch in launches)


def describe_launch(launch: Launch) -> str:
    """Return what of a launch, besides its code, belongs to a fingerprint: grid, arguments, dependence."""
    dependent = " dependent" if launch.dependent else ""
    return f"{launch.grid} {_describe(launch.args)}{dependent}"


def digest_described(launches: Iterable[tuple[str, str]], candidates: Iterable[tuple[str, str]] = ()) -> str:
    """Return what `digest_launches` returns, of the code and the description of each launch.

    What a launcher that tunes may launch instead, its `candidates`, counts in whatever order; one that does
    not compile has no code.
    """
    digest = hashlib.sha256()
    for code, described in launches:
        digest.update(f"{code} {described}\n".encode())
    for code, described in sorted(set(candidates)):
        digest.update(f"candidate {code} {described}\n".encode())
    return digest.hexdigest()[:_DIGITS]


def settled_strides(tensor: Any) -> tuple[int, ...]:
    """Return a tensor's strides, 1 wherever a length is 1: there some versions of torch report others."""
    return tuple(1 if n == 1 else step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(_describe(item) for item in value)}]"
    if hasattr(value, "stride") and hasattr(value, "dtype"):
        return f"{value.dtype} {tuple(value.shape)} {settled_strides(value)}"
    # Subclasses (numpy's scalars, enums) print differently from version to version.
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return repr(plain(value))
    return "None" if value is None else type(value).__qualname__
