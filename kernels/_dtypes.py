"""Names of dtypes."""

from __future__ import annotations

FP8 = ("float8_e4m3fn", "float8_e5m2")
SHORT = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
"""What the cases' names call them."""
