"""What the gate `correct` costs beside the kernel that it checks: time and memory. Needs a GPU.

    python -m research.check_cost [NAME...] [--json FILE]

For the smallest and the largest case of each kernel: the time of a launch (after the first, which compiles),
the time of a whole check, in how many parts it was made, and how much memory it takes at its peak in units of
the case's own tensors, inputs and outputs. A check that takes more than `MUCH` times those is followed by the
places that held the memory then.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cutile.tile.tensors.trees import named_tensors
from pytest_cutile.words.spec import Case, KernelSpec
from tools.gpu_runs.agreement import check_launch
from tools.gpu_runs.gpu_state import release_memory
from tools.gpu_runs.inputs import make_arguments
from tools.gpu_runs.suites import load_suite, suite_names
from tools.gpu_runs.tables import aligned

LAUNCHES = 10
MUCH = 3.0
PLACES = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m research.check_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels; all, if none is named")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args(argv)
    rows = []
    for name in options.names or suite_names():
        spec = load_suite(name).spec
        cases = sorted(spec.cases, key=lambda case: spec.work_of(case).bytes)
        for case in (cases[0], cases[-1]):
            rows.append(measure(spec, case))
            print("  ".join(_cells(rows[-1])), file=sys.stderr)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    head = ("case", "own MiB", "launch ms", "check ms", "ratio", "parts", "peak MiB", "peak / own")
    print(aligned(head, [_cells(row) for row in rows]))
    for row in rows:
        if row["places"]:
            print(
                f"\n{row['case']} takes {row['peak_bytes'] / row['own_bytes']:.1f} times its tensors, held by"
            )
            print("\n".join(f"  {size / 2**20:10.1f} MiB  {place}" for place, size in row["places"].items()))
    return 0


def measure(spec: KernelSpec, case: Case) -> dict[str, Any]:
    """Return the time and the memory of one case's launch and check."""
    import torch

    release_memory()
    args, kwargs = make_arguments(spec, case, device="cuda", seed_text=case.name)
    outputs = spec.launch(*args, **kwargs)
    own = _bytes((args, kwargs)) + _bytes(outputs)
    given = _bytes((args, kwargs))
    del outputs

    check = partial(check_launch, spec, case, args, kwargs)
    report = check()  # once before: libraries load, and choose their algorithms
    launch_ms = min(_milliseconds(lambda: spec.launch(*args, **kwargs)) for _ in range(LAUNCHES))
    release_memory()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    check_ms = _milliseconds(check)
    peak = torch.cuda.max_memory_allocated() - before + given
    return {
        "case": f"{spec.name}[{case.name}]",
        "own_bytes": own,
        "launch_ms": launch_ms,
        "check_ms": check_ms,
        "parts": report.parts,
        "peak_bytes": peak,
        "places": _places(check) if peak > MUCH * own and peak > 1 << 30 else {},
    }


def _bytes(tree: Any) -> int:
    """Return the size of all tensors, each storage once."""
    storages = {}
    for _, tensor in named_tensors(tree, ""):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _milliseconds(function: Callable[[], object]) -> float:
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started)


def _places(function: Callable[[], object]) -> dict[str, int]:
    """Return who held how many bytes when most were held, by the innermost line that is not torch's."""
    import torch

    memory = torch.cuda.memory
    memory._record_memory_history(max_entries=1_000_000)  # noqa: SLF001 - documented under this name
    try:
        function()
        trace = memory._snapshot()["device_traces"][torch.cuda.current_device()]  # noqa: SLF001
    finally:
        memory._record_memory_history(enabled=None)  # noqa: SLF001
    now, totals = 0, [0]
    sizes: dict[int, int] = {}
    for entry in trace:
        if entry["action"] == "alloc":
            sizes[entry["addr"]] = entry["size"]
            now += entry["size"]
        elif entry["action"] == "free_completed":
            now -= sizes.pop(entry["addr"], 0)
        totals.append(now)
    held: dict[int, tuple[int, str]] = {}
    for entry in trace[: totals.index(max(totals))]:
        if entry["action"] == "alloc":
            held[entry["addr"]] = (entry["size"], _place(entry["frames"]))
        elif entry["action"] == "free_completed":
            held.pop(entry["addr"], None)
    places: Counter[str] = Counter()
    for size, place in held.values():
        places[place] += size
    return dict(places.most_common(PLACES))


def _place(frames: Sequence[Mapping[str, Any]]) -> str:
    for frame in frames:
        file = frame["filename"]
        if file.endswith(".py") and "/torch/" not in file:
            return f"{'/'.join(Path(file).parts[-2:])}:{frame['line']} {frame['name']}"
    return "elsewhere"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["case"],
        f"{row['own_bytes'] / 2**20:.2f}",
        f"{row['launch_ms']:.3f}",
        f"{row['check_ms']:.1f}",
        f"{row['check_ms'] / row['launch_ms']:.0f}",
        f"{row['parts']}",
        f"{row['peak_bytes'] / 2**20:.1f}",
        f"{row['peak_bytes'] / row['own_bytes']:.1f}",
    )


if __name__ == "__main__":
    sys.exit(main())
