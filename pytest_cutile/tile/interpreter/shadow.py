"""Shadow memory: who wrote and who read each element of a storage, and which elements nothing has written.

A shadow counts in units: the smallest element of any argument on the storage, so that arguments of different
dtypes may share it. A storage that was made uninitialized keeps its shadow from launch to launch. Writes of
the host in between show in torch's count of writes, and in the pattern that the storage was filled with.
"""

from __future__ import annotations

import itertools
from types import MappingProxyType

import torch

from pytest_cutile.tile.interpreter.ir import Op

UNWRITTEN = -2
"""Nobody has written this."""
WRITTEN = -1
"""Written before this launch, or atomically."""
NOBODY = -1
"""No block of this launch has read this."""
SEVERAL = -2
"""More than one block of this launch has read this."""

MAX_UNITS = 1 << 28
"""Units of the largest storage that is tracked: its shadow takes 1 GiB."""

_OF_BLOCKS = {"updaters", "other_updaters", "last_readers", "one_reader", "other_readers"}
_ATTRIBUTE = "_pytest_cutile_shadow"
_IDENTITY = "_pytest_cutile_identity"
_IDENTITIES = itertools.count()
_PATTERNS = MappingProxyType(
    {
        torch.float16: (torch.int16, 0x7E5A),
        torch.bfloat16: (torch.int16, 0x7FDA),
        torch.float32: (torch.int32, 0x7FC0_5A5A),
        torch.float64: (torch.int64, 0x7FF8_5A5A_5A5A_5A5A),
        torch.int32: (torch.int32, 0x6B3A_5A5A),
        torch.int64: (torch.int64, 0x6B3A_5A5A_5A5A_5A5A),
    }
)
"""What an uninitialized element holds, so that whatever the host writes differs: a NaN that no arithmetic
makes, or a large integer that nobody writes."""
_INTEGERS = MappingProxyType({2: torch.int16, 4: torch.int32, 8: torch.int64})


