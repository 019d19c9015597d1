"""Is a model with kernels right? Each layer against float64, and the whole against honest implementations."""

from models.check.layers import LayerCall, LayerCheck, check_layers, first_wrong, record
from models.check.steps import make_cache, run_steps
from models.check.whole import (
    KL_FACTOR,
    Divergence,
    WholeCheck,
    check_whole,
    compare_logits,
    run_exactly,
    run_honestly,
)

__all__ = [
    "KL_FACTOR",
    "Divergence",
    "LayerCall",
    "LayerCheck",
    "WholeCheck",
    "check_layers",
    "check_whole",
    "compare_logits",
    "first_wrong",
    "make_cache",
    "record",
    "run_exactly",
    "run_honestly",
    "run_steps",
]
