"""Language models of transformers with the operations of `kernels/` in place of their own."""

from models.apply import Replaced, apply
from models.weights import build

__all__ = ["Replaced", "apply", "build"]
