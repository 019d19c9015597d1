"""A CUDA driver that does nothing, so that cuda-tile derives a launch's signature with no GPU.

cuda-tile asks libcuda for its functions through one address, `cuda.tile._load_libcuda`. Given another
one, its real C++ launch path runs up to the point where it asks the kernel to compile itself, and there the
signature is caught. Once installed it stays for the life of the process: use it in a process of its own.
"""

# mypy: allow-untyped-decorators

from __future__ import annotations

import ctypes
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_Result = ctypes.c_int
_Nothing = ctypes.CFUNCTYPE(_Result)
_PutInt = ctypes.CFUNCTYPE(_Result, ctypes.POINTER(ctypes.c_int))
_PutPointer = ctypes.CFUNCTYPE(_Result, ctypes.POINTER(ctypes.c_void_p))
_PutPointerOf = ctypes.CFUNCTYPE(_Result, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_PutIdOf = ctypes.CFUNCTYPE(_Result, ctypes.c_void_p, ctypes.POINTER(ctypes.c_ulonglong))
_GetAddress = ctypes.CFUNCTYPE(
    _Result,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int,
    ctypes.c_uint64,
    ctypes.c_void_p,
)


def _int_setter(value: int) -> Any:
    def put(out: Any) -> int:
        out[0] = value
        return 0

    return _PutInt(put)


def _put_context(out: Any) -> int:
    out[0] = 4096
    return 0


def _put_context_of(_stream: Any, out: Any) -> int:
    out[0] = 4096
    return 0


def _put_id_of(_context: Any, out: Any) -> int:
    out[0] = 1
    return 0


_NOTHING = _Nothing(lambda: 0)
_FUNCTIONS: dict[bytes, Any] = {
    b"cuDriverGetVersion": _int_setter(13040),
    b"cuDeviceGetCount": _int_setter(1),
    b"cuCtxGetDevice": _int_setter(0),
    b"cuDeviceGet": _int_setter(0),
    b"cuDeviceGetAttribute": _int_setter(9),
    b"cuCtxGetCurrent": _PutPointer(_put_context),
    b"cuStreamGetCtx": _PutPointerOf(_put_context_of),
    b"cuCtxGetId": _PutIdOf(_put_id_of),
}


@_GetAddress
def _get_address(name: bytes, out: Any, _version: int, _flags: int, _status: Any) -> int:
    out[0] = ctypes.cast(_FUNCTIONS.get(name, _NOTHING), ctypes.c_void_p).value
    return 0


_CELL = ctypes.c_void_p(ctypes.cast(_get_address, ctypes.c_void_p).value)


def install() -> None:
    module = types.ModuleType("cuda.tile._load_libcuda")
    module.cuGetProcAddress_v2_ptrptr = ctypes.addressof(_CELL)  # type: ignore[attr-defined]
    sys.modules["cuda.tile._load_libcuda"] = module


class _Caught(Exception):  # noqa: N818
    pass


def signature_of_launch(kernel: Any, args: Sequence[Any]) -> Any:
    """Launch `kernel` and return the signature that cuda-tile would compile it for."""
    import cuda.tile as ct

    caught = []

    def compile_nothing(signature: Any, *_: Any) -> None:
        caught.append(signature)
        raise _Caught

    fresh = kernel.replace_hints()  # so that no signature has been compiled before
    fresh._compile = compile_nothing
    try:
        ct.launch(0, (1,), fresh, tuple(args))
    except _Caught:
        return caught[0]
    raise AssertionError("the launch compiled nothing")


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

_CUDA = 2
_BASE = 1 << 20  # as aligned as any CUDA allocation


class PretendCudaTensor:
    """What `tensor`, a CPU tensor, would export through DLPack if a CUDA allocation held its storage."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        del stream
        import torch

        capsule = torch._C._to_dlpack(self._tensor)
        exported = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
        exported.device_type = _CUDA
        exported.data = _BASE + self._tensor.storage_offset() * self._tensor.element_size()
        return capsule


def on_pretend_gpu(value: Any) -> Any:
    """Return launch arguments with every CPU tensor replaced by one on the GPU that is pretended."""
    import torch

    if isinstance(value, torch.Tensor):
        return PretendCudaTensor(value)
    if type(value) in (list, tuple):
        return type(value)(on_pretend_gpu(item) for item in value)
    return value
