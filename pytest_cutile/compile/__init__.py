"""Ahead-of-time compilation of the kernels that launch code launches. Needs no GPU and no driver.

    launches = record_launches(lambda: launch(*inputs(make_tensor)), "sm_121")
    with Compiler(cache_dir=None, jobs=4, timeout_s=300) as compiler:
        futures = [compiler.submit(export(launch, "sm_121")) for launch in launches]
        cubins = [future.result().cubin for future in futures]

Importing this package imports neither torch nor cuda.tile.
"""

from pytest_cutile.compile.compiler import Compiled, Compiler
from pytest_cutile.compile.cutile import IncompatibleCompiler
from pytest_cutile.compile.export import CompileError, CompileJob, export
from pytest_cutile.compile.signature import derive_signature
from pytest_cutile.compile.source import source_digest
from pytest_cutile.compile.trace import (
    Launch,
    Recorder,
    pretend_gpu,
    pretended_backing,
    record_launches,
    trace_launches,
)

__all__ = [
    "CompileError",
    "CompileJob",
    "Compiled",
    "Compiler",
    "IncompatibleCompiler",
    "Launch",
    "Recorder",
    "derive_signature",
    "export",
    "pretend_gpu",
    "pretended_backing",
    "record_launches",
    "source_digest",
    "trace_launches",
]
