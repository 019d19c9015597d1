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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and see what it returns."""
        del types
        result = func(*args, **(kwargs or {}))
        self._live = {key: kept for key, kept in self._live.items() if not kept[0].expired()}
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._live.values()))
        return result
