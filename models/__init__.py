"""Language models of transformers with the operations of `kernels/` in place of their own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.replaced import Replaced, apply
    from models.weights import build

__all__ = ["Replaced", "apply", "build"]
_MODULES = {"Replaced": "models.replaced", "apply": "models.replaced", "build": "models.weights"}


def __getattr__(name: str) -> Any:
    # Collecting `models.specs` imports this package, and need not wait for transformers.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
