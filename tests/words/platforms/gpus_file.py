"""What makes a `gpus.toml` valid: known keys and types, a document for each figure, an order, a stand-in."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from pytest_cutile.words.platforms.architectures import generation, normalize_architecture

_RATES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
_OPERATIONS = ("fp32", "fp64", "integer", "special", "conversion", "conversion64")
_EVERY_ARCHITECTURE = (
    "warp_size",
    "max_threads_per_block",
    "registers_per_sm",
    "max_registers_per_thread",
    "register_allocation_unit",
    "warp_allocation_granularity",
    "shared_allocation_unit_bytes",
    "reserved_shared_bytes_per_block",
)


class DataError(ValueError):
    """`gpus.toml` holds something that it must not, or lacks something; the message names the key."""


def check_tables(text: str) -> None:
    """Refuse an unknown or missing key, a value of another type, a figure without a document and the like."""
    sections = {
        "fallback_gpu": str,
        "every_architecture": dict,
        "operations_per_clock": dict,
        "architectures": dict,
        "gpus": list,
        "documents": dict,
    }
    file = _check(tomllib.loads(text), "gpus.toml", sections)
    documents = _Documents(file["documents"])
    shared = dict.fromkeys(_EVERY_ARCHITECTURE, dict)
    for key, figure in _check(file["every_architecture"], "every_architecture", shared).items():
        where = f"every_architecture.{key}"
        documents.cite(_check(figure, where, {"value": int, "source": str})["source"], where)
    rates = {**dict.fromkeys(_OPERATIONS, int), "source": str}
    table = _check(file["operations_per_clock"], "operations_per_clock", rates)
    documents.cite(table["source"], "operations_per_clock")
    for name, entry in file["architectures"].items():
        _check_architecture(name, entry, documents)
    _check_relatives(file["architectures"])
    represented: set[str] = set()
    for entry in file["gpus"]:
        _check_platform(entry, file["architectures"], documents)
        needs_report = entry["arch"] not in represented or file["fallback_gpu"] in entry["names"]
        represented.add(entry["arch"])
        if "cuda_reports" not in entry and needs_report:
            raise DataError(f"gpus {entry['names'][0]}: cuda_reports is missing")
    names = [name for entry in file["gpus"] for name in entry["names"]]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"gpus: {name!r} is listed twice")
    if file["fallback_gpu"] not in names:
        raise DataError(f"fallback_gpu: no entry of gpus is named {file['fallback_gpu']!r}")
    documents.check_all_are_cited()


def _check_architecture(name: str, entry: Any, documents: _Documents) -> None:
    where = f"architectures.{name}"
    if name != normalize_architecture(name):
        raise DataError(f"{where}: the name is {normalize_architecture(name)} in cuTile's spelling")
    required = {
        "max_threads_per_sm": int,
        "max_blocks_per_sm": int,
        "shared_kib_per_sm": int,
        "has_clusters": bool,
        "source": str,
    }
    optional = {
        "relative": str,
        "note": str,
        "operations_per_clock": dict,
        "operand_clocks": int,
        "memory_clocks": int,
    }
    documents.cite(_check(entry, where, required, optional)["source"], where)
    rates = entry.get("operations_per_clock", {})
    _check(rates, f"{where}: operations_per_clock", {}, dict.fromkeys(_OPERATIONS, int))


def _check_relatives(architectures: Mapping[str, Any]) -> None:
    if list(architectures) != sorted(architectures, key=generation):
        raise DataError("architectures: they are to be listed from the oldest to the newest")
    for name, architecture in architectures.items():
        relative = architecture.get("relative")
        if relative is not None and relative not in architectures:
            raise DataError(f"architectures.{name}: relative {relative} is not in the file")
        if relative is not None and generation(relative) >= generation(name):
            raise DataError(f"architectures.{name}: relative {relative} is not older")


def _check_platform(entry: Any, architectures: Mapping[str, Any], documents: _Documents) -> None:
    where = f"gpus {entry.get('names')}"
    required = {
        "names": list,
        "arch": str,
        "sm_count": int,
        "memory_bandwidth_gb_s": float,
        "dense_tflops": dict,
        "source": str,
    }
    optional = {
        "memory": str,
        "boost_clock_mhz": int,
        "cuda_reports": dict,
        "reaches_max_clock": str,
        "note": str,
    }
    _check(entry, where, required, optional)
    if entry["arch"] not in architectures:
        raise DataError(f"{where}: there is no architectures.{entry['arch']}")
    _check(entry["dense_tflops"], f"{where}: dense_tflops", {}, dict.fromkeys(_RATES, float))
    if "cuda_reports" in entry:
        required = {"l2_mib": int, "memory_gib": int, "source": str}
        _check(entry["cuda_reports"], f"{where}: cuda_reports", required, {"integrated": bool})
        documents.cite(entry["cuda_reports"]["source"], where)
    documents.cite(entry["source"], where)


class _Documents:
    """The documents that figures are cited from."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._cited: dict[str, bool] = {}
        for key, entry in entries.items():
            document = _check(entry, f"documents.{key}", {"title": str, "url": str})
            if not document["title"] or not document["url"].startswith("https://"):
                raise DataError(f"documents.{key}: a title and an address (https://...) are needed")
            self._cited[key] = False

    def cite(self, key: str, where: str) -> None:
        if key not in self._cited:
            raise DataError(f"{where}: there is no documents.{key}")
        self._cited[key] = True

    def check_all_are_cited(self) -> None:
        unused = [key for key, is_cited in self._cited.items() if not is_cited]
        if unused:
            raise DataError(f"documents: no figure comes from {', '.join(unused)}")


def _check(
    entry: Any, where: str, required: Mapping[str, type], optional: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """Return a copy of `entry`, a table with these keys and types. An int does for a float."""
    if not isinstance(entry, dict):
        raise DataError(f"{where}: a table is expected, not {entry!r}")
    types = {**required, **(optional or {})}
    for key in required:
        if key not in entry:
            raise DataError(f"{where}: {key} is missing")
    for key, value in entry.items():
        if key not in types:
            raise DataError(f"{where}: {key} is not known; known are {', '.join(types)}")
        expected = (int, float) if types[key] is float else types[key]
        if not isinstance(value, expected) or (isinstance(value, bool) and types[key] is not bool):
            raise DataError(f"{where}: {key} is {value!r}, expected a value of type {types[key].__name__}")
    return dict(entry)
