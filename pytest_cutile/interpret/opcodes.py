"""How each operation of Tile IR is written in bytecode, by its opcode.

A format lists the fields in the order they are written:

- `r`: one result type; `R`: a number of result types, then the types. `-`: no result.
- `?a,b`: a word of flags; `a?` marks a part that is there only if its bit is set, `a` a flag of its own.
- `name:kind`: an attribute. `@13.4 name:kind`: since that version of the bytecode.
- `%a`: an operand; `%a?`: one that a flag announces; `%*a`: a list with its length before it; `%+a`: the rest
  of a list whose full length was written by `#`.
- `{n}`: n blocks.

Source: the bytecode that cuda-tile 1.7.0 writes (Apache-2.0, NVIDIA/cutile-python), and what tileirdisasm
makes of it; https://docs.nvidia.com/cuda/tile-ir/ describes the operations.
"""

from __future__ import annotations

from types import MappingProxyType

_ARITHMETIC = "r ?ftz rounding:rounding %lhs %rhs"
_UNARY = "r %source"
_BINARY = "r %lhs %rhs"
_OVERFLOWING = "r overflow:overflow %lhs %rhs"
_EXTREME = "r ?propagate_nan,ftz %lhs %rhs"
_SIGNED = "r signed:signedness %lhs %rhs"
_RETURNING = "R # %+values"

