"""Finds architectures and GPU models by name, and what stands for those that are not known."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from pytest_cutile.words.platforms.architectures import normalize_architecture
from pytest_cutile.words.platforms.data import Architecture, Platform, hardware


def find_architecture(arch: str) -> Architecture | None:
    """Return what is known of `arch` ("sm_90", in any spelling), or None.

    Raises:
        ArchitectureError: `arch` names no architecture.
    """
    return hardware().architectures.get(normalize_architecture(arch))


def nearest_architecture(arch: str, known: Collection[str]) -> str | None:
    """Return which of the architectures `known` is `arch` or its nearest relative; None if none is.

    Relatives are the older architectures that `gpus.toml` names, each with its own: the relative of "sm_121"
    is "sm_120", whose relative is "sm_89". Use it to look up a configuration:

        config = CONFIGS[nearest_architecture(arch, CONFIGS) or "sm_80"]
    """
    relative: str | None = arch
    while relative is not None and relative not in known:
        architecture = hardware().architectures.get(relative)
        relative = architecture.relative if architecture is not None else None
    return relative


def related_architectures() -> tuple[str, ...]:
    """Return the architectures that have a relative in `gpus.toml`, and those relatives, oldest first."""
    relatives = {name: one.relative for name, one in hardware().architectures.items()}
    return tuple(name for name, relative in relatives.items() if relative or name in relatives.values())


def find_platform(gpu_name: str) -> Platform | None:
    """Return the platform of a device name as NVML or torch reports it, or None if it is not known."""
    return _platforms_by_name().get(_fold(gpu_name))


def architectures_of(gpu: str) -> list[str]:
    """Return the architectures of known GPUs whose name has the word `gpu`: those of "h100" are ["sm_90"]."""
    named = (platform for name, platform in _platforms_by_name().items() if _fold(gpu) in name.split())
    return [*dict.fromkeys(platform.arch for platform in named)]


def representative(arch: str) -> Platform | None:
    """Return the GPU that stands for `arch` ("sm_90") where there is none, or None if none is known."""
    return next((platform for platform in hardware().platforms if platform.arch == arch), None)


def stand_in(arch: str) -> Platform:
    """Return the representative of `arch`, else of its nearest relative that has one, else the fallback."""
    nearest = nearest_architecture(arch, {platform.arch for platform in hardware().platforms})
    return (representative(nearest) if nearest is not None else None) or hardware().fallback


def gpu_slug(gpu_name: str) -> str:
    """Return a device name in the form used in file names: "NVIDIA H200" is "nvidia-h200"."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")
    if not slug:
        raise ValueError(f"GPU name {gpu_name!r} has no letter or digit, so no file can be named after it")
    return slug


@cache
def _platforms_by_name() -> dict[str, Platform]:
    return {_fold(name): platform for platform in hardware().platforms for name in platform.names}


def _fold(gpu_name: str) -> str:
    return " ".join(gpu_name.split()).casefold()
