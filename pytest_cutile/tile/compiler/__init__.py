"""Ahead-of-time compilation of the kernels that launch code launches. Needs no GPU and no driver.

The way of a launch, step by step:

1. `trace/` runs launch code as if on a GPU of an architecture, and records its launches.
2. `export.py` translates the kernel of a launch to Tile IR, for the dtypes and layouts of its arguments
   (`signature.py`).
3. `service.py` compiles Tile IR to a cubin with tileiras: several at a time, remembered on disk (`cache.py`).
   `process.py` runs tileiras, and `fault.py` tells a crash from a kernel that tileiras rejects.
4. `fingerprint.py` digests what the GPU would run, `source.py` what the author wrote.

`compilations.py` does all of it for the cases of a run, each once. `toolchain.py` finds tileiras and NVIDIA's
binary tools; `cutile.py` holds whatever leans on private parts of cuda-tile. In short:

    launches = record_launches(lambda: launch(*inputs(make_tensor)), "sm_121")
    with Compiler(cache_dir=None, jobs=4, timeout_s=300) as compiler:
        futures = [compiler.submit(export(launch, "sm_121")) for launch in launches]
        cubins = [future.result().cubin for future in futures]

Importing this package imports neither torch nor cuda.tile.
"""

from pytest_cutile.tile.compiler.cutile import IncompatibleCompiler
from pytest_cutile.tile.compiler.export import export
from pytest_cutile.tile.compiler.fault import CompilerFault
from pytest_cutile.tile.compiler.fingerprint import digest_code, digest_launches
from pytest_cutile.tile.compiler.job import CompileError, CompileJob
from pytest_cutile.tile.compiler.service import Compiled, Compiler
from pytest_cutile.tile.compiler.signature import derive_signature
from pytest_cutile.tile.compiler.source import source_digest
from pytest_cutile.tile.compiler.trace.launches import (
    Launch,
    Recorder,
    pretend_gpu,
    pretended_backing,
    record_launches,
)

__all__ = [
    "CompileError",
    "CompileJob",
    "Compiled",
    "Compiler",
    "CompilerFault",
    "IncompatibleCompiler",
    "Launch",
    "Recorder",
    "derive_signature",
    "digest_code",
    "digest_launches",
    "export",
    "pretend_gpu",
    "pretended_backing",
    "record_launches",
    "source_digest",
]
