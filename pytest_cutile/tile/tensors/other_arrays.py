"""Arrays of other libraries than torch (CuPy, or NumPy where a GPU is pretended) as tensors, and back.

An array is what exports itself by DLPack or `__cuda_array_interface__`. Nothing is copied: array and tensor
share their memory.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils.dlpack

from pytest_cutile.tile.compiler.trace.launches import pretended_tensors
from pytest_cutile.tile.tensors.trees import tensors_in

ArrayMaker = Callable[[torch.Tensor], Any]
"""Makes an array of a library on the memory of a tensor."""
_ON_HOST = 1
"""What DLPack calls a CPU's memory (`kDLCPU`)."""


def is_array(value: object, *, beside_tensors: bool = False) -> bool:
    """Say whether a value is an array of another library in the GPU's memory.

    An array in the host's memory is none. Where a GPU is pretended, its memory is the host's: NumPy's arrays
    stand in for those of a GPU, but not `beside_tensors`, where they are the host's as well.
    """
    if isinstance(value, (torch.Tensor, type)) or not _exports(value):
        return False
    if pretended_tensors() is None:
        return not _is_on_host(value)
    return not beside_tensors or type(value).__module__.partition(".")[0] != "numpy"


def _exports(value: object) -> bool:
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def _is_on_host(value: Any) -> bool:
    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == _ON_HOST


def as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor on the memory of an array.

    Raises:
        TypeError: torch cannot see it as a tensor.
    """
    pretended = pretended_tensors()
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - the array is what it says it is
            if hasattr(array, "__dlpack__"):
                tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
            else:
                tensor = torch.as_tensor(array, device="cuda")
    except Exception as error:
        raise TypeError(f"torch cannot see a {name_of_type(array)} as a tensor: {error}") from error
    if pretended is not None:
        pretended.mark(tensor)
    return tensor


def as_launched(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a launch with a tensor for each array."""
    beside_tensors = bool(tensors_in(arguments))

    def convert(value: Any) -> Any:
        if type(value) in {tuple, list}:
            return type(value)(map(convert, value))
        return as_tensor(value) if is_array(value, beside_tensors=beside_tensors) else value

    return tuple(map(convert, arguments))


def maker_of(array: Any) -> ArrayMaker:
    """Return what makes arrays like this one of tensors: `from_dlpack` of its class or its library.

    Raises:
        TypeError: neither has one.
    """
    cls = type(array)
    namespace = getattr(array, "__array_namespace__", None)
    owners = (
        cls,
        None if namespace is None else namespace(),
        sys.modules.get(cls.__module__),
        sys.modules.get(cls.__module__.partition(".")[0]),
    )
    for owner in owners:
        make: ArrayMaker | None = None if owner is None else getattr(owner, "from_dlpack", None)
        if callable(make) and not (owner is cls and inspect.isfunction(make)):
            return make
    raise TypeError(
        f"a {name_of_type(array)} cannot be made of a torch tensor, as a check has to: neither its class nor "
        "its library has a function from_dlpack; let the launcher take torch tensors, or give the class one"
    )


def as_array(make: ArrayMaker, tensor: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - the library asks torch for what is there
        return make(tensor.detach())


def on_memory_of(tensors: Iterable[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a view of that one of `tensors` in whose storage it lies; itself if in none.

    What comes back from another library has a storage of its own, which begins where the array does.
    """
    first = tensor.data_ptr()
    for owner in tensors:
        storage = owner.untyped_storage()
        offset, rest = divmod(first - storage.data_ptr(), tensor.element_size())
        inside = 0 <= first - storage.data_ptr() < storage.nbytes()
        if owner.device == tensor.device and inside and not rest:
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            return view.set_(storage, offset, tensor.shape, tensor.stride())
    return tensor


def name_of_type(value: object) -> str:
    """Return the name of a value's type: "cupy.ndarray"."""
    cls = type(value)
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"
