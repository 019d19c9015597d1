"""A planted bug: what it replaces in a kernel's source, and what real bug it stands for."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent.parent / "kernels"


class DoesNotApply(Exception):  # noqa: N818 - it reads as what happened
    """The text that a mutant replaces is not in the kernel exactly once: the kernel has changed."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug, as an exact replacement in one file of `kernels/`."""

    name: str
    """Unique: "softmax-no-mask"."""
    kernel: str
    """The kernel whose cases have to show it: the name of its file."""
    imitates: str
    """The bug that people make, in a few words."""
    old: str
    """Text that is in the file exactly once."""
    new: str
    """What takes its place."""
    file: str = ""
    """The file, if it is not the kernel's own."""
    witness: str = ""
    """A small case that shows it; the mutants that have one are also a test of this project."""
    gpu_only: bool = False
    """Whether only a GPU can show it: the interpreter has neither its accumulators nor its timing."""
    harmless: str = ""
    """Why nothing is wrong with it, if nothing is: then any alarm is a false one."""

    @property
    def path(self) -> str:
        """The file that is changed, inside of `kernels/`."""
        return self.file or f"{self.kernel}.py"

    def apply(self, text: str) -> str:
        """Return the changed text of the file.

        Raises:
            DoesNotApply: `old` is not in it exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise DoesNotApply(f"{self.name}: {self.path} holds {self.old!r} {count} times, not once")
        return text.replace(self.old, self.new)


def plant(mutant: Mutant | None, folder: Path) -> None:
    """Write the package `kernels` into `folder`, with the bug, or with None as it is.

    Raises:
        DoesNotApply: the kernel has changed.
    """
    package = folder / "kernels"
    shutil.copytree(KERNELS, package, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        file = package / mutant.path
        file.write_text(mutant.apply(file.read_text(encoding="utf-8")), encoding="utf-8")