_FORMATS = {
    "absf": (0, _UNARY),
    "absi": (1, _UNARY),
    "addf": (2, _ARITHMETIC),
    "addi": (3, _OVERFLOWING),
    "alloca": (113, "r ?global elements:int alignment:int"),
    "andi": (4, _BINARY),
    "assert": (5, "- message:string %condition"),
    "assume": (6, "r predicate:tagged %value"),
    "atan2": (110, _BINARY),
    "atomic_cas_tko": (
        7,
        "r r ?mask?,token? ordering:ordering scope:scope %pointers %compare %value %mask? %token?",
    ),
    "atomic_rmw_tko": (
        8,
        "r r ?mask?,token? ordering:ordering scope:scope mode:rmw %pointers %value %mask? %token?",
    ),
    "atomic_red_view_tko": (
        117,
        "R ?token? ordering:ordering scope:scope mode:rmw @13.5 inbounds:bools %view %*index %value %token?",
    ),
    "bitcast": (9, _UNARY),
    "break": (10, _RETURNING),
    "broadcast": (11, _UNARY),
    "cat": (12, "r axis:int %lhs %rhs"),
    "ceil": (13, _UNARY),
    "cmpf": (14, "r predicate:comparison ordered:ordered %lhs %rhs"),
    "cmpi": (15, "r predicate:comparison signed:signedness %lhs %rhs"),
    "constant": (16, "r value:constant"),
    "continue": (17, _RETURNING),
    "cosh": (19, _UNARY),
    "cos": (18, _UNARY),
    "divf": (20, _ARITHMETIC),
    "divi": (21, "r signed:signedness rounding:rounding %lhs %rhs"),
    "exp2": (24, "r ?ftz %source"),
    "exp": (23, "r @13.3 rounding:rounding %source"),
    "exti": (37, "r signed:signedness %source"),
    "extract": (38, "R # %source %+indices"),
    "fpowf": (84, "r %source %exponent"),
    "fpowi": (121, "r %source %exponent"),
    "ftof": (42, "r rounding:rounding %source"),
    "ftoi": (43, "r @13.4 ?saturating signed:signedness rounding:rounding %source"),
    "floor": (39, _UNARY),
    "fma": (40, "r ?ftz rounding:rounding %lhs %rhs %acc"),
    "for": (41, "R @13.2 ?unsigned # %lower %upper %step %+initial {1}"),
    "gdc_launch_dependents_tko": (119, "r ~token"),
    "gdc_wait_tko": (120, "r ~token"),
    "get_global": (44, "r name:string"),
    "get_index_space_shape": (45, "R %source"),
    "get_num_tile_blocks": (46, "r r r"),
    "get_tensor_shape": (47, "R %source"),
    "get_tile_block_id": (48, "r r r"),
    "itof": (59, "r signed:signedness rounding:rounding %source"),
    "if": (50, "R %condition {2}"),
    "insert": (118, "R # %source %destination %+indices"),
    "int_to_ptr": (51, _UNARY),
    "iota": (58, "r"),
    "join_tokens": (60, "R # %+tokens"),
    "load_ptr_tko": (
        61,
        "r r ?scope?,hints?,mask?,padding?,token? ordering:ordering scope?:scope hints?:hints"
        " %source %mask? %padding? %token?",
    ),
    "load_view_tko": (
        62,
        "R ?scope?,hints?,token? ordering:ordering scope?:scope hints?:hints @13.4 inbounds:bools"
        " %view %*index %token?",
    ),
    "log2": (64, _UNARY),
    "log": (63, _UNARY),
    "loop": (65, "R # %+initial {1}"),
    "make_gather_scatter_view": (115, "r %array"),
    "make_partition_view": (66, "r %array"),
    "make_strided_view": (116, "r %array"),
    "make_tensor_view": (67, "R %base %*shape %*strides"),
    "make_token": (68, "r"),
    "maxf": (69, _EXTREME),
    "maxi": (70, _SIGNED),
    "memory_fence_alias_tko": (122, "r %token"),
    "minf": (71, _EXTREME),
    "mini": (72, _SIGNED),
    "mmaf": (73, "r @13.3 ?fast_acc %lhs %rhs %acc"),
    "mmaf_scaled": (114, "r %lhs %rhs %acc %lhs_scale %rhs_scale"),
    "mmai": (74, "r lhs_signed:signedness rhs_signed:signedness %lhs %rhs %acc"),
    "mulf": (76, _ARITHMETIC),
    "muli": (78, _OVERFLOWING),
    "mulhii": (77, _BINARY),
    "negf": (79, _UNARY),
    "negi": (80, "r @13.2 overflow:overflow %source"),
    "offset": (81, "r %pointer %offset"),
    "ori": (82, _BINARY),
    "pack": (111, _UNARY),
    "permute": (83, "r permutation:int32s %source"),
    "print_tko": (85, "R @13.2 ?token? text:string %*values %token?"),
    "ptr_to_int": (86, _UNARY),
    "ptr_to_ptr": (87, _UNARY),
    "reduce": (88, "R axis:int identities:array # %+operands {1}"),
    "remf": (89, _BINARY),
    "remi": (90, _SIGNED),
    "reshape": (91, _UNARY),
    "return": (92, _RETURNING),
    "rsqrt": (93, "r ?ftz %source"),
    "scan": (94, "R axis:int reverse:bool identities:array # %+operands {1}"),
    "select": (95, "r %condition %if_true %if_false"),
    "shli": (96, _OVERFLOWING),
    "shri": (97, _SIGNED),
    "sinh": (99, _UNARY),
    "sin": (98, _UNARY),
    "sqrt": (100, "r ?ftz rounding:rounding %source"),
    "store_ptr_tko": (
        101,
        "r ?scope?,hints?,mask?,token? ordering:ordering scope?:scope hints?:hints"
        " %pointers %value %mask? %token?",
    ),
    "store_view_tko": (
        102,
        "R ?scope?,hints?,token? ordering:ordering scope?:scope hints?:hints @13.4 inbounds:bools"
        " %value %view %*index %token?",
    ),
    "subf": (103, _ARITHMETIC),
    "subi": (104, _OVERFLOWING),
    "tanh": (106, "r @13.2 rounding:rounding %source"),
    "tan": (105, _UNARY),
    "trunci": (107, "r overflow:overflow %source"),
    "unpack": (112, _UNARY),
    "xori": (108, _BINARY),
    "yield": (109, _RETURNING),
}

FORMATS = MappingProxyType({opcode: (name, text.split()) for name, (opcode, text) in _FORMATS.items()})
"""Name and fields of each operation, by opcode."""

ENUMS = MappingProxyType(
    {
        "rounding": ("nearest_even", "zero", "negative_inf", "positive_inf", "approx", "full")
        + ("nearest_int_to_zero", "nearest_away"),
        "overflow": ("none", "nsw", "nuw", "nw"),
        "signedness": ("unsigned", "signed"),
        "comparison": ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        "ordered": ("unordered", "ordered"),
        "ordering": ("weak", "relaxed", "acquire", "release", "acq_rel"),
        "scope": ("block", "device", "system"),
        "rmw": ("and", "or", "xor", "add", "addf", "max", "min", "umax", "umin", "xchg"),
    }
)
"""Names of the values of an attribute, by its kind."""