class Shadow:
    """Who wrote each unit of a storage: `UNWRITTEN`, `WRITTEN`, or the number of a block of this launch."""

    def __init__(self, storage_bytes: int, unit: int, *, initialized: bool) -> None:
        self.storage_bytes = storage_bytes
        self.unit = unit
        """Bytes that share an entry."""
        self.unwritten = not initialized
        """Whether there may be units that nobody has written."""
        self.was_written = False
        """Whether this launch has written any."""
        self.stores: dict[int, Op] = {}
        """The operations of this launch that wrote any, by their identity."""
        self.loads: dict[int, Op] = {}
        """The operations of this launch that read any, as far as reads are tracked."""
        self.updates: dict[int, Op] = {}
        """The operations of this launch that wrote any atomically."""
        self.parameters: set[int] = set()
        """The parameters of this launch that have it."""
        self.track_reads = False
        """Whether this launch may write what it reads here, so that reads have to be known as well."""
        self.tracked = storage_bytes // unit <= MAX_UNITS
        """Whether it is small enough to know who wrote what."""
        self._initialized = initialized
        self._writers: torch.Tensor | None = None
        self._readers: torch.Tensor | None = None
        self._records: dict[str, torch.Tensor] = {}
        self._pattern: tuple[torch.dtype, int] = (torch.uint8, 0)
        self._version = -1

    @property
    def writers(self) -> torch.Tensor:
        """The writers, int32, by unit."""
        if self._writers is None:
            self._writers = self._row(WRITTEN if self._initialized else UNWRITTEN)
        return self._writers

    @property
    def readers(self) -> torch.Tensor:
        """The readers of this launch, int32, by unit: `NOBODY`, `SEVERAL` or the number of the only one."""
        if self._readers is None:
            self._readers = self._row(NOBODY)
        return self._readers

    @property
    def was_read(self) -> bool:
        """Whether this launch has read any, as far as reads are tracked."""
        return self._readers is not None

    @property
    def was_updated(self) -> bool:
        """Whether this launch has written any atomically, as far as that is tracked."""
        return "updaters" in self._records

    def record(self, name: str) -> torch.Tensor:
        """Return another record of this launch, int32, by unit.

        Args:
            name: "updaters" and "last_readers": the block that was the last to write atomically, or to read
                (-1: none is known); "other_updaters": another one, if there are several; "one_reader" and
                "other_readers": two of several; "updated_by_several": whether more than one has written
                atomically; "parameters": the parameter that wrote last (0: none);
                "write_epochs", "update_epochs" and "read_epochs": how often the last block to do so had
                released by then.
        """
        if name not in self._records:
            self._records[name] = self._row(NOBODY if name in _OF_BLOCKS else 0)
        return self._records[name]

    def _row(self, value: int) -> torch.Tensor:
        return torch.full((-(-self.storage_bytes // self.unit),), value, dtype=torch.int32)

    def refine(self, unit: int) -> None:
        """Count in smaller units."""
        if unit >= self.unit:
            return
        factor, self.unit = self.unit // unit, unit
        units = -(-self.storage_bytes // unit)
        if self._writers is not None:
            self._writers = self._writers.repeat_interleave(factor)[:units]
        if self._readers is not None:
            self._readers = self._readers.repeat_interleave(factor)[:units]
        for name, row in self._records.items():
            self._records[name] = row.repeat_interleave(factor)[:units]

    def unwritten_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return which elements of a tensor on this storage nobody has written, wholly or in part."""
        self.refine(tensor.element_size())
        per_element = tensor.element_size() // self.unit
        strides = (*(stride * per_element for stride in tensor.stride()), 1)
        units = self.writers.as_strided(
            (*tensor.shape, per_element), strides, tensor.storage_offset() * per_element
        )
        return (units == UNWRITTEN).any(dim=-1)

    def written_bytes(self) -> torch.Tensor | None:
        """Return which bytes of the storage this launch has written; None: none, or that is not tracked."""
        written = self.writers >= 0 if self.was_written else None
        if self.was_updated:
            updated = self.record("updaters") >= 0
            written = updated if written is None else written | updated
        return None if written is None else written.repeat_interleave(self.unit)

    def end_launch(self) -> None:
        """Count what was written as written before the next launch."""
        if self.was_written:
            self.writers.clamp_(max=WRITTEN)
            self.was_written = False
            self.unwritten = self.unwritten and bool((self.writers == UNWRITTEN).any())
        self.stores = {}
        self.loads = {}
        self.updates = {}
        self.track_reads = False
        self.parameters = set()
        self._readers = None
        self._records = {}

    # -- what the host does ---------------------------------------------------------------------------

    def track_host_writes(self, tensor: torch.Tensor) -> None:
        """Take note of what the host has written since the last look, through torch."""
        version = _version_of(tensor)
        if not self.unwritten or (version is not None and version == self._version):
            return
        self._version = -1 if version is None else version
        if self._pattern[1] == 0:  # which the host may have written as well
            self.writers.clamp_(min=WRITTEN)
            self.unwritten = False
        else:
            self.compare_with_pattern(tensor)

    def compare_with_pattern(self, tensor: torch.Tensor) -> None:
        """Take as written what does not hold any more what it was filled with: the host may write unseen."""
        dtype, pattern = self._pattern
        self.refine(dtype.itemsize)
        changed = (row_of(tensor, dtype) != pattern).repeat_interleave(dtype.itemsize // self.unit)
        writers = self.writers[: len(changed)]
        writers[changed & (writers == UNWRITTEN)] = WRITTEN


def row_of(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the whole storage of a tensor as one row of elements of `dtype`."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


def poison(tensor: torch.Tensor, *, remember: bool = True) -> None:
    """Fill a tensor that is made uninitialized with its dtype's pattern, or zero, and remember that it is.

    Floats of one byte and integers of one or two are zero: any value may be the host's.
    """
    if tensor.layout != torch.strided or tensor.is_meta:
        return
    data = tensor.detach()  # fills leaves that require gradients, too
    pattern = _PATTERNS.get(data.dtype) or (_INTEGERS.get(data.element_size(), torch.uint8), 0)
    if pattern[1]:
        data.view(pattern[0]).fill_(pattern[1])
    else:
        data.zero_()
    if remember and 0 < data.numel() <= MAX_UNITS:
        shadow = Shadow(data.untyped_storage().nbytes(), data.element_size(), initialized=False)
        shadow._pattern = pattern  # noqa: SLF001
        shadow._version = _version_of(tensor) or 0  # noqa: SLF001
        setattr(tensor.untyped_storage(), _ATTRIBUTE, shadow)


def shadow_of(tensor: torch.Tensor) -> Shadow | None:
    """Return the shadow of a tensor's storage, if it was made uninitialized."""
    shadow: Shadow | None = getattr(tensor.untyped_storage(), _ATTRIBUTE, None)
    if shadow is None or shadow.storage_bytes != tensor.untyped_storage().nbytes():
        return None  # resized since
    shadow.track_host_writes(tensor)
    return shadow


def identity_of(tensor: torch.Tensor) -> int:
    """Return a number of a tensor's storage, which no other one has or had."""
    storage = tensor.untyped_storage()
    if not hasattr(storage, _IDENTITY):
        setattr(storage, _IDENTITY, next(_IDENTITIES))
    identity: int = getattr(storage, _IDENTITY)
    return identity


def _version_of(tensor: torch.Tensor) -> int | None:
    """Return torch's count of writes to the tensor and its views; None: it keeps none for this one."""
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001
