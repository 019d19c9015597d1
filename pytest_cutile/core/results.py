"""What a gate found, in a form that travels with a pytest report (also between xdist processes)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any


class Gate(StrEnum):
    """The questions that are asked of each case."""

    CORRECT = "correct"
    COMPILE = "compile"
    STATIC = "static"
    SPEED = "speed"


INTERPRETER = "interpreter"
NONDETERMINISTIC = "nondeterministic"
"""Reason code of a result that is right, but has other bits each time."""
_LISTS = ("changes", "uncompared", "refused")
"""Fields that are lists where they travel."""


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The outcome of one gate for one case on one architecture."""

    gate: str
    """A value of `Gate`."""
    key: str
    """What tells the case apart from every other: "softmax[bf16-4096x8192]", or a test's node id."""
    kernel: str
    """The kernel's name; for a test function that uses the fixtures, the name of its file."""
    case: str
    """The case's name; for a test function its name with parameters."""
    arch: str
    """Architecture it is about."""
    verdict: str
    """"pass" or "fail" for correct and compile, or "not-measured"; a `Verdict` for static and speed."""
    reason: str = ""
    """Reason code of a static or speed verdict or of not-measured; "raised": the user's own code failed."""
    detail: str = ""
    """One sentence for people."""
    median_us: float | None = None
    """Median time per launch, in microseconds."""
    rate: float | None = None
    """TFLOPS or GB/s, as `unit` says."""
    unit: str = ""
    """Unit of `rate`."""
    share_of_limit: float | None = None
    """Share of the chip's limit in that unit."""
    change: float | None = None
    """Relative change of the time against the baseline; +0.05 is 5 % slower."""
    changes: tuple[str, ...] = ()
    """Static: what is worse, better or different than in the baseline; a line for each."""
    toolchain: str = ""
    """Static: how the toolchain differs from the one that made the baseline; empty when it does not."""
    facts: dict[str, Any] | None = None
    """Static: what was compiled, in `static_json.to_json`'s form; only when a report was asked for."""
    tolerance: str = ""
    """Correct: rtol and atol, where they were given in place of the derived bound: "rtol=0, atol=0.01"."""
    looser: float | None = None
    """Correct: how many times the derived bound they allow, in the median over all elements."""
    allowed: str = ""
    """Correct: what they allow where right values are known exactly."""
    outputs: str = ""
    """Correct: dtypes of what the kernel returned: "(float16, int32)"."""
    uncompared: tuple[str, ...] = ()
    """Correct: arguments that the launcher may change and that were compared with nothing."""
    refused: tuple[str, ...] = ()
    """Correct: other layouts of its inputs that the launcher refused, and how."""
    searched: str = ""
    """Correct: of a search, what it has tried, and on further lines why examples were refused."""
    strength: dict[str, Any] | None = None
    """Correct: what else the check would have caught, in `Strength.to_dict`'s form; only when asked for."""
    recorded: str = ""
    """With --update-baselines: what was recorded, or why nothing was."""
    on: str = ""
    """Correct: `INTERPRETER` when the kernel ran on the CPU, interpreted; empty when it ran on a GPU."""
    gpu: str = ""
    """GPU that was measured, as NVML names it; empty where none was."""
    board: str = ""
    """Speed: the machine and the board that were measured: "h200-box GPU-d91fcf89"."""

    def to_dict(self) -> dict[str, Any]:
        """Return a form of plain built-in types, which xdist can send between processes."""
        plain = {key: str(value) if isinstance(value, str) else value for key, value in asdict(self).items()}
        return {**plain, **{name: list(getattr(self, name)) for name in _LISTS}}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GateResult:
        """Rebuild from `to_dict`'s form."""
        lists = {name: tuple(data.get(name, ())) for name in _LISTS}
        return cls(**{**data, **lists})

    def to_properties(self) -> list[tuple[str, str]]:
        """Return what is known as named texts for JUnit files: ("cutile.speed.median_us", "38.81")."""
        texts: list[tuple[str, str]] = []
        for name, value in self.to_dict().items():
            if name in ("gate", "facts") or value is None or value in ("", []):
                continue
            if name == "strength":
                value = json.dumps(value)  # noqa: PLW2901
            text = f"{value:.6g}" if isinstance(value, float) else value
            texts.append(
                (f"cutile.{self.gate}.{name}", "; ".join(text) if isinstance(text, list) else f"{text}")
            )
        return texts


def names_of_test(nodeid: str) -> tuple[str, str]:
    """Return the kernel and case names of a test function: its file's stem and its own name."""
    function = nodeid.partition("[")[0]
    return PurePosixPath(nodeid.partition("::")[0]).stem, nodeid[function.rfind("::") + 2 :]
