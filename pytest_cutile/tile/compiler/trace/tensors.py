"""Tensors that say they are on a GPU, with none there: "cuda" is mapped to "meta" or to the CPU.

torch's fake tensors cannot say so in a build without CUDA; a `TorchFunctionMode` can in any build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

import torch
from torch._library import custom_ops
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from pytest_cutile.tile.compiler.trace.one_device import WANT_ONE_DEVICE, refuse_two_devices
from pytest_cutile.tile.compiler.trace.operations import (
    UNINITIALIZED,
    TorchOperations,
    storage_of,
    tensors_of,
)

Backing = Literal["meta", "cpu"]

_MARK = "_pytest_cutile_on_gpu"
_MOVES = {torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu}
_WRAPPING = {torch.as_tensor, torch.asarray}
"""Functions that return the very tensor that they are given, if it is on the device that is asked for."""
_PLAIN = {int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device, torch.layout}
"""Types of results that hold no tensors."""
_FACTORIES = {
    *(torch.arange, torch.as_tensor, torch.asarray, torch.eye, torch.full, torch.linspace, torch.logspace),
    *(torch.ones, torch.rand, torch.randint, torch.randn, torch.randperm, torch.scalar_tensor, torch.tensor),
    *(torch.tril_indices, torch.triu_indices, torch.zeros, torch.empty, torch.empty_permuted),
    torch.empty_strided,
}


class PretendedTensors(TorchFunctionMode):
    """While active, "cuda" means `backing`, and tensors made so report cuda:0 as their device.

    `failure` is the last exception that a torch function raised: on "meta", launch code that needs
    values fails in one. On "cpu", `fresh` fills what is made uninitialized: with zeros, if nothing is given.
    `operations` gets what torch computes; nobody, if nothing is given.
    """

    def __init__(
        self,
        backing: Backing,
        *,
        fresh: Callable[[torch.Tensor], None] | None = None,
        operations: TorchOperations | None = None,
    ) -> None:
        super().__init__()
        self.backing = backing
        # Host code must read the same in each run.
        self._fresh = fresh or torch.Tensor.zero_
        self.failure: BaseException | None = None
        self._operations = operations
        self.observer: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], None] | None = (
            None
        )
        """Called with each torch function, its arguments and its result."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        try:
            result = self._answer(func, tuple(args), dict(kwargs or {}))
        except Exception as error:
            self.failure = error
            raise
        if (
            self.observer is not None and _gpu_kernel(func) is None
        ):  # the functions inside of one come by here
            with torch._C.DisableTorchFunction():  # noqa: SLF001
                self.observer(func, tuple(args), dict(kwargs or {}), result)
        return result

    def _answer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        owner = getattr(func, "__self__", None)
        if name == "__get__" and owner is not None and args and isinstance(args[0], torch.Tensor):
            answer = self._attribute(owner, args[0])
            if answer is not NotImplemented:
                return answer
        if func in _MOVES:
            return self._move(func, args, kwargs)
        if args and isinstance(args[0], torch.Tensor):
            answer = self._query(name, args[0])
            if answer is not NotImplemented:
                return answer
        kernel = _gpu_kernel(func)
        if kernel is not None and any(self.on_gpu(tensor) for tensor in tensors_of((args, kwargs))):
            with self:  # it is launch code
                return kernel(*args, **kwargs)
        return self._compute(func, args, kwargs)

    # -- what a tensor says about itself --------------------------------------------------------------

    def on_gpu(self, tensor: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            device = tensor.device.type
        if device == "cuda":
            return True  # really there, made before
        if self.backing == "meta":
            return device == "meta"
        storage = storage_of(tensor)
        return storage is not None and getattr(storage, _MARK, False)

    def _attribute(self, descriptor: Any, tensor: torch.Tensor) -> Any:
        attribute = getattr(descriptor, "__name__", "")
        if attribute == "device":
            return torch.device("cuda", 0) if self.on_gpu(tensor) else NotImplemented
        if attribute == "is_cuda":
            return self.on_gpu(tensor)
        if attribute in {"is_meta", "is_cpu"} and self.on_gpu(tensor):
            return False
        return NotImplemented

    def _query(self, name: str, tensor: torch.Tensor) -> Any:
        if name == "get_device" and self.on_gpu(tensor):
            return 0
        if name == "data_ptr" and self.on_gpu(tensor):
            return _address(tensor)
        if name == "is_pinned":
            return False
        if name == "pin_memory":
            return tensor
        return None if name == "record_stream" else NotImplemented

    # -- what makes tensors ---------------------------------------------------------------------------

    def _backed(self, device: Any) -> tuple[Any, bool | None]:
        """Return the device that stands for `device`, and whether it is the GPU (None: not said)."""
        if device is None:
            return None, None
        asked = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if asked.type == "cuda":
            check_device(asked)
            return torch.device(self.backing), True
        return asked, asked.type == "meta" and self.backing == "meta"

    def _compute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        if device is None and func in _FACTORIES:
            device = default_device()  # its own mode is below this one, and too late
        backed, gpu = self._backed(device)
        if backed is not None:
            kwargs["device"] = backed
            if func in _WRAPPING and args and isinstance(args[0], torch.Tensor):
                args = (self._move(torch.Tensor.to, args[:1], {"device": device}), *args[1:])
        kwargs.pop("pin_memory", None)
        self._refuse_two_devices(func, args, kwargs)
        if gpu and self.backing == "meta":
            kwargs.pop("generator", None)  # a meta tensor draws nothing, and refuses a CPU generator
        result = func(*args, **kwargs)
        if self._operations is not None:
            self._operations.add(func, (*args, kwargs), result)
        if self.backing == "cpu" and type(result) not in _PLAIN:
            if gpu is not False:
                inputs = [storage_of(tensor) for tensor in tensors_of((args, kwargs))]
                if gpu or any(getattr(storage, _MARK, False) for storage in inputs):
                    # What was written in place stays where it was.
                    self.mark(result, but={*map(id, inputs)})
            if func in UNINITIALIZED:
                self._fresh(result)
        return result

    def _refuse_two_devices(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if func in WANT_ONE_DEVICE:
            tensors = tensors_of((args, kwargs))
            refuse_two_devices(func, [self.on_gpu(tensor) for tensor in tensors], tensors)

    def _move(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, *rest = args
        target: Any
        if func == torch.Tensor.cpu:
            target = "cpu"
        elif func == torch.Tensor.cuda:
            target = rest.pop(0) if rest else kwargs.pop("device", None)
            target = "cuda" if target is None else target
            kwargs.update(zip(("non_blocking",), rest, strict=False))
        else:
            target = kwargs.pop("tensor", None)
            if rest and not isinstance(rest[0], torch.dtype):
                target = rest.pop(0)
            if isinstance(target, torch.Tensor):
                kwargs.update(zip(("non_blocking", "copy"), rest, strict=False), dtype=target.dtype)
                target = target.device if not self.on_gpu(target) else "cuda"
            elif target is None and "device" not in kwargs:
                return self._compute(func, args, kwargs)
            else:
                kwargs.update(zip(("dtype", "non_blocking", "copy"), rest, strict=False))
                target = kwargs.pop("device", target)
        backed, gpu = self._backed(target)
        if self.backing == "cpu" and bool(gpu) != self.on_gpu(tensor):
            kwargs["copy"] = True  # one object cannot be on both
        result = torch.Tensor.to(tensor, device=backed, **kwargs)
        if self.backing == "cpu" and gpu:
            self.mark(result)
        return result

    def mark(self, result: Any, *, but: AbstractSet[int] = frozenset()) -> None:
        """Note on the storages of `result` that they are on the GPU: views and parameters share them."""
        for tensor in tensors_of(result):
            storage = storage_of(tensor)
            if storage is not None and id(storage) not in but:
                setattr(storage, _MARK, True)


def backward_under(
    mode: TorchFunctionMode, see: Callable[[tuple[Any, ...]], object] | None = None
) -> tuple[Any, str, Any]:
    """Return what to replace so that the `backward` of user-defined functions runs under `mode`, too.

    torch takes a mode away while it answers a call, and all of a backward pass is one call. `see` gets the
    gradients before each.
    """
    owner = torch.autograd.function.BackwardCFunction
    original: Callable[..., Any] = owner.apply

    def apply(self: Any, *args: Any) -> Any:
        if see is not None:
            see(args)
        with mode:
            return original(self, *args)

    return owner, "apply", apply


def _gpu_kernel(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return what a GPU runs for an operator that was made with `torch.library.custom_op`; None for others.

    Left to itself, torch would run what stands in for it on "meta", which launches nothing.
    """
    schema = getattr(func, "_schema", None)
    name = getattr(schema, "name", None) or getattr(func, "_qualified_op_name", None)
    definition = getattr(custom_ops, "OPDEFS", {}).get(name) if name else None
    kernels: dict[str | None, Callable[..., Any]] = getattr(definition, "_backend_fns", {})
    return kernels.get("cuda", kernels.get(None))


def check_device(device: Any) -> None:
    """Raise what CUDA would for another GPU than the first."""
    index = device if device is None or isinstance(device, int) else torch.device(device).index
    if index not in {None, 0}:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {device} (one GPU is simulated)")


def default_device() -> torch.device | None:
    """Return the device of `torch.set_default_device` or `with torch.device(...)`, if there is one.

    `torch.get_default_device` raises for "cuda" in a build without CUDA.
    """
    return getattr(_device, "CURRENT_DEVICE", None)


def _address(tensor: torch.Tensor) -> int:
    """Return an address that no other storage shares and that is aligned as CUDA's allocations are."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        storage: int = tensor.untyped_storage()._cdata  # noqa: SLF001
        return (storage << 9) + int(tensor.storage_offset()) * tensor.element_size()


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the layout and dtype of `tensor`, in as much memory, and without its data."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        reach = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if n > 0)
        memory = tensor.untyped_storage().nbytes() // tensor.element_size()
        storage = torch.empty(max(reach, memory), dtype=tensor.dtype, device="meta")
        return storage.as_strided(shape, strides, offset)
