"""Two kernels in fixed PTX, launched through the CUDA driver: no update of a library changes their speed."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

VERSION = "v1"
"""To be raised with every change to the PTX or to how it is launched."""
THREADS = 256
"""Threads of a block, for both kernels."""

COPY = """
.version 7.0
.target sm_80
.address_size 64

// Copies `words` words of 16 bytes; block and thread take every (grid size)-th one.
.visible .entry copy_words(.param .u64 source, .param .u64 target, .param .u64 words)
{
    .reg .pred %more;
    .reg .b32 %block, %blocks, %thread, %threads, %w<4>;
    .reg .b64 %from, %to, %words, %word, %step, %lane, %offset, %read, %write;

    ld.param.u64 %from, [source];
    ld.param.u64 %to, [target];
    ld.param.u64 %words, [words];
    cvta.to.global.u64 %from, %from;
    cvta.to.global.u64 %to, %to;
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %threads, %ntid.x;
    mul.wide.u32 %word, %block, %threads;
    cvt.u64.u32 %lane, %thread;
    add.u64 %word, %word, %lane;
    mul.wide.u32 %step, %blocks, %threads;
    setp.ge.u64 %more, %word, %words;
    @%more bra done;
next:
    shl.b64 %offset, %word, 4;
    add.u64 %read, %from, %offset;
    add.u64 %write, %to, %offset;
    ld.global.v4.u32 {%w0, %w1, %w2, %w3}, [%read];
    st.global.v4.u32 [%write], {%w0, %w1, %w2, %w3};
    add.u64 %word, %word, %step;
    setp.lt.u64 %more, %word, %words;
    @%more bra next;
done:
    ret;
}
"""

CHAINS = 4
"""Independent sums of each warp: products follow each other without waiting for the one before."""


def mma_ptx() -> str:
    """Return a kernel of bfloat16 products on tensor cores, on registers alone.

    Each warp does `steps` rounds of one m16n8k16 product on each of its sums. It stores them in the end: the
    assembler would leave out what nobody reads.
    """
    product = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    registers = [f"%c{index}" for index in range(4 * CHAINS)]
    sums = [registers[first : first + 4] for first in range(0, len(registers), 4)]
    lines = [
        # The sums start differently: the assembler may merge equal ones.
        *(f"mov.f32 {register}, 0f{0x3F800000 + (i << 16):08X};" for i, register in enumerate(registers)),
        "next:",
        *(
            f"{product} {{{', '.join(chain)}}}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {{{', '.join(chain)}}};"
            for chain in sums
        ),
        "sub.u32 %steps, %steps, 1;",
        "setp.ne.u32 %more, %steps, 0;",
        "@%more bra next;",
        *(f"add.f32 %c0, %c0, {register};" for register in registers[1:]),
    ]
    return f"""
.version 7.0
.target sm_80
.address_size 64

.visible .entry multiply(.param .u64 result, .param .u32 steps)
{{
    .reg .pred %more;
    .reg .b32 %steps, %block, %thread, %threads, %bits, %a<4>, %b<2>;
    .reg .f32 %c<{4 * CHAINS}>;
    .reg .b64 %to, %at;

    ld.param.u64 %to, [result];
    ld.param.u32 %steps, [steps];
    cvta.to.global.u64 %to, %to;
    mov.u32 %block, %ctaid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %threads, %ntid.x;
    // Operands near 1, two in a register, that differ from thread to thread in their last bits.
    and.b32 %bits, %thread, 31;
    mad.lo.u32 %a0, %bits, 65539, 0x3f803f80;
    add.u32 %a1, %a0, 0x00010002;
    add.u32 %a2, %a0, 0x00030001;
    add.u32 %a3, %a0, 0x00020003;
    add.u32 %b0, %a0, 0x00040001;
    add.u32 %b1, %a0, 0x00010004;
    {chr(10).join(lines).replace(chr(10), chr(10) + "    ").replace("    next:", "next:")}
    mad.lo.u32 %block, %block, %threads, %thread;
    mul.wide.u32 %at, %block, 4;
    add.u64 %at, %at, %to;
    st.global.f32 [%at], %c0;
    ret;
}}
"""


class DriverError(RuntimeError):
    """The CUDA driver refused a call, or is not there."""


class Kernel:
    """A kernel of the PTX `source`, loaded into the current CUDA context."""

    def __init__(self, source: str, name: str) -> None:
        self._module = ctypes.c_void_p()
        self._function = ctypes.c_void_p()
        _call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(source.encode()))
        _call(
            "cuModuleGetFunction", ctypes.byref(self._function), self._module, ctypes.c_char_p(name.encode())
        )

    def launch(self, blocks: int, arguments: Sequence[Any], stream: int) -> None:
        """Launch blocks of `THREADS` threads on a stream; `arguments` are of ctypes' types."""
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p) for argument in arguments)
        )
        sizes = [ctypes.c_uint(size) for size in (blocks, 1, 1, THREADS, 1, 1, 0)]
        _call("cuLaunchKernel", self._function, *sizes, ctypes.c_void_p(stream), pointers, None)


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the CUDA driver.

    Raises:
        DriverError: there is no driver, it lacks the function, or the call failed.
    """
    try:
        code = getattr(_driver(), name)(*arguments)
    except (OSError, AttributeError) as error:
        raise DriverError(f"{name}: {error}") from error
    if code:
        raise DriverError(f"{name} failed with CUresult {code}")
