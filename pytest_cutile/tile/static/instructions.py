"""The classes of instructions that are counted in compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class InstructionClass(NamedTuple):
    """Instructions that count as one."""

    title: str
    mnemonics: str
    """A pattern. Source: CUDA Binary Utilities, sections "Ampere" to "Blackwell Instruction Set",
    https://docs.nvidia.com/cuda/cuda-binary-utilities/#instruction-set-reference."""


CLASSES: Mapping[str, InstructionClass] = MappingProxyType(
    {
        "tensor_core": InstructionClass("tensor-core instructions", r"UTC[HIQO]MMA|[BHIQ]GMMA|[BDHIOQ]MMA"),
        "tma_load": InstructionClass("TMA loads", r"UTMALDG|UTMAPF"),
        "tma_store": InstructionClass("TMA stores", r"UTMASTG|UTMAREDG"),
        "bulk_copy": InstructionClass("bulk copies", r"UBLKCP|UBLKPF|UBLKRED"),
        "async_copy": InstructionClass("asynchronous copies", r"LDGSTS"),
        "global_load": InstructionClass("global loads", r"LDG"),
        "global_store": InstructionClass("global stores", r"STG"),
        "local_load": InstructionClass("local loads", r"LDL"),
        "local_store": InstructionClass("local stores", r"STL"),
        "tensor_memory": InstructionClass("tensor-memory instructions", r"LDTM|STTM"),
        "barrier": InstructionClass("barriers", r"BAR|SYNCS|UCGABAR_ARV|UCGABAR_WAIT|UCGABAR_SET"),
        "special_function": InstructionClass("special functions", r"MUFU"),
    }
)
SPILLS = ("local_load", "local_store")
"""The classes that move values between registers and local memory."""
