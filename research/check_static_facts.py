"""What the static gate reads of compiled kernels, against what the CUDA driver says of them on a GPU.

    python -m research.check_static_facts

Every declared case is compiled for the GPU at hand, its cubin is loaded with the driver, and registers,
local and shared memory and the number of resident blocks are compared. Dynamic shared memory is what
cuda-tile's own launch asks for, watched as it launches.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections import Counter
from typing import Any

from pytest_cutile.gates.declared import compile_case
from pytest_cutile.tile.compiler import Compiler, export, record_launches
from pytest_cutile.tile.static.inspection import inspect
from pytest_cutile.tile.static.rules import occupancy_of

KERNELS = ("matmul", "softmax", "rms_norm")
ATTRIBUTES = {"shared": 1, "local": 3, "registers": 4}
"""CUfunction_attribute: SHARED_SIZE_BYTES, LOCAL_SIZE_BYTES, NUM_REGS."""
MAX_DYNAMIC_SHARED = 8
"""CUfunction_attribute MAX_DYNAMIC_SHARED_SIZE_BYTES."""


class Driver:
    """The few calls of libcuda that are needed."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def ask(self, name: str, *args: Any) -> None:
        """Call a function of the driver.

        Raises:
            SystemExit: it fails.
        """
        status = getattr(self._cuda, name)(*args)
        if status:
            sys.exit(f"{name} failed with CUDA error {status}")

    def facts(self, cubin: bytes, symbol: str, threads: int) -> dict[str, int]:
        """Return what the driver says of a kernel."""
        module, function, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self.ask("cuModuleLoadData", ctypes.byref(module), cubin)
        self.ask("cuModuleGetFunction", ctypes.byref(function), module, symbol.encode())
        facts = {}
        for name, attribute in ATTRIBUTES.items():
            self.ask("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
            facts[name] = value.value
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self.ask(occupancy, ctypes.byref(value), function, threads, ctypes.c_size_t(0))
        facts["blocks"] = value.value
        self.ask("cuModuleUnload", module)
        return facts


def dynamic_shared(run: Any) -> set[int]:
    """Return the dynamic shared memory that the launches of `run` ask for, in bytes."""
    from cuda.tile import _cext

    seen = set()

    def watch(*config: Any) -> None:
        seen.add(config[7])  # function, grid (3), block (3), shared memory, stream

    _cext._spy_on_cuLaunchKernel_begin(watch)  # noqa: SLF001
    try:
        run()
    finally:
        _cext._spy_on_cuLaunchKernel_end()  # noqa: SLF001
    return seen


def main() -> None:
    """Compare and print."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}"
    torch.zeros(1, device="cuda")  # makes the context
    driver = Driver()
    counts: Counter[str] = Counter()
    dynamic: Counter[int] = Counter()
    with Compiler(cache_dir=None, jobs=4, timeout_s=300) as compiler:
        for kernel in KERNELS:
            spec = importlib.import_module(f"kernels.{kernel}").SPEC
            for case in spec.cases:
                run = compile_case(spec, case, arch).run
                for launch in record_launches(run, arch):
                    compiled = compiler.submit(export(launch, arch)).result()
                    facts, missing = inspect(compiled)
                    fits = occupancy_of(facts, arch)
                    if missing or fits is None or facts.threads is None:
                        sys.exit("; ".join(missing) or "no occupancy")
                    ours = {
                        "registers": facts.registers,
                        "local": (facts.stack_bytes or 0) + (facts.local_bytes or 0),
                        "shared": facts.shared_bytes,
                        "blocks": fits.blocks,
                    }
                    theirs = driver.facts(compiled.cubin, compiled.symbol, facts.threads)
                    for name, value in ours.items():
                        counts[f"{name}: {'same' if value == theirs[name] else 'other'}"] += 1
                        if value != theirs[name]:
                            print(f"{kernel}[{case.name}] {name}: ours {value}, the driver's {theirs[name]}")
                dynamic.update(dynamic_shared(run))
    print(torch.cuda.get_device_name(), dict(sorted(counts.items())))
    print("dynamic shared memory of launches, in bytes:", dict(dynamic))


if __name__ == "__main__":
    main()
