"""What a run is about: the architectures that were asked for, and what runs kernels for them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from pytest_cutile.tile.compiler.toolchain import (
    CompilerMissing,
    supported_architecture,
    supported_architectures,
)
from pytest_cutile.words.errors import GateSkipped
from pytest_cutile.words.platforms.architectures import ArchitectureError
from pytest_cutile.words.settings import CheckOn, Settings

if TYPE_CHECKING:
    from pytest_cutile.timing.gpu.at_hand import GpuAtHand


class Target:
    """The architectures under test, and whether a GPU runs their kernels or the interpreter."""

    def __init__(self, settings: Settings, gpu: GpuAtHand) -> None:
        self._settings = settings
        self._gpu = gpu

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """The architectures under test, in the order they were asked for."""
        settings = self._settings
        if settings.foreign_arch is not None:
            raise pytest.UsageError(
                f"--arch {settings.foreign_arch}: this option belongs to another plugin or conftest, and its "
                "value names no GPU architecture; set the ini option cutile_arch, or give e.g. --arch sm_121"
            )
        if settings.asked:
            asked: Iterable[str] = settings.asked
            source = "--arch"
        elif self._gpu.device is not None:
            asked, source = ("native",), "the GPU at hand"
        else:
            asked, source = settings.default_arch.split(","), "ini option cutile_arch"
        names: list[str] = []
        for name in asked:
            names += self._expand(name.strip(), source)
        return tuple(dict.fromkeys(names))

    def _expand(self, name: str, source: str) -> list[str]:
        if name == "native":
            if self._gpu.device is None:
                raise pytest.UsageError(f"{source}: native, but there is no GPU: {self._gpu.missing}")
            return [self._gpu.device.arch]
        try:
            return [*supported_architectures()] if name == "all" else [supported_architecture(name)]
        except CompilerMissing as error:
            raise pytest.UsageError(f"{source}: all, but {error}") from error
        except ArchitectureError as error:
            raise pytest.UsageError(f"{source}: {error}") from error

    @property
    def gpu_arch(self) -> str:
        """The architecture that correct and speed are about: the GPU's if asked for, else the first."""
        if self._gpu.device is not None and self._gpu.device.arch in self.architectures:
            return self._gpu.device.arch
        return self.architectures[0]

    def interprets(self, arch: str) -> bool:
        """Return whether the gate `correct` for `arch` interprets kernels; else it needs a GPU."""
        correct_on = self._settings.interpretation.correct_on
        if correct_on is not CheckOn.AUTO:
            return correct_on is CheckOn.INTERPRETER
        if self._gpu.device is None or self._gpu.device.arch != arch:
            return True
        if self._gpu.device.torch_device != "cuda":
            return False
        try:
            self._gpu.check_torch()
        except GateSkipped:  # a GPU that torch cannot use is none
            return True
        return False
