"""`torch.cuda` as launch code sees it when it is traced: one idle GPU of a given architecture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch

from pytest_cutile.tile.compiler.trace.devices import properties_of
from pytest_cutile.tile.compiler.trace.tensors import check_device, default_device
from pytest_cutile.tile.compiler.trace.timed_loops import EVENT_MS, TimedLoops
from pytest_cutile.words.platforms.architectures import capability

_BF16_SINCE = (8, 0)
_DO_NOTHING = (
    *("init", "synchronize", "set_stream", "empty_cache", "ipc_collect", "reset_peak_memory_stats"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all"),
)
_COUNTERS = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


class PretendedStream:
    """A stream that has always finished its work."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("cuda", 0) if device is None else torch.device(device)
        self.priority = priority
        self.cuda_stream = 0
        self.stream_id = 0
        self.device_index = 0

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event or torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def synchronize(self, *_: Any) -> None: ...

    wait_event = wait_stream = synchronize

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class PretendedEvent:
    """An event that has already happened."""

    loops: TimedLoops | None = None
    """Which launches are timed; set by `replacements`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_event = 0
        self._place = 0

    def query(self) -> bool:
        return True

    def record(self, *_: Any) -> None:
        if self.loops is not None:
            self._place = self.loops.now

    def elapsed_time(self, end: Any) -> float:
        """Return one millisecond, or less for a configuration that is to be chosen."""
        if self.loops is None:
            return EVENT_MS
        return self.loops.milliseconds(self._place, end._place)  # noqa: SLF001

    def synchronize(self, *_: Any) -> None: ...

    wait = synchronize


class PretendedGraph:
    """A CUDA graph; what is launched while it is captured is recorded like any launch."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def replay(self, *_: Any, **__: Any) -> None: ...

    capture_begin = capture_end = reset = replay

    def pool(self) -> tuple[int, int]:
        return (0, 0)


class PretendedGenerator(torch.Generator):
    """A random number generator: "cuda" is the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Self:
        del device
        return super().__new__(cls, device="cpu")  # type: ignore[call-arg]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu")


def _returns(value: Any) -> Callable[..., Any]:
    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def _returns_of_device(value: Any) -> Callable[..., Any]:
    def answer(device: Any = None) -> Any:
        check_device(device)
        return value

    return answer


@contextlib.contextmanager
def _does_nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


class _Device(contextlib.AbstractContextManager[None]):
    """`torch.cuda.device(...)`: there is only one."""

    def __init__(self, device: Any = None) -> None:
        check_device(device)
        self.idx = 0
        self.prev_idx = 0

    def __exit__(self, *_: object) -> None:
        pass


class _DeviceOf(_Device):
    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.is_cuda else None)


def _get_default_device() -> torch.device:
    device = default_device()
    if device is None:
        return torch.device("cpu")
    return torch.device("cuda", 0) if device.type == "cuda" else device


def replacements(arch: str, loops: TimedLoops | None = None) -> list[tuple[Any, str, Any]]:
    """Return (owner, name, replacement) for everything about the GPU that host code asks torch for.

    Events tell `loops` which launches they time.
    """
    properties = properties_of(arch)
    major_minor = capability(arch)
    stream = PretendedStream()

    answers: dict[str, Any] = {
        "is_available": _returns(True),
        "is_initialized": _returns(True),
        "is_bf16_supported": _returns(major_minor >= _BF16_SINCE),
        "is_current_stream_capturing": _returns(False),
        "device_count": _returns(1),
        "current_device": _returns(0),
        "current_stream": _returns(stream),
        "default_stream": _returns(stream),
        "get_arch_list": _returns([arch]),
        "mem_get_info": _returns((properties.total_memory, properties.total_memory)),
        "graph_pool_handle": _returns((0, 0)),
        "get_device_properties": _returns_of_device(properties),
        "get_device_capability": _returns_of_device(major_minor),
        "get_device_name": _returns_of_device(properties.name),
        "set_device": _returns_of_device(None),
        "device": _Device,
        "device_of": _DeviceOf,
        "stream": _does_nothing,
        "graph": _does_nothing,
        "Stream": PretendedStream,
        "Event": type("PretendedEvent", (PretendedEvent,), {"loops": loops}),
        "CUDAGraph": PretendedGraph,
    }
    answers |= dict.fromkeys(_DO_NOTHING, _returns(None)) | dict.fromkeys(_COUNTERS, _returns(0))
    accelerator = {
        "is_available": _returns(True),
        "device_count": _returns(1),
        "current_accelerator": _returns(torch.device("cuda")),
        "current_device_index": _returns(0),
        "current_stream": _returns(stream),
        "synchronize": _returns(None),
    }
    return [
        *(
            (owner, name, value)
            for owner, values in ((torch.cuda, answers), (torch.accelerator, accelerator))
            for name, value in values.items()
            if hasattr(owner, name)
        ),
        (torch, "Generator", PretendedGenerator),
        (torch, "get_default_device", _get_default_device),
    ]
