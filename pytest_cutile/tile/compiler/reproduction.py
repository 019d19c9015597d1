"""Writes a folder for a bug report about tileiras: it shows what happens without pytest and the project."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_cutile.tile.compiler.cutile import Invocation
from pytest_cutile.tile.compiler.fault import CompilerFault
from pytest_cutile.tile.compiler.job import CompileJob
from pytest_cutile.tile.compiler.toolchain import toolchain_versions
from pytest_cutile.tile.compiler.trials import OPT_LEVELS, Trial

SCRIPT = "reproduce.sh"
_FAULTS = ("crashes", "fails without a reason")


@dataclass(frozen=True, kw_only=True)
class TriedKernel:
    """A kernel of a case, and what tileiras made of it."""

    job: CompileJob
    trials: Sequence[Trial]
    """With the job's own options first."""

    @property
    def summary(self) -> str:
        """What happens, in one line: "tileiras crashes on add_kernel for sm_121 with -O3"."""
        first = self.trials[0]
        verb = {"compiles": "compiles", "rejects it": "rejects", "too long": "takes too long for"}.get(
            first.outcome, f"{first.outcome} on" if first.outcome in _FAULTS else "was not tried on"
        )
        return f"tileiras {verb} {self.job.kernel} for {first.arch} with -O{first.opt_level}"


def write_reproduction(folder: Path, case: str, kernels: Sequence[TriedKernel]) -> list[Path]:
    """Write the bytecode of `kernels`, a script that compiles it, and a README into `folder`.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = _file_names([kernel.job.kernel for kernel in kernels])
    files = [folder / "README.md", folder / SCRIPT]
    for name, kernel in zip(names, kernels, strict=True):
        files.append(folder / f"{name}.tileirbc")
        files[-1].write_bytes(kernel.job.bytecode)
    files[0].write_text("\n".join(_readme(case, names, kernels)) + "\n", encoding="utf-8")
    files[1].write_text("\n".join(_script(names, kernels)) + "\n", encoding="utf-8")
    files[1].chmod(0o755)
    return files


def _file_names(kernels: Sequence[str]) -> list[str]:
    """Return names of files for kernels, which may have the same name and odd characters."""
    plain = [re.sub(r"\W+", "_", kernel, flags=re.ASCII) for kernel in kernels]
    return [
        name if plain.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(plain, start=1)
    ]


def _command(name: str, job: CompileJob) -> list[str]:
    """Return the arguments of tileiras for a file of bytecode."""
    return Invocation.of(job.arch, job.opt_level).arguments(name)


def _script(names: Sequence[str], kernels: Sequence[TriedKernel]) -> Iterator[str]:
    invocation = Invocation.of(kernels[0].job.arch, kernels[0].job.opt_level)
    yield "#!/bin/sh"
    yield "# Runs tileiras as a launch of the kernel does. The variable TILEIRAS names another tileiras."
    yield 'cd "$(dirname "$0")" || exit'
    yield f"TILEIRAS=${{TILEIRAS:-{shlex.quote(invocation.tileiras)}}}"
    yield '[ -x "$TILEIRAS" ] || TILEIRAS=tileiras'
    unset = [name for name in ("CUDA_HOME", "CUDA_PATH") if name not in invocation.env]
    if unset:
        yield f"unset {' '.join(unset)}  # as cuda-tile does for a tileiras of the Python packages"
    yield '"$TILEIRAS" --version'
    yield "worst=0"
    for name, kernel in zip(names, kernels, strict=True):
        arguments = shlex.join(_command(name, kernel.job))
        yield ""
        yield f"rm -f {name}.cubin"
        yield f'echo "tileiras {arguments}"'
        yield f'"$TILEIRAS" {arguments}'
        yield "status=$?"
        yield f"if [ -s {name}.cubin ]; then"
        yield '    echo "exit status $status, a cubin"'
        yield "else"
        yield '    echo "exit status $status, no cubin"'
        yield '    [ "$status" -ne 0 ] || status=1'
        yield "fi"
        yield '[ "$status" -eq 0 ] || worst=$status'
    yield ""
    yield "exit $worst"


def _readme(case: str, names: Sequence[str], kernels: Sequence[TriedKernel]) -> Iterator[str]:
    yield f"# {kernels[0].summary}"
    yield ""
    yield f"    sh {SCRIPT}"
    yield ""
    yield "runs tileiras on the bytecode beside this file. The script needs neither Python nor the project of"
    yield f"the kernel. `TILEIRAS=/path/to/tileiras sh {SCRIPT}` takes another tileiras."
    for name, kernel in zip(names, kernels, strict=True):
        yield from ("", f"## {kernel.job.kernel}", "", f"{kernel.summary}.", "")
        yield f"    tileiras {shlex.join(_command(name, kernel.job))}"
        yield ""
        error = kernel.trials[0].error
        if error is not None:
            facts = error.facts if isinstance(error, CompilerFault) else ()
            yield from (f"    {line}" for line in (error.headline, *facts))
            yield ""
        yield from _table(kernel.trials)
    yield from ("", "## Versions", "")
    yield from (f"- {name} {version}" for name, version in toolchain_versions().items())
    yield f"- {platform.platform()}"
    yield ""
    yield f"The bytecode is what cuda-tile exports for the case `{case}`. It names the files and lines of the"
    yield "kernel's source, and holds no source text."


def _table(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield what happens with each architecture, a row, and each optimization level, a column."""
    outcomes = {(trial.arch, trial.opt_level): trial.outcome for trial in trials}
    yield f"| architecture | {' | '.join(f'-O{level}' for level in OPT_LEVELS)} |"
    yield f"|---|{'---|' * len(OPT_LEVELS)}"
    for arch in sorted({trial.arch for trial in trials}, key=lambda name: int(name.removeprefix("sm_"))):
        yield f"| {arch} | {' | '.join(outcomes[arch, level] for level in OPT_LEVELS)} |"
