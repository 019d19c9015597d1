"""How much memory tensors take at most while something runs, on any device."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Follows the storages that torch's operators return; what an operator takes inside goes unseen.

    Storages that were there before count from when an operator returns a view of them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.peak_bytes = 0
        """Largest size of all storages that lived at one time."""
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._bytes = 0
        """Size of all storages in `_live`: some of them may have ended."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and see what it returns."""
        del types
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                _, known_bytes = self._live.get(storage._cdata, (None, 0))
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self._bytes += storage.nbytes() - known_bytes
        if self._bytes > self.peak_bytes:
            self._live = {key: kept for key, kept in self._live.items() if not kept[0].expired()}
            self._bytes = sum(size for _, size in self._live.values())
            self.peak_bytes = max(self.peak_bytes, self._bytes)
        return result
