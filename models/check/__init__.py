"""Is a model with kernels right? Each layer against float64, and the whole against honest implementations."""

from models.check.layers import LayerCall, LayerCheck, check_layers, first_wrong, record
from models.check.steps import Logits, make_cache, run_steps
from models.check.whole import (
    FACTOR,
    Divergence,
    PhaseCheck,
    check_whole,
    compare_logits,
    run_exactly,
    run_honestly,
    verify,
)

__all__ = [
    "FACTOR",
    "Divergence",
    "LayerCall",
    "LayerCheck",
    "Logits",
    "PhaseCheck",
    "check_layers",
    "check_whole",
    "compare_logits",
    "first_wrong",
    "make_cache",
    "record",
    "run_exactly",
    "run_honestly",
    "run_steps",
    "verify",
]
