"""Compare each derived signature with cuda-tile's own, on the pretended driver; print what differs."""

# ruff: noqa: T201  # a script that prints

from __future__ import annotations

import sys
from typing import Any

import torch

from pytest_cutile.tile.compiler.signature import derive_signature
from tests.tile.compiler import pretend_driver
from tests.tile.compiler.signature_cases import launches, refused


def outcome(derive: Any, kernel: Any, args: Any) -> Any:
    try:
        return derive(kernel, args)
    except Exception as error:  # noqa: BLE001  # what is raised is what is compared
        return type(error)


def main() -> int:
    pretend_driver.install()

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    count = different = 0
    cases = [*launches(empty), *((name, kernel, args) for name, kernel, args, _ in refused(empty))]
    for name, kernel, args in cases:
        count += 1
        mine = outcome(derive_signature, kernel, args)
        real = outcome(pretend_driver.signature_of_launch, kernel, pretend_driver.on_pretend_gpu(args))
        if isinstance(mine, type) or isinstance(real, type):
            same = mine is real
        else:
            same = (mine.parameters, mine.calling_convention.code) == (
                real.parameters,
                real.calling_convention.code,
            )
        if not same:
            different += 1
            print(f"{name}\n  derived {mine}\n  launch  {real}")
    print(f"{count} launches compared, {different} differ")
    return different != 0


if __name__ == "__main__":
    sys.exit(main())
