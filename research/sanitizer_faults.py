"""Does `pytest --sanitize` find what is planted in kernels? Needs a GPU and compute-sanitizer.

    python -m research.sanitizer_faults

Faults of `research/mutants`, each in a package of its own, of which one small case is run: an access behind
the last row, which memcheck has to see, and a read of what no part has written, for initcheck. The kernels
without them have to be clean under all tools. There is no fault for racecheck: it looks at shared memory,
which in cuTile is the compiler's alone; races between blocks, in global memory, are nothing that
compute-sanitizer looks for (the interpreter does). Exit status 1 if anything is otherwise.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from research.mutants.corpus import MUTANTS
from research.mutants.mutant import plant
from research.mutants.trial import INI

FAULTS = (
    # Mutant, case, tool, and what the tool has to say.
    ("softmax-rows-unchecked", "fp16-37x256", "memcheck", "Invalid __global__"),
    ("swiglu-columns-unchecked", "bf16-2047", "memcheck", "Invalid __global__"),
    ("attention_decode-lse-race", "bf16-2x4_2x257x64", "initcheck", "Uninitialized __global__ memory read"),
)
CLEAN = (("softmax", "fp16-37x256"), ("attention_decode", "bf16-2x4_2x257x64"), ("matmul", "fp16-127x129x65"))


def main() -> int:
    """Run all; return the exit status."""
    wrong = 0
    for name, case, tool, text in FAULTS:
        (mutant,) = (candidate for candidate in MUTANTS if candidate.name == name)
        with tempfile.TemporaryDirectory() as folder:
            plant(mutant, Path(folder))
            output = run(Path(folder), mutant.kernel, case, tool)
        seen = text in output
        wrong += not seen
        print(f"{'found' if seen else 'NOT FOUND'}: {name}, by {tool}")
        print(excerpt(output) if seen else output)
    for kernel, case in CLEAN:
        with tempfile.TemporaryDirectory() as folder:
            plant(None, Path(folder))
            output = run(Path(folder), kernel, case, "memcheck,racecheck,initcheck,synccheck")
        clean = " passed" in output and " failed" not in output
        wrong += not clean
        print(f"{'clean' if clean else 'NOT CLEAN'}: {kernel}[{case}]\n{'' if clean else output}")
    return 1 if wrong else 0


def run(project: Path, kernel: str, case: str, tools: str) -> str:
    """Return what pytest prints of small cases of a kernel, under the sanitizer's `tools`."""
    (project / "pytest.ini").write_text(INI, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--arch", "native"]
    command += ["-m", "cutile_correct", f"--sanitize={tools}", f"kernels/{kernel}.py::correct[{case}]"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    print(f"({kernel}, {tools}: {time.monotonic() - started:.0f} s)")
    return done.stdout + done.stderr


def excerpt(text: str) -> str:
    """Return the lines about findings."""
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith("compute-sanitizer (")), 0)
    return "\n".join(lines[first : first + 6])


if __name__ == "__main__":
    sys.exit(main())
