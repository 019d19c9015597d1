"""How each operation of Tile IR is written in bytecode, by its opcode.

Source: the bytecode that cuda-tile 1.7.0 writes (Apache-2.0, NVIDIA/cutile-python), and what tileirdisasm
makes of it; https://docs.nvidia.com/cuda/tile-ir/ describes the operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pytest_cutile.tile.interpreter.attributes import (
    array,
    boolean,
    booleans,
    constant,
    dictionary,
    int32s,
    integer,
    one_of,
    string,
    tagged,
)
from pytest_cutile.tile.interpreter.fields import (
    Announced,
    Attribute,
    Blocks,
    Count,
    Field,
    Flags,
    Listed,
    Operand,
    Optional,
    Rest,
    ResultType,
    ResultTypes,
    Since,
)


@dataclass(frozen=True)
class Format:
    """How one operation is written."""

    name: str
    """Name that tileirdisasm prints, without the dialect."""
    fields: tuple[Field, ...]
    """In the order they are written."""


_ROUNDINGS = one_of(
    "rounding",
    *("nearest_even", "zero", "negative_inf", "positive_inf", "approx", "full"),
    *("nearest_int_to_zero", "nearest_away"),
)
_ROUNDING = Attribute("rounding", _ROUNDINGS)
_SIGNEDNESS = one_of("signedness", "unsigned", "signed")
_SIGNED = Attribute("signed", _SIGNEDNESS)
_OVERFLOW = Attribute("overflow", one_of("overflow", "none", "nsw", "nuw", "nw"), absent="none")
_PREDICATE = Attribute(
    "predicate",
    one_of("predicate", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
)
_ORDERING = Attribute("ordering", one_of("ordering", "weak", "relaxed", "acquire", "release", "acq_rel"))
_SCOPES = one_of("scope", "block", "device", "system")
_SCOPE = Attribute("scope", _SCOPES)
_MODE = Attribute(
    "mode",
    one_of("mode", "and", "or", "xor", "add", "addf", "max", "min", "umax", "umin", "xchg"),
)
_IDENTITIES = Attribute("identities", array)
_AXIS = Attribute("axis", integer)
_FTZ = Flags("ftz")
_INBOUNDS = Attribute("inbounds", booleans, absent=())

_RESULT, _RESULTS, _COUNT = ResultType(), ResultTypes(), Count()
_SOURCE, _LHS, _RHS, _ACC = Operand("source"), Operand("lhs"), Operand("rhs"), Operand("acc")
_POINTERS, _VALUE, _VIEW, _INDEX = Operand("pointers"), Operand("value"), Operand("view"), Listed("index")
_MASK, _TOKEN = Optional("mask"), Optional("token")

_UNARY = (_RESULT, _SOURCE)
_BINARY = (_RESULT, _LHS, _RHS)
_FLOAT = (_RESULT, _FTZ, _ROUNDING, _LHS, _RHS)
_EXTREME = (_RESULT, Flags("propagate_nan", "ftz"), _LHS, _RHS)
_WRAPPING = (_RESULT, _OVERFLOW, _LHS, _RHS)
_SIGNED_BINARY = (_RESULT, _SIGNED, _LHS, _RHS)
_LEAVE = (_RESULTS, _COUNT, Rest("values"))
_VIEW_OF = (_RESULT, Operand("array"))
# The memory operations whose scope and hints are optional.
_ACCESS = (
    _ORDERING,
    Attribute("scope", _SCOPES, optional=True),
    Attribute("hints", dictionary, optional=True),
)

FORMATS = MappingProxyType(
    {
        0: Format("absf", _UNARY),
        1: Format("absi", _UNARY),
        2: Format("addf", _FLOAT),
        3: Format("addi", _WRAPPING),
        4: Format("andi", _BINARY),
        5: Format("assert", (Attribute("message", string), Operand("condition"))),
        6: Format("assume", (_RESULT, Attribute("predicate", tagged), _VALUE)),
        7: Format(
            "atomic_cas_tko",
            (
                *(_RESULT, _RESULT, Announced("mask", "token"), _ORDERING, _SCOPE),
                *(_POINTERS, Operand("compare"), _VALUE, _MASK, _TOKEN),
            ),
        ),
        8: Format(
            "atomic_rmw_tko",
            (
                *(_RESULT, _RESULT, Announced("mask", "token"), _ORDERING, _SCOPE, _MODE),
                *(_POINTERS, _VALUE, _MASK, _TOKEN),
            ),
        ),
        9: Format("bitcast", _UNARY),
        10: Format("break", _LEAVE),
        11: Format("broadcast", _UNARY),
        12: Format("cat", (_RESULT, _AXIS, _LHS, _RHS)),
        13: Format("ceil", _UNARY),
        14: Format(
            "cmpf",
            (_RESULT, _PREDICATE, Attribute("ordered", one_of("order", "unordered", "ordered")), _LHS, _RHS),
        ),
        15: Format("cmpi", (_RESULT, _PREDICATE, _SIGNED, _LHS, _RHS)),
        16: Format("constant", (_RESULT, Attribute("value", constant))),
        17: Format("continue", _LEAVE),
        18: Format("cos", _UNARY),
        19: Format("cosh", _UNARY),
        20: Format("divf", _FLOAT),
        21: Format("divi", (_RESULT, _SIGNED, _ROUNDING, _LHS, _RHS)),
        23: Format(
            "exp", (_RESULT, Since((13, 3), Attribute("rounding", _ROUNDINGS, absent="full")), _SOURCE)
        ),
        24: Format("exp2", (_RESULT, _FTZ, _SOURCE)),
        37: Format("exti", (_RESULT, _SIGNED, _SOURCE)),
        38: Format("extract", (_RESULTS, _COUNT, _SOURCE, Rest("indices"))),
        39: Format("floor", _UNARY),
        40: Format("fma", (_RESULT, _FTZ, _ROUNDING, _LHS, _RHS, _ACC)),
        41: Format(
            "for",
            (
                *(_RESULTS, Since((13, 2), Flags("unsigned")), _COUNT),
                *(Operand("lower"), Operand("upper"), Operand("step"), Rest("initial"), Blocks(1)),
            ),
        ),
        42: Format("ftof", (_RESULT, _ROUNDING, _SOURCE)),
        43: Format("ftoi", (_RESULT, Since((13, 4), Flags("saturating")), _SIGNED, _ROUNDING, _SOURCE)),
        44: Format("get_global", (_RESULT, Attribute("name", string))),
        45: Format("get_index_space_shape", (_RESULTS, _SOURCE)),
        46: Format("get_num_tile_blocks", (_RESULT, _RESULT, _RESULT)),
        47: Format("get_tensor_shape", (_RESULTS, _SOURCE)),
        48: Format("get_tile_block_id", (_RESULT, _RESULT, _RESULT)),
        50: Format("if", (_RESULTS, Operand("condition"), Blocks(2))),
        51: Format("int_to_ptr", _UNARY),
        58: Format("iota", (_RESULT,)),
        59: Format("itof", (_RESULT, _SIGNED, _ROUNDING, _SOURCE)),
        60: Format("join_tokens", (_RESULTS, _COUNT, Rest("tokens"))),
        61: Format(
            "load_ptr_tko",
            (
                *(_RESULT, _RESULT, Announced("scope", "hints", "mask", "padding", "token"), *_ACCESS),
                *(_SOURCE, _MASK, Optional("padding"), _TOKEN),
            ),
        ),
        62: Format(
            "load_view_tko",
            (
                *(_RESULTS, Announced("scope", "hints", "token"), *_ACCESS, Since((13, 4), _INBOUNDS)),
                *(_VIEW, _INDEX, _TOKEN),
            ),
        ),
        63: Format("log", _UNARY),
        64: Format("log2", _UNARY),
        65: Format("loop", (_RESULTS, _COUNT, Rest("initial"), Blocks(1))),
        66: Format("make_partition_view", _VIEW_OF),
        67: Format("make_tensor_view", (_RESULTS, Operand("base"), Listed("shape"), Listed("strides"))),
        68: Format("make_token", (_RESULT,)),
        69: Format("maxf", _EXTREME),
        70: Format("maxi", _SIGNED_BINARY),
        71: Format("minf", _EXTREME),
        72: Format("mini", _SIGNED_BINARY),
        73: Format("mmaf", (_RESULT, Since((13, 3), Flags("fast_acc")), _LHS, _RHS, _ACC)),
        74: Format(
            "mmai",
            (
                *(_RESULT, Attribute("lhs_signed", _SIGNEDNESS), Attribute("rhs_signed", _SIGNEDNESS)),
                *(_LHS, _RHS, _ACC),
            ),
        ),
        76: Format("mulf", _FLOAT),
        77: Format("mulhii", _BINARY),
        78: Format("muli", _WRAPPING),
        79: Format("negf", _UNARY),
        80: Format("negi", (_RESULT, Since((13, 2), _OVERFLOW), _SOURCE)),
        81: Format("offset", (_RESULT, Operand("pointer"), Operand("offset"))),
        82: Format("ori", _BINARY),
        83: Format("permute", (_RESULT, Attribute("permutation", int32s), _SOURCE)),
        84: Format("fpowf", (_RESULT, _SOURCE, Operand("exponent"))),
        85: Format(
            "print_tko",
            (
                *(_RESULTS, Since((13, 2), Announced("token")), Attribute("text", string)),
                *(Listed("values"), _TOKEN),
            ),
        ),
        86: Format("ptr_to_int", _UNARY),
        87: Format("ptr_to_ptr", _UNARY),
        88: Format("reduce", (_RESULTS, _AXIS, _IDENTITIES, _COUNT, Rest("operands"), Blocks(1))),
        89: Format("remf", _BINARY),
        90: Format("remi", _SIGNED_BINARY),
        91: Format("reshape", _UNARY),
        92: Format("return", _LEAVE),
        93: Format("rsqrt", (_RESULT, _FTZ, _SOURCE)),
        94: Format(
            "scan",
            (
                *(_RESULTS, _AXIS, Attribute("reverse", boolean), _IDENTITIES),
                *(_COUNT, Rest("operands"), Blocks(1)),
            ),
        ),
        95: Format("select", (_RESULT, Operand("condition"), Operand("if_true"), Operand("if_false"))),
        96: Format("shli", _WRAPPING),
        97: Format("shri", _SIGNED_BINARY),
        98: Format("sin", _UNARY),
        99: Format("sinh", _UNARY),
        100: Format("sqrt", (_RESULT, _FTZ, _ROUNDING, _SOURCE)),
        101: Format(
            "store_ptr_tko",
            (
                *(_RESULT, Announced("scope", "hints", "mask", "token"), *_ACCESS),
                *(_POINTERS, _VALUE, _MASK, _TOKEN),
            ),
        ),
        102: Format(
            "store_view_tko",
            (
                *(_RESULTS, Announced("scope", "hints", "token"), *_ACCESS, Since((13, 4), _INBOUNDS)),
                *(_VALUE, _VIEW, _INDEX, _TOKEN),
            ),
        ),
        103: Format("subf", _FLOAT),
        104: Format("subi", _WRAPPING),
        105: Format("tan", _UNARY),
        106: Format(
            "tanh", (_RESULT, Since((13, 2), Attribute("rounding", _ROUNDINGS, absent="full")), _SOURCE)
        ),
        107: Format("trunci", (_RESULT, _OVERFLOW, _SOURCE)),
        108: Format("xori", _BINARY),
        109: Format("yield", _LEAVE),
        110: Format("atan2", _BINARY),
        111: Format("pack", _UNARY),
        112: Format("unpack", _UNARY),
        113: Format(
            "alloca",
            (_RESULT, Flags("global"), Attribute("elements", integer), Attribute("alignment", integer)),
        ),
        114: Format("mmaf_scaled", (_RESULT, _LHS, _RHS, _ACC, Operand("lhs_scale"), Operand("rhs_scale"))),
        115: Format("make_gather_scatter_view", _VIEW_OF),
        116: Format("make_strided_view", _VIEW_OF),
        117: Format(
            "atomic_red_view_tko",
            (_RESULTS, Announced("token"), _ORDERING, _SCOPE, _MODE, _VIEW, _INDEX, _VALUE, _TOKEN),
        ),
        118: Format("insert", (_RESULTS, _COUNT, _SOURCE, Operand("destination"), Rest("indices"))),
        119: Format("gdc_launch_dependents_tko", (_RESULT, Announced("token"), _TOKEN)),
        120: Format("gdc_wait_tko", (_RESULT, Announced("token"), _TOKEN)),
        121: Format("fpowi", (_RESULT, _SOURCE, Operand("exponent"))),
        122: Format("memory_fence_alias_tko", (_RESULT, Operand("token"))),
    }
)
"""The operations that are read, by opcode."""

_MULTIMEM = "several GPUs are not interpreted"
_ELSEWHERE = "written in a section of its own, not as an operation"
UNREAD = MappingProxyType(
    {
        22: ("entry", _ELSEWHERE),
        49: ("global", _ELSEWHERE),
        75: ("module", _ELSEWHERE),
        123: ("multimem_load_reduce_view_tko", _MULTIMEM),
        124: ("multimem_reduce_view_tko", _MULTIMEM),
        125: ("multimem_store_view_tko", _MULTIMEM),
        16386: ("preview_call", "part of a preview, which no release reads"),
    }
)
"""The other operations that cuda-tile can write: name, and why they are not read."""
