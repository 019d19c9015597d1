"""Operations and tiles as text: words that a kernel's author knows, numbers short enough to read."""

from __future__ import annotations

import torch

EDGE = 3
"""Elements that are shown at each end of an axis."""
MAX_ROWS = 8

_WORDS = {
    "load_view_tko": "load",
    "load_ptr_tko": "gather",
    "store_view_tko": "store",
    "store_ptr_tko": "scatter",
    "atomic_cas_tko": "atomic compare-and-swap",
    "atomic_rmw_tko": "atomic update",
    "atomic_red_view_tko": "atomic update",
    **dict.fromkeys(("addf", "addi"), "addition"),
    **dict.fromkeys(("subf", "subi"), "subtraction"),
    **dict.fromkeys(("mulf", "muli", "mulhii"), "multiplication"),
    **dict.fromkeys(("divf", "divi"), "division"),
    **dict.fromkeys(("remf", "remi"), "remainder"),
    **dict.fromkeys(("fpowf", "fpowi"), "power"),
    **dict.fromkeys(("maxf", "maxi"), "maximum"),
    **dict.fromkeys(("minf", "mini"), "minimum"),
    **dict.fromkeys(("negf", "negi"), "negation"),
    **dict.fromkeys(("absf", "absi"), "absolute value"),
    **dict.fromkeys(("cmpf", "cmpi"), "comparison"),
    **dict.fromkeys(("mmaf", "mmai"), "mma"),
    **dict.fromkeys(("ftof", "ftoi", "itof", "exti", "trunci"), "conversion"),
    **dict.fromkeys(("shli", "shri"), "shift"),
    "andi": "and",
    "ori": "or",
    "xori": "xor",
    "mmaf_scaled": "scaled mma",
    "iota": "arange",
    "select": "where",
    "get_tile_block_id": "block index",
}


def plain_name(op: str) -> str:
    """Return what an operation of Tile IR is called in cuTile or in words: "load" for "load_view_tko"."""
    return _WORDS.get(op, op)


def show_number(value: torch.Tensor) -> str:
    number = value.item() if value.dtype in _PLAIN else value.double().item()
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def show_row(row: torch.Tensor) -> str:
    """Return elements along one axis as text, those in its middle left out."""
    numbers = [show_number(element) for element in _ends(row)]
    if len(row) > len(numbers):
        numbers.insert(EDGE, "...")
    return f"[{', '.join(numbers)}]"


def show_tile(tile: torch.Tensor) -> str:
    """Return a tile as text: its elements at the ends of each axis, its extremes, how many are not finite."""
    if tile.dim() == 0:
        return f"  {show_number(tile)}"
    rows = (
        tile.reshape(-1, tile.shape[-1]) if tile.dtype in _PLAIN else tile.float().reshape(-1, tile.shape[-1])
    )
    shown = [f"  {show_row(row)}" for row in _ends(rows, MAX_ROWS // 2)]
    if len(rows) > len(shown):
        shown.insert(len(shown) // 2, "  ...")
    return "\n".join([*shown, f"  {summary(tile)}"]) if tile.numel() > 1 else "\n".join(shown)


def summary(tile: torch.Tensor) -> str:
    """Return extremes, and how many elements are not finite: "from -1 to 3.5, 2 NaN"."""
    if tile.dtype == torch.bool:
        return f"{int(tile.sum())} of {tile.numel()} true"
    if not tile.dtype.is_floating_point:
        return f"from {int(tile.min())} to {int(tile.max())}"
    wide = tile.double().reshape(-1)
    finite = wide[wide.isfinite()]
    parts = [f"from {float(finite.min()):.6g} to {float(finite.max()):.6g}"] if len(finite) else []
    for name, bad in (("NaN", wide.isnan()), ("Inf", wide.isinf())):
        if bad.any():
            parts.append(f"{int(bad.sum())} {name}")
    return ", ".join(parts)


_PLAIN = {
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}


def _ends(tensor: torch.Tensor, edge: int = EDGE) -> torch.Tensor:
    """Return the first and the last elements along the first axis; all, if they are few."""
    if len(tensor) <= 2 * edge + 1:
        return tensor
    return torch.cat([tensor[:edge], tensor[-edge:]])
