"""A compiler that behaves badly, in place of tileiras."""

import os
from pathlib import Path

import pytest
from cuda.tile._compile import _CompilerBinary

SEGV = "kill -SEGV $$"
SEGV_WITH_REPORT = "echo 'Stack dump:' >&2; kill -SEGV $$"
KILLED = "kill -KILL $$"
NO_CUBIN = "exit 0"
NO_ELF = 'echo text > "$3"; exit 0'
SILENT = "exit 5"
ONLY_FAILED = "echo 'error: failed to compile Tile IR program' >&2; exit 5"
BYTES = r"printf '\377\376 error \351\n' >&2; exit 5"
REPORT = "echo 'PLEASE submit a bug report to the vendor' >&2; exit 70"
SHELLS_STATUS = "exit 139"
REJECTS = "echo 'error: no such tile' >&2; echo 'error: failed to compile Tile IR program' >&2; exit 5"
REJECTS_IN_LATIN_1 = r"""printf 'loc("/home/andr\351/k.py":3:5): error: no such tile\n' >&2; exit 5"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """Let cuda-tile and this package run `script` where they would run tileiras: `$3` is the cubin."""
    program = folder / "tileiras"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    binary = _CompilerBinary(str(program), os.environ["PATH"], "", pass_cuda_home_var=False)
    monkeypatch.setattr("cuda.tile._compile._find_compiler_bin", lambda: binary)
    return program


def crashes_at(*options: str) -> str:
    """Return a script that crashes where all of `options` are given, and else writes what is like a cubin."""
    patterns = " ".join(f'case "$*" in *"{option}"*) ;; *) hit=0;; esac;' for option in options)
    return f'hit=1; {patterns} [ $hit = 0 ] || kill -SEGV $$; printf "\\177ELF" > "$3"'
