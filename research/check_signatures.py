"""Compare the signatures that `pytest_cutile.tile.compiler` derives with those of real launches. Needs a GPU.

    python -m research.check_signatures

prints one line for each launch and exits with 1 when one differs. No kernel is compiled or run.
tests/tile/compiler makes the same comparison with no GPU, against cuda-tile on an idle driver; here the
tensors, their addresses and the driver are real.
"""

# ruff: noqa: BLE001, SLF001  # a script that prints, and looks at what a launch compiles

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cuda.tile as ct
import torch

from pytest_cutile.tile.compiler.signature import derive_signature
from tests.tile.compiler.signature_cases import launches, refused


class _CaughtError(Exception):
    """Raised in place of compiling."""


def _signature_of_launch(kernel: Any, args: tuple[Any, ...]) -> Any:
    caught = []

    def compile_nothing(signature: Any, *_: Any) -> None:
        caught.append(signature)
        raise _CaughtError

    fresh = kernel.replace_hints()  # so that no signature has been compiled before
    fresh._compile = compile_nothing
    try:
        ct.launch(torch.cuda.current_stream(), (1,), fresh, args)
    except _CaughtError:
        return caught[0]
    message = "the launch compiled nothing"
    raise RuntimeError(message)


def _outcome(derive: Any, kernel: Any, args: tuple[Any, ...]) -> Any:
    try:
        return derive(kernel, args)
    except Exception as error:
        return type(error)


def _differences(derived: Any, real: Any) -> list[str]:
    if isinstance(derived, type) or isinstance(real, type):
        return [] if derived is real else [f"derived {derived}", f"launch  {real}"]
    differences = [
        f"parameter {index}: derived {mine}\n{'':>16}launch  {theirs}"
        for index, (mine, theirs) in enumerate(zip(derived.parameters, real.parameters, strict=True))
        if mine != theirs
    ]
    if derived.calling_convention.code != real.calling_convention.code:
        differences.append(
            f"convention: derived {derived.calling_convention}, launch {real.calling_convention}"
        )
    return differences


def main() -> int:
    """Print the table; return 1 when a signature differs."""
    if not torch.cuda.is_available():
        print("no GPU: use `python -m tests.tile.compiler.compare_signatures`, which needs none")
        return 1

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cuda")

    cases = [*launches(empty), *((name, kernel, args) for name, kernel, args, _ in refused(empty))]
    different = 0
    for name, kernel, args in cases:
        derived = _outcome(derive_signature, kernel, args)
        differences = _differences(derived, _outcome(_signature_of_launch, kernel, args))
        different += bool(differences)
        kind = f"refused: {derived.__name__}" if isinstance(derived, type) else "signature"
        print(f"{'DIFFERS' if differences else 'agrees':8} {name:48} {kind}")
        for line in differences:
            print(f"{'':8} {line}")
    print(
        f"{len(cases)} launches, {different} differ: torch {torch.__version__}, "
        f"{torch.cuda.get_device_name()}, cuda-tile {ct.__version__}"
    )
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
